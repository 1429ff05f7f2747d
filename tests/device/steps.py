"""Random steps over caches full of NaN, and what attention and states are by definition: loops over single positions.

Nothing here uses `blockwright.device`. All references are computed in float64 from what the cache holds.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from blockwright.kinds import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    SlidingWindowSpec,
)

LAYOUTS = ("plain", "padded pages", "keys before values", "heads outside", "some of the heads")


def spec_of(kind: str, reach: int, **fields: object) -> AttentionSpec:
    """A layer's declaration; `reach` is the window, or how many blocks a chunk has; half of it are sinks."""
    if kind == "sinks":
        return SlidingWindowSpec(**fields, sliding_window=reach, sink_len=(reach + 1) // 2)  # type: ignore[arg-type]
    if kind == "sliding":
        return SlidingWindowSpec(**fields, sliding_window=reach)  # type: ignore[arg-type]
    if kind == "chunked":
        return ChunkedLocalAttentionSpec(**fields, attention_chunk_size=reach * int(fields["block_size"]))  # type: ignore[arg-type, call-overload]
    return {"full": FullAttentionSpec, "cross": CrossAttentionSpec}[kind](**fields)  # type: ignore[arg-type]


def read_by(spec: AttentionSpec, position: int, encoder_len: int = 0) -> Sequence[int]:
    if isinstance(spec, CrossAttentionSpec):
        return range(encoder_len)
    if isinstance(spec, SlidingWindowSpec):
        first = max(0, position - spec.sliding_window + 1)
        return [*range(min(spec.sink_len, first)), *range(first, position + 1)]
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return range(position // spec.attention_chunk_size * spec.attention_chunk_size, position + 1)
    return range(position + 1)


def empty_cache(spec: AttentionSpec, num_blocks: int, layout: str = "plain") -> tuple[torch.Tensor, torch.Tensor]:
    """All the memory, NaN, and the cache in it."""
    dtype = spec.dtype
    assert isinstance(dtype, torch.dtype)
    blocks, size, heads, width = num_blocks, spec.block_size, spec.num_kv_heads, spec.head_size
    page = 2 * size * heads * width
    if layout == "padded pages":
        memory = torch.empty(blocks, page + 3 * width, dtype=dtype)
        view = memory[:, width : width + page].unflatten(1, (2, size, heads, width))
    elif layout == "keys before values":
        memory = torch.empty(2, blocks, size, heads, width, dtype=dtype)
        view = memory.transpose(0, 1)
    elif layout == "heads outside":
        memory = torch.empty(blocks, 2, heads, size, width, dtype=dtype)
        view = memory.transpose(2, 3)
    elif layout == "some of the heads":
        memory = torch.empty(blocks, 2, size, heads + 2, width, dtype=dtype)
        view = memory[:, :, :, 1:-1]
    else:
        memory = torch.empty(blocks, 2, size, heads, width, dtype=dtype)
        view = memory
    memory.copy_(torch.tensor(math.nan).expand(memory.shape))
    return memory, view


@dataclass(frozen=True)
class Step:
    """The arguments of `paged_attention`, and each request's keys and values where it reads them, by position."""

    query: torch.Tensor
    cache: torch.Tensor
    spec: AttentionSpec
    table: torch.Tensor
    starts: torch.Tensor
    seq_lens: torch.Tensor
    encoder_lens: torch.Tensor
    kept: list[dict[int, tuple[torch.Tensor, torch.Tensor]]]


def random_step(
    spec: AttentionSpec,
    requests: list[tuple[int, int]],
    *,
    num_heads: int,
    dtype: torch.dtype,
    layout: str = "plain",
    padding: int = 0,
    poison: float = math.nan,
    seed: int = 0,
) -> Step:
    """Draw a step of requests with (computed, new) tokens; a request of (-1, n) is padding with n tokens.

    All memory that no token reads is `poison`, the rest of a block that is read in part included; table entries that
    no token reads are null, or name a block of NaN. Encoders are as long as (computed, new) say in all, backwards.
    """
    draw = random.Random(seed)
    torch.manual_seed(seed)
    lengths = [max(0, computed + new) if computed >= 0 else 0 for computed, new in requests]
    encoder_lens = [draw.randint(0, 2 * length) for length in lengths]
    longest = max([*lengths, *encoder_lens, 1])
    width = -(-longest // spec.block_size) + draw.randint(0, 2)
    num_blocks = width * len(requests) + 3
    memory, cache = empty_cache(spec, num_blocks, layout)
    memory.copy_(torch.tensor(poison).expand(memory.shape))
    free = draw.sample(range(2, num_blocks), num_blocks - 2)  # block 1 stays poison
    table = torch.tensor(
        [[draw.choice((0, 1)) for _ in range(width)] for _ in range(len(requests) + draw.randint(0, 2))]
    )
    table = table.reshape(-1, width).to(draw.choice((torch.int32, torch.int64)))
    kept: list[dict[int, tuple[torch.Tensor, torch.Tensor]]] = []
    for row, ((computed, _), length, encoder_len) in enumerate(zip(requests, lengths, encoder_lens, strict=True)):
        read = {p for q in range(computed, length) for p in read_by(spec, q, encoder_len)} if length else set()
        mine: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for position in sorted(read):
            entry, place = divmod(position, spec.block_size)
            if table[row, entry] < 2:
                table[row, entry] = free.pop()
            block = int(table[row, entry])
            cache[block, :, place] = torch.randn(2, spec.num_kv_heads, spec.head_size).to(cache.dtype)
            mine[position] = (cache[block, 0, place].double(), cache[block, 1, place].double())
        kept.append(mine)
    counts = [new for _, new in requests]
    ids = draw.choice((torch.int32, torch.int64))
    return Step(
        torch.randn(sum(counts) + padding, num_heads, spec.head_size).to(dtype),
        cache,
        spec,
        table,
        torch.tensor([0, *counts]).cumsum(0).to(ids),
        torch.tensor(lengths).to(ids),
        torch.tensor(encoder_lens).to(ids),
        kept,
    )


def attention_of(step: Step, scale: float | None = None) -> torch.Tensor:
    """What each token attends to, one position and one head at a time, in float64."""
    scale = 1 / math.sqrt(step.spec.head_size) if scale is None else scale
    result = torch.zeros(step.query.shape, dtype=torch.float64)
    shared = step.query.shape[1] // step.spec.num_kv_heads
    starts = step.starts.tolist()
    for request, (length, encoder_len) in enumerate(
        zip(step.seq_lens.tolist(), step.encoder_lens.tolist(), strict=True)
    ):
        count = starts[request + 1] - starts[request]
        for place in range(count if length else 0):
            row = starts[request] + place
            read = read_by(step.spec, length - count + place, encoder_len)
            for head in range(step.query.shape[1]):
                query = step.query[row, head].double()
                pairs = [(k[head // shared], v[head // shared]) for k, v in (step.kept[request][p] for p in read)]
                scores = [float(query @ key) * scale for key, _ in pairs]
                weights = [math.exp(score - max(scores)) for score in scores]
                for weight, (_, value) in zip(weights, pairs, strict=True):
                    result[row, head] += weight / sum(weights) * value
    return result


@dataclass(frozen=True)
class StateStep:
    """The arguments of `selective_scan` and `causal_conv`."""

    x: torch.Tensor
    dt: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    d: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor
    states: torch.Tensor
    inputs: torch.Tensor
    reads: torch.Tensor
    writes: torch.Tensor
    starts: torch.Tensor
    drafts: torch.Tensor

    def twin(self) -> "StateStep":
        return replace(self, states=self.states.clone(), inputs=self.inputs.clone())


def random_state_step(
    requests: list[tuple[int, int, bool]],
    *,
    channels: int,
    size: int,
    width: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    padding: int = 0,
    seed: int = 0,
) -> StateStep:
    """Draw a step of requests of (tokens, drafts among them, whether it begins from a state); all else is NaN."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    tokens = sum(count for count, _, _ in requests) + padding
    columns = 1 + max([drafts for _, drafts, _ in requests], default=0) + draw.randint(0, 1)
    num_blocks = 1 + len(requests) * (columns + 1) + 1
    free = draw.sample(range(1, num_blocks), num_blocks - 1)
    nan = torch.tensor(math.nan)
    states = nan.expand(num_blocks, channels, size).to(cache_dtype, copy=True).contiguous()
    inputs = nan.expand(num_blocks, channels, width - 1).to(cache_dtype, copy=True).contiguous()
    reads, writes = [], []
    for count, drafts, begins in requests:
        read = free.pop() if begins and count else 0
        if read:
            states[read] = torch.randn(channels, size).to(cache_dtype)
            inputs[read] = torch.randn(channels, width - 1).to(cache_dtype)
        own = [free.pop() for _ in range(1 + drafts)] if count else []
        if own and read and draw.random() < 0.5:
            own[draw.randrange(len(own))] = read
        reads.append(read)
        writes.append(own + [0] * (columns - len(own)))
    return StateStep(
        torch.randn(tokens, channels).to(dtype),
        torch.randn(tokens, channels).to(dtype),
        torch.rand(channels, size).to(dtype),
        torch.randn(tokens, size).to(dtype),
        torch.randn(tokens, size).to(dtype),
        torch.randn(channels).to(dtype),
        torch.randn(channels, width).to(dtype),
        torch.randn(channels).to(dtype),
        states,
        inputs,
        torch.tensor(reads, dtype=torch.int32),
        torch.tensor(writes, dtype=torch.int32).reshape(len(requests), columns),
        torch.tensor([0, *(count for count, _, _ in requests)]).cumsum(0).to(torch.int32),
        torch.tensor([drafts for _, drafts, _ in requests], dtype=torch.int32),
    )


Written = dict[int, torch.Tensor]


def states_of(step: StateStep) -> tuple[torch.Tensor, Written, torch.Tensor, Written]:
    """Both recurrences token by token, in float64: outputs and written blocks of the scan, and of the convolution."""
    scanned, convolved = torch.zeros(step.x.shape).double(), torch.zeros(step.x.shape).double()
    states: Written = {}
    inputs: Written = {}
    starts = step.starts.tolist()
    for request, read in enumerate(step.reads.tolist()):
        state = step.states[read].double().clone() if read else torch.zeros(step.states.shape[1:]).double()
        past = step.inputs[read].double() if read else torch.zeros(step.inputs.shape[1:]).double()
        count = starts[request + 1] - starts[request]
        for place in range(count):
            row = starts[request] + place
            x, b, c = step.x[row].double(), step.b[row].double(), step.c[row].double()
            for channel in range(x.shape[0]):
                delta = math.log1p(math.exp(float(step.dt[row, channel])))
                for at in range(state.shape[1]):
                    decay = math.exp(-delta * float(step.a[channel, at]))
                    state[channel, at] = decay * state[channel, at] + delta * b[at] * x[channel]
            scanned[row] = state @ c + step.d.double() * x
            window = torch.cat([past, x[:, None]], dim=1)
            convolved[row] = (window * step.weight.double()).sum(1) + step.bias.double()
            past = window[:, 1:]
            after = place - (count - 1 - int(step.drafts[request]))
            if after >= 0:
                block = int(step.writes[request, after])
                states[block], inputs[block] = state.clone(), past.clone()
    return scanned, states, convolved, inputs
