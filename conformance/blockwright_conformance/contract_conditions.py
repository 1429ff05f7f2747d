"""Contracts on the functions of the implementation, each against the specification's definition, for CrossHair.

Each takes a few small numbers, runs the function itself, loops included, and tells whether it gives what the
specification defines as a set. CrossHair follows every path through both sides; only "Confirmed" counts (`contracts`).
The numbers are small so that this ends; for all numbers see the theorems (``proof_*``).
"""

from types import SimpleNamespace
from typing import Any

from blockwright.core.group import GroupTables
from blockwright.core.peak import most_blocks
from blockwright.core.window import ChunkedRule, MambaRule, Probe, SlidingRule, WindowRule, common_hit
from blockwright.kinds import ChunkedLocalAttentionSpec, FullAttentionSpec, MambaSpec, SlidingWindowSpec
from blockwright_spec import storage
from blockwright_spec.reads import Chunked, Full, Group, Kind, Mamba, Sliding, longest_hit, needed, peak


def sliding_keeps_what_is_read(window: int, n: int, position: int) -> bool:
    """Compare the first position kept with the set of those needed.

    pre: 1 <= window <= 4 and 0 <= position < n <= 6
    post: _
    """
    return (SlidingRule(window, 1).first_needed(n) <= position) == (position in needed(Sliding(window), n))


def chunked_keeps_what_is_read(chunk: int, n: int, position: int) -> bool:
    """Compare the first position kept with the set of those needed.

    pre: 1 <= chunk <= 3 and 0 <= position < n <= 6
    post: _
    """
    return (ChunkedRule(chunk).first_needed(n) <= position) == (position in needed(Chunked(chunk), n))


def mamba_keeps_what_is_read(n: int, position: int) -> bool:
    """Compare the first position kept with the set of those needed.

    pre: 0 <= position < n <= 6
    post: _
    """
    return (MambaRule().first_needed(n) <= position) == (position in needed(Mamba(), n))


def full_holds_its_peak(block_size: int, tokens: int, step: int) -> bool:
    """Compare the most blocks held with the largest set of a step.

    pre: 1 <= block_size <= 2 and 1 <= tokens <= 4 and 1 <= step <= 3
    post: _
    """
    return WindowRule().peak(tokens, step, block_size) == peak(Full(), block_size, tokens, step)


def sliding_holds_its_peak(window: int, block_size: int, tokens: int, step: int) -> bool:
    """Compare the most blocks held with the largest set of a step.

    pre: 1 <= window <= 3 and 1 <= block_size <= 2 and 1 <= tokens <= 4 and 1 <= step <= 2
    post: _
    """
    rule = SlidingRule(window, block_size)
    return rule.peak(tokens, step, block_size) == peak(Sliding(window), block_size, tokens, step)
