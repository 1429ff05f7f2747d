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

from blockwright._terminal import Advance
from blockwright_conformance.checker.parallel import in_order
from blockwright_conformance.gates import GateResult, Profile

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

KIND = "damage"

MOST_STEPS = 150
"""Steps after which a world that has not ended will not end."""

NUMBERS = ("NUMERICS-1", "NUMERICS-2", "PAGE-4")
"""Laws by which a bug is caught best: the last where tables are read back, token by token."""

Found = tuple[BaseException | None, int]
"""What went wrong first, and after how many steps."""


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    names = chosen(profile)
    ordered = in_order(rows_of, [(name,) for name in names], names, profile.jobs, progress)
    unchanged = [replace(row, kind=KIND, scope=row.scope) for row in summed([rows[0] for rows in ordered])]
    return [*unchanged, *(row for rows in ordered for row in rows[1:])]


def chosen(profile: Profile) -> list[str]:
    names = dict.fromkeys(world for id, world in SHOWN.items() if profile.scope in named(BY_ID[id]))
    return list(names) if profile.is_ours else []


def size(profile: Profile) -> int:
    return len(chosen(profile))


def rows_of(name: str) -> list[GateResult]:
    """Return the rows of a world: the implementation itself, and each known bug that is shown there."""
    from .worlds import WORLDS  # it imports torch

    world = WORLDS[name]
    shown = [id for id, where in SHOWN.items() if where == name]
    return [unchanged(name, world), *(caught(named(BY_ID[id]), world, BY_ID[id].changes) for id in shown)]


def unchanged(name: str, world: World) -> GateResult:
    started = time.perf_counter()
    error, steps = fault((), world)
    row = GateResult(KIND, f"unchanged: {name}", CORE, 1, steps, int(error is not None), time.perf_counter() - started)
    return row if error is None else replace(row, law=law_of(error), detail=told_of(error))


def caught(scope: str, world: World, changes: tuple[Change, ...]) -> GateResult:
    """Run a world with something put back: it must go wrong."""
    started = time.perf_counter()
    error, steps = fault(changes, world)
    law = "" if error is None else law_of(error)
    missed = law not in ("NUMERICS-0", *NUMBERS) or isinstance(error, OutOfTimeError | NotLoadedError)
    row = GateResult(KIND, scope, CORE, 1, steps, int(missed), time.perf_counter() - started, law)
    detail = f"{'not caught: ' if missed else 'caught by '}{told_of(error)}"
    return replace(row, detail=detail, tried=1, passed=int(not missed))


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
