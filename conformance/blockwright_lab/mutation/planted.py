"""Gate `planted`: faults that are planted are refuted by contracts, or noticed as the gate `refinement` would.

`faults.toml` lists them: in definitions, closed forms and steps, and in the mappings of parts to the block machine.
"""

import importlib
import tomllib
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any, Final

from blockwright_conformance.gates import GateResult, Profile
from blockwright_conformance.rows import Listed

from ..contracts.closed_forms import OWN
from ..contracts.contract import CONTRACTS
from ..contracts.gate import LONGEST, row
from ..refinement.parts import PARTS
from .in_place import changed

DATA: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("faults.toml").read_text(encoding="utf-8"))
FAULTS: Final[list[dict[str, str]]] = DATA["fault"]

SEARCH: Final = 10.0
"""Seconds for which a contract is searched for a fault that the values which are tried do not show."""

WIDTH, LIMIT = 3, 400


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


def noticed(part: str, name: str) -> str:
    (scope,) = [each for each in PARTS[part].scopes("nightly") if each.name == name]
    explorer = PARTS[part].explorer(scope, LIMIT)
    explorer.width = WIDTH
    try:
        found = explorer.run().violation
    except Exception as error:
        return repr(error)
    return "" if found is None else f"{found.law}: {found.detail}"


def missed(fault: dict[str, str], look: Callable[[], object]) -> str:
    """Plant a fault, and return why nothing was found with it; nothing if something was."""
    module = module_of(fault["file"])
    text = Path(module.__file__ or "").read_text(encoding="utf-8")
    if text.count(fault["line"]) != 1:
        return "the line does not stand in the file once"
    code = compile(text.replace(fault["line"], fault["wrong"]), module.__file__ or "", "exec", dont_inherit=True)
    with changed(module, code):
        return "" if look() else f"not refuted by: {fault['refuted_by']}"


def judged(name: str, profile: Profile) -> GateResult:
    fault, started = FAULTS[int(name.partition(" ")[0])], perf_counter()
    by = fault["refuted_by"]
    look = partial(noticed, fault["part"], by) if "part" in fault else lambda: refuted(by, LONGEST)[0]
    return row("planted", fault["file"], fault["wrong"], "CONTRACT-2", missed(fault, look), started)


GATE = Listed([f"{at} {fault['wrong']}" for at, fault in enumerate(FAULTS)], judged)
