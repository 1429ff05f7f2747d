"""Worlds of block tables, tiers and chains that diagnose which laws a fault breaks. A state of the specification is
made from the observation after the last call, and every law is asked about it and about the step to it
(`blockwright_conformance.checker.diagnose`).
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from typing import Any

from blockwright_conformance.block_tables.abstraction import expected
from blockwright_conformance.block_tables.world import TablesWorld
from blockwright_conformance.checker.diagnose import Broken
from blockwright_conformance.checker.lockstep import Compared
from blockwright_conformance.offload.chain import ChainWorld, as_one
from blockwright_conformance.offload.chain_adapter import ChainUnderTest, chain_expected
from blockwright_conformance.offload.tier import TierCall, TierNow, TierWorld
from blockwright_conformance.offload.tier_adapter import TierUnderTest, expected_of, said_by
from blockwright_spec.block_tables.outcomes import PagedDone
from blockwright_spec.block_tables.state import Paged
from blockwright_spec.offload.chain_outcomes import ChainDone
from blockwright_spec.offload.chain_state import Chain, Kind, Transfer, pins
from blockwright_spec.offload.tier_calls import TierDone
from blockwright_spec.offload.tier_events import TOLD_LAWS
from blockwright_spec.offload.tier_laws import TIER_LAWS
from blockwright_spec.offload.tier_state import Entry, Event, Key, Phase, Tier, entry_of


class Tables(TablesWorld):
    """Block tables."""

    def symptoms(self, model: Any, state: Paged, action: Any, compared: Compared) -> Broken:
        outcome, reply, shown = compared.outcome, compared.reply, compared.shown
        if shown is None:
            return
        if (reply.error or reply.refused) and shown != expected(state):
            yield "REFUSE-1"
        tables = tuple(
            replace(table, entries=seen.entries) if table is not None and seen is not None else table
            for table, seen in zip(outcome.state.tables, shown.tables, strict=True)
        )
        same: dict[str, Any] = {name: getattr(shown, name) for name in ("free", "keys", "null", "copies", "fresh")}
        after = replace(outcome.state, tables=tables, **same)
        yield from of_laws(self.laws, after)
        first = outcome.steps[0][1]
        done = replace(first, state=after, pairs=reply.pairs) if isinstance(first, PagedDone) else first
        yield from of_laws(self.step_laws, state, done)


class OneTier(TierWorld):
    """One tier."""

    def symptoms(self, model: TierUnderTest, state: TierNow, action: TierCall, compared: Compared) -> Broken:
        if compared.shown is None:
            return
        outcome, reply, seen = compared.outcome, compared.reply, compared.shown
        shown = shown_tier(outcome.state.tier, state.tier.announced, model.manager, seen.events)
        refused = reply.error is not None or (action.name == "prepare_store" and reply.answer is None)
        changed = refused and seen.shown != expected_of(state.tier, self.keys, model.ordered)
        yield from misdone(compared, model.errors, changed)
        if action.name == "prepare_store" and not refused:
            yield from missing(action.keys, shown)
        yield from old_news(state.tier.announced, seen.events)
        yield from of_laws(self.laws, shown)
        before, done = outcome.steps[-1] if outcome.steps else (state, TierDone(state.tier))
        evicted = () if refused else tuple(getattr(reply.answer, "block_hashes_evicted", ()))
        yield from of_laws(self.step_laws, before.tier, replace(done, state=shown, evicted=evicted))


class Tiers(ChainWorld):
    """A chain of tiers."""

    def symptoms(self, model: ChainUnderTest, state: Chain, action: Any, compared: Compared) -> Broken:
        if compared.shown is None:
            return
        reply, shown, outcome = compared.reply, compared.shown, compared.outcome
        wanted = chain_expected(state, ChainDone(state), [None] * len(state.transfers), self.keys)
        changed = reply.error is not None and (wanted.tiers, wanted.pins) != (shown.tiers, shown.pins)
        yield from misdone(compared, model.errors, changed)
        after = shown_chain(state, action, compared, model.chain)
        if action.kind == "Store" and reply.answer is not None:
            yield from missing(action.arguments[0], after.tiers[0])
        yield from of_laws(self.laws, after)
        yield from of_laws(TOLD_LAWS, after, shown.told) if shown.told is not None else ()
        for each in after.tiers:
            yield from of_laws(TIER_LAWS, each)
        evicted = [(0, key) for key in getattr(reply.answer, "block_hashes_evicted", ())]
        done = as_one(outcome)
        yield from of_laws(self.step_laws, state, replace(done, state=after, evicted=(*evicted, *done.evicted)))
        for tier, events in zip(state.tiers, shown.events, strict=True):
            yield from old_news(tier.announced, events)
        if any(shown.pins.get(block, 0) != pins(after, block) for block in range(len(after.device))):
            yield "CHAIN-1"


def misdone(compared: Compared, errors: Any, changed: bool) -> Broken:
    if changed:
        yield "REFUSE-1"
    refusal = compared.outcome.refusal
    if refusal is not None and refusal.reason in errors and compared.reply.error is None:
        yield "REFUSE-2"


def missing(keys: Iterable[Key], state: Tier) -> Broken:
    if any(entry_of(state, key) is None for key in keys):
        yield "STORE-1"


def old_news(announced: frozenset[Key], events: Iterable[Event]) -> Broken:
    for each in events:
        if any((key in announced) != each.removed for key in each.keys):
            yield "EV-1"
        announced = heard(announced, each)


def heard(announced: frozenset[Key], event: Event) -> frozenset[Key]:
    return announced - frozenset(event.keys) if event.removed else announced | frozenset(event.keys)


def shown_tier(state: Tier, announced: frozenset[Key], manager: Any, events: Iterable[Event]) -> Tier:
    entries = tuple(shown_entries(state, manager))
    used = [entry.place for entry in entries]
    freed = dict.fromkeys((*state.freed, *(entry.place for entry in state.entries if entry.place not in used)))
    free = tuple([place for place in freed if place not in used])
    return replace(state, entries=entries, freed=free, announced=reduce(heard, events, announced))


def shown_entries(wanted: Tier, manager: Any) -> Iterator[Entry]:
    """Yield the blocks that a manager shows; how many read one that was found bad it does not show."""
    for key in manager.recency():
        status, (place,) = manager.status_of(key), manager.places_of([key]).block_ids
        phase, own = {-1: Phase.WRITING, -2: Phase.DOOMED}.get(status, Phase.READY), entry_of(wanted, key)
        doomed = own.readers if own is not None and own.phase is Phase.DOOMED else 0
        yield Entry(key, place, phase, doomed if phase is Phase.DOOMED else max(status, 0), said_by(manager, key))


def shown_chain(before: Chain, action: Any, compared: Compared, under_test: Any) -> Chain:
    """Make a state from a chain's observation; its transfers follow the accepted, handed-out and reported ones."""
    outcome, reply, shown = compared.outcome, compared.reply, compared.shown
    device, transfers = outcome.state.device, outcome.state.transfers
    if outcome.refusal is not None and reply.answer and reply.error is None:
        match action:
            case "Compute", (block, key, part):
                device = (*device[:block], (key, part), *device[block + 1 :])
            case "Store", (keys, blocks, _):
                transfers = (*transfers, Transfer(Kind.STORE, keys, None, 0, blocks))
            case "Load", (keys, blocks):
                transfers = (*transfers, Transfer(Kind.LOAD, keys, 0, None, blocks))
    handed = [(each.kind, each.keys) for each in shown.handed]
    old = [replace(each, started=True) for each in before.transfers if each.started]
    transfers = tuple(
        replace(each, started=(each.kind.name.lower(), each.keys) in handed or replace(each, started=True) in old)
        for each in transfers
    )
    known = [tier.announced for tier in before.tiers]
    parts = zip(outcome.state.tiers, known, under_test.tiers, shown.events, strict=True)
    return Chain(before.config, tuple(shown_tier(*each) for each in parts), device, transfers)


def of_laws(laws: Iterable[Any], *arguments: Any) -> Broken:
    """Yield the laws that do not hold of a state, or of a step; a law that cannot be asked is skipped."""
    for law in laws:
        with suppress(AssertionError, IndexError, KeyError, ValueError):
            if not law.holds(*arguments):
                yield law.id
