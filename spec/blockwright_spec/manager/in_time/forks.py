"""Part one, chapter 33: forks: a request that goes on from where another is, and what is copied when they part.

Parallel sampling and beam search start requests from the tokens of another. A fork shares every block of its parent, a
partial one included; whichever of them writes to that first has it copied (chapter `effects`). The engine takes the
copies and runs them before its next step; until then both ends of a copy are held (COPY-1). An engine that copies as it
forks has the child's own block at once instead, so that no copy is to come (FORK-1).

A request that shares all its blocks gives none back when it is preempted. So an engine that needs room asks how many
blocks a request *holds alone*, and preempts until something came free (ALONE-1).
"""

from dataclasses import replace

from ...reads import Cross, cut, states_beside
from ..chapters import order_of
from ..choices import Choice, legal_order, legal_taking
from ..effects import enqueue, new_entries, take_blocks
from ..facts import certain, comes_free, covers, in_flight, owned, recurrent, runs_ahead, sharers, span
from ..keys import upto
from ..outcomes import Done, Outcome, Reason, Refusal, transition
from ..page import acts, pins, states_of, tables_of
from ..publication import publish_due_states, put_request
from ..seam import note, write_blocks
from ..state import NULL, Content, Running, State, Table, Waiting

Entries = tuple[tuple[int, int], ...]
"""Groups, each with an entry of a request's table."""


@transition
def fork(state: State, parent: int, child: int, choice: Choice, own: Entries = ()) -> Outcome:
    """Start a request on the blocks of another, with its computed tokens: ``fork`` (READ-1, WRITE-1).

    The parent's last step has run by then. Drafts of it that were not accepted by now are given up. Only the states of
    drafts take new blocks, and the child's `own` entries: ``fork_with_copies`` copies those that it goes on to write.
    """
    # REFUSE
    if refusal := unforkable(state, parent, child):
        return refusal
    states = ((True,) * states_beside(group.kind) for group in state.config.groups)
    wants = ((True,) * len(own), *states)
    count = sum(map(len, wants))
    if count > len(state.queue):
        return Refusal(Reason.NO_FREE_BLOCKS, count - len(state.queue))
    # CHOOSE
    whose = next((each.prefix[0] for each in state.requests[parent : parent + 1] if isinstance(each, Running)), 0)
    taken = choice.take(order_of(state, whose, count), count)
    if not legal_taking(state.queue, count, taken):
        return Refusal(Reason.ILLEGAL_CHOICE)
    # EFFECT
    copies, *new = new_entries(taken, wants)
    place = dict(zip(own, copies, strict=True))
    tables = shared(state, parent, place)
    held = acts("hold", tables_of(child, len(tables)), tables)
    mine = tuple(act._replace(verb="take") if act.block in copies else act for act in held)
    steps = (*mine, *acts("take", states_of(child, len(new)), tuple(new)))
    ready = publish_due_states(take_blocks(state, taken, steps), parent)
    written = write_blocks(ready, copied(state, parent, place))
    return Done(fork_table(written, parent, child, tables, tuple(new)), demand=count)
    # SAME: the parent's blocks, keys of other requests' blocks, contents of blocks that were not taken.


