"""The order of candidates that an engine brings: it is shown the candidates and chooses the one to evict.

All that it knows it is told: `released` when a block becomes a candidate, `taken` when it is one no more, and `hit`
when a request adopts a block. An order that has none of these is not told, and costs no call but `choose`.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, NamedTuple, Protocol, final

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright.core.keys.block_hash import word_bytes
from blockwright.core.keys.packed import zeros32, zeros64
from blockwright.core.pool.index import PrefixIndex
from blockwright.core.pool.order.order import CandidateOrder
from blockwright.errors import EvictionPolicyError

_HELD: i32 = -1  # behind a block that is no candidate


class Candidate(NamedTuple):
    """A block that may go.

    Attributes:
        block_id: id within the pool.
        block_hash: the 16-byte key it is published under, the beginning of one of `Request.block_hashes`.
        group_id: the group of layers whose prefix it carries.
        is_passing: whether no hit that its last holder wanted needs it (``keep_wanted``).
    """

    block_id: int
    block_hash: bytes
    group_id: int
    is_passing: bool = False


class EvictionPolicy(Protocol):
    """What chooses the cached block that goes, whenever one has to: all that an order must be able to do."""

    def choose(self, candidates: Candidates) -> Candidate:
        """Return one of the candidates. It is evicted at once; the manager must not be called meanwhile."""


class EvictionOrder(EvictionPolicy, Protocol):
    """An order of eviction that is also told of what happens; each of these methods may be missing.

    They are called in the middle of the manager's calls, so they must neither call it nor fail. law: ORDER-1, ORDER-2.
    """

    def released(self, block: Candidate) -> None:
        """Learn of a block that has become a candidate. Of one table the last entry comes first."""

    def taken(self, block: Candidate) -> None:
        """Learn of a candidate that is one no more: it was chosen, is held again, or its content was forgotten."""

    def hit(self, block: Candidate) -> None:
        """Learn of a block that an admitted request adopts from its lookup, whether it was a candidate or is held.

        Once for each block of the hit, group by group, after `taken` was called for those that were candidates. Neither
        a lookup alone, nor a fork, nor a hold from outside is a hit.
        """


@final
class Candidates:
    """The candidates that a policy is shown, least recently released first; to be read until it has chosen."""

    def __init__(self, order: ChosenOrder, question: i64) -> None:
        """Show those of an order, while it asks a question."""
        self._order = order
        self._question: i64 = question

    def __len__(self) -> int:
        """Return how many there are. O(1)."""
        return self._order.size

    def __iter__(self) -> Iterator[Candidate]:
        """Return an iterator; each step is O(1), so that a policy need not look at all."""
        return CandidateIterator(self._order, self._question)


@final
class CandidateIterator:
    """Reads the candidates, one after another."""

    def __init__(self, order: ChosenOrder, question: i64) -> None:
        """Begin with the least recently released one."""
        self._order = order
        self._question: i64 = question
        self._at: i64 = 0

    def __iter__(self) -> CandidateIterator:
        """Return itself."""
        return self

    def __next__(self) -> Candidate:
        """Return the next one; the iteration ends once the policy has chosen."""
        order = self._order
        # A policy may keep its iterator; once it has chosen, the ring changes under it.
        if order.question == self._question:
            self._at = order.after(self._at)
            if self._at != 0:
                return order.candidate(self._at)
        raise StopIteration


@final
class ChosenOrder(CandidateOrder):
    """Has a policy choose each candidate that goes.

    Attributes:
        policy: the policy that chooses.
        question: changes whenever the policy begins or ends to choose.
    """

    def __init__(self, count: i64, policy: EvictionPolicy) -> None:
        """Start without candidates, for block ids below `count`. O(count)."""
        super().__init__()
        self.tells = True
        self.policy = policy
        self.question: i64 = 0
        self._released: Any = getattr(policy, "released", None)
        self._taken: Any = getattr(policy, "taken", None)
        self._hit: Any = getattr(policy, "hit", None)
        # A ring of the candidates, least recently released first, from block 0.
        self._after: vec[i32] = vec[i32]([_HELD] * count)
        self._before: vec[i32] = zeros32(count)
        self._after[0] = 0
        # The key of each block that was released, by its two words and its group.
        self._low: vec[i64] = zeros64(count)
        self._high: vec[i64] = zeros64(count)
        self._group: vec[i32] = zeros32(count)
        self._passes: vec[i32] = zeros32(count)

    def copy(self) -> CandidateOrder:
        """Return an independent copy, with a deep copy of the policy. O(count)."""
        # A policy that is shared would learn from the choices of both copies.
        twin = ChosenOrder(1, deepcopy(self.policy))
        twin.size = self.size
        twin._after = self._after[:]
        twin._before = self._before[:]
        twin._low = self._low[:]
        twin._high = self._high[:]
        twin._group = self._group[:]
        twin._passes = self._passes[:]
        return twin

    def after(self, block: i64) -> i64:
        """Return the candidate released after one, or the first after 0; 0 if there is no other. O(1)."""
        return i64(self._after[block])

    def candidate(self, block: i64) -> Candidate:
        """Return a candidate as a policy sees it. O(1)."""
        key = word_bytes(self._low[block], self._high[block])
        return Candidate(int(block), key, int(self._group[block]), self._passes[block] != 0)

    def note(self, ids: vec[i32], at: i64, stop: i64, index: PrefixIndex, is_free: bool) -> None:
        """Note the key of a block that is let go of; it keeps it as long as it is a candidate. O(1)."""
        block: i64 = i64(ids[at])
        self._low[block], self._high[block], group = index.key(block)
        self._group[block] = i32(group)

    def add(self, block: i64, is_passing: bool = False) -> None:
        """Make a block a candidate, after all that are. O(1). law: ORDER-1."""
        assert self._after[block] == _HELD, "a candidate is added once"
        self.size += 1
        self._passes[block] = 1 if is_passing else 0
        last: i64 = i64(self._before[0])
        self._after[last] = i32(block)
        self._before[block] = i32(last)
        self._after[block] = 0
        self._before[0] = i32(block)
        if self._released is not None:
            self._released(self.candidate(block))

    def hit(self, ids: vec[i32], index: PrefixIndex) -> None:
        """Tell the policy which blocks a request adopts. O(blocks). law: ORDER-2."""
        if self._hit is not None:
            for block in ids:
                if block != 0:
                    low, high, group = index.key(i64(block))
                    self._hit(Candidate(int(block), word_bytes(low, high), int(group)))

    def _leave(self, block: i64) -> None:
        """Take a candidate out. O(1)."""
        after = self._after[block]
        before = self._before[block]
        self._after[i64(before)] = after
        self._before[i64(after)] = before
        self._after[block] = _HELD
        self.size -= 1
        if self._taken is not None:
            self._taken(self.candidate(block))

    def leave(self, ids: vec[i32]) -> list[int]:
        """Take out those of some blocks that are candidates, and return them. O(blocks)."""
        blocks: list[int] = []
        for each in ids:
            block: i64 = i64(each)
            if block != 0 and self._after[block] != _HELD:
                self._leave(block)
                blocks.append(int(block))
        return blocks

    def take(self, ids: vec[i32], start: i64, at: i64, stop: i64) -> None:
        """Have the policy choose candidates, one after another, and take them out.

        Raises:
            EvictionPolicyError: it returned no candidate. law: POLICY-3.
        """
        while at < stop:
            block = self._chosen()
            self._leave(block)
            ids[at] = i32(block)
            at += 1

    def _chosen(self) -> i64:
        """Return the block that the policy chooses now."""
        policy: Any = self.policy  # whose answer may be anything
        self.question += 1
        try:
            answer: object = policy.choose(Candidates(self, self.question))
        finally:
            self.question += 1
        # The answer is a caller's: a block that is no candidate may be held, and evicting it would corrupt its request.
        if isinstance(answer, Candidate):
            found = answer.block_id
            if 0 < found < len(self._after) and self._after[found] != _HELD:
                return found
        raise EvictionPolicyError(
            f"eviction_order: choose() must return one of the {self.size} candidates that it is shown, not {answer!r}"
        )

    def is_passing(self, block: i64) -> bool:
        """Return whether the last holder of a block that is being taken wanted no hit that needs it. O(1)."""
        return self._passes[block] != 0

    def clear(self) -> list[int]:
        """Take out all candidates, which lose their content, least recently released first. O(n)."""
        blocks = self.candidates()
        for block in blocks:
            self._leave(block)
        return blocks

    def candidates(self) -> list[int]:
        """Return the candidates, least recently released first; which one goes is the policy's choice. O(n)."""
        found: list[int] = []
        block: i64 = i64(self._after[0])
        while block > 0 and i64(len(found)) <= self.size:
            found.append(int(block))
            block = i64(self._after[block])
        return found

    def is_sound(self) -> bool:
        """Return whether the ring holds each candidate once, for the self-check. O(count)."""
        known = self.candidates()
        for place, block in enumerate(known):
            if self._before[block] != (known[place - 1] if place > 0 else 0):
                return False
        there = [block for block in range(1, len(self._after)) if self._after[block] != _HELD]
        return len(known) == int(self.size) and sorted(known) == there
