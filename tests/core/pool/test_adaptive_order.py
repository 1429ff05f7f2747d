"""Property: which rule an adaptive order goes by, and what its shadows hold, is what the specification's chapter says.

How: requests that share prefixes are admitted, preempted and released at random; after each call the manager's rule and
shadows are compared with the chapter's, which is told of the same digests.
Not covered: how much is gained by it (`python -m benchmarks.keeping`).
"""

from itertools import pairwise
from random import Random
from typing import Any

import pytest

from blockwright import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    MambaSpec,
    Request,
    SlidingWindowSpec,
)
from blockwright.core.keys.block_hash import hash_words
from blockwright.core.worth.adaptive import AdaptiveOrder
from blockwright.errors import UnsupportedError
from blockwright.kinds import AttentionSpec
from blockwright_spec.manager import adaptive

FULL = FullAttentionSpec(block_size=2, num_kv_heads=1, head_size=1, dtype="float16")
STATE = MambaSpec(2, ((1,),), ("float32",))


def manager_of(blocks: int, *specs: AttentionSpec | MambaSpec, **options: Any) -> KVCacheManager:
    groups = [KVCacheGroupSpec([f"layer {at}"], spec) for at, spec in enumerate(specs or (FULL,))]
    config = KVCacheConfig(num_blocks=blocks, kv_cache_groups=groups)
    return KVCacheManager(config, 4096, eviction_order="adaptive", **options)


def order_of(manager: KVCacheManager) -> AdaptiveOrder:
    order = manager.block_pool._order
    assert isinstance(order, AdaptiveOrder)
    return order


def digests(request: Request, count: int) -> tuple[int, ...]:
    return tuple(hash_words(key)[0] for key in request.block_hashes[:count])


def compare(manager: KVCacheManager, rule: adaptive.Rule, is_close: bool) -> None:
    shown, order = manager.block_pool.rule_in_force, order_of(manager)
    assert shown is not None
    assert shown.name == f"least {'frequently' if rule.is_by_use else 'recently'} used"
    assert (shown.since, order.admitted) == (rule.since, rule.admitted)
    for shadow, said in ((order._by_age, rule.by_age), (order._by_use, rule.by_use)):
        keys = map(shadow._index.key, shadow._ranking.in_order())
        held = [low ^ adaptive.STATE if kind else low for low, _, kind in keys]
        assert shadow.score == said.found
        assert not is_close or held == list(adaptive.in_order(said))
    manager.check()


def prompts_of(random: Random, length: int) -> list[list[int]]:
    """Prompts with common beginnings, of which some come back often and most do not."""
    roots = [[random.randrange(99) for _ in range(random.randrange(2, length))] for _ in range(3)]
    return [root + [random.randrange(99) for _ in range(random.randrange(1, length))] for root in roots * 4]


