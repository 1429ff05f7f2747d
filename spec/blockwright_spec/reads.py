"""To begin with, chapter 2: the positions that a token reads, and the consequences.

One function, `reads`, defines for each kind of layer which earlier positions a token reads. The entries to keep and to
trim, the length of a hit and the blocks that a step fills are sets derived from it. Six other functions name kinds: a
recurrent layer fills a slot a step (`writes`), reads a state that stops exactly there (`shows`), may have draft states
(`states_beside`, `states_within`) and no margin (`margin`); an encoder's entries are never dead (`dead`).
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Protocol

Prefix = tuple[Hashable, tuple[int, ...]]
"""Extra keys (adapter, salt, multimodal items) and the tokens 0..end-1: all that decides the content at a position."""


@dataclass(frozen=True, slots=True)
class Full:
    """A layer in which tokens read every earlier position."""


@dataclass(frozen=True, slots=True)
class Sliding:
    """A layer in which tokens see the last `window` positions, their own included."""

    window: int


@dataclass(frozen=True, slots=True)
class Sinks:
    """A sliding window in which tokens see the first `sinks` positions as well, wherever they are (StreamingLLM)."""

    sinks: int
    window: int


@dataclass(frozen=True, slots=True)
class Chunked:
    """A layer in which tokens see the positions of their own chunk."""

    chunk: int


@dataclass(frozen=True, slots=True)
class Mamba:
    """A recurrent layer, in which tokens read only the state left by the token before.

    `drafts` states beside that of the last known token are kept, so that all these draft tokens can be rejected.
    """

    drafts: int = 0


@dataclass(frozen=True, slots=True)
class Ahead(Mamba):
    """A recurrent layer with steps that run ahead of the known tokens: the states of drafts are in its block table.

    How many drafts hold is known only later, so that every entry which any count may need keeps a separate block.
    """


@dataclass(frozen=True, slots=True)
class Cross:
    """A layer in which tokens read an encoder's output: no position of the request."""


class Stated(Hashable, Protocol):
    """A kind that is not in this book."""

    def reads(self, position: int) -> Sequence[int]:
        """Return the earlier positions that the token at `position` reads; later ones read no others of them."""


Kind = Full | Sliding | Sinks | Chunked | Mamba | Cross | Stated


@dataclass(frozen=True, slots=True)
class Group:
    """Layers of one kind that share one block table, `block_size` tokens to a block."""

    kind: Kind
    block_size: int


