"""The gate of block tables: every reachable transition of its scopes."""

from ..rows import Exploration
from .scopes import PAGED_PROFILES, PagedScope
from .world import EVERYTHING, TablesWorld


def weight(each: PagedScope) -> tuple[int, int, int]:
    return each.config.caching, len(each.outputs) * len(each.lookaheads), len(each.calls) + each.config.num_gpu


GATE = Exploration(
    __name__, "paged", "all scopes of block tables", PAGED_PROFILES.__getitem__, TablesWorld, EVERYTHING, weight
)
