"""Part three, chapter 1: blocks kept off the device, in one tier; its state, with ghosts.

A tier keeps blocks in numbered places of one medium. Its keys are opaque, and equal ones name equal contents. A block
is *writing* until it is there, *ready* with a number of readers, *doomed* when a reader has found it bad while others
still read it, and then gone. Ghosts are `contents`, what was really written to each place, and `announced`, what
whoever replays the tier's events knows to be ready.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

Key = bytes
"""Names the content of a block."""


class Phase(Enum):
    """Where a block of a tier stands; one that is gone has no entry."""

    WRITING = "a transfer writes it"
    READY = "completely written: it can be found, and read"
    DOOMED = "a transfer that read it has failed: found no more, and gone with its last reader"


@dataclass(frozen=True, slots=True)
class Entry:
    """A block that is present: its key, its place, its phase, and how many read it."""

    key: Key
    place: int
    phase: Phase = Phase.WRITING
    readers: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """Blocks became readable, or are from now on no longer (`removed`)."""

    keys: tuple[Key, ...]
    removed: bool


@dataclass(frozen=True, slots=True)
class Tier:
    """Everything that one tier knows.

    `entries` stand in order of use, the least recently used first. `freed` are places that were in use and are not, the
    last to be freed at the end; all other places from ``len(entries) + len(freed)`` on were never used.
    """

    entries: tuple[Entry, ...]
    freed: tuple[int, ...]
    contents: tuple[Key | None, ...]
    announced: frozenset[Key]


def tier(capacity: int, recovered: tuple[Key, ...] = ()) -> Tier:
    """Return the state of a tier of so many places, with what an earlier run left there: ready, the oldest first."""
    entries = tuple(Entry(key, place, Phase.READY) for place, key in enumerate(recovered))
    return Tier(entries, (), (*recovered, *((None,) * (capacity - len(recovered)))), frozenset(recovered))


def entry_of(state: Tier, key: Key) -> Entry | None:
    """Return the block of a key, if it is present."""
    return next((entry for entry in state.entries if entry.key == key), None)


def phase_of(state: Tier, key: Key) -> Phase | None:
    """Return the phase of a key's block; None if it is not present."""
    entry = entry_of(state, key)
    return None if entry is None else entry.phase


def idle(state: Tier) -> tuple[Key, ...]:
    """Return the blocks that may go, the least recently used first: ready, and nobody reads them."""
    return tuple(entry.key for entry in state.entries if entry.phase is Phase.READY and not entry.readers)


def ready(state: Tier) -> frozenset[Key]:
    """Return the blocks that can be found."""
    return frozenset(entry.key for entry in state.entries if entry.phase is Phase.READY)


def num_free(state: Tier) -> int:
    """Count the places that hold no block."""
    return len(state.contents) - len(state.entries)


def places(state: Tier, keys: Iterable[Key]) -> tuple[int, ...]:
    """Return the places of blocks that are present."""
    return tuple(entry.place for key in keys for entry in (entry_of(state, key),) if entry is not None)


def distinct(keys: Iterable[Key]) -> tuple[Key, ...]:
    """Return the keys in order, each once."""
    return tuple(dict.fromkeys(keys))
