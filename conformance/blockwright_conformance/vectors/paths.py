"""Paths: histories that between them take every transition of a scope, or the requested number of them.

The states of a scope are explored first, each once up to names; transitions are distinguished by the states they join,
the action, and the reason of a refusal. A path walks on from transition to transition not yet taken, the nearest first,
and starts again from a new manager after `LENGTH` actions. The first paths show one transition of every sort, so that a
few of them already go far.
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple, Self

from blockwright_spec.manager.hits import found
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Publication, When
from blockwright_spec.manager.state import Hit, Running, State, Waiting, initial
from blockwright_spec.manager.table_laws import common_prefix_blocks
from blockwright_spec.manager.told import evicted
from blockwright_spec.reads import Prefix

from ..checker.world import Action, kind_of
from ..kv_cache import lockstep
from ..kv_cache.abstraction import expected
from ..kv_cache.actions import enabled, perform
from ..kv_cache.adapter import Observation
from ..kv_cache.outcome import ManagerOutcome
from ..kv_cache.parts import names_of
from ..kv_cache.requests import Admit
from ..kv_cache.scopes import Scope
from ..kv_cache.symmetry import Names
from .calls import Answer, ByCalls, Call
from .records import UNTOLD, Vector, VectorStep

LENGTH = 30

OPTIONS = ("lookahead", "drafts", "external", "whole", "reserve", "accepted", "checkpoint")
"""What a step may ask for; one that does is of another sort than one that does not."""

Place = bytes


class Move(NamedTuple):
    """A transition up to names: where it starts, what sort it is of, and where it ends."""

    start: Place
    sort: tuple[str, ...]
    stop: Place


def sort_of(state: State, action: Action, outcome: ManagerOutcome) -> tuple[str, ...]:
    after, hit = outcome.state, outcome.hit
    signs = [kind_of(action), outcome.refusal.reason.name if outcome.refusal else ""]
    step = getattr(action, "step", None)
    parts = (action, step) if step else (action,)
    signs += [name for name in OPTIONS if any(getattr(part, name, None) for part in parts)]
    signs += ["later"] * (step is not None and step.publication is Publication.LATER)
    signs += ["again"] * (isinstance(action, Admit) and isinstance(state.requests[action.slot], Waiting))
    for before, step in outcome.steps:
        signs += ["evicts"] * bool(evicted(before, step)) + ["trims"] * any(step.nulled) + ["copies"] * any(step.copied)
        signs += ["takes"] * any(step.new)
    signs += ["publishes"] * (len(set(after.keys) - set(state.keys)) > 0)
    signs += ["frees"] * (len(after.queue) > len(state.queue))
    if hit is not None and hit.length:
        signs += ["adopts"] + ["shares"] * any(block not in state.queue for table in hit.tables for block in table)
    return tuple(signs)


class Graph:
    """The explored graph of a scope, and which of its transitions no path has taken yet."""

    def __init__(self, scope: Scope) -> None:
        self.scope, self.names = scope, Names()
        self.first = initial(scope.config, scope.slots)
        self.ways: dict[Place, dict[Place, None]] = {}
        """The places that one action leads to, from each place."""
        self.open: dict[Place, dict[Move, None]] = {}
        """The moves not taken yet, by where they start."""
        self.known: dict[State, list[tuple[Move, Action, ManagerOutcome]]] = {}
        """The transitions from states passed before."""
        self.samples: dict[tuple[str, ...], Move] = {}
        self.explore()

    def moves(self, state: State) -> list[tuple[Move, Action, ManagerOutcome]]:
        if state not in self.known:
            start, moves = self.names.digest(state), []
            for action in enabled(self.scope, state):
                outcome = action.meaning(state)
                stop = start if outcome.state is state else self.names.digest(outcome.state)
                moves.append((Move(start, sort_of(state, action, outcome), stop), action, outcome))
            self.known[state] = moves
        return self.known[state]

    def explore(self) -> None:
        waiting = deque([self.first])
        seen = {self.names.digest(self.first)}
        while waiting:
            state = waiting.popleft()
            here = self.names.digest(state)
            ways, moves = self.ways.setdefault(here, {}), self.open.setdefault(here, {})
            for move, _, outcome in self.moves(state):
                ways[move.stop] = None
                moves[move] = None
                self.samples.setdefault(move.sort, move)
                if move.stop not in seen:
                    seen.add(move.stop)
                    waiting.append(outcome.state)

    def way(self, start: Place, goals: dict[Place, None] | dict[Place, dict[Move, None]]) -> list[Place] | None:
        """Return the places on a shortest way to the nearest goal, the start left out; None if none can be reached."""
        seen, waiting = {start}, deque([(start, list[Place]())])
        while waiting:
            here, places = waiting.popleft()
            if here in goals:
                return places
            for there in self.ways[here]:
                if there not in seen:
                    seen.add(there)
                    waiting.append((there, [*places, there]))
        return None

    def paths(self, limit: int | None = None) -> Iterator[list[Action]]:
        """Yield paths, as actions from a new manager on: one transition of every sort; up to the limit, all others."""
        goals: dict[Place, dict[Move, None]] = {}
        for move in self.samples.values():
            goals.setdefault(move.start, {})[move] = None
        shown = list(self.until(goals))
        yield from shown
        yield from islice(self.until(self.open), None if limit is None else max(0, limit - len(shown)))

    def until(self, goals: dict[Place, dict[Move, None]]) -> Iterator[list[Action]]:
        for place in [place for place, moves in goals.items() if not moves]:
            del goals[place]
        while goals:
            left = sum(map(len, goals.values()))
            yield self.path(goals)
            if goals and sum(map(len, goals.values())) == left:
                raise AssertionError(f"{self.scope.name}: {left} transitions cannot be taken again")

    def path(self, goals: dict[Place, dict[Move, None]]) -> list[Action]:
        """Walk from goal to goal, and take every refusal that is passed."""
        state, actions = self.first, list[Action]()
        while goals and (not actions or len(actions) < LENGTH):
            way = self.way(self.names.digest(state), goals)
            if way is None or (actions and len(actions) + len(way) >= LENGTH):
                break
            for there in way:
                state = self.go(state, there, goals, actions)
            state = self.take(state, goals, actions)
        return actions

    def go(self, state: State, there: Place, goals: dict[Place, dict[Move, None]], actions: list[Action]) -> State:
        choices = [(move, action, outcome) for move, action, outcome in self.moves(state) if move.stop == there]
        still = self.open.get(self.names.digest(state), {})
        move, action, outcome = next((each for each in choices if each[0] in still), choices[0])
        self.done(move, goals)
        actions.append(action)
        return outcome.state

    def take(self, state: State, goals: dict[Place, dict[Move, None]], actions: list[Action]) -> State:
        wanted = goals.get(self.names.digest(state), {})
        for move, action, outcome in self.moves(state):
            if move in wanted:
                self.done(move, goals)
                actions.append(action)
                if outcome.steps or outcome.refusal is None:
                    return outcome.state
        return state

    def done(self, move: Move, goals: dict[Place, dict[Move, None]]) -> None:
        for moves in (goals, self.open):
            if move.start in moves:
                moves[move.start].pop(move, None)
                if not moves[move.start]:
                    del moves[move.start]


def shown(state: State) -> Observation:
    """Return the part of a state that a vector shows: all except outside holds and passing blocks."""
    return expected(state)._replace(**UNTOLD)


def vector_from(scope: Scope, number: int, actions: list[Action]) -> Vector:
    state, names = initial(scope.config, scope.slots), names_of(initial(scope.config, scope.slots))
    steps: list[VectorStep] = []
    for action in actions:
        pairs, outcome = taken(state, action)
        state = outcome.state
        *rest, last = [VectorStep(call, answer) for call, answer in pairs]
        steps += [*rest, last._replace(state=shown(state))]
    steps += [VectorStep(call, answer) for call, answer in questions(state, scope.prompts)]
    if steps and steps[-1].state is None:
        steps[-1] = steps[-1]._replace(state=shown(state))
    return Vector(scope.name, number, scope.config, names, tuple(steps))


def vectors_of(scope: Scope, limit: int | None = 0) -> list[Vector]:
    return [vector_from(scope, number, actions) for number, actions in enumerate(Graph(scope).paths(limit), 1)]


class WrongCallError(Exception):
    """A call is wrong by the specification."""


class Recorder(ByCalls):
    """Answers the calls of one action as the specification does."""

    errors: tuple[type[Exception], ...] = (WrongCallError,)
    stale: tuple[type[Exception], ...] = (WrongCallError,)
    follows_policy = True

    def __init__(self, state: State, outcome: ManagerOutcome) -> None:
        self.state, self.outcome = state, outcome
        self.steps: list[tuple[Call, Answer]] = []
        self.prefixes: dict[str, Prefix] = {
            name: request.prefix
            for name, request in zip(names_of(state), state.requests, strict=True)
            if isinstance(request, Running | Waiting)
        }

    def copy(self) -> Self:
        return type(self)(self.state, self.outcome)

    def said(self, word: str, *values: Any, may: tuple[str, ...] = ("ok",)) -> Answer:
        answer = self.question(word, values) or self.step(word)
        self.steps.append((Call(word, values), answer))
        if answer.word == "error":
            raise WrongCallError(answer.reason)
        return answer

    def question(self, word: str, values: tuple[Any, ...]) -> Answer | None:
        """Return the answer to a call that is never refused; except for copies, it is no step of the specification."""
        state, groups = self.state, range(len(self.state.config.groups))
        match word, values:
            case "send", (name, *prefix):
                self.prefixes[name] = tuple(prefix)
                return Answer("ok")
            case "forget", (name,):
                self.prefixes.pop(name, None)
                return Answer("ok")
            case "find", (name,):
                hit = found(state, self.prefixes[name], LRU) if state.config.caching else Hit()
                return Answer("hit", hit.length, hit.tables)
            case "copies", _:
                copies = [tuple([copy[1:] for copy in state.copies if copy[0] == group]) for group in groups]
                return Answer("copies", copies=tuple(copies))
            case "common", (name, running):
                slot = names_of(state).index(name)
                return Answer("counts", counts=tuple([common_prefix_blocks(state, slot, at, running) for at in groups]))
        return None

    def step(self, word: str) -> Answer:
        refusal, done = self.outcome.refusal, self.outcome.done
        is_wrong = refusal is not None and When.INVALID in refusal.reason.value
        if word == "batch" and not is_wrong:
            return Answer("served", served=tuple([step.new for step in done]), whole=refusal is None)
        if refusal is not None:
            return Answer("error" if is_wrong else "refused", reason=refusal.reason.name)
        return Answer("blocks", tables=done[0].new) if word == "allocate" else Answer("ok")

    def observe(self, names: tuple[str, ...]) -> Observation:
        return expected(self.state)


def taken(state: State, action: Any) -> tuple[list[tuple[Call, Answer]], ManagerOutcome]:
    outcome = action.meaning(state)
    recorder = Recorder(state, outcome)
    unplanned = action._replace(planned=False) if getattr(action, "planned", False) else action
    reply = perform(recorder, unplanned, state)
    if (reply.refused or reply.error is not None) != (outcome.refusal is not None):
        raise AssertionError(f"{action}: the calls came to {reply}, the specification says {outcome.refusal}")
    return recorder.steps, outcome


def questions(state: State, prompts: tuple[Prefix, ...]) -> list[tuple[Call, Answer]]:
    """Return questions that change nothing, with the right answers: lookups of prompts, and what requests share."""
    recorder = Recorder(state, ManagerOutcome(state, ()))
    lockstep.examine(recorder, state, prompts)
    return recorder.steps
