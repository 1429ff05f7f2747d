"""Part of gate 5: every exhibit of the museum that corrupts data must fail in the engine, with a real model.

An exhibit corrupts if what a model reads becomes wrong: a block handed out twice or released under its reader, content
found that is not there or not the request's, a state of another position, a copy or a transfer that moves other bytes.
Each such exhibit names a world of `numerics_worlds`, a small schedule that is stored as it is: there it must be caught,
and the implementation itself, loaded in the same way, must pass. Caught means, in this order: logits, tokens or poison
(NUMERICS-1, NUMERICS-2), or else an error (NUMERICS-0) by which the data plane or the manager refuses what would
otherwise be written or read in the wrong place. `HARMLESS` says of all other exhibits why they corrupt nothing.
"""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

from .gates import GateResult
import blockwright

from .engine.schedule import Schedule
from .museum import CORE, EXHIBITS
from .numerics_harmless import HARMLESS
from .numerics_worlds import SHOWN, WORLDS
from .variants import variant
from .watch import OutOfTimeError, rearm, watch

__all__ = ["HARMLESS", "SHOWN", "WORLDS", "rows_of"]

KIND = "numerics"

MOST_STEPS = 150
"""Steps after which a world that has not ended will not end."""

NUMBERS = ("NUMERICS-1", "NUMERICS-2")
"""Laws by which an exhibit is caught best."""


def rows_of(world: str) -> list[GateResult]:
    """Give the rows of a world: the implementation itself, and every exhibit that is shown there."""
    chosen = [exhibit for exhibit in EXHIBITS if SHOWN.get(exhibit.id) == world]
    return [row_of(world, "", ()), *(row_of(world, f"{each.id} {each.title}", each.patches) for each in chosen)]


def row_of(world: str, title: str, patches: tuple[Any, ...]) -> GateResult:
    """Run a world with a variant: it must fail, unless nothing was changed."""
    started = time.perf_counter()
    error, steps = fault(world, patches)
    caught = error is not None and not isinstance(error, OutOfTimeError)
    law = str(getattr(error, "law", "NUMERICS-0")) if caught else ""
    detail = "" if error is None else str(error) or "runs on and on"
    if title:
        detail = f"caught by {detail} ({world})" if caught else f"not caught in {world!r}: {detail or 'it passes'}"
    return GateResult(
        kind=KIND,
        scope=f"museum: {title or f'unchanged, {world}'}",
        manager=CORE,
        states=1,
        transitions=steps,
        violations=int(caught != bool(title)),
        seconds=time.perf_counter() - started,
        law=law,
        detail=detail,
    )


def fault(world: str, patches: tuple[Any, ...]) -> tuple[BaseException | None, int]:
    """Run a world with patches applied; give what went wrong first, numbers before anything else, and the steps."""
    try:
        package = variant(*patches)
    except Exception as error:
        return error, 0
    return fault_of(WORLDS[world], package)


def fault_of(schedules: Schedule | tuple[Schedule, ...], package: ModuleType) -> tuple[BaseException | None, int]:
    """Run schedules one after the other, over the same shelves; give what went wrong first, and the steps."""
    import torch

    torch.set_num_threads(1)
    shelves: dict[bytes, Any] = {}
    steps = 0
    with watch():
        for schedule in (schedules,) if isinstance(schedules, Schedule) else schedules:
            found, count = fault_in(schedule, package, shelves)
            steps += count
            if found is not None:
                return found, steps
    return None, steps


def fault_in(schedule: Schedule, package: ModuleType, shelves: dict[bytes, Any]) -> tuple[BaseException | None, int]:
    """Run one schedule under the watch; give what went wrong, numbers before anything else, and the steps."""
    from .engine.engine import Engine
    from .engine.errors import NumericsError

    rearm()
    try:
        engine = Engine(schedule, package, shelves=shelves)
    except (Exception, OutOfTimeError) as error:
        return error, 0
    try:
        while not engine.is_done:
            if engine.count == MOST_STEPS:
                stale = engine.fired["stale hits"]
                raise NumericsError("NUMERICS-0", f"no end after {MOST_STEPS} steps, {stale} hits refused as stale")
            rearm()
            engine.step()
        rearm()
        engine.checker.all(engine.tasks)
        engine.close()
    except (Exception, OutOfTimeError) as error:
        found: BaseException = error
    else:
        return None, engine.count
    if getattr(found, "law", "") not in NUMBERS:
        rearm()
        try:
            engine.checker.all(engine.tasks)  # numbers that were wrong before anyone noticed
        except NumericsError as error:
            found = error
        except (Exception, OutOfTimeError):
            pass
    return found, engine.count


def run_all(schedules: Schedule | tuple[Schedule, ...], package: ModuleType = blockwright) -> None:
    """Run schedules, and raise what goes wrong."""
    found, _ = fault_of(schedules, package)
    if found is not None:
        raise found
