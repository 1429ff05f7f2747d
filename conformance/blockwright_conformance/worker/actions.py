"""The actions of an engine with a worker: it has the manager serve requests, and hands out steps.

The manager is the specification's. The worker's rows follow from the deltas of batches, and are taken anew after any
other call. A step is handed out before any of its requests goes on or ends: its slots are published, and must be
computed. With recurrent layers it is handed out before a lookup too, since no step can read a state that it writes
(STATE-3).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from typing import Any, NamedTuple

from blockwright_spec.manager import transitions
from blockwright_spec.manager.demand import Step
from blockwright_spec.manager.facts import goes_back, is_coming, recurrent
from blockwright_spec.manager.hits import found
from blockwright_spec.manager.in_time.forks import take_copies
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Done
from blockwright_spec.manager.state import Content, Running, State
from blockwright_spec.worker import rows as calls
from blockwright_spec.worker.input_laws import Handed, RowCall
from blockwright_spec.worker.inputs import Inputs, Work, inputs, stepped
from blockwright_spec.worker.rows import Row, RowRefusal, Rows, RowsOutcome, gaps, place_of

from ..checker.world import Arguments, Outcome, kind_of
from ..kv_cache import requests
from ..kv_cache.actions import enabled
from ..kv_cache.lockstep import replaced
from ..kv_cache.parts import computed_of, wanted
from .scopes import WorkerScope

Places = tuple[int | None, ...]
"""The slot of the request in each row; None where a row is free."""
BatchResult = tuple[tuple[int, Done], ...]
"""What a batch tells: the slots of the requests that it served, each with its step."""
Told = tuple[tuple[int, Any, Any, Any], ...]
"""The same without the specification's states."""

STRANGER = 99


class Part(NamedTuple):
    """The part of a step for one request, and the ghost of every block's content just before."""

    work: Work
    found: tuple[Content | None, ...]


@dataclass(frozen=True, slots=True)
class Serving:
    """A manager, the rows of a worker, the parts of the next step, and the rest of a batch to be followed."""

    manager: State
    rows: Rows
    parts: tuple[Part, ...] = ()
    result: BatchResult = ()

    @property
    def busy(self) -> set[int]:
        return {part.work.slot for part in self.parts}


class Refused(NamedTuple):
    reason: RowRefusal


class Choice(NamedTuple):
    """A worker's observed choice: the place of each row now, and the moves that closed gaps."""

    places: Places
    moves: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Served(Outcome[Serving]):
    """What comes of an action, and particulars of it that must have happened in some history."""

    events: tuple[str, ...] = ()


class WorkerCall(NamedTuple):
    """One thing that an engine does (`KINDS`): most kinds are one call on rows, with the same name and arguments."""

    kind: str
    arguments: tuple[Any, ...] = ()

    def meaning(self, state: Serving, choice: Choice | None = None) -> Served:
        match self:
            case "Serve", (action,):
                return served(state, action, choice)
            case "Batch", (asks,):
                return batched(state, asks)
            case "HandOut", (works,):
                return handed_out(state, works, choice)
            case "Misuse", (wrong,):
                meant: Served = wrong.meaning(state)
                return meant
        after = self.rows(state.rows, choice)
        if isinstance(after, RowRefusal):
            return Served(state, (), Refused(after))
        result = () if self.kind == "Apply" else state.result
        return Served(replace(state, rows=after, result=result), ((state, RowCall(state.rows, after, self.named())),))

    def rows(self, rows: Rows, choice: Choice | None) -> RowsOutcome:
        match self:
            case "Add", (row,):
                return calls.add(rows, row, place_for(rows, row.slot, choice))
            case "Compact", _:
                return calls.compact(rows, moves(rows) if choice is None else choice.moves)
        after: RowsOutcome = getattr(calls, self.kind.lower())(rows, *self.arguments)
        return after

    def named(self) -> frozenset[int]:
        """Return the slots of the requests that a call on rows names: it may change no other row."""
        match self:
            case "Add", (row,):
                return frozenset((row.slot,))
            case "Remove", slots:
                return frozenset(slots)
            case "Apply", (result,):
                return frozenset(slot for slot, _ in result)
        return frozenset()

    def perform(self, model: Any, state: Serving) -> Any:
        match self:
            case "Serve", (action,):
                for each in changes(state.manager, action.meaning(state.manager).state):
                    each.perform(model, state)
                return None
            case "Batch", _:  # the manager is the specification's, and its deltas are still to come
                return None
            case "Apply", (result,):
                return model.apply(told(result))
            case "HandOut", (works,):
                return model.step(works, state.manager.copies, told(state.result) if state.parts else ())
            case "Misuse", (wrong,):
                return wrong.perform(model, state)
        return getattr(model, self.kind.lower())(*self.arguments)


