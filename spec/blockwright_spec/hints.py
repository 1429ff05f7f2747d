"""To begin with, chapter 4: what an engine says of a request's blocks, and what is remembered of each block.

An engine may know more of a prompt than when it was last used: that its conversation has ended, or that it will go on
before a time. Three things can be said, and all three are soft: they answer which candidate goes first, and nothing
else. Times are the engine's own; nobody here reads a clock.

What is said of a request is a `Wish`. It counts when the request lets go of its blocks, and is then joined to what
others have said of the same blocks, the stronger part of each: so whatever keeps a block keeps all blocks before it,
which without it would be of no use (POLICY-1). What a block remembers is its `Mark`, until it is taken. Of a block that
leaves the device `Said` goes with it.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from enum import IntEnum

FIRST = -2
PASSING = -1
PLAIN = 0
"""The ranks of blocks that go before all others, of passing ones, and of all others; priorities are above."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What was said of a request: its first `tokens` are kept with a priority until a time; those from `first` on go.

    Without a priority nothing is kept; where `first` is None, nothing goes.
    """

    tokens: int = 0
    priority: int = 0
    until: int = 0
    first: int | None = None


UNSAID = Wish()
"""What is said of a request of which nothing is said."""


class Tip(IntEnum):
    """What ended with a block, if no request has gone on from there since (chapter `keeping`)."""

    NONE = 0
    PROMPT = 1
    OUTPUT = 2


@dataclass(frozen=True, slots=True)
class Leaving:
    """Blocks that a request lets go of (chapter `keeping`): passing ones, and those where something of it ended.

    Wanted hits end with those that are `asked` for, in layers that read everything.
    """

    passing: frozenset[int] = frozenset()
    prompt: frozenset[int] = frozenset()
    output: frozenset[int] = frozenset()
    asked: frozenset[int] = frozenset()


NOTHING_LEFT = Leaving()
"""Of blocks that no request leaves."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What is remembered of a published block: a priority until a time, whether it goes first, and what followed it.

    `nexts` are the contents that stood behind it in the tables of those who held it. A block that several things
    followed is never among the first to go. `recent` says that it is among the last to become a candidate, which no
    hint is about (HINT-3). `passing` says that no hit that its last holder wanted needs it (chapter `keeping`), and
    `spared` that it is one of the last such blocks, which go as all others do. `tip` says what ended with it, and
    `asked` that some request has wanted a hit to end there.
    """

    priority: int = 0
    until: int = 0
    first: bool = False
    recent: bool = False
    passing: bool = False
    spared: bool = False
    tip: Tip = Tip.NONE
    asked: bool = False
    nexts: frozenset[Hashable] = frozenset()


def kept(mark: Mark, start: int, wish: Wish, now: int) -> Mark:
    """Join to a mark what a wish says of a block that starts at a token: the higher priority, the later time.

    What is over counts no more, be it in the mark or in the wish.
    """
    if wish.priority == 0 or start >= wish.tokens or wish.until <= now:
        return mark
    if mark.until <= now:
        return replace(mark, priority=wish.priority, until=wish.until)
    return replace(mark, priority=max(mark.priority, wish.priority), until=max(mark.until, wish.until))


def merged(mark: Mark, other: Mark, now: int) -> Mark:
    """Join what is remembered of two blocks with one content: both hints, and what followed either of them."""
    said = kept(mark, 0, Wish(1, other.priority, other.until), now)
    return replace(said, nexts=mark.nexts | other.nexts)


def rank(mark: Mark, now: int) -> float:
    """Return the rank of a candidate: the lowest goes first, and of equal ones the least recently used (HINT-2)."""
    if mark.recent:
        return float("inf")
    if mark.priority and now < mark.until:
        return mark.priority
    if mark.first:
        return FIRST
    return PASSING if mark.passing and not mark.spared else PLAIN


@dataclass(frozen=True, slots=True)
class Said:
    """What is said of one block off the device: whose it is, and with which priority it is kept until a time."""

    tenant: Hashable = None
    priority: int = 0
    until: int = 0


NOTHING_SAID = Said()
"""What is said of a block of nobody that nobody asks to keep."""


def joined(said: Said, more: Said, now: int) -> Said:
    """Join what is said of a block: whose it is, if that was not known, and the stronger part of the hints (`kept`)."""
    mark = kept(Mark(said.priority, said.until), 0, Wish(1, more.priority, more.until), now)
    return Said(said.tenant if more.tenant is None else more.tenant, mark.priority, mark.until)
