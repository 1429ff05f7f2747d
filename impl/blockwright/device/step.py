"""The arguments of one step's attention, checked together, and the positions that each request reads by them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch

from blockwright.device.operands import (
    FLOATS,
    IDS,
    first_read,
    on_host,
    require_apart,
    require_bound,
    require_scale,
    require_tensor,
    require_written,
)
from blockwright.device.paged import KVPages, pages_of, require_spec
from blockwright.device.slots import check_blocks
from blockwright.errors import InvalidArgumentError
from blockwright.kinds import AttentionSpec, KVCacheSpec


@dataclass(frozen=True, slots=True)
class Step:
    """The checked arguments of one call of `paged_attention`, T tokens of R requests.

    Attributes:
        query: (T, heads, head_size).
        pages: the keys and values. spec: their kind of layer.
        table: int (R, entries), block ids. starts: int (R + 1,), where each request's tokens begin.
        seq_lens, encoder_lens: int (R,), tokens to read; the latter for cross-attention alone.
        scale: of the scores.
    """

    query: torch.Tensor
    pages: KVPages
    spec: AttentionSpec
    table: torch.Tensor
    starts: torch.Tensor
    seq_lens: torch.Tensor
    encoder_lens: torch.Tensor | None
    scale: float


def checked_step(
    query: torch.Tensor,
    cache: torch.Tensor | KVPages,
    spec: KVCacheSpec,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float | None,
    encoder_lens: torch.Tensor | None,
    max_query_len: int | None,
    max_seq_len: int | None,
    check: bool,
) -> Step:
    require_bound("max_query_len", max_query_len)
    require_bound("max_seq_len", max_seq_len)
    pages = pages_of(cache)
    spec, device = require_spec(spec, pages), pages.keys.device
    query = require_tensor("query", query, ("tokens", "num_heads", spec.head_size), FLOATS, device)
    if query.shape[1] % spec.num_kv_heads or not query.shape[1]:
        raise InvalidArgumentError(
            f"query has {query.shape[1]} heads and the cache {spec.num_kv_heads}; pass a multiple of them"
        )
    starts = require_tensor("query_start_loc", query_start_loc, ("requests + 1",), IDS, device)
    if not starts.shape[0]:
        raise InvalidArgumentError("query_start_loc is empty; pass 0 and then where each request's tokens end")
    requests = starts.shape[0] - 1
    seq_lens = require_tensor("seq_lens", seq_lens, (requests,), IDS, device)
    table = require_tensor("block_table", block_table, ("requests", "entries"), IDS, device)
    if table.shape[0] < requests:
        raise InvalidArgumentError(f"block_table has {table.shape[0]} rows for {requests} requests; pass a row of each")
    if spec.reads_encoder:
        encoder_lens = require_tensor("encoder_lens", encoder_lens, (requests,), IDS, device)
    else:
        encoder_lens = None
    if scale is None and spec.kv_lora_rank:
        raise InvalidArgumentError(
            "scale: of latent attention it is (qk_nope_head_dim + qk_rope_head_dim) ** -0.5, which the cache does not "
            "show; pass it"
        )
    scale = spec.head_size**-0.5 if scale is None else require_scale(scale)
    step = Step(query, pages, spec, table[:requests], starts, seq_lens, encoder_lens, scale)
    if on_host(starts, check):
        _check_lengths(step, max_query_len, max_seq_len)
        _check_table(step)
    return step


def require_out(out: torch.Tensor, step: Step) -> None:
    """Check that the result of a step may be written to `out`.

    Raises:
        InvalidArgumentError: another dtype or device than the query's, or shape than the result's, memory that is read,
            or memory that two elements share.
    """
    require_tensor("out", out, (*step.query.shape[:2], step.spec.value_size), (step.query.dtype,), step.query.device)
    require_written("out", out)
    require_apart("query", out, step.query)
    for part in step.pages.tensors:
        require_apart("cache", out, part)


def _check_lengths(step: Step, max_query_len: int | None, max_seq_len: int | None) -> None:
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
    keys = step.seq_lens if step.encoder_lens is None else step.encoder_lens
    for name, bound, most in (
        ("max_query_len", max_query_len, max(counts, default=0)),
        ("max_seq_len", max_seq_len, max(keys.tolist(), default=0)),
    ):
        if bound is not None and most > bound:
            raise InvalidArgumentError(f"{name}={bound}, and a request has {most}; on a GPU the rest would be left out")


def read_spans(step: Step) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (first position read, except sinks, the one after the last) of each request's step.

    Equal where nothing is read.
    """
    counts = step.starts.diff()
    reads = (counts > 0) & (step.seq_lens > 0)
    if step.encoder_lens is not None:
        stops = step.encoder_lens.long() * reads
        return torch.zeros_like(stops), stops
    lengths = step.seq_lens.long()
    return first_read(step.spec, (lengths - counts).clamp(min=0)) * reads, lengths * reads


def _check_table(step: Step) -> None:
    low, high = read_spans(step)
    if not low.numel():
        return
    block_size, width = step.pages.block_size, step.table.shape[1]
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
    # Requests with fewer entries than the longest would index behind the table; `read` leaves those out.
    blocks = step.table.gather(1, entries.clamp(max=width - 1))
    check_blocks("block_table", blocks, first, read, step.pages)
    # Sinks lie before the span that a window reads, so their entries are checked apart.
    if heads := min(-(-step.spec.sink_len // block_size), width):
        read = torch.arange(heads, device=low.device) < last[:, None]
        check_blocks("block_table", step.table[:, :heads], torch.zeros_like(first), read, step.pages)
