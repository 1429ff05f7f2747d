"""Property: what follows from what a token reads is what the field expects of it.

How: reads, dead entries and hits by the examples that users of the known systems rely on.
Not covered: all other integers (contracts), and that a hit is the longest (laws HIT-1 to HIT-3, in every state).
"""

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
    longest_hit,
    reads,
    shows,
    writes,
)


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


def test_a_recurrent_step_leaves_one_state() -> None:
    assert list(writes(Mamba(), 2, 7)) == [6]
    assert list(writes(Mamba(), 7, 7)) == []
    assert list(writes(Full(), 2, 5)) == [2, 3, 4]
    assert filled(Mamba(), 2, 0, 7) == {3}
    assert filled(Full(), 2, 3, 7) == {1, 2, 3}


def asks(tokens: int) -> Prefix:
    return 0, tuple(range(tokens))


def hit(kind: Kind, size: int, tokens: int, cached: set[int], eagle: bool = False) -> int:
    """The hit of `tokens` tokens when some entries are cached."""
    held = {cut(asks(tokens), (entry + 1) * size) for entry in cached if (entry + 1) * size <= tokens}
    return longest_hit((Group(kind, size),), lambda at, known: known in held, asks(tokens), eagle)


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
