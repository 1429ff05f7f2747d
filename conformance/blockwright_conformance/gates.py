"""The gates of the kit: one list, and what each of them reports.

A gate is a module with a function ``run(profile, progress)`` that returns a list of `GateResult`, and perhaps
``size(profile)``, how often ``progress(1, what)`` will be called; or both are methods of its ``GATE`` (`rows`). Other
packages add gates of theirs by an entry point of the group ``blockwright.gates`` that names a sequence of `Gate`.
"""

import importlib
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from blockwright._terminal import Advance
from blockwright_spec.manager.state import Config

from .kv_cache.adapter import ManagerAdapter

OURS = "blockwright_conformance.kv_cache.blockwright:BlockwrightAdapter"
"""The manager that is tested unless another is named."""


@dataclass(frozen=True, slots=True)
class Profile:
    """How far to go: ``quick`` takes a minute, ``pr`` several minutes, ``nightly`` hours (`Gate.first`)."""

    name: str = "pr"
    jobs: int = 2
    implementation: str = OURS
    """The manager under test, as `factory_of` takes it."""
    scope: str = ""
    policy: str = ""
    """The policy that gate `policies` is about: a name that replay knows, or ``module:factory``; all that it knows."""
    explorer: Path | None = None
    """A folder with the specification compiled (`native`), for the gates that explore."""

    @property
    def is_ours(self) -> bool:
        """Return whether the manager under test is Blockwright's: gates about its own code are for it alone."""
        return self.implementation == OURS


@dataclass(frozen=True, slots=True)
class GateResult:
    kind: str
    scope: str
    manager: str
    states: int
    transitions: int
    violations: int
    seconds: float
    law: str = ""
    detail: str = ""
    script: str = ""
    fired: dict[str, int] = field(default_factory=dict)
    tried: int = 0
    """Theorems, mutants or known bugs that the row speaks of."""
    passed: int = 0
    """Those of them that came out as they must: proved, killed, caught."""
    left_out: bool = False
    """Nothing was tried, for want of what `detail` names: no violation, and nothing shown either."""


ORDER = ("quick", "pr", "nightly")
"""The profiles, each of which runs all the gates of those before it."""

Run = Callable[[Profile, Advance], list[GateResult]]


@dataclass(frozen=True, slots=True)
class Way:
    """A line of the last table: its name, the kinds of rows that belong to it, and what those rows count."""

    name: str
    kinds: tuple[str, ...]
    things: str
    verdict: str = "without violation"


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate: its name, its module, the packages it needs, and the lines that it adds to the last table."""

    name: str
    module: str
    ways: tuple[Way, ...] = ()
    needs: tuple[str, ...] = ()
    """Packages; a gate may also say in rows of its own what it leaves out for want of one."""
    first: str = "pr"
    """The shortest profile that runs it: all that can find a bug are in ``pr``, the checks of checks in ``nightly``."""

    def is_in(self, profile: str) -> bool:
        return ORDER.index(self.first) <= ORDER.index(profile)


def gates_of(package: str, file: Path) -> tuple[Gate, ...]:
    found = []
    for row in tomllib.loads(file.read_text(encoding="utf-8"))["gate"]:
        ways = tuple([Way(line, tuple(kinds), *words) for line, kinds, *words in row["ways"]])
        needs = tuple(row.get("needs", ()))
        found.append(Gate(row["name"], f"{package}.{row['module']}", ways, needs, row.get("first", "pr")))
    return tuple(found)


KIT_GATES = gates_of(__package__, Path(__file__).with_suffix(".toml"))


@cache
def gates() -> dict[str, Gate]:
    """Return every gate by its name: the kit's, then those of installed packages (entry points `blockwright.gates`)."""
    points = sorted(entry_points(group="blockwright.gates"), key=lambda point: point.name)
    found = [*KIT_GATES, *(each for point in points for each in point.load())]
    return {each.name: each for each in found}


def lacking(names: list[str], profile: Profile) -> dict[str, list[str]]:
    """Return the gates that cannot run here, each with the packages that are not installed."""
    able = names if profile.is_ours else [name for name in names if name == "machine"]
    found = {name: [each for each in gates()[name].needs if find_spec(each) is None] for name in able}
    return {name: packages for name, packages in found.items() if packages}


def gate(name: str, profile: Profile) -> tuple[Run, int]:
    """Return the function that runs a gate, and the number of steps in which it reports progress."""
    module, _, own = gates()[name].module.partition(":")
    found: Any = importlib.import_module(module)
    found = getattr(found, own or "GATE", found)
    return found.run, found.size(profile) if hasattr(found, "size") else 1


def factory_of(implementation: str) -> Callable[[Config], ManagerAdapter]:
    """Return the factory that ``module:factory`` names, or that makes managers in the process of ``exec:COMMAND``.

    The module is looked for in the working folder first, as by ``python -m``.

    Raises:
        ValueError: it names no factory; the message names the missing part.
    """
    module, colon, name = implementation.partition(":")
    if module == "exec":
        return importlib.import_module("blockwright_conformance.vectors.process").started(name)  # type: ignore[no-any-return]
    if not (module and colon and name):
        raise ValueError(f"--impl: expected module:factory, not {implementation!r}")
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"--impl: cannot import {module!r}: {error}") from error
    except Exception as error:
        raise ValueError(f"--impl: {module!r} raised {type(error).__name__} when imported: {error}") from error
    factory = getattr(found, name, None)
    if not callable(factory):
        raise ValueError(f"--impl: {module!r} has no factory {name!r}; it must take a Config")
    return factory  # type: ignore[no-any-return]
