"""Chapter 11: the laws of steps, true of every step that happened: the state before it, and its outcome."""

from .outcomes import Done
from .state import NULL, Running, State, holders
from .table_laws import held


def law_table_is_append_only(before: State, done: Done) -> bool:
    """STEP-1: entries of a table become null or stay, new ones are appended, and the outcome tells both."""
    pairs = zip(before.requests, done.state.requests, strict=True)
    tables = ((old.table, new.table) for old, new in pairs if isinstance(old, Running) and isinstance(new, Running))
    return all(
        old == new or new == (*(NULL if at in done.nulled else block for at, block in enumerate(old)), *done.new)
        for old, new in tables
    )


def law_taking_drops_its_key(before: State, done: Done) -> bool:
    """STEP-2: a taken block loses its key, and no other does unless the whole cache is reset."""
    rest = tuple(published for published in before.keys if published[0] not in done.new)
    return done.state.keys[: len(rest)] == rest or (
        not done.state.keys and not any(held(before)) and before.queue == done.state.queue
    )


def law_demand_is_taken(before: State, done: Done) -> bool:
    """STEP-3: what leaves the free queue is held from then on, and what is taken has this one holder."""
    left = frozenset(before.queue) - frozenset(done.state.queue)
    return all(holders(done.state, block) > 0 for block in left) and all(
        holders(done.state, block) == 1 for block in done.new if block != NULL
    )
