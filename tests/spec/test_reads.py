"""Property: what follows from what a token reads is what the field expects of it.

How: `needed` against the union over all later tokens it stands for; dead entries and hits against the examples that
users of the known systems rely on, and against brute force over every cache content of small prefixes, of one group and
of two.
Not covered: other integers than those tried (contracts confirm all of them).
"""

from itertools import product

import pytest

from blockwright_spec.reads import (
    Chunked,
    Full,
    Group,
    Kind,
    Mamba,
    Prefix,
    Sinks,
    Sliding,
    cut,
    dead,
    entries,
    filled,
    hit_entries,
    longest_hit,
    needed,
    reads,
    shows,
    writes,
)

KINDS: tuple[Kind, ...] = (
    Full(),
    *(Sliding(window) for window in range(1, 6)),
    *(Sinks(sinks, window) for sinks in range(1, 4) for window in range(1, 4)),
    *(Chunked(chunk) for chunk in range(1, 5)),
    Mamba(),
)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_needed_is_what_any_later_token_reads(kind: Kind) -> None:
    for length in range(12):
        later = {at for position in range(length, length + 20) for at in reads(kind, position) if at < length}
        assert set(needed(kind, length)) == later


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_token_reads_only_earlier_positions(kind: Kind) -> None:
    for position in range(12):
        assert all(0 <= at < position for at in reads(kind, position))


def test_what_each_kind_reads() -> None:
    assert list(reads(Full(), 5)) == [0, 1, 2, 3, 4]
    assert list(reads(Sliding(3), 5)) == [3, 4]
    assert list(reads(Sliding(1), 5)) == []
    assert list(reads(Sinks(2, 3), 5)) == [0, 1, 3, 4]
    assert list(reads(Chunked(4), 5)) == [4]
    assert list(reads(Chunked(4), 4)) == []
    assert list(reads(Mamba(), 5)) == [4]
    assert list(reads(Mamba(), 0)) == []


def count_dead(kind: Kind, size: int, length: int) -> int:
    return sum(dead(kind, size, length, entry) for entry in range(entries(size, length) + 2))


@pytest.mark.parametrize(("length", "gone"), [(4, 0), (5, 1), (6, 1), (7, 2), (11, 4)])
def test_entries_trimmed_under_a_window_of_4_in_blocks_of_2(length: int, gone: int) -> None:
    assert count_dead(Sliding(4), 2, length) == gone


@pytest.mark.parametrize(("length", "gone"), [(4, 2), (6, 2), (12, 6)])
def test_entries_trimmed_under_chunks_of_4_in_blocks_of_2(length: int, gone: int) -> None:
    assert count_dead(Chunked(4), 2, length) == gone


def test_a_block_that_reaches_past_the_tokens_is_never_dead() -> None:
    assert not dead(Sliding(1), 4, 7, 1)
    assert dead(Sliding(1), 4, 8, 1)


def test_dead_entries_come_first_behind_sinks() -> None:
    for kind, size, length in product(KINDS, (1, 2, 3), range(12)):
        first = entries(size, kind.sinks) if isinstance(kind, Sinks) else 0
        marks = [dead(kind, size, length, entry) for entry in range(first, 8)]
        assert not any(dead(kind, size, length, entry) for entry in range(first))
        assert marks == sorted(marks, reverse=True)


def test_a_recurrent_step_leaves_one_state() -> None:
    assert list(writes(Mamba(), 2, 7)) == [6]
    assert list(writes(Mamba(), 7, 7)) == []
    assert list(writes(Full(), 2, 5)) == [2, 3, 4]
    assert filled(Mamba(), 2, 0, 7) == {3}
    assert filled(Full(), 2, 3, 7) == {1, 2, 3}


def asks(tokens: int) -> Prefix:
    return 0, tuple(range(tokens))


def hit(kind: Kind, size: int, tokens: int, cached: set[int], eagle: bool = False) -> int:
    return hit_of_all((Group(kind, size),), tokens, (cached,), eagle)


def hit_of_all(groups: tuple[Group, ...], tokens: int, cached: tuple[set[int], ...], eagle: bool = False) -> int:
    """The hit of `tokens` tokens when the entries `cached` of each group are."""
    prefix = asks(tokens)
    held = {
        (at, cut(prefix, (entry + 1) * group.block_size))
        for at, group in enumerate(groups)
        for entry in cached[at]
        if (entry + 1) * group.block_size <= tokens
    }
    return longest_hit(groups, lambda at, known: (at, known) in held, prefix, eagle)


