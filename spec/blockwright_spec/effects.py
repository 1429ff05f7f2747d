"""Chapter 7: the parts that transitions are made of, down to `serve`, what a step of the model comes to.

Groups stand side by side: what is counted is summed over them, what is released is one batch in the order of groups,
and all groups have adopted their hits before any of them takes a block.
"""

from dataclasses import replace

from .choices import Choice, legal_order, legal_taking
from .outcomes import Done, Outcome, Publication, Reason, Refusal, Step
from .reads import Group, Mamba, Prefix, cut, dead, filled, writes
from .state import (
    NULL,
    Absent,
    Config,
    Request,
    Running,
    State,
    Table,
    Waiting,
    covers,
    holders,
    recurrent,
    running,
    span,
)


def misuse(config: Config, prefix: Prefix, adopted: int, computed: int, step: Step) -> Refusal | None:
    """Refuse a step no state of the pool could serve: of no tokens, of too many, or of drafts to a recurrent layer."""
    stop = computed + step.new
    if step.new < 0 or step.lookahead < 0:
        return Refusal(Reason.NEGATIVE)
    if step.new == 0 and adopted == 0:
        return Refusal(Reason.NO_TOKENS)
    if stop > config.max_model_len:
        return Refusal(Reason.TOO_LONG)
    if recurrent(config) and (step.lookahead > 0 or stop > len(prefix[1])):
        return Refusal(Reason.STATE_DRAFTED)
    return None


def trimmed(config: Config, group: Group, table: Table, settled: int) -> Table:
    """Replace the dead entries of a table by the null block (TRIM-1)."""
    size = span(config, group)
    return tuple(
        NULL if block == NULL or dead(group.kind, size, settled, entry) else block for entry, block in enumerate(table)
    )


def trimmed_tables(config: Config, tables: tuple[Table, ...], settled: int) -> tuple[Table, ...]:
    """Trim the table of every group (TRIM-1)."""
    return tuple(trimmed(config, group, table, settled) for group, table in zip(config.groups, tables, strict=True))


def nulled(before: tuple[Table, ...], after: tuple[Table, ...]) -> tuple[tuple[int, ...], ...]:
    """Give, per group, the entries that held a block and hold none now."""
    return tuple(
        tuple(entry for entry, block in enumerate(old) if block != new[entry])
        for old, new in zip(before, after, strict=True)
    )


