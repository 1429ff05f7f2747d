"""The explorer of one tier: every reachable state of a scope, every call in lock-step.

Which blocks are evicted is open: the specification is told what the manager chose, and rejects what is not legal; a
manager that must evict the least recently used is held to that.
"""

import marshal
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

from blockwright_spec.offload import tier_calls as calls
from blockwright_spec.offload.tier_calls import (
    IllegalVictimsError,
    TierDone,
    TierOutcome,
    TierReason,
    TierRefusal,
    Victims,
)
from blockwright_spec.offload.tier_laws import TIER_LAWS, TIER_STEP_LAWS
from blockwright_spec.offload.tier_state import Key, Phase, Tier, entry_of, tier

from ..checker.search import Node, Search
from .scopes import TierScope
from .tier_adapter import Stored, TierUnderTest, expected_of, shown_by


class TierCall(NamedTuple):
    """A call on a tier: its public name, the keys it names, and whether what it completes went well."""

    name: str
    keys: tuple[Key, ...]
    success: bool = True


class TierNow(NamedTuple):
    """A state of a tier, and what the policy of the manager remembers besides."""

    tier: Tier
    policy: object = None


class TierTold(NamedTuple):
    """What comes of a call: the states before it and after it, and its outcome."""

    now: TierNow
    before: Tier
    outcome: TierOutcome


def told_of(before: Tier, call: TierCall, victims: Victims = calls.oldest) -> TierTold:
    """Tell what the specification says of a call; who completes a store has written its blocks."""
    state = before
    match call.name:
        case "touch":
            outcome: TierOutcome = calls.touch(state, call.keys)
        case "prepare_load":
            outcome = calls.prepare_load(state, call.keys)
        case "complete_load":
            outcome = calls.complete_load(state, call.keys, call.success)
        case "prepare_store":
            outcome = calls.prepare_store(state, call.keys, victims)
        case "complete_store":
            state = completely_written(state, call.keys) if call.success else state
            outcome = calls.complete_store(state, call.keys, call.success)
        case _:
            outcome = calls.drop(state, call.keys)
    return TierTold(TierNow(outcome.state if isinstance(outcome, TierDone) else before), state, outcome)


def completely_written(state: Tier, keys: tuple[Key, ...]) -> Tier:
    """Write the blocks of keys that are to be written."""
    for key in keys:
        entry = entry_of(state, key)
        if entry is not None and entry.phase is Phase.WRITING:
            state = calls.written(state, entry.place, key)
    return state


def tier_calls_of(scope: TierScope, state: Tier) -> Iterator[TierCall]:
    """Give every call of a scope in a state, wrong ones only if it makes those, and none that adds too many readers."""
    for keys in scope.named:
        for call in calls_naming(keys):
            entries = (entry_of(state, key) for key in keys if call.name == "prepare_load")
            if all(entry is None or entry.readers + keys.count(entry.key) <= scope.readers for entry in entries) and (
                scope.misuse or not is_wrong(state, call)
            ):
                yield call


def calls_naming(keys: tuple[Key, ...]) -> Iterator[TierCall]:
    """Give every call that names some keys."""
    yield from (TierCall(name, keys) for name in ("touch", "prepare_store", "prepare_load", "remove"))
    for success in (True, False):
        yield from (TierCall(name, keys, success) for name in ("complete_load", "complete_store"))


def is_wrong(state: Tier, call: TierCall) -> bool:
    """Tell whether a call would be refused for more than want of room."""
    outcome = told_of(state, call).outcome
    return isinstance(outcome, TierRefusal) and outcome.reason is not TierReason.NO_ROOM


def perform(adapter: TierUnderTest, call: TierCall) -> tuple[Any, Exception | None]:
    """Make a call, and give its answer or its refusal."""
    arguments = (list(call.keys), call.success) if call.name.startswith("complete") else (list(call.keys),)
    try:
        return adapter.call(call.name, *arguments), None
    except tuple(adapter.errors.values()) as error:
        return None, error


def stored(answer: Any) -> Stored:
    """Give what prepared a store."""
    spec = answer.store_spec
    return Stored(tuple(answer.block_hashes_to_store), tuple(spec.block_ids), tuple(answer.block_hashes_evicted))


def tier_act(adapter: TierUnderTest, now: TierNow, call: TierCall, keys: tuple[Key, ...]) -> tuple[TierTold, list[str]]:
    """Perform a call on a manager and on the specification, and name all differences; the manager moves on."""
    answer, error = perform(adapter, call)
    victims = calls.oldest
    if call.name == "prepare_store" and answer is not None and not adapter.ordered:
        chosen = stored(answer).evicted
        victims = lambda candidates, count: chosen  # noqa: E731  # recorded
    try:
        told = told_of(now.tier, call, victims)
    except IllegalVictimsError as wrong:
        return told_of(now.tier, call), [f"evicted: {wrong} may not go, or not so many"]
    faults = list(answer_faults(adapter, call, told, answer, error))
    events = told.outcome.events if isinstance(told.outcome, TierDone) and not adapter.silent else ()
    wanted, shown = expected_of(told.now.tier, keys, adapter.ordered), shown_by(adapter.manager, keys, adapter.ordered)
    for name, want, found in (*zip(wanted._fields, wanted, shown, strict=True), ("events", events, adapter.events())):
        if want != found:
            faults.append(f"{name}: expected {want}, found {found}")
    return told._replace(now=told.now._replace(policy=adapter.policy())), faults


