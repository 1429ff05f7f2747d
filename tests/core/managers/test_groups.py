"""Property: several groups over one pool act as one: one hit that suits all, or one refusal.

How: hits of another shape or another manager, and sizes of keys that do not suit all groups, each with its error and no
change.

Not covered: which hits are found (conformance), one group (test_manager.py), all the rest of groups (conformance).
"""

from __future__ import annotations

import pytest
from librt.vecs import vec
from mypy_extensions import i32
from tests.core.support import full, manager_dump, manager_of, manager_over, sliding, started

from blockwright import KVCacheBlocks, KVCacheManager, Request
from blockwright.errors import InvalidArgumentError, StaleHitError


def two_groups() -> tuple[KVCacheManager, Request, KVCacheBlocks, int]:
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


@pytest.mark.parametrize("short", range(4))
def test_hits_of_another_length_in_any_one_group(short: int) -> None:
    manager = manager_over([full(2), full(4), sliding(2, 4), full(2)])
    manager.free(started(manager, "first", 9, 2))
    request, before = Request("r", list(range(11)), 2), manager_dump(manager)
    hit, tokens = manager.get_computed_blocks(request)
    assert tokens == 8
    ids = [each[:-1] if group == short else each for group, each in enumerate(hit.ids)]
    with pytest.raises(StaleHitError, match=r"differ in length|the hit holds"):
        manager.allocate_slots(request, 1, tokens, KVCacheBlocks(manager.block_pool, ids))
    assert manager_dump(manager) == before


def test_hits_with_a_block_where_the_window_has_passed() -> None:
    manager = manager_over([full(1), sliding(1, 2)])
    manager.free(started(manager, "first", 9, 1))
    request = Request("r", list(range(11)), 1)
    hit, tokens = manager.get_computed_blocks(request)
    assert (tokens, list(hit.ids[1][:8])) == (9, [0] * 8)
    for entry in range(8):
        ids = [
            hit.ids[0],
            vec[i32]([hit.ids[0][entry] if at == entry else block for at, block in enumerate(hit.ids[1])]),
        ]
        with pytest.raises(StaleHitError, match=f"entry {entry} is outside the window"):
            manager.allocate_slots(request, 1, tokens, KVCacheBlocks(manager.block_pool, ids))
    manager.check()


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
