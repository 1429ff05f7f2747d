"""Property: where blocks that no wanted hit needs are evicted first, everything that names a candidate says so of them.

How: two turns with a window, on pools of a few blocks. The order of eviction after each call is checked in lock-step by
the scopes named "keeping". Not covered: the hits of long traces, which `benchmarks.keeping` compares with vLLM's.
"""

from typing import Any

import pytest
from tests.core.support import pure_only

from blockwright import (
    Candidate,
    Candidates,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    KVCacheSpec,
    MambaSpec,
    Request,
    Sha256Hasher,
    SlidingWindowSpec,
)
from blockwright.errors import InvalidArgumentError, InvariantError, UnknownRequestError

SIZES: Any = {"block_size": 1, "num_kv_heads": 1, "head_size": 1, "dtype": "float32"}
FULL, WINDOW = FullAttentionSpec(**SIZES), SlidingWindowSpec(**SIZES, sliding_window=2)
STATE = MambaSpec(1, ((1,),), ("float32",))


def manager_of(specs: list[KVCacheSpec], blocks: int, **options: Any) -> KVCacheManager:
    groups = [KVCacheGroupSpec([f"layers.{at}"], spec) for at, spec in enumerate(specs)]
    return KVCacheManager(KVCacheConfig(blocks + 1, groups), 64, **options)


def serve(manager: KVCacheManager, name: str, tokens: list[int], step: int = 2) -> int:
    request = Request(name, tokens, 1, hasher=Sha256Hasher(b""))
    hit, length = manager.get_computed_blocks(request)
    done = 0
    while done < len(tokens):
        start = max(done, length)
        end = min(start + step, len(tokens))
        assert manager.allocate_slots(request, end - start, *((length, hit) if done == 0 and length else ()))
        request.num_computed_tokens = done = end
    manager.free(request)
    manager.check()
    return length


@pytest.mark.parametrize(
    ("specs", "asked", "keeps"),
    [
        ([FULL, WINDOW], None, True),
        ([FULL, WINDOW], False, False),
        ([FULL, STATE], None, False),
        ([FULL, STATE], True, True),
        ([FULL], None, False),
    ],
)
def test_where_it_is_on(specs: list[KVCacheSpec], asked: bool | None, keeps: bool) -> None:
    manager = manager_of(specs, 40, keep_wanted=asked)
    serve(manager, "r", list(range(8)))
    assert bool(manager.block_pool.passing_block_ids()) == keeps


