"""Chapter 7: the parts that transitions are made of, down to `serve`, what a step of the model comes to."""

from dataclasses import replace

from .choices import Choice, legal_order, legal_taking
from .outcomes import Done, Outcome, Publication, Reason, Refusal, Step
from .reads import Mamba, Prefix, cut, dead, filled, writes
from .state import NULL, Absent, Config, Request, Running, State, Waiting, covers, holders, running, span


def misuse(config: Config, prefix: Prefix, adopted: int, computed: int, step: Step) -> Refusal | None:
    """Refuse a step no state of the pool could serve: of no tokens, of too many, or of drafts to a recurrent layer."""
    stop = computed + step.new
    if step.new < 0 or step.lookahead < 0:
        return Refusal(Reason.NEGATIVE)
    if step.new == 0 and adopted == 0:
        return Refusal(Reason.NO_TOKENS)
    if stop > config.max_model_len:
        return Refusal(Reason.TOO_LONG)
    if isinstance(config.kind, Mamba) and (step.lookahead > 0 or stop > len(prefix[1])):
        return Refusal(Reason.STATE_DRAFTED)
    return None


def trimmed(config: Config, table: tuple[int, ...], settled: int) -> tuple[int, ...]:
    """Replace the dead entries of a table by the null block (TRIM-1)."""
    size = span(config)
    return tuple(
        NULL if block == NULL or dead(config.kind, size, settled, entry) else block for entry, block in enumerate(table)
    )


def nulled(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...]:
    """Give the entries that held a block and hold none now."""
    return tuple(entry for entry, block in enumerate(before) if block != after[entry])


def wanted(config: Config, held: int, start: int, slots: int) -> tuple[bool, ...]:
    """Tell for each entry after the first `held` whether it takes a block; a state jumps over the others (MAMBA-1)."""
    kept = filled(config.kind, span(config), start, slots)
    return tuple(entry in kept for entry in range(held, covers(config, slots)))


def shortage(state: State, batch: tuple[int, ...], table: tuple[int, ...], new: int) -> Refusal | None:
    """Refuse a demand (new blocks, and hits that are free now) above the free blocks, those of `batch` included."""
    held = tuple(block for block in table if block != NULL)
    if len(held) + new > state.config.num_blocks - 1:
        return Refusal(Reason.POOL_TOO_SMALL)
    freed = sum(holders(state, block) == 1 for block in batch)
    if new + sum(block in state.queue for block in held) > len(state.queue) + freed:
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
    held = frozenset(block for request in running(state) for block in request.table)
    freed = tuple(block for block in released if block not in held)
    if not freed:
        return state
    published = frozenset(block for block, _ in state.keys)
    bare = tuple(block for block in freed if block not in published)
    candidates = tuple(block for block in freed if block in published)
    contents = tuple(None if block in bare else content for block, content in enumerate(state.contents))
    return State(state.config, (*bare[::-1], *state.queue, *candidates), contents, state.keys, state.requests)


def adopted(state: State, table: tuple[int, ...]) -> State:
    """Take the blocks of a table that were free out of the queue; they keep their keys and contents."""
    queue = tuple(block for block in state.queue if block not in table)
    return State(state.config, queue, state.contents, state.keys, state.requests)


def emptied(state: State, taken: tuple[int, ...]) -> State:
    """Take blocks out of the queue; what they held is lost, and exactly their keys are dropped (KEY-1)."""
    queue = tuple(block for block in state.queue if block not in taken)
    contents = tuple(None if block in taken else content for block, content in enumerate(state.contents))
    keys = tuple(published for published in state.keys if published[0] not in taken)
    return State(state.config, queue, contents, keys, state.requests)


def placed(taken: tuple[int, ...], wanted: tuple[bool, ...]) -> tuple[int, ...]:
    """Give the new entries of a table: the blocks taken, in order, and null where a state is jumped over."""
    return tuple(taken[sum(wanted[:entry])] if takes else NULL for entry, takes in enumerate(wanted))


def written(state: State, slot: int, request: Running, start: int) -> State:
    """Write the tokens from `start` to the request's computed ones into its blocks, and put it in its slot."""
    size = span(state.config)
    ends = {request.table[at // size]: at + 1 for at in writes(state.config.kind, start, request.computed)}
    contents = tuple(
        cut(request.prefix, ends[block]) if block in ends else content for block, content in enumerate(state.contents)
    )
    return replaced(State(state.config, state.queue, contents, state.keys, state.requests), slot, request)


def published(state: State, slot: int, count: int) -> State:
    """Publish a request's blocks that end at or before `count` tokens and were not looked at yet, in order (PUB-1).

    Of a recurrent layer, that is the state after `count` tokens, if a block ends there and it is still the last one.
    """
    request, config = state.requests[slot], state.config
    if not isinstance(request, Running) or not config.caching:
        return state
    full = range(request.published, count // config.block_size)
    if isinstance(config.kind, Mamba):
        full = full[-1:] if count % config.block_size == 0 and count == request.computed else full[:0]
    keys = tuple(
        (request.table[entry], cut(request.prefix, (entry + 1) * config.block_size))
        for entry in full
        if request.table[entry] != NULL
    )
    looked = max(request.published, full.stop)
    request = Running(request.prefix, request.settled, request.computed, request.written, request.table, looked)
    return replaced(State(config, state.queue, state.contents, state.keys + keys, state.requests), slot, request)


def serve(state: State, slot: int, start: Running, step: Step, choice: Choice) -> Outcome:
    """Trim, adopt, take, write and publish: the whole of a step, or none of it."""
    # REFUSE
    config, stop = state.config, start.computed + step.new
    table = trimmed(config, start.table, start.computed)
    gone = nulled(start.table, table)
    batch = tuple(start.table[entry] for entry in gone)
    takes = wanted(config, len(table), start.computed, min(stop + step.lookahead, config.max_model_len))
    if refusal := shortage(state, batch, table, sum(takes)):
        return refusal
    # CHOOSE
    order = choice.order(batch)
    kept = replaced(state, slot, replace(start, table=table))
    freed = adopted(requeued(kept, order), table)
    taken = choice.take(freed.queue, sum(takes))
    if not (legal_order(batch, order) and legal_taking(freed.queue, sum(takes), taken)):
        return Refusal(Reason.ILLEGAL_CHOICE)
    # EFFECT
    new = placed(taken, takes)
    computed = min(stop, len(start.prefix[1]))
    request = Running(start.prefix, start.computed, computed, stop, table + new, start.published)
    after = written(emptied(freed, taken), slot, request, start.computed)
    return Done(published(after, slot, computed) if step.publication is Publication.NOW else after, new, gone)
    # SAME: other requests; the entries of this one that were not dead; keys of blocks that were not taken.


def vacated(state: State, slot: int, successor: Absent | Waiting, choice: Choice) -> Outcome:
    """Release all blocks of a slot as one batch and leave `successor` in it."""
    request = state.requests[slot]
    table = request.table if isinstance(request, Running) else ()
    batch = tuple(block for block in table if block != NULL)
    # CHOOSE
    order = choice.order(batch)
    if not legal_order(batch, order):
        return Refusal(Reason.ILLEGAL_CHOICE)
    # EFFECT
    return Done(requeued(replaced(state, slot, successor), order))
