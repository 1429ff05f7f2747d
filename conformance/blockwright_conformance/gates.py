"""The gates of the kit: one list, and what each of them reports.

A gate is a module with a function ``run(profile, progress)`` that returns a list of `GateResult`. It may have another,
``size(profile)``, that says how often ``progress(1, what)`` will be called. `GATES` names the gates in the order in
which the command runs them; each is imported when it is run.
"""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from blockwright._terminal import Advance
from blockwright_spec.state import Config

from .kv_cache.adapter import ManagerAdapter

OURS = "blockwright_conformance.kv_cache.blockwright:BlockwrightAdapter"
"""The manager that is tested unless another is named."""


@dataclass(frozen=True, slots=True)
class Profile:
    """How far to go: ``quick`` takes a minute (`QUICK`), ``pr`` several minutes, ``nightly`` hours."""

    name: str = "pr"
    jobs: int = 2
    """Processes to use."""
    implementation: str = OURS
    """``module:factory`` of the manager under test; the factory takes a `Config` and returns a `ManagerAdapter`.

    Or ``exec:COMMAND``: a process that speaks the protocol of ``docs/vectors.md``.
    """
    scope: str = ""
    """Only scopes whose names contain this."""
    proofs: bool = False
    """Make every proof; one that cannot be tried here is a failure."""
    explorer: Path | None = None
    """A folder with the specification compiled (`native`), for the gates that explore."""

    @property
    def is_ours(self) -> bool:
        """Tell whether the manager under test is Blockwright's: gates about its own code are for it alone."""
        return self.implementation == OURS


@dataclass(frozen=True, slots=True)
class GateResult:
    """One row of the report."""

    kind: str
    """The gate."""
    scope: str
    manager: str
    states: int
    transitions: int
    violations: int
    seconds: float
    law: str = ""
    """The first law that was broken."""
    detail: str = ""
    script: str = ""
    """The shortest way to the violation, as calls."""
    fired: dict[str, int] = field(default_factory=dict)
    """How often each action happened, and each refusal."""
    tried: int = 0
    """Theorems, mutants or exhibits that the row speaks of."""
    passed: int = 0
    """Those of them that came out as they must: proved, killed, caught."""
    left_out: bool = False
    """Nothing was tried, for want of what `detail` names: no violation, and nothing shown either."""


Run = Callable[[Profile, Advance], list[GateResult]]

GATES: dict[str, str] = {
    "refinement": "blockwright_lab.refinement.gate",
    "proofs": "blockwright_lab.proofs.gate",
    "lockstep": "blockwright_conformance.kv_cache.gate",
    "choices": "blockwright_conformance.kv_cache.choices_gate",
    "machine": "blockwright_conformance.kv_cache.histories_gate",
    "paged": "blockwright_conformance.block_tables.gate",
    "offload": "blockwright_conformance.offload.gate",
    "inputs": "blockwright_lab.data_movement.gate",
    "faults": "blockwright_lab.media.gate",
    "numerics": "blockwright_lab.numerics.gate",
    "museum": "blockwright_lab.known_bugs.gate",
    "damage": "blockwright_lab.numerics.damage_gate",
    "mutants": "blockwright_lab.mutation.gate",
    "spec": "blockwright_lab.specification.gate",
}
"""Every gate and its module."""

QUICK = ("proofs", "lockstep", "choices", "machine", "offload")
"""The gates of profile ``quick`` unless others are asked for: what a minute shows, without torch."""

NEEDS: dict[str, tuple[str, ...]] = {
    "machine": ("hypothesis",),
    "paged": ("hypothesis", "torch"),
    "offload": ("hypothesis",),
    "inputs": ("hypothesis", "torch"),
    "numerics": ("hypothesis", "torch"),
    "damage": ("torch",),
    "mutants": ("hypothesis", "pytest", "torch"),
}
"""What gates cannot run without; proofs and faults say in rows of their own what they leave out."""


def lacking(names: list[str], profile: Profile) -> dict[str, list[str]]:
    """Give the gates that cannot run here, each with the packages that are not installed.

    Managers of other makes are seen by the lock-step and by state machines only.
    """
    able = names if profile.is_ours else [name for name in names if name == "machine"]
    found = {name: [each for each in NEEDS.get(name, ()) if find_spec(each) is None] for name in able}
    return {name: packages for name, packages in found.items() if packages}


def gate(name: str, profile: Profile) -> tuple[Run, int]:
    """Give the function that runs a gate, and the steps by which it reports progress."""
    module: Any = importlib.import_module(GATES[name])
    return module.run, module.size(profile) if hasattr(module, "size") else 1


def factory_of(implementation: str) -> Callable[[Config], ManagerAdapter]:
    """Give the factory that ``module:factory`` names, or that makes managers in the process of ``exec:COMMAND``.

    The module is looked for in the working folder first, as by ``python -m``.

    Raises:
        ValueError: it names none; the message says what is missing.
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
