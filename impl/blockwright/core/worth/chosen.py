"""The order of candidates that an engine brings: it is shown the candidates and chooses the one to evict.

All that it knows it is told: `released` when a block becomes a candidate, `taken` when it is one no more, and `hit`
when a request adopts a block. An order that has none of these is not told, and costs no call but `choose`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, NamedTuple, Protocol, final

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright.core.keys.block_hash import word_bytes
from blockwright.core.pool.order import CandidateOrder
from blockwright.core.worth.classes import Classes
from blockwright.core.worth.ranked import RankedOrder
from blockwright.errors import EvictionPolicyError


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

    def __init__(self, candidates: OrderedDict[int, Candidate]) -> None:
        """Show the candidates of an order, by block."""
        self._candidates = candidates

    def __len__(self) -> int:
        """Return how many there are. O(1)."""
        return len(self._candidates)

    def __iter__(self) -> Iterator[Candidate]:
        """Return an iterator; each step is O(1), so that a policy need not look at all."""
        return CandidateIterator(self)

    def end(self) -> None:
        """Show none any more, since the policy has chosen."""
        self._candidates = OrderedDict()


@final
class CandidateIterator:
    """Reads the candidates, one after another."""

    def __init__(self, shown: Candidates) -> None:
        """Begin with the least recently released one."""
        self._shown = shown
        self._rest: Iterator[Candidate] = iter(shown._candidates.values())

    def __iter__(self) -> CandidateIterator:
        """Return itself."""
        return self

    def __next__(self) -> Candidate:
        """Return the next one; the iteration ends once the policy has chosen."""
        if len(self._shown) == 0:
            raise StopIteration
        return next(self._rest)


@final
class ChosenOrder(RankedOrder):
    """Has a policy choose each candidate that goes.

    Attributes:
        policy: the policy that chooses.
    """

    def __init__(self, policy: EvictionPolicy, classes: Classes | None = None) -> None:
        """Start without candidates."""
        super().__init__(classes)
        self.policy = policy
        self._released: Any = getattr(policy, "released", None)
        self._taken: Any = getattr(policy, "taken", None)
        self._hit: Any = getattr(policy, "hit", None)
        self._candidates: OrderedDict[int, Candidate] = OrderedDict()  # least recently released first

    def copy(self) -> CandidateOrder:
        """Return an independent copy, with a deep copy of the policy. O(candidates)."""
        # A policy that is shared would learn from the choices of both copies.
        twin = ChosenOrder(deepcopy(self.policy), None if self.classes is None else self.classes.copy())
        twin.size = self.size
        twin._candidates = self._candidates.copy()
        return twin

    def _candidate(self, block: i64, is_passing: bool) -> Candidate:
        low, high, group = self.index.key(block)
        return Candidate(int(block), word_bytes(low, high), int(group), is_passing)

    def add(self, block: i64, is_passing: bool = False) -> None:
        """Make a block a candidate, after all that are. O(1). law: ORDER-1."""
        assert int(block) not in self._candidates, "a candidate is added once"
        self.size += 1
        self._candidates[int(block)] = found = self._candidate(block, is_passing)
        if self._released is not None:
            self._released(found)

    def hit(self, ids: vec[i32]) -> None:
        """Tell the policy which blocks a request adopts. O(blocks). law: ORDER-2."""
        if self._hit is not None:
            for block in ids:
                if block != 0:
                    self._hit(self._candidate(i64(block), False))

    def _leave(self, block: int) -> None:
        """Take a candidate out. O(1)."""
        found = self._candidates.pop(block)
        self.size -= 1
        if self._taken is not None:
            self._taken(found)

    def leave(self, ids: vec[i32]) -> list[int]:
        """Take out those of some blocks that are candidates, and return them. O(blocks)."""
        blocks = [int(block) for block in ids if int(block) in self._candidates]
        for block in blocks:
            self._leave(block)
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

    def _chosen(self) -> int:
        """Return the block that the policy chooses now."""
        policy: Any = self.policy  # whose answer may be anything
        shown = Candidates(self._candidates)
        try:
            answer: object = policy.choose(shown)
        finally:
            shown.end()
        # The answer is a caller's: a block that is no candidate may be held, and evicting it would corrupt its request.
        if isinstance(answer, Candidate) and answer.block_id in self._candidates:
            return answer.block_id
        raise EvictionPolicyError(
            f"eviction_order: choose() must return one of the {self.size} candidates that it is shown, not {answer!r}"
        )

    def clear(self) -> list[int]:
        """Take out all candidates, which lose their content, least recently released first. O(n)."""
        blocks = self.candidates()
        for block in blocks:
            self._leave(block)
        return blocks

    def candidates(self) -> list[int]:
        """Return the candidates, least recently released first; which one goes is the policy's choice. O(n)."""
        return list(self._candidates)

    def is_sound(self) -> bool:
        """Return whether each candidate is known by its own id, for the self-check. O(n)."""
        names = [each.block_id for each in self._candidates.values()]
        return names == self.candidates() and len(names) == int(self.size)
