"""What may happen in one call on a manager: its action, its refusal, and each particular of it.

A search meets a few hundred sorts of calls a million times: a call's sort is taken each time, in plain values, and put
into words once.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from blockwright_spec.manager.outcomes import Done
from blockwright_spec.manager.state import NULL, Absent, Running, State, Waiting

from .actions import Action, Admit, AdmitHeld, Append, FinishLoad, Fork, Grow, GrowEach, ManagerOutcome, Settle

ADMITTED = (
    "lookahead", "put off", "unasked", "loads", "whole", "reserve", "planned", "adopts", "hit", "again",
)  # fmt: skip
GROWN = ("lookahead", "put off", "drafts", "planned")
HAPPENED = (
    "takes", "jumps", "trims", "evicts", "copies", "publishes", "duplicate", "fences", "unfences", "beside a step",
    "beside a fence", "beside a load", "beside a copy", "shared",
)  # fmt: skip


class Sort(NamedTuple):
    """All that the particulars of a call follow from."""

    action: str
    reason: str
    asked: tuple[Any, ...]
    """What was asked: of an admission or a growth a truth for each of its names, else one name or none."""
    came: tuple[tuple[bool, ...], ...]
    """For each step that was taken, a truth for each of `HAPPENED`."""


def sort_of(before: State, action: Action, told: ManagerOutcome) -> Sort:
    """Give the sort of one call."""
    reason = told.refusal.reason.name if told.refusal is not None else ""
    came = tuple([happened(before, step) for step in told.done])
    return Sort(type(action).__name__, reason, asked(before, action, told), came)


def particulars(sort: Sort) -> Iterator[str]:
    """Put a sort of calls into words: what was asked, by what it was refused, and what came of it."""
    if sort.reason:
        yield f"{sort.action} refused: {sort.reason}"
        if not sort.came:
            return
    names = {"Admit": ADMITTED, "Grow": GROWN}.get(sort.action)
    yield from (f"{sort.action}: {each}" for each in (chosen(names, sort.asked) if names else sort.asked))
    for step in sort.came:
        yield from (f"{sort.action}: {each}" for each in chosen(HAPPENED, step))


def chosen(names: tuple[str, ...], truths: tuple[bool, ...]) -> Iterator[str]:
    """Give the names of what is true."""
    return (name for name, is_so in zip(names, truths, strict=True) if is_so)


def asked(before: State, action: Action, told: ManagerOutcome) -> tuple[Any, ...]:
    """Give the particulars of a call."""
    match action:
        case Admit():
            hit, again = bool(told.hit and told.hit.length), isinstance(before.requests[action.slot], Waiting)
            wants = bool(action.lookahead), bool(action.later), not action.asked, bool(action.external), action.whole
            return (*wants, bool(action.reserve), action.planned, not action.new, hit, again)
        case Grow():
            return bool(action.lookahead), bool(action.later), bool(action.drafts), action.planned
        case AdmitHeld(slot):
            request = before.requests[slot]
            return ("hit" if isinstance(request, Waiting) and request.hit.length else "no hit",)
        case GrowEach():
            return ("in part" if told.refusal else "all",)
        case Append():
            return ("accepted" if action.accepted else "new",)
        case Settle():
            return ("rejected" if action.rejected else "kept",)
        case FinishLoad(slot, came):
            request = before.requests[slot]
            is_there = isinstance(request, Running) and request.loading
            return (("all" if came == is_there else "some" if came else "none") if is_there else "for nobody",)
        case Fork(_, child):
            return ("absent" if isinstance(before.requests[child], Absent) else "waiting",)
    return ()


def happened(before: State, step: Done) -> tuple[bool, ...]:
    """Tell what a step did: a truth for each of `HAPPENED`."""
    after, blocks = step.state, [block for table in step.new for block in table]
    return (
        any(block != NULL for block in blocks),
        NULL in blocks,
        any(step.nulled),
        bool(step.evicted),
        any(entry is not None for entry in step.copied),
        len(after.keys) > len(before.keys),
        len(after.keys) > 1 and len({content for _, content in after.keys}) < len(after.keys),
        len(after.fences) > len(before.fences),
        len(after.fences) < len(before.fences),
        len(before.flights) > 1,
        bool(before.fences),
        any(isinstance(each, Running) and each.loading for each in before.requests),
        bool(before.copies),
        after.queue == before.queue and bool(blocks),
    )
