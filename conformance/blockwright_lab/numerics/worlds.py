"""The worlds in which known bugs that corrupt data are caught: small schedules, read from `worlds.toml`."""

import tomllib
from pathlib import Path
from typing import Any

from ..data_movement.tables_scopes import HISTORIES
from ..data_movement.tables_scopes import World as Tables
from ..scopes import layer, plain
from .engine.schedule import EngineConfig, Job, Schedule

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
    for row in tomllib.loads(Path(__file__).with_name("worlds.toml").read_text(encoding="utf-8"))["world"]:
        found.setdefault(row["name"], []).append(world(row))
    return {name: each[0] if len(each) == 1 else tuple(each) for name, each in found.items()}


WORLDS: dict[str, World] = worlds() | {name: HISTORIES[name] for name in TABLES}
