"""Where connectors of `readers.py` hand vLLM's pool to."""

from typing import Any


def look(pool: Any) -> int:
    return len(pool.cached_block_hash_to_block)


def deeper(block: Any) -> Any:
    return block.prev_free_block


class Keeper:
    """Keeps a pool."""

    def __init__(self, kept: Any) -> None:
        self.kept = kept

    def count(self) -> int:
        found: int = self.kept.get_num_free_blocks()
        return found
