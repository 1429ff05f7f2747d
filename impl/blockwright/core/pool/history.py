"""The history of a pool's published blocks: events and evictions to report, contents to verify, losses to explain.

Most pools need none of it and have no history.
"""

from __future__ import annotations

from typing import Final, NamedTuple, cast, final

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from blockwright._copies import copy_fields
from blockwright.core.keys.packed import zeros32, zeros64
from blockwright.core.keys.request import BlockKeys, Request
from blockwright.core.pool.check import demand
from blockwright.core.pool.index import MARK, PARTS, PrefixIndex
from blockwright.core.pool.listener import CLEARED, EVICTED, PASSED, RESET, UNNOTED, Listener
from blockwright.core.pool.order import BlockHint
from blockwright.errors import JournalGapError
from blockwright.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, CacheLayout, KVCacheEvent

_FEWEST_EVENTS: Final = 4096
"""Events that wait, before any are left out."""


class Eviction(NamedTuple):
    """The last block with some content was taken for other content.

    The bytes stay in the block until the step runs, or the load begins, for which it was taken.

    Attributes:
        group: number of the group whose data it held.
        block_id: the block.
        block_hash: digest of the request's block, in full length.
        hint: its tenant (the cache salt), and until when it was to be kept; None if neither is known.
        is_passing: whether no hit that its last holder wanted needed it (``keep_wanted``).
        stored: the event that reports it, where events are recorded, or it has a salt or an adapter.
    """

    group: int
    block_id: int
    block_hash: bytes
    hint: BlockHint | None = None
    is_passing: bool = False
    stored: BlockStored | None = None


@final
class Losses:
    """Remembers the last losses: at most one for each block of the pool except the null block. All in O(1) per key.

    A key that is published again is found by the lookup, which then asks nothing here. If it is lost again, that loss
    counts.

    Attributes:
        counts: keys of whole blocks lost since the counts were last taken, by ``3 * group + cause - 1``.
    """

    def __init__(self, num_blocks: i64) -> None:
        """Start without losses. O(num_blocks)."""
        self._size: i64 = num_blocks
        self._last: i64 = 0  # the slot written last, within 1 .. num_blocks - 1
        self._keys: PrefixIndex = PrefixIndex(num_blocks)
        self._causes: vec[i32] = zeros32(num_blocks)
        # Per block: how it was last released, EVICTED or TRIMMED, which is how its key is lost if it is taken.
        self._releases: vec[i32] = vec[i32]([EVICTED] * num_blocks)
        self.counts: dict[int, int] = {}

    def copy(self) -> Losses:
        twin = Losses(0)
        copy_fields(self, twin)
        return twin

    def note_release(self, block: i64, cause: i64) -> None:
        """Note how a block was released."""
        self._releases[block] = i32(cause)

    def lose(self, block: i64, low: i64, high: i64, group: i64, cause: i64) -> None:
        """Note that the last block with a key is taken, or for which other cause it loses that.

        A part has a group of its own: see `PrefixIndex`.
        """
        self._remember(low, high, group, RESET if cause == RESET else i64(self._releases[block]))

    def lose_all(self, index: PrefixIndex) -> None:
        """Note that every key of an index is about to be dropped, a key of several blocks once.

        O(num_blocks + parts).
        """
        block: i64 = 1
        while block < self._size:
            for number in index.parts_of(block):
                low, high, group = index.key(i64(number))
                self._remember(low, high, -1 - group, RESET)
            if index.rows[4 * block + MARK] > PARTS:
                low, high, group = index.key(block)
                # Only the oldest block of a key is found, so that a key of several blocks counts as one loss.
                if index.find(low, high, group) == block:
                    self._remember(low, high, group, RESET)
            block += 1

    def cause(self, low: i64, high: i64, group: i64) -> i64:
        """Return how a key was last lost; 0 if it never was, or was forgotten."""
        slot = self._keys.find(low, high, group)
        return i64(self._causes[slot]) if slot > 0 else 0

    def take_counts(self) -> dict[int, int]:
        """Return the counts since the last call, and start again."""
        counts = self.counts
        self.counts = {}
        return counts

    def _remember(self, low: i64, high: i64, group: i64, cause: i64) -> None:
        """Write a loss over the oldest one."""
        keys = self._keys
        before = keys.find(low, high, group)
        if before > 0:
            # One entry per key: the latest loss is the one that explains why the next lookup misses.
            keys.drop(before)
        # Slot 0 is left out, because the index takes id 0 for an empty slot.
        slot = self._last % (self._size - 1) + 1
        if keys.has_key(slot):
            keys.drop(slot)
        keys.add(slot, low, high, group)
        self._causes[slot] = i32(cause)
        self._last = slot
        if group >= 0:
            kind = 3 * group + cause - 1
            self.counts[kind] = self.counts.get(kind, 0) + 1


