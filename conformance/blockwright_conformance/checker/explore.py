"""The explorer: breadth-first over every state that a world reaches, each visited once, a model in lock-step.

Every action that the scope allows in a state, refused ones included, is performed on the specification and on a copy of
the model. Laws of states are checked in every new state, laws of steps on every step. The first fault found is a
shortest one.
"""

import gc
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic

from blockwright.errors import InvalidArgumentError

from .lockstep import act, named
from .world import M, Outcome, S, World


class CopyError(InvalidArgumentError):
    """A model cannot be copied: without that nothing can be said of it, so this is no violation."""


@dataclass(slots=True)
class Violation:
    """A fault and how to get there: the actions from the initial state, the last of which shows it."""

    law: str
    detail: str
    actions: tuple[Any, ...]


@dataclass(slots=True)
class Result:
    scope: Any
    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    fired: Counter[str] = field(default_factory=Counter)
    violation: Violation | None = None


Trail = tuple["Trail", Any] | None
"""The actions from the initial state, last one first: all that is kept of a state once it has been left."""


@dataclass(slots=True)
class Node(Generic[S, M]):
    """A state of the frontier, with the model in it, and how it was reached."""

    state: S
    model: M | None
    trail: Trail = None


class Explorer(Generic[S, M]):
    def __init__(
        self, world: World[S, M], *, alone: bool = False, laws: bool = True, max_transitions: int | None = None
    ) -> None:
        """Explore the specification `alone`, without a model, or without asking the `laws` of states."""
        self.world, self.alone, self.laws, self.max_transitions = world, alone, laws, max_transitions
        self.result = Result(world.scope)
        self.seen: set[bytes] = set()

    def run(self) -> Result:
        """Visit everything, up to the first fault; the collector rests, since nothing here forms cycles."""
        started, result = time.perf_counter(), self.result
        with collector_resting():
            frontier = self.begun()
            while frontier and result.violation is None and result.transitions != self.max_transitions:
                frontier = list(self.level(frontier))
                result.depth += bool(frontier)
            result.states, result.seconds = len(self.seen), time.perf_counter() - started
        return result

    def begun(self) -> list[Node[S, M]]:
        try:
            root = Node(self.world.initial(), None if self.alone else self.world.model())
        except Exception as error:
            self.fail(*named(error), None)
            return []
        self.seen.add(self.world.digest(root.state))
        self.judge_state(root)
        return [root]

    def level(self, frontier: list[Node[S, M]]) -> Iterator[Node[S, M]]:
        """Yield the new states one action beyond the frontier's; the models of the frontier are dropped behind."""
        for node in frontier:
            for action in self.world.enabled(node.state):
                after = self.visit(node, action)
                if self.result.violation or self.result.transitions == self.max_transitions:
                    return
                if after is not None:
                    yield after
            node.model = None

    def visit(self, node: Node[S, M], action: Any) -> Node[S, M] | None:
        after = self.step(node, action)
        if after is not None:
            self.judge_state(after)
        return after

    def step(self, node: Node[S, M], action: Any) -> Node[S, M] | None:
        self.result.transitions += 1
        model = copied(self.world.scope, node.model) if node.model is not None else None
        trail = (node.trail, action)
        if model is None:
            outcome = self.world.meaning(node.state, action)
        else:
            compared = act(self.world, model, node.state, action)
            outcome = compared.outcome
            if compared.faults:
                self.fail(compared.law, "; ".join(compared.faults), trail)
        return self.arrived(node, action, outcome, Node(outcome.state, model, trail))

    def arrived(self, node: Node[S, M], action: Any, outcome: Outcome[S], after: Node[S, M]) -> Node[S, M] | None:
        for name in self.world.happened(node.state, action, outcome):
            self.result.fired[name] += 1
        self.judge_step(node, outcome, after.trail)
        if outcome.state is node.state or self.result.violation:
            return None
        digest = self.world.digest(outcome.state)
        if digest in self.seen:
            return None
        self.seen.add(digest)
        return after

    def judge_step(self, node: Node[S, M], outcome: Outcome[S], trail: Trail) -> None:
        for law in self.world.broken_by(outcome):
            self.fail(law.id, law.statement, trail)

    def judge_state(self, node: Node[S, M]) -> None:
        for law in self.world.broken(node.state) if self.laws else ():
            self.fail(law.id, law.statement, node.trail)
        if node.model is not None:
            for law_id, fault in examined(self.world, node.model, node.state):
                self.fail(law_id, fault, node.trail)

    def fail(self, law: str, detail: str, trail: Trail) -> None:
        if self.result.violation is None:
            self.result.violation = Violation(law, detail, path(trail))


def copied(scope: Any, model: Any) -> Any:
    try:
        return model.copy()
    except Exception as error:
        raise CopyError(
            f"{scope.name}: copy() of {type(model).__name__} raised {named(error)[1]}; make copy() return an "
            "independent copy of everything, and make anew what cannot be copied (locks, files, connections)"
        ) from error


def examined(world: World[S, M], model: M, state: S) -> list[tuple[str, str]]:
    try:
        faults = world.examine(model, state)
    except Exception as error:
        return [named(error)]
    return [("REF-0", "; ".join(faults))] if faults else []


def path(trail: Trail) -> tuple[Any, ...]:
    actions: list[Any] = []
    while trail is not None:
        trail, action = trail
        actions.append(action)
    return tuple(actions[::-1])


@contextmanager
def collector_resting() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
