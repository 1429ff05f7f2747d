"""Property: each call on block tables does what the call of that name is known to do, and refuses for each reason.

How: short stories with known outcomes: which blocks are shared, copied, adopted, nulled and moved, what is counted; one
refusal of every reason.
Not covered: every order of calls (the explorer visits them all).
"""

from dataclasses import replace

import pytest

from blockwright_spec.block_tables import marks
from blockwright_spec.block_tables import transitions as t
from blockwright_spec.block_tables.counts import (
    appending,
    cached_tokens,
    cached_tokens_of,
    can_allocate,
    can_append_slots,
    can_swap,
    required,
    swapping,
    touched,
)
from blockwright_spec.block_tables.outcomes import (
    PagedDone,
    PagedOutcome,
    PagedReason,
    PagedRefusal,
    lowest,
    may_go,
    preferring,
)
from blockwright_spec.block_tables.state import Device, Paged, PagedConfig, PagedTable, entries_of, free_on, paged
from blockwright_spec.manager.outcomes import When
from blockwright_spec.reads import Prefix

GPU, CPU = Device.GPU, Device.CPU


def done(outcome: PagedOutcome) -> PagedDone:
    """A call that must happen."""
    assert isinstance(outcome, PagedDone), outcome
    return outcome


def why(outcome: PagedOutcome) -> PagedReason:
    """The reason of a call that must not happen."""
    assert isinstance(outcome, PagedRefusal), outcome
    return outcome.reason


def prompt(*tokens: int) -> Prefix:
    return 0, tokens


def allocator(
    size: int = 2, gpu: int = 6, cpu: int = 4, caching: bool = True, window: int | None = None, slots: int = 4
) -> Paged:
    return paged(PagedConfig(size, gpu, cpu, caching, window), slots)


def made(state: Paged, slot: int, *tokens: int, device: Device = GPU) -> Paged:
    return done(t.allocate(state, slot, prompt(*tokens), device, lowest)).state


def appended(state: Paged, slot: int, *tokens: int, ahead: int = 0, computed: int | None = None) -> Paged:
    return done(t.append(state, slot, tokens, ahead, computed, lowest)).state


def forked(state: Paged, parent: int, child: int) -> Paged:
    return done(t.fork(state, parent, child)).state


def freed(state: Paged, slot: int) -> Paged:
    return done(t.free(state, slot)).state


def table(state: Paged, slot: int = 0) -> PagedTable:
    found = state.tables[slot]
    assert found is not None
    return found


def entries(state: Paged, slot: int = 0) -> tuple[int, ...]:
    return table(state, slot).entries


# --- making and sharing


def test_a_prompt_takes_blocks_and_its_full_ones_can_be_found() -> None:
    state = made(allocator(), 0, 1, 2, 3)
    assert entries(state) == (0, 1)
    assert state.keys[:2] == (prompt(1, 2), None)
    assert state.contents[:2] == (prompt(1, 2), prompt(1, 2, 3))
    assert free_on(state, GPU) == (2, 3, 4, 5)


def test_equal_full_blocks_are_one_block_and_equal_partial_ones_are_two() -> None:
    state = made(made(allocator(), 0, 1, 2, 3), 1, 1, 2, 3)
    assert (entries(state, 0), entries(state, 1)) == ((0, 1), (0, 2))
    assert entries_of(state, 0) == 2


def test_extra_keys_separate_prefixes() -> None:
    state = done(t.allocate(made(allocator(), 0, 1, 2), 1, (9, (1, 2)), GPU, lowest)).state
    assert entries(state, 1) == (1,)


def test_nothing_is_shared_by_content_without_caching() -> None:
    state = made(made(allocator(caching=False), 0, 1, 2), 1, 1, 2)
    assert (entries(state, 0), entries(state, 1)) == ((0,), (1,))


