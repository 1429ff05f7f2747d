"""Part four, chapter 4: how a device's memory becomes blocks: the possible plans, and their results.

A block is one page on each of several tensors and belongs to one group at a time, so that groups of different kinds
share one space of block ids. The j-th layer of every group lies on tensor j. A packed plan has one tensor and one group
a kind, whose layers lie one behind the other in a page: kinds with more layers have fewer tokens per block, and none
needs several tables. A plan chooses the groups, how many tokens a block of each holds, the pages, and the number of
blocks; its laws define the right choices.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from ..manager.facts import span
from ..manager.state import Config
from ..reads import Chunked, Cross, Group, Kind, Mamba, entries, peak


@dataclass(frozen=True, slots=True)
class Layer:
    """The declaration of a layer: its kind, tokens per block, and the bytes of a token (with its scales) or a state."""

    kind: Kind
    block_size: int
    width: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What requests and steps are at most: tokens of a request, of a step, and of an encoder.

    `lookahead` slots are asked for beyond a step's tokens, `flights` steps are under way at once.
    """

    tokens: int
    step: int
    encoder: int = 0
    lookahead: int = 0
    flights: int = 1
    caching: bool = True


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """Layers that share a block table: their numbers, and the tokens per block.

    `waste` is the bytes of a block that none of them uses, as the plan reports it. In a packed plan each layer begins
    at an offset of its own in the page, in bytes; else each has a tensor of its own, in order, and there are none.
    """

    layers: tuple[int, ...]
    block_size: int
    waste: int
    offsets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StoragePlan:
    """A plan of `memory` bytes for some layers: the groups, the bytes of a page on each tensor, and the blocks.

    `request_blocks` is the most that a request holds in all groups, as the plan reports it. Pages are multiples of
    `unit` bytes. Each group adds the share `group_cost` to a decode step. A plan is worth the longest requests that it
    holds at once, divided by the time of a step; the share `loss` of that may be given up for fewer groups, and the
    share `padding` of a request's memory may be waste.
    """

    layers: tuple[Layer, ...]
    limits: Limits
    memory: int
    unit: int
    loss: Fraction
    groups: tuple[PlannedGroup, ...]
    pages: tuple[int, ...]
    num_blocks: int
    request_blocks: int
    group_cost: Fraction = Fraction(0)
    padding: Fraction = Fraction(1)


def page(layer: Layer, block_size: int) -> int:
    """Return the bytes of a layer in a block of `tokens` tokens; those of a state do not depend on them."""
    return layer.width if isinstance(layer.kind, Mamba) else layer.width * block_size


def may_hold(layer: Layer, block_size: int) -> bool:
    """Return whether a layer works with this number of tokens per block: whole blocks, whole blocks to a chunk.

    A recurrent layer keeps a state where its block ends, so its blocks stay as they are.
    """
    match layer.kind:
        case Mamba():
            return block_size == layer.block_size
        case Chunked(chunk):
            return block_size % layer.block_size == 0 and chunk % block_size == 0
        case _:
            return block_size % layer.block_size == 0


def config_of(plan: StoragePlan) -> Config:
    """Return the manager's configuration of a plan."""
    groups = tuple(Group(plan.layers[each.layers[0]].kind, each.block_size) for each in plan.groups)
    return Config(groups, plan.num_blocks, plan.limits.tokens, plan.limits.caching)


def most_held(config: Config, group: Group, slots: int, step: int, encoder: int) -> int:
    """Count the most blocks of a group that a request holds, wherever its steps of at most `step` slots begin."""
    if isinstance(group.kind, Cross):
        return entries(group.block_size, encoder)
    drafts = group.kind.drafts if isinstance(group.kind, Mamba) else 0
    return peak(group.kind, span(config, group), slots, step) + drafts


def held(config: Config, group: Group, limits: Limits) -> int:
    """Count the most blocks of a group that a request of the maximum length holds (PLAN-2).

    With steps in flight, all that the oldest reads is kept, and a recurrent layer keeps the state of each.
    """
    slots = limits.step + limits.lookahead
    if not isinstance(group.kind, Mamba):
        return most_held(config, group, limits.tokens, slots * limits.flights, limits.encoder)
    alone = most_held(config, group, limits.tokens, slots, 0) - group.kind.drafts
    return min(entries(span(config, group), limits.tokens), alone + limits.flights - 1) + group.kind.drafts


def held_in_all(plan: StoragePlan) -> int:
    """Count the most blocks that a request of the maximum length holds, in all groups."""
    config = config_of(plan)
    return sum(held(config, group, plan.limits) for group in config.groups)


def block_bytes(plan: StoragePlan) -> int:
    """Return the bytes of a block: a page on every tensor."""
    return sum(plan.pages)


def places(plan: StoragePlan, group: PlannedGroup) -> tuple[tuple[int, int, int], ...]:
    """Return where each layer of a group lies: the tensor, and in its page the first byte and the one after all."""
    sizes = tuple(page(plan.layers[layer], group.block_size) for layer in group.layers)
    if not group.offsets:
        return tuple((tensor, 0, size) for tensor, size in enumerate(sizes))
    return tuple((0, first, first + size) for first, size in zip(group.offsets, sizes, strict=True))


def is_packed(plan: StoragePlan) -> bool:
    """Return whether layers have offsets in one page."""
    return any(group.offsets for group in plan.groups)


def used_bytes(plan: StoragePlan, group: PlannedGroup) -> int:
    """Return the bytes of a block that the layers of a group use."""
    return sum(page(plan.layers[layer], group.block_size) for layer in group.layers)


def plain_plans(plan: StoragePlan) -> Iterator[tuple[int, int, int]]:
    """Return the results of plain plans within the permitted waste: bytes of a block, a request's blocks, groups.

    Blocks are as declared, and the layers of each kind go to groups in order, one for each tensor of a group.
    """
    kinds = tuple(dict.fromkeys(Group(layer.kind, layer.block_size) for layer in plan.layers))
    pages = tuple(tuple(page(layer, layer.block_size) for layer in plan.layers if like(layer, kind)) for kind in kinds)
    blocks = tuple(held(config_of(plan), kind, plan.limits) for kind in kinds)
    used = sum(count * sum(own) for count, own in zip(blocks, pages, strict=True))
    found = (plain_plan(plan.unit, pages, blocks, tensors) for tensors in range(1, max(map(len, pages)) + 1))
    return (each for each in found if each[0] * each[1] - used <= plan.padding * each[0] * each[1])


def plain_plan(
    unit: int, pages: tuple[tuple[int, ...], ...], blocks: tuple[int, ...], tensors: int
) -> tuple[int, int, int]:
    """Return the result of one of them: by the pages of each kind's layers, and the blocks that a request holds."""
    tops = (max(max(own[tensor::tensors], default=0) for own in pages) for tensor in range(tensors))
    groups = tuple(entries(tensors, len(own)) for own in pages)
    return (
        sum(whole(top, unit) for top in tops),
        sum(count * number for count, number in zip(blocks, groups, strict=True)),
        sum(groups),
    )


def like(layer: Layer, group: Group) -> bool:
    """Return whether a layer declares the kind and the blocks of a group."""
    return (layer.kind, layer.block_size) == (group.kind, group.block_size)


def whole(size: int, unit: int) -> int:
    """Round bytes up to whole units."""
    return entries(unit, size) * unit
