"""The damage: every known bug that corrupts data must fail in the engine, with a real model.

A bug corrupts if what a model reads becomes wrong: a block handed out twice or released under its reader, content
found that is not there or not the request's, a state of another position, a copy or a transfer that moves other bytes.
Each names a world (`worlds.toml`, `shown.toml`): there it must be caught, and the implementation itself,
loaded in the same way, must pass. Caught means: logits, tokens or poison (NUMERICS-1, NUMERICS-2); or else an error
(NUMERICS-0) by which the data plane or the manager refuses to write or read in what would be the wrong place.

Variants are uncompiled, whatever build the process runs. What runs on and on is stopped, and has not been caught; nor
has what the manager's self-check alone finds at the end.
"""

from __future__ import annotations

import time
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from blockwright_conformance.gates import GateResult, Profile
from blockwright_conformance.rows import Listed

from ..known_bugs.bugs import BY_ID
from ..known_bugs.changes import Change
from ..known_bugs.gate import CORE, named, summed
from ..known_bugs.variants import variant
from ..known_bugs.watch import OutOfTimeError, rearm, watch
from .shown import SHOWN

if TYPE_CHECKING:
    from ..data_movement.tables_scopes import World as Tables
    from .engine.schedule import Schedule
    from .worlds import World

KIND, UNCHANGED = "damage", "unchanged: "

MOST_STEPS = 150
"""Steps after which a world that has not ended will not end."""

NUMBERS = ("NUMERICS-1", "NUMERICS-2", "PAGE-4")
"""Laws by which a bug is caught best: the last where tables are read back, token by token."""

Found = tuple[BaseException | None, int]
"""What went wrong first, and after how many steps."""


def row(name: str, profile: Profile) -> GateResult:
    """Run a world: a known bug must go wrong in it, the unchanged implementation must not."""
    from .worlds import WORLDS  # it imports torch

    bug, started = BY_ID.get(name.partition(" ")[0]), time.perf_counter()
    error, steps = fault(bug.changes if bug else (), WORLDS[SHOWN[bug.id] if bug else name.removeprefix(UNCHANGED)])
    law, detail = "" if error is None else law_of(error), told_of(error)
    row = GateResult(KIND, name, CORE, 1, steps, int(error is not None), time.perf_counter() - started, law)
    if bug is None:
        return row if error is None else replace(row, detail=detail)
    missed = law not in ("NUMERICS-0", *NUMBERS) or isinstance(error, OutOfTimeError | NotLoadedError)
    detail = f"{'not caught: ' if missed else 'caught by '}{detail}"
    return replace(row, violations=int(missed), detail=detail, tried=1, passed=int(not missed))


def whole(rows: list[GateResult], profile: Profile) -> list[GateResult]:
    """Sum up the rows of the unchanged implementation."""
    unchanged = [each for each in rows if each.scope.startswith(UNCHANGED)]
    return [*summed(KIND, unchanged), *(each for each in rows if each not in unchanged)]


def law_of(error: BaseException) -> str:
    """Return the law that an error names; any other error breaks the law that there is none."""
    return str(getattr(error, "law", "NUMERICS-0"))


def told_of(error: BaseException | None) -> str:
    if error is None or isinstance(error, OutOfTimeError):
        return "everything is right" if error is None else "one step runs on and on"
    return str(error) if hasattr(error, "step") else f"{type(error).__name__}: {error}"


class NotLoadedError(Exception):
    """A variant cannot be loaded, so that it shows nothing."""


def fault(changes: tuple[Change, ...], world: World) -> Found:
    try:
        package = variant(*changes)
    except Exception as error:
        return NotLoadedError(f"{type(error).__name__}: {error}"), 0
    return fault_of(world, package)


def fault_of(world: World, package: ModuleType) -> Found:
    """Run a world on a copy of the implementation, under the watch."""
    import torch

    from ..data_movement import tables_histories  # noqa: F401  (imports take longer than a step may)
    from ..data_movement.tables_scopes import World as Tables
    from .engine import engine  # noqa: F401

    torch.set_num_threads(1)
    with watch():
        if isinstance(world, Tables):
            return fault_in_tables(world, package)
        shelves: dict[bytes, Any] = {}
        steps = 0
        for schedule in world if isinstance(world, tuple) else (world,):
            error, count = fault_in(schedule, package, shelves)
            steps += count
            if error is not None:
                return error, steps
    return None, steps


def fault_in(schedule: Schedule, package: ModuleType, shelves: dict[bytes, Any]) -> Found:
    """Run one schedule; numbers that were wrong before an error go before it."""
    from .engine.engine import Engine
    from .engine.errors import NumericsError

    rearm()
    engine = Engine(schedule, package, shelves=shelves)
    found: BaseException
    try:
        engine.run(MOST_STEPS, rearm)
        return None, engine.count
    except (Exception, OutOfTimeError) as error:
        found = error
    try:
        rearm()
        if law_of(found) not in NUMBERS:
            engine.checker.all(engine.tasks)
    except NumericsError as error:
        found = error
    return found, engine.count


def fault_in_tables(world: Tables, package: ModuleType) -> Found:
    """Walk through a world of block tables with data that moves, and no specification beside it."""
    from ..data_movement.tables_histories import random_walk

    try:
        random_walk(world, 1, MOST_STEPS, False, package, rearm)
    except (Exception, OutOfTimeError) as error:
        return error, MOST_STEPS
    return None, MOST_STEPS


WORLDS_SHOWN = dict.fromkeys(SHOWN.values())
GATE = Listed((*(UNCHANGED + name for name in WORLDS_SHOWN), *(named(BY_ID[id]) for id in SHOWN)), row, whole)
