"""Long histories of worlds too large to visit whole: random walks, and a state machine that Hypothesis drives.

Both draw from the actions that the scope allows: first a kind of action, then one of that kind. After each action the
whole states are compared and the model examines itself; the laws of states, which cost more than all the rest in large
states, are checked now and then.
"""

from collections import Counter
from random import Random
from typing import Any, Generic, TypeVar

from .explore import Violation, examined
from .lockstep import act
from .world import Copied, World

S = TypeVar("S")
M = TypeVar("M", bound=Copied)

LAWS_EVERY = 16
"""Actions between two checks of the laws of states."""


class HistoryError(AssertionError):
    """A history that shows a violation."""

    def __init__(self, scope: Any, violation: Violation) -> None:
        super().__init__(f"{scope.name}: {violation.law}: {violation.detail}")
        self.scope, self.violation = scope, violation


class History(Generic[S, M]):
    """One model of a world, and what the specification says of it."""

    def __init__(self, world: World[S, M]) -> None:
        self.world, self.state, self.model = world, world.initial(), world.model()
        self.actions: list[Any] = []
        self.fired: Counter[str] = Counter()

    def kinds(self) -> dict[type, list[Any]]:
        """Return the actions that may be next, by their kinds."""
        found: dict[type, list[Any]] = {}
        for action in self.world.enabled(self.state):
            found.setdefault(type(action), []).append(action)
        return found

    def act(self, action: Any) -> None:
        """Perform an action on both sides, and compare everything.

        Raises:
            HistoryError: something differs, or a law is broken.
        """
        self.actions.append(action)
        compared = act(self.world, self.model, self.state, action)
        if compared.faults:
            self.fail(compared.law, "; ".join(compared.faults))
        self.fired.update(self.world.happened(self.state, action, compared.outcome))
        self.state = compared.outcome.state
        for law in self.world.broken_by(compared.outcome):
            self.fail(law.id, law.statement)
        if len(self.actions) % LAWS_EVERY == 0:
            self.judge()

    def judge(self) -> None:
        """Check the laws of states, and what the model answers to questions.

        Raises:
            HistoryError: a law is broken, or an answer is wrong.
        """
        for law in self.world.broken(self.state):
            self.fail(law.id, law.statement)
        for law_id, fault in examined(self.world, self.model, self.state):
            self.fail(law_id, fault)

    def fail(self, law: str, detail: str) -> None:
        """Report a violation."""
        raise HistoryError(self.world.scope, Violation(law, detail, tuple(self.actions)))


def walk(world: World[S, M], seed: int, steps: int) -> History[S, M]:
    """Take a random walk; kinds of actions are drawn by the world's weights.

    Raises:
        HistoryError: the walk met a violation.
    """
    random, history = Random(seed), History(world)
    for _ in range(steps):
        kinds = history.kinds()
        weights = [world.weight(kind) for kind in kinds]
        history.act(random.choice(kinds[random.choices(list(kinds), weights)[0]]))
    history.judge()
    return history


def run_machine(world: World[S, M], examples: int, steps: int, derandomize: bool = True) -> Counter[str]:
    """Run a state machine over a world: one rule draws from what is allowed, and Hypothesis shrinks what it finds.

    Each example leaves some kinds of actions out (swarm testing): histories without a kind reach states that histories
    with all kinds seldom do. Returns how often what happened.

    Raises:
        HistoryError: a violation, with the shortest history that Hypothesis found.
    """
    from hypothesis import HealthCheck, Phase, settings
    from hypothesis import strategies as st
    from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

    fired: Counter[str] = Counter()
    names = sorted(each.__name__ for each in world.actions)

    class Machine(RuleBasedStateMachine):
        """One history; the kinds that it does without are drawn first."""

        def __init__(self) -> None:
            super().__init__()
            self.history, self.left_out = History(world), frozenset[str]()

        @initialize(left_out=st.frozensets(st.sampled_from(names)))
        def begin(self, left_out: frozenset[str]) -> None:
            self.left_out = left_out

        @rule(data=st.data())
        def go_on(self, data: Any) -> None:
            allowed = self.history.kinds()
            liked = {kind: each for kind, each in allowed.items() if kind.__name__ not in self.left_out} or allowed
            if liked:
                kinds = sorted(liked, key=lambda each: each.__name__)
                kind = data.draw(st.sampled_from([each for each in kinds for _ in range(world.weight(each))]), "kind")
                self.history.act(data.draw(st.sampled_from(liked[kind]), "action"))

        def teardown(self) -> None:
            self.history.judge()
            fired.update(self.history.fired)

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=derandomize,
            database=None,
            deadline=None,
            print_blob=False,
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
    return fired
