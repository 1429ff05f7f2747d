"""Property: every law of block tables holds in states that calls reach, and every law can fail.

How: good states of each kind are reached by calls (forks, copies pending, windows, tables on the host); then one thing
is broken by hand, once for each law, and that law must notice. Laws of calls are shown calls whose outcome was altered.
Not covered: that no call breaks a law (the explorer), and that every broken state breaks one (the mutants).
"""

from dataclasses import replace

import pytest

from blockwright_spec.block_tables import marks
from blockwright_spec.block_tables import transitions as t
from blockwright_spec.block_tables.outcomes import PagedDone, PagedOutcome, PagedReason, PagedRefusal, lowest
from blockwright_spec.block_tables.state import Device, Paged, PagedConfig, PagedTable, paged
from blockwright_spec.block_tables.step_laws import PAGED_LAWS, PAGED_STEP_LAWS
from blockwright_spec.law import Law
from blockwright_spec.reads import Prefix

BY_ID = {law.id: law.holds for law in PAGED_LAWS}
STEPS_BY_ID = {law.id: law.holds for law in PAGED_STEP_LAWS}
PROMPT: Prefix = (0, (7, 8, 9))


def after(outcome: PagedOutcome) -> Paged:
    """The state after a call that must happen."""
    assert isinstance(outcome, PagedDone), outcome
    return outcome.state


def made(caching: bool = True, window: int | None = None, prompt: Prefix = PROMPT) -> Paged:
    """A table of three tokens on 6 + 4 blocks of two slots, and room for two more."""
    state = paged(PagedConfig(2, 6, 4, caching, window), 3)
    return after(t.allocate(state, 0, prompt, Device.GPU, lowest))


FULL = made()
FORKED = after(t.fork(FULL, 0, 1))
COPIED = after(t.append(FORKED, 1, (5, 6), 0, None, lowest))
NAIVE = after(t.fork(made(caching=False), 0, 1))
WINDOW = after(t.append(made(window=1, prompt=(0, (1, 2, 3, 4, 5, 6))), 0, (7,), 3, 6, lowest))
FREED = after(t.free(FULL, 0))
MOVED = after(t.swap(FORKED, (0, 1), Device.CPU, lowest))
GOOD = {
    "full": FULL,
    "forked": FORKED,
    "copied": COPIED,
    "naive": NAIVE,
    "window": WINDOW,
    "freed": FREED,
    "moved": MOVED,
}


def table_changed(state: Paged, slot: int = 0, **fields: object) -> Paged:
    """The state with fields of a table changed."""
    tables = list(state.tables)
    table = tables[slot]
    assert isinstance(table, PagedTable)
    tables[slot] = replace(table, **fields)  # type: ignore[arg-type]
    return replace(state, tables=tuple(tables))


def with_content(state: Paged, block: int, content: Prefix | None) -> Paged:
    """The state with another content in a block."""
    contents = list(state.contents)
    contents[block] = content
    return replace(state, contents=tuple(contents))


def with_key(state: Paged, block: int, key: Prefix | None) -> Paged:
    """The state with a block found by something else."""
    keys = list(state.keys)
    keys[block] = key
    return replace(state, keys=tuple(keys))


BROKEN: dict[str, Paged] = {
    "PAGE-1": replace(FULL, free=FULL.free | {0}),
    "PAGE-2": with_content(WINDOW, WINDOW.null or 0, (0, (1, 2))),
    "PAGE-3": table_changed(WINDOW, computed=4),
    "PAGE-4": with_content(FORKED, 1, (0, (7, 8, 6))),
    "PAGE-5": with_key(FULL, 0, (0, (7, 9))),
    "PAGE-6": with_key(FULL, 0, None),
    "PAGE-7": with_content(FULL, 5, (0, (7,))),
    "PAGE-8": replace(COPIED, copies=(*COPIED.copies, (COPIED.copies[0][1], 5))),
    "PAGE-9": table_changed(FULL, reserved=5),
    "PAGE-10": table_changed(FULL, entries=(0, 0)),
    "PAGE-16": replace(FULL, fresh=frozenset()),
    "PAGE-17": table_changed(FULL, ready=2),
}
"""A state that breaks each law."""


def test_the_good_states_are_what_the_broken_ones_are_made_of() -> None:
    tables = {name: [table and table.entries for table in state.tables[:2]] for name, state in GOOD.items()}
    assert tables == {
        "full": [(0, 1), None],
        "forked": [(0, 1), (0, 1)],
        "copied": [(0, 1), (0, 3, 2)],
        "naive": [(0, 1), (0, 1)],
        "window": [(3, 3, 2, 4, 5), None],
        "freed": [None, None],
        "moved": [(6, 7), (6, 7)],
    }
    assert (COPIED.copies, WINDOW.null, FREED.free) == (((1, 3),), 3, frozenset(range(10)))


@pytest.mark.parametrize("law", PAGED_LAWS, ids=lambda law: law.id)
@pytest.mark.parametrize("name", GOOD)
def test_law_holds_in_reached_states(law: Law, name: str) -> None:
    assert law.holds(GOOD[name])


@pytest.mark.parametrize("name", BY_ID)
def test_law_notices_what_breaks_it(name: str) -> None:
    assert not BY_ID[name](BROKEN[name])


