"""Where vLLM 0.33.0 is wrong by its own word, each shown by a function over its own API."""

from math import lcm
from typing import Any


class SamplingParams:
    """What a request reads of the sampling parameters."""

    max_tokens, structured_outputs, skip_reading_prefix_cache = 99, None, None

    def __init__(self, **extra_args: str) -> None:
        self.extra_args = extra_args


def full(block_size: int) -> Any:
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    return FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype="float32")


def sliding(block_size: int, window: int) -> Any:
    from vllm.v1.kv_cache_interface import SlidingWindowSpec

    return SlidingWindowSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype="float32", sliding_window=window)


def mamba(block_size: int) -> Any:
    """Return a recurrent layer whose states are cached."""
    from vllm.v1.kv_cache_interface import MambaSpec

    return MambaSpec(block_size=block_size, shapes=((1,),), dtypes=("float32",), mamba_cache_mode="align")


def manager(specs: list[Any], num_blocks: int, hash_size: int, **options: Any) -> Any:
    """Return a manager of groups with these layers, a block of `num_blocks` being the null block."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

    register_all_kvcache_specs(None)
    config = KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec([f"layers.{at}"], spec) for at, spec in enumerate(specs)],
        prefix_cache_retention_interval=options.pop("retention", None),
    )
    unit = lcm(*(spec.block_size for spec in specs))
    return KVCacheManager(config, max_model_len=64, scheduler_block_size=unit, hash_block_size=hash_size, **options)


def request(name: str, tokens: list[int], hash_size: int, **extra_args: str) -> Any:
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    hasher = get_request_block_hasher(hash_size, sha256)
    return Request(name, tokens, SamplingParams(**extra_args), None, block_hasher=hasher)


def deferred_free_order() -> str:
    """Two groups: what is freed after a step stands in the free queue in another order than what is freed at once."""
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


def eviction_metrics() -> str:
    """Show that the metrics of evictions count blocks that were never in the cache."""
    from vllm.v1.core.kv_cache_metrics import KVCacheMetricsCollector

    collector = KVCacheMetricsCollector(sample_rate=1.0)
    kv = manager([full(4)], 2, hash_size=4, metrics_collector=collector)
    for name in ("first", "second"):
        own = request(name, [0, 1], 4)
        kv.allocate_slots(own, 2)
        kv.free(own)
    count = len(collector.drain_events())
    return f"{count} evictions from the prefix cache are reported, in which nothing ever was" if count else ""


def full_report_nulls() -> str:
    """Show that a report of whole hits announces positions that are null in the hit, and cached nowhere."""
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


def mamba_external_demand() -> str:
    """Show that fewer blocks are counted than taken where a recurrent layer's tokens are loaded from elsewhere."""
    kv = manager([full(2), mamba(2)], 7, hash_size=2)
    kv.allocate_slots(request("other", [9], 2), 1)  # holds a block of each group
    free = kv.block_pool.get_num_free_blocks()
    try:
        kv.allocate_slots(request("r", [0] * 5, 2), 1, num_external_computed_tokens=4)
    except ValueError as error:
        return f"{free} free, 5 needed: not refused, but {type(error).__name__}: {error}"
    return ""


def partial_key_again() -> str:
    """Show that the key of a block's first half, taken back when the block was full, is put in again."""
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


def stored_event_tokens() -> str:
    """Show that the event of a range, of which some blocks are not published, names fewer hashes than tokens."""
    kv = manager([full(4), sliding(1, 2)], 20, hash_size=1, enable_kv_cache_events=True)
    kv.allocate_slots(request("r", [0, 1, 2, 3, 4, 5, 6, 7], 1), 8)
    for event in kv.take_events():
        if len(event.token_ids) != len(event.block_hashes) * event.block_size:
            what = f"{len(event.block_hashes)} hashes of blocks of {event.block_size}, {len(event.token_ids)} tokens"
            return f"stored in group {event.group_idx}: {what}: which hash covers which tokens cannot be told"
    return ""


def window_tail_sibling() -> str:
    """Only the last window of a prompt is kept: one that parts from it within its last blocks hits nothing at all."""
    hits = []
    for retention in (0, None):  # 0 is what its engine core uses; None keeps every window
        kv = manager([full(4), sliding(2, 9)], 40, hash_size=2, retention=retention)
        kv.allocate_slots(request("first", list(range(18)), 2), 18)
        hits.append(kv.get_computed_blocks(request("sibling", [*range(14), 90, 91, 92, 93], 2))[1])
    sparse, dense = hits
    return f"a sibling that shares 14 tokens hits {sparse}, with every window kept {dense}" if sparse < dense else ""
