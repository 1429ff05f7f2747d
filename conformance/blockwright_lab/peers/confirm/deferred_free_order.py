"""Two groups: what is freed after a step stands in the free queue in another order than what is freed at once."""

from .vllm_setup import full, manager, request, sliding


def shown() -> str:
    """Free the same request at once, and by the way that waits for a step in flight."""
    orders = []
    for waits in (False, True):
        kv, own = manager([full(2), sliding(2, 9)], 5, hash_size=2), request("r", [0] * 4, 2)
        kv.allocate_slots(own, 4)
        if waits:  # what the scheduler does when the step has ended
            kv.block_pool.free_blocks(reversed(kv.pop_blocks_for_free(own)))
        else:
            kv.free(own)
        orders.append([block.block_id for block in kv.block_pool.free_block_queue.get_all_free_blocks()])
    return "" if orders[0] == orders[1] else f"freed at once: {orders[0]}, after a step: {orders[1]}"
