"""The search: breadth-first over all states that actions lead to, each visited once, with a model in lock-step.

What a state, an action and a model are is said by the explorers of the managers (`explore`) and of the block tables
(`paged_explore`). The first fault found is a shortest one.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .explore import Result, Trail, Violation, path
from .world import Copied

__all__ = ["Node", "Result", "Search", "Trail", "Violation", "path"]


S = TypeVar("S")
A = TypeVar("A")
M = TypeVar("M", bound=Copied)
T = TypeVar("T")


@dataclass(slots=True)
class Node(Generic[S, M]):
    """A state of the frontier, with the model in it, and how it was reached."""

    state: S
    adapter: M | None
    trail: Trail = None


class Search(ABC, Generic[S, A, M, T]):
    """Explores one scope, with a model in lock-step or the specification alone; `T` is what is told of an action."""

    def __init__(self, scope: Any, root: Node[S, M], max_transitions: int | None = None) -> None:
        self.root, self.max_transitions = root, max_transitions
        self.result = Result(scope)
        self.seen: set[bytes] = set()

    @abstractmethod
    def enabled(self, state: S) -> Iterable[A]:
        """Give every action that the scope allows in a state."""

    @abstractmethod
    def act(self, adapter: M | None, state: S, action: A) -> tuple[T, list[str]]:
        """Perform an action on both sides, and name all differences."""

    @abstractmethod
    def reached(self, told: T) -> S:
        """Give the state that an action leads to; the very same where it was refused."""

    @abstractmethod
    def digest(self, state: S) -> bytes:
        """Give a name that is equal for states that need be visited only once."""

    @abstractmethod
    def count(self, action: A, told: T) -> None:
        """Record that an action happened, or why it did not."""

    @abstractmethod
    def steps_fault(self, node: Node[S, M], told: T, after: Node[S, M]) -> None:
        """Check the laws of steps."""

    @abstractmethod
    def state_fault(self, node: Node[S, M]) -> None:
        """Check the laws of states, the model's self-check, and what it answers to questions."""

    def run(self) -> Result:
        """Visit everything, up to the first fault."""
        started, result = time.perf_counter(), self.result
        self.seen.add(self.digest(self.root.state))
        self.state_fault(self.root)
        frontier = [self.root]
        while frontier and result.violation is None and result.transitions != self.max_transitions:
            frontier = list(self.level(frontier))
            result.depth += bool(frontier)
        result.states, result.seconds = len(self.seen), time.perf_counter() - started
        return result

    def level(self, frontier: list[Node[S, M]]) -> Iterator[Node[S, M]]:
        """Give the new states one action beyond the frontier's; the models of the frontier are dropped behind."""
        for node in frontier:
            for action in self.enabled(node.state):
                after = self.step(node, action)
                if self.result.violation or self.result.transitions == self.max_transitions:
                    return
                if after is not None:
                    yield after
            node.adapter = None

    def step(self, node: Node[S, M], action: A) -> Node[S, M] | None:
        """Perform an action and compare; give the state it leads to, if that is new."""
        self.result.transitions += 1
        adapter = node.adapter.copy() if node.adapter is not None else None
        told, faults = self.act(adapter, node.state, action)
        after: Node[S, M] = Node(self.reached(told), adapter, (node.trail, action))
        if faults:
            self.fail("REF-0", "; ".join(faults), after)
        return self.arrived(node, action, told, after)

    def arrived(self, node: Node[S, M], action: A, told: T, after: Node[S, M]) -> Node[S, M] | None:
        """Check the laws of what an action came to; give the state it led to, if that is new."""
        self.count(action, told)
        self.steps_fault(node, told, after)
        if after.state is node.state or self.result.violation:
            return None
        digest = self.digest(after.state)
        if digest in self.seen:
            return None
        self.seen.add(digest)
        self.state_fault(after)
        return after

    def fail(self, law: str, detail: str, node: Node[S, M]) -> None:
        """Record the first fault."""
        if self.result.violation is None:
            self.result.violation = Violation(law, detail, path(node.trail))
