"""Property: results are lists of blocks per group, and flat buffers that others view without a copy.

How: every method of the results on small managers; each buffer is viewed through `memoryview` and numpy, and must be
the result's own memory, of 32-bit integers, not writable through either; results do not change afterwards.

Not covered: torch's view of the same buffers (it needs torch), and what the numbers say (test_walk.py).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from librt.vecs import vec
from mypy_extensions import i32
from tests.core.support import (
    Setup,
    every_setup,
    full,
    ids_of,
    mamba,
    manager_dump,
    manager_of,
    sliding,
    started,
    table,
)

from blockwright import BatchAllocation, KVCacheBlocks, Request
from blockwright.errors import InvalidArgumentError

BUFFERS = ("new_block_ids", "new_block_offsets", "nulled_entries", "nulled_offsets")


def viewed_by_numpy(buffer: Any) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.frombuffer(buffer, np.int32)


def test_blocks() -> None:
    manager = manager_of(sliding())
    request = started(manager, "r", 12)
    manager.remove_skipped_blocks(request, 12)
    request.append_output_token_ids([1])
    assert manager.allocate_slots(request, 1) is not None
    blocks = manager.get_blocks("r")
    assert table(manager, "r") == [0, 2, 3, 4]
    assert [[block.block_id for block in group] for group in blocks.blocks] == [[0, 2, 3, 4]]
    assert [block.is_null for block in blocks.blocks[0]] == [True, False, False, False]
    assert blocks.get_block_ids() == blocks.get_block_ids(allow_none=True) == ([0, 2, 3, 4],)
    assert blocks.get_unhashed_block_ids() == [4]
    assert blocks.get_unhashed_block_ids_all_groups() == [[4]]
    assert blocks.get_block_ids(group_ids=[0, 0]) == ([0, 2, 3, 4],) * 2
    assert blocks.get_block_ids(True, group_ids=[]) is None
    for group in (1, -1):
        with pytest.raises(InvalidArgumentError, match=r"group_ids: must be within 0\.\.0"):
            blocks.get_block_ids(group_ids=[group])
    pool = manager.block_pool
    assert [pool.block_group(block) for block in (0, 2, 4)] == [None, 0, None]
    walk = [pool.free_block_after(0)]
    while walk[-1] is not None:
        walk.append(pool.free_block_after(walk[-1]))
    assert walk == [*pool.free_block_ids(), None]
    assert pool.free_block_after(4) is None
    empty = blocks.new_empty()
    assert empty.get_block_ids() == ([],)
    assert empty.get_block_ids(allow_none=True) is None
    assert empty == manager.create_empty_block_list()
    assert empty.get_unhashed_block_ids() == []
    assert repr(blocks) == "KVCacheBlocks(([0, 2, 3, 4],))"


def test_adding() -> None:
    manager, other = manager_of(full()), manager_of(full())
    manager.free(started(manager, "first", 9))
    request = Request("r", list(range(9)), 4)
    hit, num_hit = manager.get_computed_blocks(request)
    new = manager.allocate_slots(request, 1, num_hit, hit)
    assert new is not None
    both = hit + new
    assert both == manager.get_blocks("r")
    assert hash(both) == hash(manager.get_blocks("r"))
    assert both != hit
    assert both != "blocks"
    assert ids_of(hit) == [1, 2]
    assert ids_of(new) == [3]
    assert hit + hit.new_empty() == hit.new_empty() + hit == hit
    sums = [both + each for each in (hit, new, both) for _ in range(3)]  # a sum may have room, not to be grown into
    assert [ids_of(total)[3:] for total in sums] == [[1, 2]] * 3 + [[3]] * 3 + [[1, 2, 3]] * 3
    assert [ids_of(total)[:3] for total in sums] == [ids_of(both)] * 9 == [[1, 2, 3]] * 9
    with pytest.raises(InvalidArgumentError, match="other"):
        _ = hit + other.create_empty_block_list()
    with pytest.raises((TypeError, AttributeError)):
        operator.add(hit, [1])
    assert hit != other.create_empty_block_list()


def test_blocks_are_a_snapshot() -> None:
    manager = manager_of(full())
    request = started(manager, "r", 8)
    before = manager.get_blocks("r")
    request.append_output_token_ids([1])
    new = manager.allocate_slots(request, 1)
    manager.free(request)
    assert ids_of(before) == [1, 2]
    assert ids_of(new) == [3]


def test_empty_results_are_not_shared_with_the_future() -> None:
    manager = manager_of(full())
    request = started(manager, "r", 5)
    request.append_output_token_ids([1])
    nothing = manager.allocate_slots(request, 1)
    assert nothing is not None
    grown = nothing + manager.get_blocks("r")
    assert ids_of(grown) == [1, 2]
    assert ids_of(nothing) == ids_of(manager.create_empty_block_list()) == []


@every_setup
def test_batch_buffers(setup: Setup) -> None:
    manager, size = setup.manager(), setup.spec.block_size
    requests = [Request(f"r{i}", [i] * 2 * size, size) for i in range(3)]
    steps = [manager.allocate_slots_batch(requests, 2 * size)]
    for _ in range(3):
        for request in requests:
            request.num_computed_tokens = request.num_tokens
            request.append_output_token_ids([7] * size)
        steps.append(manager.allocate_slots_batch(requests, size))
    values = [[list(getattr(step, name)) for name in BUFFERS] for step in steps]
    views = [[memoryview(getattr(step, name)) for name in BUFFERS] for step in steps]
    arrays = [[np.frombuffer(view, "i4") for view in each] for each in views]
    for request in requests:
        manager.free(request)
    manager.reset_prefix_cache()
    for step, expected, seen, viewed in zip(steps, values, views, arrays, strict=True):
        assert (step.num_served, step.refused) == (3, None)
        for name, value, view, array in zip(BUFFERS, expected, seen, viewed, strict=True):
            assert (view.format, view.itemsize, view.ndim, view.readonly) == ("i", 4, 1, True)
            assert list(getattr(step, name)) == value == view.tolist() == array.tolist()
            assert not array.flags.writeable
            if len(array):
                assert not array.flags.owndata
                assert np.shares_memory(array, viewed_by_numpy(getattr(step, name)))
        for offsets, what in ((expected[1], expected[0]), (expected[3], expected[2])):
            assert len(offsets) == 4
            assert offsets[0] == 0
            assert offsets[-1] == len(what)
            assert offsets == sorted(offsets)


def test_table_buffers() -> None:
    manager = manager_of(full())
    started(manager, "r", 9)
    (buffer,) = manager.get_blocks("r").ids
    assert viewed_by_numpy(buffer).tolist() == memoryview(buffer).tolist() == [1, 2, 3]
    assert memoryview(buffer).readonly


def test_buffers_outlive_everything() -> None:
    manager = manager_of(full())
    step = manager.allocate_slots_batch([Request("r", [1] * 9, 4)], 9)
    view, array = memoryview(step.new_block_ids), viewed_by_numpy(step.new_block_ids)
    del step, manager
    assert view.tolist() == array.tolist() == [1, 2, 3]


def test_empty_batch() -> None:
    for spec in (full(), mamba()):
        manager = manager_of(spec)
        before = manager_dump(manager)
        each: tuple[int | Sequence[int], ...] = (0, 1, [], ())
        for counts in each:
            step = manager.allocate_slots_batch([], counts)
            assert (step.num_served, step.refused) == (0, None)
            assert [list(getattr(step, name)) for name in BUFFERS] == [[], [0], [], [0]]
        assert manager_dump(manager) == before


def test_results_can_be_made_by_hand() -> None:
    """Their constructors are public, and take the buffers as they are."""
    manager = manager_of(full())
    ids = vec[i32]([3, 1])
    assert ids_of(KVCacheBlocks(manager.block_pool, [ids])) == [3, 1]
    step = BatchAllocation(1, None, ids, ids, ids, ids, ids)
    assert list(step.nulled_entries) == [3, 1]


@pytest.mark.parametrize("ids", [[99], [2**31 - 1], [-99]])
def test_hits_made_by_hand_are_checked(ids: list[int]) -> None:
    manager = manager_of(full())
    before = manager_dump(manager)
    by_hand = KVCacheBlocks(manager.block_pool, [vec[i32](ids)])
    with pytest.raises(ValueError, match="new_computed_blocks"):
        manager.allocate_slots(Request("r", list(range(9)), 4), 1, 4, by_hand)
    assert manager_dump(manager) == before


def test_negative_ids_by_hand() -> None:
    """-1 is the last block in Python's way of counting, and here that block does hold what the request asks for."""
    manager = manager_of(full(), 5)
    manager.free(started(manager, "first", 16))
    request = Request("r", list(range(17)), 4)
    hit, num_hit = manager.get_computed_blocks(request)
    assert (ids_of(hit), num_hit) == ([1, 2, 3, 4], 16)
    by_hand = KVCacheBlocks(manager.block_pool, [vec[i32]([1, 2, 3, -1])])
    before = manager_dump(manager)
    with pytest.raises(ValueError, match="new_computed_blocks"):
        manager.allocate_slots(request, 0, 16, by_hand)
    assert manager_dump(manager) == before
