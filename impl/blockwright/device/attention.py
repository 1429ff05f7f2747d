"""Attention over a paged cache, in plain torch: the reference of what each kind of layer reads.

The token at position q of a step reads, itself included:

| kind | positions |
|---|---|
| full | 0 .. q |
| sliding window W | max(0, q-W+1) .. q |
| with S sinks | also 0 .. min(S-1, q) |
| chunked local C | floor(q/C)*C .. q |
| cross | all of the encoder's |

Nothing else is touched: a slot that no token of a request's step reads may hold anything, NaN included, and so may the
null block. A NaN that one token of a step reads may reach the other tokens of the same request's step: softmax gives it
weight 0, and 0 * NaN is NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from blockwright.device.operands import first_read, on_host
from blockwright.device.paged import KVPages
from blockwright.device.step import Step, checked_step, read_spans, require_out
from blockwright.kinds import AttentionSpec, KVCacheSpec

# Keys of one batch of gathered requests, in elements: what the scratch memory is bounded by (or by one request).
SCRATCH_ELEMENTS = 16 << 20

# Query tokens of one request that are computed at once. Smaller, and windows are gathered more often; larger, and the
# mask grows and more of it is False.
QUERY_TILE = 256

# A step of at most so many tokens per request is one padded batch on a GPU if the host knows its lengths.
DECODE_QUERIES = 16


def paged_attention(
    query: torch.Tensor,
    cache: torch.Tensor | KVPages,
    spec: KVCacheSpec,
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
    `DECODE_QUERIES` and `max_seq_len` both given): then it only queues work, as a CUDA graph demands. Every request is
    padded to the bounds, so keep them near; requests are cut into batches by the bounds alone, within the same memory.

    Args:
        query: (tokens, num_heads, head_size); num_heads a multiple of num_kv_heads.
        cache: (num_blocks, 2, block_size, num_kv_heads, head_size), any strides, any floating-point dtype; or
            `KVCacheStorage.pages` of a layer, in any form. Of latent attention, a query is that of the latent and of
            the rotary part, and the result is of the latent.
        spec: the layer's kind: full, sliding window, chunked local or cross attention.
        block_table: (rows, width), int32 or int64; row i is request i; more rows than requests are allowed. Entries
            that no token of the step reads may be null or stale.
        query_start_loc: (requests + 1,), int32 or int64: 0, and then where each request's tokens end.
        seq_lens: (requests,), int32 or int64: tokens computed before the step, and the step's.
        scale: of the scores, a finite number; None for head_size ** -0.5, which latent attention does not have.
        encoder_lens: (requests,), for cross attention: how many of the encoder's tokens lie in the table's blocks.
        max_query_len: a bound of the tokens of one request; used on a GPU only, and not checked there.
        max_seq_len: a bound of `seq_lens` (of `encoder_lens` for cross attention); as `max_query_len`.
        out: where to write the result, of the query's dtype and device, with separate memory for each element; None
            for new memory.
        check: check lengths and block ids on a GPU too; the host waits for them.

    Returns:
        (tokens, num_heads, head_size_v), of the query's dtype; `out` if that was given.

    Raises:
        InvalidArgumentError: shapes, strides, dtypes, devices or lengths are not as described; nothing is written.
        BlockError: a position that is read lies in the null block, or in none of the cache's; nothing is written.
    """
    step = checked_step(
        query,
        cache,
        spec,
        block_table,
        query_start_loc,
        seq_lens,
        scale,
        encoder_lens,
        max_query_len,
        max_seq_len,
        check,
    )
    if out is not None:
        require_out(out, step)
    # Batches are cut by the lengths, which the host must wait for on a GPU; padding to bounds needs none of them.
    waits = max_query_len is None or max_seq_len is None or max_query_len > DECODE_QUERIES
    if waits or on_host(step.starts, check=False):
        result = _nothing(step) if out is None else out.zero_()
        for batch in _batches(step):
            rows, attended = _attend(step, batch)
            result[rows] = attended
        return result
    result = _attend_padded(step, max_query_len or 0, max_seq_len or 0)
    return result if out is None else out.copy_(result)


def _nothing(step: Step) -> torch.Tensor:
    return step.query.new_zeros((*step.query.shape[:2], step.spec.value_size))


