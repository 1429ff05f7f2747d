"""The actions of an engine with a worker: it has the manager serve requests, and hands out steps.

The manager is the specification's. The worker's rows follow from the deltas of batches, and are taken anew after any
other call. A step is handed out before any of its requests goes on or ends: its slots are published, and must be
computed. With recurrent layers it is handed out before a lookup too, since no step can read a state that it writes
(STATE-3).
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import combinations, permutations
from typing import Any, NamedTuple, Self

from blockwright_spec.manager import transitions
from blockwright_spec.manager.added import StepAdded
from blockwright_spec.manager.hits import found
from blockwright_spec.manager.in_time.forks import take_copies
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Done, Step
from blockwright_spec.manager.state import Content, Running, State, draft_states, is_loading, recurrent
from blockwright_spec.worker import rows as calls
from blockwright_spec.worker.input_laws import Handed, RowCall
from blockwright_spec.worker.inputs import Inputs, Work, inputs, stepped
from blockwright_spec.worker.rows import Row, RowRefusal, Rows, RowsOutcome, gaps, place_of

from ..checker.world import Outcome, kind_of
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


@dataclass(frozen=True, slots=True)
class WorkerAction:
    """The base of all actions: most are one call on rows, with the same name for a worker and the specification."""

    def arguments(self) -> list[Any]:
        return [getattr(self, each.name) for each in fields(self)]

    def rows(self, state: Serving, choice: Choice | None) -> RowsOutcome:
        after: RowsOutcome = getattr(calls, type(self).__name__.lower())(state.rows, *self.arguments())
        return after

    def named(self) -> frozenset[int]:
        return frozenset()

    def perform(self, model: Any, state: Serving) -> Any:
        return getattr(model, type(self).__name__.lower())(*self.arguments())

    def meaning(self, state: Serving, choice: Choice | None = None) -> Served:
        after = self.rows(state, choice)
        if isinstance(after, RowRefusal):
            return Served(state, (), Refused(after))
        return Served(replace(state, rows=after), ((state, RowCall(state.rows, after, self.named())),))


@dataclass(frozen=True, slots=True)
class Add(WorkerAction):
    row: Row

    def rows(self, state: Serving, choice: Choice | None) -> RowsOutcome:
        slot, free = self.row.slot, state.rows.index(None) if None in state.rows else -1
        at = place_of(state.rows, slot) if choice is None else place_in(choice.places, slot)
        return calls.add(state.rows, self.row, free if at is None else at)

    def named(self) -> frozenset[int]:
        return frozenset((self.row.slot,))


@dataclass(frozen=True, slots=True)
class Remove(WorkerAction):
    slot: int

    def named(self) -> frozenset[int]:
        return frozenset((self.slot,))


def place_in(places: Places, slot: int) -> int | None:
    """Return the place of a request's row; one that is none if it has no row."""
    return places.index(slot) if slot in places else len(places)


