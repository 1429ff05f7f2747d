"""Part one, chapter 25: the lease: how far a request goes on without its manager.

Most steps of decoding change no table: their slots are there, no block becomes full, no entry dies. So each running
request has a *lease*, a number of tokens up to which it needs no call, whatever these tokens turn out to be. Its engine
may make the calls all the same, and they change only counts (LEASE-1). Or it leaves them out, and the count that it
gives with the next call says how far the request has come. Nobody else ends a lease: it depends on the request alone,
and on whether a fork shares the block of its next slot.

With steps in flight there is none, since each of them is settled by itself. Nor is there one while a load is under way,
while the last step has left something to publish, or where the next writes over a state that is found (UNIT-7).
"""

from dataclasses import dataclass, replace

from ..reads import Ahead, Cross, Group, Mamba, dead
from .chapters import Chapter
from .facts import certain, keys_of, sharers, span
from .keys import end_of, stride
from .marks import notes_of
from .publication import put_request
from .state import NULL, Config, Running, State


@dataclass(frozen=True, slots=True)
class Lease(Chapter):
    """An engine may leave out the calls within a lease."""

    def catch_up(self, state: State, slot: int, count: int) -> State:
        request = state.requests[slot]
        if not isinstance(request, Running) or not request.written < count <= lease(state, slot):
            return state
        known = replace(request, written=count, uncertain=max(0, count - len(request.prefix[1])))
        return put_request(state, slot, known)


def lease(state: State, slot: int) -> int:
    """Return the tokens up to which a request needs no call, 0 if each of its steps does."""
    request, config = state.requests[slot], state.config
    if not isinstance(request, Running) or config.overlaps or request.coming > 0:
        return 0
    puts_off = request.is_delayed and stride(config) > 0
    if slot in state.due or puts_off or request.is_lost or is_shared(state, request) or has_found(state, request):
        return 0
    ends = tuple(quiet_end(config, request, at, group) for at, group in enumerate(config.groups))
    return min((*ends, *(end - 1 for end in notes_of(request).tails), config.max_model_len))


def is_shared(state: State, request: Running) -> bool:
    """Return whether others hold a block that the request goes on to write, so that it is copied first (WRITE-2)."""
    return any(
        sharers(state, block) > 1
        for table, group in zip(request.tables, state.config.groups, strict=True)
        for block in table[request.computed // span(state.config, group) :]
        if block != NULL and not isinstance(group.kind, Cross)
    )


def has_found(state: State, request: Running) -> bool:
    """Return whether a recurrent layer has a state that is found inside its block, where the next step may write."""
    return any(
        end_of(state.config, content) % group.block_size
        for table, group in zip(request.tables, state.config.groups, strict=True)
        if isinstance(group.kind, Mamba) and stride(state.config)
        for block in table[-1:]
        for content in keys_of(state, block)
    )


def quiet_end(config: Config, request: Running, at: int, group: Group) -> int:
    """Return the tokens up to which a group takes, publishes and nulls no entry.

    An entry dies only when a step begins where it is dead. A recurrent layer writes over the state in its last entry,
    up to the token before the entry's end. The states of drafts change with each step.
    """
    table, size, most = request.tables[at], span(config, group), config.max_model_len
    if isinstance(group.kind, Cross):
        return most
    lasting = next((count for count in range(most) if any(dies(group, table, size, count))), most)
    if isinstance(group.kind, Mamba):
        done = max(certain(request), request.settled)
        is_ahead = isinstance(group.kind, Ahead)
        is_last = done >= (len(table) - 1) * size + is_ahead and config.caching and not group.kind.drafts
        is_told = not is_ahead or request.published[at] >= len(table) - 1
        return min(len(table) * size - 1, lasting) if is_last and is_told else 0
    filled = (request.published[at] + 1) * size - 1 if config.caching else most
    return min(len(table) * size, filled, lasting)


def dies(group: Group, table: tuple[int, ...], size: int, count: int) -> tuple[bool, ...]:
    """Return, for each entry, whether it holds a block that no token behind `count` reads."""
    return tuple(block != NULL and dead(group.kind, size, count, entry) for entry, block in enumerate(table))
