"""Blocks moved between their places, within one pool and between two.

How, by where the two pools are (measured on the CPU only; see `RUN_BYTES`):

- both on the CPU: runs of consecutive ids as slices, without scratch memory, if these are long; else gathered and
  scattered by index;
- both on one GPU, or on two: gathered and scattered by index;
- GPU and host: by index on the GPU, and on the host in runs of consecutive ids, each one asynchronous copy. So
  scattered blocks of the GPU cost nothing more, and a host pool that is filled in order takes few copies.

Scratch memory is at most `SCRATCH_BYTES` (on the CPU `HOST_SCRATCH_BYTES`), or one block of one tensor if that is more.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap

import torch

from blockwright.device.layout import (
    Blocks,
    Caches,
    as_words,
    blocks_of,
    check_alike,
    check_apart,
    check_writable,
    row_pieces,
    token_dims_of,
)
from blockwright.device.pairs import Pairs, by_count, check_no_chain, checked_pairs, runs
from blockwright.device.transfer import Transfer, device_of_stream, run

SCRATCH_BYTES = 64 << 20
HOST_SCRATCH_BYTES = 8 << 20

# To copy a slice costs 3 us whatever its size. So runs serve if there are few, or if they are longer than this; where
# blocks of 64 KiB lie scattered, both ways take the same time.
RUNS = 16
RUN_BYTES = 64 << 10

# More stretches of host memory per block than this, and a copy through scratch memory on the host is better.
PIECES = 64


def copy_blocks(
    caches: Caches,
    pairs: Pairs,
    *,
    block_dim: int | Sequence[int] = 0,
    num_tokens: Sequence[int] | None = None,
    token_dim: int | Sequence[int] = 1,
    stream: torch.cuda.Stream | None = None,
) -> Transfer:
    """Copy blocks within one pool, as copy-on-write asks: whole, or their first tokens only.

    >>> cache = torch.arange(4).repeat_interleave(2).reshape(4, 2)
    >>> copy_blocks(cache, [(0, 2), (1, 3)]).done
    True
    >>> cache.tolist()
    [[0, 0], [1, 1], [0, 0], [1, 1]]
    >>> copy_blocks(cache, [(1, 0), (3, 2)], num_tokens=[1, 2]).done  # these blocks hold two tokens
    True
    >>> cache.tolist()
    [[1, 0], [1, 1], [1, 1], [1, 1]]

    O(bytes of the pairs), plus O(layers) for each number of tokens and O(n log n) for n pairs.

    Args:
        caches: a tensor, or per layer a tensor or (keys, values); any strides, any dtype, all on one device.
        pairs: (source, destination) ids, in any order: a sequence, or an int64 or int32 tensor of shape (n, 2). A
            source may have several destinations. A tensor on a GPU is read by the host, which waits for it. Without
            pairs the call returns at once.
        block_dim: the dimension that counts blocks, for all tensors or one for each (keys before values).
        num_tokens: for each pair, how many tokens of its block are copied, from its first on; the others stay as they
            are. None: the whole block, which is what states of recurrent layers need.
        token_dim: the dimension that counts the tokens of a block, as `block_dim`; read with `num_tokens` only.
        stream: of the caches' GPU; None for its current one. Either way the copies come after the work that the current
            stream holds now.

    Returns:
        What to wait for (see `Transfer`); done already on the CPU.

    Raises:
        InvalidArgumentError: an argument is not as described, or a block has no so many tokens; nothing has moved.
        BlockError: an id out of range, a destination twice, or a block that is source and destination; nothing moved.
    """
    if not len(pairs):  # most steps: no look at the tensors of each layer
        return Transfer()
    pool = blocks_of("caches", caches, block_dim)
    check_writable(pool)
    moves = checked_pairs(pairs, pool, pool)
    check_no_chain(moves)
    if num_tokens is None:
        return _moved([(pool, pool, moves)], stream)
    dims = token_dims_of(pool, block_dim, token_dim)
    most = min(blocks.view.shape[dim] for blocks, dim in zip(pool, dims, strict=True))
    batches: Batches = [(pool, pool, [])]
    for count, those in by_count(moves, pairs, num_tokens, most).items():
        part = [Blocks(blocks.name, blocks.view.narrow(dim, 0, count)) for blocks, dim in zip(pool, dims, strict=True)]
        batches.append((part, part, those))
    return _moved(batches, stream)


def swap_blocks(
    src: Caches,
    dst: Caches,
    pairs: Pairs,
    *,
    block_dim: int | Sequence[int] = 0,
    stream: torch.cuda.Stream | None = None,
) -> Transfer:
    """Copy whole blocks from one pool to another, on another device or the same; the sources stay as they are.

    >>> src, dst = torch.arange(3), torch.zeros(2, dtype=torch.int64)
    >>> swap_blocks(src, dst, [(2, 0)]).done
    True
    >>> dst.tolist()
    [2, 0]

    Between a GPU and pinned host memory (`empty_host_caches_like`) the host only queues the copies. Pageable memory is
    right as well, but the host waits. It also waits for host layouts with blocks in more than `PIECES` stretches.

    Args:
        src: the pool that is read; as for `copy_blocks`.
        dst: the pool that is written: the same layers, dtypes and shapes, except the number of blocks; other memory.
        pairs: (id in `src`, id in `dst`), as for `copy_blocks`; the two ids have nothing to do with each other.
        block_dim: as for `copy_blocks`, of both pools.
        stream: of the destination's GPU, or of the source's if the destination has none; None for its current one.

    Returns:
        What to wait for (see `Transfer`): the host must not read or write either pool's blocks before `synchronize`.

    Raises:
        InvalidArgumentError: an argument is not as described; nothing has moved.
        BlockError: an id out of range, or a destination twice; nothing has moved.
    """
    source, destination = blocks_of("src", src, block_dim), blocks_of("dst", dst, block_dim)
    check_alike(source, destination)
    check_writable(destination)
    check_apart(source, destination)
    moves = checked_pairs(pairs, source, destination)
    return _moved([(source, destination, moves)], stream)


Batches = list[tuple[list[Blocks], list[Blocks], list[tuple[int, int]]]]
"""Pools that are read and written, and the pairs of blocks that move between them."""


def _moved(batches: Batches, stream: torch.cuda.Stream | None) -> Transfer:
    src, dst, _ = batches[0]
    from_device, to_device = src[0].view.device, dst[0].view.device
    device = device_of_stream(from_device, to_device, stream)
    all_couples = [
        ([(one.view, other.view) for one, other in zip(src, dst, strict=True) if one.view.numel()], moves)
        for src, dst, moves in batches
    ]
    if not any(couples and moves for couples, moves in all_couples):
        return Transfer()

    def work() -> None:
        for couples, moves in all_couples:
            if couples and moves:
                move(couples, moves)

    def move(couples: Couples, moves: list[tuple[int, int]]) -> None:
        if from_device.type == to_device.type == "cpu":
            _move_on_host(couples, moves)
        elif device is not None and from_device.type == "cpu":
            _move_by_rows(couples, moves, to_host=False)
        elif device is not None and to_device.type == "cpu":
            # In the order of the host's blocks, so that neighbours make one stretch.
            _move_by_rows(couples, sorted(moves, key=lambda pair: pair[1]), to_host=True)
        else:
            _move_by_index(couples, moves, SCRATCH_BYTES)

    return run(device, stream, work)


Couples = list[tuple[torch.Tensor, torch.Tensor]]


def _bytes_of_block(view: torch.Tensor) -> int:
    return int(view.element_size() * view[:1].numel())


def _ids(ids: Sequence[int], device: torch.device) -> torch.Tensor:
    """Block ids on a device; on a GPU without making the host wait."""
    made = torch.tensor(ids, dtype=torch.int64)
    return made.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else made.to(device)


def _move_on_host(couples: Couples, moves: list[tuple[int, int]]) -> None:
    sources, destinations = [pair[0] for pair in moves], [pair[1] for pair in moves]
    stretches = runs(sources, destinations)
    by_index: Couples = []
    for src, dst in couples:
        # Many short stretches: one call by index costs less than a call for each.
        if len(stretches) > RUNS and len(moves) * _bytes_of_block(src) < len(stretches) * RUN_BYTES:
            by_index.append((src, dst))
            continue
        for start, stop in stretches:
            source, destination, length = sources[start], destinations[start], stop - start
            dst[destination : destination + length].copy_(src[source : source + length])
    if by_index:
        _move_by_index(by_index, moves, HOST_SCRATCH_BYTES)


def _move_by_index(couples: Couples, moves: list[tuple[int, int]], scratch_bytes: int) -> None:
    """Gather blocks and scatter them, through scratch memory on both devices; between two, the host may wait."""
    sources = _ids([pair[0] for pair in moves], couples[0][0].device)
    destinations = _ids([pair[1] for pair in moves], couples[0][1].device)
    for src, dst in starmap(as_words, couples):
        length = max(1, scratch_bytes // _bytes_of_block(src))
        for start in range(0, len(moves), length):
            part = slice(start, start + length)
            dst.index_copy_(0, destinations[part], src.index_select(0, sources[part]).to(dst.device))


def _move_by_rows(couples: Couples, moves: list[tuple[int, int]], *, to_host: bool) -> None:
    """Move between a GPU and the host: by index there, in runs of consecutive ids here; `moves` in the host's order.

    Every copy is from one stretch of memory to another: torch would put scratch memory between others, and for the host
    read it before it is filled.
    """
    on_host = [pair[1] if to_host else pair[0] for pair in moves]
    on_device = _ids([pair[0] if to_host else pair[1] for pair in moves], couples[0][0 if to_host else 1].device)
    move = _rows_to_host if to_host else _rows_to_device
    for src, dst in starmap(as_words, couples):
        pieces = row_pieces(dst, src, PIECES) if to_host else row_pieces(src, dst, PIECES)
        if pieces is None:
            _move_by_index([(src, dst)], moves, SCRATCH_BYTES)
            continue
        for host, device in pieces:
            length = max(1, SCRATCH_BYTES // _bytes_of_block(host))
            for start in range(0, len(moves), length):
                move(host, on_host[start : start + length], device, on_device[start : start + length])


def _stretches(host: torch.Tensor, rows: list[int]) -> list[tuple[int, int]]:
    """Return the runs of `rows` that are one stretch of the host's memory each: single rows, if gaps part the rows."""
    # Padding between blocks would make torch copy through scratch memory of its own.
    adjacent = host.stride(0) == host[:1].numel()
    return runs(rows, rows) if adjacent else [(place, place + 1) for place in range(len(rows))]


def _rows_to_host(host: torch.Tensor, rows: list[int], device: torch.Tensor, ids: torch.Tensor) -> None:
    scratch = device.index_select(0, ids)
    for start, stop in _stretches(host, rows):
        host[rows[start] : rows[stop - 1] + 1].copy_(scratch[start:stop], non_blocking=True)


def _rows_to_device(host: torch.Tensor, rows: list[int], device: torch.Tensor, ids: torch.Tensor) -> None:
    # One scatter at the end: a copy of each run straight into scattered blocks would be a launch each.
    scratch = torch.empty((len(rows), *device.shape[1:]), dtype=device.dtype, device=device.device)
    for start, stop in _stretches(host, rows):
        scratch[start:stop].copy_(host[rows[start] : rows[stop - 1] + 1], non_blocking=True)
    device.index_copy_(0, ids, scratch)