@dataclass(frozen=True, slots=True)
class Serve(WorkerAction):
    """Have the manager serve a call for one request, and take the rows anew of all requests with changed tables."""

    action: Any

    @classmethod
    def allowed(cls, scope: WorkerScope, state: Serving) -> Iterator[Self]:
        busy, config = state.busy, state.manager.config
        for each in enabled(scope.engine, state.manager) if not state.result else ():
            match kind_of(each):
                case "Admit":
                    is_in_time = not (busy and recurrent(config))
                case "Release" | "Preempt":
                    is_in_time = each.slot not in busy or config.added.settles
                case "Fork" | "Start" | "Settle":
                    is_in_time = not busy
                case "TakeCopies" | "GrowEach" | "Reset":
                    is_in_time = False
                case _:
                    is_in_time = each.slot not in busy
            if is_in_time:
                yield cls(each)

    def meaning(self, state: Serving, choice: Choice | None = None) -> Served:
        before, outcome = state.manager, self.action.meaning(state.manager)
        if outcome.refusal is not None:
            return Served(state, (), events=(outcome.refusal.reason.name,))
        after: State = outcome.state
        events, parts = [], tuple(each for each in state.parts if isinstance(after.requests[each.work.slot], Running))
        if len(parts) < len(state.parts):
            events.append("left the step")
        served = replace(state, manager=after, parts=parts)
        if (work := self.work(before)) is not None:
            held = {block for part in parts for table in tables_of(after, part.work.slot) for block in table if block}
            if held & {block for table in tables_of(after, work.slot) for block in table}:
                events.append("hit of the step")
            served = replace(served, parts=(*parts, Part(work, before.contents)))
        events += ["accepted"] * bool(getattr(self.action, "accepted", 0))
        events += ["rejected"] * (kind_of(self.action) == "Settle" and any(self.action.arguments))
        steps: tuple[Any, ...] = ()
        for each in changes(before, after):
            done = each.meaning(served, choice)
            if done.refusal is not None:
                return Served(state, (), done.refusal)
            served, steps = done.state, steps + done.steps
        return Served(served, steps, events=tuple(events))

    def work(self, before: State) -> Work | None:
        match self.action:
            case requests.Admit(slot, prefix, step) if step.new:
                return Work(slot, found(before, prefix, LRU).length if before.config.caching else 0, step.new)
            case requests.Grow(slot, step):
                return Work(slot, computed_of(before, slot), step.new, step.added.drafts)
        return None

    def perform(self, model: Any, state: Serving) -> None:
        outcome = self.action.meaning(state.manager)
        for each in changes(state.manager, outcome.state) if outcome.refusal is None else ():
            each.perform(model, state)


def tables_of(state: State, slot: int) -> tuple[Any, ...]:
    request = state.requests[slot]
    return request.tables if isinstance(request, Running) else ()


def changes(before: State, after: State) -> Iterator[Add | Remove]:
    """Yield the calls by which a worker learns the changes of a call on the manager other than a batch."""
    for slot, (old, new) in enumerate(zip(before.requests, after.requests, strict=True)):
        if isinstance(new, Running):
            if not isinstance(old, Running) or (old.tables, old.added.states) != (new.tables, new.added.states):
                yield Add(Row(slot, new.tables, new.added.states, new.added.encoder))
        elif isinstance(old, Running):
            yield Remove(slot)


@dataclass(frozen=True, slots=True)
class Batch(WorkerAction):
    """Have the manager serve several requests in one call: slot, new tokens, drafts; its deltas are still to come."""

    asks: tuple[tuple[int, int, int], ...]

    @classmethod
    def allowed(cls, scope: WorkerScope, state: Serving) -> Iterator[Self]:
        manager, busy = state.manager, state.busy
        states = draft_states(manager.config)
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
        yield from map(cls, dict.fromkeys((whole, whole[::-1], ones, drafted, drafted[::-1])))

    def meaning(self, state: Serving, choice: Choice | None = None) -> Served:
        before, parts = state.manager, list(state.parts)
        begins = {slot: computed_of(before, slot) for slot, _, _ in self.asks}
        asks = tuple((slot, begins[slot], Step(new, added=StepAdded(drafts=drafts))) for slot, new, drafts in self.asks)
        dones, refusal = transitions.grow_each(before, asks, LRU)
        for (slot, begin, step), done in zip(asks, dones, strict=False):
            parts.append(Part(Work(slot, begin, step.new, step.added.drafts), before.contents))
            before = done.state
        events = ["copies in a batch"] * any(any(entry is not None for entry in done.copied) for done in dones)
        events += ["second batch"] * bool(state.parts and dones)
        events += [] if refusal is None else [refusal.reason.name]
        result = tuple(zip((slot for slot, _, _ in self.asks), dones, strict=False))
        return Served(replace(state, manager=before, parts=tuple(parts), result=result), (), None, tuple(events))

    def perform(self, model: Any, state: Serving) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Apply(WorkerAction):
    result: BatchResult

    @classmethod
    def allowed(cls, scope: WorkerScope, state: Serving) -> Iterator[Self]:
        yield from (cls(state.result),) if state.result else ()

    def named(self) -> frozenset[int]:
        return frozenset(slot for slot, _ in self.result)

    def perform(self, model: Any, state: Serving) -> None:
        model.apply(told(self.result))

    def meaning(self, state: Serving, choice: Choice | None = None) -> Served:
        done = WorkerAction.meaning(self, state, choice)
        return done if done.refusal else Served(replace(done.state, result=()), done.steps)


