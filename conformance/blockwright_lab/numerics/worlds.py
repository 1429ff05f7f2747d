"""The worlds in which known bugs that corrupt data are caught: small schedules (`worlds.toml`), and which show which.

`shown.toml` lists the bugs that corrupt data, and the others with the reason.
"""

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


def file(name: str) -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))


def worlds() -> dict[str, World]:
    found: dict[str, list[Any]] = {}
    for row in file("worlds")["world"]:
        found.setdefault(row["name"], []).append(world(row))
    return {name: each[0] if len(each) == 1 else tuple(each) for name, each in found.items()}


WORLDS: dict[str, World] = worlds() | {name: HISTORIES[name] for name in TABLES}

SHOWN: dict[str, str] = {bug: name for name, bugs in file("shown")["shown"].items() for bug in bugs}
"""By id, the world in which the bug is caught."""

HARMLESS: dict[str, str] = {bug: why for why, bugs in file("shown")["harmless"].items() for bug in bugs}
"""By id: whatever goes wrong, what the model reads stays right."""
