"""The world of one tier: every call on a manager of offloaded blocks, wrong ones included.

Which blocks are evicted is open: the specification takes the manager's choice, and rejects illegal ones; a manager that
must evict the least recently used is held to that.
"""

import marshal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple
from hashlib import blake2b
from typing import Any, NamedTuple

from blockwright.offload import BlockHint
from blockwright_spec.hints import NOTHING_SAID, Said
from blockwright_spec.law import Law
from blockwright_spec.offload import tier_calls as calls
from blockwright_spec.offload.tier_calls import TierDone, TierOutcome, TierReason, TierRefusal, Victims
from blockwright_spec.offload.tier_laws import TIER_LAWS, TIER_STEP_LAWS
from blockwright_spec.offload.tier_resizing import resize_tier
from blockwright_spec.offload.tier_state import Event, Key, Phase, Tier, beyond, entry_of, tier

from ..checker.lockstep import differing
from ..checker.world import Outcome, Reply, World
from .scopes import TierScope, said_in
from .tier_adapter import Stored, TierShown, TierUnderTest, expected_of, guard_of, shares_of, shown_by


class TierNow(NamedTuple):
    tier: Tier
    policy: object = None
    said: Mapping[Key, Said] = {}


class TierChoice(NamedTuple):
    victims: Victims = calls.oldest
    policy: object = None


class TierSeen(NamedTuple):
    shown: TierShown
    events: tuple[Event, ...]


class TierCall(NamedTuple):
    """A call on a tier: its public name, the keys it names, and whether the completed transfer succeeded."""

    name: str
    keys: tuple[Key, ...]
    success: bool = True
    size: int = 0

    def crowds(self, readers: int, state: Tier) -> bool:
        if self.name != "prepare_load":
            return False
        entries = (entry_of(state, key) for key in self.keys)
        return any(entry is not None and entry.readers + self.keys.count(entry.key) > readers for entry in entries)

    def is_wrong(self, now: TierNow) -> bool:
        """Return whether a call would be refused for more than want of room."""
        refusal = self.meaning(now).refusal
        return refusal is not None and refusal.reason is not TierReason.NO_ROOM

    def meaning(self, now: TierNow, choice: TierChoice | None = None) -> Outcome[TierNow]:
        victims, policy = choice or TierChoice(policy=now.policy)
        before = now.tier
        if self.name == "complete_store" and self.success:
            before = completely_written(before, self.keys)
        outcome = MEANINGS[self.name](before, self, victims, now.said)
        if isinstance(outcome, TierRefusal):
            return Outcome(now._replace(policy=policy), (), outcome)
        return Outcome(TierNow(outcome.state, policy, now.said), ((TierNow(before), outcome),))

    def perform(self, model: TierUnderTest, now: TierNow) -> Reply:
        name, *arguments = self.made(now, model.package.offload.BlockHint)
        try:
            return Reply(model.call(name, *arguments))
        except tuple(model.errors.values()) as error:
            return Reply(error=error)

    def made(self, now: TierNow, hint: Callable[..., Any] = BlockHint) -> tuple[Any, ...]:
        if self.name == "prepare_store" and now.said:
            return "prepare_store_hinted", list(self.keys), hints(now.said, self.keys, hint)
        more = (self.success,) if self.name.startswith("complete") else ()
        if self.name == "resize":
            return self.name, self.size
        return (self.name, 1) if self.name == "advance_time" else (self.name, list(self.keys), *more)


def hints(said: Mapping[Key, Said], keys: tuple[Key, ...], made: Callable[..., Any] = BlockHint) -> list[Any] | None:
    return [made(*astuple(said.get(key, NOTHING_SAID))) for key in keys] if said else None


MEANINGS: dict[str, Callable[[Tier, TierCall, Victims, Mapping[Key, Said]], TierOutcome]] = {
    "touch": lambda state, call, *_: calls.touch(state, call.keys),
    "prepare_store": lambda state, call, victims, said: calls.prepare_store(state, call.keys, victims, said),
    "prepare_load": lambda state, call, *_: calls.prepare_load(state, call.keys),
    "remove": lambda state, call, *_: calls.drop(state, call.keys),
    "complete_load": lambda state, call, *_: calls.complete_load(state, call.keys, call.success),
    "complete_store": lambda state, call, *_: calls.complete_store(state, call.keys, call.success),
    "advance_time": lambda state, *_: calls.advance(state, 1),
    "resize": lambda state, call, victims, _: resize_tier(state, call.size, victims),
}


def completely_written(state: Tier, keys: tuple[Key, ...]) -> Tier:
    for each in state.entries:
        if each.key in keys and each.phase is Phase.WRITING:
            state = calls.written(state, each.place, each.key)
    return state


def stored(answer: Any) -> Stored:
    return Stored(*map(tuple, (answer.block_hashes_to_store, answer.store_spec.block_ids, answer.block_hashes_evicted)))


