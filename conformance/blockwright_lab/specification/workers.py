"""The world of part four: a worker's rows beside a manager, and what each step hands to the kernels, by specification.

Every call that gives slots is a step of its own, handed out at once; rows are added where the first place is free, and
change places now and then. Plans of a device's memory have no transitions: right ones are altered by hand.
"""

import marshal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

from blockwright_conformance.kv_cache.actions import Action, Admit, Grow, GrowEach, enabled, meaning
from blockwright_conformance.kv_cache.outcome import ManagerOutcome
from blockwright_conformance.kv_cache.parts import computed_of
from blockwright_conformance.kv_cache.scopes import Scope, of_groups, strings
from blockwright_conformance.kv_cache.symmetry import Names, labelled_form
from blockwright_spec.manager.in_time.forks import take_copies
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Done
from blockwright_spec.manager.state import Running, State, initial
from blockwright_spec.reads import Chunked, Cross, Full, Mamba, Sliding
from blockwright_spec.worker import rows as calls
from blockwright_spec.worker.input_laws import INPUT_LAWS, ROW_LAWS, Handed, RowCall
from blockwright_spec.worker.inputs import Work, inputs, stepped
from blockwright_spec.worker.rows import Row, Rows, place_of, row_of
from blockwright_spec.worker.storage import Layer, Limits, PlannedGroup, StoragePlan

from .search import UNDEFINED, Came, Judge, World


class Desk(NamedTuple):
    """A manager's state, and the rows of one worker."""

    state: State
    rows: Rows


class Moved(NamedTuple):
    """Two places change their rows, or the gaps between rows are closed (no places)."""

    places: tuple[int, int] | None


class WrongOutcomeError(Exception):
    """The specification refuses what cannot be refused."""


def settled(outcome: Any) -> Any:
    """Return what came of a call on the rows.

    Raises:
        WrongOutcomeError: it was refused.
    """
    if isinstance(outcome, calls.RowRefusal):
        raise WrongOutcomeError(outcome)
    return outcome


@dataclass(slots=True)
class Steps:
    """What happens at a worker's desk in one action."""

    rows: Rows
    came: list[tuple[Any, Any]]

    def call(self, outcome: Any, *slots: int) -> None:
        """Note a call on the rows."""
        after = settled(outcome)
        self.came.append((None, RowCall(self.rows, after, frozenset(slots))))
        self.rows = after


def desk_actions(scope: Scope, desk: Desk) -> Iterator[Action | Moved]:
    """Return what may happen: an action of the engine, or rows that move."""
    yield from enabled(scope, desk.state)
    if any(desk.rows):
        yield Moved((0, len(desk.rows) - 1))
        yield Moved(None)


def desk_told(desk: Desk, action: Action | Moved) -> Came:
    """Tell what comes of an action: calls on the rows, and a step that is handed out."""
    steps = Steps(desk.rows, [])
    if isinstance(action, Moved):
        steps.call(calls.swap(desk.rows, *action.places) if action.places else calls.compact(desk.rows, gaps(desk)))
        return Came(tuple(steps.came), Desk(desk.state, steps.rows) if steps.rows != desk.rows else desk)
    told = meaning(desk.state, action)
    if told.state is desk.state:
        return Came((), desk)
    follow(steps, desk.state, told, action)
    works = works_of(desk.state, told, action)
    state = told.state
    if works:
        hand_out(steps, desk.state, state, works)
        freed = take_copies(state, LRU)
        state = freed.state if state.copies and isinstance(freed, Done) else state
    return Came(tuple(steps.came), Desk(state, steps.rows))


def gaps(desk: Desk) -> tuple[tuple[int, int], ...]:
    """Return the moves that close the gaps between rows: the last row goes to the first free place."""
    taken = [row is not None for row in desk.rows]
    moves = []
    while False in taken and (first := taken.index(False)) < (last := len(taken) - 1 - taken[::-1].index(True)):
        moves.append((last, first))
        taken[first], taken[last] = True, False
    return tuple(moves)


def follow(steps: Steps, before: State, told: ManagerOutcome, action: Action) -> None:
    """Bring the rows up to date: from what a step tells, or from the tables as they are."""
    if isinstance(action, Grow | GrowEach):
        slots = (action.slot,) if isinstance(action, Grow) else tuple(slot for slot, _ in action.asks)
        done = tuple(zip(slots, told.done, strict=False))
        steps.call(calls.apply(steps.rows, done), *(slot for slot, _ in done))
        return
    for slot, (old, new) in enumerate(zip(before.requests, told.state.requests, strict=True)):
        if isinstance(old, Running) and not isinstance(new, Running):
            steps.call(calls.remove(steps.rows, slot), slot)
        elif isinstance(new, Running) and not (isinstance(old, Running) and old.tables == new.tables):
            at = place_of(steps.rows, slot)
            place = steps.rows.index(None) if at is None else at
            steps.call(calls.add(steps.rows, Row(slot, new.tables, new.states, new.encoder), place), slot)


def works_of(before: State, told: ManagerOutcome, action: Action) -> tuple[Work, ...]:
    """Return what a step computes of each request that was given slots."""
    match action:
        case Admit(slot, _, new) if new > 0:
            return (Work(slot, told.hit.length if told.hit else 0, new),)
        case Grow(slot, new, _, _, drafts):
            return (Work(slot, computed_of(before, slot), new, drafts),)
        case GrowEach(asks):
            return tuple(Work(slot, computed_of(before, slot), new) for slot, new in asks[: len(told.steps)])
        case _:
            return ()


