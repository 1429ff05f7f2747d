"""Property: the gate of offloading passes what is right, visits what it says, and prints what can be run.

How: a right manager and a right chain reach what the specification alone reaches; a scope under exchanged names of keys
must have the same states; counterexamples are run as the Python that they are printed as.
Not covered: that wrong implementations are caught (known bugs, mutants).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

import blockwright.offload
from blockwright.offload import ARCOffloadingManager, CPUBackend, LRUOffloadingManager, OffloadChain
from blockwright_conformance.checker.explore import Explorer
from blockwright_conformance.checker.history import run_machine, walk
from blockwright_conformance.checker.lockstep import act
from blockwright_conformance.checker.world import World
from blockwright_conformance.gates import Profile, gate
from blockwright_conformance.offload import tier_adapter as offload_tiers
from blockwright_conformance.offload.chain import (
    CHAIN_EVERYTHING,
    Cancel,
    ChainAction,
    ChainWorld,
    Compute,
    Land,
    Load,
    Store,
    Touch,
    alike,
    plain,
)
from blockwright_conformance.offload.chain_adapter import ChainUnderTest
from blockwright_conformance.offload.gate import GATE
from blockwright_conformance.offload.scopes import (
    CHAIN_PR,
    CHAIN_PROFILES,
    FIRST,
    KEYS,
    SECOND,
    TIER_PR,
    TIER_PROFILES,
    ChainScope,
    TierScope,
    chain_scope,
    lists,
)
from blockwright_conformance.offload.tier import TIER_EVERYTHING, TierCall, TierWorld
from blockwright_conformance.offload.tier_adapter import TierUnderTest
from blockwright_conformance.rows import covered
from blockwright_lab.data_movement.offload_scopes import OFFLOAD_HISTORIES, histories
from blockwright_spec.offload.chain_state import Chain, ChainConfig, Kind
from blockwright_spec.offload.tier_state import Key, Phase, phase_of

P, Q, R, _ = KEYS
SMALL_TIER = TierScope("small", "LRU", 2, (*lists(2, 1), KEYS[:2], KEYS[1:3]), readers=2)
SMALL = chain_scope("small", (1, 1), reserve=(1,), through=True, loads=(FIRST[:1], SECOND[1:]))


# --- one tier


class Replayed(TierUnderTest):
    """Copied by making all calls again: a subclass in plain Python does not say how it is copied."""

    manager_type: type[LRUOffloadingManager] = LRUOffloadingManager

    def __init__(self, name: str, capacity: int, recovered: Sequence[Key] = ()) -> None:
        super().__init__(name, capacity, recovered)
        self.foreign = True
        self.manager = self.manager_type(CPUBackend(16, capacity), enable_events=True)

    def check(self) -> None:
        self.manager.check()


def test_a_right_manager_passes_and_nothing_is_left_out() -> None:
    alone, both = Explorer(TierWorld(SMALL_TIER), alone=True).run(), Explorer(TierWorld(SMALL_TIER, Replayed)).run()
    assert both.violation is None
    assert (both.states, both.fired) == (alone.states, alone.fired)
    assert GATE.report(both).violations == 0


def test_a_policy_that_evicts_what_is_read_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = TierWorld(TierScope("one place", "ARC", 1, lists(3, 1)))
    adapter, now = world.model(), world.initial()
    for call in (TierCall("prepare_store", (P,)), TierCall("complete_store", (P,)), TierCall("prepare_load", (P,))):
        outcome, faults, *_ = act(world, adapter, now, call)
        assert faults == []
        now = outcome.state
    other = ARCOffloadingManager(CPUBackend(16, 1))
    other.prepare_store([P])
    other.complete_store([P])
    monkeypatch.setattr(adapter, "manager", other)
    assert act(world, adapter, now, TierCall("prepare_store", (Q,))).faults


def test_a_foreign_backends_statuses_are_compared() -> None:
    adapter = TierUnderTest("LRU foreign", 2)
    adapter.call("prepare_store", [P])
    adapter.check()
    adapter.manager.backend.blocks[0].ref_cnt = 3
    with pytest.raises(Exception, match=r"TIER-3|statuses"):
        adapter.check()


def test_a_foreign_backend_notices_a_place_freed_twice() -> None:
    backend = offload_tiers.foreign_backend(blockwright.offload)(1)
    (status,) = backend.allocate_blocks([P])
    backend.free(status)
    with pytest.raises((AssertionError, KeyError)):
        backend.free(status)


# --- a chain


def together(*actions: ChainAction) -> tuple[Chain, ChainUnderTest]:
    """A state and a chain after the same actions."""
    world = ChainWorld(SMALL)
    state, adapter = world.initial(), world.model()
    for action in actions:
        outcome, faults, *_ = act(world, adapter, state, action)
        assert faults == []
        state = outcome.state
    return state, adapter


def test_a_right_chain_passes_and_nothing_is_left_out() -> None:
    alone, both = Explorer(ChainWorld(SMALL), alone=True).run(), Explorer(ChainWorld(SMALL)).run()
    assert both.violation is None
    assert (both.states, both.fired) == (alone.states, alone.fired)
    assert GATE.report(both).violations == 0


class Landing(NamedTuple):
    """A transfer of a key under way has ended."""

    kind: Kind
    key: Key
    success: bool = True

    def of(self, state: Chain) -> Land:
        """The action in a state."""
        found = (at for at, each in enumerate(state.transfers) if each.kind is self.kind and self.key in each.keys)
        return Land(next(found), self.success)


DEEP: tuple[ChainAction | Landing, ...] = (
    *(Compute(at, key) for at, key in enumerate((P, Q, R))),
    Store((P,), (0,)),
    Landing(Kind.STORE, P),
    Store((Q,), (1,)),
    Landing(Kind.STORE, Q),
    Landing(Kind.DEMOTE, P),
    Store((R,), (2,)),
    Landing(Kind.STORE, R),
    Landing(Kind.DEMOTE, Q),
    Load((P,), (0,)),
    Landing(Kind.PROMOTE, P, False),
    Compute(0, P),
    Store((P,), (0,)),
    Landing(Kind.STORE, P),
    Landing(Kind.DEMOTE, R),
    Compute(1, Q),
    Store((Q,), (1,)),
)
"""A block is on its way down from the middle tier and up at once; up fails, and it is stored anew meanwhile."""


def test_what_is_found_bad_below_is_kept_above() -> None:
    slices = tuple(((key, (at,)),) for at, key in enumerate((P, Q, R)))
    world = ChainWorld(ChainScope("deep", ChainConfig((2, 2, 1), 3, reserve=(1, 1)), slices, slices))
    state, adapter = world.initial(), world.model()
    for each in DEEP:
        action = each.of(state) if isinstance(each, Landing) else each
        outcome, faults, *_ = act(world, adapter, state, action)
        assert (faults, outcome.refusal) == ([], None)
        state = outcome.state
    assert [phase_of(each, P) for each in state.tiers] == [Phase.READY, Phase.DOOMED, Phase.WRITING]


class Everywhere(Explorer[Chain, ChainUnderTest]):
    """Keeps every state it visits."""

    states: list[Chain]

    def level(self, frontier: list[Any]) -> Any:
        self.states = [*getattr(self, "states", []), *(node.state for node in frontier)]
        return super().level(frontier)


def test_exchanged_keys_are_alike_where_the_scope_is() -> None:
    scope = chain_scope("symmetric", (2, 1), reserve=(1,))
    assert list(alike(scope)) == [{Q: R, R: Q}]
    assert list(alike(replace(scope, loads=(FIRST,)))) == []
    apart = ChainWorld(scope)
    apart.alike = []
    once, each = Everywhere(ChainWorld(scope), alone=True), Everywhere(apart, alone=True)
    once.run()
    each.run()
    names = {Q: R, R: Q}
    exchanged = [*map(repr, (plain(state, how) for state in once.states for how in ({}, names)))]
    assert set(exchanged) == {repr(plain(state, {})) for state in each.states}


# --- what must happen


def test_a_missing_action_fails_the_gate() -> None:
    rows = [
        GATE.report(Explorer(ChainWorld(SMALL), alone=True).run()),
        GATE.report(Explorer(TierWorld(SMALL_TIER), alone=True).run()),
    ]
    everything = TIER_EVERYTHING | CHAIN_EVERYTHING
    row = covered("coverage", "all", rows, everything)
    assert row.law == "SEEN-1"
    assert "chain: TOO_MANY" in row.detail
    full = replace(rows[0], fired=dict.fromkeys(everything, 1))
    assert covered("coverage", "all", [full], everything).violations == 0


def test_names_of_scopes_differ() -> None:
    for profile in ("quick", "pr", "nightly"):
        names = [each.name for each in TIER_PROFILES[profile]] + [each.name for each in CHAIN_PROFILES[profile]]
        names += OFFLOAD_HISTORIES
        assert len(set(names)) == len(names)


def test_the_gate_runs_in_quick() -> None:
    run, size = gate("offload", Profile("quick", jobs=1))
    steps: list[str] = []

    def progress(count: int = 1, note: str = "") -> None:
        steps.append(note)

    rows = run(Profile("quick", jobs=1), progress)
    assert len(rows) == len(steps) == size
    assert not any(row.violations for row in rows)


def test_other_managers_have_no_tiers_to_test() -> None:
    other = Profile(implementation="somewhere:Else")
    run, size = gate("offload", other)
    assert (run(other, lambda count=1, note="": None), size) == ([], 0)


# --- counterexamples


def test_counterexamples_of_chains_are_python() -> None:
    actions = (Store((P,), (0,)), Land(0), Land(0, False), Load((P, P), (0, 0)), Load((P,), (0,)), Touch((P,)))
    space: dict[str, Any] = {}
    lines = ChainWorld(SMALL).script(actions, "REF-0: one; two").splitlines()
    refused = [line for line in lines if line.endswith("# refused")]
    exec("\n".join(line for line in lines if line not in refused), space)
    assert len(refused) == 1
    ours: OffloadChain = space["chain"]
    _, adapter = together(*actions)
    assert (ours.pins(), ours.lookup([P])) == (adapter.chain.pins(), adapter.chain.lookup([P]))
    late = replace(SMALL, eager=False)
    exec(ChainWorld(late).script((Store((P,), (0,)), Cancel(0))), space)
    assert space["chain"].pins() == {}


def test_counterexamples_of_tiers_are_python() -> None:
    for scope in (SMALL_TIER, replace(SMALL_TIER, recovered=(P,), manager="ARC foreign")):
        space: dict[str, Any] = {}
        calls = (TierCall("prepare_store", (Q,)), TierCall("complete_store", (Q,)))
        exec(TierWorld(scope).script(calls, "one; two"), space)
        assert space["manager"].lookup([Q]) == 1


def test_every_refusal_of_the_scopes_is_told_as_refused() -> None:
    world = ChainWorld(SMALL)
    state = world.initial()
    assert world.meaning(state, Load((P,), (0,))).refusal is not None
    assert world.meaning(state, Touch((P,))).refusal is None


# --- long histories


@pytest.mark.parametrize("world", [TierWorld(SMALL_TIER), ChainWorld(SMALL)], ids=["tier", "chain"])
def test_walks_and_machines_go_through_worlds(world: World[Any, Any]) -> None:
    assert walk(world, seed=1, steps=100).fired
    assert run_machine(world, 3, 20)


@pytest.mark.parametrize("name", OFFLOAD_HISTORIES)
def test_large_chains_are_gone_through(name: str) -> None:
    row = histories(name, "quick")
    assert (row.violations, row.detail) == (0, "")
    assert {"chain: store landed", "chain: Land"} <= row.fired.keys()


def test_every_scope_of_every_day_is_small() -> None:
    assert all(sum(each.config.capacities) <= 5 for each in CHAIN_PR)
    assert all(each.capacity <= 3 for each in TIER_PR)