# ---- calls on rows


def place_for(rows: Rows, slot: int, choice: Choice | None) -> int:
    """Return the place that a request's row gets: the one it has, or a free one."""
    at = place_of(rows, slot) if choice is None else place_in(choice.places, slot)
    if at is None:
        return rows.index(None) if None in rows else -1
    return at


def place_in(places: Places, slot: int) -> int:
    """Return the place of a request's row; one that is none if it has no row."""
    return places.index(slot) if slot in places else len(places)


def moves(rows: Rows) -> tuple[tuple[int, int], ...]:
    """Return moves that close the gaps, each of the last row to the first free place."""
    made, now = [], list(rows)
    while gaps(tuple(now)):
        source, target = max(at for at, row in enumerate(now) if row), now.index(None)
        now[source], now[target] = None, now[source]
        made.append((source, target))
    return tuple(made)


def swap(scope: WorkerScope, state: Serving) -> Arguments:
    """Yield places that change their rows, free ones too."""
    yield 0, 0
    yield from combinations(range(len(state.rows)), 2)


def move(scope: WorkerScope, state: Serving) -> Arguments:
    free = [place for place, row in enumerate(state.rows) if row is None]
    yield from ((row.slot, place) for row in state.rows if row for place in free)


# ---- a call on the manager for one request, and the rows anew of all requests with changed tables


def serve(scope: WorkerScope, state: Serving) -> Arguments:
    busy, config = state.busy, state.manager.config
    for each in enabled(scope.engine, state.manager) if not state.result else ():
        match kind_of(each):
            case "Admit":
                is_in_time = not (busy and recurrent(config))
            case "Release" | "Preempt":
                is_in_time = each.slot not in busy or config.settles
            case "Fork" | "Start" | "Settle":
                is_in_time = not busy
            case "TakeCopies" | "GrowEach" | "Reset":
                is_in_time = False
            case _:
                is_in_time = each.slot not in busy
        if is_in_time:
            yield (each,)


def served(state: Serving, action: Any, choice: Choice | None) -> Served:
    before, outcome = state.manager, action.meaning(state.manager)
    if outcome.refusal is not None:
        return Served(state, (), events=(outcome.refusal.reason.name,))
    after: State = outcome.state
    events, parts = [], tuple(each for each in state.parts if isinstance(after.requests[each.work.slot], Running))
    if len(parts) < len(state.parts):
        events.append("left the step")
    now = replace(state, manager=after, parts=parts)
    if (work := work_of(action, before)) is not None:
        held = {block for part in parts for table in tables_of(after, part.work.slot) for block in table if block}
        if held & {block for table in tables_of(after, work.slot) for block in table}:
            events.append("hit of the step")
        now = replace(now, parts=(*parts, Part(work, before.contents)))
    events += ["accepted"] * bool(getattr(action, "accepted", 0))
    events += ["rejected"] * (kind_of(action) == "Settle" and any(action.arguments))
    steps: tuple[Any, ...] = ()
    for each in changes(before, after):
        done = each.meaning(now, choice)
        if done.refusal is not None:
            return Served(state, (), done.refusal)
        now, steps = done.state, steps + done.steps
    return Served(now, steps, events=tuple(events))


def work_of(action: Any, before: State) -> Work | None:
    match action:
        case requests.Admit(slot, prefix, step) if step.new:
            return Work(slot, found(before, prefix, LRU).length if before.config.caching else 0, step.new)
        case requests.Grow(slot, step):
            return Work(slot, computed_of(before, slot), step.new, step.drafts)
    return None


