"""Gate `bent`: wrong mappings (`bends.toml`) must be noticed as the gate `refinement` would notice them.

Wrong block machines are planted, and refuted by contracts (gate `planted`).
"""

import time
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from blockwright._terminal import Advance
from blockwright_conformance.gates import GateResult, Profile

from ..mutation.in_place import changed
from . import maps
from .parts import PARTS

WIDTH, LIMIT = 3, 400
"""How far a scope is explored in which something wrong is to be noticed."""

WHERE: list[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("bends.toml").read_text(encoding="utf-8"))["where"]


class Bend(NamedTuple):
    """A wrong mapping: a text of `maps`, what takes its place, and the part and the scope that notice it."""

    name: str
    old: str
    new: str
    part: str
    scope: str


BENDS = [Bend(name, old, new, row["part"], row["scope"]) for row in WHERE for name, old, new in row["bends"]]


def noticed(bend: Bend) -> str:
    """Return the fault that a scope has under a wrong mapping; nothing if it has none."""
    path = Path(maps.__file__)
    text = path.read_text(encoding="utf-8")
    if text.count(bend.old) != 1:
        raise ValueError(f"{bend.name}: {bend.old!r} stands {text.count(bend.old)} times in maps.py, not once")
    (scope,) = [each for each in PARTS[bend.part].scopes("nightly") if each.name == bend.scope]
    explorer = PARTS[bend.part].explorer(scope, LIMIT)
    explorer.width = WIDTH
    with changed(maps, compile(text.replace(bend.old, bend.new), str(path), "exec", dont_inherit=True)):
        try:
            found = explorer.run().violation
        except Exception as error:
            return repr(error)
    return "" if found is None else f"{found.law}: {found.detail}"


def size(profile: Profile) -> int:
    return len(BENDS)


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Try every wrong mapping: one row."""
    if profile.scope or not profile.is_ours:
        return []
    started, alive = time.perf_counter(), []
    for bend in BENDS:
        alive += [] if noticed(bend) else [bend.name]
        progress(1, bend.name)
    law, detail = ("MUTANT-1", f"not noticed: {', '.join(alive)}") if alive else ("", "")
    counts = (0, 0, len(alive), time.perf_counter() - started)
    passed = len(BENDS) - len(alive)
    return [GateResult("bent", "wrong mappings", "all", *counts, law, detail, tried=len(BENDS), passed=passed)]