def told(result: BatchResult) -> Told:
    """Return what a manager reports of a batch: for each slot new and nulled entries per group, and replaced ones."""
    return tuple((slot, done.new, done.nulled, replaced(done)) for slot, done in result)


@dataclass(frozen=True, slots=True)
class HandOut(WorkerAction):
    """Hand the step to the kernels, with its requests in an order; it may follow the last batch first."""

    works: tuple[Work, ...]

    @classmethod
    def allowed(cls, scope: WorkerScope, state: Serving) -> Iterator[Self]:
        if not state.parts:
            return
        first = [slot for slot, _ in state.result]
        works = {part.work.slot: part.work for part in state.parts}
        rest = [slot for slot in works if slot not in first]
        orders: Any = permutations(rest) if len(rest) < 4 else (rest, rest[::-1], sorted(rest), rest[2:] + rest[:2])
        for order in orders:
            yield cls(tuple(works[slot] for slot in (*first, *order)))
        for slot, each in enumerate(state.manager.requests):
            if isinstance(each, Running) and slot not in works and not is_loading(state.manager, slot):
                nothing = Work(slot, computed_of(state.manager, slot), 0)
                yield cls((*(works[each] for each in (*first, *rest)), nothing))

    def meaning(self, state: Serving, choice: Choice | None = None) -> Served:
        manager, before, named = state.manager, state.rows, frozenset(work.slot for work in self.works)
        result = state.result if state.parts else ()
        rows = calls.apply(before, result) if result else before
        unfit = rows if isinstance(rows, RowRefusal) else inputs(manager.config, rows, self.works, manager.copies)
        if isinstance(unfit, RowRefusal) or isinstance(rows, RowRefusal):
            return Served(state, (), Refused(unfit))  # type: ignore[arg-type]
        slots = tuple(work.slot for work in self.works)
        arranged = calls.arrange(rows, slots, order_of(rows, slots, choice))
        if isinstance(arranged, RowRefusal):
            return Served(state, (), Refused(arranged))
        handed = inputs(manager.config, arranged, self.works, manager.copies)
        assert isinstance(handed, Inputs)
        ghosts = {part.work.slot: part.found for part in state.parts}
        found = tuple(ghosts.get(slot, manager.contents) for slot in slots)
        after, call = stepped(arranged, self.works), RowCall(before, arranged, named | {slot for slot, _ in result})
        taken = take_copies(manager, LRU) if manager.copies else None
        events = ["copies"] * bool(manager.copies) + ["followed with the step"] * bool(result)
        events += ["nothing of a request"] * any(work.new == 0 for work in self.works)
        steps = ((state, call), (state, Handed(manager, arranged, self.works, handed, found)))
        served = Serving(taken.state if isinstance(taken, Done) else manager, after)
        return Served(served, steps, None, tuple(events))

    def perform(self, model: Any, state: Serving) -> Any:
        return model.step(self.works, state.manager.copies, told(state.result) if state.parts else ())


def order_of(rows: Rows, slots: tuple[int, ...], choice: Choice | None) -> tuple[int, ...]:
    places = [None if row is None else row.slot for row in rows]
    if choice is None:
        first = [places.index(slot) for slot in slots]
        return (*first, *(place for place in range(len(rows)) if place not in first))
    free = iter([place for place, slot in enumerate(places) if slot is None])
    return tuple(next(free, -1) if slot is None else place_in(tuple(places), slot) or 0 for slot in choice.places)


