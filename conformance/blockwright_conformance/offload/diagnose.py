"""Diagnosis of tiers and chains: which laws a fault breaks.

As `diagnosis`: the actions of a counterexample are performed again; after the last one a state of the specification is
made of what the manager or the chain *shows*, its ghosts following its own blocks and transfers, and every law is
asked. To these are added what the self-check names, and

    REF-0 <field>  lock-step: it differs from the specification in this field of an answer or of its state
    REFUSE-1       a call that is refused changes nothing
    REFUSE-2       a wrong call raises an error of the package
    LOOKUP-1       a lookup changes nothing
    EV-1           an event is news: what becomes readable was not, what is gone was there
    STORE-1        what a store names is present when it has begun: none of it was evicted to make room for the rest
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from typing import Any

from blockwright_spec.offload.chain_laws import CHAIN_LAWS, CHAIN_STEP_LAWS
from blockwright_spec.offload.chain_outcomes import ChainDone
from blockwright_spec.offload.chain_state import Chain, Kind, Transfer, chain, pins
from blockwright_spec.offload.tier_calls import TierDone, TierRefusal
from blockwright_spec.offload.tier_laws import TIER_LAWS, TIER_STEP_LAWS
from blockwright_spec.offload.tier_state import Entry, Event, Key, Phase, Tier, entry_of, tier

from ..checker.diagnose import Broken, Diagnosis, of_error
from .actions import ChainAction, ChainTold, Compute, Load, Store
from .chain_adapter import ChainShown, ChainUnderTest, chain_expected, is_own
from .chain_world import chain_act, chain_perform
from .scopes import ChainScope, TierScope
from .tier_adapter import TierUnderTest, expected_of, shown_by
from .tier_world import TierCall, TierNow, TierTold, perform, tier_act

# --- one tier


def diagnose_tier(scope: TierScope, factory: Callable[..., TierUnderTest], actions: tuple[TierCall, ...]) -> Diagnosis:
    """Perform the calls of a counterexample again and name the laws broken at its end."""
    adapter = factory(scope.manager, scope.capacity, scope.recovered)
    now = TierNow(tier(scope.capacity, scope.recovered), adapter.policy())
    for call in actions[:-1]:
        now = tier_act(adapter, now, call, scope.keys)[0].now
        looked_up(adapter.manager, scope.named)
    broken = list(last_call(scope, adapter, now, actions[-1])) if actions else []
    return Diagnosis(*(tuple(dict.fromkeys(pair[at] for pair in broken)) for at in (0, 1)))


def last_call(scope: TierScope, adapter: TierUnderTest, now: TierNow, call: TierCall) -> Broken:
    """Make the last call and give what it breaks."""
    try:
        told, faults = tier_act(adapter.copy(), now, call, scope.keys)
        yield from named(faults)
        answer, error = perform(adapter, call)
        events = adapter.events()
        state = shown_tier(told.before, told.now.tier, adapter.manager, events)
    except Exception as other:
        yield of_error(other)
        return
    refused = error is not None or (call.name == "prepare_store" and answer is None)
    ordered = adapter.ordered
    if refused and shown_by(adapter.manager, scope.keys, ordered) != expected_of(now.tier, scope.keys, ordered):
        yield "REFUSE-1", "the call was refused, and something has changed"
    if isinstance(told.outcome, TierRefusal) and told.outcome.reason in adapter.errors and error is None:
        yield "REFUSE-2", f"{call.name}: expected {told.outcome.reason.name}, found no error"
    if call.name == "prepare_store" and not refused:
        yield from begun(call.keys, state)
    yield from told_again(told.before.announced, events)
    yield from laws_of_tier(told, state, () if refused else tuple(getattr(answer, "block_hashes_evicted", ())))
    yield from questions(adapter.check, adapter.manager, scope.keys, scope.named)


def laws_of_tier(told: TierTold, state: Tier, evicted: tuple[Key, ...]) -> Broken:
    """Give the laws that a state of a tier breaks, and those of the call that led to it."""
    yield from of_state(TIER_LAWS, state)
    outcome = told.outcome if isinstance(told.outcome, TierDone) else TierDone(state)
    events = told.outcome.events if isinstance(told.outcome, TierDone) else ()
    yield from of_step(TIER_STEP_LAWS, told.before, replace(outcome, state=state, evicted=evicted, events=events))


def shown_tier(before: Tier, told: Tier, manager: Any, events: Iterable[Event]) -> Tier:
    """Make a state of what a manager shows; blocks that come hold nothing yet."""
    entries = tuple(shown_entries(told, manager))
    contents: list[Key | None] = [None] * len(before.contents)
    for entry in entries:
        source = next((state for state in (told, before) if same_place(state, entry)), None)
        contents[entry.place] = None if source is None else source.contents[entry.place]
    announced = reduce(heard, events, before.announced)
    return Tier(entries, freed_by(before, entries, manager.num_free), tuple(contents), announced)


def shown_entries(told: Tier, manager: Any) -> Iterator[Entry]:
    """Give the blocks that a manager shows; how many read one that was found bad it does not show."""
    for key in manager.recency():
        status, (place,) = manager.status_of(key), manager.places_of([key]).block_ids
        phase, own = {-1: Phase.WRITING, -2: Phase.DOOMED}.get(status, Phase.READY), entry_of(told, key)
        doomed = own.readers if own is not None and own.phase is Phase.DOOMED else 0
        yield Entry(key, place, phase, doomed if phase is Phase.DOOMED else max(status, 0))


def same_place(state: Tier, entry: Entry) -> bool:
    """Tell whether a block was in this place in a state."""
    own = entry_of(state, entry.key)
    return own is not None and own.place == entry.place


def told_again(announced: frozenset[Key], events: Iterable[Event]) -> Broken:
    """Give EV-1 where an event tells what is known."""
    for each in events:
        if any((key in announced) != each.removed for key in each.keys):
            yield "EV-1", f"{each} is no news"
        announced = heard(announced, each)


def heard(announced: frozenset[Key], event: Event) -> frozenset[Key]:
    """Give what is known to whoever hears of an event."""
    return announced - frozenset(event.keys) if event.removed else announced | frozenset(event.keys)


def freed_by(before: Tier, entries: tuple[Entry, ...], num_free: int) -> tuple[int, ...]:
    """Give the places that are free again, as many as a manager counts: some are missing, or of a block, if it errs."""
    used = [entry.place for entry in entries]
    ever = dict.fromkeys([*before.freed, *(entry.place for entry in before.entries), *used])
    free = [place for place in ever if place not in used]
    return tuple([*free, *used][: max(0, num_free - (len(before.contents) - len(ever)))])


# --- a chain


def diagnose_chain(
    scope: ChainScope, factory: Callable[..., ChainUnderTest], actions: tuple[ChainAction, ...]
) -> Diagnosis:
    """Perform the actions of a counterexample again and name the laws broken at its end."""
    state, adapter = chain(scope.config), factory(scope.config)
    named_keys = [(key,) for key in scope.keys]
    for action in actions[:-1]:
        state = chain_act(adapter, state, action, scope.keys, scope.eager)[0].state
        looked_up(adapter.chain, named_keys)
    broken = list(last_action(scope, adapter, state, actions[-1])) if actions else []
    return Diagnosis(*(tuple(dict.fromkeys(pair[at] for pair in broken)) for at in (0, 1)))


def last_action(scope: ChainScope, adapter: ChainUnderTest, before: Chain, action: ChainAction) -> Broken:
    """Perform the last action and give what it breaks."""
    try:
        told, faults = chain_act(adapter.copy(), before, action, scope.keys, scope.eager)
        yield from named(faults)
    except Exception as other:
        yield of_error(other)
        return
    answer, error = None, None
    try:
        answer, error = chain_perform(adapter, action)
        if scope.eager and error is None:
            adapter.hand_out()
    except Exception as other:
        error = other
        yield of_error(other)
    shown = adapter.shown(scope.keys)
    if error is not None and differs(before, shown, scope.keys):
        yield "REFUSE-1", "the call was refused, and something has changed"
    refusal = told.refusal
    if refusal is not None and refusal.reason in adapter.errors and error is None:
        yield "REFUSE-2", f"{type(action).__name__}: expected {refusal.reason.name}, found no error"
    state = shown_chain(before, told, action, bool(answer) and error is None, adapter.chain, shown)
    if isinstance(action, Store) and answer is not None:
        yield from begun(action.keys, state.tiers[0])
    yield from laws_of_chain(before, told, state, answer)
    for each, events in zip(before.tiers, shown.events, strict=True):
        yield from told_again(each.announced, events)
    for block in range(len(state.device)):
        if shown.pins.get(block, 0) != pins(state, block):
            yield (
                "CHAIN-1",
                f"block {block} of the device: {pins(state, block)} use it, {shown.pins.get(block, 0)} pin it",
            )
    yield from questions(adapter.chain.check, adapter.chain, scope.keys, [(key,) for key in scope.keys])


def differs(before: Chain, shown: ChainShown, keys: tuple[Key, ...]) -> bool:
    """Tell whether a chain shows another state than the one before."""
    wanted = chain_expected(before, ChainDone(before), [None] * len(before.transfers), keys)
    return (wanted.tiers, wanted.pins) != (shown.tiers, shown.pins)


def shown_chain(
    before: Chain, told: ChainTold, action: ChainAction, accepted: bool, under_test: Any, shown: ChainShown
) -> Chain:
    """Make a state of what a chain shows; its transfers follow what it accepted, handed out and reported."""
    device, transfers = told.state.device, told.state.transfers
    reported = [(each.kind, each.keys) for each in shown.ended]
    for at, each in enumerate(before.transfers):
        ended = not any(is_same(each, other) for other in transfers)
        if ended and not is_own(each) and named_as(each) not in reported:
            transfers = (*transfers[:at], each, *transfers[at:])
    if told.refusal is not None and accepted:
        match action:
            case Compute(block, key, part):
                device = (*device[:block], None if key is None else (key, part), *device[block + 1 :])
            case Store(keys, blocks):
                transfers = (*transfers, Transfer(Kind.STORE, keys, None, 0, blocks))
            case Load(keys, blocks):
                transfers = (*transfers, Transfer(Kind.LOAD, keys, 0, None, blocks))
    handed = [(each.kind, each.keys) for each in shown.handed]
    old = [each for each in before.transfers if each.started]
    transfers = tuple(
        replace(each, started=named_as(each) in handed or any(is_same(each, other) for other in old))
        for each in transfers
    )
    tiers = tuple(
        shown_tier(was, now, manager, events)
        for was, now, manager, events in zip(
            before.tiers, told.state.tiers, under_test.tiers, shown.events, strict=True
        )
    )
    return Chain(before.config, tiers, device, transfers)


def named_as(each: Transfer) -> tuple[str, tuple[Key, ...]]:
    """Give the words by which a chain tells of a transfer."""
    return each.kind.name.lower(), each.keys


def is_same(each: Transfer, other: Transfer) -> bool:
    """Tell whether two are the same transfer, handed out or not."""
    return replace(each, started=True) == replace(other, started=True)


def laws_of_chain(before: Chain, told: ChainTold, state: Chain, answer: Any) -> Broken:
    """Give the laws that a state of a chain breaks, and those of the action that led to it."""
    yield from of_state(CHAIN_LAWS, state)
    for each in state.tiers:
        yield from of_state(TIER_LAWS, each)
    done = [outcome for _, outcome in told.steps if isinstance(outcome, ChainDone)]
    evicted = [(0, key) for key in getattr(answer, "block_hashes_evicted", ())]
    outcome = ChainDone(
        state,
        evicted=(*evicted, *(pair for each in done for pair in each.evicted)),
        dropped=tuple(key for each in done for key in each.dropped),
        handed=tuple(each for one in done for each in one.handed),
        ended=tuple(pair for each in done for pair in each.ended),
    )
    yield from of_step(CHAIN_STEP_LAWS, before, outcome)


# --- both


def named(faults: Iterable[str]) -> Broken:
    """Give the lock-step laws of differences: the field that each is in."""
    for fault in faults:
        field, colon, _ = fault.partition(":")
        yield f"REF-0 {field}" if colon and " " not in field else "REF-0 refusal", fault


def begun(keys: Iterable[Key], state: Tier) -> Broken:
    """Give STORE-1 where a block is gone that the store names which has begun."""
    for key in keys:
        if entry_of(state, key) is None:
            yield "STORE-1", f"{key!r} is named by the store, and is not present"


def of_state(laws: Iterable[Any], state: Any) -> Broken:
    """Give the laws that a state breaks."""
    for law in laws:
        with suppress(AssertionError, IndexError, KeyError, ValueError):
            if not law.holds(state):
                yield law.id, law.statement


def of_step(laws: Iterable[Any], before: Any, outcome: Any) -> Broken:
    """Give the laws that what came of a call breaks."""
    for law in laws:
        with suppress(AssertionError, IndexError, KeyError, ValueError):
            if not law.holds(before, outcome):
                yield law.id, law.statement


def looked_up(asked: Any, lists: Iterable[tuple[Key, ...]]) -> None:
    """Look keys up, as is done in every state that is explored."""
    for keys in lists:
        asked.lookup(list(keys))


def questions(check: Callable[[], None], asked: Any, keys: tuple[Key, ...], lists: Iterable[tuple[Key, ...]]) -> Broken:
    """Give what the self-check names, and whether a lookup changes something."""
    try:
        check()
        managers = getattr(asked, "tiers", [asked])
        before = [shown_by(each, keys) for each in managers]
        looked_up(asked, lists)
        if before != [shown_by(each, keys) for each in managers]:
            yield "LOOKUP-1", "a lookup changed something"
            check()
    except Exception as error:
        yield of_error(error)
