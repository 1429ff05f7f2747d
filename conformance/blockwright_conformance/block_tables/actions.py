"""The calls of users of block tables: which of them a scope allows in a state, what they mean, and how they are made.

Tables are named by slot; blocks only where an access of them is noted.
"""

from collections.abc import Callable
from itertools import combinations
from typing import Any, NamedTuple

from blockwright_spec.block_tables import marks
from blockwright_spec.block_tables import transitions as calls
from blockwright_spec.block_tables.outcomes import Choice, PagedDone, PagedRefusal, lowest
from blockwright_spec.block_tables.state import Device, Paged, PagedTable, Pair, blocks_of

from ..checker.world import Arguments, Outcome
from .scopes import PagedScope

CHOOSING = ("allocate", "append", "ensure", "swap")
"""The calls that take free blocks, which one is open."""


class TablesReply(NamedTuple):
    refused: bool = False
    """It said that the cache could not be reset."""
    error: Exception | None = None
    pairs: tuple[Pair, ...] = ()
    order: tuple[int, ...] = ()
    """The free blocks before it, in the order in which they would have been taken."""


class TableCall(NamedTuple):
    """One call, with the same name and arguments for allocators and the specification (`KINDS`).

    After tokens are appended the copies are taken at once, unless a fifth argument says that they are not.
    """

    kind: str
    arguments: tuple[Any, ...] = ()

    @property
    def clears(self) -> bool:
        return self.kind == "AppendTokens" and not self.arguments[4]

    def meaning(self, state: Paged, choice: Choice | None = None) -> Outcome[Paged]:
        name = KINDS[self.kind][0]
        call = getattr(marks if hasattr(marks, name) else calls, name)
        outcome = call(state, *self.arguments[:4], *((choice or lowest,) if name in CHOOSING else ()))
        if isinstance(outcome, PagedRefusal):
            return Outcome(state, ((state, outcome),), outcome)
        if not self.clears:
            return Outcome(outcome.state, ((state, outcome),))
        cleared = TableCall("ClearCopies").meaning(outcome.state)
        return Outcome(cleared.state, ((state, outcome), *cleared.steps))

    def perform(self, model: Any, state: Paged) -> TablesReply:
        order = model.order()
        try:
            answer = getattr(model, KINDS[self.kind][0])(*self.arguments[:4])
            answer = model.clear_copies() if self.clears else answer
        except model.errors as error:
            return TablesReply(error=error, order=order)
        return TablesReply(answer is False, None, answer if isinstance(answer, tuple) else (), order)


def absent(state: Paged) -> list[int]:
    """Return the first empty slot, if there is one: empty slots are alike."""
    return [slot for slot, table in enumerate(state.tables) if table is None][:1]


def there(state: Paged) -> list[tuple[int, PagedTable]]:
    return [(slot, table) for slot, table in enumerate(state.tables) if table is not None]


def on_gpu(state: Paged) -> list[tuple[int, PagedTable]]:
    return [(slot, table) for slot, table in there(state) if table.device is Device.GPU]


def allocate(scope: PagedScope, state: Paged) -> Arguments:
    devices = scope.devices if "host" in scope.calls else (Device.GPU,)
    for slot in absent(state):
        yield from ((slot, prefix, device) for prefix in scope.prompts for device in devices)
    if "misuse" in scope.calls:
        yield from ((other, scope.prompts[0], Device.GPU) for other, _ in there(state))
        yield from ((slot, (0, ()), Device.GPU) for slot in absent(state))


def append(scope: PagedScope, state: Paged) -> Arguments:
    """Yield tokens to append, with lookahead slots after them; with a window, how many are known to be computed."""
    window, size = scope.config.window, scope.config.block_size
    for slot, table in on_gpu(state):
        length = len(table.prefix[1])
        computed: tuple[int | None, ...] = (None,) if window is None else (length,)
        if window is not None and "late" in scope.calls:
            computed = (max(0, length - size), length)
        for tokens in scope.outputs:
            for ahead in scope.lookaheads if length + len(tokens) <= scope.max_tokens else ():
                for counted in computed:
                    yield slot, tokens, ahead, counted, False
                    if "delay" in scope.calls:
                        yield slot, tokens, ahead, counted, True
    if "misuse" in scope.calls:
        yield from append_wrongly(state, None if window is None else 0)


