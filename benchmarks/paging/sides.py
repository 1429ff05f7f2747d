"""The two sides of the comparison of block tables, and the sequences that both are given: the same objects."""

from collections.abc import Sequence
from typing import Any, Protocol

from benchmarks.sides import BLOCK_SIZE


class PagingSide(Protocol):
    """A block manager under measurement; it has the names of `blockwright.paging.SelfAttnBlockSpaceManager`.

    Attributes:
        waiting, running, swapped: the statuses that it looks for.
    """

    waiting: Any
    running: Any
    swapped: Any

    def manager(self, num_gpu_blocks: int, num_cpu_blocks: int, enable_caching: bool) -> Any:
        """Return a new manager without a watermark."""


class OursPaging:
    """`blockwright.paging`, as installed."""

    def __init__(self) -> None:
        # Imported late: it is not part of what other paths measure.
        from blockwright.paging import SelfAttnBlockSpaceManager, SequenceStatus

        self._manager: Any = SelfAttnBlockSpaceManager
        self.waiting: Any = SequenceStatus.WAITING
        self.running: Any = SequenceStatus.RUNNING
        self.swapped: Any = SequenceStatus.SWAPPED

    def manager(self, num_gpu_blocks: int, num_cpu_blocks: int, enable_caching: bool) -> Any:
        return self._manager(BLOCK_SIZE, num_gpu_blocks, num_cpu_blocks, watermark=0.0, enable_caching=enable_caching)


class BenchSequence:
    """A sequence with all that either side asks of one, and no more: an engine's own object, as cheap as can be."""

    def __init__(self, seq_id: int, token_ids: list[int], status: Any) -> None:
        self.seq_id = seq_id
        self.token_ids = token_ids
        self.status = status
        self.num_computed_tokens = len(token_ids)
        # The peer asks for the computed tokens there.
        self.data = self

    def get_token_ids(self) -> list[int]:
        """Return all tokens known, not a copy."""
        return self.token_ids

    def get_len(self) -> int:
        return len(self.token_ids)

    def get_num_computed_tokens(self) -> int:
        """Return the tokens whose slots are written."""
        return self.num_computed_tokens

    def is_prefill(self) -> bool:
        """Return whether the prompt is still being computed: never here."""
        return False

    def extra_hash(self) -> int | None:
        """Return what else tells its blocks apart: nothing."""
        return None

    def append(self, token_id: int) -> None:
        self.num_computed_tokens = len(self.token_ids)
        self.token_ids.append(token_id)


class BenchGroup:
    """A group of such sequences."""

    def __init__(self, request_id: str, seqs: Sequence[BenchSequence]) -> None:
        self.request_id = request_id
        self.seqs = list(seqs)

    def get_seqs(self, status: Any = None) -> list[BenchSequence]:
        """Return the sequences that have the status, all without one."""
        return self.seqs if status is None else [seq for seq in self.seqs if seq.status == status]

    def is_encoder_decoder(self) -> bool:
        """Return whether there is an encoder's sequence."""
        return False

    def get_encoder_seq(self) -> None:
        """Return the encoder's sequence: none."""

    def mark(self, status: Any) -> None:
        for seq in self.seqs:
            seq.status = status