def reads(kind: Kind, position: int) -> Sequence[int]:
    """Return the earlier positions that the token at `position` reads (the specification's one idea)."""
    match kind:
        case Full():
            return range(position)
        case Sliding(window):
            return range(max(0, position - window + 1), position)
        case Sinks(sinks, window):
            return (*range(min(sinks, position)), *range(max(sinks, position - window + 1), position))
        case Chunked(chunk):
            return range(position // chunk * chunk, position)
        case Mamba():
            return range(max(0, position - 1), position)
        case Cross():
            return range(0)
        case _:
            return kind.reads(position)


def writes(kind: Kind, start: int, stop: int) -> range:
    """Return the positions that a step over tokens start..stop-1 fills; a recurrent layer leaves one state."""
    if isinstance(kind, Cross):
        return range(0)
    if isinstance(kind, Mamba):
        return range(max(start, stop - 1), stop)
    return range(start, stop)


def num_states(kind: Kind) -> int:
    """Count the states of drafts that a layer keeps beside the last one that is certain."""
    return kind.drafts if isinstance(kind, Mamba) else 0


def states_beside(kind: Kind) -> int:
    """Count those that have blocks beside the table (MAMBA-3)."""
    return 0 if isinstance(kind, Ahead) else num_states(kind)


def states_within(kind: Kind) -> int:
    """Count the table entries behind that of the last token, for the states of drafts (MAMBA-6)."""
    return kind.drafts if isinstance(kind, Ahead) else 0


def entries_ahead(kind: Kind, block_size: int, known: int, stop: int, is_ahead: bool) -> range:
    """Return the entries that a step up to token `stop` may write a state to, however many drafts hold (MAMBA-6).

    Up to the known tokens it leaves one state, behind the last of them. If it goes on, a state may be left behind each
    token, and those of the drafts follow the one behind the step's first token: that is written to the entry of `stop`.
    """
    drafts = states_within(kind) if is_ahead else 0
    return range((min(stop, known) - 1) // block_size, entries(block_size, stop) + drafts)


def saved_end(saved: int, block_size: int, count: int) -> int:
    """Return the last block end of `count` tokens, of a layer that runs ahead; 0 if it left no state (MAMBA-6)."""
    # Steps leave the states at block ends from `saved` tokens on, each at the last one that it passes.
    end = count // block_size * block_size
    return end if end >= saved else 0


def needed(kind: Kind, length: int) -> Sequence[int]:
    """Return the positions below `length` that some token at a position >= `length` reads."""
    # A position that a token does not read is read by no later one, so the token at `length` reads all of them: this is
    # the union over all later tokens, which the tests form and a contract confirms for every integer.
    return reads(kind, length)


def positions(block_size: int, entry: int) -> range:
    """Return the positions that entry `entry` of a block table covers."""
    return range(entry * block_size, (entry + 1) * block_size)


def entries(block_size: int, length: int) -> int:
    """Count the entries that cover `length` slots."""
    return -(-length // block_size)


def dead(kind: Kind, block_size: int, length: int, entry: int) -> bool:
    """Return whether all positions of an entry are below `length` and no later token reads any of them (TRIM-1)."""
    # Every token reads the encoder's output, so no entry of a cross-attention layer ever dies.
    if isinstance(kind, Cross):
        return False
    kept = needed(kind, length)
    return not any(position >= length or position in kept for position in positions(block_size, entry))


def filled(kind: Kind, block_size: int, start: int, stop: int) -> frozenset[int]:
    """Return the entries that a step over tokens start..stop-1 fills: those beside them it jumps over (MAMBA-1)."""
    return frozenset(position // block_size for position in writes(kind, start, stop))


def hit_entries(kind: Kind, block_size: int, length: int) -> frozenset[int]:
    """Return the entries that hold a needed position of `length`: a hit of that length must find them (HIT-1)."""
    return frozenset(position // block_size for position in needed(kind, length))


def peak(kind: Kind, block_size: int, slots: int, step: int, begin: int = 0) -> int:
    """Count the most blocks held at once while the slots begin..slots-1 are filled, `step` at a time (PLAN-2).

    Blocks that a token still reads, and blocks that the step fills: kinds that recycle blocks need less than the whole.
    """
    return max(
        len(hit_entries(kind, block_size, start) | filled(kind, block_size, start, min(start + step, slots)))
        for start in range(begin, slots)
    )


def cut(prefix: Prefix, end: int) -> Prefix:
    """Return the first `end` tokens of a prefix, with its extra keys."""
    return prefix[0], prefix[1][:end]


def margin(group: Group, eagle: bool) -> int:
    """Return the tokens after a hit that must be cached too and are computed again: a block under EAGLE (HIT-1).

    Only the data of a draft head depends on the token behind it. A recurrent layer, which is read whole or not at all,
    and one of chunked local attention are no part of a draft head, so they have no margin.
    """
    return group.block_size if eagle and not isinstance(group.kind, Mamba | Chunked) else 0


def hit_ends(group: Group, length: int, eagle: bool) -> frozenset[int]:
    """Return the ends of what a hit of `length` tokens must find in a group (HIT-1): of blocks, or of its last part."""
    size, extra = group.block_size, margin(group, eagle)
    ends = frozenset(min((entry + 1) * size, length) for entry in hit_entries(group.kind, size, length))
    return ends | {length + extra} if extra else ends


def longest_hit(
    groups: tuple[Group, ...],
    found: Callable[[int, Prefix], bool],
    prefix: Prefix,
    eagle: bool = False,
    lengths: Sequence[int] = (),
) -> int:
    """Return the longest aligned length at which every group finds all that the next token reads (HIT-1, HIT-2).

    Aligned to the blocks of every group, or one of some `lengths` in ascending order, and below the number of tokens,
    so that one is left to compute; a margin, which is computed again, may hold the last token. `found(group, prefix)`
    is whether a block of a group is cached with that prefix.
    """
    known = len(prefix[1])

    def holds(length: int) -> bool:
        return all(
            end <= known and found(at, cut(prefix, end))
            for at, group in enumerate(groups)
            for end in hit_ends(group, length, eagle)
        )

    aligned = lengths or range(0, known, lcm(*(group.block_size for group in groups)))
    return next((length for length in reversed(aligned) if holds(length)), 0)


def shows(group: Group, at: int, content: tuple[int, Prefix] | None, prefix: Prefix, position: int) -> bool:
    """Return whether a block with this content serves the read of `position` of `prefix` in group number `at` (READ-1).

    The content is that group's, ends inside the block, covers the position, and equals the prefix; a state ends there.
    """
    end = len(content[1][1]) if content else 0
    covered = end == position + 1 if isinstance(group.kind, Mamba) else end > position
    same_block = (end - 1) // group.block_size == position // group.block_size
    return covered and same_block and content == (at, cut(prefix, end))
