"""What a layer kind keeps: two numbers from which everything else follows.

Each rule answers: from which position on does a token at position n or later still read (`first_needed`), and how many
cached blocks in a row must end at a hit (`hit_run`). The specification defines both as sets (chapter `reads`); that
these closed forms equal the sets is proved for all integers by the conformance kit.

    full      0                 every block of the prefix
    sliding   n - W + 1         ceil((W - 1) / block_size) blocks
    chunked   n // C * C        the blocks since the chunk's start
    mamba     n - 1             the one block with the state
"""

from __future__ import annotations

from typing import Final

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright.core.request import BlockKeys
from blockwright.core.store import BlockStore

FOR_EVER: Final = 2**40
"""More tokens than any request has."""

WHOLE_PREFIX: Final = -1
"""The `hit_run` of kinds whose hit is a leading run of blocks from the first needed one."""


class WindowRule:
    """Base: full attention, which keeps everything.

    Attributes:
        hit_run: cached blocks in a row that a hit needs at its end; `WHOLE_PREFIX` for a leading run.
    """

    def __init__(self, hit_run: i64) -> None:
        """Take the run length."""
        self.hit_run: i64 = hit_run

    def first_needed(self, num_tokens: i64) -> i64:
        """Return the first position that a token at `num_tokens` or later reads. O(1). law: TRIM-1."""
        return 0

    def last_needing(self, position: i64) -> i64:
        """Return the largest n at which positions below `position` are still needed: ``first_needed(n) < position``.

        For ``position >= 1``. O(1).
        """
        return FOR_EVER

    def longest_hit(
        self, pool: BlockStore, keys: BlockKeys, group: i64, block_size: i64, max_length: i64, use_eagle: bool
    ) -> vec[i32]:
        """Return the table entries of the longest cached prefix of at most `max_length` tokens; null where unread.

        With EAGLE the block after the hit must be cached too, and fit below `max_length`; it is recomputed. At most
        one lookup per block. law: HIT-1.
        """
        num_blocks: i64 = min(max_length // block_size, keys.num_blocks())
        ids = vec[i32]([0] * num_blocks)
        if self.hit_run == WHOLE_PREFIX:
            first: i64 = min(self.first_needed(max_length) // block_size, num_blocks)
            ids = pool.find_run(ids, keys, group, block_size, first, num_blocks)
            return ids[: len(ids) - 1] if use_eagle and len(ids) > 0 else ids
        # Walk down from the right until `needed` blocks in a row are cached, or the row reaches the first block.
        #
        #     | null ... null | i: row of cached blocks ... | end: not cached or not read ...
        needed = self.hit_run + 1 if use_eagle else self.hit_run
        i = num_blocks
        end = num_blocks
        while i > 0 and end - i < needed:
            i -= 1
            block = pool.find(keys, i, group, block_size)
            if block == 0:
                end = i
            else:
                ids[i] = i32(block)
        if use_eagle and end > 0:
            end -= 1
        return ids[:end]


class SlidingRule(WindowRule):
    """A window of W tokens, the reading token included."""

    def __init__(self, window: i64, block_size: i64) -> None:
        """Take the window in tokens."""
        super().__init__((window - 1 + block_size - 1) // block_size)
        self._window: i64 = window

    def first_needed(self, num_tokens: i64) -> i64:
        """Return ``max(0, n - W + 1)``."""
        first = num_tokens - self._window + 1
        if first < 0:
            return 0
        return first

    def last_needing(self, position: i64) -> i64:
        """Return ``position + W - 2``."""
        return position + self._window - 2


class ChunkedRule(WindowRule):
    """Chunks of C tokens; a token reads its own chunk."""

    def __init__(self, chunk: i64) -> None:
        """Take the chunk in tokens."""
        super().__init__(WHOLE_PREFIX)
        self._chunk: i64 = chunk

    def first_needed(self, num_tokens: i64) -> i64:
        """Return the start of the chunk that position n lies in."""
        return num_tokens // self._chunk * self._chunk

    def last_needing(self, position: i64) -> i64:
        """Return the last position of the chunk that ``position - 1`` lies in."""
        return (position - 1) // self._chunk * self._chunk + self._chunk - 1


class MambaRule(WindowRule):
    """A recurrent state: a token reads the state after the token before it."""

    def __init__(self) -> None:
        """One cached state is a hit."""
        super().__init__(1)

    def first_needed(self, num_tokens: i64) -> i64:
        """Return ``max(0, n - 1)``."""
        if num_tokens == 0:
            return 0
        return num_tokens - 1

    def last_needing(self, position: i64) -> i64:
        """Return `position`."""
        return position

    def longest_hit(
        self, pool: BlockStore, keys: BlockKeys, group: i64, block_size: i64, max_length: i64, use_eagle: bool
    ) -> vec[i32]:
        """As its base, but drafts need no margin: a state is read whole or not at all."""
        return super().longest_hit(pool, keys, group, block_size, max_length, False)