def tables_of(state: State, slot: int) -> tuple[Any, ...]:
    request = state.requests[slot]
    return request.tables if isinstance(request, Running) else ()


def changes(before: State, after: State) -> Iterator[WorkerCall]:
    """Yield the calls by which a worker learns the changes of a call on the manager other than a batch."""
    for slot, (old, new) in enumerate(zip(before.requests, after.requests, strict=True)):
        if isinstance(new, Running):
            if not isinstance(old, Running) or (old.tables, old.states) != (new.tables, new.states):
                yield WorkerCall("Add", (Row(slot, new.tables, new.states, new.beside),))
        elif isinstance(old, Running):
            yield WorkerCall("Remove", (slot,))


# ---- a batch: several requests are served in one call, and its deltas are still to come


def batch(scope: WorkerScope, state: Serving) -> Arguments:
    """Yield asks: slot, new tokens and drafts of each request."""
    manager, busy = state.manager, state.busy
    states = goes_back(manager.config)
    most = scope.engine.drafts if states is None else min(states, scope.engine.drafts)
    wants = [
        (slot, want, min(most, manager.config.max_model_len - computed_of(manager, slot) - want))
        for slot, each in enumerate(manager.requests)
        if isinstance(each, Running) and slot not in busy and (want := wanted(manager, slot, each)) > 0
    ]
    if state.result or not wants:
        return
    whole = tuple((slot, want, 0) for slot, want, _ in wants)
    drafted = tuple((slot, want + drafts, drafts) for slot, want, drafts in wants)
    ones = tuple((slot, 1, 0) for slot, _, _ in wants)
    yield from zip(dict.fromkeys((whole, whole[::-1], ones, drafted, drafted[::-1])))


def batched(state: Serving, asks: tuple[tuple[int, int, int], ...]) -> Served:
    before, parts = state.manager, list(state.parts)
    steps = tuple((slot, computed_of(before, slot), Step(new, drafts=drafts)) for slot, new, drafts in asks)
    dones, refusal = transitions.grow_each(before, steps, LRU)
    for (slot, begin, step), done in zip(steps, dones, strict=False):
        parts.append(Part(Work(slot, begin, step.new, step.drafts), before.contents))
        before = done.state
    events = ["copies in a batch"] * any(any(entry is not None for entry in done.copied) for done in dones)
    events += ["second batch"] * bool(state.parts and dones)
    events += [] if refusal is None else [refusal.reason.name]
    result = tuple(zip((slot for slot, _, _ in asks), dones, strict=False))
    return Served(replace(state, manager=before, parts=tuple(parts), result=result), (), None, tuple(events))


def told(result: BatchResult) -> Told:
    """Return what a manager reports of a batch: for each slot new and nulled entries per group, and replaced ones."""
    return tuple((slot, done.new, done.nulled, replaced(done)) for slot, done in result)


# ---- the step is handed to the kernels, with its requests in an order; it may follow the last batch first


def hand_out(scope: WorkerScope, state: Serving) -> Arguments:
    if not state.parts:
        return
    first = [slot for slot, _ in state.result]
    works = {part.work.slot: part.work for part in state.parts}
    rest = [slot for slot in works if slot not in first]
    orders: Any = permutations(rest) if len(rest) < 4 else (rest, rest[::-1], sorted(rest), rest[2:] + rest[:2])
    for order in orders:
        yield (tuple(works[slot] for slot in (*first, *order)),)
    for slot, each in enumerate(state.manager.requests):
        if isinstance(each, Running) and slot not in works and not is_coming(state.manager, slot):
            nothing = Work(slot, computed_of(state.manager, slot), 0)
            yield ((*(works[each] for each in (*first, *rest)), nothing),)


