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

Eviction candidates are evicted in the order of their release (a queue), unless there is a `CandidateOrder` (`worth`).
It chooses their places in the queue, or has them itself: the queue then holds only blocks without content.

`BlockStore` is the only writer of the counters, the free queue and the prefix index. All of them are packed arrays:
about 54 bytes per block, no Python object per block, every operation O(1) per block. `BlockPool` gives it the names
that engine developers know.

A change of several fields takes all its memory first, so that a `MemoryError` leaves everything as it was. Where this
is not possible (events to record, an interrupt in uncompiled code), the store is torn, and no later call is served.
"""

from __future__ import annotations

from typing import cast

from librt.vecs import append, extend, vec
from mypy_extensions import i32, i64

from blockwright.core.keys.block_hash import hash_words, word_bytes
from blockwright.core.keys.packed import zeros32, zeros64
from blockwright.core.keys.request import BlockKeys, Request, owner_mark, units_per_block
from blockwright.core.pool.check import check_index, check_queue, demand
from blockwright.core.pool.copies import Copies
from blockwright.core.pool.history import History
from blockwright.core.pool.index import LINK, MARK, PARTS, PrefixIndex
from blockwright.core.pool.listener import CLEARED, EVICTED, MERGED, PASSED, RESET, UNNOTED, Listener
from blockwright.core.pool.order import CandidateOrder, Page
from blockwright.core.pool.queue import AFTER, BEFORE, insert, join, join_all, listed
from blockwright.core.pool.tape import Tape
from blockwright.errors import InterruptedCallError, InvalidArgumentError, StaleHitError
from blockwright.events import BlockStored


class BlockStore(Page):
    """Counters, free queue and prefix index over `count` blocks, the null block included.

    Methods that change it are private to this package. The holders of a block are the tables and copies that contain
    it, and those from outside (`BlockPool`), which are counted apart.
    """

    def __init__(self, count: i64, history: History | None, order: CandidateOrder | None = None) -> None:
        """Make a store with every block free and without content. O(count).

        With an `order`, eviction candidates go by it; without, least recently released first.
        """
        self._is_torn = False  # a call ended in the middle of a change
        self._count: i64 = count
        self._size: i64 = count  # blocks of the pool now; it holds those beyond its end itself
        self._index: PrefixIndex = PrefixIndex(count)
        # Of a held block the number of its holders, negative; of a free one its neighbours in the queue.
        self._rows: vec[i64] = self._index.rows
        join_all(self._rows, count)
        self._num_free: i64 = count - 1
        self._num_evictions: i64 = 0
        self._copies: Copies = Copies(count)
        # Per block, once there has been one: how many of its holders hold it from outside, where none is a table.
        self._external: vec[i32] = vec[i32]()
        self._num_external: i64 = 0
        self._order: CandidateOrder | None = None
        self._go_by(order)
        # Changes whenever a block is taken, held, released or forgotten, so that a stale plan is noticed.
        self._version: i64 = 0
        # Per block, once a request has had one: the marks of the salt and of the adapter of its published content.
        self._salt_marks: vec[i64] = vec[i64]()
        self._adapter_marks: vec[i64] = vec[i64]()
        self._history: History | None = history
        self._tape: Tape | None = None
        self._listeners: list[Listener] = [] if history is None else [history]
        self._one: vec[i32] = zeros32(1)  # one block, for calls that take a range

    def _go_by(self, order: CandidateOrder | None) -> None:
        """Have candidates evicted in an order, which knows all that there are."""
        if order is not None:
            order.attach(self._index)
        self._order = order

    def _copy_to(self, twin: BlockStore) -> None:
        """Put a copy of every field of the store into another, whatever that holds. O(count)."""
        self.require_whole()
        twin._is_torn = False
        twin._count = self._count
        twin._size = self._size
        twin._index = self._index.copy()
        twin._rows = twin._index.rows
        twin._num_free = self._num_free
        twin._num_evictions = self._num_evictions
        twin._copies = self._copies.copy()
        twin._external = self._external[:]
        twin._num_external = self._num_external
        twin._go_by(None if self._order is None else self._order.copy())
        twin._version = self._version
        twin._salt_marks = self._salt_marks[:]
        twin._adapter_marks = self._adapter_marks[:]
        twin._history = None if self._history is None else self._history.copy()
        twin._listeners = [] if twin._history is None else [twin._history]

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

    # ------------------------------------------------------------------ who listens

    def _listen(self, one: Listener) -> None:
        """Tell one more, after all that listen now."""
        self._listeners.append(one)

    def _record(self, tape: Tape | None) -> None:
        """Have a tape listen, or none."""
        self._listeners = [each for each in self._listeners if each is not self._tape]
        self._tape = tape
        if tape is not None:
            self._listen(tape)

    # ------------------------------------------------------------------ what it says of itself

    def free_block_ids(self) -> list[int]:
        """Return the free blocks in the order in which they will be taken. O(num_free), n log n by access."""
        ids, order = listed(self._rows, self._count), self._order
        return ids if order is None else ids + order.candidates()

    def ref_counts(self) -> list[int]:
        """Return the number of holders of each block, by id. O(num_blocks)."""
        return [int(self.ref_count(i64(block))) for block in range(self._count)]

    def block_keys(self) -> list[bytes | None]:
        """Return the 16-byte key of each block, by id; None where it is not published. O(num_blocks)."""
        return [self.block_key(i64(block)) for block in range(self._count)]

    def block_groups(self) -> list[int | None]:
        """Return the group of each block's prefix, by id; None where it is not published. O(num_blocks)."""
        return [self.block_group(i64(block)) for block in range(self._count)]

    def published(self) -> list[bool]:
        """Return for each block, by id, whether it carries a key. O(num_blocks)."""
        return [self.is_published(i64(block)) for block in range(self._count)]

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
        times = -self._rows[4 * block + LINK]
        return max(0, times if block < self._size else times - 1)

    def num_holds(self, block: i64) -> i64:
        """Return how often a block is to be let go of before it is free: beyond the end, by the pool too. O(1)."""
        return max(0, -self._rows[4 * block + LINK])

    # ------------------------------------------------------------------ the end of the pool

    def _move_end(self, end: i64) -> None:
        """Let the pool end before a block. O(blocks that come), O(num_blocks) if it shrinks. law: RESIZE-1, RESIZE-3.

        The pool holds the blocks beyond its end itself: so the last who lets go of one does not give it back, and no
        call has to look where the end is. Candidates among them are evicted in their order. Others lose their keys.
        """
        old, rows, order = self._size, self._rows, self._order
        size: i64 = max(end - old, old - end)
        moved = vec[i32](capacity=size)
        if end > old:
            for block in range(int(old), int(end)):
                moved = append(moved, i32(block))
            for each in self._listeners:
                each.release(moved, 0, size, UNNOTED)
            at = end
            while at > old:  # from the last one on, so that the lowest id is taken first
                at -= 1
                rows[4 * at + LINK] += 1
                if rows[4 * at + LINK] == 0:
                    insert(rows, at, 0)
                    self._num_free += 1
        else:
            for block in listed(rows, self._count) + ([] if order is None else order.ranked()):
                if block >= end:
                    moved = append(moved, i32(block))
            self._withdraw(moved)
            free = {int(block) for block in moved}
            at = end
            while at < old:
                if int(at) not in free:
                    self._one[0] = i32(at)
                    for each in self._listeners:
                        each.hold(self._one, False)
                    rows[4 * at + LINK] -= 1
                    self._unpublish(at, 0)
                at += 1
        self._size = end
        if order is not None:
            order.resize(end)
        self._version += 1

    def _withdraw(self, ids: vec[i32]) -> None:
        """Take free blocks out of the queue for good; candidates among them are evicted in this order."""
        order = self._order
        passes = [order is not None and order.is_passing(i64(block)) for block in ids]
        for each in self._listeners:
            each.take(ids, 0, i64(len(ids)))
        self._hold(ids, False)
        for at, block in enumerate(ids):
            if self._index.has_key(i64(block)):
                self._num_evictions += 1
                self._forget_key(i64(block), PASSED if passes[at] else EVICTED)
                if order is not None:
                    order.lost(i64(block))
                    order.forget(i64(block))

    def held_beyond(self) -> list[int]:
        """Return the blocks beyond the end that are not let go of yet. O(blocks beyond the end)."""
        return [block for block in range(int(self._size), int(self._count)) if self.ref_count(i64(block)) > 0]

    # ------------------------------------------------------------------ the free queue

    def _serve(self, tenant: i64) -> None:
        """Note whom blocks are taken for. O(1)."""
        if self._order is not None:
            self._order.serving = tenant

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
        rows = self._rows
        start = at
        # Blocks without content lose nothing, so they are taken before any candidate has to give up its key.
        queued = stop if order is None else at + min(stop - at, self._num_free - order.size)
        block: i64 = rows[LINK] >> 32
        while at < queued:
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
        if order is not None:
            self._fill_by(order, ids, start, at, stop)
        for each in self._listeners:
            each.take(ids, start, stop)
        self._version += 1
        self._num_free -= stop - start

    def _fill_by(self, order: CandidateOrder, ids: vec[i32], start: i64, at: i64, stop: i64) -> None:
        """Fill the rest of a range, of which some blocks were taken from the queue, by an order. law: POLICY-2."""
        order.tells_gone = self._history is not None
        order.take(ids, start, at, stop)
        if self._history is not None:
            # An offloading engine passes hints on with the block, and the order forgets them as it gives the block up.
            self._history.hints = order.gone
        while at < stop:
            block = i64(ids[at])
            self._evict(block, 1)
            order.lost(block)
            self._rows[4 * block + LINK] = -1
            at += 1
        if len(order.gone) > 0:
            order.gone.clear()

    def _take_one(self) -> i64:
        """Take one block, and return it. O(1), O(log n) by access."""
        order = self._order
        if order is not None and not order.in_queue:
            ids = zeros32(1)
            self._fill(ids, 0, 1)
            return i64(ids[0])
        # Decoding takes one block at a time, for which the loop of `_fill` would cost as much as the taking.
        assert self._num_free > 0, "blocks are counted before they are taken"
        rows = self._rows
        block = rows[LINK] >> 32
        if self._rows[4 * block + MARK] != 0:
            self._evict(block, 1)
        if order is not None:  # only now: the eviction tells whether the block was passing
            order.taken(block)
        join(rows, 0, rows[4 * block + LINK] >> 32)
        rows[4 * block + LINK] = -1
        self._version += 1
        self._num_free -= 1
        for each in self._listeners:
            self._one[0] = i32(block)
            each.take(self._one, 0, 1)
        return block

    def _evict(self, block: i64, count: i64) -> None:
        """Drop the keys of the candidates that are taken: `count` blocks from one on, as the queue has them.

        law: KEY-1.
        """
        # law: STEP-2
        if len(self._listeners) == 0:
            # All keys of the run are dropped at the first of its candidates, while the slots that were read ahead are
            # in the cache.
            self._num_evictions += self._index.drop_run(block, count)
            return
        order = self._order
        while count > 0:
            if self._rows[4 * block + MARK] != 0:
                self._num_evictions += 1
                passes = order is not None and order.is_passing(block)
                self._forget_key(block, PASSED if passes else EVICTED)
            block = self._rows[4 * block + LINK] >> 32
            count -= 1

    def _forget_key(self, block: i64, cause: i64, units: i64 = 0) -> None:
        """Take its key from a published block, and those of its parts beyond its first units. O(parts of the block)."""
        index = self._index
        if index.num_parts == 0 and len(self._listeners) == 0 and self.is_whole(block):
            index.drop(block)  # as most often: slots that are given back would wait for the rest
            return
        self._tell_parts(block, units, cause)
        if self.is_whole(block):
            for each in self._listeners:
                low, high, group = index.key(block)
                each.forget(block, low, high, group, index.is_single(block), cause)
            index.drop(block)
        index.forget_parts(block, units)

    def _tell_parts(self, block: i64, units: i64, cause: i64) -> None:
        """Tell that the parts of a block beyond its first units are about to lose their keys. O(parts of the block)."""
        index = self._index
        for each in self._listeners:
            number = index.newest_part(block)
            while number != 0:
                if index.units_of(number) > units:
                    each.forget_part(number, block, index.key(number), index.is_single(number), cause)
                number = index.part_after(number)

    def _touch_entries(self, ids: vec[i32], is_outside: bool = False, is_hit: bool = False) -> None:
        """Hold each non-null block of a hit once more, or of a connector; free ones leave the queue. law: REF-1."""
        for each in self._listeners:
            each.hold(ids, is_hit)
        self._hold(ids, is_outside)

    def _hold(self, ids: vec[i32], is_outside: bool) -> None:
        """Do the same, and tell nobody but the order."""
        order = self._order
        if order is not None and not order.in_queue:
            # Put into the queue, they are taken out by the loop below like all other free blocks.
            self._line_up(order.leave(ids))
        self._version += 1
        rows = self._rows
        # Blocks that stand side by side in the queue, as those of a prefix do, leave it in one go: then `front` and
        # `behind` are side by side.
        front = rows[LINK] & BEFORE
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
                if order is not None:
                    order.shared(block, is_outside)
                rows[4 * block + LINK] = link - 1
                continue
            if block != front:
                join(rows, front, behind)
                link = rows[4 * block + LINK]
                behind = link >> 32
            front = link & BEFORE
            if order is not None:
                order.held(block, front, is_outside)
            self._num_free -= 1
            rows[4 * block + LINK] = -1
        join(rows, front, behind)

    def _adopt(self, ids: vec[i32]) -> None:
        """Hold the non-null blocks of a hit for a request, and tell the order of it. law: REF-1, ORDER-2."""
        self._touch_entries(ids, False, True)
        if self._order is not None:
            self._order.hit(ids)

    def _release(self, ids: vec[i32], start: i64, stop: i64, cause: i64 = EVICTED) -> None:
        """Give up one holder of each non-null entry in a range of a table, last entry first. law: REF-1, QUEUE-1.

        Blocks without a holder go to the queue: behind the eviction candidates if published, to the head if not. If
        that loses a key later, it is lost by this cause.
        """
        order = self._order
        for each in self._listeners:
            each.release(ids, start, stop, cause)
        if order is None:
            self._let_go_by_age(ids, start, stop)
        else:
            self._num_free += order.release(self, ids, start, stop)
            self._version += 1

    def _let_go_by_age(self, ids: vec[i32], start: i64, stop: i64) -> None:
        """Give up one holder of each entry in a range, where candidates are evicted in the order of their release."""
        rows = self._rows
        # From the end on: the last block of a prefix is of use to the fewest requests, so it is to be evicted first.
        i = stop
        # The tail and the block before it are kept in locals for the whole range: the next block waits for no write to
        # the ring.
        tail = rows[LINK] & BEFORE
        ahead = rows[4 * tail + LINK] & BEFORE
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
                insert(rows, block, 0)
                if tail == 0:
                    tail = block
                ahead = rows[4 * tail + LINK] & BEFORE
        rows[LINK] = rows[LINK] & AFTER | tail
        self._version += 1
        self._num_free += freed

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
            is_shared = self.ref_count(other) > self.num_others(other)
            if is_shared and self.carries(other, keys, index, group, block_size):
                return other
            other = rings.next_duplicate(other, oldest)
        return block

    def _drop_double(self, block: i64) -> None:
        """Take its key from a block that one table holds, and that others carry as well. O(duplicates). law: FOLD-1."""
        order = self._order
        if order is None:
            self.drop_key(block)
        else:
            order.folded(self, block)

    def drop_key(self, block: i64) -> None:
        """See `Page.drop_key`."""
        self._forget_key(block, MERGED)

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
        return count - self.num_others(block) if count > 1 else count

    def num_others(self, block: i64) -> i64:
        """Return the number of holders of one block that are no tables: copies to come, and from outside. O(1)."""
        # A copy holds both of its ends, but it writes no more than its destination: it shares with no request.
        return self.num_external_holders(block) + self._copies.holders_of(block)

    def has_copies(self) -> bool:
        """Return whether copies are to come. O(1)."""
        return len(self._copies.pending) > 0

    def is_destination(self, block: i64) -> bool:
        """Return whether a copy to come goes to a block. O(1)."""
        return self._copies.source_of(block) != 0

    def _copy_on_write(self, block: i64, group: i64) -> i64:
        """Move one holder of a shared block to a new one, and note that the content is to be copied. O(1).

        Both are also held by the copy until it is taken, so that neither is handed out before the copy has been run.
        The caller has checked that a block is free. law: COPY-1, COPY-2.
        """
        assert self.ref_count(block) > 1 or self._index.has_key(block), "only what others read is copied"
        rows, copies = self._rows, self._copies
        copies.reserve(1)
        new = self._take_one()
        # One holder is the writer, the other the copy: neither end may be handed out before the engine has run the
        # copy.
        rows[4 * new + LINK] = -2
        left = block
        source = copies.source_of(block)
        if source != 0:
            # What is still to be copied there is copied from the same source, so that the order of copies is free.
            rows[4 * block + LINK] += 1
            block = source
            rows[4 * block + LINK] -= 1
        for each in self._listeners:
            each.copy_on_write(left, block, new)
        copies.note(group, block, new)
        return new

    def _reserve_copies(self, count: i64) -> None:
        """Take the memory for `count` more copies to come; nothing else changes."""
        self._copies.reserve(count)

    def _end_copies(self) -> None:
        """Release both ends of the copies to come, which the engine has taken. O(copies)."""
        pending = self._copies.pending
        size: i64 = len(pending)
        if size == 0:
            return
        # All memory is taken before the first end is let go, so that a MemoryError leaves every copy to come as it was.
        last = vec[i32](capacity=size)
        room = vec[i32](capacity=12)
        try:
            self._end(pending, last)
            self._copies.pending = room
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
            copies: i64 = self._copies.let_go(block) if at % 3 != 0 else 0  # before each two ends stands their group
            at += 1
            if copies == 0:
                continue
            rows[4 * block + LINK] += copies
            if rows[4 * block + LINK] >= 0:
                # The last holder is given up by `_release`, which alone knows where in the queue a block goes.
                rows[4 * block + LINK] = -1
                copies -= 1
                last = append(last, i32(block))
            while copies > 0:
                copies -= 1
                for each in self._listeners:
                    each.release(pending, at - 1, at, UNNOTED)
        self._release(last, 0, i64(len(last)), UNNOTED)

    def pending_copies(self) -> list[tuple[int, int, int]]:
        """Return the copies to come as (group, source, destination), oldest first; they stay to come. O(copies)."""
        return self._copies.listed()

    # ------------------------------------------------------------------ the prefix index

    def find(self, keys: BlockKeys, index: i64, group: i64, block_size: i64) -> i64:
        """Return the block that serves a hit on the request's block `index`, or 0. O(1)."""
        low, high = keys.key(index)
        block = self._index.find(low, high, group)
        history = self._history
        if history is None:
            return block
        oldest = block
        while block != 0 and not history.holds(block, keys, index, block_size):
            block = self._index.next_duplicate(block, oldest)
        return block

    def find_run(self, ids: vec[i32], keys: BlockKeys, group: i64, block_size: i64, start: i64, stop: i64) -> i64:
        """Write the blocks that serve the request's blocks start, start + 1, ... to `ids`; return the first missing.

        Complexity: one lookup per block, and little is hashed beyond the first missing.
        """
        i = start
        if not self.verifies_tokens:
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

        Complexity: one lookup per block. Where contents are compared, and a block may be refused, none is written.
        """
        if not self.verifies_tokens:
            keys.ensure_keys(start + 1)
            self._index.find_run(keys.words, 2 * keys.units, group, ids, start, stop - 1, -1)

    def loss(self, keys: BlockKeys, index: i64, group: i64) -> i64:
        """Return how the key of the request's block `index` was lost; 0 if no loss is known, -1 if none are noted.

        O(1).
        """
        losses = None if self._history is None else self._history.losses
        if losses is None:
            return -1
        low, high = keys.key(index)
        return losses.cause(low, high, group)

    def carries(self, block: i64, keys: BlockKeys, index: i64, group: i64, block_size: i64) -> bool:
        """Return whether a block is published under exactly the key of the request's block `index`. O(1)."""
        low, high = keys.key(index)
        if not self._index.matches(block, low, high, group):
            return False
        return self._history is None or self._history.holds(block, keys, index, block_size)

    @property
    def verifies_tokens(self) -> bool:
        """Whether hits are verified token by token."""
        return self._history is not None and self._history.contents is not None

    def is_to_pass(self, block: i64) -> bool:
        """Return whether a block, which may be the null block, is a passing candidate. O(1)."""
        order = self._order
        return order is not None and block != 0 and self.ref_count(block) == 0 and order.is_passing(block)

    def all_pass(self, block: i64) -> bool:
        """Return whether a block that serves hits and its duplicates are passing candidates. O(duplicates)."""
        oldest = block
        while block != 0 and self.is_to_pass(block):
            block = self._index.next_duplicate(block, oldest)
        return block == 0

    def content(self, block: i64) -> tuple[i64, bool]:
        """See `Page.content`."""
        index = self._index
        if index.is_part(block):
            block = index.longest_part(block)
        return index.key(block)[0], index.is_single(block)

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
        if self.verifies_tokens:
            while i < bad and self.carries(i64(ids[i]), keys, i, group, block_size):
                i += 1
            bad = i
        if bad < size:
            raise StaleHitError(
                f"new_computed_blocks: block {ids[bad]} at entry {bad} no longer holds this request's prefix; "
                "look the hit up again"
            )

    def _units_for(self, request: Request, block_size: i64) -> i64:
        """Return the hashed units of a request in a block, after checking that its keys will do for this pool.

        Raises:
            InvalidArgumentError: another block size, or a hasher that this pool must not rely on.
        """
        # A request that was made without a size takes that of the first manager it is brought to.
        if request._block_size < 0:
            request.hash_by(block_size)
        if request._block_size == block_size:
            units: i64 = 1
        else:
            units = units_per_block(request, block_size)
        history = self._history
        # Equal keys of different prefixes would hand one user's data to another, so nothing is left to chance.
        if not request.hasher.is_collision_resistant and (history is None or history.contents is None):
            raise InvalidArgumentError(
                f"request: the hasher of {request.request_id!r} is not collision resistant; "
                "make the manager with verify_tokens=True"
            )
        if history is not None and history.events is not None and not request.hasher.is_portable:
            raise InvalidArgumentError(
                "request: events need keys that other processes share; "
                f"make {request.request_id!r} with hasher=Sha256Hasher(seed)"
            )
        return units

    def _publish(
        self, ids: vec[i32], request: Request, units: i64, group: i64, block_size: i64, start: i64, stop: i64
    ) -> None:
        """Make the full, non-null blocks of a range of a table findable. law: PUB-1, PUB-2.

        Takes no memory, except for events, if the caller has had the keys made.
        """
        request.hash_until(stop * units)
        index, listeners, order, words = self._index, self._listeners, self._order, request._words
        if len(self._salt_marks) > 0 or request._salt_mark != 0 or request._adapter_mark != 0:
            self._mark_run(ids, start, stop, request._salt_mark, request._adapter_mark)
        if len(listeners) == 0:
            index.add_run(words, 2 * units, group, ids, start, stop)
        else:
            i = start
            while i < stop:
                block: i64 = i64(ids[i])
                if block != 0 and not self.is_whole(block):
                    at: i64 = 2 * ((i + 1) * units - 1)
                    is_new = index.add(block, words[at], words[at + 1], group)
                    for each in listeners:
                        each.publish(block, request, units, i, group, block_size, is_new)
                i += 1
        if order is not None:
            self._version += order.published(self, ids, start, stop)

    def _keep_tails(self) -> None:
        """Let blocks be published in parts too, in a pool that nothing was taken from."""
        self._index.keep_parts()
        self._rows = self._index.rows
        self._go_by(self._order)

    def _reserve_tails(self, count: i64) -> None:
        """Take the memory for `count` more parts."""
        if self._index.has_parts:
            self._index.reserve_parts(count)
            self._rows = self._index.rows
            self._go_by(self._order)  # which reads the same rows

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
        index, words, hashed = self._index, request._words, request._block_size
        if len(self._listeners) == 0:
            index.add_parts(ids, words, hashed, lengths, start, stop, group, block_size, unit)
            return
        while start < stop:
            length, before = lengths[start], index.num_parts
            at = 2 * (length // hashed - 1)
            is_new = index.find_part(words[at], words[at + 1], group) == 0
            index.add_parts(ids, words, hashed, lengths, start, start + 1, group, block_size, unit)
            if index.num_parts > before:
                number = index.newest_part(i64(ids[length // block_size]))
                for each in self._listeners:
                    each.publish_part(number, request, length, group, block_size, is_new)
            start += 1

    def find_part(self, request: Request, length: i64, group: i64) -> i64:
        """Return a block that is published as a part which ends after `length` tokens of a request, or 0. O(1)."""
        at = 2 * (length // request._block_size - 1)
        index, history = self._index, self._history
        number = oldest = index.find(request._words[at], request._words[at + 1], -1 - group)
        while number != 0 and history is not None and not history.holds_part(number, request, length):
            number = index.next_duplicate(number, oldest)
        return 0 if number == 0 else index.block_of(number)

    def has_part(self, block: i64, request: Request, length: i64, group: i64) -> bool:
        """Return whether a part of a block ends after `length` tokens of a request. O(parts of the block)."""
        at = 2 * (length // request._block_size - 1)
        index, history = self._index, self._history
        low, high = request._words[at], request._words[at + 1]
        number = index.newest_part(block)
        while number != 0:
            is_same = index.matches(number, low, high, -1 - group)
            if is_same and (history is None or history.holds_part(number, request, length)):
                return True
            number = index.part_after(number)
        return False

    def part_loss(self, request: Request, length: i64, group: i64) -> i64:
        """Return how the key of the part was lost that ends after `length` tokens of a request; see `loss`. O(1)."""
        losses = None if self._history is None else self._history.losses
        at = 2 * (length // request._block_size - 1)
        return -1 if losses is None else losses.cause(request._words[at], request._words[at + 1], -1 - group)

    def is_whole(self, block: i64) -> bool:
        """Return whether a block is published as a whole. O(1)."""
        return self._rows[4 * block + MARK] > PARTS

    def is_beyond(self, block: i64, units: i64) -> bool:
        """Return whether a block is published as more than its first units. O(parts of the block)."""
        return self.is_whole(block) or self._index.longest_units(block) > units

    def has_tail(self, block: i64) -> bool:
        """Return whether a block is published in parts alone. O(1)."""
        return self._index.is_part(block)

    def _save_tails(self, block: i64, group: i64) -> i64:
        """Let the keys of a block that is about to be written over go to a new one, and note the copy. O(1).

        The copy holds both until it is taken; the new one is then a candidate. The caller has made room, and has
        checked that a block is free. law: UNIT-7, COPY-2.
        """
        new = self._take_one()
        self._index.move_part(block, new)
        self._rows[4 * block + LINK] -= 1
        self._copies.note(group, block, new)
        return new

    def _cut_off(self, block: i64, units: i64) -> None:
        """Take their keys from what a held block is published as beyond its first units. O(its parts). law: UNIT-8."""
        self._forget_key(block, EVICTED, units)

    def _drop_tails(self, block: i64) -> None:
        """Take their keys from the parts of a held block, which is about to be written over. O(parts of the block)."""
        self._tell_parts(block, 0, EVICTED)
        self._index.forget_parts(block)

    def tail_keys(self) -> list[list[bytes]]:
        """Return, by block id, the 16-byte keys of the parts that it is published as. O(num_blocks + parts)."""
        return [self._index.part_keys(i64(block)) for block in range(self._count)]

    def published_whole(self) -> list[bool]:
        """Return for each block, by id, whether it is published as a whole. O(num_blocks)."""
        return [self.is_whole(i64(block)) for block in range(self._count)]

    def _publish_told(self, block: i64, event: BlockStored) -> None:
        """Make a held block findable under the key of an event of another process. O(1). law: PUB-1."""
        digest = cast("bytes", event.block_hash)
        low, high = hash_words(digest)
        salt, adapter = owner_mark(event.cache_salt), owner_mark(event.lora_name)
        if len(self._salt_marks) > 0 or salt != 0 or adapter != 0:
            self._mark_run(vec[i32]([i32(block)]), 0, 1, salt, adapter)
        is_new = self._index.add(block, low, high, event.group_id)
        for each in self._listeners:
            each.publish_event(block, event, is_new)

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
        self._index.add_each(words[at], words[at + 1], blocks, count)

    def _reserve_marks(self) -> None:
        """Take the memory for the marks of salts and adapters, as publishing takes none. O(count) once, then O(1)."""
        if len(self._salt_marks) == 0:
            salts, adapters = zeros64(self._count), zeros64(self._count)
            self._salt_marks, self._adapter_marks = salts, adapters

    def _mark_run(self, ids: vec[i32], start: i64, stop: i64, salt: i64, adapter: i64) -> None:
        """Note the salt and the adapter of blocks that are being published; published ones keep theirs. O(blocks)."""
        self._reserve_marks()
        salts, adapters = self._salt_marks, self._adapter_marks
        while start < stop:
            block: i64 = i64(ids[start])
            if not self.is_whole(block):
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
        low, high = keys.key(index)
        oldest = self._index.find(low, high, group)
        block, history = oldest, self._history
        found: list[int] = []
        while block != 0:
            if history is None or history.holds(block, keys, index, block_size):
                found.append(int(block))
            block = self._index.next_duplicate(block, oldest)
        return found

    def _forget(self, blocks: vec[i32], is_all: bool) -> None:
        """Take the keys of published blocks away; the free ones are taken next. O(blocks). law: FORGET-1, FORGET-2.

        If these are all, one event reports it, and the parts of blocks go too.
        """
        rows, cause = self._rows, CLEARED if is_all else RESET
        free = vec[i32](capacity=i64(len(blocks)))
        for block in blocks:
            if rows[4 * i64(block) + LINK] >= 0:
                free = append(free, block)
        try:
            # Held for the moment, so that they leave the queue with their keys, and come back to it without.
            self._touch_entries(free)
            if is_all and self._history is not None:
                self._history.forget_all(self._index)
            for each in blocks:
                self._forget_key(i64(each), cause)
                if self._order is not None:  # a connector may hold what its last request left as passing
                    self._order.lost(i64(each))
            self._release(free, 0, i64(len(free)), UNNOTED)
            self._version += 1
        except BaseException:
            self._tear()
            raise

    def _unpublish(self, block: i64, units: i64) -> bool:
        """Take from a held block each key of more than its first units; return whether it had any.

        O(tails of the block). law: GIVEN-1.
        """
        if not self.is_beyond(block, units):
            return False
        self._forget_key(block, RESET, units)
        if self._order is not None:
            self._order.lost(block)
        self._version += 1
        return True

    def is_plain(self) -> bool:
        """Return whether nobody listens, and candidates wait in the queue. O(1).

        Then it makes no difference whether a group publishes before or after the next one takes.
        """
        return len(self._listeners) == 0 and (self._order is None or self._order.in_queue)

    def _forget_all(self, num_reserved: i64 = 0) -> bool:
        """Drop every key; False, and nothing happens, while any block is held but `num_reserved` ones without content.

        Complexity: O(count), O(1) where no block carries a key.
        """
        # A held block may be read by its request at any time, so that its content must stay what its key says.
        if self._num_free + num_reserved != self._size - 1 or (
            self._size < self._count and len(self.held_beyond()) > 0
        ):
            return False
        try:
            for each in self._listeners:
                each.forget_all(self._index)
            self._index.clear()
            order = self._order
            if order is not None:
                blocks = order.clear()
                self._line_up(blocks)
                for block in blocks:
                    order.lost(block)
            self._version += 1
        except BaseException:
            self._tear()
            raise
        return True

    def _line_up(self, blocks: list[int]) -> None:
        """Put candidates that are about to be taken or held at the end of the queue."""
        rows = self._rows
        for block in blocks:
            insert(rows, block, rows[LINK] & BEFORE)

    # ------------------------------------------------------------------ self-check

    def check(self) -> None:
        """Recompute the pool's own invariants from scratch. O(num_blocks).

        Raises:
            InvariantError: names the law and shows both sides.
        """
        self.require_whole()
        keyed = self.published()
        refs = self.ref_counts()[: self._size]
        check_queue(int(self._num_free), self.free_block_ids(), self._backwards(), refs, keyed)
        demand("RESIZE-1", "published blocks beyond the end", False, any(keyed[self._size :]))
        loose = [block for block in range(self._size, self._count) if self._rows[4 * i64(block) + LINK] >= 0]
        demand("RESIZE-1", "free blocks beyond the end", [], loose)
        numbers = check_index(self._index, keyed)
        if self._order is not None:
            self._order.check(self.free_block_ids(), keyed)
        self._copies.check()
        apart = self.holders_apart()
        over = [block for block, times in enumerate(apart) if not 0 <= times <= int(self.ref_count(block))]
        demand("OUTSIDE-1", "blocks with more holders from outside than holders", [], over)
        demand("OUTSIDE-1", "blocks held from outside", len([n for n in apart if n > 0]), self.num_held_externally)
        if self._history is not None:
            whole = self.published_whole()
            self._history.check([block for block in range(self._count) if whole[block]], numbers)

    def _backwards(self) -> list[int]:
        """Return the free queue from its tail, cut off if it runs in a circle."""
        ids = listed(self._rows, self._count, True)
        order = self._order
        return ids if order is None else order.candidates()[::-1] + ids
