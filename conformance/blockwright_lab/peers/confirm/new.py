"""Where vLLM 0.33.0 is wrong by its own word, each shown by a function over its own API."""

from ..vllm_engine import vllm

VERSION = "0.33.0"


def deferred_free_order() -> str:
    """Two groups: what is freed after a step stands in the free queue in another order than what is freed at once."""
    orders = []
    for waits in (False, True):
        kv, request = vllm(VERSION, "full, block 2 + sliding 9, block 2", 5)
        own = request("r", [0] * 4)
        kv.allocate_slots(own, 4)
        if waits:  # what the scheduler does when the step has ended
            kv.block_pool.free_blocks(reversed(kv.pop_blocks_for_free(own)))
        else:
            kv.free(own)
        orders.append([block.block_id for block in kv.block_pool.free_block_queue.get_all_free_blocks()])
    return "" if orders[0] == orders[1] else f"freed at once: {orders[0]}, after a step: {orders[1]}"


def eviction_metrics() -> str:
    """Show that the metrics of evictions count blocks that were never in the cache."""
    from vllm.v1.core.kv_cache_metrics import KVCacheMetricsCollector

    collector = KVCacheMetricsCollector(sample_rate=1.0)
    kv, request = vllm(VERSION, "full, block 4", 2, metrics_collector=collector)
    for name in ("first", "second"):
        own = request(name, [0, 1])
        kv.allocate_slots(own, 2)
        kv.free(own)
    count = len(collector.drain_events())
    return f"{count} evictions from the prefix cache are reported, in which nothing ever was" if count else ""


def full_report_nulls() -> str:
    """Show that a report of whole hits announces positions that are null in the hit, and cached nowhere."""
    kv, request = vllm(VERSION, "sliding 2, block 1", 6)
    first = request("a", [0, 1, 2, 3])
    for end in range(4):
        first.num_computed_tokens = end
        kv.allocate_slots(first, 1)
    kv.allocate_slots(request("b", [8, 9]), 2)  # takes blocks, those of the first tokens among them
    gone = [each for event in kv.take_events() if not hasattr(event, "token_ids") for each in event.block_hashes]
    kv.get_computed_blocks(request("c", [0, 1, 2, 3, 4], kv_cache_report_mode="full"))
    reported = [each for event in kv.take_events() for each in event.block_hashes]
    false = [each for each in reported if each in gone]
    return f"{len(false)} of {len(reported)} blocks announced are cached nowhere" if false else ""


def mamba_external_demand() -> str:
    """Show that fewer blocks are counted than taken where a recurrent layer's tokens are loaded from elsewhere."""
    kv, request = vllm(VERSION, "full, block 2 + mamba, block 2", 7)
    kv.allocate_slots(request("other", [9]), 1)  # holds a block of each group
    free = kv.block_pool.get_num_free_blocks()
    try:
        kv.allocate_slots(request("r", [0] * 5), 1, num_external_computed_tokens=4)
    except ValueError as error:
        return f"{free} free, 5 needed: not refused, but {type(error).__name__}: {error}"
    return ""


def partial_key_again() -> str:
    """Show that the key of a block's first half, taken back when the block was full, is put in again."""
    kv, request = vllm(VERSION, "full, block 4 + mamba, block 4", 20, hash_block_size=2)
    own, reported = request("r", range(7)), []
    for end in (6, 7, 8):
        kv.new_step_starts()
        kv.allocate_slots(own, end - own.num_computed_tokens)
        own.num_computed_tokens = end
        if end == 7:
            own.append_output_token_ids([7])
        reported += [f"{type(e).__name__} at {end}" for e in kv.take_events() if _own_half(e)]
    keys = sum(len(more) + 1 for more in kv.block_pool.cached_block_hashes_by_block.values())
    return f"{keys} keys on one block; the half block in its events: {', '.join(reported)}" if keys > 1 else ""


def _own_half(event: object) -> bool:
    tokens = getattr(event, "token_ids", None)
    return getattr(event, "group_idx", None) == 0 and tokens in (None, [4, 5])


