"""Property: every two features of a manager that do not exclude each other meet in a generated world.

How: the array against its table and the manager's refusals; a core in which a layer that runs ahead writes over a state
that another request has hit.
Not covered: whether each pair happens (gate `crossings`).
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from blockwright.errors import BlockwrightError
from blockwright.exclusions import EXCLUSIONS
from blockwright_conformance import Capabilities
from blockwright_conformance.checker.history import HistoryError
from blockwright_conformance.gates import OURS, Profile
from blockwright_conformance.kv_cache import crossings
from blockwright_conformance.kv_cache.world import KVCacheWorld
from blockwright_lab.known_bugs.changes import Change
from blockwright_lab.known_bugs.variants import variant
from blockwright_lab.known_bugs.worlds import adapter_on

REASONS = {each.why for each in EXCLUSIONS}
REFUSED = [sorted(pair) for pair, why in crossings.excluded().items() if why in REASONS and "explain" not in pair]

FEW = Capabilities(frozenset({"full", "sliding"}), frozenset({"chunks", "later"}), frozenset({"caching", "eagle"}))


@pytest.mark.parametrize(("can", "strength"), [(None, 2), (FEW, 2), (FEW, 3)])
def test_all_that_can_meet_is_in_a_world_that_can_be_made(can: Capabilities | None, strength: int) -> None:
    array = crossings.Array(can)
    worlds = array.arrayed(strength)
    assert (len(array.able(2)), len(array.items)) == ((1_963, 65) if can is None else (29, 9))
    assert [each for each in array.able(strength) if not any(items.issuperset(each) for items in worlds)] == []
    assert [items for items in worlds if not array.can_meet(items)] == []
    for items in worlds:
        KVCacheWorld(array.world_of(items)).model()


@pytest.mark.parametrize("pair", sorted(REFUSED))
def test_a_manager_refuses_the_pairs_of_its_options_that_are_left_out(pair: list[str]) -> None:
    array = crossings.array_of(OURS)
    items = array.whole(frozenset(pair))
    scope = array.world_of(items | {"block 2"} | ({"full"} if items.isdisjoint(crossings.KINDS) else set()))
    with pytest.raises(BlockwrightError):
        KVCacheWorld(scope).model()


def test_a_manager_of_another_make_is_walked_in_worlds_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "examples" / "toy_manager")
    for name, fault in (("adapter:ToyAdapter", ""), ("adapter:EagerAdapter", "dictionary is empty")):
        *rows, pairs = crossings.GATE.run(Profile(jobs=1, implementation=name), lambda count=1, note="": None)
        assert {fault in each.detail for each in rows if each.violations} == ({True} if fault else set())
        assert fault or (pairs.passed, pairs.tried, pairs.violations) == (15, 15, 0)


def test_a_declared_pair_that_never_happens_fails_whoever_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "examples" / "toy_manager")

    def walking(scope: Any, items: frozenset[str], *_: Any) -> Any:
        return lambda: Counter(map(crossings.named, crossings.together(items - {"reset"}, 2)))

    monkeypatch.setattr(crossings, "walking", walking)
    *rows, pairs = crossings.GATE.run(
        Profile(jobs=1, implementation="adapter:ToyAdapter"), lambda count=1, note="": None
    )
    assert any(each.scope == "full, block 4: crossing chunks, reset" for each in rows)  # a world of its own
    assert (pairs.law, pairs.passed, pairs.tried, "chunks x reset" in pairs.detail) == ("SEEN-1", 9, 15, True)


def test_a_fault_between_features_is_found() -> None:
    forgetful = variant(Change("note_shared", "running.is_forked = True", "pass"))
    names = "ahead, block 3, keeping, learned, trim, abort, forget, hold, adopt, start, whole, plan"
    items = frozenset(names.split(", "))
    with pytest.raises(HistoryError, match="REF-0: replaced entries: expected"):
        crossings.walking(crossings.array_of(OURS).world_of(items), items, 4, adapter_on(forgetful))()
