"""Attention over a paged cache in one fused kernel: torch's flex attention, over the whole cache as it lies in memory.

Run it:  python examples/flex_attention.py      (it compares a step with `paged_attention`)

Nothing is gathered. The cache of a layer is one long row of slots, of which each token reads some. A block mask holds
the tiles of slots that a tile of tokens reads at all, and the mask itself turns a slot back into a position::

    slot  ->  (block, place)  ->  entry of the request's table  ->  position, within first .. last of the token?

For GPUs, where the kernel is compiled once per shape. Uncompiled, on the CPU, it computes every score of every token
against every slot: only for tests. The results are those of `paged_attention`, except for rounding.

Unlike `paged_attention`, this is not safe from the content of slots that no token reads: a slot in a visited tile is
multiplied by weight 0, and 0 * NaN is NaN. The cache must hold finite numbers everywhere: start it with zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache as cached
from inspect import signature
from typing import TYPE_CHECKING, Any

try:
    import torch
except ModuleNotFoundError:
    raise SystemExit("this needs torch: pip install torch") from None

from blockwright import SlidingWindowSpec
from blockwright.device import paged_attention
from blockwright.device.attention import DECODE_QUERIES
from blockwright.device.operands import first_read
from blockwright.device.step import Step, checked_step, read_spans, require_out
from blockwright.errors import InvalidArgumentError, UnsupportedError
from blockwright.kinds import AttentionSpec

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

# Tokens and slots that are skipped together. The kernels' own tiles must divide them.
TOKEN_TILE = 128
SLOT_TILE = 128


@dataclass(frozen=True, slots=True)
class FlexMask:
    """The slots that the tokens of one step read, for all layers of a group with caches of one layout.

    Attributes:
        block_mask: torch's, over (batch, 1, tokens of a batch entry, slots).
        rows: (batch, tokens of a batch entry): which row of `query` is there; some row for padding. places: (tokens,):
            the place of each row of `query`, counted through `rows`.
        reads: (tokens,): False where a token reads nothing.
        slots: how many slots the cache has, those between blocks included.
        page: slots from one block to the next.
    """

    block_mask: BlockMask
    rows: torch.Tensor
    places: torch.Tensor
    reads: torch.Tensor
    slots: int
    page: int


def flex_mask(
    query: torch.Tensor,
    cache: torch.Tensor,
    spec: AttentionSpec,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    encoder_lens: torch.Tensor | None = None,
    max_query_len: int | None = None,
    check: bool = False,
) -> FlexMask:
    """Make the mask of a step, to be used by every layer of a group with the same spec and strides.

    O(requests * (num_blocks + width) + tiles of tokens * tiles of slots); the first is the memory, too, in int32. The
    host does not wait for a GPU.

    Args:
        query: any layer's of the step; its numbers are not read.
        cache: any layer's of the group; its numbers are not read.
        spec, block_table, query_start_loc, seq_lens, encoder_lens, check: as for `paged_attention`.
        max_query_len: a bound of the tokens of one request. If it is at most `attention.DECODE_QUERIES`, requests are
            masked one by one; otherwise tokens are masked in tiles of `TOKEN_TILE`, across requests.

    Raises:
        InvalidArgumentError, BlockError: as `paged_attention`.
        UnsupportedError: this torch has no flex attention.
    """
    step = checked_step(
        query, cache, spec, block_table, query_start_loc, seq_lens, None, encoder_lens, max_query_len, None, check
    )
    return _mask_of(step, cache, max_query_len)


def flex_paged_attention(
    query: torch.Tensor,
    cache: torch.Tensor,
    spec: AttentionSpec,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float | None = None,
    encoder_lens: torch.Tensor | None = None,
    max_query_len: int | None = None,
    out: torch.Tensor | None = None,
    mask: FlexMask | None = None,
    kernel: Callable[..., Any] | None = None,
    check: bool = False,
) -> torch.Tensor:
    """Attend as `paged_attention` does, by flex attention over the cache in place.

    The cache must have the query's dtype, hold finite numbers everywhere, and have blocks that lie a whole number of
    tokens apart (as any page of whole tokens does).

    Args:
        query, cache, spec, block_table, query_start_loc, seq_lens, scale, encoder_lens, out, check: as for
            `paged_attention`.
        max_query_len: as for `flex_mask`.
        mask: of this step and group (`flex_mask`); None to make it here, for this layer alone.
        kernel: called as ``torch.nn.attention.flex_attention.flex_attention``; None for that function, compiled on a
            GPU and as it is on the CPU.

    Returns:
        (tokens, num_heads, head_size), of the query's dtype; `out` if that was given.

    Raises:
        InvalidArgumentError, BlockError: as `paged_attention`, or strides, dtypes or a mask that do not fit.
        UnsupportedError: this torch has no flex attention.
    """
    step = checked_step(
        query, cache, spec, block_table, query_start_loc, seq_lens, scale, encoder_lens, max_query_len, None, check
    )
    if cache.dtype != query.dtype:
        raise InvalidArgumentError(f"cache is {cache.dtype} and query {query.dtype}; only paged_attention converts")
    if out is not None:
        require_out(out, step)
    page, slots = _page(cache)
    if mask is None:
        mask = _mask_of(step, cache, max_query_len)
    elif not isinstance(mask, FlexMask):
        raise InvalidArgumentError(f"mask is a {type(mask).__name__}; make it with flex_mask, or pass None")
    if (mask.page, mask.slots, mask.places.shape[0]) != (page, slots, query.shape[0]):
        raise InvalidArgumentError(
            "mask is of another step or layout; make it with flex_mask, from this step and cache"
        )
    if not query.shape[0] or not slots:
        return torch.zeros_like(query) if out is None else out.zero_()
    keys, values = _rows_of_slots(cache, slots)
    attended: torch.Tensor = (kernel or _kernel(query.device.type))(
        query[mask.rows].transpose(1, 2),
        keys,
        values,
        block_mask=mask.block_mask,
        scale=step.scale,
        enable_gqa=query.shape[1] != cache.shape[3],
    )
    result = attended.transpose(1, 2).flatten(0, 1)[mask.places]
    result = torch.where(mask.reads[:, None, None], result, torch.zeros_like(result))
    return result if out is None else out.copy_(result)


def _flex() -> Any:
    try:
        from torch.nn.attention import flex_attention
    except ImportError as error:
        raise UnsupportedError("this torch has no flex attention; use paged_attention, or a newer torch") from error
    if "seq_lengths" not in signature(flex_attention.BlockMask.from_kv_blocks).parameters:
        raise UnsupportedError("this torch's flex attention is too old; use paged_attention, or a newer torch")
    return flex_attention


@cached
def _kernel(device_type: str) -> Callable[..., Any]:
    kernel: Callable[..., Any] = _flex().flex_attention
    return kernel if device_type == "cpu" else torch.compile(kernel)


def _page(cache: torch.Tensor) -> tuple[int, int]:
    """Return (slots from one block to the next, slots in all), of which only the first of each page are the block's."""
    apart, token = cache.stride(0), cache.stride(2)
    if not cache.shape[0]:
        return cache.shape[2], 0
    if token <= 0 or apart % token or apart < cache.shape[2] * token:
        raise InvalidArgumentError(
            f"cache has strides {cache.stride()}; blocks must lie a whole number of tokens apart, and not overlap"
        )
    page = apart // token
    return page, (cache.shape[0] - 1) * page + cache.shape[2]


