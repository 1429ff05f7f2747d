"""Random walks for mutants: histories of scopes too large to visit whole, recorded once and replayed on many copies.

At each state a few actions are performed on copies of the manager, and one of them is gone on from. What the
specification does is worked out when a walk is first taken; a replay makes the same calls with the same comparisons. A
few hundred calls in a world with every feature meet more statements per second than a small world that is visited
whole; the small ones stay for what is rare.
"""

from collections.abc import Iterator
from functools import cache
from random import Random
from types import ModuleType
from typing import Any

from blockwright_conformance.kv_cache.actions import (
    Action,
    Admit,
    Append,
    Fork,
    Grow,
    GrowEach,
    Settle,
    Start,
    TakeCopies,
    enabled,
    meaning,
)
from blockwright_conformance.kv_cache.adapter import ManagerAdapter
from blockwright_conformance.kv_cache.blockwright import BlockwrightAdapter
from blockwright_conformance.kv_cache.lockstep import unexplained
from blockwright_conformance.kv_cache.outcome import ManagerOutcome
from blockwright_conformance.kv_cache.scopes import Scope, of_groups, scope
from blockwright_spec.manager.in_time.explain import explained
from blockwright_spec.manager.state import State, initial
from blockwright_spec.reads import Chunked, Cross, Full, Kind, Mamba, Sliding

from ..known_bugs.instrumented import VariantAdapter, adapter_on
from ..known_bugs.known_bug import Fault, Trial
from ..known_bugs.watch import Limited, rearm
from .recording import Moment, Recording, answers, odd

WEIGHTS: dict[type, int] = {Append: 12, Grow: 8, GrowEach: 8, Admit: 6, Start: 8, Settle: 6, Fork: 3, TakeCopies: 2}
"""How often an action is gone on from, others counting 1."""
BESIDE = 3
"""Actions of a state that are performed, and not gone on from."""


class RecordedWalk(Recording):
    """A walk through a scope, each state with a few of its actions."""

    def __init__(self, scope: Scope, seed: int, steps: int) -> None:
        self.scope, random = scope, Random(seed)
        self.states: list[State] = [initial(scope.config, scope.slots)]
        self.moments: list[Moment] = []
        for start in range(steps):
            state = self.states[start]
            actions: list[Any] = [*enabled(scope, state), *odd(scope, state)]
            for action in random.sample(actions, min(BESIDE, len(actions))):
                self.moments.append(Moment(start, action, meaning(state, action), None))
            action, told = self.followed(random, state, actions)
            self.moments.append(Moment(start, action, told, start + 1))
            self.states.append(told.state)
        self.answers = [answers(scope, state) for state in self.states]
        if "explain" in scope.calls:
            for state in self.states:
                for prompt in scope.prompts:
                    explained(state, prompt)

    def followed(self, random: Random, state: State, actions: list[Action]) -> tuple[Action, ManagerOutcome]:
        """Draw a kind of action, and one of that kind that changes something, if there is one."""
        kinds: dict[type, list[Action]] = {}
        for action in actions:
            kinds.setdefault(type(action), []).append(action)
        for _ in range(20):
            kind = random.choices(list(kinds), [WEIGHTS.get(kind, 1) for kind in kinds])[0]
            action = random.choice(kinds[kind])
            told = meaning(state, action)
            if told.state is not state:
                break
        return action, told

    def ask(self, adapter: ManagerAdapter, number: int) -> list[str]:
        """Put every question, that for explanations included."""
        rearm()
        faults = super().ask(adapter, number)
        if "explain" in self.scope.calls:
            faults += unexplained(adapter, self.states[number], self.scope.prompts)
        return faults


@cache
def recorded_walk(scope: Scope, seed: int, steps: int) -> RecordedWalk:
    """Return a walk, taken once per process."""
    return RecordedWalk(scope, seed, steps)


def walk_of(scope: Scope, seed: int, steps: int, on: type[BlockwrightAdapter] = VariantAdapter) -> Trial:
    """Return the trial that replays a walk."""

    def trial(package: ModuleType) -> Iterator[Fault]:
        walk = recorded_walk(scope, seed, steps)
        rearm()
        base = adapter_on(package, on)
        faults, calls = walk.replay(type(base.__name__, (Limited, base), {}))
        if faults:
            yield Fault("REF-0", "; ".join(faults), calls)

    trial.__name__ = f"walk {seed}, {scope.name}"
    trial.prepare = lambda: recorded_walk(scope, seed, steps)  # type: ignore[attr-defined]
    return trial


PROMPTS = ((0, (0,) * 3), (0, (0,) * 6), (0, (0, 0, 0, 0, 1, 1, 1)), (1, (0,) * 4), (0, (1,)))
REST: dict[str, Any] = {"slots": 3, "prompts": PROMPTS, "outputs": (0, 1), "max_model_len": 10}
WORDS = "chunks trim preempt reset hold later unasked adopt batch whole plan fork misuse explain"
TIMED = "chunks trim preempt reset hold later adopt batch load whole plan fork misuse"
ENCODED = "chunks preempt batch load whole plan fork misuse"
TWO: tuple[tuple[Kind, int], ...] = ((Full(), 2), (Sliding(3), 1))
STATES: tuple[tuple[Kind, int], ...] = ((Full(), 1), (Mamba(1), 2))
THREE: tuple[tuple[Kind, int], ...] = ((Full(), 2), (Chunked(4), 2), (Sliding(2), 1))

SCOPES: tuple[Scope, ...] = (
    scope(Full(), 2, "walks", 9, 9, WORDS, **REST, lookaheads=(0, 2), drafts=1),
    of_groups(TWO, "walks", 16, 9, WORDS, **REST, lookaheads=(0, 2), drafts=1, watermark=2),
    of_groups(TWO, "walks, in flight", 18, 9, TIMED, **REST, in_flight=2, drafts=1, settles=True),
    of_groups(STATES, "walks", 18, 9, WORDS, **REST, drafts=1),
    of_groups(STATES, "walks, in flight", 22, 9, TIMED, **REST, in_flight=2, drafts=1),
    of_groups(THREE, "walks", 22, 9, WORDS, **REST, lookaheads=(0, 1)),
    scope(Mamba(1), 2, "walks", 9, 9, WORDS, **REST, drafts=1, caching=False),
    scope(Sliding(3), 2, "walks", 9, 9, WORDS, **REST, lookaheads=(0, 2), eagle=True),
    of_groups(((Full(), 2), (Cross(), 2)), "walks", 14, 9, ENCODED, **REST, encoder=3, caching=False),
)
WALKS: tuple[Trial, ...] = tuple(walk_of(each, seed, 90) for seed in range(2) for each in SCOPES)
