"""Part three, chapter 2: the transitions of one tier, one for each call, in the shape of `manager.transitions`.

Open is which idle blocks are evicted. A transition takes that choice and rejects an illegal one; `oldest` settles it by
use, below hints and shares. A tier does not move bytes: a worker writes them between `prepare_store` and
`complete_store` (`written`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from ..hints import NOTHING_SAID, Said, joined
from ..manager.outcomes import When
from .tier_state import (
    Entry,
    Event,
    Key,
    Phase,
    Tier,
    beyond,
    distinct,
    entry_of,
    going,
    idle,
    num_free,
    phase_of,
    places,
    ready,
)


class TierReason(Enum):
    """Why a call on a tier is refused; each reason includes when it could happen."""

    NO_ROOM = (When.NOT_NOW, "too few places are free, and too few blocks may go")
    NOT_PRESENT = (When.INVALID, "no block has this key: never stored, evicted, or dropped after a failure")
    NOT_READY = (When.INVALID, "the block is being written, is being read where that matters, or has been found bad")
    NOT_PREPARED = (When.INVALID, "nothing that was prepared is completed by this")
    NO_SIZE = (When.INVALID, "a tier has at least the places that the shares of tenants promise")


@dataclass(frozen=True, slots=True)
class TierRefusal:
    """A call that did not happen: nothing has changed."""

    reason: TierReason


@dataclass(frozen=True, slots=True)
class TierDone:
    """A call that happened: the new state, its blocks with their places, the evicted blocks, and the announcements.

    `named` are all blocks that a store names, none of which goes for it.
    """

    state: Tier
    keys: tuple[Key, ...] = ()
    places: tuple[int, ...] = ()
    evicted: tuple[Key, ...] = ()
    events: tuple[Event, ...] = ()
    named: tuple[Key, ...] = ()
    touched: bool = False


TierOutcome = TierDone | TierRefusal

Victims = Callable[[tuple[Key, ...], int], tuple[Key, ...]]
"""Settles which of the blocks that may go, in the order of `going`, are evicted: so many of them, in order."""


class IllegalVictimsError(ValueError):
    """A choice named blocks that may not be evicted, or too few or too many."""


Saying = Mapping[Key, Said]
"""What a store says of blocks."""

UNSAID: Saying = {}
"""What is said by a store that says nothing."""


def oldest(candidates: tuple[Key, ...], count: int) -> tuple[Key, ...]:
    """Evict the first."""
    return candidates[:count]


# --- effects


def without(state: Tier, keys: Iterable[Key]) -> Tier:
    """Take blocks away; their places hold nothing that counts, and those below the end are free, in this order."""
    gone, freed = frozenset(keys), places(state, keys)
    return replace(
        state,
        entries=tuple(entry for entry in state.entries if entry.key not in gone),
        freed=(*state.freed, *(place for place in freed if place < state.end)),
        contents=tuple(None if place in freed else content for place, content in enumerate(state.contents)),
    )


def entered(state: Tier, key: Key) -> Tier:
    """Begin to write a block: in the first place that was never used, else in the one that was freed last."""
    if state.fresh < state.end:
        return replace(state, entries=(*state.entries, Entry(key, state.fresh)), fresh=state.fresh + 1)
    return replace(state, entries=(*state.entries, Entry(key, state.freed[-1])), freed=state.freed[:-1])


def hinted(state: Tier, said: Saying) -> Tier:
    """Join new hints for blocks to the old ones."""
    entries = (replace(own, said=joined(own.said, said.get(own.key, own.said), state.now)) for own in state.entries)
    return replace(state, entries=tuple(entries))


def written(state: Tier, place: int, content: Key | None) -> Tier:
    """Write a place: a step of the worker that moves the bytes, and no call of the tier."""
    return replace(state, contents=(*state.contents[:place], content, *state.contents[place + 1 :]))


def announcing(state: Tier, keys: tuple[Key, ...], removed: bool) -> tuple[Tier, tuple[Event, ...]]:
    """Announce, if there is anything to announce, which blocks can be read or no longer."""
    known = state.announced - frozenset(keys) if removed else state.announced | frozenset(keys)
    return replace(state, announced=known), (Event(keys, removed),) if keys else ()


# --- calls


def lookup(state: Tier, keys: tuple[Key, ...]) -> int:
    """Count the first keys, in a row, with blocks that can be read."""
    return next((at for at, key in enumerate(keys) if phase_of(state, key) is not Phase.READY), len(keys))


def touch(state: Tier, keys: tuple[Key, ...]) -> TierDone:
    """Count blocks as just used, the first named as the last used; keys that are not present are passed over."""
    # EFFECT
    named = tuple(entry for key in distinct(keys)[::-1] for entry in (entry_of(state, key),) if entry is not None)
    others = tuple(entry for entry in state.entries if entry not in named)
    return TierDone(replace(state, entries=(*others, *named)), touched=True)
    # SAME: everything else.


def prepare_load(state: Tier, keys: tuple[Key, ...]) -> TierOutcome:
    """Begin to read blocks, once for each time it is named; they cannot be evicted until the end."""
    # REFUSE
    if wrong := wrong_keys(state, keys, lambda entry: entry.phase is Phase.READY, TierReason.NOT_READY):
        return wrong
    # EFFECT
    times = Counter(keys)
    entries = tuple(replace(entry, readers=entry.readers + times[entry.key]) for entry in state.entries)
    return TierDone(replace(state, entries=entries), keys, places(state, keys))
    # SAME: order of use, places.


def wrong_keys(
    state: Tier, keys: tuple[Key, ...], fits: Callable[[Entry], bool], otherwise: TierReason
) -> TierRefusal | None:
    """Return the refusal of keys of which one has no block, or else one that does not fit."""
    entries = tuple(entry for key in keys for entry in (entry_of(state, key),) if entry is not None)
    if len(entries) < len(keys):
        return TierRefusal(TierReason.NOT_PRESENT)
    return None if all(map(fits, entries)) else TierRefusal(otherwise)


def complete_load(state: Tier, keys: tuple[Key, ...], success: bool) -> TierOutcome:
    """End reading; blocks with a failed reader are found no more, and leave with their last reader."""
    # REFUSE
    times = Counter(keys)
    if wrong := wrong_keys(state, keys, lambda entry: entry.readers >= times[entry.key], TierReason.NOT_PREPARED):
        return wrong
    # EFFECT
    bad = () if success else readable(state, distinct(keys))
    after, events = announcing(state, bad, removed=True)
    entries = tuple(
        replace(each, phase=Phase.DOOMED if each.key in bad else each.phase, readers=each.readers - times[each.key])
        for each in state.entries
    )
    over = frozenset(each.key for each in entries if each.phase is Phase.DOOMED and not each.readers)
    after = without(replace(after, entries=entries), tuple(key for key in distinct(keys) if key in over))
    return TierDone(after, keys, events=events)
    # SAME: order of use.


def prepare_store(state: Tier, keys: tuple[Key, ...], victims: Victims = oldest, said: Saying = UNSAID) -> TierOutcome:
    """Begin to write the blocks that are not present; blocks evicted for them are idle, and not named in the call.
    Hints for the named blocks count from now on, and new blocks count for their tenants at once.
    """
    # REFUSE
    new = tuple(key for key in distinct(keys) if entry_of(state, key) is None)
    candidates = going(state, keys, tuple(said.get(key, NOTHING_SAID).tenant for key in new))
    needed = max(0, len(new) - num_free(state))
    if needed > len(candidates):
        return TierRefusal(TierReason.NO_ROOM)
    # CHOOSE
    evicted = victims(candidates, needed)
    if not (len(evicted) == needed == len(set(evicted)) and set(evicted) <= set(candidates)):
        raise IllegalVictimsError(evicted)
    # EFFECT
    after, events = announcing(without(state, evicted), evicted, removed=True)
    for key in new:
        after = entered(after, key)
    return TierDone(hinted(after, said), new, places(after, new), evicted, events, keys)
    # SAME: all other blocks and their order of use.


def advance(state: Tier, now: int) -> TierDone:
    """Report what time it is: ``advance_time``; it does not go back."""
    # EFFECT
    return TierDone(replace(state, now=max(now, state.now)))
    # SAME: everything else.


def complete_store(state: Tier, keys: tuple[Key, ...], success: bool) -> TierOutcome:
    """End writing: the blocks can be read, or, after a failure, are gone; those not being written are passed over.

    Blocks beyond the end of the tier are gone in any case.
    """
    # REFUSE
    phases = {key: phase_of(state, key) for key in keys}
    if None in phases.values():
        return TierRefusal(TierReason.NOT_PRESENT)
    ended = tuple(key for key, phase in phases.items() if phase is Phase.WRITING)
    if keys and not ended:
        return TierRefusal(TierReason.NOT_PREPARED)
    # EFFECT
    if not success:
        return TierDone(without(state, ended), ended)
    late = beyond(state)
    after, events = announcing(state, tuple(key for key in ended if key not in late), removed=False)
    entries = (replace(each, phase=Phase.READY) if each.key in ended else each for each in state.entries)
    after = without(replace(after, entries=tuple(entries)), tuple(key for key in ended if key in late))
    return TierDone(after, ended, events=events)
    # SAME: order of use, places.


def drop(state: Tier, keys: tuple[Key, ...]) -> TierOutcome:
    """Take idle blocks away: the call `remove`."""
    # REFUSE
    named = distinct(keys)
    if wrong := wrong_keys(state, named, lambda entry: entry.key in idle(state), TierReason.NOT_READY):
        return wrong
    # EFFECT
    after, events = announcing(without(state, named), named, removed=True)
    return TierDone(after, events=events)
    # SAME: all other blocks.


def readable(state: Tier, keys: Iterable[Key]) -> tuple[Key, ...]:
    """Return those of some keys with blocks that can be read."""
    there = ready(state)
    return tuple(key for key in keys if key in there)