@dataclass(frozen=True, slots=True)
class _Batch:
    """Runs of query tokens, each of one request, that are computed together: one entry of each tensor per run.

    Attributes:
        request: its request.
        row: the first token's row of `query`.
        count: tokens; at most `most`.
        position: the first token's position.
        low: first position read by any of them, except sinks.
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
    # Alike ones beside each other: a batch is padded to its longest, by a factor of two at most.
    order = sorted(range(len(runs)), key=lambda run: (runs[run][0], spans[run]), reverse=True)
    done = 0
    while done < len(order):
        most, span = runs[order[done]][0], spans[order[done]]
        room = _room(step, span)
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
        # Then nothing is masked, and torch may take its fastest kernel.
        even = most == 1 and not step.spec.sink_len and all(spans[run] == span for run in chosen)
        count, request, row, position, high = table[chosen].T.to(step.query.device)
        yield _Batch(request, row, count, position, low[chosen].to(row.device), high, most, span, even)
        done = stop


def _attend(step: Step, batch: _Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows of the result, and what belongs there: (runs, most) and (runs, most, num_heads, head_size).

    A run shorter than the longest is filled up with its last token, for its own row. Beyond a run's span its last
    position is gathered and masked, so that all gathered positions are ones that the run reads.
    """
    device, block_size = step.query.device, step.pages.block_size
    token = torch.arange(batch.most, device=device).minimum(batch.count[:, None] - 1)
    position = _positions(step, batch.low, batch.span)
    # A masked position is read all the same: it must be one that this run may read, whatever lies behind.
    reached = position.minimum(batch.high[:, None] - 1)
    blocks = step.table[batch.request[:, None], reached // block_size]
    keys, values = step.pages.read(blocks, reached % block_size, step.query.dtype)
    mask = None
    if not batch.even:
        mask = _mask(step, batch.position[:, None] + token, position, batch.high)
    rows = batch.row[:, None] + token
    return rows, _softmax(step.query[rows], keys, values, mask, step.scale)


def _positions(step: Step, low: torch.Tensor, span: int) -> torch.Tensor:
    """Return the positions that are gathered for each run: the sinks, and `span` from its first on, each once."""
    sinks = step.spec.sink_len
    near = low.clamp(min=sinks)[:, None] + torch.arange(span, device=low.device)
    return torch.cat([torch.arange(sinks, device=low.device).expand(low.shape[0], -1), near], 1) if sinks else near


def _mask(step: Step, query: torch.Tensor, position: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Return who reads what, (runs, tokens, span), from positions of both: (runs, tokens) and (runs, span)."""
    if step.encoder_lens is not None:
        return (position < high[:, None])[:, None, :].expand(-1, query.shape[1], -1)
    keys = position[:, None, :]
    read = keys >= first_read(step.spec, query)[:, :, None]
    if sinks := step.spec.sink_len:
        read |= keys < sinks
    return read & (keys <= query[:, :, None])


def _softmax(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Attend from (runs, tokens, heads, size) to (runs, span, kv_heads, size).

    The query heads that share a key head are treated as further tokens, so that no key is copied for them.
    """
    runs, tokens, heads, size = query.shape
    shared = heads // keys.shape[2]
    folded = query.unflatten(2, (-1, shared)).permute(0, 2, 1, 3, 4).reshape(runs, -1, tokens * shared, size)
    if mask is not None:
        mask = mask[:, None, :, None].expand(-1, -1, -1, 1 if tokens == 1 else shared, -1).flatten(2, 3)
    attended: torch.Tensor = scaled_dot_product_attention(
        folded, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=mask, scale=scale
    )
    return (
        attended.reshape(runs, -1, tokens, shared, values.shape[3])
        .permute(0, 2, 1, 3, 4)
        .reshape(runs, tokens, heads, -1)
    )


def _attend_padded(step: Step, max_query_len: int, max_seq_len: int) -> torch.Tensor:
    """Attend in padded batches, without a look at any value: shapes, and where to cut, follow from the bounds alone."""
    device, requests = step.query.device, step.seq_lens.shape[0]
    tokens = step.query.shape[0]
    if not tokens or not requests or not max_query_len or not max_seq_len:
        return _nothing(step)
    low, high = read_spans(step)
    counts = step.starts.diff().long()
    span = _longest_span(step.spec, max_query_len, min(max_seq_len, step.table.shape[1] * step.pages.block_size))
    token = torch.arange(max_query_len, device=device)
    size = step.pages.block_size
    attended = step.query.new_empty((requests, max_query_len, step.query.shape[1], step.spec.value_size))
    room = _room(step, span)
    for first in range(0, requests, room):
        part = slice(first, first + room)
        # Clamped: a row of padding reads some token, and its result is dropped below.
        query = step.query[(step.starts[:-1][part, None] + token).clamp(max=tokens - 1)]
        position = _positions(step, low[part], span)
        reached = position.minimum(high[part, None] - 1).clamp(min=0)
        blocks = step.table[part].gather(1, reached // size).clamp(0, step.pages.num_blocks - 1)
        keys, values = step.pages.read(blocks, reached % size, step.query.dtype)
        mask = _mask(step, (step.seq_lens - counts)[part, None] + token, position, high[part])
        attended[part] = _softmax(query, keys, values, mask, step.scale)
    # Back to one row per token. A token reads something if its request does and it is one of its tokens.
    row = torch.arange(tokens, device=device)
    request = torch.searchsorted(step.starts, row, right=True).sub(1).clamp(max=requests - 1)
    place = row - step.starts[request]
    reads = (place < counts[request]) & (high > low)[request]
    result = attended[request, place.clamp(max=max_query_len - 1)]
    return torch.where(reads[:, None, None], result, torch.zeros_like(result))


def _room(step: Step, span: int) -> int:
    """Return how many runs of `span` positions are gathered at once: one at least, else within `SCRATCH_ELEMENTS`."""
    span += step.spec.sink_len
    return max(1, SCRATCH_ELEMENTS // max(1, span * step.pages.num_kv_heads * step.pages.head_size))


def _longest_span(spec: AttentionSpec, queries: int, length: int) -> int:
    """Return the most positions, sinks left out, that `queries` tokens in a row of at most `length` read together."""
    span = spec.window or spec.chunk
    return min(length, span + queries - 1) if span else length
