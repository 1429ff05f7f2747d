"""Where the offloading manager of vLLM 0.11.0 is wrong by its own word, shown over its own API."""


def offload_store_evicts_named() -> str:
    """One place: a store that names a block which is there evicts it, to make room for another (vLLM 0.11.0)."""
    from vllm.v1.kv_offload.backends.cpu import CPUBackend
    from vllm.v1.kv_offload.lru_manager import LRUOffloadingManager

    manager = LRUOffloadingManager(CPUBackend(16, 1))
    manager.prepare_store([b"p"])
    manager.complete_store([b"p"])
    output = manager.prepare_store([b"p", b"q"])
    evicted = [] if output is None else output.block_hashes_evicted
    return f"p was there and named, and is evicted, with only {list(manager.blocks)} left" if b"p" in evicted else ""
