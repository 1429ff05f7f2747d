"""Contracts on the functions of the implementation, each against the specification's definition, for CrossHair.

Each takes a few small numbers, runs the function itself, loops included, and tells whether it gives what the
specification defines as a set. CrossHair follows every path through both sides; only "Confirmed" counts (`contracts`).
The numbers are small so that this ends; what theorems say for all numbers (`windows`, `tables`, `paging`) is not here.
"""

import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any

import blockwright
from blockwright.core.plans import most_blocks
from blockwright.core.window import ChunkedRule, MambaRule, Probe, SlidingRule, WindowRule, common_hit
from blockwright.kinds import ChunkedLocalAttentionSpec, FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec
from blockwright_spec.manager.state import Config
from blockwright_spec.reads import Chunked, Full, Group, Kind, Mamba, Sliding, longest_hit, peak
from blockwright_spec.worker import storage

# ---------------------------------------------------------------------- the most blocks


def full_holds_its_peak(block_size: int, tokens: int, step: int) -> bool:
    """Compare the most blocks held with the largest set of a step.

    pre: 1 <= block_size <= 2 and 1 <= tokens <= 4 and 1 <= step <= 3
    post: _
    """
    return WindowRule().peak(tokens, step, block_size, 0) == peak(Full(), block_size, tokens, step)


def sliding_holds_its_peak(window: int, block_size: int, tokens: int, step: int) -> bool:
    """Compare the most blocks held with the largest set of a step.

    pre: 1 <= window <= 3 and 1 <= block_size <= 2 and 1 <= tokens <= 4 and 1 <= step <= 2
    post: _
    """
    rule = SlidingRule(window, block_size)
    return rule.peak(tokens, step, block_size, 0) == peak(Sliding(window), block_size, tokens, step)


def chunked_holds_its_peak(times: int, block_size: int, tokens: int, step: int) -> bool:
    """Compare the most blocks held with the largest set of a step; chunks are whole blocks.

    pre: 1 <= times <= 2 and 1 <= block_size <= 2 and 1 <= tokens <= 4 and 1 <= step <= 2
    post: _
    """
    chunk = times * block_size
    return ChunkedRule(chunk).peak(tokens, step, block_size, 0) == peak(Chunked(chunk), block_size, tokens, step)


def mamba_holds_its_peak(block_size: int, tokens: int, step: int) -> bool:
    """Compare the most blocks held with the largest set of a step.

    pre: 1 <= block_size <= 2 and 1 <= tokens <= 4 and 1 <= step <= 3
    post: _
    """
    return MambaRule().peak(tokens, step, block_size, 0) == peak(Mamba(), block_size, tokens, step)


def held(kind: Kind, spec: KVCacheSpec, tokens: int, step: int, flights: int, caching: bool = True) -> bool:
    """Compare the most blocks of a request with the specification's, steps in flight included."""
    limits = storage.Limits(tokens, step, flights=flights, caching=caching)
    config = Config((Group(kind, 2),), 8, tokens, caching)
    told = most_blocks(spec, tokens, step, caching, steps_in_flight=flights)
    return told == storage.held(config, config.groups[0], limits)


def full_requests_hold_the_most(tokens: int, step: int, flights: int) -> bool:
    """Compare the most blocks of a request with the specification's.

    pre: 1 <= tokens <= 4 and 1 <= step <= 2 and 1 <= flights <= 2
    post: _
    """
    return held(Full(), FullAttentionSpec(2, 1, 1, "int8"), tokens, step, flights)


def mamba_requests_hold_the_most(tokens: int, step: int, flights: int, drafts: int, caching: bool) -> bool:
    """Compare the most blocks of a request with the specification's.

    pre: 1 <= tokens <= 5 and step == 1 and 1 <= flights <= 3 and 0 <= drafts <= 1
    post: _
    """
    return held(Mamba(drafts), MambaSpec(2, ((1,),), ("int8",), drafts), tokens, step, flights, caching)


def sliding_requests_hold_the_most(tokens: int, flights: int, window: int) -> bool:
    """Compare the most blocks of a request with the specification's.

    pre: 1 <= tokens <= 4 and 1 <= flights <= 2 and 1 <= window <= 2
    post: _
    """
    return held(Sliding(window), SlidingWindowSpec(2, 1, 1, "int8", window), tokens, 1, flights)


def chunked_requests_hold_the_most(tokens: int, flights: int, times: int) -> bool:
    """Compare the most blocks of a request with the specification's.

    pre: 1 <= tokens <= 4 and 1 <= flights <= 2 and 1 <= times <= 2
    post: _
    """
    return held(Chunked(2 * times), ChunkedLocalAttentionSpec(2, 1, 1, "int8", 2 * times), tokens, 1, flights)


