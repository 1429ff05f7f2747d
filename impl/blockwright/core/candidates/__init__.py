"""Orders of eviction candidates, where that is not the order in which they were released."""
