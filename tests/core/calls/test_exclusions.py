"""Property: each pair of options that exclude each other is refused with its reason, and any other pair is not.

How: for every two options of the table a manager is made with both, over layers that allow each of them alone.
Not covered: what the options do together (scopes and random walks).
"""

from itertools import combinations
from typing import Any

import pytest

from blockwright import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheManager, MambaSpec, SlidingWindowSpec
from blockwright.errors import ExcludedOptionsError
from blockwright.exclusions import EXCLUSIONS, HINTS
from blockwright.kinds import KVCacheSpec

HEADS: Any = {"num_kv_heads": 1, "head_size": 1, "dtype": "float32"}
FULL, WINDOW = FullAttentionSpec(4, **HEADS), SlidingWindowSpec(4, **HEADS, sliding_window=5)
AHEAD = MambaSpec(4, shapes=((1,),), dtypes=("float32",), num_speculative_blocks=1, runs_ahead=True)


class First:
    def choose(self, candidates: Any) -> Any:
        return next(iter(candidates))


OPTIONS: dict[str, tuple[str, Any]] = {
    "enable_caching=False": ("enable_caching", False),
    "enable_kv_cache_events": ("enable_kv_cache_events", True),
    "eviction_order": ("eviction_order", First()),
    "explain_evictions": ("explain_evictions", True),
    "hint_guard": ("hint_guard", 0.5),
    "keep_wanted": ("keep_wanted", True),
    "overlap_steps": ("overlap_steps", True),
    "overlap_steps=False": ("overlap_steps", False),
    "passing_spares": ("passing_spares", 1),
    "prefix_match_unit": ("prefix_match_unit", 2),
    "publish_on_settlement": ("publish_on_settlement", True),
    "shares": ("shares", {"a": 1}),
    "track_evictions": ("track_evictions", True),
    "use_eagle": ("use_eagle", True),
    "verify_tokens": ("verify_tokens", True),
}
"""How each option of the table is given, but for a kind of layer and for calls."""


NEEDING = {
    ("enable_caching=False", "passing_spares"): "passing_spares needs keep_wanted, which the table has",
    ("passing_spares", "runs_ahead=True"): "passing_spares needs keep_wanted=True beside recurrent layers",
    ("publish_on_settlement", "runs_ahead=True"): "publish_on_settlement needs overlap_steps, which the table has",
}
"""Pairs of which one needs a third option."""


def make(specs: tuple[KVCacheSpec, ...], *names: str) -> KVCacheManager:
    """Make a manager with options, and with what they need to be given at all."""
    given = dict(OPTIONS[name] for name in names if name in OPTIONS)
    if "publish_on_settlement" in given:
        given.setdefault("overlap_steps", True)
    groups = [KVCacheGroupSpec([str(at)], spec) for at, spec in enumerate(specs)]
    manager = KVCacheManager(KVCacheConfig(16, groups), 64, **given)
    if HINTS in names:
        manager.advance_time(1)
    return manager


@pytest.mark.parametrize("pair", list(combinations((*OPTIONS, HINTS, "runs_ahead=True"), 2)), ids=" and ".join)
def test_a_pair_is_refused_exactly_if_the_table_has_it(pair: tuple[str, str]) -> None:
    specs: tuple[KVCacheSpec, ...] = (FULL, AHEAD) if "runs_ahead=True" in pair else (FULL, WINDOW)
    if OPTIONS.get(pair[0], ("",))[0] == OPTIONS.get(pair[1], (" ",))[0]:
        pytest.skip("two values of one option")
    if pair in NEEDING:
        pytest.skip(NEEDING[pair])
    listed = [each for each in EXCLUSIONS if {each.option, each.other} == {*pair}]
    if not listed:
        assert make(specs, *pair) is not None
        return
    with pytest.raises(ExcludedOptionsError) as caught:
        make(specs, *pair)
    (each,) = listed
    assert str(caught.value).startswith(f"{each.option}: not together with {each.other}: {each.why}; leave one")
