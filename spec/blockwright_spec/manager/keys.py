"""Part one, chapter 8: what blocks are published as: a prefix, and with some draft heads the tokens behind it."""

from collections.abc import Iterable, Sequence, Set
from math import lcm

from ..reads import Group, Prefix, cut, hit_ends, longest_hit
from .facts import keys_of
from .state import Config, Content, State


def num_ahead(config: Config) -> int:
    """Count the tokens behind a block that its key covers as well, as chapters say (PUB-4)."""
    return sum(chapter.ahead() for chapter in config.chapters)


def named(config: Config, at: int, prefix: Prefix, end: int) -> tuple[int, Prefix]:
    """Return what a group's block that ends after `end` tokens of a prefix is published as (PUB-1, PUB-4).

    A draft layer's data at a position depends on the token behind it too. Where keys look ahead they cover these
    tokens, and no margin is left of a hit.
    """
    return at, cut(prefix, end + num_ahead(config))


def keyed(config: Config, prefix: Prefix) -> int:
    """Count the tokens that keys can be made of: behind them, those that the keys look ahead at are known (PUB-4)."""
    return len(prefix[1]) - num_ahead(config)


def end_of(config: Config, content: tuple[int, Prefix]) -> int:
    """Return the token behind which a block ends that is published as a content, or the part that is."""
    return len(content[1][1]) - num_ahead(config)


def is_published(config: Config, published: Set[tuple[int, Prefix]], at: int, prefix: Prefix, end: int) -> bool:
    """Return whether a group's block that ends after `end` tokens of a prefix is among published contents."""
    return end <= keyed(config, prefix) and named(config, at, prefix, end) in published


def longest(
    config: Config,
    groups: Iterable[tuple[int, Group]],
    published: Set[tuple[int, Prefix]],
    prefix: Prefix,
    eagle: bool,
    lengths: Sequence[int],
) -> int:
    """Return the longest hit of a prefix, one of some lengths, in some numbered groups, if just these are published.

    It ends where keys do, even if it needs none there (HIT-3).
    """
    numbers, those = zip(*groups, strict=True)

    def found(at: int, known: Prefix) -> bool:
        return is_published(config, published, numbers[at], prefix, len(known[1]))

    most = max(0, keyed(config, prefix))
    within = tuple(length for length in lengths if length <= most)
    return longest_hit(those, found, cut(prefix, most + 1), eagle, within)


def continues(config: Config, prefix: Prefix, content: Prefix) -> bool:
    """Return whether a prefix goes on behind a block as a content says whose key looks ahead (PUB-4)."""
    return num_ahead(config) == 0 or cut(prefix, len(content[1])) == content


def stride(config: Config) -> int:
    """Return the tokens at whose multiples hits end, inside blocks too, as a chapter says; 0: where blocks end."""
    return max((chapter.stride() for chapter in config.chapters), default=0)


def aligned(config: Config) -> int:
    """Return the tokens that the length of every hit is a multiple of."""
    return stride(config) or lcm(*(group.block_size for group in config.groups))


def hit_lengths(config: Config, known: int) -> Sequence[int]:
    """Return the lengths that a hit of a prompt of `known` tokens may have, ascending."""
    return range(0, known, aligned(config))


def num_adopted(config: Config, at: int, length: int) -> int:
    """Count the entries that a hit gives a group: of a block in which it ends only if some part of that is read."""
    return length // config.groups[at].block_size + ends_in(config, at, length)


def ends_in(config: Config, at: int, length: int) -> bool:
    """Return whether a tail ends inside a block of a group, and a hit of that length needs that part."""
    group = config.groups[at]
    return length % group.block_size > 0 and length in hit_ends(group, length, config.eagle)


def upto(content: Content | None, end: int) -> Content | None:
    """Return the part of a content up to a token."""
    return content and (content[0], cut(content[1], end))


def is_longer(state: State, block: int, end: int) -> bool:
    """Return whether a block is published as more than the first `end` tokens."""
    return any(end_of(state.config, content) > end for content in keys_of(state, block))
