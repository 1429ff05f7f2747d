"""Pairing heaps over blocks, any number of them in the same packed arrays; a block is in one of them at most.

Fredman, Sedgewick, Sleator, Tarjan: The pairing heap (1986). Block 0 means "none".
"""

from __future__ import annotations

from typing import final

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright._copies import copy_fields
from blockwright.core.keys.packed import zeros32, zeros64


@final
class BlockHeaps:
    """The links of heaps, and the keys by which blocks are ordered in them; the caller keeps the roots.

    Attributes:
        keys: the key of each block; not to be changed while the block is in a heap.
    """

    def __init__(self, count: i64) -> None:
        """Start without heaps, for block ids below `count`. O(count)."""
        self.keys: vec[i64] = zeros64(count)
        self._child: vec[i32] = zeros32(count)
        self._sibling: vec[i32] = zeros32(count)
        self._back: vec[i32] = zeros32(count)  # the sibling before a block, or of the first child its parent

    def copy(self) -> BlockHeaps:
        twin = BlockHeaps(0)
        copy_fields(self, twin)
        return twin

    def meld(self, one: i64, other: i64) -> i64:
        """Make one heap of two, and return its root. O(1)."""
        if one == 0:
            return other
        if other == 0:
            return one
        # Keys are distinct, because each holds the candidate's age: the order of the two roots never matters.
        if self.keys[other] < self.keys[one]:
            one, other = other, one
        child: i64 = i64(self._child[one])
        self._sibling[other] = i32(child)
        if child != 0:
            self._back[child] = i32(other)
        self._back[other] = i32(one)
        self._child[one] = i32(other)
        return one

    def without(self, root: i64, block: i64) -> i64:
        """Take a block out of the heap with this root, and return the new root. O(log n) amortised."""
        below = self._melded(i64(self._child[block]))
        self._child[block] = 0
        if block == root:
            return below
        before: i64 = i64(self._back[block])
        after: i64 = i64(self._sibling[block])
        if i64(self._child[before]) == block:
            self._child[before] = i32(after)
        else:
            self._sibling[before] = i32(after)
        if after != 0:
            self._back[after] = i32(before)
        self._sibling[block] = 0
        self._back[block] = 0
        return self.meld(root, below)

    def _melded(self, child: i64) -> i64:
        """Make one heap of a chain of siblings: of pairs from the front, and then of these from the back."""
        pairs: i64 = 0
        while child != 0:
            other: i64 = i64(self._sibling[child])
            rest: i64 = i64(self._sibling[other]) if other != 0 else 0
            self._alone(child)
            self._alone(other)
            pair = self.meld(child, other)
            self._sibling[pair] = i32(pairs)
            pairs = pair
            child = rest
        root: i64 = 0
        # The second pass goes back over the pairs: that is what makes the amortised bound O(log n).
        while pairs != 0:
            rest = i64(self._sibling[pairs])
            self._alone(pairs)
            root = self.meld(root, pairs)
            pairs = rest
        return root

    def _alone(self, block: i64) -> None:
        """Make a block a root without siblings."""
        self._sibling[block] = 0
        self._back[block] = 0

    def members(self, root: i64) -> list[int]:
        """Return the blocks of a heap, in no order. O(n)."""
        found: list[int] = []
        ahead: list[int] = [int(root)] if root != 0 else []
        while ahead:
            block: i64 = ahead.pop()
            found.append(int(block))
            for link in (i64(self._child[block]), i64(self._sibling[block])):
                if link != 0:
                    ahead.append(int(link))
        return found
