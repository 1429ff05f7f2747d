"""The actions of users of block tables: each with its guard, its meaning and its calls.

Tables are named by slot; blocks are not named at all.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from blockwright_spec.block_tables import marks
from blockwright_spec.block_tables import transitions as calls
from blockwright_spec.block_tables.outcomes import Choice, PagedDone, PagedOutcome, PagedRefusal, lowest
from blockwright_spec.block_tables.state import Device, Paged, PagedTable, Pair, blocks_of
from blockwright_spec.reads import Prefix

from ..checker.world import Outcome
from .scopes import PagedScope

if TYPE_CHECKING:
    from .blockwright import BlockwrightTables

CHOOSING = ("allocate", "append", "ensure", "swap")
"""The calls that take free blocks, which one is open."""


CALLS = {
    "Allocate": "allocate", "Ensure": "ensure", "Fork": "fork", "FreeTable": "free", "Swap": "swap",
    "ClearCopies": "clear_copies", "MarkComputed": "mark_computed", "MarkTable": "mark_table", "ResetCache": "reset",
}  # fmt: skip
"""The call of each kind of action that has its fields as arguments."""


class TablesReply(NamedTuple):
    refused: bool = False
    """It said that the cache could not be reset."""
    error: Exception | None = None
    pairs: tuple[Pair, ...] = ()
    order: tuple[int, ...] = ()
    """The free blocks before it, in the order in which they would have been taken."""


@dataclass(frozen=True, slots=True)
class TableAction:
    """The base of all actions: each is one call, with the same name (`CALLS`) for allocators and the specification."""

    def asked(self, state: Paged) -> tuple[Any, ...]:
        return CALLS[type(self).__name__], *[getattr(self, each.name) for each in fields(self)]

    def outcome(self, state: Paged, choice: Choice) -> PagedOutcome:
        name, *arguments = self.asked(state)
        outcome: PagedOutcome = getattr(marks if hasattr(marks, name) else calls, name)(
            state, *arguments, *((choice,) if name in CHOOSING else ())
        )
        return outcome

    def call(self, model: "BlockwrightTables", state: Paged) -> Any:
        name, *arguments = self.asked(state)
        return getattr(model, name)(*arguments)

    def meaning(self, state: Paged, choice: Choice | None = None) -> Outcome[Paged]:
        outcome = self.outcome(state, choice or lowest)
        if isinstance(outcome, PagedRefusal):
            return Outcome(state, ((state, outcome),), outcome)
        return Outcome(outcome.state, ((state, outcome),))

    def perform(self, model: "BlockwrightTables", state: Paged) -> TablesReply:
        order = model.order()
        try:
            answer = self.call(model, state)
        except model.errors as error:
            return TablesReply(error=error, order=order)
        return TablesReply(answer is False, None, answer if isinstance(answer, tuple) else (), order)


def absent(state: Paged) -> int | None:
    """Return the first empty slot: empty slots are alike."""
    return next((slot for slot, table in enumerate(state.tables) if table is None), None)


def there(state: Paged) -> list[tuple[int, PagedTable]]:
    return [(slot, table) for slot, table in enumerate(state.tables) if table is not None]


def on_gpu(state: Paged) -> list[tuple[int, PagedTable]]:
    return [(slot, table) for slot, table in there(state) if table.device is Device.GPU]


@dataclass(frozen=True, slots=True)
class Allocate(TableAction):
    slot: int
    prefix: Prefix
    device: Device = Device.GPU

    @classmethod
    def allowed(cls, scope: PagedScope, state: Paged) -> Iterator[Self]:
        devices = scope.devices if "host" in scope.calls else (Device.GPU,)
        if (slot := absent(state)) is not None:
            yield from (cls(slot, prefix, device) for prefix in scope.prompts for device in devices)
        if "misuse" in scope.calls:
            yield from (cls(other, scope.prompts[0]) for other, _ in there(state))
            yield from () if slot is None else (cls(slot, (0, ())),)


@dataclass(frozen=True, slots=True)
class AppendTokens(TableAction):
    """Append tokens with lookahead slots after them, and take the copies unless `delayed`."""

    slot: int
    tokens: tuple[int, ...]
    ahead: int = 0
    computed: int | None = None
    delayed: bool = False

    @classmethod
    def allowed(cls, scope: PagedScope, state: Paged) -> Iterator[Self]:
        window, size = scope.config.window, scope.config.block_size
        for slot, table in on_gpu(state):
            length = len(table.prefix[1])
            computed: tuple[int | None, ...] = (None,) if window is None else (length,)
            if window is not None and "late" in scope.calls:
                computed = (max(0, length - size), length)
            for tokens in scope.outputs:
                for ahead in scope.lookaheads if length + len(tokens) <= scope.max_tokens else ():
                    for counted in computed:
                        yield cls(slot, tokens, ahead, counted)
                        if "delay" in scope.calls:
                            yield cls(slot, tokens, ahead, counted, True)
        if "misuse" in scope.calls:
            yield from cls.wrong(state, None if window is None else 0)

    @classmethod
    def wrong(cls, state: Paged, counted: int | None) -> Iterator[Self]:
        for slot, table in there(state):
            yield cls(slot, (0,), -1, counted)
            if counted is not None:
                yield cls(slot, (0,))
                yield cls(slot, (0,), 0, -1)
                yield cls(slot, (0,), 0, len(table.prefix[1]) + 1)
            if table.device is Device.CPU:
                yield cls(slot, (0,), 0, counted)
        if (slot_absent := absent(state)) is not None:
            yield cls(slot_absent, (0,), 0, counted)

    def asked(self, state: Paged) -> tuple[Any, ...]:
        return "append", self.slot, self.tokens, self.ahead, self.computed

    def meaning(self, state: Paged, choice: Choice | None = None) -> Outcome[Paged]:
        grown = TableAction.meaning(self, state, choice)
        if self.delayed or grown.refusal is not None:
            return grown
        cleared = ClearCopies().meaning(grown.state)
        return Outcome(cleared.state, grown.steps + cleared.steps)

    def call(self, model: "BlockwrightTables", state: Paged) -> tuple[Pair, ...]:
        model.append(self.slot, self.tokens, self.ahead, self.computed)
        return () if self.delayed else model.clear_copies()


@dataclass(frozen=True, slots=True)
class Ensure(TableAction):
    slot: int
    slots: int

    @classmethod
    def allowed(cls, scope: PagedScope, state: Paged) -> Iterator[Self]:
        for slot, _ in on_gpu(state) if "ensure" in scope.calls else ():
            yield from (cls(slot, slots) for slots in (0, *scope.lookaheads[1:], scope.config.block_size + 1))
        if "misuse" in scope.calls:
            for slot, table in there(state):
                yield cls(slot, -1)
                yield from () if table.device is Device.GPU else (cls(slot, 1),)
            yield from () if (free := absent(state)) is None else (cls(free, 1),)


@dataclass(frozen=True, slots=True)
class Fork(TableAction):
    parent: int
    child: int

    @classmethod
    def allowed(cls, scope: PagedScope, state: Paged) -> Iterator[Self]:
        if (slot := absent(state)) is not None:
            yield from (cls(parent, slot) for parent, _ in there(state))
            yield from (cls(slot, slot),) if "misuse" in scope.calls else ()


@dataclass(frozen=True, slots=True)
class FreeTable(TableAction):
    slot: int

    @classmethod
    def allowed(cls, scope: PagedScope, state: Paged) -> Iterator[Self]:
        yield from (cls(slot) for slot, _ in there(state))
        if "misuse" in scope.calls and (slot_absent := absent(state)) is not None:
            yield cls(slot_absent)


@dataclass(frozen=True, slots=True)
class Swap(TableAction):
    slots: tuple[int, ...]
    to: Device

    @classmethod
    def allowed(cls, scope: PagedScope, state: Paged) -> Iterator[Self]:
        for source, to in ((Device.GPU, Device.CPU), (Device.CPU, Device.GPU)) if "swap" in scope.calls else ():
            own = [slot for slot, table in there(state) if table.device is source]
            for count in range(1, len(own) + 1):
                yield from (cls(slots, to) for slots in combinations(own, count))
        if "misuse" in scope.calls and scope.config.num_cpu:
            yield from (cls((slot,), table.device) for slot, table in there(state))


@dataclass(frozen=True, slots=True)
class ClearCopies(TableAction):
    @classmethod
    def allowed(cls, scope: PagedScope, state: Paged) -> Iterator[Self]:
        yield from (cls(),) if "delay" in scope.calls else ()


@dataclass(frozen=True, slots=True)
class AnyAccess(TableAction):
    def blocks(self, state: Paged) -> tuple[int, ...]:
        raise NotImplementedError

    def time(self, state: Paged) -> int:
        return max(state.times) + 1

    def asked(self, state: Paged) -> tuple[Any, ...]:
        return "access", self.blocks(state), self.time(state)


@dataclass(frozen=True, slots=True)
class Access(AnyAccess):
    """Note an access of a table's blocks: at the time of the last one, or `later`."""

    slot: int
    later: bool = True

    @classmethod
    def allowed(cls, scope: PagedScope, state: Paged) -> Iterator[Self]:
        for slot, _ in there(state) if "access" in scope.calls else ():
            yield from (cls(slot), cls(slot, later=False))

    def blocks(self, state: Paged) -> tuple[int, ...]:
        table = state.tables[self.slot]
        return () if table is None else tuple(block for block in table.entries if block != state.null)

    def time(self, state: Paged) -> int:
        last = max(state.times)
        return last + (self.later or last == 0)


