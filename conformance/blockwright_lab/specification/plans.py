"""The laws of plans in a world of their own: right plans of a device's memory, each named by its number.

The laws are wrong too where a mutant is put in, so a right plan is judged with numbers that were found once: what a
request holds, the waste, the blocks. A wrong definition says that one of them is not right.
"""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from blockwright_conformance.checker.world import Outcome
from blockwright_spec.worker.storage import Layer, Limits, PlannedGroup, StoragePlan
from blockwright_spec.worker.storage_laws import STORAGE_LAWS

from ..scopes import layer, plain
from .search import Alone, Judge

ROWS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("plans.toml").read_text(encoding="utf-8"))


def fields_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return what a row says of a plan, in the specification's terms."""
    made = {name: plain(value) for name, value in row.items()}
    if "layers" in made:
        named = ((layer(text), width) for text, width in made["layers"])
        made["layers"] = tuple(Layer(each.kind, each.block_size, width) for each, width in named)
    if "groups" in made:
        made["groups"] = tuple(PlannedGroup(*each) for each in made["groups"])
    if "limits" in made:
        made["limits"] = Limits(**made["limits"])
    return made | ({"loss": Fraction(made["loss"])} if "loss" in made else {})


RIGHT_PLANS = tuple(StoragePlan(**fields_of(row)) for row in ROWS["right"])
"""Plans that break no law."""

RIGHT = RIGHT_PLANS[0]
PLANS: dict[str, StoragePlan] = {law: replace(RIGHT, **fields_of(row)) for law, row in ROWS["altered"].items()}
"""For each law of plans, the first altered so that this law alone is broken."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """Plans to judge."""

    name: str
    plans: tuple[StoragePlan, ...]


class ShelfWorld(Alone):
    """The world in which one may look at any of some plans."""

    laws = tuple(Judge(law.id, lambda now, law=law: now is None or law.holds(now)) for law in STORAGE_LAWS)

    def initial(self) -> None:
        """Return what stands for no plan."""

    def enabled(self, state: StoragePlan | None) -> Iterator[int]:
        return iter(range(len(self.scope.plans)) if state is None else ())

    def meaning(self, state: StoragePlan | None, action: int, choice: Any = None) -> Outcome[Any]:
        return Outcome(self.scope.plans[action], ())

    def digest(self, state: StoragePlan | None) -> bytes:
        return b"" if state is None else b"%d" % self.scope.plans.index(state)
