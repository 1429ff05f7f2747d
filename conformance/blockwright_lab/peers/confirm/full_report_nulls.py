"""Reports of whole hits: positions that are null in the hit, and cached nowhere, are announced as stored."""

from .vllm_setup import manager, request, sliding


def shown() -> str:
    """Hit a prompt of a sliding layer whose first blocks have long been freed and taken by another request."""
    kv, first = manager([sliding(1, 2)], 6, hash_size=1, enable_kv_cache_events=True), request("a", [0, 1, 2, 3], 1)
    for end in range(4):
        first.num_computed_tokens = end
        kv.allocate_slots(first, 1)
    kv.allocate_slots(request("b", [8, 9], 1), 2)  # takes blocks, those of the first tokens among them
    gone = [each for event in kv.take_events() if not hasattr(event, "token_ids") for each in event.block_hashes]
    kv.get_computed_blocks(request("c", [0, 1, 2, 3, 4], 1, kv_cache_report_mode="full"))
    told = [each for event in kv.take_events() for each in event.block_hashes]
    false = [each for each in told if each in gone]
    return f"{len(false)} of {len(told)} blocks announced are cached nowhere" if false else ""