@dataclass(frozen=True, slots=True)
class AccessFound(AnyAccess):
    """Note an access of the block that is found by some content, free or not."""

    prefix: Prefix
    device: Device

    @classmethod
    def allowed(cls, scope: PagedScope, state: Paged) -> Iterator[Self]:
        for block, key in enumerate(state.keys) if "access" in scope.calls else ():
            if key is not None and block in state.free:
                yield cls(key, Device.GPU if block < state.config.num_gpu else Device.CPU)

    def blocks(self, state: Paged) -> tuple[int, ...]:
        return tuple(block for block in blocks_of(state.config, self.device) if state.keys[block] == self.prefix)


@dataclass(frozen=True, slots=True)
class AccessUnknown(AnyAccess):
    """Note an access of a free block without content: a wrong call."""

    device: Device

    @classmethod
    def allowed(cls, scope: PagedScope, state: Paged) -> Iterator[Self]:
        if "misuse" in scope.calls:
            yield from (each for each in map(cls, scope.devices) if each.blocks(state))

    def blocks(self, state: Paged) -> tuple[int, ...]:
        own = blocks_of(state.config, self.device)
        return tuple(block for block in own if block in state.free and not state.keys[block])[:1]


@dataclass(frozen=True, slots=True)
class MarkComputed(TableAction):
    @classmethod
    def allowed(cls, scope: PagedScope, state: Paged) -> Iterator[Self]:
        yield from (cls(),) if "mark" in scope.calls else ()


