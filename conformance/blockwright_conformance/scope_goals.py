"""What the scopes of lock-step must have met between them, by the dimensions of the specification and not by its list.

A goal is an *event* in a *setting*. Events are what may happen in one call: each action, each refusal of each action, and
each particular of them (a hit, an eviction, a copy, a rejected draft, a load that came in part, and so on). Settings are
the kinds of layers with the relation of their window, chunk or state to a block, the hybrids of them, and the modes of
the manager. Every event is wanted in every setting in which it can happen; `impossible` says by rules where it cannot.
"""

from collections.abc import Iterator

from blockwright_spec.outcomes import Done
from blockwright_spec.reads import Chunked, Cross, Full, Group, Mamba, Sliding
from blockwright_spec.state import NULL, Absent, Running, State, Waiting

from .actions import (
    Action,
    Admit,
    AdmitHeld,
    Append,
    FinishLoad,
    Fork,
    Grow,
    GrowEach,
    Settle,
    Told,
)
from .scopes import Scope

Goal = tuple[str, str]
"""A setting, and an event in it."""


def relation(group: Group) -> str:
    """Give the kind of a group's layers, and how its lengths relate to a block."""
    size = group.block_size
    block = "block 1" if size == 1 else "longer block"
    match group.kind:
        case Full():
            return f"full, {block}"
        case Sliding(window):
            reach = "none of a block" if window == 1 else f"{'below' if window < size else 'at' if window == size else 'above'} a block"
            return f"sliding {reach}, {block}"
        case Chunked(chunk):
            return f"chunk of {'one block' if chunk == size else 'blocks'}, {block}"
        case Mamba(drafts):
            return f"state{' with drafts' if drafts else ''}, {block}"
        case Cross():
            return f"cross, {block}"


def settings(scope: Scope) -> Iterator[str]:
    """Give the settings that a scope is an instance of."""
    config = scope.config
    kinds = [type(group.kind).__name__.lower() for group in config.groups]
    if len(kinds) == 1:
        yield relation(config.groups[0])
    else:
        sizes = {group.block_size for group in config.groups}
        yield f"{' + '.join(kinds)}, {'equal' if len(sizes) == 1 else 'unequal'} blocks"
    yield "cached" if config.caching else "uncached"
    yield "in flight" if config.overlaps else "one step at a time"
    modes = ("eagle", config.eagle), ("settled publication", config.settles), ("watermark", config.watermark > 0)
    yield from (name for name, is_on in modes if is_on)


def events(before: State, action: Action, told: Told) -> Iterator[str]:
    """Give the events of one call."""
    name = type(action).__name__
    if told.refusal is not None:
        yield f"{name} refused: {told.refusal.reason.name}"
        if not told.steps:
            return
    yield name
    yield from (f"{name}: {each}" for each in (*asked(before, action, told), *done(before, told)))


def asked(before: State, action: Action, told: Told) -> Iterator[str]:
    """Give the particulars of a call."""
    match action:
        case Admit():
            wants = {
                "lookahead": action.lookahead, "put off": action.later, "unasked": not action.asked,
                "loads": action.external, "whole": action.whole, "reserve": action.reserve, "planned": action.planned,
                "adopts": not action.new, "hit": told.hit and told.hit.length,
                "again": isinstance(before.requests[action.slot], Waiting),
            }  # fmt: skip
            yield from (name for name, value in wants.items() if value)
        case AdmitHeld(slot):
            request = before.requests[slot]
            yield "hit" if isinstance(request, Waiting) and request.hit.length else "no hit"
        case Grow():
            wants = {
                "lookahead": action.lookahead, "put off": action.later, "drafts": action.drafts,
                "planned": action.planned,
            }  # fmt: skip
            yield from (name for name, value in wants.items() if value)
        case GrowEach():
            yield "in part" if told.refusal else "all"
        case Append():
            yield "accepted" if action.accepted else "new"
        case Settle():
            yield "rejected" if action.rejected else "kept"
        case FinishLoad(slot, came):
            request = before.requests[slot]
            is_there = isinstance(request, Running) and request.loading
            yield ("all" if came == is_there else "some" if came else "none") if is_there else "for nobody"
        case Fork(_, child):
            yield "absent" if isinstance(before.requests[child], Absent) else "waiting"


def done(before: State, told: Told) -> Iterator[str]:
    """Give the particulars of what came of a call."""
    for step in told.steps:
        if isinstance(step, Done):
            yield from (name for name, is_so in particulars(before, step).items() if is_so)


def particulars(before: State, step: Done) -> dict[str, bool]:
    """Tell what a step did."""
    after = step.state
    return {
        "takes": any(block != NULL for table in step.new for block in table),
        "jumps": any(block == NULL for table in step.new for block in table),
        "trims": any(step.nulled),
        "evicts": bool(step.evicted),
        "copies": any(entry is not None for entry in step.copied),
        "publishes": len(after.keys) > len(before.keys),
        "duplicate": len({content for _, content in after.keys}) < len(after.keys),
        "fences": len(after.fences) > len(before.fences),
        "unfences": len(after.fences) < len(before.fences),
        "beside a step": len(before.flights) > 1,
        "beside a fence": bool(before.fences),
        "beside a load": any(isinstance(each, Running) and each.loading for each in before.requests),
        "beside a copy": bool(before.copies),
        "shared": after.queue == before.queue and any(map(bool, step.new)),
    }
