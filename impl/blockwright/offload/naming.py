"""Blocks of the tiers as routers know them: by their tokens, as on the device.

A tier knows keys alone. The connector notes the content of each key when it stores the block, and adds it to the events
of the tiers. A block from an earlier run is reported by its hash alone, and by its tokens once a request names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from blockwright.events import BlockRemoved, BlockStored
from blockwright.offload.hits import split_key
from blockwright.offload.tiers.interfaces import OffloadingEvent, OffloadingManager
from blockwright.offload.tiers.manager import TierManager
from blockwright.offload.wiring import medium_of

_WRITING = -1
_FEWEST = 1024


class BlockNames:
    """The contents of the blocks of a chain. Memory: O(blocks that its tiers have places for).

    Attributes:
        reports: whether a tier keeps events, so that the content of every block is noted. Otherwise only those of
            blocks with a salt or an adapter are, so that they can be forgotten.
        unknown: blocks of an earlier run, as long as no request has named them.
    """

    def __init__(self, tiers: Sequence[OffloadingManager]) -> None:
        """Begin with the blocks that the tiers hold from an earlier run: these are reported first."""
        self.reports = any(tier.keeps_events for tier in tiers)
        self._tiers = tiers
        self._stored: dict[bytes, BlockStored] = {}
        self._places: dict[bytes, dict[int, tuple[int, str]]] = {}  # by key and tier: tokens in a block, medium
        self._due: list[OffloadingEvent] = []
        self.unknown: set[bytes] = set()
        self._most = _FEWEST  # names, before those of blocks that are gone are dropped
        for at, tier in enumerate(tiers):
            keys = tier.recency() if isinstance(tier, TierManager) else []
            self.unknown.update(keys)
            if isinstance(tier, TierManager) and tier.keeps_events:
                size, medium = tier.backend.block_size, tier.backend.medium
                for key in keys:
                    if (told := self._came(at, key, size, medium)) is not None:
                        self._report(key, size, medium, told)

    def copy(self, tiers: Sequence[OffloadingManager]) -> BlockNames:
        """Return an independent copy for copies of the tiers. O(blocks)."""
        twin = BlockNames([])
        twin.reports, twin._tiers, twin._most = self.reports, tiers, self._most
        twin.unknown = self.unknown.copy()
        twin._stored, twin._due = self._stored.copy(), self._due.copy()
        twin._places = {key: places.copy() for key, places in self._places.items()}
        return twin

    def asks(self, key: bytes) -> bool:
        """Return whether the content of a key that a request has found is to be noted. O(1)."""
        return key in self.unknown or (self.reports and key not in self._stored)

    def note(self, key: bytes, stored: BlockStored) -> None:
        """Note the content of a key. A block that was reported without it is reported anew. Amortized O(tiers)."""
        self.unknown.discard(key)
        # A tenant's blocks must be found by name when it is forgotten; of the others no name is needed without events.
        is_owned = stored.cache_salt is not None or stored.lora_name is not None
        if key in self._stored or not (self.reports or is_owned):
            return
        # Blocks leave the tiers without a word; what they were called is dropped once as many again have come.
        if len(self._stored) >= self._most:
            self._sweep()
        self._stored[key] = stored
        for size, medium in dict.fromkeys(self._places.get(key, {}).values()):
            self._report(key, size, medium, self._told(key, size, medium))

    def _sweep(self) -> None:
        """Drop the names of blocks that are in no tier, and on their way to none."""
        for key in [key for key in self._stored if not self._is_present(key)]:
            del self._stored[key]
        self.unknown = {key for key in self.unknown if self._is_present(key)}
        self._most = max(_FEWEST, 2 * len(self._stored))

    def _is_present(self, key: bytes) -> bool:
        states = (tier.status_of(key) for tier in self._tiers)
        return any(state is not None and state >= _WRITING for state in states)

    def named(self, is_meant: Callable[[BlockStored], bool]) -> list[bytes]:
        """Return the keys with a known content that is meant. O(blocks)."""
        return [key for key, stored in self._stored.items() if is_meant(stored)]

    def forget(self, keys: Iterable[bytes]) -> None:
        """Drop the contents of keys, after adding them to the events so far. O(keys + events)."""
        # Events up to now still need the names that are dropped here.
        self.collect()
        for key in keys:
            self._stored.pop(key, None)
            self.unknown.discard(key)

    def not_searched(self) -> dict[str, int]:
        """Return by medium how many blocks have an owner that is not known; -1 for a store that engines share."""
        found: dict[str, int] = {}
        for tier in self._tiers:
            if not isinstance(tier, TierManager):
                found[medium_of(tier) or type(tier).__name__] = -1
            elif count := sum(tier.status_of(key) is not None for key in self.unknown):
                found[tier.backend.medium] = found.get(tier.backend.medium, 0) + count
        return found

    # ------------------------------------------------------------------ events

    def take(self) -> list[OffloadingEvent]:
        """Return the events that were collected since the last call."""
        due, self._due = self._due, []
        return due

    def collect(self) -> None:
        """Take the events of the tiers, with their meaning for routers now. O(events).

        Raises:
            JournalGapError: a tier has lost events. The next call collects the others.
        """
        for at, tier in enumerate(self._tiers):
            for event in tier.take_events():
                change = self._gone if event.removed else self._came
                told = (change(at, key, event.block_size, event.medium) for key in event.block_hashes)
                self._due.append(event._replace(told=tuple([each for each in told if each is not None])))

    def _report(self, key: bytes, size: int, medium: str, told: BlockStored) -> None:
        """Add an event for a block whose content became known after its tier had reported it."""
        self._due.append(OffloadingEvent([], size, medium, False, (told,)))

    def _came(self, at: int, key: bytes, size: int, medium: str) -> BlockStored | None:
        """Note that a block can be read in a tier; return the event, unless another tier of the medium has it."""
        # Routers know media, and not tiers: a second copy on the same medium is no event.
        is_news = all(medium != other for _, other in self._places.get(key, {}).values())
        if isinstance(self._tiers[at], TierManager):  # others are not told of all that they lose
            self._places.setdefault(key, {})[at] = size, medium
        return self._told(key, size, medium) if is_news else None

    def _gone(self, at: int, key: bytes, size: int, medium: str) -> BlockRemoved | None:
        """Note that a block cannot be read in a tier any more; return the event, unless a tier of the medium has it."""
        places = self._places.get(key, {})
        places.pop(at, None)
        if not places:
            self._places.pop(key, None)
        if any(medium == other for _, other in places.values()):
            return None
        known = self._stored.get(key)
        if known is not None:
            return BlockRemoved(known.block_hash, known.group_id, medium)
        digest, group = split_key(key)
        return BlockRemoved(digest, group, medium)

    def _told(self, key: bytes, size: int, medium: str) -> BlockStored:
        """Return the event of a block on a medium; without tokens where they are not known."""
        known = self._stored.get(key)
        if known is not None:
            return known._replace(medium=medium)
        digest, group = split_key(key)
        return BlockStored(digest, None, b"", size, group_id=group, medium=medium, is_parent_absent=True)