@pytest.mark.parametrize(
    ("specs", "options", "name"),
    [
        ([FULL], {"keep_wanted": True}, "keep_wanted"),
        ([FULL, WINDOW], {"keep_wanted": True, "enable_caching": False}, "keep_wanted"),
        ([FULL, WINDOW], {"passing_spares": -1}, "passing_spares"),
        ([FULL, WINDOW], {"passing_spares": 41}, "passing_spares"),
        ([FULL, SlidingWindowSpec(2, 1, 1, "float32", sliding_window=2)], {"wanted_interval": 3}, "wanted_interval"),
        ([FULL, WINDOW], {"wanted_interval": -1}, "wanted_interval"),
        ([FULL], {"wanted_interval": 2}, "wanted_interval"),
        ([FULL, WINDOW], {"passing_spares": 2, "keep_wanted": False}, "passing_spares"),
        ([FULL, STATE], {"passing_spares": 0}, "passing_spares"),
        ([FULL], {"passing_spares": 0}, "passing_spares"),
        ([FULL, WINDOW], {"passing_spares": 2, "shares": {"a": 9}}, "passing_spares"),
        ([FULL, WINDOW], {"passing_spares": True}, "passing_spares"),
    ],
)
def test_wrong_options(specs: list[KVCacheSpec], options: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{name}: "):
        manager_of(specs, 40, **options)


def test_a_policy_sees_passing_blocks() -> None:
    seen: list[Candidate] = []

    class First:
        def choose(self, candidates: Candidates) -> Candidate:
            seen.extend(candidates)
            return next(iter(candidates))

    manager = manager_of([FULL, WINDOW], 20, eviction_order=First())
    serve(manager, "first", list(range(9)))
    serve(manager, "second", [50, *range(9)])
    assert {each.is_passing for each in seen if each.group_id == 1} == {True, False}
    assert not any(each.is_passing for each in seen if each.group_id == 0)


def test_hints_begin_with_passing_blocks() -> None:
    """Once hints order the candidates, the passing ones that were there go on to be the first."""
    manager = manager_of([FULL, WINDOW], 20, track_evictions=True)
    serve(manager, "first", list(range(9)))
    manager.advance_time(1)
    manager.check()
    serve(manager, "second", [50, *range(9)])
    assert [each.group for each in manager.take_evictions()[:7]] == [1] * 7


@pytest.mark.parametrize("spares", [0, 1, 4])
def test_a_restored_cache_keeps_the_order(spares: int) -> None:
    """And the classes of the candidates, by which they go from then on."""
    manager = manager_of([FULL, WINDOW], 40, enable_kv_cache_events=True, passing_spares=spares)
    serve(manager, "first", list(range(9)))
    serve(manager, "second", [50, *range(9)])
    dump = manager.dump(manager.take_events(), b"", Sha256Hasher(b""))
    twin = manager_of([FULL, WINDOW], 40, enable_kv_cache_events=True, passing_spares=spares)
    assert twin.restore(dump, b"", Sha256Hasher(b"")) > 0
    twin.check()
    published = manager.block_pool.published()
    order = [[b for b in each.block_pool.free_block_ids() if published[b]] for each in (manager, twin)]
    assert order[0] == order[1]
    for each in (manager, twin):
        serve(each, "third", [*range(9), 60, 61])
    pools = [each.block_pool for each in (manager, twin)]
    assert pools[0].passing_block_ids() == pools[1].passing_block_ids() != []
    assert pools[0].tips() == pools[1].tips() != []


@pytest.mark.parametrize("usable", [33, 36, 42, 48])
def test_three_conversations_in_turn(usable: int) -> None:
    """Each needs 9 blocks of its turn; by age alone, 48 blocks are needed for any hit."""
    manager = manager_of([FULL, WINDOW], usable)
    prompts = [[100 * each + at for at in range(8)] + [1] for each in range(3)]
    hits = [serve(manager, f"{turn}.{at}", prompt) for turn in range(3) for at, prompt in enumerate(prompts)]
    assert hits == [0] * 3 + [8] * 6


def test_the_junction_is_told() -> None:
    """Where the first prompt left its full attention and no state."""
    manager = manager_of([FULL, STATE], 40, keep_wanted=True)
    serve(manager, "first", list(range(8)), step=8)
    request = Request("second", [0, 1, 2, 3, 60, 61], 1, hasher=Sha256Hasher(b""))
    assert manager.get_computed_blocks(request)[1] == 0
    assert request.junction == 4


def test_what_may_be_wanted_is_told_while_a_request_runs() -> None:
    """A connector asks, to store no passing window of a prompt; of what comes behind the prompt nothing is known."""
    manager = manager_of([FULL, WINDOW], 40)
    request = Request("a", list(range(9)), 1, hasher=Sha256Hasher(b""))
    with pytest.raises(UnknownRequestError):
        manager.may_be_wanted(request, 1, 0, 1)
    assert manager.allocate_slots(request, 9)
    wanted = [[manager.may_be_wanted(request, group, at, at + 1) for at in range(11)] for group in (0, 1)]
    assert wanted == [[True] * 11, [False] * 7 + [True] * 4]
    assert manager.may_be_wanted(request, 1, 5, 8)
    for group, stop in ((2, 1), (1, 2**64)):
        with pytest.raises(InvalidArgumentError, match=f"^group, start, stop: {group},"):
            manager.may_be_wanted(request, group, 0, stop)


@pure_only
@pytest.mark.parametrize(
    ("which", "noted", "law"),
    [("held", 1, "POLICY-4"), ("bare", 1, "POLICY-4"), ("wanted", 1, "POLICY-4"), ("full", 2, "POLICY-5")],
)
def test_the_self_check_notices_a_wrong_class(which: str, noted: int, law: str) -> None:
    manager = manager_of([FULL, WINDOW], 40)
    serve(manager, "first", list(range(9)))
    assert manager.allocate_slots(Request("running", [50, 51], 1, hasher=Sha256Hasher(b"")), 2)
    manager.check()
    pool = manager.block_pool
    groups, passing = pool.block_groups(), pool.passing_block_ids()
    candidates = [block for block in pool.free_block_ids() if groups[block] is not None and block not in passing]
    blocks = {
        "held": manager.get_block_ids("running")[1][0],
        "bare": next(block for block in pool.free_block_ids() if groups[block] is None),
        "full": next(block for block in candidates if groups[block] == 0),
        "wanted": next(block for block in candidates if groups[block] == 1),
    }
    order: Any = pool._order
    order.classes.set(blocks[which], noted)
    with pytest.raises(InvariantError) as raised:
        manager.check()
    assert raised.value.law == law


def test_nothing_is_kept_for_each_block_that_is_never_spared() -> None:
    """But a byte: which class it is of."""
    manager = manager_of([FULL, WINDOW], 4000, passing_spares=0)
    order: Any = manager.block_pool._order
    assert (len(order._newer), len(order._older), len(order.classes.of)) == (1, 1, 4001)