def kept(manager: KVCacheManager, request: Request) -> list[tuple[bool, int]]:
    """Return the blocks that a request has filled, of each kind of layer, as they are released: from the end."""
    blocks = manager.get_blocks(request.request_id).blocks
    groups = [group.kv_cache_spec.is_recurrent for group in manager.kv_cache_config.kv_cache_groups]
    return [
        (is_state, depth)
        for is_state in dict.fromkeys(groups)
        for depth, block in reversed(list(enumerate(blocks[groups.index(is_state)])))
        if block.block_id and 2 * depth + 2 <= request.num_computed_tokens
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("blocks", "length", "shift", "specs"),
    [
        (13, 8, 0, [FULL]),
        (40, 20, 0, [FULL]),
        (1030, 300, 1, [FULL]),
        (40, 8, 0, [STATE, FULL, STATE, STATE]),
        (60, 20, 0, [FULL, STATE]),
        (9, 20, 0, [STATE, STATE]),
    ],
)
def test_rule_in_force_is_the_chapters(
    blocks: int, length: int, shift: int, specs: list[AttentionSpec | MambaSpec], seed: int
) -> None:
    random = Random(seed)
    prompts, switches = prompts_of(random, length), set[int]()
    states = specs.count(STATE)
    manager, rule = manager_of(blocks, *specs), adaptive.new_rule(blocks - 1, shift, len(specs) - states, states)
    for at in range(60):
        request = Request(str(at), prompts[min(random.randrange(12), random.randrange(12))], block_size=2)
        was_admitted = False
        for is_last in (random.random() < 0.8, True):
            said = digests(request, request.num_tokens // 2)
            hit, tokens = manager.get_computed_blocks(request)
            stop = request.junction or request.num_tokens // 2 * 2
            ends = sorted({end for end in (stop, request.num_tokens) if end > tokens})
            for start, end in pairwise([tokens, *ends]):
                found, before = ((tokens, hit), []) if start == tokens else ((), kept(manager, request))
                if manager.allocate_slots(request, end - start, *found) is None:
                    break
                for is_state, depth in [each for each in before if each not in kept(manager, request)]:
                    rule = adaptive.told(rule, said[depth], depth, is_use=False, is_state=is_state)
                if not was_admitted:
                    rule = adaptive.admitted(rule, digests(request, (request.num_tokens - 1) // 2))
                    was_admitted = True
                request.num_computed_tokens = end
            if not was_admitted:
                break
            released = kept(manager, request)
            manager.free(request, preempted=not is_last)
            for is_state, depth in released:
                rule = adaptive.told(rule, said[depth], depth, is_use=is_last, is_state=is_state)
            compare(manager, rule, is_close=blocks < 500 or at % 30 == 29)
            request.num_computed_tokens = 0
            if is_last:
                break
        switches.add(rule.since)
    assert blocks > 13 or states or len(switches) > 1  # some of the small pools change their rule


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        (SlidingWindowSpec(2, 1, 1, dtype="float16", sliding_window=4), {}, "with windows"),
        (STATE, {"keep_wanted": True}, "without keep_wanted"),
        (MambaSpec(4, ((1,),), ("float32",)), {}, "all block sizes"),
    ],
)
def test_adaptive_is_refused_where_shadows_say_nothing(spec: AttentionSpec, options: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        manager_of(8, FULL, spec, **options)


def test_copy_goes_on_alone() -> None:
    manager = manager_of(9)
    for at in range(20):
        request = Request(str(at), [at % 3, 1, 2, at], block_size=2)
        manager.allocate_slots(request, 4)
        request.num_computed_tokens = 4
        if at == 10:
            twin = manager.copy()
            before = twin.block_pool.rule_in_force, twin.block_pool.free_block_ids()
        manager.free(request)
    assert (twin.block_pool.rule_in_force, twin.block_pool.free_block_ids()) == before
    twin.check()


def test_reset_forgets_uses() -> None:
    manager = manager_of(9)
    request = Request("one", [1, 2, 3, 4], block_size=2)
    manager.allocate_slots(request, 4)
    request.num_computed_tokens = 4
    manager.free(request)
    manager.reset_prefix_cache()
    order = order_of(manager)
    assert (order._by_use.score, order._by_use._ranking.size, list(order._ranking._uses)) == (0, 0, [0] * 9)


def test_only_requests_that_end_count_as_uses() -> None:
    """Neither a connector's holds, nor one that is preempted, at once or behind a step in flight, nor a fold."""
    manager = manager_of(9, overlap_steps=True)
    first, second = (Request(name, [1, 2, 3, 4], block_size=2) for name in ("first", "second"))
    step = manager.start_step()
    assert manager.allocate_slots(first, 4) is not None
    assert manager.allocate_slots(second, 4) is not None
    manager.settle_step(step)
    first.num_computed_tokens = second.num_computed_tokens = 4
    manager.fold_duplicates([first, second], [4, 4])
    uses = order_of(manager)._ranking._uses
    pool = manager.block_pool
    blocks = [each for each in manager.get_blocks("first").blocks[0] if each.block_id]
    pool.touch(blocks)
    pool.free_blocks(blocks)
    assert set(uses) == {0}
    step = manager.start_step()
    second.append_output_token_ids(5)
    assert manager.allocate_slots(second, 1) is not None
    manager.free(second, preempted=True)
    manager.settle_step(step)
    assert set(uses) == {0}
    manager.free(first)
    assert sorted(uses)[-2:] == [1, 1]
    manager.check()
