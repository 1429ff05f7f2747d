"""The damage: every known bug that corrupts data must fail in the engine, with a real model.

A bug corrupts if what a model reads becomes wrong: a block handed out twice or released under its reader, content
found that is not there or not the request's, a state of another position, a copy or a transfer that moves other bytes.
Each names a world (`worlds.toml`, `shown.toml`): there it must be caught, and the implementation itself,
loaded in the same way, must pass. Caught means: logits, tokens or poison (NUMERICS-1, NUMERICS-2); or else an error
(NUMERICS-0) by which the data plane or the manager refuses to write or read in what would be the wrong place.

Variants are uncompiled, whatever build the process runs. What runs on and on is stopped, and has not been caught; nor
has what the manager's self-check alone finds at the end.
"""

import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from blockwright_conformance.gates import GateResult, Profile
from blockwright_conformance.rows import Listed

from ..data_movement.gate import HISTORIES
from ..data_movement.gate import World as Tables
from ..known_bugs.bugs import BY_ID
from ..known_bugs.gate import CORE, named, summed
from ..known_bugs.variants import variant
from ..known_bugs.watch import OutOfTimeError, rearm, watch
from ..scopes import layer, plain, rows_of
from .engine.schedule import EngineConfig, Job, Schedule

KIND, UNCHANGED = "damage", "unchanged: "
FILES = {name: rows_of(str(Path(__file__).with_name(name))) for name in ("worlds", "shown")}

MOST_STEPS = 150
"""Steps after which a world that has not ended will not end."""

LAWS = ("NUMERICS-0", "NUMERICS-1", "NUMERICS-2", "PAGE-4")
"""Laws by which a bug is caught: the last where tables are read back, token by token."""


World = Schedule | tuple[Schedule, ...] | Tables
"""A tuple is engines one after the other, over the same shelves below the host."""

TABLES = ("naive, block 4", "prefix caching, block 4, sliding 6")
"""Block tables over which a random walk shows bugs."""


def world(row: dict[str, Any]) -> Schedule:
    own = {name: plain(value) for name, value in row.items() if name != "name"}
    made: dict[str, Any] = {"layers": tuple(map(layer, own["layers"]))}
    if "draft" in own:
        made["draft"] = layer(own["draft"])
    if "config" in own:
        made["config"] = EngineConfig(**own["config"])
    if "jobs" in own:
        made["jobs"] = tuple(Job(**{name: plain(value) for name, value in job.items()}) for job in own["jobs"])
    return Schedule(**{**own, **made})


def worlds() -> dict[str, World]:
    found: dict[str, list[Any]] = {}
    for row in FILES["worlds"]["world"]:
        found.setdefault(row["name"], []).append(world(row))
    return {name: each[0] if len(each) == 1 else tuple(each) for name, each in found.items()}


WORLDS: dict[str, World] = worlds() | {name: HISTORIES[name] for name in TABLES}

SHOWN: dict[str, str] = {bug: name for name, bugs in FILES["shown"]["shown"].items() for bug in bugs}
"""By id, the world in which the bug is caught."""

HARMLESS: dict[str, str] = {bug: why for why, bugs in FILES["shown"]["harmless"].items() for bug in bugs}
"""By id: whatever goes wrong, what the model reads stays right."""


def row(name: str, profile: Profile) -> GateResult:
    bug, started = BY_ID.get(name.partition(" ")[0]), time.perf_counter()
    world = WORLDS[SHOWN[bug.id] if bug else name.removeprefix(UNCHANGED)]
    law, detail, steps = wrong_in(world, variant(*(bug.changes if bug else ())))
    row = GateResult(KIND, name, CORE, 1, steps, int(bool(law)), time.perf_counter() - started, law)
    if bug is None:
        return replace(row, detail=detail if law else "")
    caught = int(law in LAWS)
    detail = f"{'caught by ' if caught else 'not caught: '}{detail}"
    return replace(row, violations=1 - caught, detail=detail, tried=1, passed=caught)


def whole(rows: list[GateResult], profile: Profile) -> list[GateResult]:
    unchanged = [each for each in rows if each.scope.startswith(UNCHANGED)]
    return [*summed(KIND, unchanged), *(each for each in rows if each not in unchanged)]


def wrong_in(world: World, package: ModuleType) -> tuple[str, str, int]:
    import torch

    from ..data_movement.tables_histories import random_walk
    from .engine.below import Shelf
    from .engine.engine import run

    torch.set_num_threads(1)
    shelves: dict[bytes, Shelf] = {}
    try:
        with watch():
            if isinstance(world, Tables):
                random_walk(world, 1, MOST_STEPS, False, package, rearm)
                return "", "everything is right", MOST_STEPS
            schedules = world if isinstance(world, tuple) else (world,)
            runs = [run(each, package, shelves=shelves, most_steps=MOST_STEPS, before=rearm) for each in schedules]
            return "", "everything is right", sum(each["steps"] for each in runs)
    except OutOfTimeError:
        return "ENDLESS", "one step runs on and on", 0
    except Exception as error:
        told = str(error) if hasattr(error, "step") else f"{type(error).__name__}: {error}"
        return str(getattr(error, "law", "NUMERICS-0")), told, getattr(error, "step", None) or 0


GATE = Listed(
    (*dict.fromkeys(UNCHANGED + name for name in SHOWN.values()), *(named(BY_ID[id]) for id in SHOWN)), row, whole
)
