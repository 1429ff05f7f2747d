"""vLLM 0.11.0 with events: a block is published after one that is null, and the event of it cannot be made."""

from .old_setup import manager, request


def shown() -> str:
    """Admit a prompt of two chunks, whose first is needed no more, with the hit that it is given."""
    kv, own = manager(6, chunked=2, events=True), request("r", [0, 1, 2, 3])
    blocks, length = kv.get_computed_blocks(own)
    try:
        kv.allocate_slots(own, 2, length, blocks)
    except AssertionError:
        return f"a hit of {length} tokens, and an AssertionError when it is used"
    return ""