def lasting(events: list[KVCacheEvent]) -> list[KVCacheEvent]:
    """Return the events without those that later ones undo: replayed, both give the same index. O(events)."""
    was_known: dict[tuple[BlockHash, int], bool] = {}
    last: dict[tuple[BlockHash, int], KVCacheEvent] = {}
    kept: list[KVCacheEvent] = []
    for event in events:
        if isinstance(event, AllBlocksCleared):
            was_known, last, kept = {}, {}, [event]
            continue
        key = event.block_hash, event.group_id
        was_known.setdefault(key, isinstance(event, BlockRemoved) and not kept)
        last.pop(key, None)
        last[key] = event
    for key, event in last.items():
        if was_known[key] == isinstance(event, BlockRemoved):
            kept.append(event)
    return kept


@final
class History(Listener):
    """Events since they were last taken, the exact prefix of each published block, and what became of lost keys.

    Attributes:
        events: events to report, None if events are not recorded.
        contents: prefix by block id, and by number of a part; None if hits are not verified.
        losses: keys lost, None if they are not remembered.
        evictions: contents lost to a taking that some reader has not seen, None if they are not reported.
        most_evictions: how many of them are kept at most, where a reader does not come.
        hints: of blocks that are being taken, the priorities and times with which they were still kept.
        layout: what a hit needs of the groups of layers, for events.
    """

    def __init__(
        self,
        events: list[KVCacheEvent] | None,
        contents: dict[int, bytes] | None,
        losses: Losses | None = None,
        evictions: list[Eviction] | None = None,
    ) -> None:
        """Start with these."""
        self.events = events
        self.contents = contents
        self.losses = losses
        self.evictions = evictions
        self.hints: dict[int, tuple[int, float]] = {}
        self.layout: CacheLayout | None = None
        self.most_evictions: i64 = 1024
        self._first_eviction: i64 = 0  # evictions before the oldest that is kept
        # Per reader, the evictions it has passed. The first is `take_evictions`, which may never be called.
        self._eviction_places: vec[i64] = zeros64(1)
        self._has_default_reader = False
        self._most_events: i64 = _FEWEST_EVENTS
        self._digests: dict[int, bytes] = {}
        self._part_digests: dict[int, bytes] = {}  # by number of the part, for events
        self._salts: dict[int, str] = {}  # for evictions
        self._stored: dict[int, BlockStored] = {}  # for evictions, where events are recorded or there is an owner

    def copy(self) -> History:
        twin = History(None, None)
        copy_fields(self, twin)
        return twin

    def publish(self, block: i64, request: Request, units: i64, at: i64, group: i64, size: i64, is_new: bool) -> None:
        """Note that a block was published as entry `at` of a request; record an event if it is new. O(prefix)."""
        start: i64 = at * size
        end: i64 = start + size
        contents = self.contents
        if contents is not None:
            contents[block] = request.prefix_content(end, request._lookahead)
        events, evictions = self.events, self.evictions
        if events is None and evictions is None:
            return
        # Events carry the digest in full length, of which the index keeps only 16 bytes.
        digest = request.block_digest((at + 1) * units - 1)
        self._digests[block] = digest
        salt = request.cache_salt
        if evictions is not None and salt is not None:
            self._salts[block] = salt
        if events is None and salt is None and request.lora_name is None:
            return
        if is_new or evictions is not None:
            parent = request.block_digest(at * units - 1) if at > 0 else None
            tokens = request.block_bytes(start, end)  # law: EV-4
            ahead = request.token_bytes(end, end + request._lookahead) if request._lookahead > 0 else b""
            items = () if not request._mm_items else request.items_within(start, end + request._lookahead)  # law: EV-5
            # As BlockStored(...) does, past its own constructor, which takes longer than all the rest.
            lora, number, count, layout = request.lora_name, int(group), int(size), self.layout
            fields = (digest, parent, tokens, count, lora, number, salt, items, "GPU", None, False, ahead, layout)
            stored: BlockStored = tuple.__new__(BlockStored, fields)
            if evictions is not None:
                self._stored[block] = stored
            if is_new and events is not None:
                self._report(stored)

    def publish_part(self, number: i64, request: Request, length: i64, group: i64, size: i64, is_new: bool) -> None:
        """Note the part of a block that ends after `length` tokens; record an event if it is new. law: EV-4."""
        if self.contents is not None:
            self.contents[number] = request.prefix_content(length, request._lookahead)
        if self.events is None:
            return
        digest = request.block_digest(length // request._block_size - 1)
        self._part_digests[int(number)] = digest
        if is_new:
            start: i64 = length // size * size
            parent = request.block_digest(start // request._block_size - 1) if start > 0 else None
            tokens = request.block_bytes(start, length)
            behind = length + request._lookahead  # law: EV-5
            items = () if not request._mm_items else request.items_within(start, behind)
            name, salt, count = request.lora_name, request.cache_salt, int(length - start)
            ahead = request.token_bytes(length, behind) if behind > length else b""
            told = BlockStored(digest, parent, tokens, count, name, int(group), salt, items, lookahead=ahead)
            self._report(told._replace(layout=self.layout))

    def forget_part(self, number: i64, block: i64, key: tuple[i64, i64, i64], is_last: bool, cause: i64) -> None:
        """Note that a part loses its key; record an event if no other has it, unless a reset was reported. O(1)."""
        if cause == CLEARED:
            return
        low, high, group = key
        if self.losses is not None and is_last:
            self.losses.lose(block, low, high, -1 - group, cause)
        if self.contents is not None:
            del self.contents[number]
        digest = self._part_digests.pop(int(number), None)
        if is_last and digest is not None:
            self._report(BlockRemoved(digest, int(group)))

    def publish_event(self, block: i64, event: BlockStored, is_new: bool) -> None:
        """Note that a block was published from an event, and record the event if the prefix is new. O(1)."""
        events, digest = self.events, cast("bytes", event.block_hash)
        if events is None and self.evictions is None:
            return
        self._digests[block] = digest
        if self.evictions is not None and event.cache_salt is not None:
            self._salts[block] = event.cache_salt
        if self.evictions is not None:
            self._stored[block] = event
        if events is not None and is_new:
            self._report(event._replace(layout=self.layout))

    def _report(self, event: KVCacheEvent) -> None:
        """Record an event; where none is taken, leave out of the events all that is undone by a later one.

        A pool has at most twice as many then as it has blocks, whatever happened. Amortized O(1).
        """
        events = self.events
        assert events is not None, "the caller has looked"
        if i64(len(events)) >= self._most_events:
            self.events = events = lasting(events)
            self._most_events = max(_FEWEST_EVENTS, 2 * i64(len(events)))
        events.append(event)

    def take(self, ids: vec[i32], start: i64, stop: i64) -> None:
        """Note that nothing is known yet of how blocks will be released. O(entries)."""
        self.release(ids, start, stop, EVICTED)

    def release(self, ids: vec[i32], start: i64, stop: i64, cause: i64) -> None:
        """Note how a range of a table was released; the last note on each block counts. O(entries)."""
        losses = self.losses
        if losses is not None and cause != UNNOTED:
            i = start
            while i < stop:
                losses.note_release(i64(ids[i]), cause)
                i += 1

    def forget(self, block: i64, low: i64, high: i64, group: i64, is_last: bool, cause: i64) -> None:
        """Note that a block loses its key; record an event if no other block has it. O(1).

        On demand that is no eviction, since the content must not be stored elsewhere.
        """
        losses, events, evictions = self.losses, self.events, self.evictions
        if cause == CLEARED:
            return
        if losses is not None and is_last:
            losses.lose(block, low, high, group, cause)
        if self.contents is not None:
            del self.contents[block]
        if events is None and evictions is None:
            return
        # The digest is dropped with the key: a removal that is told later could name a block's next content.
        digest = self._digests.pop(block)
        # law: STEP-4
        if evictions is not None:
            salt = self._salts.pop(block, None) if len(self._salts) > 0 else None
            stored = self._stored.pop(block, None) if len(self._stored) > 0 else None
            if is_last and cause != RESET:
                hint: BlockHint | None = None
                if salt is not None or len(self.hints) > 0:
                    priority, until = self.hints.get(block, (0, 0.0))
                    hint = BlockHint(salt, priority, until) if salt is not None or priority > 0 else None
                evictions.append(Eviction(int(group), int(block), digest, hint, cause == PASSED, stored))
                if i64(len(evictions)) >= 2 * self.most_evictions:  # half at a time: O(1) for each
                    del evictions[: int(self.most_evictions)]
                    self._first_eviction += self.most_evictions
        if events is not None and is_last:
            self._report(BlockRemoved(digest, int(group)))

    def forget_all(self, index: PrefixIndex) -> None:
        """Note that every block is about to lose its key. O(num_blocks), O(1) where none has one."""
        if self.losses is not None and index.num_keyed > 0:
            self.losses.lose_all(index)
        self._digests = {}
        self._part_digests = {}
        self._salts = {}
        self._stored = {}
        if self.contents is not None:
            self.contents = {}
        if self.events is not None:
            self._report(AllBlocksCleared())

    def holds(self, block: i64, keys: BlockKeys, index: i64, block_size: i64) -> bool:
        """Return whether a published block holds exactly the prefix of the request's block `index`. O(prefix)."""
        contents = self.contents
        return contents is None or contents[block] == keys.content(index, block_size)

    def holds_part(self, number: i64, request: Request, length: i64) -> bool:
        """Return whether a part holds exactly the first tokens of a request. O(prefix)."""
        contents = self.contents
        return contents is None or contents[number] == request.prefix_content(length, request._lookahead)

    def take_events(self) -> list[KVCacheEvent]:
        """Return the events since the last call, oldest first."""
        events = self.events
        if events is None:
            return []
        self.events = []
        self._most_events = _FEWEST_EVENTS
        return events

    def read_evictions(self, reader: i64) -> list[Eviction]:
        """Return the evictions that a reader has not seen, oldest first, and drop those that all have seen.

        Raises:
            JournalGapError: some of them are gone. The next call returns those after them.
        """
        evictions = self.evictions
        if evictions is None:
            return []
        places, first = self._eviction_places, self._first_eviction
        self._has_default_reader = self._has_default_reader or reader == 0
        lost = first - places[reader]
        if lost > 0:
            places[reader] = first
            raise JournalGapError(int(lost), int(2 * self.most_evictions))
        found = evictions[int(places[reader] - first) :]
        seen = first + i64(len(evictions))
        places[reader] = seen
        at: i64 = 0 if self._has_default_reader else 1
        while at < i64(len(places)):
            seen = min(seen, places[at])
            at += 1
        if seen > first:
            self.evictions = evictions[int(seen - first) :]
            self._first_eviction = seen
            if not self._has_default_reader:
                places[0] = seen
        return found

    def add_eviction_reader(self) -> i64:
        """Return the number of a new reader of the evictions from now on."""
        evictions = self.evictions
        count: i64 = 0 if evictions is None else len(evictions)
        self._eviction_places = append(self._eviction_places[:], self._first_eviction + count)
        return i64(len(self._eviction_places)) - 1

    def num_unread_evictions(self, reader: i64) -> int:
        """Return how many evictions are kept that a reader has not seen."""
        evictions = self.evictions
        if evictions is None:
            return 0
        return int(min(i64(len(evictions)), self._first_eviction + i64(len(evictions)) - self._eviction_places[reader]))

    def check(self, published: list[int], parts: list[int]) -> None:
        """Check that the notes are of the published blocks, and of the parts with these numbers.

        Raises:
            InvariantError: PUB-1 is broken.
        """
        if self.contents is not None:
            demand("PUB-1", "blocks and parts with a remembered prefix", published + parts, sorted(self.contents))
        if self.events is not None or self.evictions is not None:
            demand("PUB-1", "blocks with a digest to tell", published, sorted(self._digests))
        if self.events is not None:
            demand("PUB-1", "parts with a digest to tell", parts, sorted(self._part_digests))


@final
class EvictionReader:
    """A place among the evictions of a pool; what one reader reads is taken from no other."""

    def __init__(self, history: History, number: i64) -> None:
        """Stand for a reader that the history knows by a number."""
        self._history = history
        self._number: i64 = number

    def __len__(self) -> int:
        """Return how many evictions there are to read."""
        return self._history.num_unread_evictions(self._number)

    def read(self) -> list[Eviction]:
        """Return the evictions since the last call, oldest first. O(evictions).

        Raises:
            JournalGapError: more have come in between than are kept. The next call returns those after them.
        """
        return self._history.read_evictions(self._number)