# ---------------------------------------------------------------------- hits


class Cached:
    """A lookup in which the blocks that are cached are given; its walk is that of `Probe`."""

    last_run = Probe.last_run

    def __init__(self, blocks: tuple[bool, ...], block_size: int, max_length: int, margin: int) -> None:
        self.block_size, self.margin, self.run_end = block_size, margin, -1
        self._limit = min(max_length // block_size, len(blocks))
        self.blocks = blocks

    def cached(self, index: int) -> bool:
        """Tell whether a block is cached, within the length asked for."""
        return index < self._limit and self.blocks[index]

    def fill_run(self) -> int:
        return next((at for at in range(self._limit) if not self.blocks[at]), self._limit)


def hits_are(
    groups: tuple[Group, ...], rules: list[WindowRule], cached: tuple[tuple[bool, ...], ...], tokens: int, eagle: bool
) -> bool:
    """Compare the longest hit with the specification's: the longest aligned length at which all can be read."""

    def found(at: int, prefix: Any) -> bool:
        return cached[at][len(prefix[1]) // groups[at].block_size - 1]

    step = max(group.block_size for group in groups)
    probes: list[Any] = [
        Cached(blocks, group.block_size, tokens - 1, int(eagle)) for group, blocks in zip(groups, cached, strict=True)
    ]
    told = common_hit(rules, probes, step, tokens - 1)
    return told == longest_hit(groups, found, (0, (0,) * tokens), eagle)


def full_hits_are_longest(tokens: int, one: bool, two: bool, three: bool, eagle: bool) -> bool:
    """Compare the longest hit of blocks of one token with the specification's.

    pre: 1 <= tokens <= 4
    post: _
    """
    return hits_are((Group(Full(), 1),), [WindowRule()], ((one, two, three),), tokens, eagle)


def sliding_hits_are_longest(tokens: int, window: int, one: bool, two: bool, three: bool, eagle: bool) -> bool:
    """Compare the longest hit of blocks of one token with the specification's.

    pre: 1 <= tokens <= 4 and 1 <= window <= 3
    post: _
    """
    rules: list[WindowRule] = [SlidingRule(window, 1)]
    return hits_are((Group(Sliding(window), 1),), rules, ((one, two, three),), tokens, eagle)


def chunked_hits_are_longest(tokens: int, chunk: int, one: bool, two: bool, three: bool) -> bool:
    """Compare the longest hit of blocks of one token with the specification's.

    pre: 1 <= tokens <= 4 and 1 <= chunk <= 3
    post: _
    """
    rules: list[WindowRule] = [ChunkedRule(chunk)]
    return hits_are((Group(Chunked(chunk), 1),), rules, ((one, two, three),), tokens, False)


def mamba_hits_are_longest(tokens: int, one: bool, two: bool, three: bool) -> bool:
    """Compare the longest hit of blocks of one token with the specification's.

    pre: 1 <= tokens <= 4
    post: _
    """
    return hits_are((Group(Mamba(), 1),), [MambaRule()], ((one, two, three),), tokens, False)


def hits_suit_all_groups(one: bool, two: bool, three: bool, first: bool, second: bool, third: bool) -> bool:
    """Compare the longest hit of full attention beside a window of two tokens with the specification's.

    post: _
    """
    groups = (Group(Full(), 1), Group(Sliding(2), 1))
    rules = [WindowRule(), SlidingRule(2, 1)]
    return hits_are(groups, rules, ((one, two, three), (first, second, third)), 4, False)


# ---------------------------------------------------------------------- plans


@cache
def of_device(name: str) -> Any:
    """Return a module of `blockwright.device` that needs no torch, without importing the package, which does."""
    path = Path(blockwright.__path__[0]) / "device" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"blockwright_plain_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


PAGES = of_device("pages")


def blocks_grow_as_far_as_they_may(page: int, most: int, chunk: int, size: int) -> bool:
    """Compare how many times larger a chunked layer's blocks may be with the largest factor that is allowed.

    pre: 1 <= page <= 6 and 1 <= most <= 4 and 1 <= chunk <= 4 and 1 <= size <= 2
    post: _
    """
    family = PAGES.Family(("layer",), {"layer": ChunkedLocalAttentionSpec(1, 1, size, "int8", chunk)})
    own = 2 * size
    allowed = [
        factor for factor in range(1, chunk + 1) if chunk % factor == 0 and own * factor <= page and factor <= most
    ]
    return bool(family.growth(page, most) == max(allowed, default=1))
