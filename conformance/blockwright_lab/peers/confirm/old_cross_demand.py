"""vLLM 0.11.0: encoder blocks of a running request count as too many, which hides that its next chunk does not fit."""

from .old_setup import manager, request


def shown() -> str:
    """Ask slots for a second chunk when no block is free."""
    kv, own = manager(4, full=None, cross=None), request("r", [0, 1, 2, 3])
    kv.allocate_slots(own, 2, num_encoder_tokens=4)
    own.num_computed_tokens = 2
    free = kv.block_pool.get_num_free_blocks()
    try:
        kv.allocate_slots(own, 2)
    except ValueError as error:
        return f"{free} free, 1 needed: not refused, but {type(error).__name__}: {error}"
    return ""