@pytest.mark.parametrize(
    ("kind", "size", "tokens", "cached", "length"),
    [
        (Full(), 2, 9, {0, 1, 3}, 4),
        (Full(), 2, 8, {0, 1, 2, 3}, 6),  # a token is left to compute
        (Sliding(4), 2, 13, {1, 2, 4}, 6),  # the rightmost run of two
        (Sliding(4), 2, 13, {0, 4}, 2),  # a shorter run counts at block 0 only
        (Sliding(1), 2, 8, set(), 6),  # nothing is read
        (Chunked(8), 4, 16, {2}, 12),
        (Chunked(8), 4, 17, set(), 16),  # a new chunk reads nothing before it
        (Chunked(8), 4, 16, {0, 1}, 8),
        (Mamba(), 2, 9, {0, 2}, 6),
        (Mamba(), 2, 9, set(), 0),
    ],
)
def test_known_hits(kind: Kind, size: int, tokens: int, cached: set[int], length: int) -> None:
    assert hit(kind, size, tokens, cached) == length


@pytest.mark.parametrize(
    ("kind", "tokens", "cached", "length"),
    [
        (Full(), 9, {0, 1, 2, 3}, 6),  # the last block is computed again
        (Full(), 8, {0, 1, 2}, 4),
        (Full(), 8, {0, 1, 2, 3}, 6),  # and may hold the last token
        (Full(), 9, {0}, 0),
        (Sliding(4), 13, {1, 2, 3, 5}, 6),  # one more than the run, then dropped
        (Sliding(4), 13, {0, 1}, 2),
    ],
)
def test_known_hits_with_a_draft_margin(kind: Kind, tokens: int, cached: set[int], length: int) -> None:
    assert hit(kind, 2, tokens, cached, eagle=True) == length


def readable(group: Group, tokens: int, length: int, cached: set[int], eagle: bool) -> bool:
    """Whether a group could resume `tokens` tokens after `length`, by brute force."""
    size = group.block_size
    read = {at // size for at in reads(group.kind, length)}
    if not eagle or isinstance(group.kind, Mamba | Chunked):
        return read <= cached and length < tokens
    return read | {length // size} <= cached and length < tokens >= length + size


def subsets(entries: int) -> list[set[int]]:
    return [{entry for entry, mark in enumerate(marks) if mark} for marks in product((False, True), repeat=entries)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("eagle", [False, True])
def test_hit_is_the_longest_that_can_be_read(kind: Kind, size: int, eagle: bool) -> None:
    group = Group(kind, size)
    for tokens, cached in product(range(1, 4 * size + 2), subsets(4)):
        lengths = [length for length in range(0, tokens, size) if readable(group, tokens, length, cached, eagle)]
        assert hit(kind, size, tokens, cached, eagle) == max(lengths, default=0)


@pytest.mark.parametrize(
    "groups",
    [
        (Group(Full(), 1), Group(Sliding(3), 2)),
        (Group(Sliding(3), 2), Group(Full(), 1)),
        (Group(Full(), 2), Group(Mamba(), 1)),
        (Group(Chunked(2), 1), Group(Full(), 2)),
        (Group(Sliding(2), 1), Group(Full(), 1)),
        (Group(Full(), 2), Group(Full(), 3)),
    ],
    ids=lambda groups: " ".join(f"{type(group.kind).__name__}{group.block_size}" for group in groups),
)
@pytest.mark.parametrize("eagle", [False, True])
def test_hit_of_two_groups_is_the_longest_that_both_can_read(groups: tuple[Group, Group], eagle: bool) -> None:
    one, other = groups
    for tokens, mine, theirs in product((4, 5, 7), subsets(6 // one.block_size), subsets(6 // other.block_size)):
        lengths = [
            length
            for length in range(tokens)
            if length % one.block_size == length % other.block_size == 0
            and readable(one, tokens, length, mine, eagle)
            and readable(other, tokens, length, theirs, eagle)
        ]
        assert hit_of_all(groups, tokens, (mine, theirs), eagle) == max(lengths, default=0)


def test_hit_entries_are_those_not_dead() -> None:
    for kind, size, blocks in product(KINDS, (1, 2, 3), range(5)):
        alive = {entry for entry in range(blocks) if not dead(kind, size, blocks * size, entry)}
        assert hit_entries(kind, size, blocks * size) == alive


def test_content_serves_the_positions_it_covers() -> None:
    prefix, group, state = asks(6), Group(Full(), 2), Group(Mamba(), 2)
    assert shows(group, 0, (0, cut(prefix, 4)), prefix, 3)
    assert shows(group, 1, (1, cut(prefix, 3)), prefix, 2)
    assert not shows(group, 0, (1, cut(prefix, 4)), prefix, 3), "another group's data"
    assert not shows(group, 0, (0, cut(prefix, 3)), prefix, 3), "not written yet"
    assert not shows(group, 0, (0, cut(prefix, 4)), prefix, 1), "another block"
    assert not shows(group, 0, (0, (1, prefix[1][:4])), prefix, 3), "other extra keys"
    assert not shows(group, 0, (0, (0, (9, 1, 2, 3))), prefix, 3), "another prefix"
    assert not shows(group, 0, None, prefix, 0)
    assert shows(state, 0, (0, cut(prefix, 4)), prefix, 3)
    assert not shows(state, 0, (0, cut(prefix, 4)), prefix, 2), "a state stops at one token"
