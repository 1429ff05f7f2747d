"""In which order eviction candidates go, where that is not the order in which they were released."""

from __future__ import annotations

from typing import NamedTuple, final

from librt.vecs import vec
from mypy_extensions import i32, i64

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


class CandidateOrder:
    """The order in which a store evicts.

    The store reports each block that becomes a candidate, is held again or is taken.

    Attributes:
        size: how many candidates there are.
        tells: whether `note` is called for each published block that a holder releases.
        tells_gone, gone: whether anybody wants to know of the blocks that are being taken the priorities and times with
            which they were still kept; and these.
        keeps_doubles: whether a candidate may have the content of another published block.
    """

    def __init__(self) -> None:
        """Start without candidates."""
        self.size: i64 = 0
        self.tells = False
        self.keeps_doubles = True
        self.tells_gone = True
        self.gone: dict[int, tuple[int, float]] = {}

    def copy(self) -> CandidateOrder:
        """Return an independent copy."""
        raise NotImplementedError

    def add(self, block: i64, is_passing: bool = False) -> None:
        """Make a block a candidate, after all that are; whether no wanted hit needs it."""
        raise NotImplementedError

    def take(self, ids: vec[i32], start: i64, at: i64, stop: i64) -> None:
        """Take out the candidates that are evicted first, and write them to the entries from `at` on.

        Blocks without content have been taken into those from `start` on.
        """
        raise NotImplementedError

    def leave(self, ids: vec[i32]) -> list[int]:
        """Take out those of some blocks that are candidates, since they are held again, and return them."""
        raise NotImplementedError

    def withdraw(self, block: i64) -> None:
        """Take out one candidate. Only where no candidate is a duplicate."""
        raise NotImplementedError

    def clear(self) -> list[int]:
        """Take out all candidates, which lose their content, and return them in the order in which they would go."""
        raise NotImplementedError

    def candidates(self) -> list[int]:
        """Return the candidates in the order in which they go, as far as that is settled."""
        raise NotImplementedError

    def is_sound(self) -> bool:
        """Return whether the order's own records agree, for the self-check."""
        raise NotImplementedError

    def hit(self, ids: vec[i32], index: PrefixIndex) -> None:
        """Note that a request has adopted the non-null ones of some published blocks."""

    def is_passing(self, block: i64) -> bool:
        """Return whether the last holder of a block that is being taken wanted no hit that needs it."""
        return False

    def forget(self, block: i64) -> None:
        """Forget all of a block that is free and has no content any more."""

    def disown(self, block: i64) -> None:
        """Note that a block without key is held from outside alone: it is no tenant's."""

    def note(self, ids: vec[i32], at: i64, stop: i64, index: PrefixIndex, is_free: bool) -> None:
        """Note that a holder releases the published block at an entry of a range; `is_free` if it was the last."""

    def merge(self, block: i64, double: i64) -> None:
        """Merge the records of a duplicate that is about to lose its content into those of a block."""