def hand_out(steps: Steps, before: State, state: State, works: tuple[Work, ...]) -> None:
    slots = tuple(work.slot for work in works)
    first = [place for slot in slots for place in (place_of(steps.rows, slot),) if place is not None]
    order = (*first, *(place for place in range(len(steps.rows)) if place not in first))
    steps.call(calls.arrange(steps.rows, slots, order))
    handed = settled(inputs(state.config, steps.rows, works, state.copies))
    steps.came.append((None, Handed(state, steps.rows, works, handed, (before.contents,) * len(works))))
    steps.rows = stepped(steps.rows, works)


def workers(scope: Scope) -> World:
    """Return the world of part four in a scope."""

    def of_kind(law: Any, kind: type) -> Judge:
        return Judge(law.id, lambda _, what: not isinstance(what, kind) or law.holds(what))

    def naming() -> Any:
        names = Names(labelled_form)
        return lambda desk: (names.digest(desk.state), marshal.dumps(repr(desk.rows)))

    def follows(desk: Desk) -> bool:
        return all(row_of(desk.rows, slot) is None or isinstance(each, Running) for slot, each in enumerated(desk))

    def enumerated(desk: Desk) -> Iterator[tuple[int, Any]]:
        return enumerate(desk.state.requests)

    own = (*(of_kind(law, Handed) for law in INPUT_LAWS), *(of_kind(law, RowCall) for law in ROW_LAWS))
    return World(
        scope.name,
        lambda: Desk(initial(scope.config, scope.slots), (None,) * (scope.slots + 1)),
        lambda desk: desk_actions(scope, desk),
        desk_told,
        naming,
        (Judge(UNDEFINED, follows),),
        own,
    )


_FEW: dict[str, Any] = {"prompts": strings(1, 1, 2), "max_model_len": 4}
WORKERS: tuple[Scope, ...] = (
    of_groups(((Full(), 2), (Sliding(2), 1)), "workers", 7, 3, "batch", **_FEW),
    of_groups(((Full(), 1), (Mamba(1), 2)), "workers, drafts", 9, 3, "batch", **_FEW, drafts=1),
    of_groups(((Mamba(1), 1),), "workers, drafts", 8, 3, "batch", **_FEW, drafts=1),
    of_groups(((Mamba(2), 1),), "workers, two drafts", 10, 4, "batch", **{**_FEW, "max_model_len": 5}, drafts=2),
    of_groups(((Full(), 1), (Cross(), 2)), "workers, encoder", 8, 3, "batch", **_FEW, encoder=3, caching=False),
    of_groups(((Mamba(), 2), (Chunked(2), 2)), "workers, chunks", 7, 4, "chunks", **_FEW),
    of_groups(((Full(), 2),), "workers, forks", 5, 3, "fork batch", prompts=strings(1, 1, 1)),
    of_groups(((Mamba(), 2),), "workers, forks", 5, 3, "fork batch", prompts=strings(1, 1, 1)),
    of_groups(((Full(), 1), (Mamba(), 1)), "workers, in flight", 7, 3, "", in_flight=1, slots=1, **_FEW),
)
"""Small scopes of part four."""

# --- plans

RIGHT = StoragePlan(
    layers=(Layer(Full(), 2, 4), Layer(Full(), 2, 4), Layer(Sliding(3), 2, 4), Layer(Sliding(3), 2, 3)),
    limits=Limits(tokens=8, step=4),
    memory=170,
    unit=2,
    loss=Fraction(1, 4),
    groups=(PlannedGroup((0, 1), 2, 0), PlannedGroup((2, 3), 2, 2)),
    pages=(8, 8),
    num_blocks=10,
    request_blocks=8,
)
"""A plan of two groups on two tensors."""


TWICE = (PlannedGroup((0, 1), 2, 0), PlannedGroup((2, 2), 2, 0))
MIXED = (PlannedGroup((0, 2), 2, 0), PlannedGroup((1, 3), 2, 2))
WASTED = (PlannedGroup((0, 1), 2, 0), PlannedGroup((2, 3), 2, 3))
UNEVEN = (PlannedGroup((0, 1), 2, 1), PlannedGroup((2, 3), 2, 3))

PLANS: dict[str, StoragePlan] = {
    "LAYOUT-1": replace(RIGHT, groups=TWICE),
    "LAYOUT-2": replace(RIGHT, groups=MIXED),
    "LAYOUT-3": replace(RIGHT, pages=(10, 6)),
    "LAYOUT-4": replace(RIGHT, num_blocks=11),
    "LAYOUT-5": replace(RIGHT, num_blocks=9),
    "LAYOUT-6": replace(RIGHT, request_blocks=9),
    "LAYOUT-7": replace(RIGHT, groups=WASTED),
    "LAYOUT-8": replace(RIGHT, groups=UNEVEN, pages=(9, 8)),
    "LAYOUT-9": replace(RIGHT, loss=Fraction(0)),
}
"""For each law of plans, the right plan altered so that this law alone is broken."""
