"""The world of part four: a worker's rows beside a manager, and what each step hands to the kernels, by specification.

It is the checker's own world, alone.
"""

from typing import Any

from blockwright_conformance.checker.world import Outcome
from blockwright_conformance.kv_cache.scopes import Scope
from blockwright_conformance.worker.actions import Serving
from blockwright_conformance.worker.scopes import WorkerScope
from blockwright_conformance.worker.world import WorkerWorld
from blockwright_spec.manager.state import Running
from blockwright_spec.worker.input_laws import INPUT_LAWS, ROW_LAWS, Handed, RowCall
from blockwright_spec.worker.rows import row_of

from .search import UNDEFINED, Judge


class WrongOutcomeError(Exception):
    """The specification refuses what cannot be refused."""


def follows(now: Serving) -> bool:
    return all(
        row_of(now.rows, slot) is None or isinstance(each, Running) for slot, each in enumerate(now.manager.requests)
    )


def of_kind(law: Any, kind: type) -> Judge:
    return Judge(law.id, lambda _, what: not isinstance(what, kind) or law.holds(what))


class Workers(WorkerWorld):
    """The world of a scope, in which nothing is refused."""

    laws = (Judge(UNDEFINED, follows),)
    step_laws = (*(of_kind(law, Handed) for law in INPUT_LAWS), *(of_kind(law, RowCall) for law in ROW_LAWS))

    def __init__(self, scope: Scope) -> None:
        super().__init__(WorkerScope(scope, misuse=False, spare=1))

    def meaning(self, state: Serving, action: Any, choice: Any = None) -> Outcome[Serving]:
        outcome = super().meaning(state, action)
        if outcome.refusal is not None:
            raise WrongOutcomeError(outcome.refusal)
        return outcome
