"""Part one, chapter 15: the parts that transitions are made of, down to `serve`, the effect of a step of the model.

Groups stand side by side: what is released is one batch in the order of groups, and all groups have adopted their hits
before any of them takes a block.
"""

from dataclasses import replace
from typing import Any

from ..reads import Ahead, Group, Mamba, cut, saved_end, writes
from .chapters import order_of, said_of
from .choices import Choice, legal_order, legal_taking
from .facts import certain, held_tables, owned, runs_ahead, span
from .keys import upto
from .outcomes import Done, Fits, Outcome, Publication, Reason, Refusal, Step
from .page import Act, Acts, acts, nulls, pins, states_of, tables_of
from .plans import let_go, planned
from .preconditions import kept_inside, trim_end
from .publication import publish_due_states, publish_step, put_request
from .seam import note, write_blocks
from .state import NULL, Config, Copy, Flight, Running, State, Table


def enqueue(state: State, released: Table, said: tuple[Any, ...] = (), batch: tuple[Table, ...] = ()) -> State:
    """Queue the released blocks that have no holder any more: without content at the head, candidates at the tail.

    One after another, in the order given, so that the last block without content is the next to be taken (QUEUE-1).
    The content of an unpublished block can no longer be found: it is forgotten (GHOST-1). Where a request lets go of a
    batch, something may be said of it.
    """
    for at, chapter in enumerate(state.config.chapters):
        state = chapter.release(state, batch, released, said[at] if said else None)
    held = frozenset(block for table in held_tables(state) for block in table)
    freed = tuple(block for block in released if block not in held)
    published = frozenset(block for block, _ in state.keys)
    bare = tuple(block for block in freed if block not in published)
    candidates = tuple(block for block in freed if block in published)
    contents = tuple(None if block in bare else content for block, content in enumerate(state.contents))
    back = tuple(block for block in bare[::-1] if block < state.config.num_blocks)  # others are beyond the end
    queue = (*back, *state.queue, *candidates)
    return replace(state, queue=queue, contents=contents)


def adopt(state: State, tables: tuple[Table, ...], steps: Acts = ()) -> State:
    """Take the blocks of some tables that were free out of the queue; they keep their keys and contents."""
    held = frozenset(block for table in tables for block in table)
    free = tuple(block for block in state.queue if block not in held)
    return note(state, steps, queue=free)


def take_blocks(state: State, taken: tuple[int, ...], steps: Acts = ()) -> State:
    """Take blocks out of the queue; their content is lost, and exactly their keys are dropped (KEY-1)."""
    queue = tuple(block for block in state.queue if block not in taken)
    contents = tuple(None if block in taken else content for block, content in enumerate(state.contents))
    keys = tuple(published for published in state.keys if published[0] not in taken)
    return note(state, steps, queue=queue, contents=contents, keys=keys)


def new_entries(taken: tuple[int, ...], wants: tuple[tuple[bool, ...], ...]) -> tuple[Table, ...]:
    """Return the new entries of each group: the blocks taken, in order, and null where a state is jumped over."""
    before = tuple(sum(sum(wanted) for wanted in wants[:at]) for at in range(len(wants)))
    return tuple(
        tuple(taken[start + sum(wanted[:entry])] if takes else NULL for entry, takes in enumerate(wanted))
        for start, wanted in zip(before, wants, strict=True)
    )


def own_copies(state: State, slot: int, copies: tuple[Copy, ...], entries: tuple[int | None, ...]) -> Running:
    """Return a request with the blocks that were copied to in place of those they are copied from."""
    request, targets = state.requests[slot], {group: block for group, _, block in copies}
    assert isinstance(request, Running)
    tables = (
        tuple(targets[at] if entry == entries[at] else block for entry, block in enumerate(table))
        for at, table in enumerate(request.tables)
    )
    return replace(request, tables=tuple(tables)) if copies else request


