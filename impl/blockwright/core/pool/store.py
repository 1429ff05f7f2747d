"""The store of blocks: who holds which block, which block is taken next, and which prefix a block carries.

The life of a block (ids start at 1; block 0 is the null block and takes part in none of this):

    1. free without content       in the free queue's front part; taken first
    2. held                       count >= 1; written by its one holder
    3. held and published         carries a key; may be found and held by others too
    4. eviction candidate         free, still published; in the queue's back part, least recently released first
    1 -> 2 take    2 -> 3 publish    3 -> 4 release    4 -> 3 touch (a hit)    4 -> 2 take (the key is dropped)
    2 -> 1 release

A block with several holders is copied when one of them is to write: the writer gets a new block, and both ends of the
copy stay held until the engine has taken it.

Eviction candidates are evicted in the order of their release (a queue), unless there is a `CandidateOrder`: by access
(`AccessOrder`), by hints of the engine (`RetentionOrder`), or by one that the engine brings (`ChosenOrder`). The queue
then holds only blocks without content.

`BlockStore` is the only writer of the counters, the free queue and the prefix index. All of them are packed arrays:
about 54 bytes per block, no Python object per block, every operation O(1) per block. `BlockPool` gives it the names
that engine developers know.

A change of several fields takes all its memory first, so that a `MemoryError` leaves everything as it was. Where this
is not possible (events to record, an interrupt in uncompiled code), the store is torn, and no later call is served.
"""

from __future__ import annotations

from typing import Final, cast

from librt.vecs import append, extend, vec
from mypy_extensions import i32, i64

from blockwright.core.keys.block_hash import hash_words, word_bytes
from blockwright.core.keys.packed import with_room, zeros32, zeros64
from blockwright.core.keys.request import BlockKeys, Request, owner_mark
from blockwright.core.pool.check import check_index, check_passing, check_queue, demand
from blockwright.core.pool.facts import Journal as FactJournal
from blockwright.core.pool.index import LINK, MARK, PrefixIndex
from blockwright.core.pool.journal import EVICTED, TRIMMED, Journal
from blockwright.core.pool.order.order import CandidateOrder
from blockwright.core.pool.order.passing import PassingBlocks
from blockwright.core.pool.tails import TailIndex
from blockwright.core.pool.tape import COPY, DROP, HIT, HOLD, TAKE, Tape
from blockwright.errors import InterruptedCallError, StaleHitError
from blockwright.events import BlockStored

_BEFORE: Final = 0xFFFFFFFF
"""The part of a free block's links that is the block before it in the queue; the next one stands above it."""
_AFTER: Final = -0x100000000


def join(rows: vec[i64], ahead: i64, behind: i64) -> None:
    """Let a block be the next one behind another in the queue."""
    rows[4 * ahead + LINK] = behind << 32 | rows[4 * ahead + LINK] & _BEFORE
    rows[4 * behind + LINK] = rows[4 * behind + LINK] & _AFTER | ahead


def _insert(rows: vec[i64], block: i64, ahead: i64) -> None:
    """Put a block into the queue behind another, in front of all if that is 0."""
    behind = rows[4 * ahead + LINK] >> 32
    rows[4 * block + LINK] = behind << 32 | ahead
    rows[4 * behind + LINK] = rows[4 * behind + LINK] & _AFTER | block
    rows[4 * ahead + LINK] = block << 32 | rows[4 * ahead + LINK] & _BEFORE


def _insert_all(rows: vec[i64], ids: vec[i32], start: i64, stop: i64, ahead: i64) -> i64:
    """Put the blocks of a range of a table into the queue behind another, last entry first; return the last."""
    behind = rows[4 * ahead + LINK] >> 32
    i = stop
    while i > start:
        i -= 1
        block: i64 = i64(ids[i])
        rows[4 * block + LINK] = ahead
        rows[4 * ahead + LINK] = block << 32 | rows[4 * ahead + LINK] & _BEFORE
        ahead = block
    join(rows, ahead, behind)
    return ahead