def test_a_fork_shares_every_block() -> None:
    state = forked(forked(made(allocator(), 0, 1, 2, 3), 0, 1), 1, 2)
    assert entries(state, 2) == (0, 1)
    assert [entries_of(state, block) for block in (0, 1, 2)] == [3, 3, 0]


# --- writing


def test_a_shared_partial_block_is_copied_before_it_is_written() -> None:
    state = appended(forked(made(allocator(), 0, 1, 2, 3), 0, 1), 1, 4)
    assert (entries(state, 0), entries(state, 1)) == ((0, 1), (0, 2))
    assert state.copies == ((1, 2),)
    assert state.contents[1:3] == (prompt(1, 2, 3), prompt(1, 2, 3, 4))
    assert appended(state, 0, 5).copies == ((1, 2),), "the other is its only holder now, and writes in place"


def test_what_is_written_needs_what_was_to_stand_before_it_in_the_block() -> None:
    state = made(allocator(), 0, 1, 2, 3)
    lost = replace(state, contents=(state.contents[0], None, *state.contents[2:]))
    assert (appended(state, 0, 4).contents[1], appended(lost, 0, 4).contents[1]) == (prompt(1, 2, 3, 4), None)


def test_a_full_last_block_is_not_copied() -> None:
    state = appended(forked(made(allocator(), 0, 1, 2), 0, 1), 1, 4)
    assert (entries(state, 1), state.copies) == ((0, 1), ())


def test_both_ends_of_a_copy_stay_out_of_the_pool_until_it_is_taken() -> None:
    state = freed(freed(appended(forked(made(allocator(), 0, 1, 2, 3), 0, 1), 1, 4), 1), 0)
    assert free_on(state, GPU) == (0, 3, 4, 5)
    cleared = done(t.clear_copies(state))
    assert cleared.pairs == ((1, 2),)
    assert free_on(cleared.state, GPU) == (0, 1, 2, 3, 4, 5)


def test_a_block_that_fills_with_known_content_gives_way_to_it() -> None:
    state = made(made(allocator(), 0, 1, 2), 1, 1)
    assert entries(state, 1) == (1,)
    state = appended(state, 1, 2)
    assert entries(state, 1) == (0,)
    assert 1 in state.free


def test_known_content_that_is_free_is_adopted() -> None:
    state = freed(made(allocator(), 0, 1, 2), 0)
    assert state.keys[0] == prompt(1, 2)
    assert entries(appended(made(state, 0, 1), 0, 2, 3)) == (0, 2)


def test_lookahead_slots_get_blocks_without_content() -> None:
    state = appended(made(allocator(), 0, 1), 0, 2, ahead=3)
    assert (entries(state), table(state).reserved) == ((0, 1, 2), 5)
    assert state.contents[1:3] == (None, None)
    assert entries(appended(state, 0, 3, 4, 5)) == (0, 1, 2)


def test_empty_slots_can_be_asked_for_alone() -> None:
    state = done(t.ensure(made(allocator(), 0, 1), 0, 4, lowest)).state
    assert (entries(state), state.contents[1]) == ((0, 1, 2), None)
    assert done(t.ensure(state, 0, 2, lowest)).state == state


# --- windows


def test_what_the_window_has_passed_becomes_the_null_block_taken_when_first_needed() -> None:
    state = made(allocator(window=1), 0, 1, 2, 3, 4)
    state = appended(state, 0, 5, computed=3)
    assert (entries(state), state.null) == ((0, 1, 2), None)
    state = appended(state, 0, 6, computed=4)
    assert (entries(state), state.null, state.free) == ((3, 1, 2), 3, frozenset({0, 4, 5, 6, 7, 8, 9}))
    assert entries(appended(state, 0, 7, computed=0)) == (3, 1, 2, 4), "what was told before still holds"


def test_a_dead_block_that_a_fork_still_reads_stays() -> None:
    state = forked(made(allocator(window=1), 0, 1, 2, 3, 4), 0, 1)
    state = appended(state, 0, 5, computed=4)
    assert (entries(state, 0), entries(state, 1)) == ((2, 1, 3), (0, 1))
    assert 0 not in state.free


