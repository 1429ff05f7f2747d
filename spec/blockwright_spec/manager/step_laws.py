"""Part one, chapter 26: the laws of steps, given the state before a step that happened and its outcome."""

from ..reads import Mamba, writes
from .effects import target
from .facts import certain, covers, holders, in_flight, keys_of, running, sharers, span
from .hits import useful
from .keys import end_of, keyed, named, upto
from .lease import lease
from .outcomes import Done
from .publication import holds_state, is_private
from .state import NULL, Config, Content, Request, Running, State, Table
from .table_laws import held
from .told import copies, cut_off, dropped, evicted, exchanged, folded, given_up, joins, num_saved, of, outgrown, saving
from .units import is_before


def law_table_is_append_only(before: State, done: Done) -> bool:
    """STEP-1: entries become null, are copied, cut off or stay, new ones are appended, and the outcome says so."""
    pairs = zip(before.requests, done.state.requests, strict=True)
    both = tuple((old, new) for old, new in pairs if isinstance(new, Running))
    changed = tuple((old, new) for old, new in both if isinstance(old, Running) and old.tables != new.tables)
    is_joined = any(not isinstance(old, Running) for old, _ in both)
    return bool(changed or is_joined or len(copies(done)) == num_saved(done)) and all(
        table == table_after(old.tables[at], done, at) for old, new in changed for at, table in enumerate(new.tables)
    )


def table_after(table: Table, done: Done, at: int) -> Table:
    """Return the table of a group as it follows from an outcome."""
    gone = done.nulled[at] if done.nulled else ()
    new = done.new[at] if done.new else ()
    target = next((block for group, _, block in copies(done) if group == at), NULL)
    entry = done.copied[at] if done.copied else None
    other, cut = {place: now for group, place, _, now in exchanged(done) if group == at}, dropped(done, at)
    kept = ((e, NULL if e in gone else target if e == entry else other.get(e, old)) for e, old in enumerate(table))
    return (*(block for e, block in kept if e not in cut), *new)


def taken(done: Done) -> tuple[int, ...]:
    """Return the blocks that a step took, except for the states of drafts, in the order of taking."""
    new = tuple(block for table in done.new for block in table if block != NULL)
    forks = () if done.new else tuple(act for act in done.steps if act.verb == "take")
    own = tuple(act.block for act in forks if isinstance(act.place[0], tuple) and act.place[0][0] != "states")
    return tuple(target for _, _, target in copies(done)) + new + own


def taken_at_most(done: Done) -> tuple[int, ...]:
    """Return the blocks a step took, in order, and all states of drafts: those held before have no key (WRITE-1)."""
    tables = tuple(table for request in running(done.state) for table in request.states)
    return taken(done) + tuple(block for table in tables for block in table)


def law_taking_drops_its_key(before: State, done: Done) -> bool:
    """STEP-2: a taken block loses its key, no other does but duplicates (SHARE-4), or by `reset`, `forget`, `resize`.

    A state that is written over loses its own, or that goes to its copy (UNIT-7); a block that a newcomer writes over
    loses those of what it writes over (UNIT-8). What is given up, or folded, loses its own too.
    """
    gone, kept = taken_at_most(done), frozenset(content for _, content in done.state.keys)
    over, lost, own = written_over(before, done), given_up(done), {block for _, _, block, _ in folded(done)}
    forgot = {(act.block, act.content) for act in of(done, "forget")}
    rest = tuple(
        published
        for published in before.keys
        if published[0] not in gone and published[0] < done.state.config.num_blocks
        if published[1] not in done.forgot
        if published not in lost
        if published[0] not in outgrown(before, done)
        if published in done.state.keys or published[0] not in own
        if published not in over
        if published in done.state.keys or not (published in forgot and published[1] in kept)
    )
    return done.state.keys[: len(rest)] == rest or (
        not done.state.keys and not any(held(before)) and {*before.queue} == {*done.state.queue}
    )


def written_over(before: State, done: Done) -> tuple[tuple[int, Content], ...]:
    """Return what could be found in blocks of its hit that a newcomer writes over, and is there no more (UNIT-8)."""
    pairs = zip(before.requests, done.state.requests, strict=True)
    begin = next((new.settled for old, new in pairs if isinstance(new, Running) and not isinstance(old, Running)), 0)
    keys = ((block, content) for block in cut_off(before, done) for content in keys_of(before, block))
    return tuple((block, content) for block, content in keys if not is_before(before, content, begin))


def is_state(state: State, content: Content) -> bool:
    """Return whether a content is a recurrent layer's."""
    return isinstance(state.config.groups[content[0]].kind, Mamba)


def left_queue(before: State, done: Done) -> frozenset[int]:
    """Return the blocks that left the free queue, except for those that the pool ends before."""
    gone = frozenset(before.queue) - frozenset(done.state.queue)
    return frozenset(block for block in gone if block < done.state.config.num_blocks)


