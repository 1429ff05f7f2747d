"""Worked examples: the shortest way to something worth seeing, found by search, with the state after each call."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

from blockwright_conformance.checker.explore import Explorer, Node
from blockwright_conformance.checker.world import Action, kind_of
from blockwright_conformance.kv_cache.adapter import ManagerAdapter
from blockwright_conformance.kv_cache.outcome import ManagerOutcome
from blockwright_conformance.kv_cache.requests import Admit, Grow
from blockwright_conformance.kv_cache.scopes import EVERY, Scope, rows_of
from blockwright_conformance.kv_cache.world import KVCacheWorld
from blockwright_spec.manager.facts import holders, key
from blockwright_spec.manager.outcomes import Reason
from blockwright_spec.manager.state import NULL, Running, State
from blockwright_spec.manager.told import evicted

Record = dict[str, Any]
AnyNode = Node[State, ManagerAdapter]
Goal = Callable[[State, Action, ManagerOutcome], bool]
"""Tells from the state before, the action and what came of it whether this is what was looked for."""


class Example(NamedTuple):
    """A sight to look for, its scope of the gates, and its text."""

    id: str
    title: str
    text: str
    laws: str
    scope: str
    goal: Goal


def is_refused(reason: Reason) -> Goal:
    return lambda before, action, answer: answer.refusal is not None and answer.refusal.reason is reason


def is_shared(before: State, action: Action, answer: ManagerOutcome) -> bool:
    return any(holders(answer.state, block) > 1 for block in range(1, before.config.num_blocks))


def is_found_again(before: State, action: Action, answer: ManagerOutcome) -> bool:
    after = answer.state.requests[action.slot] if isinstance(action, Admit) else None
    return isinstance(after, Running) and any(block in before.queue and key(before, block) for block in after.tables[0])


def is_evicted(before: State, action: Action, answer: ManagerOutcome) -> bool:
    return any(evicted(start, step) for start, step in answer.steps)


def is_nulled(before: State, action: Action, answer: ManagerOutcome) -> bool:
    return isinstance(action, Grow) and any(entries for step in answer.done for entries in step.nulled)


def is_hit_with_a_null(before: State, action: Action, answer: ManagerOutcome) -> bool:
    after = answer.state.requests[action.slot] if isinstance(action, Admit) else None
    return isinstance(after, Running) and any(NULL in table for table in after.tables)


def is_copied(before: State, action: Action, answer: ManagerOutcome) -> bool:
    return isinstance(action, Grow) and len(answer.state.copies) > len(before.copies)


def is_fenced(before: State, action: Action, answer: ManagerOutcome) -> bool:
    return bool(answer.state.batches) and not before.batches


def is_rejected(before: State, action: Action, answer: ManagerOutcome) -> bool:
    return kind_of(action) == "Settle" and any(action.arguments) and answer.refusal is None


def is_part_of_a_load(before: State, action: Action, answer: ManagerOutcome) -> bool:
    came = action.arguments[1] if kind_of(action) == "FinishLoad" and not answer.refusal else 0
    return came > 0 and any(isinstance(each, Running) and each.coming > came for each in before.requests)


def is_carried(before: State, action: Action, answer: ManagerOutcome) -> bool:
    after = [each for each in answer.state.requests if isinstance(each, Running)]
    return isinstance(action, Grow) and any(each.tables[0].count(NULL) for each in after)


def example(goal: str, text: str, **row: str) -> Example:
    return Example(text=" ".join(text.split()), goal=GOALS.get(goal) or is_refused(Reason[goal]), **row)


GOALS: dict[str, Goal] = {name: each for name, each in globals().items() if name.startswith("is_")}
EXAMPLES = tuple(example(**row) for row in rows_of(__file__)["example"])


class Seeker(Explorer[State, ManagerAdapter]):
    """Explores a scope up to the first action that is looked for."""

    def __init__(self, each: Scope, goal: Goal) -> None:
        super().__init__(KVCacheWorld(each), alone=True, laws=False)
        self.goal = goal

    def arrived(self, node: AnyNode, action: Any, outcome: Any, after: AnyNode) -> AnyNode | None:
        if self.goal(node.state, action, outcome):
            self.fail("GOAL", "", after.trail)
        return super().arrived(node, action, outcome, after)


@cache
def data() -> Record:
    return {each.id: found(each) for each in EXAMPLES}


def found(example: Example) -> Record:
    each = next((each for each in EVERY if each.name == example.scope), None)
    result = Seeker(each, example.goal).run() if each else None
    if each is None or result is None or result.violation is None:
        raise LookupError(f"example {example.id!r}: {'nothing such in' if each else 'no'} scope {example.scope!r}")
    actions = result.violation.actions
    return {
        "title": example.title,
        "text": example.text,
        "laws": example.laws.split(),
        "scope": example.scope,
        "layers": [re.sub(r"(?<!^)(?=[A-Z])", " ", type(group.kind).__name__).lower() for group in each.config.groups],
        "trace": KVCacheWorld(each).script(actions).splitlines(),
        "steps": list(steps(each, actions)),
    }


def steps(each: Scope, actions: tuple[Action, ...]) -> Iterator[Record]:
    state = KVCacheWorld(each).initial()
    for action in actions:
        answer = action.meaning(state)
        state = answer.state
        yield {
            "action": told_action(action),
            "refused": answer.refusal.reason.value[1] if answer.refusal else None,
        } | after(state)


def told_action(action: Action) -> str:
    names = "ABCDEFG"
    slot = getattr(action, "slot", None)
    other = f" to {names[action.arguments[1]]}" if kind_of(action) == "Fork" else ""
    return f"{kind_of(action)}{'' if slot is None else f' {names[slot]}'}{other}"


def after(state: State) -> Record:
    return {
        "free": list(state.queue),
        "published": sorted(block for block, _ in state.keys),
        "tables": [
            {"request": "ABCDEFG"[slot], "groups": [list(table) for table in each.tables]}
            for slot, each in enumerate(state.requests)
            if isinstance(each, Running)
        ],
        "fenced": sorted(block for fence in state.batches for table in fence.tables for block in table if block),
        "copies": [[source, target] for _, source, target in state.copies],
    }
