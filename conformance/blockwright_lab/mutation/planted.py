"""Gate `planted`: faults that are planted are refuted by contracts, or noticed as the gate `refinement` would.

`planted.toml` lists them: in definitions, closed forms and steps, and in the mappings of parts to the block machine.
Gate `laws`: one of the specification for each law that no known bug needs, where only that law is asked.
"""

import importlib
from operator import attrgetter
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any, Final

from blockwright_conformance.checker.explore import Explorer, Trail
from blockwright_conformance.gates import GateResult, Profile
from blockwright_conformance.kv_cache.scopes import rows_of
from blockwright_conformance.rows import Listed
from blockwright_spec.manager.in_time.liveness import fits_alone
from blockwright_spec.manager.room import has_room

from ..contracts.closed_forms import OWN
from ..contracts.contract import CONTRACTS
from ..contracts.gate import TRIES, row
from ..refinement.parts import PARTS
from .in_place import changed
from .lock_step import WORLDS

DATA: Final = rows_of(__file__)
FAULTS: Final[list[dict[str, str]]] = DATA["fault"]
LAWS: Final[dict[str, dict[str, str]]] = DATA["law"]

SEARCH: Final = 10.0
"""Seconds for which a contract is searched for a fault that the values which are tried do not show."""

WIDTH, LIMIT, MOST = 3, 400, 20_000


def module_of(file: str) -> ModuleType:
    """Return the module that contracts run: the implementation's is that of the copy which is not compiled."""
    package, _, inner = file.removesuffix(".py").replace("/", ".").partition(".")
    found: Any = attrgetter(inner)(OWN) if package == "blockwright" else importlib.import_module(f"{package}.{inner}")
    return found  # type: ignore[no-any-return]


def refuted(statement: str, tries: tuple[float, ...]) -> tuple[str, str]:
    """Return the first contract that does not hold, of a statement or of all (""), and why; nothing if all hold."""
    for each in CONTRACTS:
        if each.statement.startswith(statement):
            fault = each.fault(tries, min(tries[0], SEARCH))
            if fault not in ("", "CANNOT_CONFIRM"):
                return f"contract: {each.statement}, {each.layer}", fault
    return "", ""


class OneLaw(Explorer[Any, Any]):
    """Explores the specification alone, and hears of one law: some worlds ask others than those of their own lists."""

    law = ""

    def fail(self, law: str, detail: str, trail: Trail) -> None:
        if law == self.law:
            super().fail(law, detail, trail)


def refused(law: str, name: str) -> bool:
    world = WORLDS[name]()
    for kind in ("laws", "step_laws"):
        setattr(world, kind, tuple(each for each in getattr(world, kind) if each.id == law))
    explorer = OneLaw(world, alone=True, max_transitions=MOST)
    explorer.law = law
    try:
        return explorer.run().violation is not None
    finally:
        has_room.cache_clear()  # it remembers answers of the fault
        fits_alone.cache_clear()


def noticed(part: str, name: str) -> bool:
    (scope,) = [each for each in PARTS[part].scopes("nightly") if each.name == name]
    explorer = PARTS[part].explorer(scope, LIMIT)
    explorer.width = WIDTH
    try:
        return explorer.run().violation is not None
    except Exception:
        return True


def judged(name: str, profile: Profile) -> GateResult:
    fault, started = LAWS.get(name) or FAULTS[int(name.partition(" ")[0])], perf_counter()
    module, by = module_of(fault["file"]), fault["refuted_by"]
    text, detail = Path(module.__file__ or "").read_text(encoding="utf-8"), "the line does not stand in the file once"
    if text.count(fault["line"]) == 1:
        code = compile(text.replace(fault["line"], fault["wrong"]), module.__file__ or "", "exec", dont_inherit=True)
        with changed(module, code):
            if "part" in fault or name in LAWS:
                found = refused(name, by) if name in LAWS else noticed(fault["part"], by)
            else:
                found = refuted(by, TRIES)[0] != ""
        detail = "" if found else f"not refuted by: {by}"
    return row("laws" if name in LAWS else "planted", fault["file"], name, "CONTRACT-2", detail, started)


GATE = Listed([f"{at} {fault['wrong']}" for at, fault in enumerate(FAULTS)], judged)
ALONE = Listed(LAWS, judged)
