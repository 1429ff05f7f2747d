"""Which options of a manager exclude each other, and why: the one table that errors and the documentation go by."""

from collections.abc import Mapping
from typing import NamedTuple

from blockwright.errors import ExcludedOptionsError


class Exclusion(NamedTuple):
    """Two options that cannot be given together. An option with a value stands for that value alone.

    Attributes:
        option, other: names, as the constructor of the manager has them.
        why: the reason, for the error and the page of features.
    """

    option: str
    other: str
    why: str


UNIT, ORDER, HINTS = "prefix_match_unit", "eviction_order", "retain and release_prefix"

EXCLUSIONS = (
    Exclusion("publish_on_settlement", "overlap_steps=False", "without steps in flight there is nothing to settle"),
    Exclusion("enable_kv_cache_events", "enable_caching=False", "nothing is published, so nothing is reported"),
    Exclusion("explain_evictions", "enable_caching=False", "nothing is cached that could be lost"),
    Exclusion("track_evictions", "enable_caching=False", "nothing is cached that could be evicted"),
    Exclusion("shares", "enable_caching=False", "nothing is cached that could belong to a tenant"),
    Exclusion("keep_wanted", "enable_caching=False", "nothing is cached that could be kept"),
    Exclusion(UNIT, "enable_caching=False", "nothing is found, so no hit ends anywhere"),
    Exclusion(UNIT, "use_eagle", "what a draft head gives up is a whole block; `key_lookahead` serves it without"),
    Exclusion(ORDER, "enable_caching=False", "nothing is cached that it could choose from"),
    Exclusion(ORDER, "shares", "both say whose block goes next, and the order has the last word"),
    Exclusion(ORDER, "hint_guard", "what it guards against are hints, which the order does not hear"),
    Exclusion(ORDER, HINTS, "both say which block goes next, and the order has the last word"),
    Exclusion("passing_spares", "shares", "shares choose among all that is passing"),
    Exclusion("passing_spares", ORDER, "spared blocks go by their age, and under an order nothing does"),
    Exclusion("runs_ahead=True", "overlap_steps", "such layers keep the states of steps in flight themselves"),
)


def refuse_exclusions(given: Mapping[str, bool]) -> None:
    """Raise an `ExcludedOptionsError` for given options that exclude each other; it names the reason and remedy."""
    for option, other, why in EXCLUSIONS:
        if given.get(option) and given.get(other):
            raise ExcludedOptionsError(f"{option}: not together with {other}: {why}; leave one of them out")
