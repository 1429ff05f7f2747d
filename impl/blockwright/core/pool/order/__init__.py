"""In which order eviction candidates are evicted, beside the plain queue: by access, by hints, or as chosen."""