def target(request: Running, at: int, group: Group, size: int, place: int) -> int:
    """Return the block that a position is written to: a draft's state has a separate block (MAMBA-3)."""
    if isinstance(group.kind, Mamba) and not isinstance(group.kind, Ahead) and place >= certain(request):
        return request.states[at][place - certain(request)]
    return request.tables[at][place // size]


def write_tokens(state: State, slot: int, request: Running, start: int, is_whole: bool = True) -> State:
    """Write the tokens from `start` to the request's computed ones into its blocks, and put it in its slot.

    If they are a part of what was to be written, no state is there: it is that of the end or none. Which of the entries
    from that of the last token on has its state, while a recurrent layer runs ahead, is up to the engine's worker; here
    it is the first. The worker has copied the state at the last block end to its own (MAMBA-6).
    """
    config = state.config
    into = {
        target(request, at, group, span(config, group), place): (at, cut(request.prefix, place + 1))
        for at, group in enumerate(config.groups)
        if is_whole or not isinstance(group.kind, Mamba)
        for place in (*left_inside(request, group, start), *writes(group.kind, start, request.computed))
    }
    return put_request(write_blocks(state, into), slot, request)


def left_inside(request: Running, group: Group, start: int) -> tuple[int, ...]:
    """Return the tokens after `start` whose state a recurrent layer leaves besides the last: before ends of blocks.

    That is one that it was asked for (MAMBA-7), and in a layer that runs ahead that of the last block end.
    """
    end = saved_end(request.saved, group.block_size, request.computed) if isinstance(group.kind, Ahead) else 0
    places = (request.inside, end) if isinstance(group.kind, Mamba) else ()
    return tuple(place - 1 for place in places if place > start)


def serve(state: State, slot: int, start: Running, begin: int, step: Step, choice: Choice) -> Outcome:
    """Trim, adopt, take, write and publish: the whole of a step from token `begin` on, or none of it."""
    # REFUSE
    plan = planned(state, slot, start, begin, step)
    if isinstance(plan, Refusal):
        return plan
    # CHOOSE
    batch, wants = let_go(start.tables, plan.gone), (*plan.wants, *((True,) * count for count in plan.states))
    order, kept = choice.order(batch), trim_start(state.config, start, plan.tables)
    cut = note(put_request(state, slot, kept), nulls(slot, start.tables, plan.gone))
    freed = adopt(enqueue(cut, order, said_of(state.config, start, plan.gone)), plan.tables, holds(state, slot, plan))
    shared, over = (blocks_at(kept.tables, entries) for entries in (plan.copied, plan.outgrown))
    sources, blocks = (*shared, *over) if plan.saves else shared, tuple(block for _, block in over)
    count = len(sources) + sum(sum(wanted) for wanted in wants)
    taken = choice.take(order_of(freed, start.prefix[0], count), count)
    if not (legal_order(sum(batch, ()), order) and legal_taking(freed.queue, count, taken)):
        return Refusal(Reason.ILLEGAL_CHOICE)
    # EFFECT
    new = new_entries(taken[len(sources) :], wants)
    copies = tuple((at, source, block) for (at, source), block in zip(sources, taken, strict=False))
    mine = take_blocks(freed, taken, steps_of_taking(freed, slot, plan, copies, new))
    ready = copy_blocks(publish_due_states(mine, slot), copies, begin)
    for chapter in state.config.chapters:
        ready = chapter.overwrite(ready, blocks, copies, start)
    after = take_slots(ready, slot, own_copies(ready, slot, copies[: len(shared)], plan.copied), new, begin, step)
    return Done(after, new[: len(plan.wants)], plan.gone, plan.demand, plan.copied)
    # SAME: other requests; the entries of this one that were not dead; keys of blocks that were not taken.


def holds(state: State, slot: int, plan: Fits) -> Acts:
    """Return the steps by which a newcomer holds the blocks of its hit."""
    held = () if isinstance(state.requests[slot], Running) else plan.tables
    return acts("hold", tables_of(slot, len(held)), held)


def steps_of_taking(state: State, slot: int, plan: Fits, copies: tuple[Copy, ...], new: tuple[Table, ...]) -> Acts:
    """Return the steps by which a request takes blocks: for entries that are copied, states that are saved, new ones.

    Both ends of a copy are held until the engine has run it.
    """
    groups, origins = len(plan.tables), {target: source for _, source, target in state.copies}
    count = sum(entry is not None for entry in plan.copied)
    sources = pins("hold", "copies", (origins.get(source, source) for _, source, _ in copies))
    parted = tuple(
        act
        for at, source, target in copies[:count]
        for place in (((slot, at), plan.copied[at] or 0),)
        for act in (Act("drop", source, place), Act("take", target, place), *pins("hold", "copies", (target,)))
    )
    saved = pins("take", "copies", (target for _, _, target in copies[count:]))
    entries = acts("take", tables_of(slot, groups), new[:groups], plan.tables)
    return (*sources, *parted, *saved, *entries, *acts("take", states_of(slot, groups), new[groups:]))


def trim_start(config: Config, start: Running, tables: tuple[Table, ...]) -> Running:
    """Return a request with trimmed tables; of a state inside that is published or given up, nothing more is noted."""
    trimmed = max(start.trimmed, trim_end(config, start, start.settled))
    inside = kept_inside(config, start, start.settled)
    return replace(start, tables=tables, trimmed=trimmed, inside=inside, is_inside=False)


def blocks_at(tables: tuple[Table, ...], entries: tuple[int | None, ...]) -> tuple[tuple[int, int], ...]:
    """Return the blocks at some entries, one per group or none, each with the number of its group."""
    return tuple((at, tables[at][entry]) for at, entry in enumerate(entries) if entry is not None)


def copy_blocks(state: State, copies: tuple[Copy, ...], begin: int) -> State:
    """Copy contents, and note the copies for the engine, which runs them before its step (COPY-1).

    The step begins at token `begin`: what a source holds beyond that is another request's. What a source is still to
    get from elsewhere, its copy gets from there too.
    """
    contents = {target: upto(state.contents[source], begin) for _, source, target in copies}
    origins = {target: source for _, source, target in state.copies}
    due = tuple((at, origins.get(source, source), target) for at, source, target in copies)
    return replace(write_blocks(state, contents), copies=state.copies + due) if copies else state


def take_slots(state: State, slot: int, start: Running, new: tuple[Table, ...], begin: int, step: Step) -> State:
    """Let a request have its new blocks, write what the step computes, and publish it unless that waits."""
    config, groups, stop = state.config, len(state.config.groups), begin + step.new
    known = min(stop, len(start.prefix[1]))
    states = start.states or new[groups:]
    first = min(stop + step.coming(), len(start.prefix[1]))  # a step over known tokens leaves a gap before it
    saved = first if runs_ahead(config) and first > max(begin, start.written) + 1 else start.saved
    request = replace(
        start,
        computed=known,
        written=stop,
        tables=tuple(table + taken for table, taken in zip(start.tables, new[:groups], strict=True)),
        states=states,
        uncertain=step.uncertain() if config.overlaps else stop - known,
        saved=saved,
        inside=step.inside() or start.inside,
        coming=step.coming(),
    )
    bare = write_blocks(state, {block: None for blocks in states for block in blocks})  # of earlier drafts (MAMBA-3)
    after = write_tokens(bare, slot, request, begin)
    if config.overlaps and step.new:
        flight = Flight(slot, begin, stop, owned(request), step.uncertain())
        after = replace(after, flights=(*after.flights[:-1], (*after.flights[-1], flight)))
    is_delayed = step.new == 0 or step.publication is Publication.LATER
    return publish_step(after, slot, not (is_delayed or config.settles), is_delayed)
