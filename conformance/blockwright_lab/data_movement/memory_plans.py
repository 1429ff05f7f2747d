"""Plans of random models: each is checked against the laws, at memories around its boundaries, and served.

A model has a few kinds of layers with different pages. It is planned with some memory; with exactly what so many blocks
take, and with a byte less; and, where that is refused, with what the refusal says is needed, and a byte less. Layers of
a small plan are asked for their memory, which must lie within their pages, and the manager must serve the longest
request with no more blocks than the plan says.
"""

from collections import Counter
from fractions import Fraction
from math import lcm
from random import Random
from typing import Any

import torch

from blockwright import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheManager,
    KVCacheSpec,
    MambaSpec,
    Request,
    SlidingWindowSpec,
)
from blockwright.device.plan import plan_kv_cache
from blockwright.device.planned import KVCachePlan
from blockwright.device.storage import KVCacheStorage
from blockwright.errors import InvalidArgumentError, TooLittleMemoryError
from blockwright.kinds import dtype_size
from blockwright_spec.reads import Chunked, Cross, Full, Kind, Mamba, Sliding
from blockwright_spec.worker.storage import Layer, Limits, PlannedGroup, StoragePlan
from blockwright_spec.worker.storage_laws import STORAGE_LAWS

from .engine import BrokenError

SERVED_BYTES = 1 << 16
"""Plans of at most so much memory are made and served."""

DTYPES = ("float32", "bfloat16", "fp8")


class Model:
    """A model of random layers, and the limits of its requests."""

    def __init__(self, seed: int) -> None:
        random = self.random = Random(seed)
        self.layers: dict[str, KVCacheSpec] = {}
        has_encoder = random.random() < 0.2
        kinds = random.sample(("full", "sliding", "chunked", "mamba"), random.randint(1, 4))
        for kind in (*kinds, *(["cross"] if has_encoder else [])):
            size, alike = random.choice((1, 2, 4, 8)), random.random() < 0.7
            drawn = self.spec(kind, size, random.choice((1, 2)), random.choice((3, 4, 8)), random.choice(DTYPES))
            for number in range(random.randint(1, 7)):
                heads = random.choice((1, 2, 4))
                spec = drawn if alike else self.spec(kind, size, heads, 4, random.choice(DTYPES), like=drawn)
                self.layers[f"{kind}.{number}"] = spec
        self.options: dict[str, Any] = {
            "max_num_batched_tokens": random.randint(1, 24),
            "enable_caching": not has_encoder and random.random() < 0.7,
            "max_num_encoder_tokens": random.randint(1, 20) if has_encoder else 0,
            "num_lookahead_tokens": random.choice((0, 0, 0, 2)),
            "max_steps_in_flight": random.choice((1, 1, 1, 2, 3)),
            "max_padding": 1.0,
            "max_loss": random.choice((0.0, 0.1, 1.0)),
            "max_block_size": random.choice((8, 16, 2048)),
            "page_alignment": random.choice((1, 1, 16)),
        }
        self.length = random.randint(1, 48)

    def spec(
        self, kind: str, size: int, heads: int, head_size: int, dtype: str, like: KVCacheSpec | None = None
    ) -> KVCacheSpec:
        """Draw a layer; one like another may share its block table."""
        random, sizes = self.random, (size, heads, head_size, dtype)
        match kind:
            case "full":
                return FullAttentionSpec(*sizes)
            case "sliding":
                window = like.sliding_window if isinstance(like, SlidingWindowSpec) else random.randint(1, 12)
                return SlidingWindowSpec(*sizes, window)
            case "chunked":
                chunk = size * random.choice((1, 2, 4, 6))
                same = like.attention_chunk_size if isinstance(like, ChunkedLocalAttentionSpec) else chunk
                return ChunkedLocalAttentionSpec(*sizes, same)
            case "mamba":
                drafts = like.num_speculative_blocks if isinstance(like, MambaSpec) else random.choice((0, 0, 2))
                shapes = ((heads, random.randint(1, 9)), (head_size,))
                return MambaSpec(size, shapes, (dtype, random.choice(DTYPES)), drafts)
            case _:
                return CrossAttentionSpec(*sizes)

    def plan(self, memory: int, length: int | None = None, **more: Any) -> KVCachePlan:
        return plan_kv_cache(self.layers, memory, length or self.length, **self.options | more)