@dataclass(frozen=True, slots=True)
class MarkTable(TableAction):
    """Mark the first tokens of a table as computed."""

    slot: int
    tokens: int

    @classmethod
    def allowed(cls, scope: PagedScope, state: Paged) -> Iterator[Self]:
        for slot, table in on_gpu(state) if "chunks" in scope.calls else ():
            yield from (cls(slot, tokens) for tokens in range(table.ready + 1, len(table.prefix[1]) + 1))
        if "misuse" in scope.calls:
            for slot, table in there(state):
                yield from (cls(slot, -1), cls(slot, len(table.prefix[1]) + 1))
                yield from () if table.device is Device.GPU else (cls(slot, 1),)
            yield from () if (free := absent(state)) is None else (cls(free, 0),)


@dataclass(frozen=True, slots=True)
class ResetCache(TableAction):
    device: Device

    @classmethod
    def allowed(cls, scope: PagedScope, state: Paged) -> Iterator[Self]:
        yield from map(cls, scope.devices) if "reset" in scope.calls else ()


ACTIONS: tuple[type[Any], ...] = (
    Allocate, Fork, FreeTable, AppendTokens, Ensure, MarkTable, Swap, ClearCopies, MarkComputed, ResetCache, Access,
    AccessFound, AccessUnknown,
)  # fmt: skip


def pairs_of(outcome: Outcome[Paged]) -> tuple[Pair, ...]:
    last = outcome.steps[-1][1]
    return last.pairs if isinstance(last, PagedDone) else ()
