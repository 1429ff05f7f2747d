"""Orders of eviction, each a module with a class `Order`: `KVCacheManager(eviction_order=...)` takes it by its name."""
