"""Chapter 9: the parts that transitions are made of, down to `serve`, what a step of the model comes to.

Groups stand side by side: what is released is one batch in the order of groups, and all groups have adopted their hits
before any of them takes a block.
"""

from dataclasses import replace

from .choices import Choice, legal_order, legal_taking
from .hits import lost
from .outcomes import Done, Outcome, Publication, Reason, Refusal, Step
from .plans import let_go, planned
from .reads import Group, Mamba, cut, writes
from .state import (
    NULL,
    Absent,
    Copy,
    Fence,
    Flight,
    Request,
    Running,
    State,
    Table,
    Waiting,
    certain,
    held_tables,
    in_flight,
    key,
    later,
    owned,
    span,
)


def replaced(state: State, slot: int, request: Request) -> State:
    """Put a request in its slot."""
    requests = (*state.requests[:slot], request, *state.requests[slot + 1 :])
    return State(state.config, state.queue, state.contents, state.keys, requests, *later(state))


def requeued(state: State, released: tuple[int, ...]) -> State:
    """Queue the released blocks that nobody holds any more: without content at the head, candidates at the tail.

    One after another, in the order given, so that the last block without content is the next to be taken (QUEUE-1).
    What an unpublished block holds can no longer be found: its content is forgotten (GHOST-1).
    """
    held = frozenset(block for table in held_tables(state) for block in table)
    freed = tuple(block for block in released if block not in held)
    published = frozenset(block for block, _ in state.keys)
    bare = tuple(block for block in freed if block not in published)
    candidates = tuple(block for block in freed if block in published)
    contents = tuple(None if block in bare else content for block, content in enumerate(state.contents))
    queue = (*bare[::-1], *state.queue, *candidates)
    return State(state.config, queue, contents, state.keys, state.requests, *later(state))


def adopted(state: State, tables: tuple[Table, ...]) -> State:
    """Take the blocks of some tables that were free out of the queue; they keep their keys and contents."""
    held = frozenset(block for table in tables for block in table)
    queue = tuple(block for block in state.queue if block not in held)
    return State(state.config, queue, state.contents, state.keys, state.requests, *later(state))


def emptied(state: State, taken: tuple[int, ...]) -> State:
    """Take blocks out of the queue; what they held is lost, and exactly their keys are dropped (KEY-1)."""
    queue = tuple(block for block in state.queue if block not in taken)
    contents = tuple(None if block in taken else content for block, content in enumerate(state.contents))
    keys = tuple(published for published in state.keys if published[0] not in taken)
    return State(state.config, queue, contents, keys, state.requests, *later(state))


def placed(taken: tuple[int, ...], wants: tuple[tuple[bool, ...], ...]) -> tuple[Table, ...]:
    """Give the new entries of each group: the blocks taken, in order, and null where a state is jumped over."""
    before = tuple(sum(sum(wanted) for wanted in wants[:at]) for at in range(len(wants)))
    return tuple(
        tuple(taken[start + sum(wanted[:entry])] if takes else NULL for entry, takes in enumerate(wanted))
        for start, wanted in zip(before, wants, strict=True)
    )


def copied(tables: tuple[Table, ...], copies: tuple[Copy, ...], entries: tuple[int | None, ...]) -> tuple[Table, ...]:
    """Put the blocks that were copied to in place of those they are copied from."""
    targets = {group: block for group, _, block in copies}
    return tuple(
        tuple(targets[at] if entry == entries[at] else block for entry, block in enumerate(table))
        for at, table in enumerate(tables)
    )


