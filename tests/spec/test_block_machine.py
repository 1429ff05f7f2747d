"""Property: each guard of the page forbids exactly what its step must not do, each invariant can fail, and every state
that the steps reach keeps all four.

How: a block is led through its life by hand, and every guard is tried on both sides; an invariant is shown a state with
one field altered; a small pool is visited whole (`small_pool`), and its moves are compared with the diagram's.
Not covered: that the rest of the specification keeps to the page (the gate `refinement`).
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from blockwright_lab.refinement.small_pool import explored
from blockwright_spec import block_machine as page
from blockwright_spec.block_machine import NULL, Block, Machine, Table
from blockwright_spec.manager.laws import BLOCK_LAWS
from blockwright_spec.reads import Chunked, Cross, Full, Kind, Mamba, Sliding

A, B, PIN = ("A", 0), ("B", 0), ("a copy", 0)


def done(now: Machine | None) -> Machine:
    assert now is not None
    return now


@pytest.fixture
def empty() -> Machine:
    """Two usable blocks, and a table that slides beside one that keeps all."""
    return page.pool(3, {"A": Table(Sliding(2), 1), "B": Table(Full(), 1)})


@pytest.fixture
def held(empty: Machine) -> Machine:
    """Block 1 is held by the first entry of A."""
    return done(page.take(empty, A, 1))


@pytest.fixture
def written(held: Machine) -> Machine:
    """There is something in block 1."""
    return done(page.write(held, 1, "x"))


@pytest.fixture
def shared(written: Machine) -> Machine:
    """Block 1 is findable."""
    return done(page.publish(written, 1))


@pytest.fixture
def candidate(shared: Machine) -> Machine:
    """Block 1 is findable, and nobody holds it."""
    return done(page.drop(shared, A))


def test_only_a_free_block_is_taken_and_what_was_in_it_is_lost(held: Machine, candidate: Machine) -> None:
    assert page.take(held, B, 1) is page.take(held, A, 2) is page.take(held, B, NULL) is None
    after = done(page.take(candidate, B, 1))
    assert (page.standing(after, 1), after.blocks[1], 1 in after.free) == ("held", Block(1), False)


def test_what_is_held_or_findable_is_held_as_it_is(empty: Machine, held: Machine, candidate: Machine) -> None:
    assert page.hold(empty, A, 1) is page.hold(empty, A, NULL) is page.hold(held, A, 1) is None
    assert done(page.hold(held, B, 1)).blocks[1] == Block(2)
    after = done(page.hold(candidate, B, 1))
    assert (after.blocks[1], 1 in after.free) == (Block(1, "x", "x"), False)


def test_the_only_user_writes_while_nobody_can_find_it(empty: Machine, held: Machine, shared: Machine) -> None:
    assert page.write(empty, 1, "x") is page.write(shared, 1, "y") is None
    assert page.write(done(page.hold(held, B, 1)), 1, "y") is None
    assert done(page.write(done(page.hold(held, PIN, 1)), 1, "y")).blocks[1] == Block(2, "y")
    only_pinned = done(page.drop(done(page.hold(held, PIN, 1)), A))
    assert page.write(only_pinned, 1, "y") is None


def test_the_null_block_is_not_written() -> None:
    now = page.pool(2, {"A": Table(Sliding(2), 1, 2, 2)})
    assert page.write(done(page.null(now, A)), NULL, "x") is None


def test_something_becomes_findable_once(held: Machine, written: Machine, shared: Machine) -> None:
    assert page.publish(held, 1) is page.publish(shared, 1) is None
    assert done(page.publish(written, 1)).blocks[1] == Block(1, "x", "x")


def test_the_last_holder_frees_a_block(empty: Machine, written: Machine, candidate: Machine) -> None:
    assert page.drop(empty, A) is None
    assert done(page.drop(written, A)) == empty
    assert (page.standing(candidate, 1), candidate.blocks[1]) == ("free and findable", Block(0, "x", "x"))
    assert page.standing(done(page.drop(done(page.hold(written, B, 1)), A)), 1) == "held"


def test_a_dead_entry_becomes_null(shared: Machine) -> None:
    assert page.null(shared, A) is page.null(shared, PIN) is None
    reads = done(page.advance(shared, "A", 1, 2))
    after = done(page.advance(shared, "A", 2, 2))
    assert page.null(reads, A) is None
    assert done(page.null(after, A)).held == {A: NULL}
    assert page.standing(done(page.null(after, A)), 1) == "free and findable"
    assert done(page.drop(done(page.null(after, A)), A)).held == {}


def test_an_entry_may_be_null_from_the_start(empty: Machine) -> None:
    after = done(page.null(done(page.advance(empty, "A", 3, 4)), A))
    assert (after.held, after.free) == ({A: NULL}, empty.free)


def test_what_is_findable_is_forgotten(written: Machine, shared: Machine, candidate: Machine, empty: Machine) -> None:
    assert page.forget(written, 1) is page.forget(empty, NULL) is None
    assert done(page.forget(shared, 1)) == written
    assert done(page.forget(candidate, 1)) == empty


def test_tokens_go_on_and_never_back(empty: Machine, held: Machine) -> None:
    on = done(page.advance(held, "A", 2, 4))
    assert page.advance(on, "A", 1, 4) is page.advance(on, "A", 2, 3) is None
    assert done(page.advance(on, "A", 2, 5)).tables["A"] == Table(Sliding(2), 1, 2, 5)
    assert done(page.advance(done(page.drop(on, A)), "A", 0, 0)) == empty


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


def test_every_state_of_a_small_pool_keeps_the_invariants() -> None:
    found = explored()
    assert found.fault == ""
    assert found.states > 1000
    assert {move.step for move in found.moves} == {step.__name__ for step in page.STEPS}


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
def test_an_invariant_that_is_broken_says_so(shared: Machine, law: str, alter: Callable[[Machine], Machine]) -> None:
    assert [each.id for each in BLOCK_LAWS if not each.holds(shared)] == []
    assert [each.id for each in BLOCK_LAWS if not each.holds(alter(shared))] == [law]
