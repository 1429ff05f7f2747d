"""Property: each invariant of the page can fail, and an entry stays as long as it is read or filled.

How: an invariant is shown a state with one field altered; entries of each kind of layer are listed by hand.
Not covered: most guards and steps (the gates `refinement`, which compares their moves with those of all parts, and
`contracts`).
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from blockwright_spec import block_machine as page
from blockwright_spec.block_machine import NULL, Block, Machine, Table
from blockwright_spec.manager.laws import BLOCK_LAWS
from blockwright_spec.reads import Chunked, Cross, Full, Kind, Mamba, Sliding

A, B, PIN = ("A", 0), ("B", 0), ("a copy", 0)
EMPTY = page.pool(3, {"A": Table(Sliding(2), 1), "B": Table(Full(), 1)})


def done(now: Machine | None) -> Machine:
    assert now is not None
    return now


@pytest.mark.parametrize(
    ("kind", "size", "read"),
    [
        (Full(), 2, {0, 1, 2, 3}),
        (Sliding(3), 2, {1, 2, 3}),
        (Chunked(4), 2, {2, 3}),
        (Mamba(), 2, {1, 3}),
        (Cross(), 2, {0, 1, 2, 3}),
    ],
)
def test_what_is_read_or_filled_stays(kind: Kind, size: int, read: set[int]) -> None:
    """Tokens 0..3 are done, and a step over tokens 4..7 is under way."""
    table = Table(kind, size, 4, 8)
    assert {entry for entry in range(4) if not page.unread(table, entry)} == read


def altered(now: Machine, block: int, record: Block) -> Machine:
    return replace(now, blocks=(*now.blocks[:block], record, *now.blocks[block + 1 :]))


BROKEN: tuple[tuple[str, Callable[[Machine], Machine]], ...] = (
    ("BLOCK-1", lambda now: altered(now, 1, Block(2, "x", "x"))),
    ("BLOCK-1", lambda now: replace(now, held={**now.held, B: 1})),
    ("BLOCK-2", lambda now: replace(now, free=now.free | {NULL})),
    ("BLOCK-2", lambda now: altered(now, NULL, Block(0, "x", "x"))),
    ("BLOCK-2", lambda now: replace(now, held={**now.held, PIN: NULL})),
    ("BLOCK-3", lambda now: replace(now, free=now.free | {1})),
    ("BLOCK-3", lambda now: replace(now, free=now.free - {2})),
    ("BLOCK-3", lambda now: altered(now, 1, Block(1, "x", "y"))),
    ("BLOCK-3", lambda now: altered(now, 2, Block(0, "x"))),
    ("BLOCK-4", lambda now: replace(now, held={**now.held, B: NULL})),
)


@pytest.mark.parametrize(("law", "alter"), BROKEN)
def test_an_invariant_that_is_broken_says_so(law: str, alter: Callable[[Machine], Machine]) -> None:
    """Block 1 is held by the first entry of A, written and findable; block 2 is free."""
    shared = done(page.publish(done(page.write(done(page.take(EMPTY, A, 1)), 1, "x")), 1))
    assert [each.id for each in BLOCK_LAWS if not each.holds(shared)] == []
    assert [each.id for each in BLOCK_LAWS if not each.holds(alter(shared))] == [law]


def test_who_may_write_and_what_goes_back() -> None:
    """A pin is no user. Two users do not write, nor one to what is found; what is forgotten may be written."""
    mine = done(page.take(EMPTY, A, 1))
    found = done(page.publish(done(page.write(done(page.hold(mine, PIN, 1)), 1, "x")), 1))
    assert page.write(found, 1, "y") is None is page.write(done(page.hold(mine, B, 1)), 1, "y")
    assert done(page.write(done(page.forget(found, 1)), 1, "y")).blocks[1] == Block(2, "y")
    further = done(page.advance(mine, "A", 1, 2))
    assert page.advance(further, "A", 1, 1) is None is page.advance(further, "A", 0, 2)
