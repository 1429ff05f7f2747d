"""vLLM 0.11.0: a hit that ends where a chunk ends needs no block; the request that was given it cannot be admitted."""

from blockwright_conformance.adapters.confirm.old_setup import manager, request


def shown() -> str:
    """Admit a prompt of two chunks to an empty cache with the hit that it is given."""
    kv, own = manager(6, chunked=2), request("r", [0, 1, 2, 3])
    blocks, length = kv.get_computed_blocks(own)
    try:
        kv.allocate_slots(own, 2, length, blocks)
    except AssertionError:
        return f"a hit of {length} tokens in an empty cache, and an AssertionError when it is used"
    return ""
