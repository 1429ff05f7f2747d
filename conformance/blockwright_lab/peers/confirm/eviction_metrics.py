"""The metrics of evictions count blocks that were never in the cache."""

from .vllm_setup import full, manager, request


def shown() -> str:
    """Take, free and take again a block that was never published, as no block of these requests is full."""
    from vllm.v1.core.kv_cache_metrics import KVCacheMetricsCollector

    collector = KVCacheMetricsCollector(sample_rate=1.0)
    kv = manager([full(4)], 2, hash_size=4, metrics_collector=collector)
    for name in ("first", "second"):
        own = request(name, [0, 1], 4)
        kv.allocate_slots(own, 2)
        kv.free(own)
    count = len(collector.drain_events())
    return f"{count} evictions from the prefix cache are reported, in which nothing ever was" if count else ""
