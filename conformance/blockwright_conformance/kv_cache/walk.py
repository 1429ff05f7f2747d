"""Long histories of a large scope, in lock-step: what the state machine and the random walk have in common.

After each action the whole states are compared, the manager checks itself, and a replica of the block tables that is
kept from the deltas of batch calls alone must equal the tables. The specification's laws are checked now and then: they
cost more than all the rest in large states.
"""

from random import Random

from blockwright_spec.manager.laws import LAWS, STEP_LAWS
from blockwright_spec.manager.state import State, Table, initial

from .actions import Action, Admit, Append, Grow, GrowEach, Told, meaning
from .adapter import ManagerAdapter
from .enabled import enabled
from .lockstep import Reply, choice_of, compare, examine, names_of, perform
from .scopes import Scope
from .world import Factory, Violation

LAWS_EVERY = 16
"""Actions between two checks of the laws of states."""


WEIGHTS: dict[type, int] = {Append: 20, Grow: 8, GrowEach: 8, Admit: 6}
"""How often a walk takes an action, others counting 1: requests must grow for blocks to run short."""


class HistoryError(AssertionError):
    """A history that shows a violation."""

    def __init__(self, scope: Scope, violation: Violation) -> None:
        super().__init__(f"{scope.name}: {violation.law}: {violation.detail}")
        self.scope, self.violation = scope, violation


class History:
    """One engine and one manager, and what the specification says of them."""

    def __init__(self, scope: Scope, factory: Factory) -> None:
        self.scope = scope
        self.state: State = initial(scope.config, scope.slots)
        self.adapter: ManagerAdapter = factory(scope.config)
        self.actions: list[Action] = []
        self.replica: list[list[list[int]] | None] = [None] * scope.slots
        self.fired: dict[str, int] = {}

    def act(self, action: Action) -> None:
        """Perform an action, and compare everything.

        Raises:
            HistoryError: something differs, or a law is broken.
        """
        self.actions.append(action)
        try:
            self.lockstep(action)
        except HistoryError:
            raise
        except Exception as error:
            self.fail(getattr(error, "law", "REF-0"), f"{type(error).__name__}: {error}")

    def lockstep(self, action: Action) -> None:
        """Perform an action on both sides."""
        before = self.state
        reply = perform(self.adapter, action, before)
        told = meaning(before, action, choice_of(self.adapter, reply))
        if faults := compare(told, reply, self.adapter, names_of(before)):
            self.fail("REF-0", "; ".join(faults))
        self.state = told.state
        name = told.refusal.reason.name if told.refusal else type(action).__name__
        self.fired[name] = self.fired.get(name, 0) + 1
        self.adapter.check()
        self.replicate(action, reply)
        self.judge(before, told)

    def replicate(self, action: Action, reply: Reply) -> None:
        """Keep the replica: from the deltas alone after a batch, anew from the tables after any other call."""
        tables = self.adapter.observe(names_of(self.state)).tables
        if isinstance(action, GrowEach):
            for (slot, _), served in zip(action.asks, reply.served, strict=False):
                rows = self.replica[slot]
                assert rows is not None
                gone = served.nulled or ((),) * len(rows)
                for row, new, nulled in zip(rows, served.new, gone, strict=True):
                    row += new
                    for entry in nulled:
                        row[entry] = 0
                for group, entry, block in served.replaced or ():
                    rows[group][entry] = block
            if self.replica != listed(tables):
                self.fail("REPLICA-1", f"tables {tables}, replica kept from deltas {self.replica}")
        else:
            self.replica = listed(tables)

    def judge(self, before: State, told: Told) -> None:
        """Check the laws."""
        for done in told.steps:
            for step_law in STEP_LAWS:
                if not step_law.holds(before, done):
                    self.fail(step_law.id, step_law.statement)
            before = done.state
        if len(self.actions) % LAWS_EVERY == 0:
            self.judge_state()

    def judge_state(self) -> None:
        """Check the laws of states, and what the manager answers to questions."""
        for law in LAWS:
            if not law.holds(self.state):
                self.fail(law.id, law.statement)
        if faults := examine(self.adapter, self.state, self.scope.prompts):
            self.fail("REF-0", "; ".join(faults))

    def fail(self, law: str, detail: str) -> None:
        """Report a violation."""
        raise HistoryError(self.scope, Violation(law, detail, tuple(self.actions)))


def listed(tables: tuple[tuple[Table, ...] | None, ...]) -> list[list[list[int]] | None]:
    """Give tables as lists that can be changed."""
    return [held if held is None else [list(table) for table in held] for held in tables]


def walk(scope: Scope, factory: Factory, seed: int, steps: int) -> History:
    """Take a random walk: at each step a kind of action is drawn, then one of that kind.

    Raises:
        HistoryError: the walk met a violation.
    """
    random, history = Random(seed), History(scope, factory)
    for _ in range(steps):
        kinds: dict[type, list[Action]] = {}
        for action in enabled(scope, history.state):
            kinds.setdefault(type(action), []).append(action)
        weights = [WEIGHTS.get(kind, 1) for kind in kinds]
        history.act(random.choice(kinds[random.choices(list(kinds), weights)[0]]))
    history.judge_state()
    return history
