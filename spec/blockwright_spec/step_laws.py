"""Chapter 13: the laws of steps, true of every step that happened: the state before it, and its outcome."""

from .outcomes import Done
from .state import NULL, Running, State, Table, holders, running
from .table_laws import held


def law_table_is_append_only(before: State, done: Done) -> bool:
    """STEP-1: entries of a table become null or stay, new ones are appended, and the outcome tells both."""
    pairs = zip(before.requests, done.state.requests, strict=True)
    both = ((old, new) for old, new in pairs if isinstance(old, Running) and isinstance(new, Running))
    return all(
        old.tables == new.tables or table == told(old.tables[at], done, at)
        for old, new in both
        for at, table in enumerate(new.tables)
    )


def told(table: Table, done: Done, at: int) -> Table:
    """Give the table of a group as it follows from what an outcome tells."""
    gone = done.nulled[at] if done.nulled else ()
    new = done.new[at] if done.new else ()
    return (*(NULL if entry in gone else block for entry, block in enumerate(table)), *new)


def law_taking_drops_its_key(before: State, done: Done) -> bool:
    """STEP-2: a taken block loses its key, and no other does unless the whole cache is reset."""
    states = tuple(block for request in running(done.state) for blocks in request.states for block in blocks)
    taken = {block for table in (*done.new, states) for block in table}
    rest = tuple(published for published in before.keys if published[0] not in taken)
    return done.state.keys[: len(rest)] == rest or (
        not done.state.keys and not any(held(before)) and before.queue == done.state.queue
    )


def law_demand_is_taken(before: State, done: Done) -> bool:
    """STEP-3: what leaves the free queue is held from then on, and what is taken has this one holder."""
    left = frozenset(before.queue) - frozenset(done.state.queue)
    return all(holders(done.state, block) > 0 for block in left) and all(
        holders(done.state, block) == 1 for table in done.new for block in table if block != NULL
    )


def law_plan_is_taken(before: State, done: Done) -> bool:
    """PLAN-1: what a plan counts is what the step takes out of the queue, blocks that its own trim freed included."""
    left = frozenset(before.queue) - frozenset(done.state.queue)
    freed = tuple(block for table in done.new for block in table if block != NULL and block not in before.queue)
    return done.demand == len(left) + len(freed)


def law_newcomer_leaves_the_watermark(before: State, done: Done) -> bool:
    """PLAN-2: a request that joins others leaves the watermark free."""
    pairs = zip(before.requests, done.state.requests, strict=True)
    is_joined = any(isinstance(new, Running) and not isinstance(old, Running) for old, new in pairs)
    is_idle = len(before.queue) == before.config.num_blocks - 1
    return not is_joined or is_idle or len(done.state.queue) >= before.config.watermark
