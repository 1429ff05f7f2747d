"""Part one, chapter 40: slots that are given back before their step has run, while the request goes on.

An engine that cuts a batch to its budget, or forks a request whose slots are given, takes back a part of a step, or all
of it. The tables of the request are then those of a shorter step, and what it had published behind that is given up,
as where a request ends (chapter `giving_up`).
"""

from dataclasses import replace

from ...reads import Cross, Group, Mamba, cut
from ..choices import Choice, legal_order
from ..effects import enqueue, target
from ..ending import cut_off
from ..facts import covers, goes_back, runs_ahead, span
from ..keys import upto
from ..outcomes import Done, Outcome, Reason, Refusal, transition
from ..page import exchanges
from ..publication import put_request, stops, without_slot
from ..seam import note, write_blocks
from ..state import NULL, Config, Running, State, Table
from .giving_up import give_up, keys_behind, reached


@transition
def shorten(state: State, slot: int, count: int, choice: Choice) -> Outcome:
    """Give back the slots behind `count` tokens of a step that has not run, lookahead among them: ``shorten``.

    A recurrent state that was to stand at the step's end is to stand at the new one, in the same block.
    """
    # REFUSE
    request = state.requests[slot]
    if not isinstance(request, Running):
        return Refusal(Reason.NOT_RUNNING)
    if refusal := not_shortened(state.config, request, count):
        return Refusal(refusal)
    # CHOOSE
    pairs = tuple(zip(state.config.groups, request.tables, strict=True))
    left = tuple(
        len(table) if isinstance(group.kind, Cross) else covers(state.config, group, count) for group, table in pairs
    )
    tables = tuple(cut_off(*pair, count) for pair, count in zip(pairs, left, strict=True))
    batch = tuple(
        tuple(block for block in table if block != NULL and block not in kept)
        for table, kept in zip(request.tables, tables, strict=True)
    )
    order = choice.order(batch)
    if not legal_order(sum(batch, ()), order):
        return Refusal(Reason.ILLEGAL_CHOICE)
    # EFFECT
    starts = reached(state, {slot: count})
    gone = keys_behind(state, starts)
    back = step_back(give_up(state, slot, starts, gone), slot, tables, count)
    return Done(enqueue(note(back, exchanges(slot, request.tables, tables)), order), kept=count)
    # SAME: entries up to `count`, and the keys of what has run.


def not_shortened(config: Config, request: Running, count: int) -> Reason | None:
    """Return why a request's last step, which began behind the settled tokens, is not made to end at `count`, or None.

    A draft's state that the step has read is not in the table, so that nobody could go on from it without the step.
    """
    if config.overlaps or request.coming:
        return Reason.LOADING if request.coming else Reason.IN_FLIGHT
    if not request.settled <= count <= request.written:
        return Reason.WENT_BACK if count < request.settled else Reason.UNWRITTEN
    if runs_ahead(config) or (count == request.settled and goes_back(config)):
        return Reason.STATE_ELSEWHERE
    return Reason.NO_CHECKPOINT if request.inside > request.settled else None


def step_back(state: State, slot: int, tables: tuple[Table, ...], count: int) -> State:
    """Let a request be as after a step up to `count` tokens: with the states and what is due of that."""
    request, config = state.requests[slot], state.config
    assert isinstance(request, Running)
    known = min(count, len(request.prefix[1]))
    short = replace(request, tables=tables, computed=known, written=count, uncertain=count - known)
    short = replace(short, folded=min(request.folded, count))
    states = {
        target(short, at, group, span(config, group), count - 1): (at, cut(short.prefix, count))
        for at, group in enumerate(config.groups)
        if isinstance(group.kind, Mamba) and 0 < count == known
    }
    ends = {table[count // span(config, group)] for group, table in partly(config, tables, count)}
    contents = {block: upto(content, count) for block, content in enumerate(state.contents) if block in ends}
    leaves = slot in state.due or count > request.settled
    is_due = leaves and not (request.is_delayed or config.settles)
    due = (*without_slot(state.due, slot), slot) if is_due and stops(config, short) else without_slot(state.due, slot)
    return put_request(replace(write_blocks(state, states | contents), due=due), slot, short)


def partly(config: Config, tables: tuple[Table, ...], count: int) -> tuple[tuple[Group, Table], ...]:
    """Return the groups whose tables end with a block that `count` tokens fill in part."""
    return tuple(
        (group, table)
        for group, table in zip(config.groups, tables, strict=True)
        if not isinstance(group.kind, Cross | Mamba) and count % span(config, group)
    )


def law_slots_are_given_back(before: State, done: Done) -> bool:
    """GIVEN-3: a request that gives slots back holds no entry that covers none of its tokens."""
    return done.kept is None or all(
        new.written == done.kept
        and all(
            isinstance(group.kind, Cross) or len(table) == covers(before.config, group, done.kept)
            for group, table in zip(before.config.groups, new.tables, strict=True)
        )
        for old, new in zip(before.requests, done.state.requests, strict=True)
        if isinstance(new, Running) and isinstance(old, Running) and new.written < old.written
    )
