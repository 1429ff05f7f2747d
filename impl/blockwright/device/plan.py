"""How a device's memory becomes blocks: which layers form a group, how large a page is, how many blocks there are.

`plan_kv_cache` takes what each layer declares and the bytes that are free. The layouts that it compares come from
`blockwright.device.pages`; the blocks of a request in each are counted by the manager's own code, so the plan matches
the manager.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from blockwright.arguments import integer
from blockwright.config import KVCacheConfig, KVCacheGroupSpec
from blockwright.device.pages import Layout, layouts_of
from blockwright.device.planned import KINDS, GroupPlan, KVCachePlan, RequestLimits, bytes_text
from blockwright.errors import InvalidArgumentError, TooLittleMemoryError, UnsupportedError
from blockwright.kinds import KVCacheSpec

__all__ = ["GroupPlan", "KVCachePlan", "RequestLimits", "plan_kv_cache"]

_MOST = 2**31 - 1  # block ids have 32 bits
_SLOW_STEP = 0.25  # share of a decode step from which on the cost of the groups is worth a warning
_log = logging.getLogger(__name__)


def plan_kv_cache(
    layers: Mapping[str, KVCacheSpec],
    available_bytes: int,
    max_model_len: int,
    *,
    max_num_batched_tokens: int = 8192,
    enable_caching: bool = True,
    max_num_encoder_tokens: int = 0,
    num_blocks: int | None = None,
    max_padding: float = 0.5,
    max_loss: float = 0.1,
    group_cost: float = 0.02,
    max_block_size: int = 4096,
    layers_per_group: int | None = None,
    packed: bool = False,
    page_alignment: int = 1,
    num_lookahead_tokens: int = 0,
    max_steps_in_flight: int = 1,
    shared_layers: Mapping[str, str] | None = None,
) -> KVCachePlan:
    """Lay out a model's KV cache over `available_bytes` of one device.

    >>> from blockwright import FullAttentionSpec, SlidingWindowSpec
    >>> full = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")
    >>> near = SlidingWindowSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16", sliding_window=1024)
    >>> layers = {f"layers.{i}": near if i % 6 else full for i in range(24)}          # 4 full, 20 sliding
    >>> plan = plan_kv_cache(layers, 8 << 30, max_model_len=32768, max_num_batched_tokens=2048)
    >>> print(plan)
    KV cache: 32,768 blocks of 256.00 KiB, 8.00 GiB of 8.00 GiB
      4 tensors with pages of 64.00 KiB, 6 groups, prefix hits in multiples of 16 tokens, 0.0% wasted
      10.88 requests of 32,768 tokens at once, up to 3,013 blocks (753.25 MiB) each; 356,358 tokens in all
      group 0: full, 4 layers, 16 tokens a block, 64.00 KiB of a page used, 0.0% wasted, up to 2,048 blocks a request
      groups 1 to 5: sliding 1,024, 4 layers, 16 tokens a block, 64.00 KiB of a page used, 0.0% wasted, ...

    Layouts are compared by the requests that they hold at once, divided by the time of a decode step: each group is one
    more block table for every request and step, and adds `group_cost`. Layouts that waste more than `max_padding` are
    left out. Among those that lose at most `max_loss` of the best one, the one with the fewest groups is taken. A
    warning is logged, and is in the summary, where another layout would hold many more requests, or where the groups
    take much of a step. If several workers share the tables, plan for the least memory that any of them has.

    Complexity: O(layouts x groups x block_size): milliseconds for a hundred layers.

    Args:
        layers: what each layer declares, by name, in the model's order. Layers with equal kinds and block sizes may
            share a table, whatever their heads and element types. Tokens per block are a lower bound: where pages of
            different layers differ, the smaller ones get a multiple.
        available_bytes: of the device, for all tensors together.
        max_model_len: tokens of the longest request.
        max_num_batched_tokens: tokens that a step computes of one request at most, or that one load brings. Windows and
            chunks hold the blocks that a step fills beside those that it reads.
        enable_caching: as for `KVCacheManager`; recurrent layers hold one state without, two with it.
        max_num_encoder_tokens: tokens of the longest encoder input; needed with cross attention.
        num_blocks: blocks to plan, the null block included, instead of all that fit.
        max_padding: share of the memory of a request of `max_model_len` tokens that may be waste, 0.0 to 1.0.
        max_loss: share of the best layout's worth to give up for fewer groups, 0.0 to 1.0.
        group_cost: share of a decode step that each group adds, 0.0 to 1.0. 0.0 weighs memory alone.
        max_block_size: tokens that no block grows beyond; with caching, nor the common multiple of all block sizes,
            to which every hit is cut.
        layers_per_group: number of tensors, instead of the best one.
        packed: also compare layouts in which all layers of a kind lie one behind the other in the pages of one tensor,
            so that each kind has one table, and kinds with fewer layers more tokens per block. That costs hits in
            multiples of larger blocks, and kernels must take pages that are further apart than they are long.
        page_alignment: bytes that every page is a multiple of; 16 lets kernels load whole vectors from padded pages.
            Pages are multiples of their element size in any case.
        num_lookahead_tokens, max_steps_in_flight: as the engine runs the manager: slots asked for beyond a step's
            tokens, and steps under way at once (``overlap_steps``).
        shared_layers: layers without a cache, each with the layer that owns the cache it reads.

    Returns:
        The plan: `config` for the manager, `page_sizes` for the memory, `summary` for the log.

    Raises:
        InvalidArgumentError: an argument is out of range, or the pages differ so much that every layout wastes more
            than `max_padding`; names the layers, and what to change.
        UnsupportedError: a kind that has no manager, or cross attention together with caching or alone.
        TooLittleMemoryError: one request of `max_model_len` tokens does not fit; gives the bytes it takes, and the
            longest that fits.
    """
    limits = RequestLimits(
        max_model_len,
        max_num_batched_tokens,
        enable_caching,
        max_num_encoder_tokens,
        num_lookahead_tokens,
        max_steps_in_flight,
    )
    _check_limits(limits)
    _check_layers(layers, limits)
    _check_choices(available_bytes, num_blocks, max_block_size, layers_per_group, page_alignment)
    if packed and layers_per_group is not None:
        raise InvalidArgumentError("layers_per_group: a packed plan has one tensor; leave it out, or packed")
    for name, share in (("max_padding", max_padding), ("max_loss", max_loss), ("group_cost", group_cost)):
        if not 0.0 <= share <= 1.0:
            raise InvalidArgumentError(f"{name}: must be a share within 0.0..1.0, not {share!r}")
    layouts = layouts_of(
        layers,
        max_block_size,
        page_alignment=page_alignment,
        layers_per_group=layers_per_group,
        enable_caching=enable_caching,
        packed=packed,
    )
    memory = _Memory(available_bytes, num_blocks)
    fitting = [layout for layout in layouts if memory.holds(layout, limits)]
    if not fitting:
        raise _too_little(layouts, memory, limits)
    # law: LAYOUT-10
    allowed = [layout for layout in fitting if memory.waste(layout, limits) <= max_padding]
    if not allowed:
        least = min(fitting, key=lambda layout: memory.waste(layout, limits))
        raise _too_much_waste(_planned(least, memory, limits, {}, ""), max_padding)
    layout = _chosen(allowed, memory, limits, max_loss, group_cost)
    note = _note(layout, allowed, memory, limits, max_loss, group_cost)
    plan = _planned(layout, memory, limits, shared_layers or {}, note)
    if note:
        _log.warning("plan_kv_cache: %s", note)
    return plan


class _Memory:
    """The bytes on offer as blocks of a layout, and the share that a request takes."""

    def __init__(self, available: int, num_blocks: int | None) -> None:
        self.available = available
        self.num_blocks = num_blocks
        self._counts: dict[tuple[object, ...], int] = {}

    def counts(self, layout: Layout, limits: RequestLimits) -> list[int]:
        """Count the most blocks that a request holds in each group; each kind of table once. law: PLAN-2."""
        counts = []
        for family in layout.families:
            key = (family.table, limits)
            if key not in self._counts:
                self._counts[key] = limits.blocks_of(family.spec)
            counts.append(self._counts[key])
        return [counts[number] for _, number in layout.groups]

    def need(self, layout: Layout, limits: RequestLimits) -> int:
        return sum(self.counts(layout, limits))

    def waste(self, layout: Layout, limits: RequestLimits) -> float:
        """Return the share of a request's memory that no layer uses, as `KVCachePlan.waste` does."""
        counts = self.counts(layout, limits)
        used = sum(
            count * sum(layout.families[number].specs[name].page_size_bytes for name in names)
            for count, (names, number) in zip(counts, layout.groups, strict=True)
        )
        total = sum(counts) * layout.block_bytes
        return (total - used) / total

    def blocks(self, layout: Layout) -> int:
        """Blocks of the pool: all that fit, or the requested number; 0 if that does not fit."""
        # law: LAYOUT-4, LAYOUT-5
        fit = min(self.available // layout.block_bytes, _MOST)
        if self.num_blocks is None:
            return fit
        return self.num_blocks if self.num_blocks <= fit else 0

    def holds(self, layout: Layout, limits: RequestLimits) -> bool:
        # law: LAYOUT-6
        return self.need(layout, limits) < self.blocks(layout)

    def cost(self, layout: Layout, limits: RequestLimits) -> Fraction:
        """Return the cost of a request: a share of the pool, or bytes where the number of blocks is settled."""
        need = self.need(layout, limits)
        return (
            Fraction(need, self.blocks(layout) - 1) if self.num_blocks is None else Fraction(need * layout.block_bytes)
        )

    def requests(self, layout: Layout, limits: RequestLimits) -> float:
        return (self.blocks(layout) - 1) / self.need(layout, limits)


def _chosen(
    layouts: Sequence[Layout], memory: _Memory, limits: RequestLimits, max_loss: float, group_cost: float
) -> Layout:
    """Return the layout with the fewest groups among those worth at least 1 - `max_loss` of the best one."""
    # Exact numbers: layouts that cost the same compare as equal on every machine.
    each = Fraction(group_cost)
    costs = [memory.cost(layout, limits) * (1 + each * len(layout.groups)) for layout in layouts]
    # law: LAYOUT-9
    most = min(costs)
    good = [pair for pair in zip(layouts, costs, strict=True) if pair[1] * (1 - Fraction(max_loss)) <= most]
    return min(good, key=lambda pair: (len(pair[0].groups), pair[1], pair[0].alignment))[0]


def _note(
    layout: Layout,
    layouts: Sequence[Layout],
    memory: _Memory,
    limits: RequestLimits,
    max_loss: float,
    group_cost: float,
) -> str:
    def told(other: Layout) -> str:
        which = "packed" if other.offsets else f"layers_per_group={len(other.page_sizes)}"
        return (
            f"{len(other.groups)} groups ({which}) would hold "
            f"{memory.requests(other, limits):.2f} requests at once instead of {memory.requests(layout, limits):.2f}"
        )

    many = f"{len(layout.groups)} groups were chosen, and each adds {group_cost:.1%} to a decode step (group_cost)"
    roomiest = min(layouts, key=lambda other: memory.cost(other, limits))
    if memory.cost(roomiest, limits) < memory.cost(layout, limits) * (1 - Fraction(max_loss)):
        return f"{many}; {told(roomiest)}"
    fewest = min(layouts, key=lambda other: (len(other.groups), memory.cost(other, limits)))
    if len(layout.groups) * group_cost > _SLOW_STEP and len(fewest.groups) < len(layout.groups):
        return f"{many}; {told(fewest)}"
    return ""


def _planned(
    layout: Layout, memory: _Memory, limits: RequestLimits, shared_layers: Mapping[str, str], note: str
) -> KVCachePlan:
    specs = {name: spec for family in layout.families for name, spec in family.specs.items()}
    groups = []
    for at, (names, number) in enumerate(layout.groups):
        pages = tuple(specs[name].page_size_bytes for name in names)
        # law: LAYOUT-7
        waste = layout.block_bytes - sum(pages)
        held = limits.blocks_of(layout.families[number].spec)
        offsets = layout.offsets[at] if layout.offsets else ()
        groups.append(GroupPlan(names, specs[names[0]], pages, waste, waste / layout.block_bytes, held, offsets))
    config = KVCacheConfig(
        memory.blocks(layout),
        [KVCacheGroupSpec(list(group.layer_names), group.spec) for group in groups],
        dict(shared_layers),
    )
    return KVCachePlan(config, specs, layout.page_sizes, tuple(groups), limits, memory.available, note)


# ---------------------------------------------------------------------- refusals


def _too_little(layouts: Sequence[Layout], memory: _Memory, limits: RequestLimits) -> TooLittleMemoryError:
    """Return the error with the memory of one request in the smallest layout, and the length that would fit."""

    def bytes_of(layout: Layout) -> int:
        return (memory.need(layout, limits) + 1) * layout.block_bytes

    def fits(changed: RequestLimits) -> bool:
        return any(memory.holds(layout, changed) for layout in layouts)

    small = [layout for layout in layouts if memory.num_blocks is not None and bytes_of(layout) <= memory.available]
    if small:  # there are bytes enough, so it is the number of blocks that does not do
        best = min(small, key=lambda layout: memory.need(layout, limits))
    else:
        best = min(layouts, key=bytes_of)
    blocks, needed = memory.need(best, limits) + 1, bytes_of(best)
    takes = (
        f"one request of {limits.max_model_len:,} tokens in steps of {limits.max_num_batched_tokens:,} holds up to "
        f"{blocks - 1:,} blocks of {bytes_text(best.block_bytes)}, so {blocks:,} with the null block"
    )
    length = _largest(limits.max_model_len, lambda tokens: fits(replace(limits, max_model_len=tokens)))
    step = _largest(
        min(limits.max_num_batched_tokens, limits.max_model_len) - 1,
        lambda tokens: fits(replace(limits, max_num_batched_tokens=tokens)),
    )
    remedies = [f"max_model_len={length}"] if length else []
    remedies += [f"max_num_batched_tokens={step}"] if step else []
    otherwise = f", or {' or '.join(remedies)} at most" if remedies else ""
    if small:
        most = memory.available // best.block_bytes
        message = (
            f"num_blocks: {memory.num_blocks:,} blocks do not do, {takes}; pass {blocks} to {most}, the most that "
            f"{bytes_text(memory.available)} hold{otherwise}"
        )
    else:
        message = (
            f"available_bytes: {bytes_text(memory.available)} are {memory.available // best.block_bytes:,} blocks, too "
            f"little: {takes}: {bytes_text(needed)}; give at least {needed} bytes{otherwise}"
        )
    return TooLittleMemoryError(message, needed, blocks, length)


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest count of at most `most` that fits, where smaller ones fit too; 0 if none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _too_much_waste(plan: KVCachePlan, max_padding: float) -> InvalidArgumentError:
    """Return the error that names the group that wastes most, and what keeps it from wasting less."""
    worst = max(plan.groups, key=lambda group: group.waste_bytes * group.blocks_per_request)
    used = len(worst.layer_names)
    absent = sum(plan.page_sizes[used:])
    # Name the larger part: tensors on which the group has no layer, or pages larger than what its layers fill.
    if 2 * absent > worst.waste_bytes:
        cause = f"has layers on {used} of {plan.layers_per_block} tensors; pass another layers_per_group"
    else:
        names = (name for group in plan.groups for name in group.layer_names)
        largest = max(names, key=lambda name: plan.layers[name].page_size_bytes)
        own, other = (bytes_text(plan.layers[name].page_size_bytes) for name in (worst.layer_names[0], largest))
        cause = (
            f"takes {own} for a block of {worst.spec.block_size:,} tokens, {largest!r} {other} for one of "
            f"{plan.layers[largest].block_size:,}; declare blocks of {largest!r} that take less, or allow larger ones "
            "of the other by max_block_size"
        )
    wasted, allowed = _told_apart(plan.waste, max_padding)
    return InvalidArgumentError(
        f"layers: {wasted} of a request's memory would be waste, and max_padding is {allowed}: "
        f"{worst.layer_names[0]!r} ({KINDS[type(worst.spec)]}) {cause}, or pass a larger max_padding"
    )


def _told_apart(one: float, other: float) -> tuple[str, str]:
    """Return two different shares as percentages, with enough digits to see that they differ.

    >>> _told_apart(0.5, 0.25), _told_apart(0.00012, 0.0)
    (('50.0%', '25.0%'), ('0.01%', '0.00%'))
    """
    digits = 1
    while f"{one:.{digits}%}" == f"{other:.{digits}%}":
        digits += 1
    return f"{one:.{digits}%}", f"{other:.{digits}%}"


# ---------------------------------------------------------------------- arguments


def _check_limits(limits: RequestLimits) -> None:
    for name in ("max_model_len", "max_num_batched_tokens", "max_steps_in_flight"):
        integer(name, getattr(limits, name), 1)
    for name in ("max_num_encoder_tokens", "num_lookahead_tokens"):
        integer(name, getattr(limits, name))


def _check_layers(layers: Mapping[str, KVCacheSpec], limits: RequestLimits) -> None:
    if not layers:
        raise InvalidArgumentError("layers: name one at least")
    for name, spec in layers.items():
        if type(spec) not in KINDS:
            raise UnsupportedError(
                f"layers: {name!r} declares {type(spec).__name__}, for which there is no manager; use a kind of "
                "blockwright.kinds"
            )
        if spec.page_size_bytes < 1:
            raise InvalidArgumentError(f"layers: {name!r} declares no state; leave it out, it needs no cache")
    encoders = [name for name, spec in layers.items() if spec.reads_encoder]
    if not encoders:
        return
    if len(encoders) == len(layers):
        raise UnsupportedError("layers: cross attention needs layers beside it that read the decoder")
    if limits.enable_caching:
        raise UnsupportedError(
            f"enable_caching: {encoders[0]!r} is cross attention, which is never cached; turn it off"
        )
    if limits.max_num_encoder_tokens == 0:
        raise InvalidArgumentError(
            f"max_num_encoder_tokens: {encoders[0]!r} is cross attention; pass the tokens of the longest encoder input"
        )


def _check_choices(available: int, num_blocks: int | None, largest: int, width: int | None, unit: int) -> None:
    integer("available_bytes", available, 0, 2**63 - 1)
    integer("max_block_size", largest, 1)
    integer("page_alignment", unit, 1)
    if width is not None:
        integer("layers_per_group", width, 1)
    if num_blocks is not None:
        integer("num_blocks", num_blocks, 1)
