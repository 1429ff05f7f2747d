"""Part one, chapter 8: what blocks are published as: a prefix, and with some draft heads the tokens behind it."""

from collections.abc import Iterable, Sequence, Set

from ..reads import Group, Prefix, cut, longest_hit
from .state import Config


def num_ahead(config: Config) -> int:
    """Count the tokens behind a block that its key covers as well, as chapters say (PUB-4)."""
    ahead = 0
    for chapter in config.chapters:
        ahead = ahead + chapter.ahead()
    return ahead


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
