"""Part one, chapter 10: finding a hit, and checking whether one that was found earlier still holds."""

from ..reads import Full, Prefix, dead, hit_ends
from .choices import Choice
from .facts import heads, keys_of
from .keys import aligned, hit_lengths, is_published, keyed, longest, named, num_adopted
from .room import has_room
from .state import NULL, Config, Content, Hit, State, Table


def holding(state: State, content: Content) -> tuple[int, ...]:
    """Return the blocks published as a content, oldest publication first."""
    return tuple(block for block, other in state.keys if other == content)


def useful(config: Config, at: int, entry: int) -> bool:
    """Return whether a hit, of whatever request, can need an entry of a group: no other is published (PUB-2).

    Hits are aligned (chapter `keys`), and the first position read never moves back as a hit grows, so that no hit
    beyond the first aligned length behind the entry needs it either.
    """
    group, step = config.groups[at], aligned(config)
    end = (entry + 1) * group.block_size
    return any(end in hit_ends(group, length, config.eagle) for length in range(step, end + step, step))


def found(state: State, prefix: Prefix, choice: Choice, most: int | None = None) -> Hit:
    """Return the longest hit of a prefix, of at most some tokens, if it has room (HIT-1, HIT-2, HIT-4)."""
    config, published = state.config, frozenset(content for _, content in state.keys)
    known = len(prefix[1])
    lengths = hit_lengths(config, known if most is None else min(known, most + 1))
    length = longest(config, enumerate(config.groups), published, prefix, config.eagle, lengths)
    length = length if has_room(config, known, length) else 0

    def table(at: int) -> Table:
        kind, size = config.groups[at].kind, config.groups[at].block_size
        return tuple(
            NULL if dead(kind, size, length, entry) else choice.serve(holding(state, named(config, at, prefix, end)))
            for entry in range(num_adopted(config, at, length))
            for end in (min((entry + 1) * size, length),)
        )

    tables = tuple(table(at) for at in range(len(config.groups))) if length else ()
    learns = any(chapter.learns() for chapter in config.chapters)
    return Hit(length, tables, junction(state, published, prefix, length) if learns else 0)


def junction(state: State, published: frozenset[Content], prefix: Prefix, length: int) -> int:
    """Return the longest hit that the layers which read everything would have alone, if that exceeds a length; else 0.

    The prompt left what others have sent there, so that others may leave it there again. Without such layers, that is
    where it parts from the last prompts (UNIT-9).
    """
    config = state.config
    full = tuple((at, group) for at, group in enumerate(config.groups) if isinstance(group.kind, Full))
    known = len(prefix[1])

    def holds(end: int) -> bool:
        if not full:
            return any(chapter.recalls(state, prefix, end) for chapter in config.chapters)
        ends = ((at, each) for at, group in full for each in hit_ends(group, end, config.eagle))
        return all(is_published(config, published, at, prefix, each) for at, each in ends)

    shown = (end for end in reversed(hit_lengths(config, known)) if holds(end))
    longest_end = next(shown, 0)
    return longest_end if longest_end > length and has_room(config, known, longest_end) else 0


def served(hit: Hit, prefix: Prefix, state: State) -> tuple[tuple[int, Content], ...]:
    """Return the blocks of a hit, each with the content that it must have."""
    return tuple(
        (block, named(state.config, at, prefix, min((entry + 1) * state.config.groups[at].block_size, hit.length)))
        for at, table in enumerate(hit.tables)
        for entry, block in enumerate(table)
        if block != NULL
    )


def sound(state: State, prefix: Prefix, hit: Hit) -> bool:
    """Return whether each block of a hit carries this prefix now, null entries are dead and a token is left (HIT-1)."""
    return (
        hit.length <= max(0, min(len(prefix[1]) - 1, keyed(state.config, prefix)))
        and all(content in keys_of(state, block) for block, content in served(hit, prefix, state))
        and all(
            dead(group.kind, group.block_size, hit.length, entry)
            for group, table in zip(state.config.groups, heads(state.config, hit), strict=True)
            for entry, block in enumerate(table)
            if block == NULL
        )
    )
