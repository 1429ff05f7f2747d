"""Ways in which managers of other makes differ, and in which the specification follows one that declares them.

`Capabilities.ways` names them. What a way leaves open is taken from the manager; everything else is still compared.
"""

from collections.abc import Iterable
from dataclasses import replace
from math import lcm

from blockwright_spec.manager.effects import adopt, enqueue
from blockwright_spec.manager.facts import held_tables
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Done, Reason, Refusal
from blockwright_spec.manager.publication import put_request
from blockwright_spec.manager.state import Running, State
from blockwright_spec.manager.transitions import trim

from .adapter import Observation, Tables
from .outcome import ManagerOutcome
from .parts import Reply


def followed(
    ways: frozenset[str], state: State, outcome: ManagerOutcome, reply: Reply, shown: Observation
) -> ManagerOutcome:
    """Return the outcome of an action in a state, as a manager of some ways may have it."""
    ran, run = ([isinstance(each, Running) for each in now.requests] for now in (state, outcome.state))
    if "cautious" in ways and reply.refused and any(ran) and sum(run) > sum(ran):
        return ManagerOutcome(state, (), Refusal(Reason.NO_FREE_BLOCKS), outcome.hit)
    after = outcome.state
    if "trims refused" in ways and outcome.refusal and reply.refused:
        after = trimmed(after, shown.tables)
    if "deduplicates" in ways:
        after = merged(after, shown.tables)
    if "aligned" in ways:
        after = held_back(after)
    if "forgets" in ways and shown.kept is not None:
        after = forgotten(after, [block for block, _ in after.keys if block not in shown.kept])
    return outcome if after is outcome.state else replace(outcome, state=after)


def trimmed(state: State, tables: tuple[Tables | None, ...]) -> State:
    """Trim the requests that a manager has trimmed, as far as it may."""
    for slot, request in enumerate(state.requests):
        if isinstance(request, Running) and request.tables != tables[slot]:
            done = trim(state, slot, request.computed, LRU)
            state = done.state if isinstance(done, Done) else state
    return state


def merged(state: State, tables: tuple[Tables | None, ...]) -> State:
    """Replace blocks in the tables of requests with those of equal content that a manager shows there."""
    keys, gone = dict(state.keys), set[int]()

    def entry(own: int, shown: int) -> int:
        return shown if keys.get(own, own) == keys.get(shown) else own

    for slot, request in enumerate(state.requests):
        pairs = zip(request.tables, tables[slot] or (), strict=False) if isinstance(request, Running) else ()
        now = tuple(tuple(map(entry, own, (*shown, *own[len(shown) :]))) for own, shown in pairs)
        if isinstance(request, Running) and now and now != request.tables:
            gone |= {*sum(request.tables, ())} - {*sum(now, ())}
            state = adopt(put_request(state, slot, replace(request, tables=now)), now)
    return forgotten(state, gone)


def held_back(state: State) -> State:
    """Take back what requests published behind the last length at which blocks of all groups end."""
    sizes = [group.block_size for group in state.config.groups]
    for slot, request in enumerate(state.requests):
        if isinstance(request, Running):
            end = max(map(int.__mul__, request.published, sizes)) // lcm(*sizes) * lcm(*sizes)
            counts = tuple([min(own, end // size) for own, size in zip(request.published, sizes, strict=True)])
            late = {block for table, count in zip(request.tables, counts, strict=True) for block in table[count:]}
            keys = tuple([pair for pair in state.keys if pair[0] not in late])
            if counts != request.published:
                state = put_request(replace(state, keys=keys), slot, replace(request, published=counts))
    return state


def forgotten(state: State, blocks: Iterable[int]) -> State:
    """Forget the contents of those of some blocks that no request holds."""
    free = {*blocks}.difference(*held_tables(state))
    keys = tuple(pair for pair in state.keys if pair[0] not in free)
    queue = tuple(block for block in state.queue if block not in free)
    return enqueue(replace(state, keys=keys, queue=queue), tuple(sorted(free))) if free else state
