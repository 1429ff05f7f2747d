"""The explorer over a manager of another make: breadth first over the states that the manager itself reaches.

Each step is followed (`following`): judged from the state that the manager was in, and gone on from the state that it
shows after. A finding is kept once for each law and kind, with the shortest way to it, as calls of the manager's own
API. A state that breaks a law is not gone on from, unless the deviation is known as one to go on from.

States that look alike are visited once: what a manager hides is not part of them.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from blockwright_conformance.capabilities import Deviation, Finding
from blockwright_conformance.checker.explore import Explorer, Node, path
from blockwright_conformance.checker.lockstep import named
from blockwright_conformance.checker.world import kind_of
from blockwright_conformance.kv_cache.outcome import ManagerOutcome
from blockwright_conformance.kv_cache.scopes import Scope
from blockwright_conformance.kv_cache.world import KVCacheWorld
from blockwright_spec.manager.laws import LAWS, STEP_LAWS
from blockwright_spec.manager.state import Config, State

from .engines import Findings
from .following import Fault, enabled, follow, misanswered

SILENT = frozenset({"EXPLAIN-1", "LIVE-1"})
"""Laws of the specification's own answers, which say nothing of a manager whose states are followed."""

JUDGED = tuple(law for law in LAWS if law.id not in SILENT)

STEPS = tuple(law for law in STEP_LAWS if law.id not in ("PLAN-1", "STEP-4"))


class Follower(Explorer[State, Any]):
    """Explores one scope on a manager of another make."""

    def __init__(
        self,
        scope: Scope,
        factory: Callable[[Config], Any],
        deviations: Iterable[Deviation] = (),
        max_transitions: int | None = None,
    ) -> None:
        super().__init__(KVCacheWorld(scope, factory), max_transitions=max_transitions)
        self.scope, self.factory = scope, factory
        self.harmless = [each for each in deviations if each.goes_on]
        self.found = Findings()

    def level(self, frontier: list[Node[State, Any]]) -> Iterator[Node[State, Any]]:
        for node in frontier:
            assert node.model is not None
            for action in enabled(self.scope, node.state, node.model):
                if self.result.transitions == self.max_transitions:
                    return
                if node.model.engine_would(node.state, action) and (after := self.step(node, action)) is not None:
                    yield after
            node.model = None

    def step(self, node: Node[State, Any], action: Any) -> Node[State, Any] | None:
        assert node.model is not None
        self.result.transitions += 1
        model = node.model.copy()
        outcome, state, faults = follow(model, node.state, action)
        self.result.fired[outcome.refusal.reason.name if outcome.refusal else kind_of(action)] += 1
        after = Node(state or node.state, model, (node.trail, action))
        goes_on = self.note_all(faults, after)
        if state is None:
            return None
        self.steps_fault(node, outcome, after)
        digest = self.world.digest(state)
        if digest in self.seen:
            return None
        self.seen.add(digest)
        return after if self.stays_lawful(after) and goes_on else None

    def steps_fault(self, node: Node[State, Any], outcome: ManagerOutcome, after: Node[State, Any]) -> None:
        before = node.state
        for at, done in enumerate(outcome.done):
            seen = replace(done, state=after.state) if at == len(outcome.steps) - 1 else done
            for law in STEPS:
                if not law.holds(before, seen):
                    self.note(Fault(law.id, "step", law.statement), after)
            before = done.state

    def judge_state(self, node: Node[State, Any]) -> None:
        self.stays_lawful(node)

    def stays_lawful(self, node: Node[State, Any]) -> bool:
        """Check the laws of states, the manager's own account, and its lookups; tell whether to go on."""
        faults = [Fault(law.id, "state", law.statement) for law in JUDGED if not law.holds(node.state)]
        assert node.model is not None
        lookups = partial(misanswered, node.model, node.state, self.scope.prompts)
        for kind, ask in (("check", node.model.check), ("events", node.model.listen), ("lookup", lookups)):
            try:
                faults += ask() or []
            except Exception as error:
                law, text = named(error)
                faults.append(Fault(law, kind, text))
        return self.note_all(faults, node)

    def note_all(self, faults: list[Fault], node: Node[State, Any]) -> bool:
        return False not in [self.note(fault, node) for fault in faults]

    def note(self, fault: Fault, node: Node[State, Any]) -> bool:
        """Keep a finding; tell whether it is known to be harmless, so that its state is gone on from."""
        actions = path(node.trail)

        def made() -> Finding:
            detail = f"{fault.kind}: {fault.detail}"
            return Finding(fault.law, self.scope.name, detail, self.script(actions), len(actions))

        found = self.found.add((fault.law, fault.kind), made)
        return any(each.explains(found) for each in self.harmless)

    def script(self, actions: tuple[Any, ...]) -> str:
        adapter, state = self.factory(self.scope.config), self.world.initial()
        adapter.log = []
        for action in actions:
            after = follow(adapter, state, action)
            state = after.state or state
        return "\n".join(adapter.log)

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(self.found[key] for key in sorted(self.found))
