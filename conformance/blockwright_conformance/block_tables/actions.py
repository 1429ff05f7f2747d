"""What the users of block tables do: actions, their meaning in the specification, and which a scope allows.

Tables are named by slot; blocks are not named at all.
"""

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any, NamedTuple

from blockwright_spec.block_tables import marks
from blockwright_spec.block_tables import transitions as calls
from blockwright_spec.block_tables.outcomes import Choice, PagedDone, PagedOutcome, PagedRefusal, lowest
from blockwright_spec.block_tables.state import Device, Paged, PagedTable, blocks_of
from blockwright_spec.reads import Prefix

from .scopes import PagedScope


class Allocate(NamedTuple):
    """Make a table of tokens."""

    slot: int
    prefix: Prefix
    device: Device = Device.GPU


class AppendTokens(NamedTuple):
    """Append tokens with lookahead slots after them, and take the copies unless `delayed`."""

    slot: int
    tokens: tuple[int, ...]
    ahead: int = 0
    computed: int | None = None
    delayed: bool = False


class Ensure(NamedTuple):
    """Ask for empty slots."""

    slot: int
    slots: int


class Fork(NamedTuple):
    """Share a table's blocks with a new one."""

    parent: int
    child: int


class FreeTable(NamedTuple):
    """Give up a table's blocks."""

    slot: int


class Swap(NamedTuple):
    """Move tables to a device."""

    slots: tuple[int, ...]
    to: Device


class ClearCopies(NamedTuple):
    """Take the pending copies."""


class Access(NamedTuple):
    """Note an access of a table's blocks: at the time of the last one, or `later`."""

    slot: int
    later: bool = True


class AccessFound(NamedTuple):
    """Note an access of the block that is found by some content, free or not."""

    prefix: Prefix
    device: Device


class AccessUnknown(NamedTuple):
    """Note an access of a free block without content."""

    device: Device


class MarkComputed(NamedTuple):
    """Mark what can be found as computed."""


class MarkTable(NamedTuple):
    """Mark the first tokens of a table as computed."""

    slot: int
    tokens: int


class ResetCache(NamedTuple):
    """Reset the prefix cache of a device."""

    device: Device


PagedAction = (
    Allocate
    | AppendTokens
    | Ensure
    | Fork
    | FreeTable
    | Swap
    | ClearCopies
    | Access
    | AccessFound
    | AccessUnknown
    | MarkComputed
    | MarkTable
    | ResetCache
)


class PagedTold(NamedTuple):
    """What the specification says comes of an action: its calls, and the last state (the same if refused)."""

    state: Paged
    outcomes: tuple[PagedOutcome, ...]

    @property
    def refusal(self) -> PagedRefusal | None:
        """Give the refusal of the first call."""
        first = self.outcomes[0]
        return first if isinstance(first, PagedRefusal) else None


def paged_meaning(state: Paged, action: PagedAction, choice: Choice = lowest) -> PagedTold:
    """Tell what comes of an action in a state."""
    outcome: PagedOutcome = MEANINGS[type(action)](state, action, choice)
    if isinstance(outcome, PagedRefusal):
        return PagedTold(state, (outcome,))
    if isinstance(action, AppendTokens) and not action.delayed:
        cleared = calls.clear_copies(outcome.state)
        assert isinstance(cleared, PagedDone)
        return PagedTold(cleared.state, (outcome, cleared))
    return PagedTold(outcome.state, (outcome,))


def now(state: Paged) -> int:
    """Give the time of the last access."""
    return max(state.times)


def blocks_accessed(state: Paged, action: Access | AccessFound | AccessUnknown) -> tuple[int, ...]:
    """Give the blocks that an access names."""
    match action:
        case Access(slot):
            table = state.tables[slot]
            return () if table is None else tuple(block for block in table.entries if block != state.null)
        case AccessFound(prefix, device):
            return tuple(block for block in blocks_of(state.config, device) if state.keys[block] == prefix)
        case AccessUnknown(device):
            return unknown_blocks(state, device)[:1]


def unknown_blocks(state: Paged, device: Device) -> tuple[int, ...]:
    """Give the free blocks of a device that hold nothing."""
    return tuple(block for block in blocks_of(state.config, device) if block in state.free and not state.keys[block])


def time_of(state: Paged, action: Access | AccessFound | AccessUnknown) -> int:
    """Give the time of an access."""
    return now(state) + (not isinstance(action, Access) or action.later or now(state) == 0)


def access(state: Paged, action: Any, _choice: Choice) -> PagedOutcome:
    """Tell of an access."""
    return marks.access(state, blocks_accessed(state, action), time_of(state, action))


