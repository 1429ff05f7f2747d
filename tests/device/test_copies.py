"""Property: `copy_blocks` and `swap_blocks` change what a loop over the pairs changes, bit by bit, and nothing else.

How: every layout and dtype, with random bytes, by each way of moving (as it comes, by index, by runs, with scratch
memory for a block or two), against the plain loop; all the memory is compared, the bytes between and around the blocks
included. The way between a GPU and the host runs here between two pools on the CPU.
Not covered: streams and pinned memory (test_cuda.py), refusals (test_refusals.py), which way is faster.
"""

from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install torch")

import torch
from tests.device.pools import DTYPES, LAYOUTS, equal, memory, moved_plainly, pair_lists, parts, twin

from blockwright.device import copies, copy_blocks, empty_host_caches_like, swap_blocks
from blockwright.device.layout import as_words, row_pieces

WAYS = {
    "as it comes": {},
    "by index": {"RUNS": 0, "RUN_BYTES": 1 << 40},
    "by runs": {"RUN_BYTES": 0},
    "two blocks of scratch": {"RUNS": 0, "RUN_BYTES": 1 << 40, "HOST_SCRATCH_BYTES": 1000, "SCRATCH_BYTES": 1000},
    "no scratch to speak of": {"RUNS": 0, "RUN_BYTES": 1 << 40, "HOST_SCRATCH_BYTES": 1, "SCRATCH_BYTES": 1},
}

