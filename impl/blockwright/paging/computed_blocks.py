"""How far the prefix of a sequence is cached: its blocks' hashes, computed once and extended as it grows."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from blockwright.paging.interfaces import Device, DeviceAwareBlockAllocator
from blockwright.paging.pool_allocator import hash_tokens
from blockwright.paging.sequence import Sequence


@final
class SequenceHashes:
    """The content hashes of one sequence's full blocks."""

    def __init__(self, hashes: list[bytes], extra_hash: int | None) -> None:
        self.hashes = hashes
        self.extra_hash = extra_hash


@final
class ComputedBlocksTracker:
    """Remembers the hashes of sequences by id, until `remove_seq`.

    Tokens are only ever appended to a sequence; one that got shorter, or another extra hash, is hashed anew.
    """

    def __init__(self, block_size: int) -> None:
        self._size: i64 = block_size
        self._of_seq: dict[int, SequenceHashes] = {}

    def copy(self) -> ComputedBlocksTracker:
        twin = ComputedBlocksTracker(int(self._size))
        for seq_id, known in self._of_seq.items():
            twin._of_seq[seq_id] = SequenceHashes(known.hashes[:], known.extra_hash)
        return twin

    def num_cached_tokens(self, seq: Sequence, allocator: DeviceAwareBlockAllocator) -> int:
        """Return the leading tokens of a sequence in full blocks of the GPU that are computed. O(tokens)."""
        cached = allocator.find_cached_blocks_prefix(self.hashes_of(seq), Device.GPU)
        return len(cached) * int(self._size)

    def hashes_of(self, seq: Sequence) -> list[bytes]:
        """Return the hashes of a sequence's full blocks, those that are new computed now. O(new tokens)."""
        tokens: list[int] = seq.get_token_ids()
        extra: int | None = seq.extra_hash()
        size = self._size
        count: i64 = i64(len(tokens)) // size
        known = self._of_seq.get(seq.seq_id)
        if known is None or known.extra_hash != extra or i64(len(known.hashes)) > count:
            known = SequenceHashes([], extra)
        hashes = known.hashes
        at: i64 = len(hashes)
        while at < count:
            hashes.append(hash_tokens(hashes[-1] if hashes else None, tokens[at * size : (at + 1) * size], extra))
            at += 1
        self._of_seq[seq.seq_id] = known
        return hashes

    def forget(self, seq_id: int) -> None:
        self._of_seq.pop(seq_id, None)
