"""The seam between the store of blocks and an order of eviction: what the order is told, and what it may ask.

A store without an order evicts candidates as they were released. The orders are in `worth`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, final

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright._copies import copy_fields
from blockwright.core.pool.index import PrefixIndex


@final
class Wish:
    """A hint for a request's blocks; it takes effect when they are released.

    Attributes:
        tokens, priority, until: the first `tokens` tokens are kept with a priority until a time; priority 0 keeps none.
        first: token from which on blocks are evicted first; -1 if none are.
    """

    def __init__(self, tokens: i64, priority: i64, until: float, first: i64) -> None:
        """Take the fields as they are."""
        self.tokens: i64 = tokens
        self.priority: i64 = priority
        self.until = until
        self.first: i64 = first


class BlockHint(NamedTuple):
    """The hint for one block that leaves the device.

    Attributes:
        tenant: cache salt of its tenant; None if it has none.
        priority: 1..100 to keep it; 0 if it is not kept.
        until: when that ends, on the engine's clock.
    """

    tenant: str | None = None
    priority: int = 0
    until: float = 0.0


class RuleInForce(NamedTuple):
    """By which rule candidates go.

    Attributes:
        name: "least recently used" or "least frequently used".
        since: requests that had been admitted for the first time as it came into force.
        lead: by how many tokens it hit more of late than the other, as its shadow says; older hits count less.
    """

    name: str
    since: int
    lead: int


class Page:
    """What an order may ask of its store: who holds a block besides tables, and what it holds."""

    def num_others(self, block: i64) -> i64:
        """Return the number of holders of one block that are no tables: copies to come, and from outside. O(1)."""
        raise NotImplementedError

    def num_external_holders(self, block: i64) -> i64:
        """Return how many of the holders of one block hold it from outside. O(1)."""
        raise NotImplementedError

    def content(self, block: i64) -> tuple[i64, bool]:
        """Return the low word of the key of all of a published block, and whether no other block has that key."""
        raise NotImplementedError

    def drop_key(self, block: i64) -> None:
        """Take its key from a block; others with the same content keep theirs. O(1)."""
        raise NotImplementedError


class CandidateOrder:
    """The order in which a store evicts.

    The store reports each block that becomes a candidate, is held again, is taken, is published or loses its content.

    Attributes:
        in_queue: whether candidates stay in the store's queue, at places that the order chooses.
        size: how many candidates the order has, which are then in no queue.
        rows, index: those of the store.
        now: the engine's time.
        serving: the tenant that blocks are taken for, by number.
        spares: how many of the last passing blocks are evicted by age.
        policy: the engine's own order, if it has one.
        learns: whether `admit` is called for each request that is admitted for the first time.
        is_use: whether what is released now counts as used: by a request that has ended, not by a connector, nor by one
            that comes back.
        tells_gone, gone: whether anybody wants to know of the blocks that are being taken the priorities and times with
            which they were still kept; and these.
    """

    rows: vec[i64]
    index: PrefixIndex

    def __init__(self) -> None:
        """Start without candidates."""
        self.in_queue = False
        self.size: i64 = 0
        self.now = 0.0
        self.serving: i64 = 0
        self.spares: i64 = 0
        self.policy: Any = None
        self.learns = False
        self.is_use = False
        self.tells_gone = True
        self.gone: dict[int, tuple[int, float]] = {}

    def attach(self, index: PrefixIndex) -> None:
        """Order the candidates of the store with this index from now on."""
        self.index = index
        self.rows = index.rows

    def copy(self) -> CandidateOrder:
        """Return an independent copy, to be attached to the copy of the store."""
        raise NotImplementedError

    def copied(self, twin: CandidateOrder) -> CandidateOrder:
        """Return an order of the same class with copies of all fields. O(num_blocks)."""
        copy_fields(self, twin, "rows", "index")
        return twin

    # ------------------------------------------------------------------ what the store reports

    def release(self, page: Page, ids: vec[i32], start: i64, stop: i64) -> i64:
        """Give up one holder of each non-null entry of a range, last entry first; return how many blocks are free now.

        Those without content go to the head of the queue, the others are candidates.
        """
        raise NotImplementedError

    def take(self, ids: vec[i32], start: i64, at: i64, stop: i64) -> None:
        """Write the candidates that are evicted first to the entries from `at` on, and note that they are taken.

        Blocks from the head of the queue have been taken into those from `start` on.
        """
        raise NotImplementedError

    def taken(self, block: i64) -> None:
        """Note that the first block of the queue is taken, where all candidates are in it. O(1)."""

    def leave(self, ids: vec[i32]) -> list[int]:
        """Take out those of some blocks that are candidates in no queue, as they are held again, and return them."""
        raise NotImplementedError

    def held(self, block: i64, before: i64, is_outside: bool) -> None:
        """Note that a free block, still behind another one in the queue, is held again: by a request, or outside."""

    def shared(self, block: i64, is_outside: bool) -> None:
        """Note that a block which somebody holds has one more holder, a request or one from outside."""

    def hit(self, ids: vec[i32]) -> None:
        """Note that a request has adopted the non-null ones of some published blocks."""

    def published(self, page: Page, ids: vec[i32], start: i64, stop: i64) -> i64:
        """Note that held blocks have been published; return how many candidates lost their content for them."""
        return 0

    def lost(self, block: i64) -> None:
        """Note that a block that is held, or was a candidate, has lost its content."""

    def folded(self, page: Page, block: i64) -> None:
        """Take its key from a block that is no candidate, since others carry it as well."""
        page.drop_key(block)
        self.lost(block)

    def forget(self, block: i64) -> None:
        """Forget all of a block that is free and has no content any more."""

    def resize(self, end: i64) -> None:
        """Note that the pool ends before a block from now on: no free block is beyond it."""

    def clear(self) -> list[int]:
        """Take out all candidates, which lose their content, and return those in no queue, first to go first."""
        raise NotImplementedError

    # ------------------------------------------------------------------ what the engine says

    def tenant(self, salt: str | None) -> i64:
        """Return the number of a request's tenant. O(1)."""
        return 0

    def begin(self, wish: Wish | None, block_size: i64) -> None:
        """Note the hint for a group's table that is released whole next. O(1)."""

    def end(self) -> None:
        """Note that the next release is not of a request's whole table. O(1)."""

    def admit(self, words: vec[i64], stride: i64, count: i64) -> None:
        """Learn of a prompt of `count` blocks that is admitted for the first time; takes no memory.

        Block i has its key in `words` at ``(i + 1) * stride - 2``.
        """

    # ------------------------------------------------------------------ what it answers

    def least(self) -> i64:
        """Return the blocks that a pool must have at least: those that belong to somebody."""
        return 0

    def rule(self) -> RuleInForce | None:
        """Return the rule that is in force, of an order that has several."""
        return None

    def candidates(self) -> list[int]:
        """Return the candidates in no queue in the order in which they go, as far as that is settled."""
        raise NotImplementedError

    def ranked(self) -> list[int]:
        """Return the candidates in no queue by what is known of their worth alone: not by who takes them."""
        return self.candidates()

    def is_passing(self, block: i64) -> bool:
        """Return whether the last holder of a candidate, or of one that is being taken, wanted no hit that needs it."""
        return False

    def class_of(self, block: i64) -> i64:
        """Return 1 for a passing block, 2 and 3 for one with which a prompt or an output ended, and 0 for others."""
        return 0

    def check(self, queue: list[int], keyed: list[bool]) -> None:
        """Check the order's own records, given all free blocks in their order, and whether each block has content.

        Raises:
            InvariantError: they disagree.
        """
        raise NotImplementedError