# --- moving


def test_a_swap_moves_each_block_once_and_keeps_sharing() -> None:
    state = appended(forked(made(allocator(caching=False), 0, 1, 2, 3), 0, 1), 1, 4)
    state = done(t.clear_copies(state)).state
    moved = done(t.swap(state, (0, 1), CPU, lowest))
    assert moved.pairs == ((0, 6), (1, 7), (2, 8))
    assert (entries(moved.state, 0), entries(moved.state, 1)) == ((6, 7), (6, 8))
    assert free_on(moved.state, GPU) == (0, 1, 2, 3, 4, 5)


def test_a_source_that_others_hold_stays() -> None:
    state = done(t.swap(forked(made(allocator(caching=False), 0, 1), 0, 1), (1,), CPU, lowest)).state
    assert (entries(state, 0), entries(state, 1)) == ((0,), (6,))
    assert 0 not in state.free


def test_known_content_at_the_destination_is_adopted_without_a_pair() -> None:
    state = done(t.swap(made(allocator(), 0, 1, 2, 3), (0,), CPU, lowest)).state
    back = done(t.swap(state, (0,), GPU, lowest))
    assert back.pairs == ((7, 1),)
    assert entries(back.state) == (0, 1)


def test_null_entries_do_not_move() -> None:
    state = appended(made(allocator(window=1), 0, 1, 2, 3, 4), 0, 5, computed=4)
    moved = done(t.swap(state, (0,), CPU, lowest))
    assert entries(moved.state) == (2, 6, 7)
    assert moved.pairs == ((1, 6), (3, 7))


# --- eviction, access, computed


def test_blocks_without_content_go_first_then_the_least_recently_accessed_then_the_longest() -> None:
    state = freed(made(allocator(size=1, gpu=4), 0, 1, 2, 3), 0)
    assert may_go(state, GPU) == (3,)
    full = made(state, 0, 9)
    assert may_go(full, GPU) == (2,), "of equal age the one with the most tokens"
    fresher = done(marks.access(full, (2,), 5)).state
    assert may_go(fresher, GPU) == (1,), "refreshing a free block takes effect"
    assert may_go(done(marks.access(fresher, (0, 1), 6)).state, GPU) == (2,)


def test_a_choice_takes_of_those_that_may_go() -> None:
    state = done(t.allocate(allocator(), 0, prompt(1, 2, 3), GPU, preferring((4, 2)))).state
    assert entries(state) == (4, 2)


def test_found_tokens_count_once_they_are_computed() -> None:
    state = made(allocator(), 0, 1, 2, 3, 4, 5)
    assert cached_tokens(state, prompt(1, 2, 3, 4)) == 0
    assert cached_tokens(done(marks.mark_computed(state)).state, prompt(1, 2, 3, 4, 9)) == 4
    assert cached_tokens(freed(state, 0), prompt(1, 2, 9, 9)) == 0, "nobody computed it, and nobody will"
    assert cached_tokens(freed(done(marks.mark_computed(state)).state, 0), prompt(1, 2, 9, 9)) == 2


def test_chunks_make_blocks_cached_one_by_one() -> None:
    state = done(marks.mark_table(made(allocator(), 0, 1, 2, 3, 4, 5), 0, 3)).state
    table = state.tables[0]
    assert table is not None
    assert (cached_tokens(state, table.prefix), cached_tokens_of(state, table)) == (2, 0), "others' and its own"
    state = done(marks.mark_table(made(state, 1, 1, 2, 3, 4, 5), 0, 5)).state
    assert [cached_tokens_of(state, table) for table in state.tables[:2] if table is not None] == [4, 2]


