"""What may happen in one call on a manager: its action, its refusal, and each particular of it.

Goals of scopes are made of these (`scope_goals`).
"""

from collections.abc import Iterator

from blockwright_spec.outcomes import Done
from blockwright_spec.state import NULL, Absent, Running, State, Waiting

from .actions import Action, Admit, AdmitHeld, Append, FinishLoad, Fork, Grow, GrowEach, Settle, Told


def particulars(before: State, action: Action, told: Told) -> Iterator[str]:
    """Give the particulars of one call: what was asked, by whom it was refused, and what came of it."""
    name = type(action).__name__
    if told.refusal is not None:
        yield f"{name} refused: {told.refusal.reason.name}"
        if not told.steps:
            return
    yield from (f"{name}: {each}" for each in (*asked(before, action, told), *came(before, told)))


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


def came(before: State, told: Told) -> Iterator[str]:
    """Give the particulars of what came of a call."""
    for step in told.steps:
        if isinstance(step, Done):
            yield from (name for name, is_so in happened(before, step).items() if is_so)


def happened(before: State, step: Done) -> dict[str, bool]:
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
