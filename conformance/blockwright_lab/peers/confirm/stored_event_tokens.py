"""Some blocks of a range are not published: the event of it names fewer hashes than it has tokens for."""

from .vllm_setup import full, manager, request, sliding


def shown() -> str:
    """Publish a prompt of 8 tokens, of which the sliding layer keeps the tails of hits only."""
    kv = manager([full(4), sliding(1, 2)], 20, hash_size=1, enable_kv_cache_events=True)
    kv.allocate_slots(request("r", [0, 1, 2, 3, 4, 5, 6, 7], 1), 8)
    for event in kv.take_events():
        if len(event.token_ids) != len(event.block_hashes) * event.block_size:
            what = f"{len(event.block_hashes)} hashes of blocks of {event.block_size}, {len(event.token_ids)} tokens"
            return f"stored in group {event.group_idx}: {what}: which hash covers which tokens cannot be told"
    return ""