def test_a_block_with_data_gives_way_to_computed_blocks_alone() -> None:
    state = made(done(marks.mark_table(made(allocator(), 0, 1), 0, 1)).state, 1, 1, 2)
    kept = appended(state, 0, 2)
    assert (entries(kept), kept.keys[entries(kept)[0]]) == ((0,), None)
    assert entries(appended(done(marks.mark_table(state, 1, 2)).state, 0, 2)) == (1,)
    assert entries(appended(made(made(allocator(), 0, 1), 1, 1, 2), 0, 2)) == (1,), "nothing was computed into it"


def test_accesses_mean_nothing_without_caching() -> None:
    state = made(allocator(caching=False), 0, 1)
    assert done(marks.access(state, (0, 5), 9)).state == state


def test_a_reset_forgets_what_is_found_on_one_device() -> None:
    state = freed(freed(made(made(allocator(), 0, 1, 2), 1, 1, 2, device=CPU), 0), 1)
    reset = done(marks.reset(state, GPU)).state
    assert (reset.keys[0], reset.contents[0], reset.keys[6]) == (None, None, prompt(1, 2))


def test_a_reset_does_not_mind_the_null_block() -> None:
    state = freed(appended(made(allocator(window=1), 0, 1, 2, 3, 4), 0, 5, computed=4), 0)
    assert state.null is not None
    assert done(marks.reset(state, GPU)).state.keys == (None,) * 10


# --- counting


@pytest.mark.parametrize(
    ("tokens", "new", "ahead", "count"),
    [(3, 0, 0, 1), (4, 0, 0, 0), (4, 1, 0, 1), (3, 1, 0, 1), (3, 2, 0, 2), (3, 1, 4, 2), (4, 4, 1, 2)],
)
def test_touched_blocks(tokens: int, new: int, ahead: int, count: int) -> None:
    state = made(allocator(size=4), 0, *range(tokens))
    assert touched(state.config, table(state), new, ahead) == count


def test_required_blocks() -> None:
    assert [required(allocator(size=4).config, tokens, 3) for tokens in (1, 2, 5, 6)] == [1, 2, 2, 3]


def test_the_null_block_counts_until_it_is_taken() -> None:
    state = made(allocator(window=1), 0, 1, 2, 3, 4)
    assert appending(state, ((0, 1),), 0) == 2
    assert appending(appended(state, 0, 5, computed=4), ((0, 1),), 0) == 1
    assert not can_append_slots(made(allocator(gpu=3, window=1), 0, 1, 2, 3, 4), ((0, 1),), 0)


def test_a_prompt_fits_now_later_or_never() -> None:
    state = made(allocator(gpu=4), 0, 1, 2, 3)
    asks = [can_allocate(state, tokens, 0, watermark=1) for tokens in (2, 4, 6, 8)]
    assert asks == [None, When.NOT_NOW, When.NOT_NOW, When.NEVER]
    assert can_allocate(allocator(gpu=4, window=2), 100, 0, 1) is None


def test_a_swap_is_counted_with_what_is_appended_after_it() -> None:
    state = made(allocator(cpu=2), 0, 1, 2, 3)
    assert [swapping(state, ((0, new),), CPU, 0) for new in (0, 1, 2)] == [2, 2, 3]
    assert [can_swap(state, ((0, new),), CPU, 0, 1) for new in (0, 2)] == [None, When.NEVER]
    wide = appended(made(allocator(), 0, 1, 2), 0, ahead=4)
    assert swapping(wide, ((0, 0),), CPU, 0) == 3, "lookahead slots move as well"
    crowded = made(made(allocator(cpu=3), 0, 1, 2, 3), 1, 8, 9, 9, device=CPU)
    assert can_swap(crowded, ((0, 0),), CPU, 0, 0) is When.NOT_NOW
    assert can_swap(crowded, ((1, 0),), GPU, 0, 2) is None
    assert can_swap(crowded, ((1, 0),), GPU, 0, 3) is When.NOT_NOW


# --- refusals

