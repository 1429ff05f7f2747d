"""Property: a worker's rows begin empty, as large as the limits say, and tell exactly what a call has changed.

How: rows of a group of slots and a group of states as they are made, with few and with many requests; rows that differ
in few entries are exchanged; batches tell of parts that do not lie within their buffers.
Not covered: that rows follow the manager's tables, and the inputs of a step (tests/device/test_inputs.py).
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from librt.vecs import vec
from mypy_extensions import i32
from tests.core.support import full, mamba

from blockwright import KVCacheConfig, KVCacheGroupSpec
from blockwright.errors import InvalidArgumentError
from blockwright.worker.replica import TableReplica

LENGTH, TOKENS = 12, 16
WIDTHS = (6, 3)


def rows_of(count: int) -> TableReplica:
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
    rows = rows_of(count)
    assert list(rows.tables) == [0] * (count * (sum(WIDTHS) + len(WIDTHS)))  # entries, and how many there are
    assert list(rows.words) == [0] * (2 * TOKENS)  # positions, and the slots of one group
    assert list(rows.counts) == [0] * (4 * count + 1 + 3 * count)  # and of the other, states to read and to write
    assert (rows.num_requests, rows.num_tokens, rows.max_query_len, rows.max_seq_len) == (0, 0, 0, 0)
    assert (list(rows.request_ids), rows.num_changes) == ([], 0)


def test_only_what_differs_is_told() -> None:
    rows = rows_of(2)
    rows.add_request("a", [[1, 2, 3], [4]], (), 0)
    rows.add_request("b", [[1, 5, 3], [6]], (), 0)
    before = list(rows.tables)
    rows.swap_rows(0, 1)
    indices, values = rows.changes()
    after = list(rows.tables)
    assert sorted(indices) == [at for at, value in enumerate(before) if value != after[at]]
    assert [after[at] for at in indices] == list(values)
    assert (rows.block_ids("a"), rows.row_of("a")) == ([[1, 2, 3], [4]], 1)


@pytest.mark.parametrize("name", ["new_block", "nulled"])
@pytest.mark.parametrize("ends", [[-1, 0, 0], [1, 0, 0], [0, 2, 2], [0, 1]])
def test_parts_lie_within_what_a_batch_tells(name: str, ends: list[int]) -> None:
    rows = rows_of(2)
    rows.add_request("a", [[1, 2, 3], [4]], (), 0)
    before = list(rows.tables)
    reported = {"new_block_ids": [], "new_block_offsets": [0, 0, 0], "nulled_entries": [], "nulled_offsets": [0, 0, 0]}
    reported |= {"new_block_ids" if name == "new_block" else "nulled_entries": [0], f"{name}_offsets": ends}
    buffers = {each: vec[i32](numbers) for each, numbers in (reported | {"replaced_entries": []}).items()}
    request = SimpleNamespace(request_id="a", num_computed_tokens=0)
    with pytest.raises(InvalidArgumentError):
        rows.apply([request], SimpleNamespace(num_served=1, **buffers))
    assert list(rows.tables) == before
