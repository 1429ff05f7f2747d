"""A kind that is not in the product: a window, and every n-th position behind it. Run, the kit explores it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import lcm

from blockwright.core.tables.window import SlidingRule
from blockwright.kinds import AttentionSpec
from blockwright_conformance.gates import GateResult
from blockwright_conformance.kv_cache.blockwright import BlockwrightAdapter, add_kind
from blockwright_conformance.kv_cache.gate import judged
from blockwright_conformance.kv_cache.scopes import of_row


@dataclass(frozen=True, slots=True)
class Strided:
    """The statement: which earlier positions the token at a position reads. A later token reads no others of them."""

    window_size: int
    every: int

    def reads(self, position: int) -> Sequence[int]:
        """Return the positions of the window, and the multiples of `every` behind it."""
        first = max(0, position - self.window_size + 1)
        return (*range(0, first, self.every), *range(first, position))


class StridedRule(SlidingRule):
    """What the core asks: the window is that of `SlidingRule`, and behind it positions are kept."""

    def __init__(self, window: int, every: int, block_size: int) -> None:
        super().__init__(window, block_size)
        self.every = every

    def next_kept(self, position: int) -> int:
        """Return the first multiple of `every` from a position on."""
        return -(-position // self.every) * self.every

    def period(self, block_size: int) -> int:
        """Return after how many tokens blocks and multiples are in the same places again."""
        return lcm(block_size, self.every)


@dataclass(frozen=True)
class StridedSpec(AttentionSpec):
    """The declaration that an engine writes."""

    window_size: int
    every: int

    def rule(self) -> StridedRule:
        """Return the kind's rule."""
        return StridedRule(self.window_size, self.every, self.block_size)


SPEC = partial(StridedSpec, num_kv_heads=1, head_size=1, dtype="float32")
KIND = ("strided", Strided, ("window_size", "every"), SPEC)
ROWS = (
    ("strided 2 2, block 1", "life", 4, 4, "chunks trim preempt reset", {"slots": 1}),
    ("strided 2 3, block 1", "long", 6, 7, "chunks trim preempt explain", {"slots": 1, "strings": [1, 5, 6]}),
    ("strided 2 4, block 2", "blocks", 5, 8, "chunks trim preempt", {"slots": 1, "strings": [1, 6, 7]}),
    ("strided 1 3, block 2", "admission", 5, 8, "whole plan chunks lease", {"slots": 1, "strings": [1, 5, 6]}),
    ("strided 2 2, block 2", "none dies", 5, 6, "chunks trim", {"slots": 1, "strings": [1, 4, 5]}),
    ("full, block 2 + strided 2 2, block 1", "loads", 8, 4, "load", {"slots": 1, "strings": [1, 4, 4]}),
    ("full, block 1 + strided 2 3, block 1", "eagle", 9, 5, "adopt", {"strings": [1, 4, 5], "eagle": True}),
    ("full, block 2 + strided 1 3, block 1", "units", 9, 6, "", {"slots": 1, "prompts": ["00000", "00010"], "unit": 1}),
)
"""Scopes, as in the kit's own lists: layers, theme, blocks, tokens, what an engine may do beside its steps, options."""


def explored() -> list[GateResult]:
    """Explore the scopes, whole."""
    add_kind(*KIND)
    return [judged(of_row(*row), BlockwrightAdapter) for row in ROWS]


if __name__ == "__main__":
    for row in explored():
        print(f"{row.scope}: {row.transitions} transitions, {row.violations} violations {row.detail}")
