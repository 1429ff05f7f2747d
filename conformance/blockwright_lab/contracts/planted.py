"""Gate `planted`: contracts refute faults that are planted in definitions, closed forms and steps (`faults.toml`)."""

import importlib
import tomllib
from operator import attrgetter
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any, Final

from blockwright._terminal import Advance
from blockwright_conformance.checker.parallel import in_order
from blockwright_conformance.gates import GateResult, Profile

from ..mutation.in_place import changed
from .closed_forms import OWN
from .contract import CONTRACTS
from .gate import LONGEST, row

DATA: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("faults.toml").read_text(encoding="utf-8"))
FAULTS: Final[list[dict[str, str]]] = DATA["fault"]

SEARCH: Final = 10.0
"""Seconds for which a contract is searched for a fault that the values which are tried do not show."""


def module_of(file: str) -> ModuleType:
    """Return the module that contracts run: the implementation's is that of the copy which is not compiled."""
    package, _, inner = file.removesuffix(".py").replace("/", ".").partition(".")
    found: Any = attrgetter(inner)(OWN) if package == "blockwright" else importlib.import_module(f"{package}.{inner}")
    return found  # type: ignore[no-any-return]


def refuted(statement: str, seconds: float) -> tuple[str, str]:
    """Return the first contract that does not hold, of a statement or of all (""), and why; nothing if all hold."""
    for each in CONTRACTS:
        if each.statement.startswith(statement):
            fault = each.fault(seconds, min(seconds, SEARCH))
            if fault not in ("", "CANNOT_CONFIRM"):
                return f"contract: {each.statement}, {each.layer}", fault
    return "", ""


def size(profile: Profile) -> int:
    return len(FAULTS) if profile.is_ours else 0


def judged(at: int) -> GateResult:
    fault, started = FAULTS[at], perf_counter()
    module = module_of(fault["file"])
    text, detail = Path(module.__file__ or "").read_text(encoding="utf-8"), "the line does not stand in the file once"
    if text.count(fault["line"]) == 1:
        code = compile(text.replace(fault["line"], fault["wrong"]), module.__file__ or "", "exec", dont_inherit=True)
        with changed(module, code):
            found, _ = refuted(fault["refuted_by"], LONGEST)
        detail = "" if found else f"not refuted by: {fault['refuted_by']}"
    return row("planted", fault["file"], fault["wrong"], "CONTRACT-2", detail, started)


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Plant every fault; a row each."""
    calls = [(at,) for at in range(size(profile))]
    return in_order(judged, calls, [fault["wrong"] for fault in FAULTS], profile.jobs, progress)