def target(request: Running, at: int, group: Group, size: int, place: int) -> int:
    """Give the block that a position is written to: a draft's state has a block of its own (MAMBA-3)."""
    if isinstance(group.kind, Mamba) and place >= certain(request):
        return request.states[at][place - certain(request)]
    return request.tables[at][place // size]


def written(state: State, slot: int, request: Running, start: int) -> State:
    """Write the tokens from `start` to the request's computed ones into its blocks, and put it in its slot."""
    config = state.config
    into = {
        target(request, at, group, span(config, group), place): (at, cut(request.prefix, place + 1))
        for at, group in enumerate(config.groups)
        for place in writes(group.kind, start, request.computed)
    }
    contents = tuple(
        into.get(block, content) if block != NULL else None for block, content in enumerate(state.contents)
    )
    after = State(config, state.queue, contents, state.keys, state.requests, *later(state))
    return replaced(after, slot, request)


def publishable(request: Running, group: Group, at: int, count: int, stop: int) -> range:
    """Give the entries of a group that end at or before `count` tokens and were not looked at yet (PUB-1).

    Of a recurrent layer, that is the state after `count` tokens, if a block ends there and a step stopped there.
    """
    full = range(request.published[at], count // group.block_size)
    if isinstance(group.kind, Mamba):
        return full[-1:] if count % group.block_size == 0 and count == stop else full[:0]
    return full


def published(state: State, slot: int, count: int, stop: int) -> State:
    """Publish what `count` tokens filled in each group, after a step that ended at `stop`, group by group (PUB-1)."""
    request, config = state.requests[slot], state.config
    if not isinstance(request, Running) or not config.caching:
        return state
    full = tuple(publishable(request, group, at, count, stop) for at, group in enumerate(config.groups))
    keys = tuple(
        (request.tables[at][entry], (at, cut(request.prefix, (entry + 1) * group.block_size)))
        for at, group in enumerate(config.groups)
        for entry in full[at]
        if request.tables[at][entry] != NULL and key(state, request.tables[at][entry]) is None
    )
    looked = tuple(max(was, entries.stop) for was, entries in zip(request.published, full, strict=True))
    if looked == request.published:
        return state
    after = State(config, state.queue, state.contents, state.keys + keys, state.requests, *later(state))
    return replaced(after, slot, replace(request, published=looked))


def serve(state: State, slot: int, start: Running, begin: int, step: Step, choice: Choice) -> Outcome:
    """Trim, adopt, take, write and publish: the whole of a step from token `begin` on, or none of it."""
    # REFUSE
    plan = planned(state, start, begin, step, not isinstance(state.requests[slot], Running))
    if isinstance(plan, Refusal):
        return plan
    # CHOOSE
    batch = let_go(start.tables, plan.gone)
    order, wants = choice.order(batch), (*plan.wants, *((True,) * count for count in plan.states))
    kept = replace(start, tables=plan.tables, trimmed=start.settled)
    freed = adopted(requeued(replaced(state, slot, kept), order), plan.tables)
    shared = tuple((at, kept.tables[at][entry]) for at, entry in enumerate(plan.copied) if entry is not None)
    count = len(shared) + sum(sum(wanted) for wanted in wants)
    taken = choice.take(freed.queue, count)
    if not (legal_order(sum(batch, ()), order) and legal_taking(freed.queue, count, taken)):
        return Refusal(Reason.ILLEGAL_CHOICE)
    # EFFECT
    new = placed(taken[len(shared) :], wants)
    copies = tuple((at, source, block) for (at, source), block in zip(shared, taken, strict=False))
    own = replace(kept, tables=copied(kept.tables, copies, plan.copied)) if copies else kept
    after = stepped(duplicated(emptied(freed, taken), copies), slot, own, new, begin, step)
    return Done(after, new[: len(plan.wants)], plan.gone, plan.demand, plan.copied, lost(freed, taken))
    # SAME: other requests; the entries of this one that were not dead; keys of blocks that were not taken.


def duplicated(state: State, copies: tuple[Copy, ...]) -> State:
    """Copy contents, and note the copies for the engine, which runs them before its step (COPY-1)."""
    contents = {target: state.contents[source] for _, source, target in copies}
    after = tuple(contents.get(block, content) for block, content in enumerate(state.contents))
    return replace(state, contents=after, copies=state.copies + copies) if copies else state


def blanked(state: State, request: Running) -> State:
    """Forget the states of a request's earlier drafts: those of the next are written over them (MAMBA-3)."""
    states = frozenset(block for blocks in request.states for block in blocks)
    contents = tuple(None if block in states else content for block, content in enumerate(state.contents))
    return replace(state, contents=contents)


def stepped(state: State, slot: int, start: Running, new: tuple[Table, ...], begin: int, step: Step) -> State:
    """Let a request have its new blocks, write what the step computes, and publish it unless that waits."""
    config, groups, stop = state.config, len(state.config.groups), begin + step.new
    known = min(stop, len(start.prefix[1]))
    request = replace(
        start,
        computed=known,
        written=stop,
        tables=tuple(table + more for table, more in zip(start.tables, new[:groups], strict=True)),
        states=start.states or new[groups:],
        drafts=step.drafts if config.overlaps else stop - known,
        loading=step.external,
    )
    after = written(blanked(state, request), slot, request, begin)
    if config.overlaps and step.new:
        flight = Flight(slot, begin, stop, owned(request), step.drafts)
        after = replace(after, flights=(*after.flights[:-1], (*after.flights[-1], flight)))
    waits = config.settles or step.publication is Publication.LATER or step.external
    return after if waits else published(after, slot, request.computed, certain(request))


def vacated(state: State, slot: int, successor: Absent | Waiting, choice: Choice) -> Outcome:
    """Release all blocks of a slot as one batch and leave `successor` in it (FENCE-1).

    While a step in flight computes tokens of the request, or a load of it is on its way, the batch waits for that.
    """
    request = state.requests[slot]
    tables = owned(request) if isinstance(request, Running) else ()
    batch = tuple(tuple(block for block in table if block != NULL) for table in tables)
    steps, is_loading = in_flight(state, slot), isinstance(request, Running) and request.loading > 0
    left = replaced(state, slot, successor)
    fence = Fence(steps[-1] if steps else None, slot, batch)
    fenced = replace(left, flights=orphaned(state, slot), fences=(*state.fences, fence))
    return Done(fenced) if steps or is_loading else returned(fenced, (fence,), choice)


def orphaned(state: State, slot: int) -> tuple[tuple[Flight, ...], ...]:
    """Give the steps in flight after a request has gone: they still compute its tokens, and nobody asks for them."""
    return tuple(
        tuple(replace(flight, slot=None) if flight.slot == slot else flight for flight in step)
        for step in state.flights
    )


def returned(state: State, due: tuple[Fence, ...], choice: Choice) -> Outcome:
    """Take fences away, and release the blocks behind them, a batch after another."""
    for fence in due:
        # CHOOSE
        order = choice.order(fence.tables)
        if not legal_order(sum(fence.tables, ()), order):
            return Refusal(Reason.ILLEGAL_CHOICE)
        # EFFECT
        at = state.fences.index(fence)
        state = requeued(replace(state, fences=(*state.fences[:at], *state.fences[at + 1 :])), order)
    return Done(state)
    # SAME: keys, contents of published blocks, requests.