def checkpoint_over_copy() -> str:
    """Show that a state copied from a hit inside a block is published as the state at that block's end."""
    state = {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": 1}
    dense = {"prefix_cache_retention_interval": None}
    kv, request = vllm(
        VERSION, "full, block 4 + mamba, block 4", 40, hash_block_size=2, state=state, cache_config=dense
    )
    for own in (request("first", range(7)), request("other", [*range(6), *range(20, 27)])):
        kv.new_step_starts()
        hit, length, _ = kv.get_computed_blocks(own)
        kv.allocate_slots(own, own.num_tokens - length, length, hit)  # the rest of the prompt, with a checkpoint inside
        copied = {copy.dst_block_id for copy in kv.take_kv_cache_block_copies()[0]}
    ends = [block.block_hash_num_tokens for block in kv.get_blocks("other").blocks[1] if block.block_id in copied]
    # The worker saves the states after 12 and 13 tokens, none after 8.
    return f"the copy of the state after {length} tokens is published as {ends[0]} tokens" if ends == [8] else ""


def every_block_end_of_drafts() -> str:
    """Show that a step of more drafts than a block has tokens publishes a state that the worker has not saved."""
    dense = {"prefix_cache_retention_interval": None}
    kv, request = vllm(VERSION, "full, block 2 + mamba +4, block 2", 40, cache_config=dense)
    own = request("r", [0] * 3)
    for new in (3, 5):  # the prompt, then a token with four drafts, all of which hold
        kv.new_step_starts()
        kv.allocate_slots(own, new)
        own.num_computed_tokens += new
        own.append_output_token_ids([0] * (own.num_computed_tokens + 1 - own.num_tokens))
    kv.cache_blocks(own, own.num_computed_tokens)  # as the scheduler does with the output
    ends = [block.block_hash_num_tokens for block in kv.get_blocks("r").blocks[1] if block.block_hash is not None]
    # After sampling the worker copies one state, that at the last block end among the accepted tokens.
    return f"of a step from 3 to 8 tokens, states after {ends} are published" if len(ends) > 1 else ""


def copy_before_it_is_written() -> str:
    """Show that the block of attention that a hit ends in is copied before the step that writes it has run."""
    kv, request = vllm(VERSION, "full, block 4 + mamba, block 4", 40, hash_block_size=2)
    first = request("first", range(7))
    for new in (6, 1):  # with the second step, the state after 6 tokens has a block of its own
        kv.new_step_starts()
        kv.allocate_slots(first, new)
        first.num_computed_tokens += new
    kv.evict_blocks({kv.get_blocks("first").blocks[0][1].block_id})  # as a full pool would
    again = request("again", range(7))
    again.append_output_token_ids([0] * 5)  # it was preempted, so that its prefill does not stop after 6 tokens
    other = request("other", [*range(6), *range(20, 27)])
    kv.take_kv_cache_block_copies()
    kv.new_step_starts()
    kv.allocate_slots(again, 8)
    hit, length, _ = kv.get_computed_blocks(other)
    kv.allocate_slots(other, other.num_tokens - length, length, hit)
    written = {block.block_id for block in kv.get_blocks("again").blocks[0]}
    copied = written & {copy.src_block_id for copy in kv.take_kv_cache_block_copies()[0]}
    # The worker copies first, and then runs the step.
    return f"{length} tokens are a hit on block {copied.pop()}, which is copied before it is written" if copied else ""


def stored_event_tokens() -> str:
    """Show that the event of a range, of which some blocks are not published, names fewer hashes than tokens."""
    kv, request = vllm(VERSION, "full, block 4 + sliding 2, block 1", 20)
    kv.allocate_slots(request("r", range(8)), 8)
    for event in kv.take_events():
        if len(event.token_ids) != len(event.block_hashes) * event.block_size:
            what = f"{len(event.block_hashes)} hashes of blocks of {event.block_size}, {len(event.token_ids)} tokens"
            return f"stored in group {event.group_idx}: {what}: which hash covers which tokens cannot be told"
    return ""


def window_tail_sibling() -> str:
    """Only the last window of a prompt is kept: one that parts from it within its last blocks hits nothing at all."""
    hits = []
    for retention in (0, None):  # 0 is what its engine core uses; None keeps every window
        interval = {"prefix_cache_retention_interval": retention}
        kv, request = vllm(VERSION, "full, block 4 + sliding 9, block 2", 40, cache_config=interval)
        kv.allocate_slots(request("first", range(18)), 18)
        hits.append(kv.get_computed_blocks(request("sibling", [*range(14), 90, 91, 92, 93]))[1])
    sparse, dense = hits
    return f"a sibling that shares 14 tokens hits {sparse}, with every window kept {dense}" if sparse < dense else ""


def failed_load_of_a_state() -> str:
    """Show that a request goes on from the null block where the load of a recurrent layer's one state has failed."""
    return _after_a_failed_load("mamba, block 2")


def failed_load_of_a_window() -> str:
    """Show that a request reads the null block where the load of a window has failed in its first block."""
    return _after_a_failed_load("sliding 5, block 2")


def _after_a_failed_load(groups: str) -> str:
    kv, request = vllm(VERSION, groups, 20)
    own = request("r", range(13))
    kv.allocate_slots(own, 0, num_external_computed_tokens=12, delay_cache_blocks=True)
    table = [block.block_id for block in kv.get_blocks("r").blocks[0]]
    failed = next(at for at, block in enumerate(table) if block)
    own.num_computed_tokens = 2 * failed  # Scheduler._update_requests_with_invalid_blocks: up to the block that failed
    kv.cache_blocks(own, own.num_computed_tokens)  # Scheduler._update_waiting_for_remote_kv
    kv.new_step_starts()
    kv.allocate_slots(own, 2)
    read = kv.get_blocks("r").blocks[0][failed - 1]  # of the token before the first one that is computed again
    return f"of {table}, block {table[failed]} failed: token {2 * failed} reads the null block" if read.is_null else ""
