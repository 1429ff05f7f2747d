"""Attention over a paged cache, in plain torch: the reference of what each kind of layer reads.

The cache of a layer is (num_blocks, 2, block_size, num_kv_heads, head_size): keys, then values, of any strides, so that
it may be a view of padded pages. A table row holds the block of each run of `block_size` positions::

    position p of a request  ->  block  row[p // block_size], place  p % block_size
    its slot                 ->  block * block_size + p % block_size

The token at position q of a step reads, itself included:

| kind | positions |
|---|---|
| full | 0 .. q |
| sliding window W | max(0, q-W+1) .. q |
| chunked local C | floor(q/C)*C .. q |
| cross | all of the encoder's |

Nothing else is touched: a slot that no token of a request's step reads may hold anything, NaN included, and so may the
null block. What one token of a step reads is not kept from the other tokens of the same request's step, should it be
NaN: softmax gives it weight 0, and 0 * NaN is NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch.nn.functional import scaled_dot_product_attention

from blockwright.device.operands import (
    FLOATS,
    IDS,
    SMALL_FLOATS,
    as_bytes,
    first_read,
    on_host,
    require_cache,
    require_spec,
    require_tensor,
    stored,
)
from blockwright.errors import BlockError, InvalidArgumentError
from blockwright.kinds import AttentionSpec, ChunkedLocalAttentionSpec, CrossAttentionSpec, SlidingWindowSpec

# Keys of one batch of gathered requests, in elements: what the scratch memory is bounded by (or by one request).
SCRATCH_ELEMENTS = 16 << 20

# Query tokens of one request that are computed at once. Smaller, and windows are gathered more often; larger, and the
# mask grows and more of it is False.
QUERY_TILE = 256

# A step of at most so many tokens per request is one padded batch on a GPU if the host knows its lengths.
DECODE_QUERIES = 16


def write_kv(
    cache: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slot_mapping: torch.Tensor, *, check: bool = False
) -> None:
    """Write the keys and values of a step's tokens to their slots.

    >>> cache = torch.zeros(3, 2, 2, 1, 1)
    >>> write_kv(cache, torch.ones(2, 1, 1), torch.full((2, 1, 1), 2.0), torch.tensor([5, -1]))
    >>> cache[2].flatten().tolist()
    [0.0, 1.0, 0.0, 2.0]

    O(tokens * num_kv_heads * head_size), and on the CPU O(tokens log tokens) for the checks. The host does not wait for
    a GPU.

    Args:
        cache: (num_blocks, 2, block_size, num_kv_heads, head_size), any strides, any floating-point dtype.
        keys: (tokens, num_kv_heads, head_size), of any floating-point dtype; rounded to the cache's (float8 saturates).
        values: as `keys`.
        slot_mapping: (tokens,), int64 or int32; -1 for a token that is not written.
        check: check the slots on a GPU too; the host waits for them.

    Raises:
        InvalidArgumentError: shapes, dtypes or devices are not as described; nothing is written.
        BlockError: a slot in the null block, beyond the cache, or of two tokens; nothing is written.
    """
    cache = require_cache(cache)
    rows = ("tokens", *cache.shape[3:])
    keys = require_tensor("keys", keys, rows, FLOATS + SMALL_FLOATS, cache.device)
    values = require_tensor("values", values, (keys.shape[0], *rows[1:]), FLOATS + SMALL_FLOATS, cache.device)
    slots = require_tensor("slot_mapping", slot_mapping, (keys.shape[0],), IDS, cache.device)
    checked, block_size = on_host(slots, check), cache.shape[2]
    skips = _check_slots(slots, cache) if checked else bool(cache.shape[0])
    with torch.inference_mode():
        used = slots >= 0
        if skips and checked:
            keys, values, slots = keys[used], values[used], slots[used]
        elif skips:
            slots = slots.clamp(min=0)  # the null block's first slot, which gets what it holds
        places = (slots // block_size, slots % block_size)
        for kept, rows_new in ((cache[:, 0], keys), (cache[:, 1], values)):
            words, new = as_bytes(kept), as_bytes(stored(rows_new, cache.dtype))
            if skips and not checked:
                new = torch.where(used[:, None, None], new, words[0, 0])
            words.index_put_(places, new)


def _check_slots(slots: torch.Tensor, cache: torch.Tensor) -> bool:
    """Check the slots of `write_kv`, and return True if any token is to be skipped."""
    if not slots.numel():
        return False
    block_size, num_slots = cache.shape[2], cache.shape[0] * cache.shape[2]
    ordered = slots.sort().values
    low, high = int(ordered[0]), int(ordered[-1])
    if low < -1 or high >= num_slots:
        raise BlockError(
            f"slot_mapping: slot {low if low < -1 else high} is none of the cache's {num_slots}; pass slots of its "
            f"{cache.shape[0]} blocks, or -1 for a token that is not written"
        )
    if low < block_size:
        first = int(torch.searchsorted(ordered, 0))
        if first < ordered.numel() and int(ordered[first]) < block_size:
            raise BlockError(
                f"slot_mapping: slot {int(ordered[first])} lies in the null block, which holds no token; "
                "give the request its slots before the step, or pass -1"
            )
    same = (ordered[1:] == ordered[:-1]) & (ordered[1:] >= 0)
    if bool(same.any()):
        slot = int(ordered[1:][same][0])
        raise BlockError(f"slot_mapping: slot {slot} is written by two tokens; each slot holds one")
    return low < 0


def gather_kv(
    cache: torch.Tensor, block_ids: torch.Tensor | Sequence[int], start: int, stop: int, *, check: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys and values of positions start..stop-1 of one table row.

    >>> cache = torch.arange(12.0).reshape(3, 2, 2, 1, 1)
    >>> gather_kv(cache, [2, 1], 1, 3)[0].flatten().tolist()
    [9.0, 4.0]

    O((stop - start) * num_kv_heads * head_size). Only those positions' slots are read.

    Args:
        cache: as for `write_kv`.
        block_ids: one row of a block table: (width,) int32 or int64, or a sequence of ids.
        start: first position.
        stop: the one after the last.
        check: check the ids on a GPU too; the host waits for them.

    Returns:
        Keys and values, each (stop - start, num_kv_heads, head_size), of the cache's dtype, in new memory.

    Raises:
        InvalidArgumentError: shapes, dtypes or devices are not as described, or positions that the row does not cover.
        BlockError: one of the positions lies in the null block, or in none of the cache's.
    """
    cache = require_cache(cache)
    if not isinstance(block_ids, torch.Tensor):
        block_ids = torch.tensor(list(block_ids), dtype=torch.int64, device=cache.device)
    row = require_tensor("block_ids", block_ids, ("entries",), IDS, cache.device)
    block_size = cache.shape[2]
    if not 0 <= start <= stop <= row.shape[0] * block_size:
        raise InvalidArgumentError(
            f"start={start}, stop={stop}: block_ids has {row.shape[0]} entries of {block_size} positions; "
            "pass 0 <= start <= stop within them"
        )
    if on_host(row, check):
        entries = row[start // block_size : -(-stop // block_size)][None] if stop > start else row[None, :0]
        first = torch.tensor([start // block_size], device=row.device)
        _check_blocks("block_ids", entries, first, torch.ones_like(entries, dtype=torch.bool), cache)
    positions = torch.arange(start, stop, device=cache.device)
    keys, values = _gathered(cache, row[positions // block_size], positions % block_size, cache.dtype)
    return keys, values


def _gathered(
    cache: torch.Tensor, blocks: torch.Tensor, places: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values of these slots, in `dtype`: each of the shape of `blocks`, and (num_kv_heads, size)."""
    words = as_bytes(cache)
    keys, values = words[:, 0][blocks, places], words[:, 1][blocks, places]
    return keys.view(cache.dtype).to(dtype), values.view(cache.dtype).to(dtype)


def _check_blocks(
    name: str, entries: torch.Tensor, first: torch.Tensor, read: torch.Tensor, cache: torch.Tensor
) -> None:
    """Check that `entries` (requests, n), which begin with entry `first` of each row, are blocks where `read`."""
    wrong = read & ((entries <= 0) | (entries >= cache.shape[0]))
    if not bool(wrong.any()):
        return
    request, place = wrong.nonzero()[0].tolist()
    block, entry = int(entries[request, place]), int(first[request]) + place
    if block:
        raise BlockError(
            f"{name}: entry {entry} of request {request} is block {block}, and the cache has {cache.shape[0]}; "
            "pass the table of this cache's group"
        )
    raise BlockError(
        f"{name}: entry {entry} of request {request} is the null block, and positions from {entry * cache.shape[2]} "
        "are read there; give the request its slots before the step, and compute nothing below what was trimmed"
    )


@dataclass(frozen=True, slots=True)
class Step:
    """The checked arguments of one call of `paged_attention`."""

    query: torch.Tensor
    cache: torch.Tensor
    spec: AttentionSpec
    table: torch.Tensor
    starts: torch.Tensor
    seq_lens: torch.Tensor
    encoder_lens: torch.Tensor | None
    scale: float


def paged_attention(
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
    max_seq_len: int | None = None,
    out: torch.Tensor | None = None,
    check: bool = False,
) -> torch.Tensor:
    """Attend from the tokens of a step to what their kind reads of a paged cache: prefill, decode, or both mixed.

    Request i brings the tokens ``query_start_loc[i] .. query_start_loc[i+1] - 1`` of `query`; they are the last ones of
    its ``seq_lens[i]`` tokens, whose keys and values must be in the cache (`write_kv`), their own included. Query heads
    share key heads in equal runs (grouped queries). Computed in the query's dtype.

    Requests of length 0 and tokens behind the last request are padding: nothing is read, and their rows are zeros.

    O(sum over requests of tokens * positions read * heads * head_size). The scratch memory holds the gathered keys and
    values of one batch of requests at a time (`SCRATCH_ELEMENTS`, or one request).

    On a GPU the host waits for the lengths, unless it knows them and the step decodes (`max_query_len` of at most
    `DECODE_QUERIES` and `max_seq_len` both given): then it only queues work, all in one padded batch, as a CUDA graph
    demands.

    Args:
        query: (tokens, num_heads, head_size); num_heads a multiple of num_kv_heads.
        cache: (num_blocks, 2, block_size, num_kv_heads, head_size), any strides, any floating-point dtype.
        spec: what the layer declares: full, sliding window, chunked local or cross attention.
        block_table: (rows, width), int32 or int64; row i is request i; more rows than requests are allowed. Entries
            that no token of the step reads may be null or stale.
        query_start_loc: (requests + 1,), int32 or int64: 0, and then where each request's tokens end.
        seq_lens: (requests,), int32 or int64: tokens computed before the step, and the step's.
        scale: of the scores; None for head_size ** -0.5.
        encoder_lens: (requests,), for cross attention: how many of the encoder's tokens lie in the table's blocks.
        max_query_len: a bound of the tokens of one request; used on a GPU only, and not checked there.
        max_seq_len: a bound of `seq_lens` (of `encoder_lens` for cross attention); as `max_query_len`.
        out: where to write the result, of the query's shape, dtype and device; None for new memory.
        check: check lengths and block ids on a GPU too; the host waits for them.

    Returns:
        (tokens, num_heads, head_size), of the query's dtype; `out` if that was given.

    Raises:
        InvalidArgumentError: shapes, dtypes, devices or lengths are not as described; nothing is written.
        BlockError: a position that is read lies in the null block, or in none of the cache's; nothing is written.
    """
    step = checked_step(query, cache, spec, block_table, query_start_loc, seq_lens, scale, encoder_lens, check)
    if out is not None:
        require_tensor("out", out, tuple(query.shape), (query.dtype,), query.device)
    waits = max_query_len is None or max_seq_len is None or max_query_len > DECODE_QUERIES
    if waits or on_host(step.starts, check=False):
        result = torch.zeros_like(query) if out is None else out.zero_()
        for batch in _batches(step):
            rows, attended = _attend(step, batch)
            result[rows] = attended
        return result
    result = _attend_padded(step, max_query_len or 0, max_seq_len or 0)
    return result if out is None else out.copy_(result)


def checked_step(
    query: torch.Tensor,
    cache: torch.Tensor,
    spec: AttentionSpec,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float | None,
    encoder_lens: torch.Tensor | None,
    check: bool,
) -> Step:
    """Check the arguments of `paged_attention`: shapes, dtypes and devices, and values where `on_host` says so."""
    cache = require_cache(cache)
    spec = require_spec(spec, cache)
    query = require_tensor("query", query, ("tokens", "num_heads", spec.head_size), FLOATS, cache.device)
    if query.shape[1] % spec.num_kv_heads or not query.shape[1]:
        raise InvalidArgumentError(
            f"query has {query.shape[1]} heads and the cache {spec.num_kv_heads}; pass a multiple of them"
        )
    starts = require_tensor("query_start_loc", query_start_loc, ("requests + 1",), IDS, cache.device)
    if not starts.shape[0]:
        raise InvalidArgumentError("query_start_loc is empty; pass 0 and then where each request's tokens end")
    requests = starts.shape[0] - 1
    seq_lens = require_tensor("seq_lens", seq_lens, (requests,), IDS, cache.device)
    table = require_tensor("block_table", block_table, ("requests", "entries"), IDS, cache.device)
    if table.shape[0] < requests:
        raise InvalidArgumentError(f"block_table has {table.shape[0]} rows for {requests} requests; pass a row of each")
    if isinstance(spec, CrossAttentionSpec):
        encoder_lens = require_tensor("encoder_lens", encoder_lens, (requests,), IDS, cache.device)
    else:
        encoder_lens = None
    scale = spec.head_size**-0.5 if scale is None else scale
    step = Step(query, cache, spec, table[:requests], starts, seq_lens, encoder_lens, scale)
    if on_host(starts, check):
        _check_lengths(step)
        _check_table(step)
    return step


def _check_lengths(step: Step) -> None:
    """Check that each request's tokens are some of `query`, and the last of its sequence."""
    starts = step.starts.tolist()
    counts = [stop - start for start, stop in pairwise(starts)]
    if starts[0] != 0 or min(counts, default=0) < 0 or starts[-1] > step.query.shape[0]:
        raise InvalidArgumentError(
            f"query_start_loc must rise from 0 to at most the query's {step.query.shape[0]} tokens, not {starts}"
        )
    for request, (count, length) in enumerate(zip(counts, step.seq_lens.tolist(), strict=True)):
        if length < 0 or 0 < length < count:
            raise InvalidArgumentError(
                f"seq_lens: request {request} has {count} tokens in the step and {length} in all; count the step's too"
            )
    if step.encoder_lens is not None and step.encoder_lens.numel() and int(step.encoder_lens.min()) < 0:
        raise InvalidArgumentError("encoder_lens holds a negative length; pass how many tokens the encoder made, or 0")


def read_spans(step: Step) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (first position read, the one after the last) of each request's step; equal where nothing is read."""
    counts = step.starts.diff()
    reads = (counts > 0) & (step.seq_lens > 0)
    if step.encoder_lens is not None:
        stops = step.encoder_lens.long() * reads
        return torch.zeros_like(stops), stops
    lengths = step.seq_lens.long()
    return first_read(step.spec, (lengths - counts).clamp(min=0)) * reads, lengths * reads


def _check_table(step: Step) -> None:
    """Check that every position that is read lies in a block of the cache."""
    low, high = read_spans(step)
    if not low.numel():
        return
    block_size, width = step.cache.shape[2], step.table.shape[1]
    longest = int(high.max())
    if longest > width * block_size:
        which = "seq_lens" if step.encoder_lens is None else "encoder_lens"
        raise InvalidArgumentError(
            f"{which}: request {int(high.argmax())} has {longest} positions, and block_table has room for "
            f"{width * block_size}; pass the whole table"
        )
    first, last = low // block_size, -(-high // block_size)
    entries = first[:, None] + torch.arange(int((last - first).max()), device=low.device)
    if not entries.numel():
        return
    read = entries < last[:, None]
    blocks = step.table.gather(1, entries.clamp(max=width - 1))
    _check_blocks("block_table", blocks, first, read, step.cache)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Runs of query tokens, each of one request, that are computed together: one entry of each tensor per run.

    Attributes:
        request: its request.
        row: the first token's row of `query`.
        count: tokens; at most `most`.
        position: the first token's position.
        low: first position read by any of them.
        high: the one after the last; above `low` by at most `span`.
    """

    request: torch.Tensor
    row: torch.Tensor
    count: torch.Tensor
    position: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor
    most: int
    span: int
    even: bool


def _batches(step: Step) -> Iterator[_Batch]:
    """Cut the step's tokens into batches of runs alike in length, so that little is padded. Reads lengths on the host.

    A long prefill is cut into tiles of `QUERY_TILE` tokens, each of which reads only its own span.
    """
    starts, lengths = step.starts.tolist(), step.seq_lens.tolist()
    encoder = None if step.encoder_lens is None else step.encoder_lens.tolist()
    runs: list[tuple[int, int, int, int, int]] = []  # (count, request, row, position, high)
    for request, length in enumerate(lengths):
        row, stop = starts[request], starts[request + 1]
        if length == 0 or (encoder is not None and encoder[request] == 0):
            continue
        position = length - (stop - row)
        while row < stop:
            count = min(QUERY_TILE, stop - row)
            high = position + count if encoder is None else encoder[request]
            runs.append((count, request, row, position, high))
            row, position = row + count, position + count
    if not runs:
        return
    table = torch.tensor(runs)
    low = first_read(step.spec, table[:, 3])
    spans = (table[:, 4] - low).tolist()
    order = sorted(range(len(runs)), key=lambda run: (runs[run][0], spans[run]), reverse=True)
    width = step.cache.shape[3] * step.cache.shape[4]
    done = 0
    while done < len(order):
        most, span = runs[order[done]][0], spans[order[done]]
        room = max(1, SCRATCH_ELEMENTS // max(1, span * width))
        stop = done + 1
        while (
            stop < len(order)
            and stop - done < room
            and 2 * runs[order[stop]][0] >= most
            and 2 * spans[order[stop]] >= span
        ):
            stop += 1
        chosen = order[done:stop]
        span = max(spans[run] for run in chosen)
        even = most == 1 and all(spans[run] == span for run in chosen)
        count, request, row, position, high = table[chosen].T.to(step.query.device)
        yield _Batch(request, row, count, position, low[chosen].to(row.device), high, most, span, even)
        done = stop


def _attend(step: Step, batch: _Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows of the result, and what belongs there: (runs, most) and (runs, most, num_heads, head_size).

    Where a run is shorter than the longest, its last token stands in, for its own row; beyond a run's span, its last
    position, masked: so all that is gathered is something that the run reads.
    """
    device, block_size = step.query.device, step.cache.shape[2]
    token = torch.arange(batch.most, device=device).minimum(batch.count[:, None] - 1)
    position = batch.low[:, None] + torch.arange(batch.span, device=device)
    reached = position.minimum(batch.high[:, None] - 1)
    blocks = step.table[batch.request[:, None], reached // block_size]
    keys, values = _gathered(step.cache, blocks, reached % block_size, step.query.dtype)
    mask = None
    if not batch.even:
        mask = _mask(step, batch.position[:, None] + token, position, batch.high)
    rows = batch.row[:, None] + token
    return rows, _softmax(step.query[rows], keys, values, mask, step.scale)


def _mask(step: Step, query: torch.Tensor, position: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Return who reads what, (runs, tokens, span), from positions of both: (runs, tokens) and (runs, span)."""
    if step.encoder_lens is not None:
        return (position < high[:, None])[:, None, :].expand(-1, query.shape[1], -1)
    keys = position[:, None, :]
    return (keys >= first_read(step.spec, query)[:, :, None]) & (keys <= query[:, :, None])


def _softmax(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Attend from (runs, tokens, heads, size) to (runs, span, kv_heads, size).

    The query heads that share a key head stand as further tokens, so that no key is copied for them.
    """
    runs, tokens, heads, size = query.shape
    shared = heads // keys.shape[2]
    folded = query.unflatten(2, (-1, shared)).permute(0, 2, 1, 3, 4).reshape(runs, -1, tokens * shared, size)
    if mask is not None:
        mask = (mask if tokens == 1 else mask.repeat_interleave(shared, dim=1))[:, None]
    attended: torch.Tensor = scaled_dot_product_attention(
        folded, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=mask, scale=scale
    )
    return attended.reshape(runs, -1, tokens, shared, size).permute(0, 2, 1, 3, 4).reshape(query.shape)


def _attend_padded(step: Step, max_query_len: int, max_seq_len: int) -> torch.Tensor:
    """Attend in one padded batch, without a look at any value: shapes follow from the bounds alone."""
    device, requests = step.query.device, step.seq_lens.shape[0]
    tokens = step.query.shape[0]
    if not tokens or not requests or not max_query_len or not max_seq_len:
        return torch.zeros_like(step.query)
    low, high = read_spans(step)
    counts = step.starts.diff().long()
    span = _longest_span(step.spec, max_query_len, min(max_seq_len, step.table.shape[1] * step.cache.shape[2]))
    token = torch.arange(max_query_len, device=device)
    query = step.query[(step.starts[:-1, None] + token).clamp(max=tokens - 1)]
    position = low[:, None] + torch.arange(span, device=device)
    reached = position.minimum(high[:, None] - 1).clamp(min=0)
    blocks = step.table.gather(1, reached // step.cache.shape[2]).clamp(0, step.cache.shape[0] - 1)
    keys, values = _gathered(step.cache, blocks, reached % step.cache.shape[2], step.query.dtype)
    mask = _mask(step, (step.seq_lens - counts)[:, None] + token, position, high)
    attended = _softmax(query, keys, values, mask, step.scale)
    # Back to one row per token. A token reads something if its request does and it is one of its tokens.
    row = torch.arange(tokens, device=device)
    request = torch.searchsorted(step.starts, row, right=True).sub(1).clamp(max=requests - 1)
    place = row - step.starts[request]
    reads = (place < counts[request]) & (high > low)[request]
    result = attended[request, place.clamp(max=max_query_len - 1)]
    return torch.where(reads[:, None, None], result, torch.zeros_like(result))


def _longest_span(spec: AttentionSpec, queries: int, length: int) -> int:
    """Return the most positions that `queries` consecutive tokens of a sequence of at most `length` read together."""
    if isinstance(spec, SlidingWindowSpec):
        return min(length, spec.sliding_window + queries - 1)
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return min(length, spec.attention_chunk_size + queries - 1)
    return length
