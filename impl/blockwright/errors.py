"""Every error that Blockwright raises for input, in one tree.

All derive from `BlockwrightError`; each also derives from the builtin that a caller would have expected, so that
``except ValueError`` keeps working. An error leaves the state as it was: calls check first and act afterwards.

This module stays uncompiled: a compiled class cannot derive from `KeyError` or `NotImplementedError`.
"""

from __future__ import annotations

from blockwright._text import printable_lines


class BlockwrightError(Exception):
    """Base of all errors raised by this package."""

    def __str__(self) -> str:
        """Return the message as written (a `KeyError` would quote it), safe to show: it may quote others."""
        return printable_lines(str(self.args[0])) if self.args else ""


class InvalidArgumentError(BlockwrightError, ValueError):
    """An argument is outside its documented range; the message names it and the remedy."""


class InvalidCallError(BlockwrightError, TypeError):
    """A constructor has no such argument, lacks a needed one, or takes fewer by position; names class and argument."""


class UnknownRequestError(BlockwrightError, KeyError):
    """The request holds no blocks here: never admitted, or released already."""


class DuplicateRequestError(BlockwrightError, ValueError):
    """Two different requests use one id, or one request appears twice in a batch."""


class StaleHitError(BlockwrightError, ValueError):
    """A prefix hit no longer describes the request: evicted, reused, reset, or another request's."""


class StalePlanError(BlockwrightError, ValueError):
    """A plan no longer describes the pool or the request, or is another manager's; plan again."""


class UnknownStepError(BlockwrightError, KeyError):
    """No such step or load is in flight, or an older step has to be settled first."""


class BlockError(BlockwrightError, ValueError):
    """A block id cannot be used so: foreign, the null block, or not held."""


class InterruptedCallError(BlockwrightError, RuntimeError):
    """An earlier call ended in the middle of a change (no memory, an interrupt): make a new manager or pool."""


class EvictionPolicyError(BlockwrightError, ValueError):
    """An eviction policy chose a block that is no candidate.

    The call ended in the middle of a change: make a new manager.

    Attributes:
        law: id of the law that it broke.
    """

    law = "POLICY-3"


class NoFreeBlocksError(BlockwrightError, ValueError):
    """More blocks were asked for than are free."""


class NeverFitsError(BlockwrightError, ValueError):
    """A new request would hold more blocks than the pool has, even alone: no waiting helps.

    A hit that `KVCacheManager.get_computed_blocks` gave is never the reason: the same step would not fit without it.
    law: LIVE-3.

    Attributes:
        needed_blocks: blocks that it would hold at once.
        pool_blocks: blocks that can be held, the null block excluded.
    """

    def __init__(self, message: str, needed_blocks: int, pool_blocks: int) -> None:
        super().__init__(message)
        self.needed_blocks = needed_blocks
        self.pool_blocks = pool_blocks

    def __reduce__(self) -> tuple[type[NeverFitsError], tuple[str, int, int]]:
        return type(self), (str(self), self.needed_blocks, self.pool_blocks)


class TooLittleMemoryError(BlockwrightError, ValueError):
    """A device's memory cannot hold one request of the longest length.

    Attributes:
        needed_bytes: bytes that would do.
        needed_blocks: blocks that would do, the null block included.
        longest_model_len: tokens of the longest request that fits as it is; 0 if none fits.
    """

    def __init__(self, message: str, needed_bytes: int, needed_blocks: int, longest_model_len: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.needed_blocks = needed_blocks
        self.longest_model_len = longest_model_len

    def __reduce__(self) -> tuple[type[TooLittleMemoryError], tuple[str, int, int, int]]:
        return type(self), (str(self), self.needed_bytes, self.needed_blocks, self.longest_model_len)


class EventGapError(BlockwrightError, LookupError):
    """Events are gone that a consumer has not seen, or it asks for some that are not there yet: take a snapshot.

    Attributes:
        sequence: the batch that was asked for.
        oldest: the oldest batch that is kept.
        following: the number that the next batch will have.
    """

    def __init__(self, sequence: int, oldest: int, following: int) -> None:
        super().__init__(f"sequence: batch {sequence} is not kept, only {oldest}..{following - 1}; take a snapshot")
        self.sequence = sequence
        self.oldest = oldest
        self.following = following

    def __reduce__(self) -> tuple[type[EventGapError], tuple[int, int, int]]:
        return type(self), (self.sequence, self.oldest, self.following)


class JournalGapError(BlockwrightError, LookupError):
    """Facts or evictions were written over before a reader came: read again for those after them, and more often.

    Attributes:
        lost: how many this reader has missed.
        kept: how many are kept at most.
    """

    def __init__(self, lost: int, kept: int) -> None:
        super().__init__(
            f"journal: {lost} entries are lost, only the last {kept} are kept at most; read again for the later ones, "
            "and read more often or keep more"
        )
        self.lost = lost
        self.kept = kept

    def __reduce__(self) -> tuple[type[JournalGapError], tuple[int, int]]:
        return type(self), (self.lost, self.kept)


class ReadOnlyError(BlockwrightError, AttributeError):
    """A view was asked for a call that changes the viewed object; the message names the call to make instead."""


class LostBatchError(InvalidArgumentError):
    """A batch of events cannot be read, or sent. Consumers miss its number, and take a snapshot.

    Attributes:
        sequence: the number of the batch.
    """

    def __init__(self, sequence: int, reason: str) -> None:
        super().__init__(f"events: batch {sequence} is lost ({reason}); consumers take a snapshot instead")
        self.sequence = sequence
        self._reason = reason

    def __reduce__(self) -> tuple[type[LostBatchError], tuple[int, str]]:
        return type(self), (self.sequence, self._reason)


class UnsupportedError(BlockwrightError, NotImplementedError):
    """A combination that Blockwright refuses on purpose; the message gives the reason."""


class ExcludedOptionsError(InvalidArgumentError, UnsupportedError):
    """Two options that exclude each other; the message names both, the reason and the remedy."""


class OffloadError(BlockwrightError):
    """Base of the errors of `blockwright.offload`."""


class UnknownBlockHashError(OffloadError, KeyError):
    """A hash names no offloaded block: never stored, evicted, or dropped after a failure."""


class BlockNotReadyError(OffloadError, ValueError):
    """An offloaded block cannot be read yet, or no longer: it is being written, or a transfer of it has failed."""


class NotPreparedError(OffloadError, ValueError):
    """A completed store or load was not prepared, or was completed before."""


class UnknownTransferError(OffloadError, KeyError):
    """No transfer with this id is under way."""


class StoreUnavailableError(OffloadError, ConnectionError):
    """A shared store cannot be reached, or refuses the credentials; the message holds no secret."""


class StoreDirectoryError(OffloadError, ValueError):
    """A directory is not an offload directory, is another engine's, or is damaged beyond recovery."""


class TraceError(BlockwrightError, ValueError):
    """A serving trace cannot be read; the message names the file, the line and the fault."""


class InvariantError(BlockwrightError):
    """The self-check found a law broken: a bug in Blockwright, or memory written behind its back.

    Attributes:
        law: id of the law, as in the specification.
        expected: what the law demands, recomputed from scratch.
        actual: the value in the structures.
    """

    def __init__(self, law: str, what: str, expected: object, actual: object) -> None:
        super().__init__(f"{law}: {what}: expected {expected!r}, found {actual!r}")
        self.law = law
        self._what = what
        self.expected = expected
        self.actual = actual

    def __reduce__(self) -> tuple[type[InvariantError], tuple[str, str, object, object]]:
        return type(self), (self.law, self._what, self.expected, self.actual)
