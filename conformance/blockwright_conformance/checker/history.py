"""Long histories of worlds too large to visit whole: random walks, and how their findings are shortened.

A walk draws from the actions that the scope allows: first a kind of action, then one of that kind. After each action
the whole states are compared and the model examines itself; the laws of states, which cost more than all the rest in
large states, are checked every few actions. The model is also copied every few actions, and must not follow its copy.
The state machine of managers (`machine`) goes through the same histories, one rule for each call.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, combinations
from random import Random
from typing import Any, Generic

from .explore import Violation, copied, examined
from .lockstep import Compared, act
from .world import M, S, World

LAWS_EVERY = 16
LEFT_OUT, RARELY = 0.3, 0.01
"""How many kinds of actions half of the walks do almost without, and how often they make them."""
SHORTENING, SHORT = 20.0, 3
"""Seconds that a finding is shortened for, and the actions of one that is short enough to be read."""


class HistoryError(AssertionError):
    def __init__(self, scope: Any, violation: Violation, script: str = "") -> None:
        self.scope, self.violation, self.script = scope, violation, script

    def __str__(self) -> str:
        return f"{self.scope.name}: {self.violation.law}: {self.violation.detail}"


class History(Generic[S, M]):
    def __init__(self, world: World[S, M], laws_every: int = LAWS_EVERY) -> None:
        """Begin a history; 0: whoever makes it asks for the laws and the questions (`finish`)."""
        self.world, self.state, self.model = world, world.initial(), world.model()
        self.laws_every = laws_every
        self.names, self.weights = world.kinds, world.weights
        self.actions: list[Any] = []
        self.fired: Counter[str] = Counter()

    def kinds(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        for action in self.world.enabled(self.state):
            found.setdefault(self.world.kind(action), []).append(action)
        return found

    def again(self, action: Any) -> Iterable[Any]:
        """Return the actions like one that the scope allows now."""
        return self.kinds().get(self.world.kind(action), ())

    def act(self, action: Any) -> Compared:
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
        if self.laws_every and len(self.actions) % self.laws_every == 0:
            self.finish()
        elif self.laws_every and len(self.actions) % self.world.examined_every == 0:
            self.examine()
        return compared

    def compare(self, model: M, action: Any) -> Compared:
        compared = act(self.world, model, self.state, action)
        self.blame(compared.faults, compared.law)
        return compared

    def blame(self, faults: Sequence[str], law: str = "REF-0") -> None:
        if faults:
            self.fail(law, "; ".join(faults))

    def examine(self) -> None:
        for law_id, fault in examined(self.world, self.model, self.state):
            self.fail(law_id, fault)

    def finish(self) -> None:
        self.judge()
        self.examine()

    def judge(self) -> None:
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


def walks(make: Callable[[], Drawn], count: int, steps: int, first: int = 0) -> Counter[str]:
    """Take random walks over new histories; return how often what happened.

    Every other walk does without some kinds of actions (swarm testing): histories without a kind reach states that
    histories with all kinds seldom do.

    Raises:
        HistoryError: a violation, shortened where its actions can be made again.
    """
    fired: Counter[str] = Counter()
    for number in range(first, first + count):
        history = make()
        random = Random(number)
        left_out = {name for name in history.names if number % 2 and random.random() < LEFT_OUT}
        history.weights = {**dict.fromkeys(history.names, 1), **history.weights, **dict.fromkeys(left_out, RARELY)}
        try:
            fired.update(walk(history, number, steps).fired)
        except HistoryError as error:
            raise HistoryError(error.scope, shortest(make, error.violation)) from error
    return fired


def shortest(make: Callable[[], Drawn], violation: Violation, seconds: float = SHORTENING) -> Violation:
    """Leave actions out of a way to a violation, and make simpler ones in their place, while one is still shown.

    Where nothing more can be left out so, any two are, or a few in a row while another is made in some other way.
    """
    ends, best = time.process_time() + seconds, violation

    def shows(actions: tuple[Any, ...]) -> bool:
        nonlocal best
        found = replayed(make(), actions) if time.process_time() < ends and cost(actions) < cost(best.actions) else None
        best = found or best
        return found is not None

    before: tuple[Any, ...] = ()
    while before != best.actions:
        before, size = best.actions, len(best.actions) // 2
        while size:
            at = 0
            while at < len(best.actions):
                at += 0 if shows(best.actions[:at] + best.actions[at + size :]) else size
            size //= 2
        for at in range(len(best.actions)):
            any(map(shows, changed(make, best.actions, at)))
        if before == best.actions and len(before) > SHORT:
            two = (before[:a] + before[a + 1 : b] + before[b + 1 :] for a, b in combinations(range(len(before)), 2))
            # A decode step is two or three in a row: a step begun, an output, and slots for it.
            fewer = [before[:at] + before[at + size :] for size in (1, 2, 3) for at in range(len(before) - size + 1)]
            others = (each for rest in fewer for at in range(len(rest)) for each in changed(make, rest, at))
            any(map(shows, chain(two, others)))
    return best


def changed(make: Callable[[], Drawn], actions: tuple[Any, ...], at: int) -> Iterator[tuple[Any, ...]]:
    """Yield ways with another action in one place, one that the scope allows there, the simplest first."""
    replayed(history := make(), actions[:at])
    for own in actions[at : at + 1]:
        for each in sorted(history.again(own), key=lambda each: cost((each,))):
            yield (*actions[:at], each, *actions[at + 1 :])


def cost(actions: tuple[Any, ...]) -> tuple[int, int, str]:
    return len(actions), len(repr(actions)), repr(actions)


def replayed(history: Drawn, actions: tuple[Any, ...]) -> Violation | None:
    """Make actions again, those that the scope still allows; return the violation that one shows, or the last state.

    The laws and the questions, which cost far more than the actions, are left to the end.
    """
    try:
        for action in actions:
            if action in history.again(action):
                history.act(action)
        history.finish()
    except HistoryError as error:
        return error.violation
    return None
