"""The world of part four: a worker's rows beside a manager, and what each step hands to the kernels, by specification.

It is the checker's own world, alone. Plans of a device's memory have no transitions: right ones are altered by hand.
"""

from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

from blockwright_conformance.kv_cache.scopes import Scope, of_groups, strings
from blockwright_conformance.worker.actions import Serving
from blockwright_conformance.worker.scopes import WorkerScope
from blockwright_conformance.worker.world import WorkerWorld
from blockwright_spec.manager.state import Running
from blockwright_spec.reads import Chunked, Cross, Full, Mamba, Sliding
from blockwright_spec.worker.input_laws import INPUT_LAWS, ROW_LAWS, Handed, RowCall
from blockwright_spec.worker.rows import row_of
from blockwright_spec.worker.storage import Layer, Limits, PlannedGroup, StoragePlan

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


_FEW: dict[str, Any] = {"prompts": strings(1, 1, 2), "max_model_len": 4}
WORKERS: tuple[Scope, ...] = (
    of_groups(((Full(), 2), (Sliding(2), 1)), "workers", 7, 3, "", **_FEW),
    of_groups(((Full(), 1), (Mamba(1), 2)), "workers, drafts", 9, 3, "", **_FEW, drafts=1),
    of_groups(((Mamba(1), 1),), "workers, drafts", 8, 3, "", **_FEW, drafts=1),
    of_groups(((Mamba(2), 1),), "workers, two drafts", 10, 4, "", **{**_FEW, "max_model_len": 5}, drafts=2, slots=1),
    of_groups(((Full(), 1), (Cross(), 2)), "workers, encoder", 8, 3, "", **_FEW, encoder=3, caching=False),
    of_groups(((Mamba(), 2), (Chunked(2), 2)), "workers, chunks", 7, 4, "chunks", **_FEW),
    of_groups(((Full(), 2),), "workers, forks", 5, 3, "fork", prompts=strings(1, 1, 1)),
    of_groups(((Mamba(), 2),), "workers, forks", 5, 3, "fork", prompts=strings(1, 1, 1)),
    of_groups(((Full(), 1), (Mamba(), 1)), "workers, in flight", 7, 3, "", in_flight=1, slots=1, **_FEW),
)
"""Small scopes of part four."""

# --- plans

RIGHT = StoragePlan(
    layers=(Layer(Full(), 2, 4), Layer(Full(), 2, 4), Layer(Sliding(3), 2, 4), Layer(Sliding(3), 2, 3)),
    limits=Limits(tokens=8, step=4),
    memory=170,
    unit=2,
    loss=Fraction(1, 4),
    groups=(PlannedGroup((0, 1), 2, 0), PlannedGroup((2, 3), 2, 2)),
    pages=(8, 8),
    num_blocks=10,
    request_blocks=8,
)
"""A plan of two groups on two tensors."""


TWICE = (PlannedGroup((0, 1), 2, 0), PlannedGroup((2, 2), 2, 0))
MIXED = (PlannedGroup((0, 2), 2, 0), PlannedGroup((1, 3), 2, 2))
WASTED = (PlannedGroup((0, 1), 2, 0), PlannedGroup((2, 3), 2, 3))
UNEVEN = (PlannedGroup((0, 1), 2, 1), PlannedGroup((2, 3), 2, 3))

PLANS: dict[str, StoragePlan] = {
    "LAYOUT-1": replace(RIGHT, groups=TWICE),
    "LAYOUT-2": replace(RIGHT, groups=MIXED),
    "LAYOUT-3": replace(RIGHT, pages=(10, 6)),
    "LAYOUT-4": replace(RIGHT, num_blocks=11),
    "LAYOUT-5": replace(RIGHT, num_blocks=9),
    "LAYOUT-6": replace(RIGHT, request_blocks=9),
    "LAYOUT-7": replace(RIGHT, groups=WASTED),
    "LAYOUT-8": replace(RIGHT, groups=UNEVEN, pages=(9, 8)),
    "LAYOUT-9": replace(RIGHT, loss=Fraction(0)),
}
"""For each law of plans, the right plan altered so that this law alone is broken."""
