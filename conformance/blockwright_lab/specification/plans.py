"""The laws of plans in a world of their own: right plans of a device's memory, each named by its number.

The laws are wrong too where a mutant is put in, so a right plan is judged with numbers that were found once: what a
request holds, the waste, the blocks. A wrong definition says that one of them is not right.
"""

from dataclasses import dataclass
from fractions import Fraction

from blockwright_spec.reads import Chunked, Mamba, Sliding
from blockwright_spec.worker.storage import Layer, Limits, PlannedGroup, StoragePlan
from blockwright_spec.worker.storage_laws import STORAGE_LAWS

from .search import Came, Judge, World
from .workers import RIGHT

STATES = StoragePlan(
    layers=(Layer(Mamba(2), 8, 14), Layer(Mamba(2), 8, 64), *((Layer(Chunked(8), 4, 24),) * 3)),
    limits=Limits(tokens=44, step=17),
    memory=2592,
    unit=4,
    loss=Fraction(1, 10),
    groups=(
        PlannedGroup((1,), 8, 32),
        PlannedGroup((0,), 8, 82),
        *(PlannedGroup((layer,), 4, 0) for layer in (2, 3, 4)),
    ),
    pages=(96,),
    num_blocks=27,
    request_blocks=26,
)
"""Two groups of states with drafts, and three of chunks."""

AHEAD = StoragePlan(
    layers=(Layer(Sliding(10), 2, 12),) * 2,
    limits=Limits(tokens=15, step=3, lookahead=2, flights=3),
    memory=408,
    unit=1,
    loss=Fraction(1, 10),
    groups=(PlannedGroup((0,), 2, 0), PlannedGroup((1,), 2, 0)),
    pages=(24,),
    num_blocks=17,
    request_blocks=16,
)
"""Steps in flight, and slots asked for ahead."""

SHORT = StoragePlan(
    layers=(Layer(Mamba(2), 1, 13),) * 2,
    limits=Limits(tokens=16, step=14, lookahead=2),
    memory=144,
    unit=4,
    loss=Fraction(1),
    groups=(PlannedGroup((0,), 1, 3), PlannedGroup((1,), 1, 3)),
    pages=(16,),
    num_blocks=9,
    request_blocks=8,
)
"""States that every token of a step could leave, were they not jumped over."""

RIGHT_PLANS = (RIGHT, STATES, AHEAD, SHORT)
"""Plans that break no law."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """Plans to judge."""

    name: str
    plans: tuple[StoragePlan, ...]


def shelf(of: Shelf) -> World:
    """Return the world in which one may look at any of some plans."""

    def chosen(_now: StoragePlan | None, at: int) -> Came:
        return Came((), of.plans[at])

    return World(
        of.name,
        lambda: None,
        lambda now: range(len(of.plans)) if now is None else (),
        chosen,
        lambda: lambda now: -1 if now is None else of.plans.index(now),
        tuple(Judge(law.id, lambda now, law=law: now is None or law.holds(now)) for law in STORAGE_LAWS),
        (),
    )
