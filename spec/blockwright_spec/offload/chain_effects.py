"""Part three, chapter 7: the parts that the transitions of the chain are made of.

Each takes the outcome of a call so far, and returns it with one thing added.
"""

from dataclasses import replace

from . import tier_calls as calls
from .chain_outcomes import ChainDone
from .chain_state import Chain, Kind, Part, Transfer, held, is_full, lowering, may_go, waits
from .tier_state import Key, Phase, idle, num_free, phase_of, places, said_of


class UnexpectedRefusalError(Exception):
    """A tier has refused a call that the chain had made sure of."""


def on_tier(done: ChainDone, at: int, outcome: calls.TierOutcome) -> ChainDone:
    """Take over what came of a call on a tier."""
    if not isinstance(outcome, calls.TierDone):
        raise UnexpectedRefusalError(outcome)
    tiers = (*done.state.tiers[:at], outcome.state, *done.state.tiers[at + 1 :])
    stuck = frozenset((tier, key) for tier, key in done.state.stuck if phase_of(tiers[tier], key) is not None)
    return replace(
        done,
        state=replace(done.state, tiers=tiers, stuck=stuck),
        evicted=(*done.evicted, *((at, key) for key in outcome.evicted)),
        events=(*done.events, *((at, event) for event in outcome.events)),
    )


def begun(done: ChainDone, each: Transfer) -> ChainDone:
    """Put a transfer under way, after all others."""
    return replace(done, state=replace(done.state, transfers=(*done.state.transfers, each)))


def over(done: ChainDone, each: Transfer, success: bool) -> ChainDone:
    """Take a transfer away, and report how it ended."""
    transfers = tuple(other for other in done.state.transfers if other is not each)
    return replace(done, state=replace(done.state, transfers=transfers), ended=(*done.ended, (each, success)))


# --- contents


def onto_device(state: Chain, blocks: tuple[int, ...], parts: tuple[Part | None, ...]) -> Chain:
    """Write blocks of the device."""
    new = dict(zip(blocks, parts, strict=True))
    return replace(state, device=tuple(new.get(block, part) for block, part in enumerate(state.device)))


def parts_of(state: Chain, key: Key | None) -> tuple[Part | None, ...]:
    """Return the contents of the device's blocks that together hold a key's content."""
    return tuple(None if key is None else (key, part) for part in range(state.config.span))


def content_of(state: Chain, each: Transfer, at: int) -> Key | None:
    """Return the content that a transfer reads of its block of this number; None if it is no key's."""
    if each.source is not None:
        tier = state.tiers[each.source]
        return tier.contents[places(tier, each.keys)[at]]
    span = state.config.span
    parts = tuple(state.device[block] for block in each.device[at * span : (at + 1) * span])
    key = parts[0][0] if parts[0] is not None else None
    return key if parts == parts_of(state, key) else None


def copied(state: Chain, each: Transfer) -> Chain:
    """Write at the target of a transfer what its source holds."""
    contents = tuple(content_of(state, each, at) for at in range(len(each.keys)))
    if each.target is None:
        return onto_device(state, each.device, tuple(part for key in contents for part in parts_of(state, key)))
    tier = state.tiers[each.target]
    for place, content in zip(places(tier, each.keys), contents, strict=True):
        tier = calls.written(tier, place, content)
    return replace(state, tiers=(*state.tiers[: each.target], tier, *state.tiers[each.target + 1 :]))


# --- from a tier to the next


def taken_away(done: ChainDone, at: int, keys: tuple[Key, ...]) -> ChainDone:
    """Take those of some blocks out of a tier that are idle there."""
    tier = done.state.tiers[at]
    return on_tier(done, at, calls.drop(tier, tuple(key for key in keys if key in idle(tier))))


def losing(state: Chain, at: int, evicted: tuple[Key, ...]) -> tuple[Key, ...]:
    """Return those of some blocks of a tier that may not be evicted, since the tier below could keep them."""
    return tuple(key for key in evicted if not may_go(state, at, key))


def lowered(done: ChainDone, at: int, key: Key) -> ChainDone:
    """Begin to copy a block to the tier below, unless it is there.

    Written through it is dropped below if there is no room; its copy above stays. Written back, a block that is
    readable below leaves at once, and what would be lost below for it is sent further down first, so that the block
    itself stays for now.
    """
    state, through = done.state, done.state.config.through
    phase = phase_of(state.tiers[at + 1], key)
    if phase is not None:
        return done if through or phase is not Phase.READY else taken_away(done, at, (key,))
    prepared = calls.prepare_store(state.tiers[at + 1], (key,), said={key: said_of(state.tiers[at], key)})
    if isinstance(prepared, calls.TierRefusal):
        return replace(done, dropped=(*done.dropped, key)) if through else done
    if lost := losing(state, at + 1, prepared.evicted):
        return lowered(done, at + 1, lost[0])
    done = on_tier(on_tier(done, at + 1, prepared), at, calls.prepare_load(state.tiers[at], (key,)))
    return begun(done, Transfer(Kind.DEMOTE, (key,), at, at + 1))


def offered(done: ChainDone, at: int, keys: tuple[Key, ...]) -> ChainDone:
    """Offer new blocks of a tier to the next one if all is written through; the first is evicted last there too."""
    if not done.state.config.through or at + 1 == len(done.state.tiers):
        return done
    for key in keys:
        done = lowered(done, at, key)
    return on_tier(done, at + 1, calls.touch(done.state.tiers[at + 1], keys))


