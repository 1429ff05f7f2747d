"""Models to plan for: random layers of all kinds, and one request that an engine computes under a plan."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from blockwright import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheManager,
    KVCacheSpec,
    MambaSpec,
    Never,
    Request,
    SlidingWindowSpec,
)
from blockwright.device import KVCachePlan
from blockwright.kinds import AttentionSpec

DTYPES = ["float64", "float32", "half", "bfloat16", "fp8", "float8_e5m2", "float8_e4m3fnuz", "int8"]


@dataclass(frozen=True)
class Model:
    """Layers, and the lengths that they are planned for: the arguments of `plan_kv_cache` but for the memory."""

    layers: dict[str, KVCacheSpec]
    max_model_len: int
    options: dict[str, Any] = field(default_factory=dict)


@st.composite
def attention(draw: st.DrawFn, kind: int, caching: bool) -> KVCacheSpec:
    """One kind of attention; `kind` 0 to 3 is full, sliding, chunked, cross."""
    size = draw(st.sampled_from([1, 2, 3, 4, 8]))
    if draw(st.integers(0, 3)) == 0:
        return draw(formed(kind, caching, size))
    shape = (draw(st.integers(1, 3)), draw(st.sampled_from([1, 4, 6])), draw(st.sampled_from(DTYPES)))
    if kind == 1:
        return SlidingWindowSpec(size, *shape, draw(st.integers(1, 20)), draw(st.sampled_from([0, 0, 1, 5])))
    if kind == 2:
        return ChunkedLocalAttentionSpec(size, *shape, attention_chunk_size=size * draw(st.integers(1, 6)))
    return CrossAttentionSpec(size, *shape) if kind == 3 and not caching else FullAttentionSpec(size, *shape)


@st.composite
def formed(draw: st.DrawFn, kind: int, caching: bool, size: int = 4) -> AttentionSpec:
    """One kind of attention in any form: values of another size, latent, scaled, heads before tokens."""
    scales = draw(st.sampled_from([None, "tensor", "token", "head"]))
    dtype = draw(st.sampled_from(["fp8", "float8_e5m2"] if scales else ["half", "float32", "fp8"]))
    form: dict[str, Any] = {"scales": scales, "kv_layout": draw(st.sampled_from(["NHD", "HND"]))}
    if kind == 1:
        form |= {"sliding_window": draw(st.integers(1, 20))}
    if kind == 2:
        form |= {"attention_chunk_size": size * draw(st.integers(1, 6))}
    cross = FullAttentionSpec if caching else CrossAttentionSpec
    of: tuple[type[AttentionSpec], ...] = (FullAttentionSpec, SlidingWindowSpec, ChunkedLocalAttentionSpec, cross)
    if draw(st.booleans()) and scales != "head":
        rank = 128 * draw(st.integers(1, 2)) if scales == "token" else draw(st.integers(1, 5))
        return of[kind].latent(size, rank, draw(st.sampled_from([0, 2, 4])), dtype, **form)
    form["head_size_v"] = draw(st.sampled_from([None, 4, 8]))
    return of[kind](size, draw(st.integers(1, 3)), draw(st.sampled_from([4, 8])), dtype, **form)


@st.composite
def recurrent(draw: st.DrawFn) -> KVCacheSpec:
    dtypes = draw(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=3))
    shapes = tuple(tuple(draw(st.lists(st.integers(1, 5), max_size=3))) for _ in dtypes)
    return MambaSpec(draw(st.sampled_from([1, 2, 4, 8])), shapes, tuple(dtypes), draw(st.sampled_from([0, 0, 1, 3])))


@st.composite
def models(draw: st.DrawFn) -> Model:
    """A model of up to four declarations, each made by one to six layers, in any order."""
    caching = draw(st.booleans())
    specs = draw(
        st.lists(
            st.one_of(st.integers(0, 3).flatmap(lambda kind: attention(kind, caching)), recurrent()),
            min_size=1,
            max_size=4,
        )
    )
    if all(isinstance(spec, CrossAttentionSpec) for spec in specs):
        specs.append(FullAttentionSpec(4, 1, 4, "half"))
    counts = [draw(st.integers(1, 6)) for _ in specs]
    order = draw(st.permutations([spec for spec, count in zip(specs, counts, strict=True) for _ in range(count)]))
    options: dict[str, Any] = {
        "max_num_batched_tokens": draw(st.integers(1, 40)),
        "enable_caching": caching,
        "max_num_encoder_tokens": draw(st.integers(1, 20)),
        "packed": draw(st.booleans()),
    }
    return Model({f"layers.{n}": spec for n, spec in enumerate(order)}, draw(st.integers(1, 90)), options)


class Engine:
    """Computes one request of the longest length under a plan, and notes the most blocks that it held."""

    def __init__(self, plan: KVCachePlan, *, fewer: int = 0) -> None:
        """Make a manager by the plan; `fewer` blocks are held by others."""
        limits = plan.limits
        self.plan, self.limits = plan, limits
        self.most_held = 0
        self.manager = KVCacheManager(
            plan.config, limits.max_model_len, limits.enable_caching, overlap_steps=limits.max_steps_in_flight > 1
        )
        self.manager.block_pool.get_new_blocks(fewer)
        unit = math.gcd(*(group.kv_cache_spec.block_size for group in plan.config.kv_cache_groups))
        self.request = Request("r", list(range(limits.max_model_len)), unit)
        has_cross = any(isinstance(group.spec, CrossAttentionSpec) for group in plan.groups)
        self.encoder = limits.max_num_encoder_tokens if has_cross else 0

    def is_never_served(self) -> bool:
        """Whether the manager says that the whole request will never fit, in steps of the longest length."""
        step = min(self.limits.max_num_batched_tokens, self.limits.max_model_len)
        answer = self.manager.plan(self.request, step, num_encoder_tokens=self.encoder, full_sequence_must_fit=True)
        return isinstance(answer, Never)

    def serve(self, steps: Iterable[int] = ()) -> bool:
        """Compute the request in such steps, and the largest ones after them; False as soon as one is refused."""
        manager, request, limits = self.manager, self.request, self.limits
        wanted, in_flight = list(steps), list[int]()
        while (left := request.num_tokens - request.num_computed_tokens) > 0:
            new = min(wanted.pop(0) if wanted else limits.max_num_batched_tokens, left)
            if limits.max_steps_in_flight > 1:
                if len(in_flight) == limits.max_steps_in_flight:
                    manager.settle_step(in_flight.pop(0))
                in_flight.append(manager.start_step())
            encoder = self.encoder if request.num_computed_tokens == 0 else 0
            ahead = limits.num_lookahead_tokens
            if manager.allocate_slots(request, new, 0, None, ahead, num_encoder_tokens=encoder) is None:
                return False
            request.num_computed_tokens += new
            held = [block for ids in manager.get_block_ids("r") for block in ids if block]
            states = [block for ids in manager.get_draft_block_ids("r") for block in ids]
            self.most_held = max(self.most_held, len(held) + len(states))
        return True
