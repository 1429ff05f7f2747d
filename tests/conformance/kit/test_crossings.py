"""Property: every two features of a manager that do not exclude each other meet in a generated world.

How: the array against its table and the manager's refusals; a core in which a layer that runs ahead writes over a state
that another request has hit.
Not covered: whether each pair happens (gate `crossings`).
"""

import pytest

from blockwright.errors import BlockwrightError
from blockwright.exclusions import EXCLUSIONS
from blockwright_conformance.checker.history import HistoryError
from blockwright_conformance.kv_cache import crossings
from blockwright_conformance.kv_cache.world import KVCacheWorld
from blockwright_lab.known_bugs.changes import Change
from blockwright_lab.known_bugs.variants import variant
from blockwright_lab.known_bugs.worlds import adapter_on

REASONS = {each.why for each in EXCLUSIONS}
REFUSED = [sorted(pair) for pair, why in crossings.excluded().items() if why in REASONS and "explain" not in pair]


@pytest.mark.parametrize("number", [0, 7])
def test_every_pair_is_in_a_world_that_can_be_made(number: int) -> None:
    worlds = crossings.arrayed(number)
    assert [pair for pair in crossings.wanted() if not any(pair <= items for items in worlds)] == []
    assert [items for items in worlds if not crossings.can_meet(items)] == []
    for items in worlds:
        KVCacheWorld(crossings.world_of(items)).model()


@pytest.mark.parametrize("pair", sorted(REFUSED))
def test_a_manager_refuses_the_pairs_of_its_options_that_are_left_out(pair: list[str]) -> None:
    items = crossings.whole(frozenset(pair))
    scope = crossings.world_of(items | {"block 2"} | ({"full"} if items.isdisjoint(crossings.KINDS) else set()))
    with pytest.raises(BlockwrightError):
        KVCacheWorld(scope).model()


def test_a_fault_between_features_is_found() -> None:
    forgetful = variant(Change("note_shared", "running.is_forked = True", "pass"))
    items = frozenset(
        "ahead, block 3, keeping, learned, trim, abort, forget, hold, adopt, start, whole, plan".split(", ")
    )
    with pytest.raises(HistoryError, match="REF-0: tables: expected"):
        crossings.walking(crossings.world_of(items), items, 4, adapter_on(forgetful))()