def reserved(done: ChainDone) -> ChainDone:
    """Send idle blocks down in each tier that has, or will have, fewer free places than its reserve."""
    last = 0 if done.state.config.through else len(done.state.tiers) - 1
    for at, reserve in enumerate(done.state.config.reserve[:last]):
        done = sent_down(done, at, reserve)
    return done


def sent_down(done: ChainDone, at: int, reserve: int) -> ChainDone:
    """Send idle blocks of a tier down, in the order of eviction, until enough places are free or will be.

    None is sent once the tier below is full, since a block that is evicted when its place is needed stays readable
    until then. None is sent either if it would wait for a place below, and enough places come free for this tier.
    """
    for key in idle(done.state.tiers[at]):
        lacking = reserve - num_free(done.state.tiers[at]) - len(lowering(done.state, at))
        if lacking > 0 and not (is_full(done.state, at + 1) or waits(done.state, at + 1, lacking)):
            done = lowered(done, at, key)
    return done


def forgotten(done: ChainDone, keys: tuple[Key, ...]) -> ChainDone:
    """Take blocks out of every tier; those that a transfer reads are found no more, and go with their last reader.

    Those that a transfer writes go as soon as it has landed; until then no lookup counts them.
    """
    for at in range(len(done.state.tiers)):
        tier = done.state.tiers[at]
        there = calls.readable(tier, keys)
        gone = tuple(key for key in there if key in idle(tier))
        done = on_tier(done, at, calls.drop(tier, gone))
        read = tuple(key for key in there if key not in gone)
        done = on_tier(done, at, calls.prepare_load(done.state.tiers[at], read))
        done = on_tier(done, at, calls.complete_load(done.state.tiers[at], read, success=False))
    written = (key for key in keys if any(phase_of(tier, key) is Phase.WRITING for tier in done.state.tiers))
    others = done.state.forgotten - frozenset(keys)
    return replace(done, state=replace(done.state, forgotten=others | frozenset(written)), forgot=keys)


def settled(done: ChainDone) -> ChainDone:
    """Forget the blocks that were being written when they were to be forgotten, now that a transfer has landed."""
    return forgotten(done, tuple(sorted(done.state.forgotten))) if done.state.forgotten else done


# --- landings


def landed_store(done: ChainDone, keys: tuple[Key, ...], success: bool) -> ChainDone:
    """End a store: the blocks can be read in tier 0, or are gone, as those beyond its end are."""
    done = on_tier(done, 0, calls.complete_store(done.state.tiers[0], keys, success))
    return offered(done, 0, calls.readable(done.state.tiers[0], keys)) if success else done


def landed_demotion(done: ChainDone, above: int, keys: tuple[Key, ...], success: bool) -> ChainDone:
    """End a demotion: the block is below, and no longer above unless written through.

    If it failed it stays above, until its place is needed.
    """
    done = on_tier(done, above + 1, calls.complete_store(done.state.tiers[above + 1], keys, success))
    sent = frozenset((above, key) for key in keys)
    stuck = done.state.stuck - sent if success or done.state.config.through else done.state.stuck | sent
    done = replace(done, state=replace(done.state, stuck=stuck))
    done = on_tier(done, above, calls.complete_load(done.state.tiers[above], keys, success=True))
    if not success:
        return done
    return offered(done, above + 1, keys) if done.state.config.through else taken_away(done, above, keys)


def landed_promotion(done: ChainDone, below: int, keys: tuple[Key, ...], success: bool) -> ChainDone:
    """End a promotion: loads that wait for it hold its blocks now.

    If one of several blocks failed, each is tried again alone, except those that are forgotten. If a single one failed,
    its source is blamed, and the loads that wait for it are cut before it. They are cut as well before a block for
    which tier 0 has become too small.
    """
    if not success and len(keys) > 1:
        for key in keys:
            if key not in done.state.forgotten:
                done = begun(done, Transfer(Kind.PROMOTE, (key,), below, 0))
        keys = tuple(key for key in keys if key in done.state.forgotten)
        if not keys:
            return done
    loads = tuple(each for each in done.state.transfers if each.kind is Kind.LOAD and set(each.keys) & set(keys))
    had = tuple(held(done.state, each) for each in loads)
    done = on_tier(done, 0, calls.complete_store(done.state.tiers[0], keys, success))
    done = on_tier(done, below, calls.complete_load(done.state.tiers[below], keys, success))
    came = calls.readable(done.state.tiers[0], keys)
    for each, holds in zip(loads, had, strict=True):
        new = tuple(key for key in each.keys if key in came)
        done = on_tier(done, 0, calls.prepare_load(done.state.tiers[0], new))
        lacks = tuple(each.keys.index(key) for key in keys if key in each.keys and key not in came)
        done = cut(done, each, (*holds, *new), min(lacks)) if lacks else done
    return done


def cut(done: ChainDone, each: Transfer, holds: tuple[Key, ...], length: int) -> ChainDone:
    """Let a load that was not handed out go on with its first blocks alone, and hold no others; with none it ends."""
    rest = tuple(key for key in holds if key in each.keys[length:])
    done = on_tier(done, 0, calls.complete_load(done.state.tiers[0], rest, success=True))
    if not length:
        return over(done, each, success=False)
    part = replace(each, keys=each.keys[:length], device=each.device[: length * done.state.config.span])
    transfers = tuple(part if other is each else other for other in done.state.transfers)
    return replace(done, state=replace(done.state, transfers=transfers))


def landed_load(done: ChainDone, keys: tuple[Key, ...], success: bool) -> ChainDone:
    """End a load; if it failed its blocks in tier 0 are blamed."""
    done = on_tier(done, 0, calls.complete_load(done.state.tiers[0], keys, success))
    return taken_away(done, 0, keys) if success and done.state.config.frees else done