MEANINGS: dict[type, Callable[[Paged, Any, Choice], PagedOutcome]] = {
    Allocate: lambda state, action, choice: calls.allocate(state, action.slot, action.prefix, action.device, choice),
    AppendTokens: lambda state, action, choice: calls.append(
        state, action.slot, action.tokens, action.ahead, action.computed, choice
    ),
    Ensure: lambda state, action, choice: calls.ensure(state, action.slot, action.slots, choice),
    Fork: lambda state, action, _: calls.fork(state, action.parent, action.child),
    FreeTable: lambda state, action, _: calls.free(state, action.slot),
    Swap: lambda state, action, choice: calls.swap(state, action.slots, action.to, choice),
    ClearCopies: lambda state, _action, _choice: calls.clear_copies(state),
    Access: access,
    AccessFound: access,
    AccessUnknown: access,
    MarkComputed: lambda state, _action, _choice: marks.mark_computed(state),
    MarkTable: lambda state, action, _: marks.mark_table(state, action.slot, action.tokens),
    ResetCache: lambda state, action, _: marks.reset(state, action.device),
}
"""What each action means."""


def paged_enabled(scope: PagedScope, state: Paged) -> list[PagedAction]:
    """Give every action that a scope allows in a state; of several empty slots, which are alike, only the first."""
    absent = next((slot for slot, table in enumerate(state.tables) if table is None), None)
    there = [(slot, table) for slot, table in enumerate(state.tables) if table is not None]
    actions: list[PagedAction] = []
    if absent is not None:
        devices = scope.devices if "host" in scope.calls else (Device.GPU,)
        actions += [Allocate(absent, prefix, device) for prefix in scope.prompts for device in devices]
        actions += [Fork(slot, absent) for slot, _ in there]
    for slot, table in there:
        actions.append(FreeTable(slot))
        if table.device is Device.GPU:
            actions += growing(scope, slot, table)
            more = range(table.ready + 1, len(table.prefix[1]) + 1) if "chunks" in scope.calls else ()
            actions += [MarkTable(slot, tokens) for tokens in more]
    if "swap" in scope.calls:
        actions += swaps(there)
    return [
        *actions,
        *of_allocator(scope, state, there),
        *(misuses(scope, state, absent) if "misuse" in scope.calls else ()),
    ]


def growing(scope: PagedScope, slot: int, table: PagedTable) -> Iterator[PagedAction]:
    """Give the ways in which a table on the GPU may grow."""
    length, window = len(table.prefix[1]), scope.config.window
    computed: tuple[int | None, ...] = (None,) if window is None else (length,)
    if window is not None and "late" in scope.calls:
        computed = (max(0, length - scope.config.block_size), length)
    for tokens in scope.outputs:
        for ahead in scope.lookaheads if length + len(tokens) <= scope.max_tokens else ():
            for told in computed:
                yield AppendTokens(slot, tokens, ahead, told)
                if "delay" in scope.calls:
                    yield AppendTokens(slot, tokens, ahead, told, True)
    if "ensure" in scope.calls:
        yield from (Ensure(slot, slots) for slots in (0, *scope.lookaheads[1:], scope.config.block_size + 1))


def swaps(there: list[tuple[int, PagedTable]]) -> Iterator[PagedAction]:
    """Give the swaps of tables that are on one device, of every set of them."""
    for source, to in ((Device.GPU, Device.CPU), (Device.CPU, Device.GPU)):
        own = [slot for slot, table in there if table.device is source]
        for count in range(1, len(own) + 1):
            yield from (Swap(slots, to) for slots in combinations(own, count))


def of_allocator(scope: PagedScope, state: Paged, there: list[tuple[int, PagedTable]]) -> Iterator[PagedAction]:
    """Give the calls that are about no table."""
    if "delay" in scope.calls:
        yield ClearCopies()
    if "mark" in scope.calls:
        yield MarkComputed()
    if "reset" in scope.calls:
        yield from map(ResetCache, scope.devices)
    if "access" in scope.calls:
        for slot, _ in there:
            yield Access(slot)
            yield Access(slot, later=False)
        free = ((key, block) for block, key in enumerate(state.keys) if key is not None and block in state.free)
        for key, block in free:
            yield AccessFound(key, Device.GPU if block < state.config.num_gpu else Device.CPU)


def misuses(scope: PagedScope, state: Paged, absent: int | None) -> Iterator[PagedAction]:
    """Give calls that are wrong."""
    told = None if scope.config.window is None else 0
    for slot, table in enumerate(state.tables):
        if table is None:
            continue
        yield Allocate(slot, scope.prompts[0])
        yield AppendTokens(slot, (0,), -1, told)
        yield Ensure(slot, -1)
        yield MarkTable(slot, -1)
        yield MarkTable(slot, len(table.prefix[1]) + 1)
        if told is not None:
            yield AppendTokens(slot, (0,))
            yield AppendTokens(slot, (0,), 0, -1)
            yield AppendTokens(slot, (0,), 0, len(table.prefix[1]) + 1)
        if table.device is Device.CPU:
            yield AppendTokens(slot, (0,), 0, told)
            yield Ensure(slot, 1)
            yield MarkTable(slot, 1)
        if scope.config.num_cpu:
            yield Swap((slot,), table.device)
    if absent is not None:
        yield Allocate(absent, (0, ()))
        yield AppendTokens(absent, (0,), 0, told)
        yield Ensure(absent, 1)
        yield MarkTable(absent, 0)
        yield Fork(absent, absent)
        yield FreeTable(absent)
    yield from (AccessUnknown(device) for device in scope.devices if unknown_blocks(state, device))