def answer_faults(
    adapter: TierUnderTest, call: TierCall, told: TierTold, answer: Any, error: Exception | None
) -> Iterator[str]:
    """Name the differences in what a call answered."""
    outcome = told.outcome
    if isinstance(outcome, TierRefusal):
        wanted = adapter.errors.get(outcome.reason)
        if wanted is None and (error is not None or answer is not None):
            yield f"expected None, found {error or answer}"
        elif wanted is not None and type(error) is not wanted:
            yield f"expected {wanted.__name__}, found {type(error).__name__}: {error}"
    elif error is not None:
        yield f"refused ({type(error).__name__}: {error}); expected success"
    elif call.name == "prepare_load" and tuple(answer.block_ids) != outcome.places:
        yield f"places: expected {outcome.places}, found {answer.block_ids}"
    elif call.name == "prepare_store" and (want := Stored(outcome.keys, outcome.places, outcome.evicted)) != stored(
        answer
    ):
        yield f"store: expected {want}, found {stored(answer)}"


class TierExplorer(Search[TierNow, TierCall, TierUnderTest, TierTold]):
    """Explores one scope, with a manager in lock-step or the specification alone (no factory)."""

    def __init__(
        self,
        scope: TierScope,
        factory: Callable[..., TierUnderTest] | None = TierUnderTest,
        max_transitions: int | None = None,
    ) -> None:
        adapter = factory(scope.manager, scope.capacity, scope.recovered) if factory else None
        start = TierNow(tier(scope.capacity, scope.recovered), adapter.policy() if adapter else None)
        super().__init__(scope, Node(start, adapter), max_transitions)
        self.scope = scope

    def enabled(self, state: TierNow) -> Iterator[TierCall]:
        """Give every call that the scope allows in a state."""
        return tier_calls_of(self.scope, state.tier)

    def reached(self, told: TierTold) -> TierNow:
        """Give the state that a call leads to."""
        return told.now

    def digest(self, state: TierNow) -> bytes:
        """Give a name of a state: all of it, but for contents and announcements that laws derive from the rest."""
        entries = [(each.key, each.place, each.phase.name, each.readers) for each in state.tier.entries]
        return blake2b(marshal.dumps((entries, state.tier.freed, repr(state.policy)), 2), digest_size=16).digest()

    def act(self, adapter: TierUnderTest | None, state: TierNow, action: TierCall) -> tuple[TierTold, list[str]]:
        """Perform a call; a manager that fails in a way of its own has a fault."""
        if adapter is None:
            return told_of(state.tier, action), []
        try:
            return tier_act(adapter, state, action, self.scope.keys)
        except Exception as error:
            return told_of(state.tier, action), [f"{type(error).__name__}: {error}"]

    def count(self, action: TierCall, told: TierTold) -> None:
        """Record that a call happened, or why it did not."""
        refusal = told.outcome if isinstance(told.outcome, TierRefusal) else None
        how = "" if action.success else " (failed)"
        self.result.fired[f"tier: {refusal.reason.name}" if refusal else f"tier: {action.name}{how}"] += 1

    def steps_fault(
        self, node: Node[TierNow, TierUnderTest], told: TierTold, after: Node[TierNow, TierUnderTest]
    ) -> None:
        """Check the laws of calls."""
        for law in TIER_STEP_LAWS if isinstance(told.outcome, TierDone) else ():
            if not law.holds(told.before, told.outcome):
                self.fail(law.id, law.statement, after)

    def state_fault(self, node: Node[TierNow, TierUnderTest]) -> None:
        """Check the laws of states, the manager's self-check, and what it finds."""
        for law in TIER_LAWS:
            if not law.holds(node.state.tier):
                self.fail(law.id, law.statement, node)
        if node.adapter is None:
            return
        try:
            node.adapter.check()
            found = [node.adapter.manager.lookup(list(keys)) for keys in self.scope.named]
        except Exception as error:
            self.fail(getattr(error, "law", "REF-0"), f"{type(error).__name__}: {error}", node)
        else:
            if found != (wanted := [calls.lookup(node.state.tier, keys) for keys in self.scope.named]):
                self.fail("REF-0", f"lookup: expected {wanted}, found {found}", node)


TIER_EVERYTHING = frozenset(f"tier: {reason.name}" for reason in TierReason) | frozenset(
    f"tier: {name}"
    for name in ("touch", "prepare_load", "complete_load", "prepare_store", "complete_store", "remove")
    for name in (name, *([f"{name} (failed)"] if name.startswith("complete") else ()))
)
"""What must happen in some scope of a profile: every call, and every refusal."""