class BlockStore:
    """Counters, free queue and prefix index over `count` blocks, the null block included.

    Methods that change it are private to this package. The holders of a block are the tables and copies that contain
    it, and those from outside (`BlockPool`), which are counted apart.
    """

    def __init__(self, count: i64, journal: Journal | None, order: CandidateOrder | None = None) -> None:
        """Make a store with every block free and without content. O(count).

        With an `order`, eviction candidates go by it; without, least recently released first.
        """
        self._is_torn = False  # a call ended in the middle of a change
        self._count: i64 = count
        self._index: PrefixIndex = PrefixIndex(count)
        # Of a held block the number of its holders, negative. Of a free one its neighbours in the queue: the next one,
        # and in the last 32 bits the one before. The queue is a ring; the null block is where it begins and ends.
        self._rows: vec[i64] = self._index.rows
        block: i64 = 1
        while block < count:
            join(self._rows, block - 1, block)
            block += 1
        join(self._rows, count - 1, 0)
        self._num_free: i64 = count - 1
        self._num_evictions: i64 = 0
        # Copies to come: group, source and destination of each. And per block, once there has been one: of how many it
        # is the source, or of a destination the source, negative.
        self._copies: vec[i32] = vec[i32]()
        self._ends: vec[i32] = vec[i32]()
        # Per block, once there has been one: how many of its holders hold it from outside, where none is a table.
        self._external: vec[i32] = vec[i32]()
        self._num_external: i64 = 0
        self._order: CandidateOrder | None = order
        self._passing: PassingBlocks | None = None  # where what no wanted hit needs goes first
        self._tails: TailIndex | None = None  # where hits may end inside blocks
        # Changes whenever a block is taken, held, released or forgotten, so that a stale plan is noticed.
        self._version: i64 = 0
        # Per block, once a request has had one: the marks of the salt and of the adapter of its published content.
        self._salt_marks: vec[i64] = vec[i64]()
        self._adapter_marks: vec[i64] = vec[i64]()
        self._journal: Journal | None = journal
        self._facts: FactJournal | None = None
        self._tape: Tape | None = None

    def _copy_to(self, twin: BlockStore) -> None:
        """Put a copy of every field of the store into another, whatever that holds. O(count)."""
        self.require_whole()
        twin._is_torn = False
        twin._count = self._count
        twin._index = self._index.copy()
        twin._rows = twin._index.rows
        twin._num_free = self._num_free
        twin._num_evictions = self._num_evictions
        twin._copies = self._copies[:]
        twin._ends = self._ends[:]
        twin._external = self._external[:]
        twin._num_external = self._num_external
        twin._order = None if self._order is None else self._order.copy()
        twin._passing = None if self._passing is None else self._passing.copy()
        twin._version = self._version
        twin._salt_marks = self._salt_marks[:]
        twin._adapter_marks = self._adapter_marks[:]
        twin._journal = None if self._journal is None else self._journal.copy()
        twin._tails = None if self._tails is None else self._tails.copy(twin._journal)

    def _tear(self) -> None:
        """Refuse later calls: one has ended in the middle of a change."""
        self._is_torn = True

    def require_whole(self) -> None:
        """Raise `InterruptedCallError` if a call has ended in the middle of a change. law: CALL-1."""
        if self._is_torn:
            raise InterruptedCallError(
                "an earlier call ended in the middle of a change (no memory, an interrupt), so that the state of "
                "the blocks is unknown; make a new manager or pool, and compute again what it held"
            )

    # ------------------------------------------------------------------ what it says of itself

    def free_block_ids(self) -> list[int]:
        """Return the free blocks in the order in which they will be taken. O(num_free), n log n by access."""
        ids: list[int] = []
        block: i64 = self._rows[LINK] >> 32
        while block != 0 and i64(len(ids)) <= self._count:
            ids.append(int(block))
            block = max(0, self._rows[4 * block + LINK] >> 32)  # the self-check reads a damaged queue too
        order = self._order
        return ids if order is None else ids + order.candidates()

    def ref_counts(self) -> list[int]:
        """Return the number of holders of each block, by id. O(num_blocks)."""
        return [int(self.ref_count(i64(block))) for block in range(self._count)]

    def block_keys(self) -> list[bytes | None]:
        """Return the 16-byte key of each block, by id; None where it is not published. O(num_blocks)."""
        return [None if key is None else word_bytes(key[0], key[1]) for key in self._index.all_keys()]

    def block_groups(self) -> list[int | None]:
        """Return the group of each block's prefix, by id; None where it is not published. O(num_blocks)."""
        return [None if key is None else key[2] for key in self._index.all_keys()]

    def published(self) -> list[bool]:
        """Return for each block, by id, whether it carries a key. O(num_blocks)."""
        return self._index.keyed()

    @property
    def num_held_externally(self) -> int:
        """How many different blocks are held from outside. O(1)."""
        return self._num_external

    def holders_apart(self) -> list[int]:
        """Return how many of the holders of each block hold it from outside, by id. O(num_blocks)."""
        return [int(times) for times in self._external] or [0] * int(self._count)

    def num_external_holders(self, block: i64) -> i64:
        """Return how many of the holders of one block hold it from outside. O(1)."""
        return 0 if self._num_external == 0 else i64(self._external[block])

    def block_key(self, block: i64) -> bytes | None:
        """Return the 16-byte key of one block, or None. O(1)."""
        if not self._index.has_key(block):
            return None
        low, high, _ = self._index.key(block)
        return word_bytes(low, high)

    def block_group(self, block: i64) -> int | None:
        """Return the group of one block's prefix, or None where it is not published. O(1)."""
        if not self._index.has_key(block):
            return None
        return int(self._index.key(block)[2])

    def free_block_after(self, block: i64) -> int | None:
        """Return the block that follows a free one in the queue, the first one for block 0; None after the last. O(1).

        Eviction candidates that go by a `CandidateOrder` are in no queue and are not among them.
        """
        return max(0, int(self._rows[4 * block + LINK] >> 32)) or None

    def is_published(self, block: i64) -> bool:
        """Return whether a block carries a key. O(1)."""
        return self._index.has_key(block)

    def ref_count(self, block: i64) -> i64:
        """Return the number of holders of one block. O(1)."""
        return max(0, -self._rows[4 * block + LINK])

    # ------------------------------------------------------------------ the free queue

    def _take(self, count: i64, ids: vec[i32]) -> vec[i32]:
        """Append `count` blocks from the queue's head to `ids`, each held once and without key.

        The caller has checked that they are there. law: QUEUE-1, REF-1.
        """
        at: i64 = len(ids)
        ids = append(ids, 0) if count == 1 else extend(ids, zeros32(count))
        self._fill(ids, at, at + count)
        return ids

    def _fill(self, ids: vec[i32], at: i64, stop: i64) -> None:
        """Write blocks from the queue's head to the null entries of a range. Takes no memory."""
        assert stop - at <= self._num_free, "blocks are counted before they are taken"
        order = self._order
        if order is not None:
            self._fill_ranked(order, ids, at, stop)
            return
        count = stop - at
        rows = self._rows
        block: i64 = rows[LINK] >> 32
        while at < stop:
            # The mark is read here and not by a call, since most blocks that are taken carry no key.
            if rows[4 * block + MARK] != 0:
                self._evict(block, stop - at)
            # law: STEP-3, TABLE-2
            taken = block
            block = rows[4 * taken + LINK] >> 32
            rows[4 * taken + LINK] = -1
            ids[at] = i32(taken)
            at += 1
        # The ring is closed once for the whole run: within it, no block's neighbours are ever read again.
        join(rows, 0, block)
        if self._passing is not None:
            self._passing.taken(ids, stop - count, stop)
        if self._tape is not None:
            self._tape.put_each(TAKE, ids, stop - count, stop)
        self._version += 1
        self._num_free -= count

    def _fill_ranked(self, order: CandidateOrder, ids: vec[i32], at: i64, stop: i64) -> None:
        """Fill a range where candidates are not in the queue: blocks without content first. law: POLICY-2."""
        rows = self._rows
        start = at
        # Blocks without content lose nothing, so they are taken before any candidate has to give up its key.
        bare = at + min(stop - at, self._num_free - order.size)
        block: i64 = rows[LINK] >> 32
        while at < bare:
            ids[at] = i32(block)
            behind = rows[4 * block + LINK] >> 32
            rows[4 * block + LINK] = -1
            block = behind
            at += 1
        join(rows, 0, block)
        order.tells_gone = self._journal is not None
        order.take(ids, start, at, stop)
        if self._journal is not None:
            # An offloading engine passes hints on with the block, and the order forgets them as it gives the block up.
            self._journal.hints = order.gone
        while at < stop:
            block = i64(ids[at])
            self._evict(block, 1)
            rows[4 * block + LINK] = -1
            at += 1
        if len(order.gone) > 0:
            order.gone.clear()
        if self._tape is not None:
            self._tape.put_each(TAKE, ids, start, stop)
        self._version += 1
        self._num_free -= stop - start

    def _take_one(self) -> i64:
        """Take one block, and return it. O(1), O(log n) by access."""
        order = self._order
        if order is not None:
            ids = zeros32(1)
            self._fill(ids, 0, 1)
            return i64(ids[0])
        # Decoding takes one block at a time, for which the loop of `_fill` would cost as much as the taking.
        assert self._num_free > 0, "blocks are counted before they are taken"
        rows = self._rows
        block = rows[LINK] >> 32
        if self._rows[4 * block + MARK] != 0:
            self._evict(block, 1)
        if self._passing is not None:  # only now: the eviction tells whether the block was passing
            self._passing.taken_one(block)
        join(rows, 0, rows[4 * block + LINK] >> 32)
        rows[4 * block + LINK] = -1
        self._version += 1
        self._num_free -= 1
        if self._tape is not None:
            self._tape.put(TAKE, block)
        return block

    def _evict(self, block: i64, count: i64) -> None:
        """Drop the keys of the candidates that are taken: `count` blocks from one on, as the queue has them.

        law: KEY-1.
        """
        # law: STEP-2
        index, tails = self._index, self._tails
        journal, facts = self._journal, self._facts
        if journal is None and facts is None:
            if tails is not None:
                tails.forget_run(self._rows, block, count)
            # All keys of the run are dropped at the first of its candidates, while the slots that were read ahead are
            # in the cache.
            self._num_evictions += index.drop_run(block, count)
            return
        order, passing = self._order, self._passing
        goes_first = passing is not None and passing.last != 0
        while count > 0:
            is_whole = tails is None or not tails.is_part(block)
            if tails is not None:
                tails.forget(block)
            if self._rows[4 * block + MARK] != 0:
                self._num_evictions += 1
                low, high, group = index.key(block)
                was_last = index.drop(block)
                if facts is not None and was_last and is_whole:
                    facts._evict(block, group)
                if journal is not None and is_whole:
                    passes = goes_first or (passing is not None and passing.is_spared(block))
                    if order is not None:
                        passes = order.is_passing(block)
                    journal.forgot(block, low, high, group, was_last, passes)
                if passing is not None and block == passing.last:
                    goes_first = False
            block = self._rows[4 * block + LINK] >> 32
            count -= 1

    def _touch_entries(self, ids: vec[i32], is_outside: bool = False, verb: i64 = HOLD) -> None:
        """Hold each non-null block of a hit once more, or of a connector; free ones leave the queue. law: REF-1."""
        order = self._order
        if self._tape is not None:
            self._tape.put_each(verb, ids, 0, i64(len(ids)))
        if order is not None:
            # Candidates that go by an order are in no queue; put there, the loop below takes all free blocks out in one
            # way.
            self._line_up(order.leave(ids))
        self._version += 1
        passing = self._passing
        rows = self._rows
        # Blocks that stand side by side in the queue, as those of a prefix do, leave it in one go: then `front` and
        # `behind` are side by side.
        front = rows[LINK] & _BEFORE
        behind: i64 = 0
        size: i64 = len(ids)
        i: i64 = 0
        while i < size:
            block: i64 = i64(ids[i])
            i += 1
            if block == 0:
                continue
            link = rows[4 * block + LINK]
            if link < 0:
                if passing is not None:
                    passing.note(block, is_outside and passing.is_noted(block))
                rows[4 * block + LINK] = link - 1
                continue
            if block != front:
                join(rows, front, behind)
                link = rows[4 * block + LINK]
                behind = link >> 32
            front = link & _BEFORE
            if passing is not None:
                if order is not None:
                    passing.note(block, order.is_passing(block))
                passing.held(block, front, rows[4 * front + MARK] == 0, is_outside)
            self._num_free -= 1
            rows[4 * block + LINK] = -1
        join(rows, front, behind)

    def _adopt(self, ids: vec[i32]) -> None:
        """Hold the non-null blocks of a hit for a request, and tell the order of it. law: REF-1, ORDER-2."""
        self._touch_entries(ids, False, HIT)
        if self._order is not None:
            self._order.hit(ids, self._index)

    def _release(self, ids: vec[i32], start: i64, stop: i64) -> None:
        """Give up one holder of each non-null entry in a range of a table, last entry first. law: REF-1, QUEUE-1."""
        self._let_go(ids, start, stop)
        if self._journal is not None:
            self._journal.released(ids, start, stop, EVICTED)

    def _let_go(self, ids: vec[i32], start: i64, stop: i64) -> None:
        """Give up one holder of each entry in a range without noting the cause.

        Blocks without a holder go to the queue: behind the eviction candidates if published, to the head if not. law:
        REF-1, QUEUE-1.
        """
        order = self._order
        if self._tape is not None:
            self._tape.put_each(DROP, ids, start, stop)
        if order is not None:
            self._let_go_ranked(order, ids, start, stop)
            return
        if self._passing is not None:
            self._let_go_passing(self._passing, ids, start, stop)
        else:
            self._let_go_by_age(ids, start, stop)

    def _let_go_by_age(self, ids: vec[i32], start: i64, stop: i64) -> None:
        """Give up one holder of each entry in a range, where candidates are evicted in the order of their release."""
        rows = self._rows
        # From the end on: the last block of a prefix is of use to the fewest requests, so it is to be evicted first.
        i = stop
        # The tail and the block before it are kept in locals for the whole range: the next block waits for no write to
        # the ring.
        tail = rows[LINK] & _BEFORE
        ahead = rows[4 * tail + LINK] & _BEFORE
        freed: i64 = 0
        while i > start:
            i -= 1
            block: i64 = i64(ids[i])
            # law: NULL-1
            if block == 0:
                continue
            count = -1 - rows[4 * block + LINK]
            assert count >= 0, "a block is released by those that hold it"
            if count > 0:
                rows[4 * block + LINK] = -count
                continue
            freed += 1
            if rows[4 * block + MARK] != 0:
                rows[4 * tail + LINK] = block << 32 | ahead
                rows[4 * block + LINK] = ahead = tail
                tail = block
            else:
                # A block without content goes to the head, because taking it costs nobody a prefix.
                _insert(rows, block, 0)
                if tail == 0:
                    tail = block
                ahead = rows[4 * tail + LINK] & _BEFORE
        rows[LINK] = rows[LINK] & _AFTER | tail
        self._version += 1
        self._num_free += freed

    def _let_go_passing(self, passing: PassingBlocks, ids: vec[i32], start: i64, stop: i64) -> None:
        """Release a range of a table where passing blocks are evicted first. law: POLICY-4.

        Candidates of one class go to the queue together, so that their reads wait for memory all at once.
        """
        while stop > start:
            stop = self._let_go_others(passing, ids, start, stop)
            first = self._first_candidate(ids, passing.first_alike(start, stop), stop)
            if first < stop:
                if not passing.is_passing(first, i64(ids[first])):
                    self._let_go_by_age(ids, first, stop)
                    passing.note_ordinary(ids, first, stop)
                elif passing.spares > 0:
                    self._spare_all(passing, ids, first, stop)
                else:
                    self._pass_all(passing, ids, first, stop)
            stop = first
        self._version += 1

    def _let_go_others(self, passing: PassingBlocks, ids: vec[i32], start: i64, stop: i64) -> i64:
        """Let go of the last entries of a range, and return the end of those before them.

        None of them becomes a candidate: others hold it, it has no content, or it is null.
        """
        rows = self._rows
        # Most blocks are held by requests alone.
        has_others = self._num_external > 0 or len(self._copies) > 0
        while stop > start:
            block: i64 = i64(ids[stop - 1])
            link = rows[4 * block + LINK]
            if block != 0 and link < -1:
                rows[4 * block + LINK] = link + 1
                if has_others:
                    self._note_left(passing, stop - 1, block)
            elif block != 0:
                assert link == -1, "a block is released by those that hold it"
                if rows[4 * block + MARK] != 0:
                    break
                self._num_free += 1
                if rows[4 * (rows[LINK] >> 32) + MARK] != 0 or rows[LINK] == 0:
                    passing.last_bare = block
                passing.note(block, False)
                _insert(rows, block, 0)
            stop -= 1
        return stop

    def _first_candidate(self, ids: vec[i32], start: i64, stop: i64) -> i64:
        """Return the first entry from which all up to `stop` are published and have one holder. O(entries)."""
        rows = self._rows
        while stop > start and rows[4 * i64(ids[stop - 1]) + LINK] == -1 and rows[4 * i64(ids[stop - 1]) + MARK] != 0:
            stop -= 1
        return stop

    def _spare_all(self, passing: PassingBlocks, ids: vec[i32], start: i64, stop: i64) -> None:
        """Let go of the last holder of passing blocks, last entry first. O(entries)."""
        _insert_all(self._rows, ids, start, stop, self._rows[LINK] & _BEFORE)
        passing.spare_all(ids, start, stop)
        self._num_free += stop - start
        self._version += 1
        self._spare_fewer(passing)

    def _pass_all(self, passing: PassingBlocks, ids: vec[i32], start: i64, stop: i64) -> None:
        """Put passing blocks in front of the ordinary ones, last entry first, as their last holder. O(entries)."""
        passing.last = _insert_all(self._rows, ids, start, stop, self._last_to_pass(passing))
        passing.note_all(ids, start, stop, True)
        self._num_free += stop - start
        self._version += 1

    def _last_to_pass(self, passing: PassingBlocks) -> i64:
        """Return the last block in front of the ordinary ones, 0 if there is none. O(1)."""
        after = passing.last
        if after == 0:
            first = self._rows[LINK] >> 32
            after = passing.last_bare if first != 0 and self._rows[4 * first + MARK] == 0 else 0
        return after

    def _spare_fewer(self, passing: PassingBlocks) -> None:
        """Put the first spared blocks in front of the ordinary ones until no more than `spares` are left.

        Those that are side by side in the queue move in one go.
        """
        rows = self._rows
        while passing.num_spared > passing.spares:
            first = passing.first_spared()
            last = passing.spare_no_more(rows)
            join(rows, rows[4 * first + LINK] & _BEFORE, rows[4 * last + LINK] >> 32)
            ahead = self._last_to_pass(passing)
            join(rows, last, rows[4 * ahead + LINK] >> 32)
            join(rows, ahead, first)
            passing.last = last

    def _note_left(self, passing: PassingBlocks, entry: i64, block: i64) -> None:
        """Note the class of a block that a request has left, if only others than requests hold it now. O(1)."""
        if self._num_others(block) == self.ref_count(block):
            passing.note(block, self._rows[4 * block + MARK] != 0 and passing.is_passing(entry, block))

    def _let_go_ranked(self, order: CandidateOrder, ids: vec[i32], start: i64, stop: i64) -> None:
        """Give up one holder of each entry where candidates are not in the queue."""
        passing = self._passing
        rows = self._rows
        i = stop
        while i > start:
            i -= 1
            block: i64 = i64(ids[i])
            if block == 0:
                continue
            count = -1 - rows[4 * block + LINK]
            assert count >= 0, "a block is released by those that hold it"
            rows[4 * block + LINK] = -count
            is_published = rows[4 * block + MARK] != 0
            # An order hears of every holder that lets go, not only of the last: whose block it is may depend on all of
            # them.
            if is_published and order.tells:
                order.note(ids, i, stop, self._index, count == 0)
            if count > 0:
                if passing is not None:
                    self._note_left(passing, i, block)
                if not is_published and count == self.num_external_holders(block):
                    order.disown(block)
                continue
            self._num_free += 1
            passes = False
            if passing is not None:
                passes = passing.is_passing(i, block)
                if passes or not is_published:  # what ended with another is noted, and stays
                    passing.note(block, False)
            if is_published and (order.keeps_doubles or self._index.is_single(block)):
                if passing is not None and not passes:
                    passing.note_ordinary(ids, i, i + 1)
                order.add(block, passes)
                continue
            if is_published:
                # A second candidate with the same content would take a place in its tenant's share, and no lookup would
                # find it.
                self._forget_double(order, block)
            order.forget(block)
            _insert(self._rows, block, 0)
        self._version += 1

    def _forget_double(self, order: CandidateOrder, block: i64) -> None:
        """Drop the key of a free block that others carry as well; they keep its hints. law: SHARE-4."""
        index = self._index
        other = index.next_duplicate(block, block)
        while other != 0:
            order.merge(other, block)
            other = index.next_duplicate(other, block)
        low, high, group = index.key(block)
        was_last = index.drop(block)
        if self._journal is not None:
            self._journal.forgot(block, low, high, group, was_last)

    def first_held(self, block: i64, keys: BlockKeys, index: i64, group: i64, block_size: i64) -> i64:
        """Return the block published first of those with the content of a request's block `index` that tables hold.

        That is the block itself where no other has it. Not where hits may end inside blocks. O(duplicates).
        """
        rings = self._index
        if not rings.has_key(block) or rings.is_single(block):
            return block
        low, high, _ = rings.key(block)
        other = oldest = rings.find(low, high, group)
        while other != 0 and other != block:
            is_shared = self.ref_count(other) > self._num_others(other)
            if is_shared and self.carries(other, keys, index, group, block_size):
                return other
            other = rings.next_duplicate(other, oldest)
        return block

    def _drop_double(self, block: i64) -> None:
        """Take its key from a block that one table holds, and that others carry as well. O(duplicates). law: FOLD-1."""
        order, passing = self._order, self._passing
        if order is not None:
            self._forget_double(order, block)
        else:
            low, high, group = self._index.key(block)
            was_last = self._index.drop(block)
            if self._journal is not None:
                self._journal.forgot(block, low, high, group, was_last)
        if passing is not None:
            passing.note(block, False)
            passing.renew(block)

    def _leave_alone(self, order: CandidateOrder, ids: vec[i32], start: i64, stop: i64) -> None:
        """Take the content from candidates with the same content as a range of held blocks. law: SHARE-4."""
        index, rows = self._index, self._rows
        while start < stop:
            block: i64 = i64(ids[start])
            start += 1
            if block == 0 or not index.has_key(block) or index.is_single(block):
                continue
            double = index.next_duplicate(block, block)
            while double != 0 and rows[4 * double + LINK] < 0:
                double = index.next_duplicate(double, block)
            if double != 0:
                self._empty_double(order, double)

    def _empty_double(self, order: CandidateOrder, block: i64) -> None:
        """Make a candidate a block without content, since others carry its key as well. law: SHARE-4."""
        # The order must let go first: it looks up the block's place by notes that `forget` clears.
        order.withdraw(block)
        self._forget_double(order, block)
        order.forget(block)
        _insert(self._rows, block, 0)
        self._version += 1

    def _note_trim(self, ids: vec[i32], start: i64, stop: i64) -> None:
        """Note that a range was released because no later token of its request reads it."""
        if self._journal is not None:
            self._journal.released(ids, start, stop, TRIMMED)

    # ------------------------------------------------------------------ who holds it from outside

    def _add_external_holders(self, ids: vec[i32], times: i32) -> None:
        """Count one more holder from outside for each non-null block; with ``times=-1``, one less. law: OUTSIDE-1.

        The caller has made room (`_reserve_external`). Complexity: O(blocks).
        """
        external = self._external
        assert len(ids) == 0 or len(external) > 0, "room is made before holders from outside are counted"
        for each in ids:
            block: i64 = i64(each)
            if block != 0:
                if external[block] == 0:
                    self._num_external += 1
                external[block] += times
                if external[block] == 0:
                    self._num_external -= 1

    def _reserve_external(self) -> None:
        """Take the memory in which holders from outside are counted. O(num_blocks) once."""
        if len(self._external) == 0:
            self._external = zeros32(self._count)

    # ------------------------------------------------------------------ copy-on-write

    def num_sharers(self, block: i64) -> i64:
        """Return the number of tables that hold one block: neither copies to come nor holders from outside. O(1)."""
        count = self.ref_count(block)
        return count - self._num_others(block) if count > 1 else count

    def _num_others(self, block: i64) -> i64:
        """Return the number of holders of one block that are no tables: copies to come, and from outside. O(1)."""
        others = self.num_external_holders(block)
        if len(self._copies) > 0:
            copies: i64 = i64(self._ends[block])
            # A copy to come holds both of its ends, but it writes no more than its destination: it shares with no
            # request.
            others += copies if copies >= 0 else 1
        return others

    def has_copies(self) -> bool:
        """Return whether copies are to come. O(1)."""
        return len(self._copies) > 0

    def is_destination(self, block: i64) -> bool:
        """Return whether a copy to come goes to a block. O(1)."""
        return len(self._copies) > 0 and self._ends[block] < 0

    def _copy_on_write(self, block: i64, group: i64) -> i64:
        """Move one holder of a shared block to a new one, and note that the content is to be copied. O(1).

        Both are also held by the copy until it is taken, so that neither is handed out before the copy has been run.
        The caller has checked that a block is free. law: COPY-1, COPY-2.
        """
        assert self.ref_count(block) > 1 or self._index.has_key(block), "only what others read is copied"
        self._reserve_copies(1)
        new = self._take_one()
        # One holder is the writer, the other the copy: neither end may be handed out before the engine has run the
        # copy.
        self._rows[4 * new + LINK] = -2
        left = block
        if self._ends[block] < 0:
            # What is still to be copied there is copied from the same source, so that the order of copies is free.
            self._rows[4 * block + LINK] += 1
            block = -i64(self._ends[block])
            self._rows[4 * block + LINK] -= 1
        if self._tape is not None:
            self._tape.put(COPY, left, block, new)
        self._note_copy(group, block, new)
        return new

    def _note_copy(self, group: i64, source: i64, destination: i64) -> None:
        """Note a copy to come, which holds both of its ends already. Takes no memory."""
        self._ends[source] += 1
        self._ends[destination] = -i32(source)
        self._copies = append(append(append(self._copies, i32(group)), i32(source)), i32(destination))

    def _reserve_copies(self, count: i64) -> None:
        """Take the memory for `count` more copies to come; nothing else changes."""
        if len(self._ends) == 0:
            # Most engines never fork, so that the four bytes per block are taken with the first copy.
            self._ends = zeros32(self._count)
        self._copies = with_room(self._copies, 3 * count)

    def _end_copies(self) -> None:
        """Release both ends of the copies to come, which the engine has taken. O(copies)."""
        pending = self._copies
        size: i64 = len(pending)
        if size == 0:
            return
        # All memory is taken before the first end is let go, so that a MemoryError leaves every copy to come as it was.
        last = vec[i32](capacity=size)
        room = vec[i32](capacity=12)
        try:
            self._end(pending, last)
            self._copies = room
        except BaseException:
            self._tear()
            raise

    def _end(self, pending: vec[i32], last: vec[i32]) -> None:
        """Let go of both ends of these copies; `last` has room for them."""
        size: i64 = len(pending)
        rows = self._rows
        at: i64 = 0
        while at < size:
            block: i64 = i64(pending[at])
            copies: i64 = i64(self._ends[block]) if at % 3 != 0 else 0  # before each two ends stands their group
            at += 1
            if copies == 0:
                continue
            if copies < 0:
                copies = 1
            self._ends[block] = 0
            rows[4 * block + LINK] += copies
            if rows[4 * block + LINK] >= 0:
                # The last holder is given up by `_let_go`, which alone knows where in the queue a block goes.
                rows[4 * block + LINK] = -1
                copies -= 1
                last = append(last, i32(block))
            while self._tape is not None and copies > 0:
                self._tape.put(DROP, block)
                copies -= 1
        self._let_go(last, 0, i64(len(last)))

    def pending_copies(self) -> list[tuple[int, int, int]]:
        """Return the copies to come as (group, source, destination), oldest first; they stay to come. O(copies)."""
        copies: list[tuple[int, int, int]] = []
        pending = self._copies
        at: i64 = 0
        while at < i64(len(pending)):
            copies.append((int(pending[at]), int(pending[at + 1]), int(pending[at + 2])))
            at += 3
        return copies

    # ------------------------------------------------------------------ the prefix index

    def find(self, keys: BlockKeys, index: i64, group: i64, block_size: i64) -> i64:
        """Return the block that serves a hit on the request's block `index`, or 0. O(1)."""
        keys.ensure_keys(index + 1)
        at: i64 = 2 * ((index + 1) * keys.units - 1)
        block = self._index.find(keys.words[at], keys.words[at + 1], group)
        journal = self._journal
        if journal is None:
            return block
        oldest = block
        while block != 0 and not journal.holds(block, keys, index, block_size):
            block = self._index.next_duplicate(block, oldest)
        return block

    def find_run(self, ids: vec[i32], keys: BlockKeys, group: i64, block_size: i64, start: i64, stop: i64) -> i64:
        """Write the blocks that serve the request's blocks start, start + 1, ... to `ids`; return the first missing.

        Complexity: one lookup per block, and little is hashed beyond the first missing.
        """
        i = start
        if self._journal is None:
            while i < stop:
                # Keys are made a few at a time: hashing a whole prompt whose first block is missing would be in vain.
                known = min(keys.ensure_keys(i + 1), stop)
                i = self._index.find_run(keys.words, 2 * keys.units, group, ids, i, known)
                if i < known:
                    break
            return i
        while i < stop:
            block = self.find(keys, i, group, block_size)
            if block == 0:
                break
            ids[i] = i32(block)
            i += 1
        return i

    def find_back(self, ids: vec[i32], keys: BlockKeys, group: i64, start: i64, stop: i64) -> None:
        """Write the blocks that serve the request's blocks start, start - 1, ... `stop` to `ids`, up to a missing one.

        Complexity: one lookup per block. With a journal, which may refuse a block, none is written.
        """
        if self._journal is None:
            keys.ensure_keys(start + 1)
            self._index.find_run(keys.words, 2 * keys.units, group, ids, start, stop - 1, -1)

    def loss(self, keys: BlockKeys, index: i64, group: i64) -> i64:
        """Return how the key of the request's block `index` was lost; 0 if no loss is known, -1 if none are noted.

        O(1).
        """
        journal = self._journal
        if journal is None:
            return -1
        losses = journal.losses
        if losses is None:
            return -1
        keys.ensure_keys(index + 1)
        at: i64 = 2 * ((index + 1) * keys.units - 1)
        return losses.cause(keys.words[at], keys.words[at + 1], group)

    def carries(self, block: i64, keys: BlockKeys, index: i64, group: i64, block_size: i64) -> bool:
        """Return whether a block is published under exactly the key of the request's block `index`. O(1)."""
        keys.ensure_keys(index + 1)
        at: i64 = 2 * ((index + 1) * keys.units - 1)
        if not self._index.matches(block, keys.words[at], keys.words[at + 1], group):
            return False
        journal = self._journal
        return journal is None or journal.holds(block, keys, index, block_size)

    def is_to_pass(self, block: i64) -> bool:
        """Return whether a block, which may be the null block, is a passing candidate in the queue. O(1)."""
        passing = self._passing
        return passing is not None and block != 0 and self.ref_count(block) == 0 and passing.is_noted(block)

    def all_pass(self, block: i64) -> bool:
        """Return whether a block that serves hits and its duplicates are passing candidates. O(duplicates)."""
        oldest = block
        while block != 0 and self.is_to_pass(block):
            block = self._index.next_duplicate(block, oldest)
        return block == 0

    def is_asked(self, block: i64) -> bool:
        """Return whether a request has wanted a hit to end with a block that serves hits. O(duplicates)."""
        passing = self._passing
        oldest = block
        while block != 0 and passing is not None and not passing.is_asked(block):
            block = self._index.next_duplicate(block, oldest)
        return block != 0

    def num_candidates(self, ids: vec[i32]) -> i64:
        """Return how many non-null blocks of a hit are free now. O(entries)."""
        rows = self._rows
        free: i64 = 0
        for block in ids:
            if block != 0 and rows[4 * i64(block) + LINK] >= 0:
                free += 1
        return free

    def check_hits(self, ids: vec[i32], keys: BlockKeys, group: i64, block_size: i64, start: i64, first: i64) -> None:
        """Check that entries from `start` to `first` are null, and those after them carry the request's own keys.

        Complexity: O(entries).

        Raises:
            StaleHitError: one of them does not.
        """
        size: i64 = len(ids)
        if size > keys.num_blocks():
            raise StaleHitError(f"new_computed_blocks: {size} blocks, the request has {keys.num_blocks()} full ones")
        i = start
        while i < first:
            if ids[i] != 0:
                raise StaleHitError(f"new_computed_blocks: entry {i} is outside the window but not the null block")
            i += 1
        keys.ensure_keys(size)
        # The blocks come from the engine, which may have kept them for long: each is compared with its key anew.
        bad = self._index.match_run(keys.words, 2 * keys.units, group, ids, first)
        if self._journal is not None:
            while i < bad and self.carries(i64(ids[i]), keys, i, group, block_size):
                i += 1
            bad = i
        if bad < size:
            raise StaleHitError(
                f"new_computed_blocks: block {ids[bad]} at entry {bad} no longer holds this request's prefix; "
                "look the hit up again"
            )

    def _publish(
        self, ids: vec[i32], request: Request, units: i64, group: i64, block_size: i64, start: i64, stop: i64
    ) -> None:
        """Make the full, non-null blocks of a range of a table findable. law: PUB-1, PUB-2.

        Takes no memory, except for events, if the caller has had the keys made.
        """
        request.hash_until(stop * units)
        index = self._index
        words = request._words
        journal = self._journal
        if self._tails is not None:
            self._promote(self._tails, ids, start, stop)
        order = self._order
        before = index.num_keyed
        if len(self._salt_marks) > 0 or request._salt_mark != 0 or request._adapter_mark != 0:
            self._mark_run(ids, start, stop, request._salt_mark, request._adapter_mark)
        if journal is None:
            index.add_run(words, 2 * units, group, ids, start, stop)
        else:
            rows = self._rows
            i = start
            while i < stop:
                block: i64 = i64(ids[i])
                if block != 0 and rows[4 * block + MARK] == 0:
                    at: i64 = 2 * ((i + 1) * units - 1)
                    is_new = index.add(block, words[at], words[at + 1], group)
                    journal.stored(block, request, units, i, group, block_size, is_new)
                i += 1
        if self._facts is not None:
            self._facts.published += index.num_keyed - before
        if order is not None and not order.keeps_doubles:
            # What was just published may stand twice: a candidate with the same content gives up its key for the held
            # block.
            self._leave_alone(order, ids, start, stop)

    def _promote(self, tails: TailIndex, ids: vec[i32], start: i64, stop: i64) -> None:
        """Make way for the keys of whole blocks, where these are published as parts. law: PUB-2."""
        while start < stop:
            if ids[start] != 0:
                tails.promote(self._index, i64(ids[start]))
            start += 1

    def _keep_tails(self) -> None:
        """Let blocks be published as parts too, in a pool that nothing was taken from."""
        self._tails = TailIndex(self._count, self._journal)

    def _reserve_tails(self, count: i64) -> None:
        """Take the memory for `count` more tails."""
        if self._tails is not None:
            self._tails.reserve(count)

    def _publish_tails(
        self,
        ids: vec[i32],
        request: Request,
        lengths: vec[i64],
        start: i64,
        stop: i64,
        group: i64,
        block_size: i64,
        unit: i64,
    ) -> None:
        """Make the parts of held blocks findable that end with a range of lengths. law: PUB-1, UNIT-2.

        Takes no memory, except for events. O(lengths).
        """
        tails, journal, words, hashed = self._tails, self._journal, request._words, request._block_size
        assert tails is not None, "tails are kept where hits may end inside blocks"
        if journal is None:
            tails.publish_run(self._index, ids, words, hashed, lengths, start, stop, group, block_size, unit)
            return
        while start < stop:
            length, before = lengths[start], tails.num_tails
            at = 2 * (length // hashed - 1)
            is_new = tails.find(words[at], words[at + 1], group) == 0
            tails.publish_run(self._index, ids, words, hashed, lengths, start, start + 1, group, block_size, unit)
            if tails.num_tails > before:
                number = tails.first(i64(ids[length // block_size]))
                journal.stored_tail(number, request, length, group, block_size, is_new)
            start += 1

    def edition(self) -> object:
        """Return the edition of the index of blocks, see `PrefixIndex.edition`. O(1)."""
        return self._index.edition()

    def edition_of_parts(self) -> object:
        """Return the edition of the index of parts of blocks; None where hits end with blocks. O(1)."""
        tails = self._tails
        return None if tails is None else tails.edition()

    def num_tails(self) -> i64:
        """Return how many parts of blocks can be found. O(1)."""
        return 0 if self._tails is None else self._tails.num_tails

    def find_tail(self, low: i64, high: i64, group: i64) -> i64:
        """Return a block that is published as a part with this key, or 0. O(1)."""
        return 0 if self._tails is None else self._tails.find(low, high, group)

    def last_tail(self, words: vec[i64], hashed: i64, group: i64, start: i64, stop: i64, unit: i64) -> i64:
        """Return the longest length of stop, stop - unit, ... above `start` that a part is published with, or `start`.

        `words` are the keys of units of `hashed` tokens. O(lengths).
        """
        if self._tails is None:
            return start
        return self._tails.find_last(words, group, start // hashed, stop // hashed, unit // hashed) * hashed

    def carries_tail(self, block: i64, low: i64, high: i64, group: i64) -> bool:
        """Return whether a block is published as a part with this key. O(tails of the block)."""
        return self._tails is not None and self._tails.matches(block, low, high, group)

    def is_beyond(self, block: i64, units: i64) -> bool:
        """Return whether a block is published as more than its first units. O(tails of the block)."""
        tails = self._tails
        if tails is None or not self._index.has_key(block):
            return False
        return not tails.is_part(block) or tails.longest(block) > units

    def tail_units(self, block: i64) -> i64:
        """Return the units of the longest part that a block is published as. O(tails of the block)."""
        return 0 if self._tails is None else self._tails.longest(block)

    def has_tail(self, block: i64) -> bool:
        """Return whether a block is published in parts. O(1)."""
        tails = self._tails
        return tails is not None and tails.is_part(block)

    def _save_tails(self, block: i64, group: i64) -> i64:
        """Let the keys of a block that is about to be written over go to a new one, and note the copy. O(1).

        The copy holds both until it is taken; the new one is then a candidate. The caller has made room, and has
        checked that a block is free. law: UNIT-7, COPY-2.
        """
        tails = self._tails
        assert tails is not None, "tails are kept where hits may end inside blocks"
        new = self._take_one()
        tails.move(self._index, block, new)
        self._rows[4 * block + LINK] -= 1
        self._note_copy(group, block, new)
        return new

    def _cut_off(self, block: i64, units: i64) -> None:
        """Take their keys from what a held block is published as beyond its first units. O(its tails). law: UNIT-8."""
        tails, journal, facts = self._tails, self._journal, self._facts
        assert tails is not None, "tails are kept where hits may end inside blocks"
        if not tails.is_part(block):
            low, high, group = self._index.key(block)
            was_last = self._index.drop(block)
            if facts is not None and was_last:
                facts._evict(block, group)
            if journal is not None:
                journal.forgot(block, low, high, group, was_last)
        tails.cut(self._index, block, units)

    def _drop_tails(self, block: i64) -> None:
        """Take their keys from the parts of a held block, which is about to be written over. O(tails of the block)."""
        tails = self._tails
        if tails is not None:
            tails.promote(self._index, block)
            tails.forget(block)

    def tail_keys(self) -> list[list[bytes]]:
        """Return, by block id, the 16-byte keys of the parts that it is published as. O(num_blocks + tails)."""
        tails = self._tails
        return [[] if tails is None else tails.keys_of(i64(block)) for block in range(self._count)]

    def published_whole(self) -> list[bool]:
        """Return for each block, by id, whether it is published as a whole. O(num_blocks)."""
        keyed, tails = self.published(), self._tails
        return [is_keyed and (tails is None or not tails.is_part(block)) for block, is_keyed in enumerate(keyed)]

    def _publish_told(self, block: i64, event: BlockStored) -> None:
        """Make a held block findable under the key of an event of another process. O(1). law: PUB-1."""
        digest = cast("bytes", event.block_hash)
        low, high = hash_words(digest)
        salt, adapter = owner_mark(event.cache_salt), owner_mark(event.lora_name)
        if len(self._salt_marks) > 0 or salt != 0 or adapter != 0:
            self._mark_run(vec[i32]([i32(block)]), 0, 1, salt, adapter)
        is_new = self._index.add(block, low, high, event.group_id)
        if self._journal is not None:
            self._journal.told(block, digest, event, is_new)

    def _publish_each(self, blocks: vec[i32], request: Request, units: i64, entry: i64, count: i64) -> None:
        """Make blocks findable as the request's block `entry`, the first in group 0, ..., the last of `count` in its.

        Only where the pool is plain, and the key made. law: PUB-1.
        """
        words = request._words
        at: i64 = 2 * ((entry + 1) * units - 1)
        assert self.is_plain(), "nothing is noted of blocks that are published so"
        assert at + 1 < i64(len(words)), "keys are made before blocks are published"
        if len(self._salt_marks) > 0 or request._salt_mark != 0 or request._adapter_mark != 0:
            self._mark_run(blocks, 0, count, request._salt_mark, request._adapter_mark)
        if self._tails is not None:
            self._promote(self._tails, blocks, 0, count)
        before = self._index.num_keyed
        self._index.add_each(words[at], words[at + 1], blocks, count)
        if self._facts is not None:
            self._facts.published += self._index.num_keyed - before

    def _reserve_marks(self) -> None:
        """Take the memory for the marks of salts and adapters, as publishing takes none. O(count) once, then O(1)."""
        if len(self._salt_marks) == 0:
            salts, adapters = zeros64(self._count), zeros64(self._count)
            self._salt_marks, self._adapter_marks = salts, adapters

    def _mark_run(self, ids: vec[i32], start: i64, stop: i64, salt: i64, adapter: i64) -> None:
        """Note the salt and the adapter of blocks that are being published; published ones keep theirs. O(blocks)."""
        self._reserve_marks()
        salts, adapters, rows = self._salt_marks, self._adapter_marks, self._rows
        while start < stop:
            block: i64 = i64(ids[start])
            if rows[4 * block + MARK] == 0:
                salts[block] = salt
                adapters[block] = adapter
            start += 1

    def blocks_of(self, salt: i64, adapter: i64) -> list[int]:
        """Return the published blocks of a salt, of an adapter, or of both, by their marks; 0 is any. O(count)."""
        found: list[int] = []
        block: i64 = 1
        while block < i64(len(self._salt_marks)):
            if (
                (salt == 0 or self._salt_marks[block] == salt)
                and (adapter == 0 or self._adapter_marks[block] == adapter)
                and self._index.has_key(block)
            ):
                found.append(int(block))
            block += 1
        return found

    def blocks_with(self, keys: BlockKeys, index: i64, group: i64, block_size: i64) -> list[int]:
        """Return all blocks that are published as the request's block `index`. O(blocks with this key)."""
        keys.ensure_keys(index + 1)
        at: i64 = 2 * ((index + 1) * keys.units - 1)
        oldest = self._index.find(keys.words[at], keys.words[at + 1], group)
        block, journal = oldest, self._journal
        found: list[int] = []
        while block != 0:
            if journal is None or journal.holds(block, keys, index, block_size):
                found.append(int(block))
            block = self._index.next_duplicate(block, oldest)
        return found

    def blocks_published(self) -> list[int]:
        """Return the published blocks. O(count)."""
        return [block for block in range(int(self._count)) if self._index.has_key(i64(block))]

    def _forget(self, blocks: vec[i32], is_all: bool) -> None:
        """Take the keys of published blocks away; the free ones are taken next. O(blocks). law: FORGET-1, FORGET-2.

        If these are all, one event reports it, and the parts of blocks go too.
        """
        index, rows, journal = self._index, self._rows, self._journal
        free = vec[i32](capacity=i64(len(blocks)))
        for block in blocks:
            if rows[4 * i64(block) + LINK] >= 0:
                free = append(free, block)
        try:
            # Held for the moment, so that they leave the queue with their keys, and come back to it without.
            self._touch_entries(free)
            if is_all and journal is not None:
                journal.cleared(index)
                journal = None
            if is_all and self._tails is not None:
                self._tails.clear()
            for each in blocks:
                low, high, group = index.key(i64(each))
                was_last = index.drop(i64(each))
                if self._passing is not None:  # a connector may hold what its last request left as passing
                    self._passing.note(i64(each), False)
                    self._passing.renew(i64(each))
                if journal is not None:
                    journal.forgotten(i64(each), low, high, group, was_last)
            self._let_go(free, 0, i64(len(free)))
            self._version += 1
        except BaseException:
            self._tear()
            raise

    def _unpublish(self, block: i64, units: i64) -> bool:
        """Take from a held block each key of more than its first units; return whether it had any.

        O(tails of the block). law: GIVEN-1.
        """
        index, tails, journal = self._index, self._tails, self._journal
        if not index.has_key(block):
            return False
        is_whole = tails is None or not tails.is_part(block)
        if tails is not None and not is_whole and tails.longest(block) <= units:
            return False
        if is_whole:
            low, high, group = index.key(block)
            was_last = index.drop(block)
            if journal is not None:
                journal.forgotten(block, low, high, group, was_last)
        if tails is not None:
            tails.cut(index, block, units)
        if self._passing is not None:
            self._passing.note(block, False)
            self._passing.renew(block)
        self._version += 1
        return True

    def is_plain(self) -> bool:
        """Return whether nothing is noted of blocks, and candidates wait in the queue. O(1).

        Then it makes no difference whether a group publishes before or after the next one takes.
        """
        return self._journal is None and self._order is None

    def _forget_all(self, num_reserved: i64 = 0) -> bool:
        """Drop every key; False, and nothing happens, while any block is held but `num_reserved` ones without content.

        Complexity: O(count), O(1) where no block carries a key.
        """
        # A held block may be read by its request at any time, so that its content must stay what its key says.
        if self._num_free + num_reserved != self._count - 1:
            return False
        try:
            if self._journal is not None:
                self._journal.cleared(self._index)
            self._index.clear()
            order = self._order
            if order is not None:
                self._line_up(order.clear())
            if self._passing is not None:
                self._passing.clear(self._rows[LINK] & _BEFORE)
            if self._tails is not None:
                self._tails.clear()
            self._version += 1
        except BaseException:
            self._tear()
            raise
        return True

    def _line_up(self, blocks: list[int]) -> None:
        """Put candidates that are about to be taken or held at the end of the queue."""
        rows = self._rows
        for block in blocks:
            _insert(rows, block, rows[LINK] & _BEFORE)

    # ------------------------------------------------------------------ self-check

    def check(self) -> None:
        """Recompute the pool's own invariants from scratch. O(num_blocks).

        Raises:
            InvariantError: names the law and shows both sides.
        """
        self.require_whole()
        keyed = self.published()
        check_queue(int(self._num_free), self.free_block_ids(), self._backwards(), self.ref_counts(), keyed)
        check_index(self._index, keyed)
        numbers = [] if self._tails is None else self._tails.check(keyed)
        order = self._order
        if order is not None:
            demand("QUEUE-1", "what is remembered of candidates agrees with itself", True, order.is_sound())
            bare = [block for block in order.candidates() if not keyed[block]]
            demand("QUEUE-1", "candidates that are not published", [], bare)
        elif self._passing is not None:
            check_passing(self._passing, self.free_block_ids(), keyed)
        # Recounted from the list of copies, not from the counters that the list has been kept beside.
        ends = [0] * len(self._ends)
        for _, source, destination in self.pending_copies():
            ends[source] += 1
            ends[destination] = -source
        demand("COPY-1", "copies to come that each block is the source of", ends, [int(count) for count in self._ends])
        apart = self.holders_apart()
        over = [block for block, times in enumerate(apart) if not 0 <= times <= int(self.ref_count(block))]
        demand("OUTSIDE-1", "blocks with more holders from outside than holders", [], over)
        demand("OUTSIDE-1", "blocks held from outside", len([n for n in apart if n > 0]), self.num_held_externally)
        if self._journal is not None:
            whole = self.published_whole()
            self._journal.check([block for block in range(self._count) if whole[block]], numbers)

    def _backwards(self) -> list[int]:
        """Return the free queue from its tail, cut off if it runs in a circle."""
        ids: list[int] = []
        block: i64 = max(0, self._rows[LINK]) & _BEFORE
        while block != 0 and i64(len(ids)) <= self._count:
            ids.append(int(block))
            block = max(0, self._rows[4 * block + LINK]) & _BEFORE
        order = self._order
        return ids if order is None else order.candidates()[::-1] + ids
