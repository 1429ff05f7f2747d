"""The future of a trace: which conversations go on, and the most hits that any policy could have.

Blocks are numbered once, by content; a reference is a full block of a prompt. All of it is of layers that read every
earlier token.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Final

from blockwright.replay.records import Trace, TraceRequest

_NEVER: Final = 1 << 60


@dataclass(frozen=True, slots=True)
class References:
    """Hold what each request of a trace refers to, by the request's number.

    Attributes:
        block_size: tokens in a block, at least 1.
        blocks: the numbers of its full blocks; equal prefixes have equal numbers.
        tokens: the length of its prompt.
    """

    block_size: int
    blocks: tuple[array[int], ...]
    tokens: array[int]

    def last_uses(self) -> dict[int, int]:
        return {block: at for at, blocks in enumerate(self.blocks) for block in blocks}

    def going_on(self) -> list[bool]:
        """Return for each request whether a later one refers to its last full block: its conversation goes on."""
        last = self.last_uses()
        return [bool(blocks) and last[blocks[-1]] > at for at, blocks in enumerate(self.blocks)]


def references_of(trace: Trace, block_size: int) -> References:
    """Return the full blocks of a trace, numbered. O(blocks + runs)."""
    numbers: dict[tuple[int, ...] | int, int] = {}

    found = tuple(_full_blocks(request, block_size, numbers) for request in trace.requests)
    return References(block_size, found, array("q", (request.num_tokens for request in trace.requests)))


def _full_blocks(request: TraceRequest, block_size: int, numbers: dict[tuple[int, ...] | int, int]) -> array[int]:
    """Return the numbers of a request's full blocks: by the one before, or -1, and the contents with their lengths."""
    blocks, block, room = array("q"), [-1], block_size
    for content, length in zip(request.contents, request.lengths, strict=True):
        left = length
        while left:
            count = min(left, room)
            if block[-2:-1] == [content] and len(block) > 1:
                block[-1] += count
            else:
                block += (content, count)
            left, room = left - count, room - count
            if not room:
                # A block of one content, as most are, is an integer: a tuple takes three times the memory.
                key = tuple(block) if len(block) > 3 else (block[0] + 1) << 31 | block[1]
                blocks.append(numbers.setdefault(key, len(numbers)))
                block, room = [blocks[-1]], block_size
    return blocks


def mistaken(bits: list[bool], error: float, seed: int = 0) -> list[bool]:
    """Return bits of which each is wrong with a probability; the same for the same seed."""
    draw = Random(seed).random
    return [bit != (draw() < error) for bit in bits]


def most_hits(references: References, num_blocks: int) -> int:
    """Return the hits of MIN, in blocks: the block with the farthest next use is evicted first, then the deepest.

    No policy that serves one request after another and takes only the blocks it needs hits more (Belady, 1966).
    Complexity: O(references log num_blocks).
    """
    next_uses = _next_uses(references)
    cached: dict[int, int] = {}  # candidates, and when each is used next
    heap: list[tuple[int, int, int]] = []
    hits = 0
    for at, blocks in enumerate(references.blocks):
        size = references.block_size
        need, most = -(-references.tokens[at] // size), (references.tokens[at] - 1) // size
        if need > num_blocks:
            continue
        hit = 0
        while hit < most and blocks[hit] in cached:
            del cached[blocks[hit]]
            hit += 1
        hits += hit
        for _ in range(need + len(cached) - num_blocks):
            # A block that was used since it was pushed has a newer entry: the older one is skipped.
            while True:
                use, _, block = heappop(heap)
                if cached.get(block) == -use:
                    break
            del cached[block]
        for depth, block in enumerate(blocks):
            cached[block] = use = next_uses[at][depth]
            heappush(heap, (-use, -depth, block))
    return hits


def _next_uses(references: References) -> list[array[int]]:
    """Return, for each reference, the number of the next request that refers to the same block."""
    following: dict[int, int] = {}
    uses: list[array[int]] = []
    for at in range(len(references.blocks) - 1, -1, -1):
        blocks = references.blocks[at]
        uses.append(array("q", [following.get(block, _NEVER) for block in blocks]))
        following.update(dict.fromkeys(blocks, at))
    return uses[::-1]
