"""Mutants of the block tables with copy-on-write: their sources, and where they are at work."""

from . import paged_places
from .equivalents_paging import EQUIVALENT, RULES
from .exhibit import Where
from .mutant_realm import Realm

FILES: tuple[str, ...] = ()

PLACES: tuple[Where, ...] = (
    paged_places.RETURNS,
    paged_places.ACCESS,
    paged_places.EVICTIONS,
    paged_places.SWAPS,
    paged_places.NAIVE,
    paged_places.FORKS,
    paged_places.appends_under_a_window,
    paged_places.comes_back,
)

LEFT_OUT: dict[str, str] = {}

REALM = Realm("paging", FILES, PLACES, EQUIVALENT, RULES, LEFT_OUT)
