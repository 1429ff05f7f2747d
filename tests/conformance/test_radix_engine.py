"""Property: SGLang's prefix tree, unmodified, keeps the laws of a tree but for what is listed, and damage to it shows.

Tested on the published files where `make bench-peers` has fetched them (folder .peers, or BLOCKWRIGHT_PEERS; skipped
without, and without torch or msgspec): small worlds explored in part, walks of larger ones, and damage to the tree, its
components or its allocators, each of which must break a law named for it. Not covered: whole worlds (for the command
to explore); the tree core in Rust; the host's tier; keys of pairs of tokens.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("msgspec")

from blockwright_conformance.capabilities import judge
from blockwright_lab.peers import radix_runs, sglang_engine
from blockwright_lab.peers.engines import deviations_of
from blockwright_lab.peers.radix_explore import RadixExplorer, walk
from blockwright_lab.peers.sglang_radix import Do, RadixScope

PEERS = Path(os.environ.get("BLOCKWRIGHT_PEERS") or Path(__file__).resolve().parents[2] / ".peers")
needs_tree = pytest.mark.skipif(
    not (PEERS / "sglang").is_dir(), reason="the engine's files are not there: make bench-peers"
)
pytestmark = needs_tree

WORLDS = {each.name: each for each in radix_runs.LARGE}
FULL, WINDOW = "full, 10 slots", "full and sliding, window 2, 12 slots"
STATES = "full and mamba, 12 slots, 5 states"

DEVIATIONS = deviations_of("sglang-0.5.23")


@pytest.fixture
def engine() -> sglang_engine.SglangEngine:
    return sglang_engine.load(PEERS)


@pytest.mark.parametrize("scope", radix_runs.SMALL, ids=lambda scope: scope.name)
def test_small_worlds_have_no_finding_that_is_not_listed(scope: RadixScope) -> None:
    explored = radix_runs.explore(scope, PEERS, 250)
    assert explored.states > 10
    assert not judge(explored.findings, DEVIATIONS).unlisted


def test_lookups_that_copy_a_state_are_not_free_of_effects() -> None:
    explored = radix_runs.explore(radix_runs.SMALL[-1], PEERS, None)
    assert not (verdict := judge(explored.findings, DEVIATIONS)).unlisted
    assert {each.name for each, _ in verdict.known} == {each.name for each in DEVIATIONS}
    shortest = min(explored.findings, key=lambda finding: finding.steps)
    assert shortest.law == "LOOKUP-1"
    assert "cache.match_prefix(MatchPrefixParams(key=key([1, 1]), cow_mamba=True))" in shortest.script


@pytest.mark.parametrize("world", WORLDS.values(), ids=lambda world: world.name)
def test_walks_have_no_finding(world: RadixScope) -> None:
    explored = radix_runs.explore(radix_runs.RadixWalk(world, 150, 3), PEERS, None)
    assert explored.transitions == 450
    assert explored.findings == ()


def component(engine: sglang_engine.SglangEngine, name: str) -> Any:
    return getattr(engine.modules[f"sglang.srt.mem_cache.unified_cache.components.{name}"], f"{name.title()}Component")


def no_lock(engine: Any) -> None:
    component(engine, "full").acquire_component_lock = lambda self, node, result, lock_host=False: result


def leaked_duplicates(engine: Any) -> None:
    engine.cache.UnifiedRadixCache._apply_cache_actions = lambda self, actions: actions.clear()


def shorter_window(engine: Any) -> None:
    swa = engine.modules["sglang.srt.mem_cache.unified_cache.components.swa"].SWAComponent
    swa.create_match_validator = lambda self, match_device_only=False: lambda node: True


def any_state(engine: Any) -> None:
    component(engine, "mamba").create_match_validator = lambda self, match_device_only=False: lambda node: True


def state_moves_up(engine: Any) -> None:
    def split(self: Any, new_parent: Any, child: Any) -> None:
        kind = self.component_type
        new_parent.component_data[kind].value = child.component_data[kind].value

    component(engine, "mamba").redistribute_on_node_split = split


def eviction_boasts(engine: Any) -> None:
    evict = engine.cache.UnifiedRadixCache._evict

    def boasting(self: Any, params: Any, *more: Any, **named: Any) -> Any:
        result = evict(self, params, *more, **named)
        result.num_tokens_evicted += 1
        return result

    engine.cache.UnifiedRadixCache._evict = boasting


def free_twice(engine: Any) -> None:
    free = engine.token.TokenToKVPoolAllocator.free

    def freeing(self: Any, index: Any) -> None:
        free(self, index)
        free(self, index[:1])

    engine.token.TokenToKVPoolAllocator.free = freeing


def split_one_early(engine: Any) -> None:
    match = engine.keys.RadixKey.match_at

    def shorter(self: Any, other: Any, offset: int, page_size: int = 1) -> int:
        found = int(match(self, other, offset, page_size))
        return found - page_size if found > page_size else found

    engine.keys.RadixKey.match_at = shorter


def size_forgotten(engine: Any) -> None:
    core = engine.modules["sglang.srt.mem_cache.unified_cache.unified_tree_core"].UnifiedTreeCore
    core.component_evictable_size = lambda self, kind: 0


def unheard_removals(engine: Any) -> None:
    engine.modules["sglang.srt.mem_cache.events"].KVCacheEventRecorder.record_remove = lambda *some, **named: None


@pytest.mark.parametrize(
    ("damage", "world", "laws"),
    [
        (no_lock, FULL, {"TREE-3"}),
        (leaked_duplicates, FULL, {"REF-1"}),
        (shorter_window, WINDOW, {"HIT-1"}),
        (any_state, STATES, {"HIT-1"}),
        (state_moves_up, STATES, {"PUB-1"}),
        (eviction_boasts, FULL, {"TREE-4"}),
        (free_twice, FULL, {"REF-1"}),
        (split_one_early, FULL, {"HIT-2"}),
        (size_forgotten, FULL, {"TREE-2"}),
        (unheard_removals, FULL, {"EV-1"}),
    ],
)
def test_damage_is_found(
    damage: Callable[[Any], None], world: str, laws: set[str], engine: sglang_engine.SglangEngine
) -> None:
    damage(engine)
    with engine.imported():
        found: set[str] = set()
        for seed in range(6):
            _, _, broken = walk(engine, WORLDS[world], seed, 200)
            found |= {law for law, _ in broken}
    assert found & laws, found


def test_a_way_is_cut_down_to_what_it_needs(engine: sglang_engine.SglangEngine) -> None:
    free_twice(engine)
    with engine.imported():
        way = [Do("admit", "1"), Do("match", "0"), Do("admit", "0"), Do("abort", "0")]
        assert radix_runs.shortened(engine, WORLDS[FULL], way, "REF-1") == (Do("admit", "0"), Do("abort", "0"))


def test_the_explorer_finds_a_shortest_way(engine: sglang_engine.SglangEngine) -> None:
    free_twice(engine)
    with engine.imported():
        explorer = RadixExplorer(engine, radix_runs.SMALL[0], 60)
        explorer.run()
    way = explorer.ways["REF-1", "abort"]
    assert [action.what for action in way] == ["admit", "abort"]
