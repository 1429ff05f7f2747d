"""Orders of eviction: each module is one, a class `Order`, which `KVCacheManager(eviction_order=...)` takes by its name."""
