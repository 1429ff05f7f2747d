"""The gate of block tables: every reachable transition of its scopes."""

from blockwright._terminal import Advance

from ..gates import GateResult, Profile
from ..rows import Exploration
from .scopes import PAGED_PROFILES, PagedScope
from .world import EVERYTHING, TablesWorld

GATE = Exploration("paged", "block tables", PAGED_PROFILES.__getitem__, TablesWorld, EVERYTHING)
size = GATE.size


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Explore the profile's scopes, the largest first."""
    return GATE.run(profile, progress, task, weight)


def weight(each: PagedScope) -> tuple[int, int, int]:
    """Guess how large a scope is, so that the largest start first."""
    return each.config.caching, len(each.outputs) * len(each.lookaheads), len(each.calls) + each.config.num_gpu


def task(name: str, profile: str) -> GateResult:
    """Explore the scope of a name."""
    return GATE.row(name, profile)
