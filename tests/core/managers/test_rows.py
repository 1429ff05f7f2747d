"""Property: a worker's rows begin empty, as large as the limits say, and tell exactly what a call has changed.

How: rows of a group of slots and a group of states as they are made, with few and with many requests; rows that differ
in few entries are exchanged; batches tell of parts that do not lie within their buffers; rows change between two steps.
Not covered: that rows follow the manager's tables, and the inputs of a step (tests/device/test_inputs.py).
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from librt.vecs import vec
from mypy_extensions import i32
from tests.core.support import full, mamba

from blockwright import KVCacheConfig, KVCacheGroupSpec
from blockwright.errors import BlockError, InvalidArgumentError
from blockwright.worker.replica import TableReplica

LENGTH, TOKENS = 12, 16
WIDTHS = (6, 3)


def batch_of(count: int) -> TableReplica:
    groups = [KVCacheGroupSpec([f"layer {at}"], spec) for at, spec in enumerate((full(2), mamba(4, 1)))]
    return TableReplica(
        KVCacheConfig(40, groups),
        max_num_requests=count,
        max_num_tokens=TOKENS,
        max_model_len=LENGTH,
        max_encoder_len=0,
        enable_caching=True,
        keep_changes=False,
    )


@pytest.mark.parametrize("count", [1, 4, 1000])
def test_rows_begin_empty(count: int) -> None:
    batch = batch_of(count)
    assert list(batch.rows.tables) == [0] * (count * (sum(WIDTHS) + len(WIDTHS)))  # entries, and how many there are
    assert list(batch.words) == [0] * (2 * TOKENS)  # positions, and the slots of one group
    assert list(batch.counts) == [0] * (5 * count + 2 + 3 * count)  # and of the other, states to read and to write
    assert (batch.num_requests, batch.num_tokens, batch.max_query_len, batch.max_seq_len) == (0, 0, 0, 0)
    assert (list(batch.rows.request_ids), batch.rows.num_changes) == ([], 0)


def test_only_what_differs_is_told() -> None:
    batch = batch_of(2)
    batch.rows.add_request("a", [[1, 2, 3], [4]], (), 0)
    batch.rows.add_request("b", [[1, 5, 3], [6]], (), 0)
    before = list(batch.rows.tables)
    batch.rows.swap_rows(0, 1)
    indices, values = batch.rows.changes()
    after = list(batch.rows.tables)
    assert sorted(indices) == [at for at, value in enumerate(before) if value != after[at]]
    assert [after[at] for at in indices] == list(values)
    assert (batch.rows.block_ids("a"), batch.rows.row_of("a")) == ([[1, 2, 3], [4]], 1)


@pytest.mark.parametrize("name", ["new_block", "nulled"])
@pytest.mark.parametrize("ends", [[-1, 0, 0], [1, 0, 0], [0, 2, 2], [0, 1]])
def test_parts_lie_within_what_a_batch_tells(name: str, ends: list[int]) -> None:
    batch = batch_of(2)
    batch.rows.add_request("a", [[1, 2, 3], [4]], (), 0)
    before = list(batch.rows.tables)
    reported = {"new_block_ids": [], "new_block_offsets": [0, 0, 0], "nulled_entries": [], "nulled_offsets": [0, 0, 0]}
    reported |= {"new_block_ids" if name == "new_block" else "nulled_entries": [0], f"{name}_offsets": ends}
    buffers = {each: vec[i32](numbers) for each, numbers in (reported | {"replaced_entries": []}).items()}
    request = SimpleNamespace(request_id="a", num_computed_tokens=0)
    with pytest.raises(InvalidArgumentError):
        batch.rows.apply([request], SimpleNamespace(num_served=1, **buffers))
    assert list(batch.rows.tables) == before


@pytest.mark.parametrize(
    "changed",
    [[-1, 1, 0], [0, -1, 0], [0, 0, -1], [0, 2, 0], [0, 0, 2], [1, 1, 0, 0, 1, 0], [0, 1, 0, 1, 0, 0], [0, 1]],
)
def test_changed_tables_lie_within_what_a_batch_tells(changed: list[int]) -> None:
    batch = batch_of(2)
    batch.rows.add_request("a", [[1, 2, 3], [4]], (), 0)
    before = list(batch.rows.tables)
    buffers = {"new_block_ids": [5], "nulled_entries": [0], "replaced_entries": [], "changed_tables": changed}
    given = SimpleNamespace(num_served=1, num_tables=2, **{name: vec[i32](each) for name, each in buffers.items()})
    request = SimpleNamespace(request_id="a", num_computed_tokens=0)
    with pytest.raises(InvalidArgumentError):
        batch.rows.apply([request], given)
    assert list(batch.rows.tables) == before
    given.changed_tables = vec[i32]([0, 1, 1])
    given.num_tables, given.new_block_offsets, given.nulled_offsets = 1, vec[i32]([0, 1]), vec[i32]([0, 1])
    with pytest.raises(InvalidArgumentError, match="not one of 2 groups"):
        batch.rows.apply([request], given)
    given.num_tables = 2
    batch.rows.apply([request], given)
    assert batch.rows.block_ids("a") == [[0, 2, 3, 5], [4]]


def told(nulled: list[int], replaced: list[int]) -> SimpleNamespace:
    ends = vec[i32]([0, len(nulled), len(nulled)])
    buffers = {"nulled_entries": vec[i32](nulled), "replaced_entries": vec[i32](replaced), "nulled_offsets": ends}
    nothing = {"new_block_ids": vec[i32](), "new_block_offsets": vec[i32]([0, 0, 0])}
    return SimpleNamespace(num_served=1, **buffers, **nothing)


@pytest.mark.parametrize("change", ["null", "copy", "add", "swap", "undo"])
def test_a_block_at_hand_is_that_of_the_row(change: str) -> None:
    batch = batch_of(2)
    batch.rows.add_request("a", [[1, 2, 3], [4]], (), 0)
    batch.rows.add_request("b", [[5, 6, 7], [8]], (), 0)
    a, b = (SimpleNamespace(request_id=name, num_computed_tokens=2) for name in "ab")
    requests: list[object] = [a, b]
    for _ in range(2):
        batch.step(requests, 1, 0, None)
        assert list(batch.words[TOKENS : TOKENS + 2]) == [4, 12]
    if change == "null":
        with pytest.raises(BlockError):
            batch.step(requests, 1, 0, told([1], []))
        batch.rows.apply(requests, told([1], []))
        with pytest.raises(BlockError):
            batch.step(requests, 1, 0, None)
        return
    if change == "copy":
        batch.rows.apply(requests, told([], [0, 0, 1, 9]))
    elif change == "add":
        batch.rows.add_request("a", [[1, 9, 3], [4]], (), 0)
    elif change == "swap":
        batch.rows.swap_rows(0, 1)
        requests.reverse()
    else:  # the slot of "a" is found in a block that the failing step has only just got
        b.num_computed_tokens = 8
        with pytest.raises(BlockError):
            batch.step(requests, 1, 0, told([], [0, 0, 1, 9]))
        b.num_computed_tokens = 2
    batch.step(requests, 1, 0, None)
    slots = {"swap": [12, 4], "undo": [4, 12]}
    assert list(batch.words[TOKENS : TOKENS + 2]) == slots.get(change, [18, 12])