class TierWorld(World[TierNow, TierUnderTest]):
    laws = TIER_LAWS
    step_laws = TIER_STEP_LAWS
    kinds = tuple(MEANINGS)
    scope: TierScope

    def __init__(self, scope: TierScope, factory: Callable[..., TierUnderTest] = TierUnderTest) -> None:
        super().__init__(scope)
        self.factory, self.keys = factory, scope.keys
        self.calls = [
            TierCall(name, keys, success)
            for keys in scope.named
            for name in MEANINGS
            for success in ((True, False) if name.startswith("complete") else (True,))
            if name != "resize" and (name != "advance_time" or (scope.said and not keys))
        ] + [TierCall("resize", (), size=size) for size in scope.sizes]

    def enabled(self, state: TierNow) -> Iterator[TierCall]:
        for call in self.calls:
            if not call.crowds(self.scope.readers, state.tier) and (self.scope.misuse or not call.is_wrong(state)):
                yield call

    def kind(self, action: TierCall) -> str:
        return action.name

    def initial(self) -> TierNow:
        name = self.scope.manager
        made = tier(self.scope.capacity, self.scope.recovered, shares_of(name), guard_of(name))
        return TierNow(made, self.model().policy(), said_in(self.scope.said))

    def made(self) -> tuple[Any, ...]:
        return self.factory, self.scope.manager, self.scope.capacity, self.scope.recovered

    def digest(self, state: TierNow) -> bytes:
        """Return a name of a state: all of it, except contents and announcements, which laws derive from the rest."""
        entries = [(each.key, each.place, each.phase.name, each.readers) for each in state.tier.entries]
        own = state.tier.freed, state.tier.now, state.tier.end, state.tier.fresh
        return blake2b(marshal.dumps((entries, own, repr(state.policy)), 2)).digest()[:16]

    def broken(self, state: TierNow) -> list[Law]:
        return [law for law in self.laws if not law.holds(state.tier)]

    def broken_by(self, outcome: Outcome[TierNow]) -> list[Law]:
        return [law for now, done in outcome.steps for law in self.step_laws if not law.holds(now.tier, done)]

    def happened(self, state: TierNow, action: TierCall, outcome: Outcome[TierNow]) -> Iterator[str]:
        how = "" if action.success else " (failed)"
        yield f"tier: {outcome.refusal.reason.name}" if outcome.refusal else f"tier: {action.name}{how}"

    def choices(self, model: TierUnderTest, state: TierNow, action: TierCall, reply: Reply, shown: Any) -> Any:
        """Yield the manager's own choice of victims, or the oldest where it must evict those."""
        victims: Victims = calls.oldest
        if action.name in ("prepare_store", "resize") and reply.answer is not None and not model.ordered:
            resized = action.name == "resize"
            chosen = tuple(reply.answer) if resized else stored(reply.answer).evicted
            victims = lambda candidates, count: chosen  # noqa: E731  # recorded
        yield TierChoice(victims, model.policy())

    def observe(self, model: TierUnderTest, state: TierNow) -> TierSeen:
        return TierSeen(shown_by(model.manager, self.keys, model.ordered), model.events())

    def differences(
        self, model: TierUnderTest, action: TierCall, outcome: Outcome[TierNow], reply: Reply, shown: TierSeen
    ) -> list[str]:
        done = outcome.steps[-1][1] if outcome.steps else None
        faults = [*self.answered(model, outcome, done, reply)]
        faults += differing(expected_of(outcome.state.tier, self.keys, model.ordered), shown.shown)
        events = done.events if done is not None and not model.silent else ()
        return faults + ([f"events: expected {events}, found {shown.events}"] if events != shown.events else [])

    def answered(
        self, model: TierUnderTest, outcome: Outcome[TierNow], done: TierDone | None, reply: Reply
    ) -> Iterator[str]:
        answer, error = reply
        if done is None:
            yield from misrefused(outcome.refusal.reason, model.errors, answer, error)
        elif error is not None:
            yield f"refused ({type(error).__name__}: {error}); expected success"
        elif hasattr(answer, "block_ids") and tuple(answer.block_ids) != done.places:
            yield f"places: expected {done.places}, found {answer.block_ids}"
        elif hasattr(answer, "store_spec"):
            want = Stored(done.keys, done.places, done.evicted)
            if want != stored(answer):
                yield f"store: expected {want}, found {stored(answer)}"
        elif isinstance(answer, list) and tuple(answer) != done.evicted:
            yield f"resize: expected {done.evicted} to be evicted, found {answer}"

    def examine(self, model: TierUnderTest, state: TierNow) -> list[str]:
        model.check()
        if not model.foreign and (late := tuple(model.manager.beyond())) != beyond(state.tier):
            return [f"beyond the end: expected {beyond(state.tier)}, found {late}"]
        wanted = {keys: calls.lookup(state.tier, keys) for keys in self.scope.named}
        return misfound(model.manager.lookup, wanted, lambda: shown_by(model.manager, self.keys, model.ordered))


TIER_EVERYTHING = frozenset(f"tier: {reason.name}" for reason in TierReason) | frozenset(
    f"tier: {name}{how}" for name in MEANINGS for how in ("", " (failed)") if not how or name.startswith("complete")
)


def misfound(
    lookup: Callable[[list[Key]], Any], wanted: Mapping[tuple[Key, ...], Any], shown: Callable[[], object]
) -> list[str]:
    before = shown()
    found = {keys: lookup(list(keys)) for keys in wanted}
    faults = [f"lookup: expected {wanted}, found {found}"] if found != wanted else []
    after = shown()
    return faults + ([f"LOOKUP-1: a lookup changed {before} to {after}"] if before != after else [])


def misrefused(reason: Any, errors: Mapping[Any, type[Exception]], answer: Any, error: Exception | None) -> list[str]:
    """Name what differs in how a call was refused: by the error of the reason, or by None or False if it has none."""
    wanted = errors.get(reason)
    if wanted is None:
        is_refused = error is None and answer in (None, False)
        return [] if is_refused else [f"{reason.name}: expected None or False, found {error or answer}"]
    return [] if type(error) is wanted else [f"expected {wanted.__name__}, found {type(error).__name__}: {error}"]