def handed_out(state: Serving, works: tuple[Work, ...], choice: Choice | None) -> Served:
    manager, before, named = state.manager, state.rows, frozenset(work.slot for work in works)
    result = state.result if state.parts else ()
    rows = calls.apply(before, result) if result else before
    unfit = rows if isinstance(rows, RowRefusal) else inputs(manager.config, rows, works, manager.copies)
    if isinstance(unfit, RowRefusal) or isinstance(rows, RowRefusal):
        return Served(state, (), Refused(unfit))  # type: ignore[arg-type]
    slots = tuple(work.slot for work in works)
    arranged = calls.arrange(rows, slots, order_of(rows, slots, choice))
    if isinstance(arranged, RowRefusal):
        return Served(state, (), Refused(arranged))
    handed = inputs(manager.config, arranged, works, manager.copies)
    assert isinstance(handed, Inputs)
    ghosts = {part.work.slot: part.found for part in state.parts}
    found = tuple(ghosts.get(slot, manager.contents) for slot in slots)
    after, call = stepped(arranged, works), RowCall(before, arranged, named | {slot for slot, _ in result})
    taken = take_copies(manager, LRU) if manager.copies else None
    events = ["copies"] * bool(manager.copies) + ["followed with the step"] * bool(result)
    events += ["nothing of a request"] * any(work.new == 0 for work in works)
    steps = ((state, call), (state, Handed(manager, arranged, works, handed, found)))
    served = Serving(taken.state if isinstance(taken, Done) else manager, after)
    return Served(served, steps, None, tuple(events))


def order_of(rows: Rows, slots: tuple[int, ...], choice: Choice | None) -> tuple[int, ...]:
    places = [None if row is None else row.slot for row in rows]
    if choice is None:
        first = [places.index(slot) for slot in slots]
        return (*first, *(place for place in range(len(rows)) if place not in first))
    free = iter([place for place, slot in enumerate(places) if slot is None])
    return tuple(next(free, -1) if slot is None else place_in(tuple(places), slot) for slot in choice.places)


def misuse(scope: WorkerScope, state: Serving) -> Arguments:
    """Yield wrong calls: of requests without a row, to places that are taken or are not there, with wrong counts."""
    for kind, *arguments in wrong_calls(state) if scope.misuse and not state.result else ():
        call = WorkerCall(kind, tuple(arguments))
        if call.meaning(state).refusal is not None:
            yield (call,)


def wrong_calls(state: Serving) -> Arguments:
    """Yield kinds and arguments, of which most are wrong; a history draws one call at a time, so rows take turns."""
    beyond, nothing = len(state.rows), ((),) * len(state.manager.config.groups)
    done = Done(state.manager)
    yield from (("Remove", STRANGER), ("Move", STRANGER, 0), ("Apply", ((STRANGER, done),)))
    yield from (("Swap", 0, beyond), ("Swap", -1, 0))
    yield "HandOut", (Work(STRANGER, 0, 1),)
    yield "Add", Row(STRANGER, nothing, nothing)
    rows = [row for row in state.rows if row is not None]
    turn = sum(row.certain or 0 for row in rows) % len(rows) if len(rows) > 2 else 0
    for row in rows if len(rows) <= 2 else rows[turn : turn + 1]:
        slot, begin = row.slot, row.certain or 0
        yield from (("Move", slot, place) for place in (*range(beyond), beyond))
        yield "Apply", ((slot, done),) * 2
        yield "HandOut", (Work(slot, begin, 1),) * 2
        for new, drafts in ((-1, 0), (1, -1), (1, 1), (2, 2)):
            yield "HandOut", (Work(slot, begin, new, drafts),)
        longest = state.manager.config.max_model_len
        for first in dict.fromkeys((begin, 0, len(row.tables[0]) * state.manager.config.groups[0].block_size)):
            for new, drafts in ((1, 0), (3, 0), (4, 1), (5, 3)):
                if first + new <= longest:
                    yield "HandOut", (Work(slot, first, new, drafts),)


KINDS: dict[str, tuple[str, Callable[[WorkerScope, Serving], Iterable[tuple[Any, ...]]]]] = {
    "Serve": ("", serve),
    "Batch": ("", batch),
    "Apply": ("apply", lambda scope, state: [(state.result,)] if state.result else ()),
    "HandOut": ("step", hand_out),
    "Compact": ("compact", lambda scope, state: ((),)),
    "Swap": ("swap", swap),
    "Move": ("move", move),
    "Misuse": ("", misuse),
}
"""What an engine does, in the order in which it is tried: the call, and with which arguments a scope allows it."""
