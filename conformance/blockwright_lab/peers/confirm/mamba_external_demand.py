"""Full attention beside a recurrent layer, tokens loaded from elsewhere: fewer blocks are counted than are taken."""

from .vllm_setup import full, mamba, manager, request


def shown() -> str:
    """Ask slots for 4 loaded tokens and 1 to compute where 5 blocks are needed and 4 are free."""
    kv = manager([full(2), mamba(2)], 7, hash_size=2)
    kv.allocate_slots(request("other", [9], 2), 1)  # holds a block of each group
    free = kv.block_pool.get_num_free_blocks()
    try:
        kv.allocate_slots(request("r", [0] * 5, 2), 1, num_external_computed_tokens=4)
    except ValueError as error:
        return f"{free} free, 5 needed: not refused, but {type(error).__name__}: {error}"
    return ""
