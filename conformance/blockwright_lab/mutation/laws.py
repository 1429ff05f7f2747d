"""Gate `laws`: for each law that no known bug breaks, a fault of the specification, where no other law is asked."""

import tomllib
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from blockwright_conformance.checker.explore import Explorer, Trail
from blockwright_conformance.gates import GateResult, Profile
from blockwright_conformance.rows import Listed
from blockwright_spec.manager.in_time.liveness import fits_alone
from blockwright_spec.manager.units import has_room

from ..contracts.gate import row
from .lock_step import WORLDS
from .planted import missed

FILE: Final = Path(__file__).with_suffix(".toml")
FAULTS: Final[dict[str, dict[str, str]]] = tomllib.loads(FILE.read_text(encoding="utf-8"))
MOST: Final = 20_000
"""Transitions within which a fault must show."""


class OneLaw(Explorer[Any, Any]):
    """Explores the specification alone, and hears of one law."""

    law = ""

    def fail(self, law: str, detail: str, trail: Trail) -> None:
        if law == self.law:
            super().fail(law, detail, trail)

    def is_broken(self) -> bool:
        """Look for the fault; what the specification remembers of plans is forgotten before and after."""
        for remembered in (has_room, fits_alone):
            remembered.cache_clear()
        try:
            return self.run().violation is not None
        finally:
            for remembered in (has_room, fits_alone):
                remembered.cache_clear()


def judged(law: str, profile: Profile) -> GateResult:
    fault, started = FAULTS[law], perf_counter()
    (world,) = [each for each in WORLDS if each.scope.name == fault["refuted_by"]]
    explorer = OneLaw(world, alone=True, max_transitions=MOST)
    explorer.law = law
    return row("laws", law, fault["wrong"], "LAW-1", missed(fault, explorer.is_broken), started)


GATE = Listed(FAULTS, judged)
