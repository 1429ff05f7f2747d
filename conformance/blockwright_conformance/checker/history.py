"""Long histories of worlds too large to visit whole: a state machine that Hypothesis drives, and random walks.

The gates run the machine, which shrinks its findings; a walk is cheaper, for gates that look for one fault in many
worlds (mutants, policies). Both draw from the actions that the scope allows: first a kind of action, then one of that
kind. After each action the whole states are compared and the model examines itself; the laws of states, which cost more
than all the rest in large states, are checked every few actions. The model is also copied every few actions, and must
not follow its copy.
"""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, Generic

from .explore import Violation, copied, examined
from .lockstep import Compared, act
from .world import M, S, World

Run = Callable[[], Counter[str]]
"""Goes through histories, and returns how often what happened."""
LAWS_EVERY = 16


class HistoryError(AssertionError):
    def __init__(self, scope: Any, violation: Violation) -> None:
        super().__init__(f"{scope.name}: {violation.law}: {violation.detail}")
        self.scope, self.violation = scope, violation


class History(Generic[S, M]):
    def __init__(self, world: World[S, M]) -> None:
        self.world, self.state, self.model = world, world.initial(), world.model()
        self.names, self.weights = world.kinds, world.weights
        self.actions: list[Any] = []
        self.fired: Counter[str] = Counter()

    def kinds(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        for action in self.world.enabled(self.state):
            found.setdefault(self.world.kind(action), []).append(action)
        return found

    def act(self, action: Any) -> None:
        self.actions.append(action)
        if self.world.copied_every and len(self.actions) % self.world.copied_every == 0:
            old, self.model = self.model, copied(self.world.scope, self.model)
            self.compare(self.model, action)
            compared = self.compare(old, action)
        else:
            compared = self.compare(self.model, action)
        self.fired.update(self.world.happened(self.state, action, compared.outcome))
        self.state = compared.outcome.state
        for law in self.world.broken_by(compared.outcome):
            self.fail(law.id, law.statement)
        if len(self.actions) % LAWS_EVERY == 0:
            self.finish()
        elif len(self.actions) % self.world.examined_every == 0:
            self.examine()

    def compare(self, model: M, action: Any) -> Compared:
        compared = act(self.world, model, self.state, action)
        if compared.faults:
            self.fail(compared.law, "; ".join(compared.faults))
        return compared

    def examine(self) -> None:
        for law_id, fault in examined(self.world, self.model, self.state):
            self.fail(law_id, fault)

    def finish(self) -> None:
        self.examine()
        for law in self.world.broken(self.state):
            self.fail(law.id, law.statement)

    def fail(self, law: str, detail: str) -> None:
        raise HistoryError(self.world.scope, Violation(law, detail, tuple(self.actions)))


Drawn = Any
"""A `History`, or an engine's own: the names of its kinds of actions (`names`), how often each is drawn (`weights`, 1
where none is given), the next actions by their kinds (`kinds`), `act`, `finish`, and what `fired`."""


def walk(history: Drawn, seed: int, steps: int, before: Callable[[], object] = int) -> Drawn:
    """Go on at random, up to a `HistoryError`: kinds of actions are drawn by weight, with a call before each draw."""
    random = Random(seed)
    for _ in range(steps):
        before()
        kinds = history.kinds()
        kind = random.choices(list(kinds), [history.weights.get(kind, 1) for kind in kinds])[0]
        history.act(random.choices(kinds[kind])[0])
    history.finish()
    return history


def run_machine(make: Callable[[], Drawn], examples: int, steps: int, derandomize: bool = True) -> Counter[str]:
    """Run a state machine over new histories: one rule draws their next action, and Hypothesis shrinks its findings.

    Each example leaves some kinds of actions out (swarm testing): histories without a kind reach states that histories
    with all kinds seldom do. Returns how often what happened.

    Raises:
        HistoryError: a violation, with the shortest history that Hypothesis found.
    """
    from hypothesis import HealthCheck, Phase, settings
    from hypothesis import strategies as st
    from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

    fired: Counter[str] = Counter()

    class Machine(RuleBasedStateMachine):
        """One history; the kinds that it does without are drawn first."""

        def __init__(self) -> None:
            super().__init__()
            self.history, self.left_out = make(), frozenset[str]()

        @initialize(left_out=st.frozensets(st.sampled_from(make().names)))
        def begin(self, left_out: frozenset[str]) -> None:
            self.left_out = left_out

        @rule(data=st.data())
        def go_on(self, data: Any) -> None:
            kinds = self.history.kinds()
            liked = {kind: actions for kind, actions in kinds.items() if kind not in self.left_out} or kinds
            if liked:
                weighted = [kind for kind in sorted(liked) for _ in range(self.history.weights.get(kind, 1))]
                kind = data.draw(st.sampled_from(weighted), "kind")
                self.history.act(data.draw(st.sampled_from(liked[kind]), "action"))

        def teardown(self) -> None:
            self.history.finish()
            fired.update(self.history.fired)

    plain: Any = {"database": None, "deadline": None, "print_blob": False, "report_multiple_bugs": False}
    plain |= {"phases": (Phase.generate, Phase.shrink), "suppress_health_check": list(HealthCheck)}
    chosen = settings(max_examples=examples, stateful_step_count=steps, derandomize=derandomize, **plain)
    run_state_machine_as_test(Machine, settings=chosen)
    return fired
