"""Part one, chapter 35: why a hit is as long as it is.

An explanation names a *candidate*, a longer aligned length, and, per group, what that lacks. The candidate is what the
hit would be had nothing been lost that the manager still remembers, if that is longer; else the next aligned length.
"""

from collections.abc import Set
from dataclasses import dataclass, replace
from enum import Enum

from ...reads import Prefix, hit_ends, margin, needed
from ..keys import aligned, hit_lengths, keyed, longest, named
from ..pool_laws import asked, readable
from ..room import has_room
from ..state import Config, Content, State


class Limit(Enum):
    """Why a group hits no longer."""

    NOTHING = "as long as can be: one token is left to compute"
    MISSING = "a block of the candidate is missing"
    NOT_ALIGNED = "would hit longer, but the blocks of all groups are not aligned there"
    DRAFT_MARGIN = "only the block after the candidate is missing, or would end beyond what is asked for"
    NOT_ASKED = "nothing was looked up"
    OTHER_GROUP = "would hit longer, another group limits"
    NO_ROOM = "would hit, but the pool has no room for a state that is read beside the one that is written"


@dataclass(frozen=True, slots=True)
class Part:
    """A group's part: its own longest hit, were it alone, and the ends of the blocks that the candidate lacks.

    Where a draft margin would end beyond what was asked for, that block is named alone: publishing could not help.
    """

    length: int
    missing: tuple[int, ...]
    limit: Limit


@dataclass(frozen=True, slots=True)
class Explanation:
    """A hit of `length` tokens; no candidate where nothing longer can be. The groups that lack a block limit it."""

    length: int
    candidate: int | None
    parts: tuple[Part, ...]


def explained(state: State, prefix: Prefix, lost: Set[Content] = frozenset()) -> Explanation:
    """Explain the longest hit of a prefix: ``explain_hit``; `lost` is remembered to have been published (EXPLAIN-1)."""
    config, published = state.config, frozenset(content for _, content in state.keys)
    if not config.caching:
        return Explanation(0, None, (Part(0, (), Limit.NOT_ASKED),) * len(config.groups))
    lengths = hit_lengths(config, len(prefix[1]))
    length, before = (
        longest(config, enumerate(config.groups), contents, prefix, config.eagle, lengths)
        for contents in (published, published | lost)
    )
    longer = next((each for each in lengths if each > length), length + aligned(config))
    candidate = before if before > length else longer
    parts = tuple(explained_part(state, prefix, at, length, candidate) for at in range(len(config.groups)))
    if not has_room(config, len(prefix[1]), length):
        return Explanation(0, None, tuple(replace(part, missing=(), limit=Limit.NO_ROOM) for part in parts))
    return Explanation(length, candidate if candidate <= most_hit(config, prefix) else None, parts)


def most_hit(config: Config, prefix: Prefix) -> int:
    """Return the tokens that a hit has at most: one is left to compute, and the keys must be known."""
    return min(len(prefix[1]) - 1, keyed(config, prefix))


def explained_part(state: State, prefix: Prefix, at: int, length: int, candidate: int) -> Part:
    """Explain a group's part of a hit of `length` tokens that might have been one of `candidate` tokens."""
    config, group, eagle = state.config, state.config.groups[at], state.config.eagle
    published = frozenset(content for _, content in state.keys)
    lengths = hit_lengths(replace(config, groups=(group,)), len(prefix[1]))
    alone = longest(config, ((at, group),), published, prefix, eagle, lengths)
    if candidate > most_hit(config, prefix):
        return Part(alone, (), Limit.NOT_ALIGNED if alone > length else Limit.NOTHING)
    if (end := candidate + margin(group, eagle)) > keyed(config, prefix):
        return Part(alone, (end,), Limit.DRAFT_MARGIN)
    ends = sorted(hit_ends(group, candidate, eagle))
    missing = tuple(end for end in ends if named(config, at, prefix, end) not in published)
    if not missing:
        return Part(alone, (), Limit.OTHER_GROUP)
    return Part(alone, missing, Limit.DRAFT_MARGIN if missing[0] > candidate else Limit.MISSING)


def unread(state: State, prefix: Prefix, at: int, length: int) -> tuple[int, ...]:
    """Return the ends of the blocks of a group that a hit of `length` tokens reads from, and that do not serve it."""
    group = state.config.groups[at]
    extra = margin(group, state.config.eagle)
    if length + extra > keyed(state.config, prefix):
        return (length + extra,)
    places = (*needed(group.kind, length), *range(length, length + extra))
    unserved = (place for place in places if not readable(state, at, prefix, place, length))
    ends = ((place, (place // group.block_size + 1) * group.block_size) for place in unserved)
    return tuple(sorted({min(end, length) if place < length else end for place, end in ends}))


def law_explanation_is_exact(state: State) -> bool:
    """EXPLAIN-1: some group limits an explained hit, and the blocks named are just those that could not be read."""
    explanations = ((prefix, explained(state, prefix)) for prefix in asked(state) if state.config.caching)
    return all(
        any(part.missing for part in said.parts)
        and all(part.missing == unread(state, prefix, at, said.candidate) for at, part in enumerate(said.parts))
        for prefix, said in explanations
        if said.candidate is not None
    )
