"""KV tensors that identify their tokens: a recognisable pattern per token slot, in torch.

Keys hold a number made of all tokens up to and including the slot's own, as real keys depend on all of them; values
hold position and token. Both devices' pools lie on the CPU, so that every machine can run this.
"""

from collections.abc import Sequence
from typing import Any

import torch

from blockwright.device import copy_blocks, swap_blocks

EMPTY, DRAFT = -1, -2
"""What a slot holds that was never written, and one that drafts were written to: nobody may read either."""


def code(before: int, token: int) -> int:
    """Return the number of a prefix, from that of the prefix one token shorter."""
    return (before * 6364136223846793005 + token * 1442695040888963407 + 1) % 2**61


class TokenCaches:
    """Two pools of one layer, keys and values, of `size` slots per block."""

    def __init__(self, num_gpu: int, num_cpu: int, size: int) -> None:
        self.num_gpu, self.size = num_gpu, size
        self.gpu: list[Any] = [(self.pool(num_gpu), self.pool(num_gpu))]
        self.cpu: list[Any] = [(self.pool(num_cpu), self.pool(num_cpu))]

    def pool(self, count: int) -> Any:
        return torch.full((count, self.size), EMPTY, dtype=torch.int64)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        copy_blocks(self.gpu, pairs).synchronize()

    def swap(self, pairs: Sequence[tuple[int, int]], out: bool) -> None:
        src, dst = (self.gpu, self.cpu) if out else (self.cpu, self.gpu)
        swap_blocks(src, dst, pairs).synchronize()

    def places(self, blocks: Sequence[int], start: int, stop: int) -> tuple[Any, Any]:
        positions = torch.arange(start, stop)
        return torch.tensor(blocks, dtype=torch.int64)[positions // self.size], positions % self.size

    def write(self, blocks: Sequence[int], start: int, codes: Sequence[int], tokens: Sequence[int]) -> None:
        where = self.places(blocks, start, start + len(tokens))
        for keys, values in self.gpu:
            keys[where] = torch.tensor(codes, dtype=torch.int64)
            values[where] = torch.arange(start, start + len(tokens)) * 2**32 + torch.tensor(tokens, dtype=torch.int64)

    def draft(self, blocks: Sequence[int], start: int) -> None:
        stop = len(blocks) * self.size
        if start < stop:
            where = self.places(blocks, start, stop)
            for keys, values in self.gpu:
                keys[where] = DRAFT
                values[where] = DRAFT

    def reads_back(self, blocks: Sequence[int], start: int, codes: Sequence[int], tokens: Sequence[int]) -> bool:
        """Return whether a table, on either device, holds exactly these tokens from a position on."""
        if start >= len(tokens):
            return True
        first = start // self.size
        on_cpu = blocks[first] >= self.num_gpu
        pool = self.cpu if on_cpu else self.gpu
        shifted = [block - self.num_gpu if on_cpu else block for block in blocks[first:]]
        where = self.places([0] * first + shifted, start, len(tokens))
        want = torch.arange(start, len(tokens)) * 2**32 + torch.tensor(tokens[start:], dtype=torch.int64)
        prefix = torch.tensor(codes[start:], dtype=torch.int64)
        return all(torch.equal(keys[where], prefix) and torch.equal(values[where], want) for keys, values in pool)