def law_demand_is_taken(before: State, done: Done) -> bool:
    """STEP-3: what leaves the free queue is held from then on, and what is taken has this one holder.

    The holder is the request, or the copy of a state that is saved.
    """
    saved = {target for _, _, target in saving(done)}
    return all(holders(done.state, block) > 0 for block in left_queue(before, done)) and all(
        sharers(done.state, block) + done.state.pins.count(block) == (block not in saved) for block in taken(done)
    )


def law_evicted_is_lost(before: State, done: Done) -> bool:
    """STEP-4: a step reports each content of which it took every published block, with the last one, in that order.

    As if taken, and first, are the blocks that it wrote over (UNIT-8), with what is not found there any more.
    """
    took = (*taken_at_most(done), *(act.block for act in of(done, "take") if act.place[0] == "beyond"))
    taken = tuple((block, content) for block in took for content in keys_of(before, block))
    gone = written_over(before, done) + taken
    left = {content for block, content in before.keys if (block, content) not in gone}
    last = {content: block for block, content in gone}
    lost = ((block, content) for block, content in gone if last[content] == block)
    return evicted(before, done) == tuple((block, content) for block, content in lost if content not in left)


def law_plan_is_taken(before: State, done: Done) -> bool:
    """PLAN-1: what a plan counts is what the step takes out of the queue, blocks that its own trim freed included."""
    left = left_queue(before, done)
    freed = tuple(block for block in taken(done) if block not in before.queue)
    return done.demand == len(left) + len(freed)


def law_writer_is_alone(before: State, done: Done) -> bool:
    """WRITE-2: nobody else holds what a step writes, drafts that were taken back included."""
    config = done.state.config
    return not done.new or all(
        sharers(done.state, target(new, at, group, span(config, group), place)) == 1
        for old, new in zip(before.requests, done.state.requests, strict=True)
        if isinstance(new, Running) and new is not old
        for at, group in enumerate(config.groups)
        for place in writes(group.kind, begun(old, new, config.overlaps), new.computed)
    )


def begun(old: Request, new: Running, overlaps: bool) -> int:
    """Return the token that a step began with: all before it is done; with steps in flight it goes on after them."""
    return old.computed if overlaps and isinstance(old, Running) else new.settled


def law_newcomer_leaves_the_watermark(before: State, done: Done) -> bool:
    """PLAN-2: a request that joins others leaves the watermark free, unless it is a fork of one of them."""
    is_idle = len(before.queue) == before.config.num_blocks - 1
    return not joins(before, done) or is_idle or len(done.state.queue) >= before.config.watermark


def law_lease_is_quiet(before: State, done: Done) -> bool:
    """LEASE-1: a step with slots that end within its request's lease takes, copies, nulls and publishes nothing."""
    return all(
        old.tables == new.tables and before.keys == done.state.keys and before.queue == done.state.queue
        for slot, (old, new) in enumerate(zip(before.requests, done.state.requests, strict=True))
        if isinstance(old, Running) and isinstance(new, Running)
        if new.written > old.written and new.prefix == old.prefix
        for count in (lease(before, slot),)
        if new.written <= count and not looks_ahead(before.config, old, new, count)
    )


def looks_ahead(config: Config, old: Running, new: Running, count: int) -> bool:
    """Return whether a step takes entries behind those of some tokens: slots ahead of its own."""
    groups = zip(config.groups, old.tables, new.tables, strict=True)
    return any(len(after) > len(table) >= covers(config, group, count) for group, table, after in groups)


def law_last_is_published(before: State, done: Done) -> bool:
    """PUB-5: when a request lets go of its blocks, all that it has computed, with keys, is found in whole blocks.

    That is, unless it put publication off. With a step in flight the settled tokens count, and nothing if the last step
    had not run; drafts that were accepted last are not certain yet. Of a recurrent layer it is where that step stopped.
    """
    return all(
        upto(content, end_of(config, content)) in {upto(each, end_of(config, each)) for _, each in done.state.keys}
        for config in (before.config,)
        for slot, (old, new) in enumerate(zip(before.requests, done.state.requests, strict=True))
        if isinstance(old, Running) and not isinstance(new, Running) and publishes(before.config, old)
        for content in last_contents(before, old, slot, done.kept is None)
    )


def last_contents(state: State, request: Running, slot: int, has_run: bool) -> tuple[Content, ...]:
    """Return the contents of the whole blocks that a request holds and has computed for certain."""
    config, stop, steps = state.config, certain(request), in_flight(state, slot)
    done = request.settled if steps else max(stop, request.settled) * has_run
    least = min(request.computed, done, keyed(config, request.prefix))
    is_left = not steps and holds_state(config, request, stop)
    return tuple(
        named(config, at, request.prefix, end)
        for at, group in enumerate(config.groups)
        for entry, block in enumerate(request.tables[at])
        for end in ((entry + 1) * group.block_size,)
        if block != NULL and end <= least and useful(config, at, entry)
        if not isinstance(group.kind, Mamba) or (is_left and end == stop)
    )


def publishes(config: Config, request: Running) -> bool:
    """Return whether a request publishes what it computes: nothing of it was forgotten, nor was that put off last."""
    return config.caching and not request.is_delayed and not is_private(config, request)
