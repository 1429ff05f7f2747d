"""Hashes finer than blocks: the key of a block's first half, taken back when the block was full, is put in again."""

from .vllm_setup import full, mamba, manager, request


def shown() -> str:
    """Compute a prompt of 7 tokens to its last hashed place, to its end, and a token more, which fills the block."""
    kv = manager([full(4), mamba(4)], 20, hash_size=2, enable_kv_cache_events=True)
    own, told = request("r", list(range(7)), 2), []
    for end in (6, 7, 8):
        kv.new_step_starts()
        kv.allocate_slots(own, end - own.num_computed_tokens)
        own.num_computed_tokens = end
        if end == 7:
            own.append_output_token_ids([7])
        told += [f"{type(e).__name__} at {end}" for e in kv.take_events() if own_half(e)]
    keys = sum(len(more) + 1 for more in kv.block_pool.cached_block_hashes_by_block.values())
    return f"{keys} keys on one block; the half block in its events: {', '.join(told)}" if keys > 1 else ""


def own_half(event: object) -> bool:
    """Tell whether an event of the full group is about tokens 4 and 5, the half block."""
    tokens = getattr(event, "token_ids", None)
    return getattr(event, "group_idx", None) == 0 and tokens in (None, [4, 5])