HELD = made(allocator(gpu=3, cpu=1), 0, 1, 2, 3)
SHARED = forked(appended(forked(made(allocator(size=4), 0, 1), 0, 1), 1, 2), 1, 2)
BARE = allocator(gpu=1, cpu=1)
WINDOWED = made(allocator(window=1), 0, 1)

REFUSALS: list[tuple[PagedReason, PagedOutcome]] = [
    (PagedReason.HAS_BLOCKS, t.allocate(HELD, 0, prompt(1), GPU, lowest)),
    (PagedReason.HAS_BLOCKS, t.fork(HELD, 0, 0)),
    (PagedReason.NO_TOKENS, t.allocate(HELD, 1, prompt(), GPU, lowest)),
    (PagedReason.NO_FREE_BLOCKS, t.allocate(HELD, 1, prompt(5, 6, 7), GPU, lowest)),
    (PagedReason.NO_FREE_BLOCKS, t.append(HELD, 0, (1, 2), 2, None, lowest)),
    (PagedReason.NO_FREE_BLOCKS, t.ensure(HELD, 0, 4, lowest)),
    (PagedReason.NO_FREE_BLOCKS, t.swap(HELD, (0,), CPU, lowest)),
    (
        PagedReason.NO_FREE_BLOCKS,
        t.append(made(allocator(gpu=2, window=1), 0, 1, 2, 3, 4), 0, (5,), 0, 4, lowest),
    ),
    (PagedReason.COPY_PENDING, t.append(SHARED, 2, (3,), 0, None, lowest)),
    (PagedReason.COPY_PENDING, t.swap(SHARED, (0,), CPU, lowest)),
    (PagedReason.NO_BLOCKS, t.append(HELD, 1, (1,), 0, None, lowest)),
    (PagedReason.NO_BLOCKS, t.ensure(HELD, 1, 1, lowest)),
    (PagedReason.NO_BLOCKS, t.fork(HELD, 1, 2)),
    (PagedReason.NO_BLOCKS, t.free(HELD, 1)),
    (PagedReason.NO_BLOCKS, t.swap(HELD, (0, 1), CPU, lowest)),
    (PagedReason.NEGATIVE, t.append(HELD, 0, (1,), -1, None, lowest)),
    (PagedReason.UNWRITTEN, t.append(WINDOWED, 0, (1,), 0, -1, lowest)),
    (PagedReason.NEGATIVE, t.ensure(HELD, 0, -1, lowest)),
    (PagedReason.NOT_TOLD, t.append(WINDOWED, 0, (1,), 0, None, lowest)),
    (PagedReason.UNWRITTEN, t.append(WINDOWED, 0, (1,), 0, 2, lowest)),
    (PagedReason.WRONG_DEVICE, t.swap(HELD, (0,), GPU, lowest)),
    (PagedReason.WRONG_DEVICE, t.append(made(allocator(), 0, 1, device=CPU), 0, (1,), 0, None, lowest)),
    (PagedReason.NOT_KNOWN, marks.access(BARE, (0,), 1)),
    (PagedReason.BLOCKS_IN_USE, marks.reset(HELD, GPU)),
]


@pytest.mark.parametrize(("reason", "outcome"), REFUSALS)
def test_refusals(reason: PagedReason, outcome: PagedOutcome) -> None:
    assert why(outcome) is reason


def test_every_reason_is_met_and_says_when() -> None:
    assert {reason for reason, _ in REFUSALS} == set(PagedReason)
    assert {reason.value[0] for reason in PagedReason} == {When.NOT_NOW, When.INVALID}


def test_a_full_pool_still_swaps_what_is_known_there() -> None:
    state = made(allocator(gpu=2, cpu=1), 0, 1, 2)
    state = done(t.swap(forked(state, 0, 1), (1,), CPU, lowest)).state
    state = done(t.ensure(state, 0, 2, lowest)).state
    assert free_on(state, GPU) == ()
    assert done(t.swap(state, (1,), GPU, lowest)).pairs == ()