def let_go(tables: tuple[Table, ...], gone: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Give, per group, the blocks at some entries."""
    return tuple(tuple(table[entry] for entry in dying) for table, dying in zip(tables, gone, strict=True))


def wanted(config: Config, group: Group, held: int, start: int, slots: int) -> tuple[bool, ...]:
    """Tell for each entry after the first `held` whether it takes a block; a state jumps over the others (MAMBA-1)."""
    kept = filled(group.kind, span(config, group), start, slots)
    return tuple(entry in kept for entry in range(held, covers(config, group, slots)))


def shortage(state: State, freed: tuple[int, ...], tables: tuple[Table, ...], new: int) -> Refusal | None:
    """Refuse a demand (new blocks, and hits that are free now) above the free blocks, those let go included."""
    held = tuple(block for table in tables for block in table if block != NULL)
    if len(held) + new > state.config.num_blocks - 1:
        return Refusal(Reason.POOL_TOO_SMALL)
    alone = sum(holders(state, block) == 1 for block in freed)
    if new + sum(block in state.queue for block in held) > len(state.queue) + alone:
        return Refusal(Reason.NO_FREE_BLOCKS)
    return None


def replaced(state: State, slot: int, request: Request) -> State:
    """Put a request in its slot."""
    requests = (*state.requests[:slot], request, *state.requests[slot + 1 :])
    return State(state.config, state.queue, state.contents, state.keys, requests)


def requeued(state: State, released: tuple[int, ...]) -> State:
    """Queue the released blocks that nobody holds any more: without content at the head, candidates at the tail.

    One after another, in the order given, so that the last block without content is the next to be taken (QUEUE-1).
    What an unpublished block holds can no longer be found: its content is forgotten (GHOST-1).
    """
    held = frozenset(block for request in running(state) for table in request.tables for block in table)
    freed = tuple(block for block in released if block not in held)
    if not freed:
        return state
    published = frozenset(block for block, _ in state.keys)
    bare = tuple(block for block in freed if block not in published)
    candidates = tuple(block for block in freed if block in published)
    contents = tuple(None if block in bare else content for block, content in enumerate(state.contents))
    return State(state.config, (*bare[::-1], *state.queue, *candidates), contents, state.keys, state.requests)


def adopted(state: State, tables: tuple[Table, ...]) -> State:
    """Take the blocks of some tables that were free out of the queue; they keep their keys and contents."""
    held = frozenset(block for table in tables for block in table)
    queue = tuple(block for block in state.queue if block not in held)
    return State(state.config, queue, state.contents, state.keys, state.requests)


def emptied(state: State, taken: tuple[int, ...]) -> State:
    """Take blocks out of the queue; what they held is lost, and exactly their keys are dropped (KEY-1)."""
    queue = tuple(block for block in state.queue if block not in taken)
    contents = tuple(None if block in taken else content for block, content in enumerate(state.contents))
    keys = tuple(published for published in state.keys if published[0] not in taken)
    return State(state.config, queue, contents, keys, state.requests)


def placed(taken: tuple[int, ...], wants: tuple[tuple[bool, ...], ...]) -> tuple[Table, ...]:
    """Give the new entries of each group: the blocks taken, in order, and null where a state is jumped over."""
    before = tuple(sum(sum(wanted) for wanted in wants[:at]) for at in range(len(wants)))
    return tuple(
        tuple(taken[start + sum(wanted[:entry])] if takes else NULL for entry, takes in enumerate(wanted))
        for start, wanted in zip(before, wants, strict=True)
    )


def written(state: State, slot: int, request: Running, start: int) -> State:
    """Write the tokens from `start` to the request's computed ones into its blocks, and put it in its slot."""
    config = state.config
    into = {
        request.tables[at][place // span(config, group)]: (at, cut(request.prefix, place + 1))
        for at, group in enumerate(config.groups)
        for place in writes(group.kind, start, request.computed)
    }
    contents = tuple(into.get(block, content) for block, content in enumerate(state.contents))
    return replaced(State(config, state.queue, contents, state.keys, state.requests), slot, request)


def publishable(request: Running, group: Group, at: int, count: int) -> range:
    """Give the entries of a group that end at or before `count` tokens and were not looked at yet (PUB-1).

    Of a recurrent layer, that is the state after `count` tokens, if a block ends there and it is still the last one.
    """
    full = range(request.published[at], count // group.block_size)
    if isinstance(group.kind, Mamba):
        return full[-1:] if count % group.block_size == 0 and count == request.computed else full[:0]
    return full


def published(state: State, slot: int, count: int) -> State:
    """Publish what `count` tokens filled in each group, group by group and in order (PUB-1)."""
    request, config = state.requests[slot], state.config
    if not isinstance(request, Running) or not config.caching:
        return state
    full = tuple(publishable(request, group, at, count) for at, group in enumerate(config.groups))
    keys = tuple(
        (request.tables[at][entry], (at, cut(request.prefix, (entry + 1) * group.block_size)))
        for at, group in enumerate(config.groups)
        for entry in full[at]
        if request.tables[at][entry] != NULL
    )
    looked = tuple(max(was, entries.stop) for was, entries in zip(request.published, full, strict=True))
    after = State(config, state.queue, state.contents, state.keys + keys, state.requests)
    return replaced(after, slot, replace(request, published=looked))


def serve(state: State, slot: int, start: Running, step: Step, choice: Choice) -> Outcome:
    """Trim, adopt, take, write and publish: the whole of a step, or none of it."""
    # REFUSE
    config, stop = state.config, start.computed + step.new
    slots = min(stop + step.lookahead, config.max_model_len)
    tables = trimmed_tables(config, start.tables, start.computed)
    gone = nulled(start.tables, tables)
    batch = tuple(block for table in let_go(start.tables, gone) for block in table)
    sized = zip(config.groups, tables, strict=True)
    wants = tuple(wanted(config, group, len(table), start.computed, slots) for group, table in sized)
    demand = sum(sum(takes) for takes in wants)
    if refusal := shortage(state, batch, tables, demand):
        return refusal
    # CHOOSE
    order = choice.order(let_go(start.tables, gone))
    freed = adopted(requeued(replaced(state, slot, replace(start, tables=tables)), order), tables)
    taken = choice.take(freed.queue, demand)
    if not (legal_order(batch, order) and legal_taking(freed.queue, demand, taken)):
        return Refusal(Reason.ILLEGAL_CHOICE)
    # EFFECT
    new = placed(taken, wants)
    grown = tuple(table + more for table, more in zip(tables, new, strict=True))
    request = Running(start.prefix, start.computed, min(stop, len(start.prefix[1])), stop, grown, start.published)
    after = written(emptied(freed, taken), slot, request, start.computed)
    now = step.publication is Publication.NOW
    return Done(published(after, slot, request.computed) if now else after, new, gone)
    # SAME: other requests; the entries of this one that were not dead; keys of blocks that were not taken.


def vacated(state: State, slot: int, successor: Absent | Waiting, choice: Choice) -> Outcome:
    """Release all blocks of a slot as one batch and leave `successor` in it."""
    request = state.requests[slot]
    tables = request.tables if isinstance(request, Running) else ()
    held = tuple(tuple(block for block in table if block != NULL) for table in tables)
    # CHOOSE
    order = choice.order(held)
    if not legal_order(tuple(block for table in held for block in table), order):
        return Refusal(Reason.ILLEGAL_CHOICE)
    # EFFECT
    return Done(requeued(replaced(state, slot, successor), order))
