"""Orders that have the candidates themselves, so that the store's queue holds only blocks without content."""

from __future__ import annotations

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright.core.pool.check import demand
from blockwright.core.pool.index import LINK, MARK
from blockwright.core.pool.order import CandidateOrder, Page
from blockwright.core.pool.queue import insert
from blockwright.core.worth.classes import Classes


class RankedOrder(CandidateOrder):
    """Base: the release of a table, and the self-check.

    Attributes:
        tells: whether `note` is called for each published block that a holder releases.
        keeps_doubles: whether a candidate may have the content of another published block.
        classes: which blocks are passing, where that is noted.
        pool_size: the pool ends before this block.
    """

    def __init__(self, classes: Classes | None = None) -> None:
        """Start without candidates."""
        super().__init__()
        self.tells = False
        self.keeps_doubles = True
        self.pool_size: i64 = 1 << 31
        self.classes: Classes | None = classes

    def release(self, page: Page, ids: vec[i32], start: i64, stop: i64) -> i64:
        """See `CandidateOrder.release`. law: REF-1, QUEUE-1."""
        classes, rows, index = self.classes, self.rows, self.index
        freed: i64 = 0
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
            if is_published and self.tells:
                self.note(page, ids, i, stop, count == 0)
            if count > 0:
                if classes is not None:
                    classes.left(page, i, block, count, is_published)
                if not is_published and count == page.num_external_holders(block):
                    self.disown(block)
                if block >= self.pool_size and count == 1:  # the pool alone holds it, and for good
                    self.forget(block)
                continue
            freed += 1
            if is_published and (self.keeps_doubles or index.is_single(block)):
                passes = classes is not None and classes.is_passing(i, block)
                if classes is not None and passes:
                    classes.note(block, True)
                elif classes is not None:
                    classes.note_ordinary(ids, i, i + 1)
                self.add(block, passes)
                continue
            if is_published:
                # A second candidate with the same content would take a place in its tenant's share, and no lookup would
                # find it.
                self.folded(page, block)
            self.lost(block)
            self.forget(block)
            insert(rows, block, 0)
        return freed

    def held(self, block: i64, before: i64, is_outside: bool) -> None:
        self.shared(block, is_outside)

    def shared(self, block: i64, is_outside: bool) -> None:
        if self.classes is not None:
            self.classes.note(block, is_outside and self.classes.is_noted(block))

    def lost(self, block: i64) -> None:
        if self.classes is not None:
            self.classes.of[block] = 0

    def is_passing(self, block: i64) -> bool:
        return self.classes is not None and self.classes.is_noted(block)

    def class_of(self, block: i64) -> i64:
        return 0 if self.classes is None else self.classes.class_of(block)

    def check(self, queue: list[int], keyed: list[bool]) -> None:
        """See `CandidateOrder.check`. O(count)."""
        demand("QUEUE-1", "what is remembered of candidates agrees with itself", True, self.is_sound())
        bare = [block for block in self.candidates() if not keyed[block]]
        demand("QUEUE-1", "candidates that are not published", [], bare)

    def add(self, block: i64, is_passing: bool = False) -> None:
        """Make a block a candidate, after all that are; whether no wanted hit needs it."""
        raise NotImplementedError

    def is_sound(self) -> bool:
        """Return whether the order's own records agree, for the self-check."""
        raise NotImplementedError

    def resize(self, end: i64) -> None:
        self.pool_size = end

    def disown(self, block: i64) -> None:
        """Note that a block without key is held from outside alone: it is no tenant's."""

    def note(self, page: Page, ids: vec[i32], at: i64, stop: i64, is_free: bool) -> None:
        """Note that a holder releases the published block at an entry of a range; `is_free` if it was the last."""
