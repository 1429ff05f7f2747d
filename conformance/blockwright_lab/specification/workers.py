"""The world of part four: a worker's rows beside a manager, and what each step hands to the kernels, by specification.

It is the checker's own world, alone.
"""

from functools import partial
from typing import Any

from blockwright_conformance.kv_cache.scopes import Scope
from blockwright_conformance.worker.actions import Serving
from blockwright_conformance.worker.scopes import WorkerScope
from blockwright_conformance.worker.world import WorkerWorld
from blockwright_spec.manager.state import Running
from blockwright_spec.worker.input_laws import INPUT_LAWS, ROW_LAWS, Handed, RowCall
from blockwright_spec.worker.rows import row_of

from .search import UNDEFINED, Came, Judge, World


class WrongOutcomeError(Exception):
    """The specification refuses what cannot be refused."""


def told(world: WorkerWorld, now: Serving, action: Any) -> Came:
    outcome = world.meaning(now, action)
    if outcome.refusal is not None:
        raise WrongOutcomeError(outcome.refusal)
    return Came(tuple((None, done) for _, done in outcome.steps), outcome.state)


def follows(now: Serving) -> bool:
    return all(
        row_of(now.rows, slot) is None or isinstance(each, Running) for slot, each in enumerate(now.manager.requests)
    )


def workers(scope: Scope) -> World:
    world = WorkerWorld(WorkerScope(scope, misuse=False, spare=1))

    def of_kind(law: Any, kind: type) -> Judge:
        return Judge(law.id, lambda _, what: not isinstance(what, kind) or law.holds(what))

    own = (*(of_kind(law, Handed) for law in INPUT_LAWS), *(of_kind(law, RowCall) for law in ROW_LAWS))
    return World(
        scope.name,
        world.initial,
        world.enabled,
        partial(told, world),
        lambda: world.digest,
        (Judge(UNDEFINED, follows),),
        own,
    )
