"""The specification alone, with every choice open: its laws hold whichever block is taken, and in whatever order.

Lock-step follows the policy's choices, which are a few of those that are legal. Here every legal choice of every step
is taken, in scopes of few blocks, so that the laws are seen not to lean on the policy.
"""

from collections.abc import Iterator
from itertools import permutations
from typing import Any, TypeVar

from blockwright_conformance.checker.explore import Explorer, Node
from blockwright_conformance.gates import GateResult, Profile
from blockwright_conformance.kv_cache.adapter import ManagerAdapter
from blockwright_conformance.kv_cache.outcome import ManagerOutcome
from blockwright_conformance.kv_cache.scopes import Scope, layers, of_groups
from blockwright_conformance.kv_cache.world import KVCacheWorld
from blockwright_conformance.rows import Exploration, explored
from blockwright_spec.manager.choices import Choice
from blockwright_spec.manager.state import State

T = TypeVar("T")


def open_scopes(profile: str) -> tuple[Scope, ...]:
    kinds = layers("full, block 1 + sliding 2, block 1 + sliding 3, block 2 + chunked 2, block 2 + mamba, block 1")
    few = 5 if profile == "nightly" else 4
    return tuple(of_groups((each,), "any choice", few, 2 * each[1] + 1, "trim reset chunks") for each in kinds)


class Answers:
    """A choice that answers by a list of numbers, then by 0, and remembers how many answers each question had."""

    def __init__(self, numbers: tuple[int, ...]) -> None:
        self.numbers = numbers
        self.counts: list[int] = []

    def pick(self, options: list[T]) -> T:
        at = len(self.counts)
        self.counts.append(len(options))
        return options[self.numbers[at] if at < len(self.numbers) else 0]

    def choice(self) -> Choice:
        return Choice(
            take=lambda queue, count: self.pick(list(permutations(queue, count))),
            order=lambda batch: self.pick(list(permutations([block for table in batch for block in table]))),
            serve=lambda holders: self.pick(list(holders)),
        )


def outcomes(state: State, action: Any) -> Iterator[ManagerOutcome]:
    waiting: list[tuple[int, ...]] = [()]
    while waiting:
        numbers = waiting.pop()
        answers = Answers(numbers)
        yield action.meaning(state, answers.choice())
        given = numbers + (0,) * (len(answers.counts) - len(numbers))
        for at in range(len(numbers), len(answers.counts)):
            waiting += [(*given[:at], other) for other in range(1, answers.counts[at])]


class OpenExplorer(Explorer[State, ManagerAdapter]):
    """Explores the specification under every legal choice."""

    def level(self, frontier: list[Node[State, ManagerAdapter]]) -> Iterator[Node[State, ManagerAdapter]]:
        for node in frontier:
            for action in self.world.enabled(node.state):
                for outcome in outcomes(node.state, action):
                    self.result.transitions += 1
                    after = self.arrived(node, action, outcome, Node(outcome.state, None, (node.trail, action)))
                    if after is not None:
                        self.judge_state(after)
                    if self.result.violation:
                        return
                    if after is not None:
                        yield after


class Open(Exploration):
    """Explores the specification alone, under any legal choice."""

    def row(self, scope: Scope, profile: Profile) -> GateResult:
        result = OpenExplorer(self.world(scope), alone=True).run()
        return explored(self.kind, result, str(result.violation.actions) if result.violation else "")


GATE = Open(__name__, "choices", "", open_scopes, KVCacheWorld, frozenset())