def written_next(state: State, parent: int) -> Entries:
    """Return the entries that the token behind a request's computed ones is written to, where it has them already."""
    one = state.requests[parent]
    places = tuple(
        (at, one.computed // span(state.config, group), covers(state.config, group, one.computed))
        for at, group in enumerate(state.config.groups)
        if isinstance(one, Running) and one.computed < state.config.max_model_len
    )
    return tuple((at, entry) for at, entry, count in places if entry < count)


def shared(state: State, parent: int, own: dict[tuple[int, int], int]) -> tuple[Table, ...]:
    """Return the entries of a request's computed tokens, which a fork of it has too, but for its own."""
    one = state.requests[parent]
    assert isinstance(one, Running)
    return tuple(
        tuple(
            own.get((at, entry), block)
            for entry, block in enumerate(table)
            if isinstance(group.kind, Cross) or entry < covers(state.config, group, one.computed)
        )
        for at, (group, table) in enumerate(zip(state.config.groups, one.tables, strict=True))
    )


def copied(state: State, parent: int, own: dict[tuple[int, int], int]) -> dict[int, Content | None]:
    """Return what a fork's own entries hold: the computed tokens of its parent's, and nothing behind them."""
    one = state.requests[parent]
    assert isinstance(one, Running)
    return {block: upto(state.contents[one.tables[at][entry]], one.computed) for (at, entry), block in own.items()}


def fork_table(state: State, parent: int, child: int, tables: tuple[Table, ...], states: tuple[Table, ...]) -> State:
    """Give a request the tables of a fork of another's computed tokens, and new states of drafts."""
    config, one, other = state.config, state.requests[parent], state.requests[child]
    assert isinstance(one, Running)
    assert isinstance(other, Waiting)
    done = one.settled if config.overlaps else one.computed
    kept = replace(one, settled=done, written=one.computed, uncertain=0)
    twin = replace(kept, prefix=other.prefix, tables=tables, states=states)
    for chapter in config.chapters:
        twin = chapter.fork(twin)
    return put_request(put_request(state, parent, kept), child, twin)


def unforkable(state: State, parent: int, child: int) -> Refusal | None:
    """Refuse a fork of tokens that are not settled, or to a request that is another's continuation."""
    one, other = state.requests[parent], state.requests[child]
    if not isinstance(one, Running):
        return Refusal(Reason.NOT_RUNNING)
    if not isinstance(other, Waiting):
        return Refusal(Reason.NOT_WAITING)
    if one.coming > 0:
        return Refusal(Reason.LOADING)
    if one.is_lost:
        return Refusal(Reason.GIVEN_UP)
    if in_flight(state, parent) or (state.config.overlaps and one.computed < one.written):
        return Refusal(Reason.UNSETTLED)
    if runs_ahead(state.config) or (recurrent(state.config) and one.computed != certain(one)):
        return Refusal(Reason.STATE_ELSEWHERE)
    if one.computed < one.settled:  # more are done than are known
        return Refusal(Reason.WENT_BACK)
    if any(target in table for _, _, target in state.copies for table in one.tables):
        return Refusal(Reason.UNCOPIED)
    same = cut(one.prefix, one.computed) == cut(other.prefix, one.computed)
    return None if same else Refusal(Reason.NOT_A_FORK)


@transition
def take_copies(state: State, choice: Choice) -> Outcome:
    """Hand the engine the copies since it last took them, and let go of their ends: ``take_copies`` (COPY-1)."""
    # CHOOSE
    ends = tuple(block for _, source, target in state.copies for block in (source, target))
    order = choice.order((ends,))
    if not legal_order(ends, order):
        return Refusal(Reason.ILLEGAL_CHOICE)
    # EFFECT
    let_go = tuple(dict.fromkeys(order[::-1]))[::-1]  # a source of several copies goes with the last of them
    return Done(enqueue(note(state, pins("drop", "copies", order), copies=()), let_go))
    # SAME: tables, keys, contents of published blocks.


def held_alone(state: State, slot: int) -> frozenset[int]:
    """Return the blocks that a running request alone holds: all that come free if it is preempted now (ALONE-1).

    Those that a step in flight or a load still touches come free once that has ended.
    """
    request = state.requests[slot]
    own = owned(request) if isinstance(request, Running) else ()
    return frozenset(block for table in own for block in table if block != NULL and comes_free(state, block))


def law_preemption_frees_its_own(before: State, done: Done) -> bool:
    """ALONE-1: a request that ends or is preempted gives back exactly the blocks that it held alone, if need be later.

    Later is when no step in flight or load touches them any more. One that shares all with forks gives nothing back.
    """
    after = done.state
    ended = tuple(
        slot
        for slot, (old, new) in enumerate(zip(before.requests, after.requests, strict=True))
        if isinstance(old, Running) and not isinstance(new, Running)
    )
    if not ended:
        return True
    fences = tuple(fence for fence in after.batches if fence not in before.batches)
    later = {block for fence in fences for table in fence.tables for block in table if comes_free(after, block)}
    freed = frozenset(after.queue) - frozenset(before.queue) | later
    return all(freed == held_alone(before, slot) for slot in ended)


def law_copied_fork_is_apart(before: State, done: Done) -> bool:
    """FORK-1: a fork that begins with copies shares no block that it goes on to write, and no copy of it is to come."""
    places = {act.place[0] for act in done.steps if act.verb == "take"}
    return bool(done.new) or all(
        done.state.copies == before.copies
        and all(
            isinstance(group.kind, Cross) or sharers(done.state, block) == 1
            for group, table in zip(before.config.groups, new.tables, strict=True)
            for block in table[new.computed // span(before.config, group) :]
        )
        for slot, (old, new) in enumerate(zip(before.requests, done.state.requests, strict=True))
        if isinstance(new, Running) and not isinstance(old, Running)
        if not places.isdisjoint((slot, at) for at in range(len(new.tables)))
    )