def append_wrongly(state: Paged, counted: int | None) -> Arguments:
    for slot, table in there(state):
        yield slot, (0,), -1, counted, False
        if counted is not None:
            yield slot, (0,), 0, None, False
            yield slot, (0,), 0, -1, False
            yield slot, (0,), 0, len(table.prefix[1]) + 1, False
        if table.device is Device.CPU:
            yield slot, (0,), 0, counted, False
    yield from ((slot, (0,), 0, counted, False) for slot in absent(state))


def ensure(scope: PagedScope, state: Paged) -> Arguments:
    for slot, _ in on_gpu(state) if "ensure" in scope.calls else ():
        yield from ((slot, slots) for slots in (0, *scope.lookaheads[1:], scope.config.block_size + 1))
    if "misuse" in scope.calls:
        for slot, table in there(state):
            yield slot, -1
            yield from () if table.device is Device.GPU else ((slot, 1),)
        yield from ((slot, 1) for slot in absent(state))


def fork(scope: PagedScope, state: Paged) -> Arguments:
    for slot in absent(state):
        yield from ((parent, slot) for parent, _ in there(state))
        yield from ((slot, slot),) if "misuse" in scope.calls else ()


def free(scope: PagedScope, state: Paged) -> Arguments:
    yield from ((slot,) for slot, _ in there(state))
    yield from ((slot,) for slot in absent(state) if "misuse" in scope.calls)


def swap(scope: PagedScope, state: Paged) -> Arguments:
    for source, to in ((Device.GPU, Device.CPU), (Device.CPU, Device.GPU)) if "swap" in scope.calls else ():
        own = [slot for slot, table in there(state) if table.device is source]
        for count in range(1, len(own) + 1):
            yield from ((slots, to) for slots in combinations(own, count))
    if "misuse" in scope.calls and scope.config.num_cpu:
        yield from (((slot,), table.device) for slot, table in there(state))


def access(scope: PagedScope, state: Paged) -> Arguments:
    last = max(state.times)
    for slot, _ in there(state) if "access" in scope.calls else ():
        yield touched(state, slot), last + 1
        yield touched(state, slot), last + (last == 0)


def touched(state: Paged, slot: int) -> tuple[int, ...]:
    table = state.tables[slot]
    return () if table is None else tuple(block for block in table.entries if block != state.null)


def access_found(scope: PagedScope, state: Paged) -> Arguments:
    for block, key in enumerate(state.keys) if "access" in scope.calls else ():
        if key is not None and block in state.free:
            device = Device.GPU if block < state.config.num_gpu else Device.CPU
            same = tuple(each for each in blocks_of(state.config, device) if state.keys[each] == key)
            yield same, max(state.times) + 1


def access_unknown(scope: PagedScope, state: Paged) -> Arguments:
    """Yield a free block without content of each device: a wrong call."""
    for device in scope.devices if "misuse" in scope.calls else ():
        own = blocks_of(state.config, device)
        unknown = tuple(block for block in own if block in state.free and not state.keys[block])
        yield from ((unknown[:1], max(state.times) + 1),) if unknown else ()


def mark_table(scope: PagedScope, state: Paged) -> Arguments:
    for slot, table in on_gpu(state) if "chunks" in scope.calls else ():
        yield from ((slot, tokens) for tokens in range(table.ready + 1, len(table.prefix[1]) + 1))
    if "misuse" in scope.calls:
        for slot, table in there(state):
            yield from ((slot, -1), (slot, len(table.prefix[1]) + 1))
            yield from () if table.device is Device.GPU else ((slot, 1),)
        yield from ((slot, 0) for slot in absent(state))


KINDS: dict[str, tuple[str, Callable[[PagedScope, Paged], Arguments]]] = {
    "Allocate": ("allocate", allocate), "Fork": ("fork", fork), "FreeTable": ("free", free),
    "AppendTokens": ("append", append), "Ensure": ("ensure", ensure), "MarkTable": ("mark_table", mark_table),
    "Swap": ("swap", swap),
    "ClearCopies": ("clear_copies", lambda scope, state: iter([()] * ("delay" in scope.calls))),
    "MarkComputed": ("mark_computed", lambda scope, state: iter([()] * ("mark" in scope.calls))),
    "ResetCache": ("reset", lambda scope, state: iter([(each,) for each in scope.devices if "reset" in scope.calls])),
    "Access": ("access", access), "AccessFound": ("access", access_found), "AccessUnknown": ("access", access_unknown),
}  # fmt: skip
"""The kinds of calls in the order in which they are tried: the call, and with which arguments a scope allows it."""


def pairs_of(outcome: Outcome[Paged]) -> tuple[Pair, ...]:
    last = outcome.steps[-1][1]
    return last.pairs if isinstance(last, PagedDone) else ()
