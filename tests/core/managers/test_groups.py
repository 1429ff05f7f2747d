"""Property: several groups over one pool act as one: one hit that suits all, one demand, one refusal.

How: hits against brute force over random cache contents of two and three groups with unequal block sizes, with a draft
head and without; demand against what leaves the free queue, at every pool size; adoption where the hits of one group
are the next blocks to be evicted for another; hits of another shape or another manager, each with its error and no
change.

Not covered: one group (test_manager.py), order of all calls (conformance), requests without a hit (test_slots.py).
"""

from __future__ import annotations

from math import gcd, lcm
from random import Random

import pytest
from librt.vecs import vec
from mypy_extensions import i32
from tests.core.support import (
    GROUPS,
    full,
    mamba,
    manager_dump,
    manager_of,
    manager_over,
    needed,
    prompt,
    published,
    sliding,
    started,
)

from blockwright import (
    ChunkedLocalAttentionSpec,
    Fits,
    FullAttentionSpec,
    KVCacheBlocks,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    KVCacheSpec,
    MambaSpec,
    Request,
)
from blockwright.errors import InvalidArgumentError, StaleHitError, UnsupportedError

every_groups = pytest.mark.parametrize("specs", GROUPS.values(), ids=GROUPS.keys())


def unit(specs: list[KVCacheSpec]) -> int:
    return gcd(*(spec.block_size for spec in specs))