def kind_of(spec: KVCacheSpec) -> Kind:
    match spec:
        case FullAttentionSpec():
            return Full()
        case SlidingWindowSpec():
            return Sliding(spec.sliding_window)
        case ChunkedLocalAttentionSpec():
            return Chunked(spec.attention_chunk_size)
        case MambaSpec():
            return Mamba(spec.num_speculative_blocks)
        case CrossAttentionSpec():
            return Cross()
        case _:
            raise TypeError(spec)


def layer_of(spec: KVCacheSpec) -> Layer:
    """Return what a layer declares, in the specification's terms."""
    kind = kind_of(spec)
    tokens = 1 if isinstance(kind, Mamba) else spec.block_size
    return Layer(kind, spec.block_size, spec.page_size_bytes // tokens)


def elements(spec: KVCacheSpec) -> list[int]:
    """Return the bytes of one element of each of a layer's tensors."""
    dtypes = spec.dtypes if isinstance(spec, MambaSpec) else (getattr(spec, "dtype", "int8"),)
    return [dtype_size(dtype) for dtype in dtypes]


def plan_of(model: Model, plan: KVCachePlan) -> StoragePlan:
    names, limits = list(model.layers), plan.limits
    groups = []
    for group, own in zip(plan.groups, plan.config.kv_cache_groups, strict=True):
        sizes = {plan.spec_of(name).block_size for name in group.layer_names} | {group.spec.block_size}
        if list(own.layer_names) != list(group.layer_names) or sizes != {own.kv_cache_spec.block_size}:
            raise BrokenError("LAYOUT-2", f"the manager is given {own}, the plan has {group} with blocks of {sizes}")
        layers = tuple(names.index(name) for name in group.layer_names)
        groups.append(PlannedGroup(layers, own.kv_cache_spec.block_size, group.waste_bytes))
    return StoragePlan(
        tuple(map(layer_of, model.layers.values())),
        Limits(
            limits.max_model_len,
            limits.max_num_batched_tokens,
            limits.max_num_encoder_tokens,
            limits.num_lookahead_tokens,
            limits.max_steps_in_flight,
            limits.enable_caching,
        ),
        plan.available_bytes,
        lcm(model.options["page_alignment"], *(size for spec in model.layers.values() for size in elements(spec))),
        Fraction(model.options["max_loss"]),
        tuple(groups),
        plan.page_sizes,
        plan.num_blocks,
        plan.blocks_per_request,
    )


def check_plan(model: Model, plan: KVCachePlan, *, is_full: bool = True) -> None:
    """Check a plan against the laws; that it holds as much as it can only if it is free to."""
    found = plan_of(model, plan)
    for law in STORAGE_LAWS:
        if (is_full or law.id not in ("LAYOUT-5", "LAYOUT-9")) and not law.holds(found):
            raise BrokenError(law.id, f"{law.statement} {found}")
    used = [bytes_of(plan, name) for group in plan.groups for name in group.layer_names]
    reported = [each for group in plan.groups for each in group.page_bytes]
    if used != reported:
        raise BrokenError("LAYOUT-7", f"layers use {used} of their pages, the plan says {reported}")


def bytes_of(plan: KVCachePlan, name: str) -> int:
    return plan.spec_of(name).page_size_bytes


def check_memory(plan: KVCachePlan) -> None:
    """Check that what each layer is given of a block lies in the page of that block, and is apart from all others."""
    storage = KVCacheStorage(plan)
    for name in plan.layers:
        group, tensor = plan.place_of(name)
        memory = storage.tensors[tensor]
        taken = torch.zeros(plan.page_sizes[tensor], dtype=torch.int32)
        for view in storage.views(name):
            start, size = view[0].data_ptr() - memory.data_ptr(), view.element_size()
            if view.stride(0) * size != plan.page_sizes[tensor] or len(view) != plan.num_blocks:
                raise BrokenError("LAYOUT-3", f"{name!r} of group {group} goes by {view.stride()}, not page by page")
            at = torch.tensor(start)
            for length, stride in zip(view.shape[1:], view.stride()[1:], strict=True):
                at = at.unsqueeze(-1) + torch.arange(length) * stride * size
            places = (at.unsqueeze(-1) + torch.arange(size)).flatten()
            if int(places.max()) >= len(taken) or int(places.min()) < 0:
                raise BrokenError("LAYOUT-3", f"{name!r} reaches out of a page of {len(taken)} bytes: {places}")
            taken.index_add_(0, places, torch.ones(len(places), dtype=torch.int32))
        if int(taken.max()) > 1 or int(taken.sum()) != bytes_of(plan, name):
            raise BrokenError("LAYOUT-3", f"{name!r} has {int(taken.sum())} bytes of a page, or some of them twice")


def check_served(model: Model, plan: KVCachePlan) -> None:
    """Check that the manager serves the longest request, and that it takes no more blocks than the plan says."""
    limits = plan.limits
    manager = KVCacheManager(plan.config, limits.max_model_len, enable_caching=limits.enable_caching)
    request, done = Request("longest", [0] * limits.max_model_len, block_size=1), 0
    first: dict[str, Any] = {"num_encoder_tokens": limits.max_num_encoder_tokens}
    while done < limits.max_model_len:
        new = min(limits.max_num_batched_tokens, limits.max_model_len - done, model.random.randint(1, 24))
        if manager.allocate_slots(request, new, **first) is None:
            raise BrokenError("LAYOUT-6", f"{done} of {limits.max_model_len} tokens were served: {plan}")
        held = plan.num_blocks - 1 - manager.block_pool.get_num_free_blocks()
        if held > plan.blocks_per_request:
            raise BrokenError("LAYOUT-6", f"{held} blocks held after {done + new} tokens: {plan}")
        done += new
        request.num_computed_tokens, first = done, {}


def check_model(seed: int) -> Counter[str]:
    """Plan a model with several memories, and check each plan; return how often what happened."""
    model, fired = Model(seed), Counter[str]()
    enough = needed(model)
    check_refusal(model, enough, fired)
    for memory in (enough, enough + model.random.randint(0, enough), 3 * enough + model.random.randint(0, 99)):
        plan = model.plan(memory)
        check_plan(model, plan)
        fired["plan"] += 1
        exact = plan.num_blocks * plan.block_bytes
        check_plan(model, model.plan(exact))
        if exact > enough:
            check_plan(model, model.plan(exact - 1))
            fired["plan of a byte less"] += 1
        fewer = model.plan(memory, num_blocks=plan.blocks_per_request + 1, layers_per_group=plan.layers_per_block)
        check_plan(model, fewer, is_full=False)
        check_waste(model, memory, fired)
        if exact <= SERVED_BYTES:
            check_memory(plan)
            check_served(model, plan)
            check_served(model, fewer)
            fired["served"] += 1
    return fired


def needed(model: Model) -> int:
    """Return the bytes that a refusal says are needed for one request."""
    try:
        model.plan(0)
    except TooLittleMemoryError as error:
        return error.needed_bytes
    raise BrokenError("LAYOUT-4", "a plan of no memory at all")


def check_refusal(model: Model, enough: int, fired: Counter[str]) -> None:
    """Check a refusal: what it says is needed is needed, and what it says would fit is the longest that does."""
    less = model.random.choice((enough - 1, model.random.randrange(enough)))
    try:
        plan = model.plan(less)
    except TooLittleMemoryError as error:
        fired["too little memory"] += 1
        if error.needed_bytes != enough:
            raise BrokenError("LAYOUT-6", f"{error.needed_bytes} bytes would do, or {enough}") from None
        longest = error.longest_model_len
    else:
        raise BrokenError("LAYOUT-6", f"planned with {less} bytes, {enough} are said to be needed: {plan}")
    if longest > 0:
        check_plan(model, model.plan(less, longest))
        fired["longest that fits"] += 1
    try:
        plan = model.plan(less, longest + 1)
    except TooLittleMemoryError:
        return
    raise BrokenError("LAYOUT-6", f"{longest} tokens are said to be the longest that fits: {plan}")


def check_waste(model: Model, memory: int, fired: Counter[str]) -> None:
    """Check that a plan is refused exactly if more of it is waste than may be."""
    share = model.plan(memory).waste
    model.plan(memory, max_padding=share)
    if share > 0:
        try:
            model.plan(memory, max_padding=share * 0.999)
        except InvalidArgumentError:
            fired["waste refused"] += 1
        else:
            raise BrokenError("LAYOUT-7", f"{share:.1%} waste is accepted where less may be")