OTHERS: list[tuple[str, Paged]] = [
    ("PAGE-1", replace(FULL, free=FULL.free - {5})),
    ("PAGE-1", replace(COPIED, copies=(*COPIED.copies, (1, 5)))),
    ("PAGE-2", with_key(WINDOW, WINDOW.null or 0, (0, (1, 2)))),
    ("PAGE-2", replace(FULL, null=5)),
    ("PAGE-2", replace(WINDOW, null=6)),
    ("PAGE-3", table_changed(WINDOW, computed=7, entries=(1, 3, 2, 4, 5))),
    ("PAGE-4", table_changed(MOVED, prefix=(0, (7, 8, 8)))),
    ("PAGE-4", table_changed(COPIED, 1, entries=(0, 1, 2))),
    ("PAGE-5", with_key(NAIVE, 0, (0, (7, 8)))),
    ("PAGE-5", with_content(with_key(FULL, 1, PROMPT), 1, PROMPT)),
    ("PAGE-6", with_key(FULL, 5, (0, (7, 8)))),
    ("PAGE-6", replace(with_key(FULL, 0, None), done=(0, 1, *FULL.done[2:]))),
    ("PAGE-7", replace(FULL, done=(*FULL.done[:5], 1, *FULL.done[6:]))),
    ("PAGE-16", table_changed(FULL, found=2)),
    ("PAGE-17", table_changed(FULL, ready=3)),
    ("PAGE-8", replace(COPIED, copies=((1, 3), (0, 3)))),
    ("PAGE-8", replace(COPIED, copies=((1, 7),))),
    ("PAGE-9", table_changed(FULL, reserved=2)),
    ("PAGE-10", table_changed(FULL, device=Device.CPU)),
]
"""Other ways to break a law that says several things."""


@pytest.mark.parametrize(("name", "state"), OTHERS)
def test_law_notices_every_part(name: str, state: Paged) -> None:
    assert not BY_ID[name](state)


# --- laws of calls ---

SWAP_TO = t.swap(FORKED, (0, 1), Device.CPU, lowest)
assert isinstance(SWAP_TO, PagedDone)
AGED = replace(FREED, times=(5, *FREED.times[1:]))
TWO_FOUND = after(t.free(after(t.allocate(AGED, 0, (0, (1, 2)), Device.GPU, lambda block: -block)), 0))
TAKEN = after(t.allocate(TWO_FOUND, 0, (0, (3,)), Device.GPU, lowest))

BROKEN_CALLS: list[tuple[str, Paged, PagedOutcome]] = [
    ("PAGE-11", FORKED, PagedDone(with_content(FORKED, 1, (0, (7, 8, 9, 6))))),
    ("PAGE-11", FULL, PagedDone(with_content(FORKED, 1, (0, (7, 8, 9, 6))))),
    ("PAGE-12", FORKED, PagedDone(with_content(COPIED, 1, None))),
    ("PAGE-12", FULL, PagedDone(replace(COPIED, tables=FULL.tables))),
    ("PAGE-12", FORKED, PagedDone(table_changed(COPIED, 0, entries=(0, 3)))),
    ("PAGE-13", FORKED, PagedDone(COPIED, counted=1)),
    ("PAGE-13", FORKED, PagedRefusal(PagedReason.NO_FREE_BLOCKS, 4)),
    ("PAGE-13", FORKED, replace(SWAP_TO, device=Device.GPU)),
    ("PAGE-14", TWO_FOUND, PagedDone(with_key(TAKEN, 0, None))),
    ("PAGE-15", FORKED, replace(SWAP_TO, pairs=((0, 6),))),
    ("PAGE-15", FORKED, replace(SWAP_TO, pairs=((0, 6), (1, 7), (1, 7)))),
    ("PAGE-15", FORKED, replace(SWAP_TO, state=table_changed(SWAP_TO.state, 1, entries=(6, 8)))),
    ("PAGE-15", FORKED, replace(SWAP_TO, state=table_changed(SWAP_TO.state, 1, entries=(6, 6)))),
    ("PAGE-15", WINDOW, PagedDone(table_changed(WINDOW, device=Device.CPU, entries=(6, 6, 7, 8, 9)))),
]
"""Calls that break each law."""


@pytest.mark.parametrize(("name", "before", "outcome"), BROKEN_CALLS)
def test_law_of_calls_notices_what_breaks_it(name: str, before: Paged, outcome: PagedOutcome) -> None:
    assert not STEPS_BY_ID[name](before, outcome)


def test_every_law_is_broken_once() -> None:
    assert BROKEN.keys() == BY_ID.keys()
    assert {name for name, _, _ in BROKEN_CALLS} == STEPS_BY_ID.keys()


@pytest.mark.parametrize("law", PAGED_STEP_LAWS, ids=lambda law: law.id)
def test_law_of_calls_holds_for_calls_that_happened(law: Law) -> None:
    calls = [
        (FORKED, t.append(FORKED, 1, (5, 6), 0, None, lowest)),
        (FORKED, SWAP_TO),
        (MOVED, t.swap(MOVED, (0,), Device.GPU, lowest)),
        (TWO_FOUND, t.allocate(TWO_FOUND, 0, (0, (3,) * 12), Device.GPU, lowest)),
        (COPIED, t.clear_copies(COPIED)),
        (FREED, marks.reset(FREED, Device.GPU)),
        (FULL, t.allocate(FULL, 1, (0, (3,) * 12), Device.GPU, lowest)),
    ]
    assert all(law.holds(before, outcome) for before, outcome in calls)
