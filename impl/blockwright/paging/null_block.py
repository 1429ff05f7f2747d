"""The null block: the entry of a table that a sliding window has left behind."""

from __future__ import annotations

from typing import final

from blockwright.errors import BlockError
from blockwright.paging.interfaces import Block


@final
class NullBlock(Block):
    """A block that is never read or written; it may be in any number of tables at once."""

    def __init__(self, block_id: int) -> None:
        """Take the id of the physical block that is set aside."""
        self._block_id = block_id

    def append_token_ids(self, token_ids: list[int]) -> None:
        """Refuse: the null block is never written."""
        raise BlockError(f"block: {self._block_id} is the null block, nothing is written to it")

    @property
    def block_id(self) -> int | None:
        """Absolute id of the physical block."""
        return self._block_id

    @block_id.setter
    def block_id(self, value: int | None) -> None:
        raise BlockError(f"block: {self._block_id} is the null block, it keeps its id")

    @property
    def token_ids(self) -> list[int]:
        """No tokens."""
        return []

    @property
    def num_tokens_total(self) -> int:
        """None at all."""
        return 0

    @property
    def num_empty_slots(self) -> int:
        """No slots that could be written."""
        return 0

    @property
    def is_full(self) -> bool:
        """It is never full."""
        return False

    @property
    def prev_block(self) -> Block | None:
        """No block is before it."""
        return None

    @property
    def extra_hash(self) -> int | None:
        """It belongs to no sequence."""
        return None

    @property
    def computed(self) -> bool:
        """Nothing is computed in it."""
        return False

    @computed.setter
    def computed(self, value: bool) -> None:
        raise BlockError(f"block: {self._block_id} is the null block, nothing is computed on it")

    @property
    def last_accessed(self) -> float:
        """It is never accessed."""
        return -1.0

    @last_accessed.setter
    def last_accessed(self, value: float) -> None:
        raise BlockError(f"block: {self._block_id} is the null block, it is not accessed")

    @property
    def content_hash(self) -> bytes | None:
        """It has no content."""
        return None
