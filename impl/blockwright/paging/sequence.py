"""Protocols of the sequences and groups that the block manager reads, and simple classes that implement them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Protocol

from blockwright.errors import InvalidArgumentError


class SequenceStatus(Enum):
    """Where a sequence is in its life. The manager reads it; the engine sets it, after the call."""

    WAITING = 1
    RUNNING = 2
    SWAPPED = 3
    FINISHED = 4


class Sequence(Protocol):
    """One sequence of tokens that an engine generates.

    Attributes:
        seq_id: its id, unique among living sequences.
        status: where it is.
    """

    @property
    def seq_id(self) -> int:
        """Return its id."""

    @property
    def status(self) -> SequenceStatus:
        """Return where it is."""

    def get_len(self) -> int:
        """Return how many tokens are known."""

    def get_token_ids(self) -> list[int]:
        """Return all tokens that are known; the manager does not change the list."""

    def get_num_computed_tokens(self) -> int:
        """Return how many tokens have their KV data."""

    def extra_hash(self) -> int | None:
        """Return what identifies it besides its tokens, such as an adapter."""


class SequenceGroup(Protocol):
    """The sequences of one request: they begin with one prompt."""

    @property
    def request_id(self) -> str:
        """Return its id."""

    def get_seqs(self, status: SequenceStatus | None = None) -> list[Sequence]:
        """Return its sequences, those with a status if one is given."""

    def is_encoder_decoder(self) -> bool:
        """Return whether there is an encoder sequence."""

    def get_encoder_seq(self) -> Sequence | None:
        """Return it, if there is one."""


class SimpleSequence:
    """A sequence for engines without a class for it.

    Attributes:
        token_ids: its tokens, to be appended to.
        num_computed_tokens: how many of them have their KV data.
    """

    def __init__(
        self,
        seq_id: int,
        token_ids: list[int],
        *,
        status: SequenceStatus = SequenceStatus.WAITING,
        num_computed_tokens: int = 0,
        extra_hash: int | None = None,
    ) -> None:
        self.seq_id = seq_id
        self.token_ids = list(token_ids)
        self.status = status
        self.num_computed_tokens = num_computed_tokens
        self._extra_hash = extra_hash

    def get_len(self) -> int:
        return len(self.token_ids)

    def get_token_ids(self) -> list[int]:
        """Return the tokens themselves, not a copy."""
        return self.token_ids

    def get_num_computed_tokens(self) -> int:
        return self.num_computed_tokens

    def extra_hash(self) -> int | None:
        return self._extra_hash

    def fork(self, seq_id: int) -> SimpleSequence:
        """Return an equal sequence under another id. O(tokens)."""
        return SimpleSequence(
            seq_id,
            self.token_ids,
            status=self.status,
            num_computed_tokens=self.num_computed_tokens,
            extra_hash=self._extra_hash,
        )

    def __repr__(self) -> str:
        return f"SimpleSequence({self.seq_id}, tokens={len(self.token_ids)}, {self.status.name})"


class SimpleSequenceGroup:
    """A group for engines without a class for it.

    Attributes:
        request_id: its id.
        seqs: its sequences, to be added to and removed from.
    """

    def __init__(self, request_id: str, seqs: Iterable[Sequence], encoder_seq: Sequence | None = None) -> None:
        """Take the fields; sequences of any class.

        Raises:
            InvalidArgumentError: two sequences have one id.
        """
        self.seqs: list[Sequence] = list(seqs)
        # The manager keeps tables by id: two sequences of one id would share one.
        ids = [seq.seq_id for seq in self.seqs]
        if len(set(ids)) != len(ids):
            raise InvalidArgumentError(f"seqs: ids must differ, not {ids}")
        self.request_id = request_id
        self._encoder_seq = encoder_seq

    def get_seqs(self, status: SequenceStatus | None = None) -> list[Sequence]:
        if status is None:
            return self.seqs[:]
        return [seq for seq in self.seqs if seq.status is status]

    def is_encoder_decoder(self) -> bool:
        return self._encoder_seq is not None

    def get_encoder_seq(self) -> Sequence | None:
        return self._encoder_seq
