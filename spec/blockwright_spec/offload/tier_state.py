"""Part three, chapter 1: blocks kept off the device, in one tier; its state, with ghosts.

A tier keeps blocks in numbered places of one medium. Its keys are opaque, and equal ones name equal contents. A block
is *writing* until it is there, *ready* with a number of readers, *doomed* when a reader has found it bad while others
still read it, and then gone. Hints and shares answer which idle block goes (`going`), and nothing else. Ghosts are
`contents`, the real content of each place, and `announced`, the blocks that are ready by a replay of the tier's events.
A tier may grow and shrink while it serves: its places are those below its `end`. A block beyond it is found no more,
and is gone once nothing reads or writes it.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import Enum

from ..hints import NOTHING_SAID, Mark, Said, rank

Key = bytes
"""Names the content of a block."""


class Phase(Enum):
    """The phase of a block in a tier; a block that is gone has no entry."""

    WRITING = "a transfer writes it"
    READY = "completely written: it can be found, and read"
    DOOMED = "a transfer that read it has failed: found no more, and gone with its last reader"


@dataclass(frozen=True, slots=True)
class Entry:
    """A block that is present: its key, its place, its phase, its number of readers, and its hint."""

    key: Key
    place: int
    phase: Phase = Phase.WRITING
    readers: int = 0
    said: Said = NOTHING_SAID


@dataclass(frozen=True, slots=True)
class Event:
    """Blocks became readable, or are from now on no longer (`removed`)."""

    keys: tuple[Key, ...]
    removed: bool


@dataclass(frozen=True, slots=True)
class Tier:
    """Everything that one tier knows.

    `entries` are in order of use, the least recently used first. `freed` are places that were in use and are not, the
    last to be freed at the end; the places from `fresh` on were never used. `shares` are the blocks that tenants may
    count on, `now` is the engine's time. Of the last `guard` blocks used no hint counts; of `first` places it was
    `part`.
    """

    entries: tuple[Entry, ...]
    freed: tuple[int, ...]
    contents: tuple[Key | None, ...]
    announced: frozenset[Key]
    shares: tuple[tuple[Hashable, int], ...] = ()
    now: int = 0
    guard: int = 0
    end: int = 0
    fresh: int = 0
    first: int = 0
    part: int = 0


def tier(
    capacity: int, recovered: tuple[Key, ...] = (), shares: tuple[tuple[Hashable, int], ...] = (), guard: int = 0
) -> Tier:
    """Return the state of a tier of `capacity` places, with the blocks of an earlier run: ready, the oldest first."""
    entries = tuple(Entry(key, place, Phase.READY) for place, key in enumerate(recovered))
    contents = (*recovered, *((None,) * (capacity - len(recovered))))
    known, size = frozenset(recovered), len(recovered)
    return Tier(entries, (), contents, known, shares, 0, guard, capacity, size, capacity, guard)


def entry_of(state: Tier, key: Key) -> Entry | None:
    """Return the block of a key, if it is present."""
    return next((entry for entry in state.entries if entry.key == key), None)


def phase_of(state: Tier, key: Key) -> Phase | None:
    """Return the phase of a key's block; None if it is not present."""
    entry = entry_of(state, key)
    return None if entry is None else entry.phase


def said_of(state: Tier, key: Key) -> Said:
    """Return the hint for a key's block; an empty one if it is not present."""
    return next((entry.said for entry in state.entries if entry.key == key), NOTHING_SAID)


def idle(state: Tier) -> tuple[Key, ...]:
    """Return the blocks that may be evicted, the next one first: ready, and without readers."""
    return going(state, (), ())


def going(state: Tier, named: tuple[Key, ...], coming: tuple[Hashable, ...]) -> tuple[Key, ...]:
    """Return the idle blocks that are not named in the order in which they go while blocks of some tenants come.

    A block counts for its tenant as long as it is present. Blocks of tenants with more than their share are evicted
    before others; of these the lowest rank first, and of equal ones the least recently used. So a tenant's blocks above
    its share are evicted before others.
    """
    free = (each for each in state.entries if each.phase is Phase.READY and not each.readers and each.key not in named)
    ranked = sorted(free, key=lambda each: rank_in(state, each))
    present, shares = (*(each.said.tenant for each in state.entries), *coming), dict(state.shares)
    tenants = tuple(each.said.tenant for each in ranked)
    above = {tenant: present.count(tenant) - shares.get(tenant, 0) for tenant in tenants}
    within = tuple(tenants[:at].count(tenant) >= above[tenant] for at, tenant in enumerate(tenants))
    return tuple(ranked[at].key for at in sorted(range(len(ranked)), key=within.__getitem__))


def rank_in(state: Tier, each: Entry) -> float:
    """Return the rank of a block: the lowest goes first; the last that were used are above all hints (HINT-3)."""
    last = state.entries[max(0, len(state.entries) - state.guard) :]
    return rank(Mark(recent=True) if each in last else Mark(each.said.priority, each.said.until), state.now)


def ready(state: Tier) -> frozenset[Key]:
    """Return the blocks that can be found."""
    return frozenset(entry.key for entry in state.entries if entry.phase is Phase.READY)


def num_free(state: Tier) -> int:
    """Count the places that hold no block."""
    return state.end - sum(entry.place < state.end for entry in state.entries)


def beyond(state: Tier) -> tuple[Key, ...]:
    """Return the blocks beyond the end of a tier: each is being read or written, and then it is gone."""
    return tuple(entry.key for entry in state.entries if entry.place >= state.end)


def places(state: Tier, keys: Iterable[Key]) -> tuple[int, ...]:
    """Return the places of blocks that are present."""
    return tuple(entry.place for key in keys for entry in (entry_of(state, key),) if entry is not None)


def distinct(keys: Iterable[Key]) -> tuple[Key, ...]:
    """Return the keys in order, each once."""
    return tuple(dict.fromkeys(keys))