def _rows_of_slots(cache: torch.Tensor, slots: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values as (1, num_kv_heads, slots, head_size): views of the cache, what lies between included."""
    shape = (1, cache.shape[3], slots, cache.shape[4])
    strides = (0, cache.stride(3), cache.stride(2), cache.stride(4))
    keys = cache.as_strided(shape, strides, cache.storage_offset())
    return keys, cache.as_strided(shape, strides, cache.storage_offset() + cache.stride(1))


def _mask_of(step: Step, cache: torch.Tensor, max_query_len: int | None) -> FlexMask:
    device, tokens = step.query.device, step.query.shape[0]
    requests = step.seq_lens.shape[0]
    page, slots = _page(cache)
    block_size = step.pages.block_size
    low, high = read_spans(step)
    counts = step.starts.diff().long()

    # Each row of the query: its request, and the positions that it reads, first .. last.
    row = torch.arange(tokens, device=device)
    request = torch.searchsorted(step.starts, row, right=True).sub(1).clamp(0, max(0, requests - 1))
    if not requests:
        low = high = counts = torch.zeros(1, dtype=torch.int64, device=device)
    place = row - step.starts[request]
    reads = (place < counts[request]) & (high > low)[request]
    if step.encoder_lens is not None:
        first, last = torch.zeros_like(row), high[request] - 1
    else:
        last = (high - counts)[request] + place
        first = first_read(step.spec, last)
    last = torch.where(reads, last, -1)

    # Where each row stands: requests one by one if they are short, else all in one row.
    if max_query_len is not None and 0 < max_query_len <= DECODE_QUERIES and requests and tokens:
        width = max_query_len
        rows = (step.starts[:-1, None] + torch.arange(width, device=device)).clamp(max=tokens - 1)
        places = request * width + place.clamp(max=width - 1)
        there = torch.arange(width, device=device) < counts[:, None]
        request = torch.arange(requests, device=device)[:, None].expand_as(rows)
        first, last = first[rows], torch.where(there, last[rows], -1)
    else:
        width, rows, places = tokens, row[None], row
        first, last, request = first[None], last[None], request[None]

    entry_of = _entries(step, low, high)
    visited = _visited(step, first, last, request, page, slots)
    sinks = step.spec.sink_len

    def mask_mod(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        entry = entry_of[request[b, q], kv // page]
        position = entry * block_size + kv % page
        near = (position >= first[b, q]) | (position < sinks) if sinks else position >= first[b, q]
        return (kv % page < block_size) & (entry >= 0) & near & (position <= last[b, q])

    block_mask = _flex().BlockMask.from_kv_blocks(
        visited.sum(-1, dtype=torch.int32)[:, None],
        visited.byte().argsort(dim=-1, descending=True, stable=True).int()[:, None],
        BLOCK_SIZE=(TOKEN_TILE, SLOT_TILE),
        mask_mod=mask_mod,
        seq_lengths=(width, slots),
    )
    return FlexMask(block_mask, rows, places, reads, slots, page)


def _entries(step: Step, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Return (requests, num_blocks): the entry of its table as which a request reads the block; -1 if it does not."""
    requests, num_blocks = max(1, step.seq_lens.shape[0]), step.pages.num_blocks
    entry_of = torch.full((requests, max(1, num_blocks)), -1, dtype=torch.int32, device=step.query.device)
    entry = torch.arange(step.table.shape[1], device=step.query.device)
    size = step.pages.block_size
    if step.table.numel():
        read = (entry >= (low // size)[:, None]) | (entry * size < step.spec.sink_len)
        read &= entry < ((high + size - 1) // size)[:, None]
        read &= (step.table > 0) & (step.table < num_blocks)
        # What is not read goes to the null block, which stays -1.
        entry_of.scatter_(1, torch.where(read, step.table, 0).long(), torch.where(read, entry, -1).int())
    return entry_of


def _visited(
    step: Step, first: torch.Tensor, last: torch.Tensor, request: torch.Tensor, page: int, slots: int
) -> torch.Tensor:
    """Return (batch, tiles of tokens, tiles of slots): whether any of these tokens reads any of these slots.

    Rows of one tile and one request are a run; there are at most (tiles + requests) runs. A run reads the blocks of one
    stretch of its request's table.
    """
    device, size = step.query.device, step.pages.block_size
    batch, width = first.shape
    tiles, slot_tiles = -(-width // TOKEN_TILE), -(-slots // SLOT_TILE)
    if not step.table.numel() or not width or not slots:
        return torch.zeros(batch, tiles, slot_tiles, dtype=torch.bool, device=device)
    tile = torch.arange(batch, device=device)[:, None] * tiles + torch.arange(width, device=device) // TOKEN_TILE
    tile, request, first, last = (each.flatten() for each in (tile, request, first, last))
    starts = torch.ones_like(tile)
    starts[1:] = (tile.diff() != 0) | (request.diff() != 0)
    run = starts.cumsum(0) - 1
    runs = batch * tiles + step.seq_lens.shape[0]
    far = step.table.shape[1] * size
    low = torch.full((runs,), far, device=device).scatter_reduce_(0, run, torch.where(last < 0, far, first), "amin")
    high = torch.full((runs,), -1, device=device).scatter_reduce_(0, run, last, "amax")
    tile_of = torch.zeros(runs, dtype=torch.int64, device=device).scatter_(0, run, tile)
    request_of = torch.zeros(runs, dtype=torch.int64, device=device).scatter_(0, run, request)
    entry = torch.arange(step.table.shape[1], device=device)
    read = (entry >= (low // size)[:, None]) | (entry * size < step.spec.sink_len)
    read &= entry * size <= high[:, None]
    block = step.table[request_of].long()
    read &= (block > 0) & (block < step.pages.num_blocks)
    start = torch.where(read, block, 0) * page
    reached = torch.zeros(batch * tiles * slot_tiles, dtype=torch.int32, device=device)
    for ahead in range(-(-size // SLOT_TILE) + 1):
        slot_tile = (start // SLOT_TILE + ahead).minimum((start + size - 1) // SLOT_TILE)
        reached.scatter_add_(0, (tile_of[:, None] * slot_tiles + slot_tile).flatten(), read.flatten().int())
    return (reached > 0).reshape(batch, tiles, slot_tiles)


def main() -> None:
    """Compute three requests of a step, in their first tokens, later, and decoding, in both ways."""
    torch.manual_seed(0)
    spec = SlidingWindowSpec(block_size=16, num_kv_heads=2, head_size=16, dtype=torch.float32, sliding_window=24)
    cache = torch.randn(16, 2, 16, 2, 16)
    table = torch.tensor([[4, 2, 0], [9, 1, 7], [3, 8, 5]], dtype=torch.int32)
    starts, lengths = torch.tensor([0, 20, 33, 34]), torch.tensor([20, 45, 40])
    step = (torch.randn(34, 4, 16), cache, spec, table, starts, lengths)
    difference = (flex_paged_attention(*step) - paged_attention(*step)).abs().max()
    print(f"flex attention differs from the reference by at most {difference:.0e}")
    if not difference < 1e-5:
        raise SystemExit("that is more than rounding")


if __name__ == "__main__":
    main()
