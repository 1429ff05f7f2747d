"""The null block: the entry of a table that a sliding window has left behind."""

from __future__ import annotations

from typing import final

from blockwright.errors import BlockError
from blockwright.paging.interfaces import Block


@final
class NullBlock(Block):
    """A block that is never read or written; it may be in any number of tables at once."""

    def __init__(self, block_id: int) -> None:
        self._block_id = block_id

    def append_token_ids(self, token_ids: list[int]) -> None:
        raise BlockError(f"block: {self._block_id} is the null block, nothing is written to it")

    @property
    def block_id(self) -> int | None:
        return self._block_id

    @block_id.setter
    def block_id(self, value: int | None) -> None:
        raise BlockError(f"block: {self._block_id} is the null block, it keeps its id")

    @property
    def token_ids(self) -> list[int]:
        return []

    @property
    def num_tokens_total(self) -> int:
        return 0

    @property
    def num_empty_slots(self) -> int:
        return 0

    @property
    def is_full(self) -> bool:
        return False

    @property
    def prev_block(self) -> Block | None:
        return None

    @property
    def extra_hash(self) -> int | None:
        return None

    @property
    def computed(self) -> bool:
        return False

    @computed.setter
    def computed(self, value: bool) -> None:
        raise BlockError(f"block: {self._block_id} is the null block, nothing is computed on it")

    @property
    def last_accessed(self) -> float:
        return -1.0

    @last_accessed.setter
    def last_accessed(self, value: float) -> None:
        raise BlockError(f"block: {self._block_id} is the null block, it is not accessed")

    @property
    def content_hash(self) -> bytes | None:
        return None