def best(specs: list[KVCacheSpec], cached: list[set[int]], num_tokens: int, use_eagle: bool) -> int:
    """The longest hit by definition (laws HIT-1, HIT-2): `cached` are the published entries of each group."""

    def suits(spec: KVCacheSpec, entries: set[int], length: int) -> bool:
        size = spec.block_size
        read = {position // size for position in needed(spec, length)}
        if use_eagle and not isinstance(spec, MambaSpec):
            if length + size > num_tokens:
                return False
            read.add(length // size)
        return read <= entries

    step = lcm(*(spec.block_size for spec in specs))
    lengths = range(0, num_tokens, step)
    good = [n for n in lengths if all(suits(spec, has, n) for spec, has in zip(specs, cached, strict=True))]
    return max(good, default=0)


@every_groups
@pytest.mark.parametrize("use_eagle", [False, True], ids=["plain", "eagle"])
def test_hits_are_the_longest(specs: list[KVCacheSpec], use_eagle: bool) -> None:
    if use_eagle and any(isinstance(spec, ChunkedLocalAttentionSpec) for spec in specs):
        with pytest.raises(UnsupportedError, match="use_eagle"):
            manager_over(specs, use_eagle=True)
        return
    random, found = Random(7), set()
    for _ in range(150):
        length = random.randint(1, 30)
        request = prompt(length, unit(specs))
        manager = manager_over(specs, 200, use_eagle=use_eagle)
        density = random.choice([0.5, 0.8, 0.95, 1.0])
        ids = [
            published(group, request, [e for e in range(length // group.block_size) if random.random() < density])
            for group in manager.managers
        ]
        hit, tokens = manager.get_computed_blocks(request)
        assert tokens == best(specs, [set(of_group) for of_group in ids], length, use_eagle)
        found.add(tokens)
        tables = hit.get_block_ids()
        assert tables is not None
        for spec, has, table in zip(specs, ids, tables, strict=True):
            read = {position // spec.block_size for position in needed(spec, tokens)}
            assert table == [has[e] if e in read else 0 for e in range(tokens // spec.block_size)]
        manager.check()
    assert len(found) > 2


def test_a_draft_head_takes_one_block_once() -> None:
    """The shorter group's block is recomputed, not one more for each round of looking."""
    several: list[list[KVCacheSpec]] = [
        [full(4), sliding(4, 6)],
        [full(2), sliding(4, 6)],
        [full(4), mamba(4)],
        [full(4), sliding(2, 5), sliding(4, 9)],
    ]
    for specs in several:
        manager = manager_over(specs, 99, use_eagle=True)
        request = prompt(17, unit(specs))
        for group in manager.managers:
            published(group, request, list(range(16 // group.block_size)))
        assert manager.get_computed_blocks(request)[1] == 12
        assert manager.get_computed_blocks(prompt(16, unit(specs)))[1] == 12  # its block may hold the last token
        assert manager.get_computed_blocks(prompt(15, unit(specs)))[1] == 8


@every_groups
def test_demand_is_what_is_taken(specs: list[KVCacheSpec]) -> None:
    """At every pool size: it is planned, taken, or refused whole, and never less than nothing."""
    random, outcomes = Random(3), set()
    for num_blocks in range(4, 40, 2):
        manager = manager_over(specs, num_blocks)
        size, running = unit(specs), list[Request]()
        for number in range(12):
            request = Request(f"r{number}", list(range(random.randint(2, 24))), size)
            hit, tokens = manager.get_computed_blocks(request)
            new = random.randint(1, request.num_tokens - tokens)
            free, before = manager.block_pool.get_num_free_blocks(), manager_dump(manager)
            plan = manager.plan(request, new, tokens, hit)
            given = manager.allocate_slots(request, new, tokens, hit)
            outcomes.add(type(plan).__name__)
            assert isinstance(plan, Fits) == (given is not None)
            if isinstance(plan, Fits):
                assert 0 <= plan.num_blocks == free - manager.block_pool.get_num_free_blocks()
                assert given is not None
                news = [block for ids in given.ids for block in ids if block]
                assert plan.num_blocks >= len(news) == len(set(news))
                request.num_computed_tokens = tokens + new
                running.append(request)
            else:
                assert manager_dump(manager) == before
                if running:
                    manager.free(running.pop(0))
            manager.check()
    assert outcomes == {"Fits", "NotNow", "Never"}


def test_groups_side_by_side() -> None:
    manager = manager_over([full(2), sliding(4, 5), mamba(4)])
    request = Request("r", list(range(10)), 2)
    given = manager.allocate_slots(request, 10)
    assert given is not None
    assert given.get_block_ids() == manager.get_block_ids("r") == ([1, 2, 3, 4, 5], [6, 7, 8], [0, 0, 9])
    assert manager.num_published("r") == (5, 2, 0)
    request.num_computed_tokens = 10
    request.append_output_token_ids([10, 11])
    step = manager.allocate_slots_batch([request], 2)
    assert list(step.new_block_ids) == [10]
    assert list(step.new_block_offsets) == [0, 1, 1, 1]
    assert (list(step.nulled_entries), list(step.nulled_offsets)) == ([0], [0, 0, 1, 1])
    assert manager.get_block_ids("r") == ([1, 2, 3, 4, 5, 10], [0, 7, 8], [0, 0, 9])
    assert manager.num_published("r") == (6, 3, 0)
    request.num_computed_tokens = 12
    manager.new_step_starts()
    assert manager.num_published("r") == (6, 3, 3)
    manager.check()
    manager.free(request)
    assert manager.usage == 0.0


@pytest.mark.parametrize("specs", [[full(4), sliding(4, 9)], [sliding(4, 9), full(4)], [full(4), mamba(4), full(4)]])
def test_all_groups_adopt_before_any_takes(specs: list[KVCacheSpec]) -> None:
    """Known bug B06, across groups: what one group takes is never another group's hit, free and next to be evicted."""
    for num_blocks in range(8, 20):
        manager = manager_over(specs, num_blocks)
        first = Request("first", list(range(8)), 4)
        for _ in range(2):
            assert manager.allocate_slots(first, 4) is not None
            first.num_computed_tokens += 4
        manager.free(first)
        request = Request("r", [*range(8), *range(50, 70)], 4)
        hit, tokens = manager.get_computed_blocks(request)
        assert tokens == 8
        given = manager.allocate_slots(request, 9, tokens, hit)
        if given is None:
            continue
        for at, table in enumerate(manager.get_block_ids("r")):
            assert table == [*hit.ids[at], *given.ids[at]]
        held = [block for table in manager.get_block_ids("r") for block in table if block]
        assert len(held) == len(set(held))
        manager.check()
    assert given is not None


def two_groups() -> tuple[KVCacheManager, Request, KVCacheBlocks, int]:
    """A manager with a hit of 8 tokens for a request."""
    manager = manager_over([full(4), sliding(2, 4)])
    manager.free(started(manager, "first", 9, 2))
    request = Request("r", list(range(11)), 2)
    hit, tokens = manager.get_computed_blocks(request)
    assert tokens == 8
    return manager, request, hit, tokens


def test_hits_of_another_shape() -> None:
    manager, request, hit, tokens = two_groups()
    pool, (one, two) = manager.block_pool, hit.ids
    single = manager_of(full(4))
    single.free(started(single, "first", 9, 2))
    shapes = {
        "one group": KVCacheBlocks(pool, [one]),
        "three groups": KVCacheBlocks(pool, [one, two, two]),
        "no group": KVCacheBlocks(pool, []),
        "groups swapped": KVCacheBlocks(pool, [two, one]),
        "second shorter": KVCacheBlocks(pool, [one, two[:3]]),
        "second missing": KVCacheBlocks(pool, [one, vec[i32]()]),
        "first missing": KVCacheBlocks(pool, [vec[i32](), two]),
        "second without its window": KVCacheBlocks(pool, [one, vec[i32]([0, 0, 0, 0])]),
        "second of the first group": KVCacheBlocks(pool, [one, vec[i32]([0, 0, *one])]),
        "a block that is not there": KVCacheBlocks(pool, [one, vec[i32]([0, 0, 40, -1])]),
        "a copy's": manager.copy().get_computed_blocks(request)[0],
        "another manager's": single.get_computed_blocks(request)[0],
    }
    before = manager_dump(manager)
    for name, blocks in shapes.items():
        for call in (manager.allocate_slots, manager.plan):
            with pytest.raises(StaleHitError, match="new_computed"):
                call(request, 1, tokens, blocks)
            assert manager_dump(manager) == before, name
    manager.check()
    assert manager.allocate_slots(request, 1, tokens, hit) is not None


def test_a_hit_must_hold_in_every_group() -> None:
    """Evicting a block that only the second group reads makes the whole hit stale."""
    manager, request, hit, tokens = two_groups()
    read = [block for block in hit.ids[1] if block]
    taken = [block.block_id for block in manager.block_pool.get_new_blocks(32)]
    manager.block_pool.free_blocks([block for block in taken if block not in read])
    before = manager_dump(manager)
    with pytest.raises(StaleHitError, match="new_computed_blocks"):
        manager.allocate_slots(request, 1, tokens, hit)
    assert manager_dump(manager) == before
    assert manager.get_computed_blocks(request)[1] == 0


def test_hash_units() -> None:
    """A request may be hashed at any unit that divides every block size, and at no other."""
    specs = [full(4), sliding(6, 7)]
    for size in (1, 2):
        manager = manager_over(specs, 60)
        manager.free(started(manager, "first", 25, size))
        assert manager.get_computed_blocks(Request("r", list(range(25)), size))[1] == 24
    manager = manager_over(specs)
    started(manager, "runs", 5, 2, first=90)
    before = manager_dump(manager)
    for size in (3, 4, 5, 6, 12, 24):
        request = Request("r", list(range(25)), size)
        for call in (
            lambda: manager.get_computed_blocks(request),  # noqa: B023
            lambda: manager.allocate_slots(request, 4),  # noqa: B023
            lambda: manager.allocate_slots_batch([request], 4),  # noqa: B023
            lambda: manager.plan(request, 4),  # noqa: B023
        ):
            with pytest.raises(InvalidArgumentError, match=rf"block_size.*{size}"):
                call()
            assert manager_dump(manager) == before
    odd = manager_over([full(3), full(4)])
    with pytest.raises(InvalidArgumentError, match="block_size"):
        odd.allocate_slots(Request("r", [1, 2], 2), 1)
    assert odd.allocate_slots(Request("r", [1, 2], 1), 1) is not None


def test_a_group_is_of_one_kind() -> None:
    for spec in ([full(), sliding()], {"layers.0": full()}, (full(),), None, FullAttentionSpec):
        config = KVCacheConfig(9, [KVCacheGroupSpec(["layers.0"], full()), KVCacheGroupSpec(["a", "b"], spec)])  # type: ignore[arg-type]
        with pytest.raises(UnsupportedError, match="kv_cache_spec"):
            KVCacheManager(config, 9)