@dataclass(frozen=True, slots=True)
class Compact(WorkerAction):
    @classmethod
    def allowed(cls, scope: WorkerScope, state: Serving) -> Iterator[Self]:
        yield cls()

    def rows(self, state: Serving, choice: Choice | None) -> RowsOutcome:
        moves, rows = [], list(state.rows)
        while choice is None and gaps(tuple(rows)):
            source, target = max(at for at, row in enumerate(rows) if row), rows.index(None)
            rows[source], rows[target] = None, rows[source]
            moves.append((source, target))
        return calls.compact(state.rows, tuple(moves) if choice is None else choice.moves)


@dataclass(frozen=True, slots=True)
class Swap(WorkerAction):
    """Have two places change their rows, free ones too."""

    one: int
    other: int

    @classmethod
    def allowed(cls, scope: WorkerScope, state: Serving) -> Iterator[Self]:
        yield cls(0, 0)
        yield from (cls(one, other) for one, other in combinations(range(len(state.rows)), 2))


@dataclass(frozen=True, slots=True)
class Move(WorkerAction):
    slot: int
    place: int

    @classmethod
    def allowed(cls, scope: WorkerScope, state: Serving) -> Iterator[Self]:
        free = [place for place, row in enumerate(state.rows) if row is None]
        yield from (cls(row.slot, place) for row in state.rows if row for place in free)


@dataclass(frozen=True, slots=True)
class Misuse(WorkerAction):
    """Make a wrong call: of requests without a row, to places that are taken or are not there, with wrong counts."""

    wrong: Any

    @classmethod
    def allowed(cls, scope: WorkerScope, state: Serving) -> Iterator[Self]:
        if scope.misuse and not state.result:
            for each in wrong_calls(state):
                if each.meaning(state).refusal is not None:
                    yield cls(each)

    def meaning(self, state: Serving, choice: Choice | None = None) -> Served:
        meant: Served = self.wrong.meaning(state)
        return meant

    def perform(self, model: Any, state: Serving) -> Any:
        return self.wrong.perform(model, state)


def wrong_calls(state: Serving) -> Iterator[Any]:
    """Yield calls of which most are wrong; of many rows one has its turn, since a history draws one call at a time."""
    beyond, nothing = len(state.rows), ((),) * len(state.manager.config.groups)
    done = Done(state.manager)
    yield from (Remove(STRANGER), Move(STRANGER, 0), Apply(((STRANGER, done),)), Swap(0, beyond), Swap(-1, 0))
    yield HandOut((Work(STRANGER, 0, 1),))
    yield Add(Row(STRANGER, nothing, nothing))
    rows = [row for row in state.rows if row is not None]
    turn = sum(row.certain or 0 for row in rows) % len(rows) if len(rows) > 2 else 0
    for row in rows if len(rows) <= 2 else rows[turn : turn + 1]:
        slot, begin = row.slot, row.certain or 0
        yield from (Move(slot, place) for place in (*range(beyond), beyond))
        yield Apply(((slot, done),) * 2)
        yield HandOut((Work(slot, begin, 1),) * 2)
        for new, drafts in ((-1, 0), (1, -1), (1, 1), (2, 2)):
            yield HandOut((Work(slot, begin, new, drafts),))
        longest = state.manager.config.max_model_len
        for first in dict.fromkeys((begin, 0, len(row.tables[0]) * state.manager.config.groups[0].block_size)):
            for new, drafts in ((1, 0), (3, 0), (4, 1), (5, 3)):
                if first + new <= longest:
                    yield HandOut((Work(slot, first, new, drafts),))


ACTIONS: tuple[type[Any], ...] = (Serve, Batch, Apply, HandOut, Compact, Swap, Move, Misuse)