each_layout = pytest.mark.parametrize("layout", LAYOUTS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in WAYS[request.param].items():
        assert hasattr(copies, name)
        monkeypatch.setattr(copies, name, value)
    return str(request.param)


@pytest.mark.usefixtures("way")
@each_layout
@each_dtype
def test_copies_are_those_of_a_loop(layout: str, dtype: torch.dtype) -> None:
    dim, make = LAYOUTS[layout]
    for seed in range(3):
        for pairs in pair_lists(seed, 12, 12, apart=True):
            flat, pool = make(12, dtype)
            expected_flat, expected = twin(flat, pool)
            moved_plainly(expected, expected, pairs, dim)
            transfer = copy_blocks(pool, pairs, block_dim=dim)
            assert transfer.done
            assert equal(flat, expected_flat), pairs


@pytest.mark.usefixtures("way")
@each_layout
@pytest.mark.parametrize("dtype", [torch.float16, torch.int8])
def test_parts_are_those_of_a_loop(layout: str, dtype: torch.dtype) -> None:
    dim, make = LAYOUTS[layout]
    for pairs in pair_lists(5, 12, 12, apart=True):
        flat, pool = make(12, dtype)
        for token_dim in {*range(pool.dim())} - {dim % pool.dim()}:
            expected_flat, expected = twin(flat, pool)
            counts = parts(expected, (dim, token_dim), pairs, seed=token_dim)
            assert copy_blocks(pool, pairs, block_dim=dim, num_tokens=counts, token_dim=token_dim).done
            assert equal(flat, expected_flat), (pairs, counts)


@pytest.mark.usefixtures("way")
@each_layout
@each_dtype
def test_swaps_are_those_of_a_loop(layout: str, dtype: torch.dtype) -> None:
    dim, make = LAYOUTS[layout]
    for pairs in pair_lists(7, 12, 9, apart=False):
        (src_flat, src), (dst_flat, dst) = make(12, dtype), make(9, dtype)
        (before, _), (expected_flat, expected) = twin(src_flat, src), twin(dst_flat, dst)
        moved_plainly(src, expected, pairs, dim)
        assert swap_blocks(src, dst, pairs, block_dim=dim).done
        assert equal(dst_flat, expected_flat), pairs
        assert equal(src_flat, before)


@each_layout
@each_dtype
@pytest.mark.parametrize("to_host", [True, False])
@pytest.mark.parametrize(("scratch", "pieces"), [(1 << 20, 64), (1 << 20, 1 << 20), (1000, 1 << 20), (1, 0)])
def test_rows_are_moved_as_by_a_loop(
    layout: str, dtype: torch.dtype, to_host: bool, scratch: int, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "SCRATCH_BYTES", scratch)
    monkeypatch.setattr(copies, "PIECES", pieces)
    dim, make = LAYOUTS[layout]
    for pairs in pair_lists(11, 12, 9, apart=False)[1:]:
        (_, src), (dst_flat, dst) = make(12, dtype), make(9, dtype)
        expected_flat, expected = twin(dst_flat, dst)
        moved_plainly(src, expected, pairs, dim)
        ordered = sorted(pairs, key=lambda pair: pair[1] if to_host else pair[0])
        copies._move_by_rows([(src.movedim(dim, 0), dst.movedim(dim, 0))], ordered, to_host=to_host)
        assert equal(dst_flat, expected_flat), pairs


@each_layout
def test_each_piece_of_a_block_is_one_stretch(layout: str) -> None:
    """Otherwise a copy that does not wait would read its scratch memory before it is filled."""
    dim, make = LAYOUTS[layout]
    view = make(6, torch.float16)[1].movedim(dim, 0)
    pieces = row_pieces(view, view, 1 << 20)
    assert pieces is not None
    assert all(host[3:4].is_contiguous() for host, _ in pieces)
    places = [piece.data_ptr() + 2 * int(offset) for piece, _ in pieces for offset in offsets(piece)]
    assert sorted(places) == sorted(view.data_ptr() + 2 * int(offset) for offset in offsets(view))
    assert row_pieces(view, view, len(pieces) - 1) is None
    for rows in ([0, 1, 2, 4, 5], [1, 3, 5], [5]):
        for host, _ in pieces:
            stretches = copies._stretches(host, rows)
            assert [row for start, stop in stretches for row in rows[start:stop]] == rows
            assert all(host[rows[start] : rows[stop - 1] + 1].is_contiguous() for start, stop in stretches)


def offsets(view: torch.Tensor) -> list[int]:
    places = torch.zeros((), dtype=torch.int64)
    for dim, (size, stride) in enumerate(zip(view.shape, view.stride(), strict=True)):
        places = places + (torch.arange(size) * stride).reshape([-1 if at == dim else 1 for at in range(view.dim())])
    return [int(place) for place in places.flatten()]


def test_pieces_are_few_in_common_layouts() -> None:
    counts = {}
    for name, (dim, make) in LAYOUTS.items():
        view = make(6, torch.float16)[1].movedim(dim, 0)
        counts[name] = len(row_pieces(view, view, 1 << 20) or ())
    assert counts["a dimension of one"] == 1
    assert counts["stacked"] == counts["heads outside, seen as tokens outside"] == 2
    assert counts["block-major"] == counts["keys or values"] == counts["packed keys"] == counts["recurrent state"] == 1


def test_words_are_as_wide_as_the_memory_allows() -> None:
    for wide, shape in ((torch.int64, (4, 8)), (torch.int32, (4, 6)), (torch.int16, (4, 5))):
        pool = torch.zeros(shape, dtype=torch.float16)
        assert as_words(pool, torch.zeros_like(pool))[0].dtype == wide
    both = as_words(memory(64, torch.float16).reshape(4, 16)[:, :4], memory(24, torch.float16).reshape(4, 6)[:, :4])
    assert {view.dtype for view in both} == {torch.int32}
    raw = torch.zeros(256, dtype=torch.uint8).numpy()
    assert raw.ctypes.data % 16 == 0
    for offset, start, size in ((0, 0, 8), (2, 0, 2), (4, 0, 4), (4, 2, 4), (6, 1, 2)):
        odd = torch.from_numpy(raw[offset : offset + 128]).view(torch.float16)[start : start + 32].reshape(4, 8)
        assert as_words(odd, odd)[0].element_size() == size, (offset, start)
    widest = torch.zeros(4, 2, dtype=torch.complex128)
    assert all(view is widest for view in as_words(widest, widest))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint16, torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("count", [3, 40])
def test_other_dtypes_move_too(dtype: torch.dtype, count: int) -> None:
    pool = torch.arange(100 * 4).reshape(100, 4).to(dtype)
    copy_blocks(pool, [(block, 50 + block * 7 % 47) for block in range(count)])
    assert all(torch.equal(pool[50 + block * 7 % 47], pool[block]) for block in range(count))


def test_layers_and_keys_and_values_all_move() -> None:
    single = memory(10 * 4, torch.float16).reshape(10, 4)
    keys, values = memory(10 * 6, torch.int8).reshape(10, 6), memory(10 * 6, torch.int8).reshape(2, 10, 3)
    caches: Any = [single, (keys, values)]
    copy_blocks(caches, torch.tensor([[1, 2], [3, 4]]), block_dim=[0, 0, 1])
    assert equal(single[2], single[1])
    assert equal(keys[4], keys[3])
    assert equal(values[:, 4], values[:, 3])
    host = empty_host_caches_like(caches, 5, block_dim=(0, 0, 1))
    swap_blocks(caches, host, torch.tensor([[9, 0], [4, 4]], dtype=torch.int32), block_dim=[0, 0, 1])
    assert equal(host[0][4], single[4])
    assert equal(host[1][1][:, 0], values[:, 9])


@each_layout
def test_host_pools_have_the_layout_of_the_device(layout: str) -> None:
    dim, make = LAYOUTS[layout]
    pool = make(6, torch.bfloat16)[1]
    host = empty_host_caches_like(pool, 9, block_dim=dim, pin_memory=False)
    assert (host.dtype, host.device.type, host.shape[dim]) == (pool.dtype, "cpu", 9)
    assert host.movedim(dim, 0).shape[1:] == pool.movedim(dim, 0).shape[1:]
    assert sorted(offsets(host)) == list(range(host.numel()))
    wide = [at for at in range(pool.dim()) if pool.shape[at] > 1]
    by_stride = sorted(wide, key=lambda at: pool.stride()[at])
    assert by_stride == sorted(wide, key=lambda at: host.stride()[at])


def test_host_pools_are_nested_alike() -> None:
    one = torch.zeros(3, 2)
    caches: Any = [one, (one, one), [one]]
    host = empty_host_caches_like(caches, 4)
    assert [type(item) for item in host] == [torch.Tensor, tuple, list]
    assert host[1][1].shape == (4, 2)
    assert empty_host_caches_like(one, 0).shape == (0, 2)


def test_caches_of_inference_mode_and_parameters_are_written() -> None:
    with torch.inference_mode():
        made_there = torch.arange(4)
    copy_blocks(made_there, [(3, 0)])
    assert made_there.tolist() == [3, 1, 2, 3]
    parameter = torch.nn.Parameter(torch.arange(4.0))
    copy_blocks(parameter, [(3, 0)])
    assert parameter.tolist() == [3, 1, 2, 3]
    assert parameter.requires_grad


def test_waiting_costs_nothing_without_a_gpu() -> None:
    transfer = copy_blocks(torch.arange(4), [(0, 1)])
    transfer.wait()
    transfer.synchronize()
    assert transfer.done
    assert transfer.event is None
