"""Property: the block manager finds and refuses as section 5 of the named systems says.

How: what counts as computed is played through with a few blocks; after an error everything the manager knows is
compared with what it knew before; copies are driven apart.
Not covered: counts, allocating, appending and forking (the gates `paged` and `movement`), swaps (test_swap.py).
"""

import copy

import pytest
from tests.paging.support import alone, group_of, manager_dump, start

from blockwright.errors import (
    DuplicateRequestError,
    InvalidArgumentError,
    InvariantError,
    NoFreeBlocksError,
    UnknownRequestError,
    UnsupportedError,
)
from blockwright.paging import (
    AllocStatus,
    Device,
    SelfAttnBlockSpaceManager,
    SequenceStatus,
    SimpleSequence,
    SimpleSequenceGroup,
)

RUNNING = SequenceStatus.RUNNING


@pytest.fixture(params=[False, True], ids=["plain", "caching"])
def manager(request: pytest.FixtureRequest) -> SelfAttnBlockSpaceManager:
    """Eight blocks of four slots on the GPU, four on the CPU, no watermark."""
    return SelfAttnBlockSpaceManager(4, 8, 4, 0, enable_caching=request.param)


# --- counts ---


# --- allocate, append, fork, free ---


def test_errors_change_nothing(manager: SelfAttnBlockSpaceManager) -> None:
    parent = start(manager, 1, range(6))
    child = parent.fork(2)
    manager.fork(parent, child)
    other = start(manager, 3, range(100, 124))
    child.token_ids.append(60)
    unknown = SimpleSequence(7, [1, 2])
    big, _ = group_of(8, range(200, 240))
    again = SimpleSequenceGroup("r", [SimpleSequence(9, [1]), SimpleSequence(1, [1])])
    empty = SimpleSequenceGroup("r", [SimpleSequence(9, [])])
    before = manager_dump(manager)
    with pytest.raises(NoFreeBlocksError):
        manager.append_slots(child, 0)
    with pytest.raises(NoFreeBlocksError):
        manager.allocate(big)
    with pytest.raises(DuplicateRequestError):
        manager.allocate(again)
    with pytest.raises(DuplicateRequestError):
        manager.fork(parent, child)
    with pytest.raises(InvalidArgumentError):
        manager.allocate(empty)
    with pytest.raises(InvalidArgumentError, match="waiting"):
        manager.allocate(alone(parent))
    with pytest.raises(InvalidArgumentError, match="waiting"):
        manager.can_allocate(alone(parent))
    with pytest.raises(InvalidArgumentError):
        manager.append_slots(parent, -1)
    with pytest.raises(InvalidArgumentError):
        manager.can_append_slots(alone(parent), -1)
    for act in (manager.get_block_table, lambda s: manager.append_slots(s, 0)):
        with pytest.raises(UnknownRequestError):
            act(unknown)
    unknown.status = RUNNING
    for ask in (lambda g: manager.can_append_slots(g, 0), manager.can_swap_out, manager.swap_out):
        with pytest.raises(UnknownRequestError):
            ask(alone(unknown))
    with pytest.raises(UnknownRequestError):
        manager.get_cross_block_table(alone(unknown))
    assert manager_dump(manager) == before
    manager.check()
    manager.free(other)


def test_unknown_sequences_are_passed_over(manager: SelfAttnBlockSpaceManager) -> None:
    known = start(manager, 1, range(6))
    before = manager_dump(manager)
    unknown = SimpleSequence(7, [1, 2])
    manager.free(unknown)
    manager.free_cross(alone(unknown))
    manager.fork(unknown, known)
    manager.remove_seq_from_computed_blocks_tracker(unknown)
    assert manager_dump(manager) == before
    manager.free(known)
    manager.free(known)
    assert manager.get_num_free_gpu_blocks() == 8


def test_swapped_tables_do_not_grow(manager: SelfAttnBlockSpaceManager) -> None:
    seq = start(manager, 1, range(6))
    manager.swap_out(alone(seq))
    seq.token_ids.append(6)
    before = manager_dump(manager)
    with pytest.raises(InvalidArgumentError, match="not on the GPU"):
        manager.append_slots(seq, 0)
    assert manager_dump(manager) == before


# --- content ---


def test_cached_tokens_are_those_computed() -> None:
    manager = SelfAttnBlockSpaceManager(4, 8, 0, 0, enable_caching=True)
    seq = start(manager, 1, range(10))
    twin = SimpleSequence(2, list(range(12)))
    assert manager.get_num_cached_tokens(twin) == 0
    manager.mark_blocks_as_computed(alone(seq), 10)
    assert manager.get_num_cached_tokens(twin) == 8
    assert manager.get_num_cached_tokens(seq) == 8
    seq.token_ids += [10, 11]
    manager.append_slots(seq, 0)
    assert manager.get_num_cached_tokens(twin) == 8
    seq.num_computed_tokens = 12
    manager.free(seq)  # as far as it says that it was computed
    assert manager.get_num_cached_tokens(twin) == 12
    other = SimpleSequence(2, list(range(12)), extra_hash=5)
    assert manager.get_num_cached_tokens(other) == 0
    assert manager.get_num_cached_tokens(SimpleSequence(2, list(range(7)))) == 4
    manager.remove_seq_from_computed_blocks_tracker(twin)
    assert manager.get_num_cached_tokens(SimpleSequence(2, [9] * 8)) == 0


def test_what_nobody_computed_is_not_cached_when_it_is_freed() -> None:
    manager = SelfAttnBlockSpaceManager(4, 16, 0, 0, enable_caching=True)
    seq, twin = start(manager, 1, range(16)), SimpleSequence(2, list(range(16)))
    manager.mark_blocks_as_computed(alone(seq), 7)
    manager.free(seq)
    assert manager.get_num_cached_tokens(twin) == 4
    manager.allocate(SimpleSequenceGroup("again", [twin]))
    assert manager.get_num_cached_tokens(twin) == 4
    manager.mark_blocks_as_computed(alone(twin), 16)
    assert manager.get_num_cached_tokens(SimpleSequence(3, list(range(16)))) == 16


def test_a_swap_copies_what_its_destination_has_not_computed() -> None:
    manager = SelfAttnBlockSpaceManager(4, 8, 8, 0, enable_caching=True)
    seq = start(manager, 1, range(8))
    manager.mark_blocks_as_computed(alone(seq), 8)
    group = alone(seq)
    assert manager.swap_out(group) == [(0, 0), (1, 1)]
    seq.status = SequenceStatus.SWAPPED
    assert manager.reset_prefix_cache(Device.GPU)
    other = start(manager, 2, range(8))
    manager.mark_blocks_as_computed(alone(other), 4)
    pairs = manager.swap_in(group)  # block 0 has been computed again; block 1 is written steps later
    assert [source for source, _ in pairs] == [1]
    assert manager.get_block_table(seq)[0] == manager.get_block_table(other)[0]
    assert manager.get_block_table(seq)[1] != manager.get_block_table(other)[1]
    manager.check()


def test_what_was_swapped_out_is_neither_marked_nor_in_the_way_when_it_is_freed() -> None:
    manager = SelfAttnBlockSpaceManager(4, 8, 4, 0, enable_caching=True)
    seq = start(manager, 1, range(9))
    manager.swap_out(alone(seq))
    seq.status, seq.num_computed_tokens = SequenceStatus.SWAPPED, 8
    manager.mark_blocks_as_computed(alone(seq), 4)
    assert manager.block_tables[1].num_computed_tokens == 0
    manager.free(seq)
    assert manager.get_num_free_cpu_blocks() == 4


def test_marks_are_checked() -> None:
    manager = SelfAttnBlockSpaceManager(4, 8, 0, 0, enable_caching=True)
    seq = start(manager, 1, range(8))
    with pytest.raises(InvalidArgumentError, match="token_chunk_size"):
        manager.mark_blocks_as_computed(alone(seq), -1)
    with pytest.raises(InvalidArgumentError, match="num_tokens"):
        manager.block_tables[1].mark_computed(9)
    manager.mark_blocks_as_computed(alone(SimpleSequence(9, [1])), 4)  # without a table


def test_without_caching_nothing_is_cached() -> None:
    manager = SelfAttnBlockSpaceManager(4, 8, 0, 0)
    seq = start(manager, 1, range(10))
    manager.mark_blocks_as_computed(alone(seq), 10)
    manager.access_all_blocks_in_seq(seq, 1.0)
    assert manager.get_num_cached_tokens(seq) == 0
    assert manager.get_common_computed_block_ids([seq]) == []
    assert manager.get_prefix_cache_hit_rate(Device.GPU) == -1.0
    assert manager.reset_prefix_cache()


def test_accessed_sequences_are_evicted_last() -> None:
    manager = SelfAttnBlockSpaceManager(4, 4, 0, 0, enable_caching=True)
    one, two = start(manager, 1, range(8)), start(manager, 2, range(50, 58))
    manager.access_all_blocks_in_seq(one, 2.0)
    manager.access_all_blocks_in_seq(two, 1.0)
    for seq in (one, two):
        manager.mark_blocks_as_computed(alone(seq), 8)
    manager.free(one)
    manager.free(two)
    start(manager, 3, range(90, 98))
    assert manager.get_num_cached_tokens(SimpleSequence(4, list(range(8)))) == 8
    assert manager.get_num_cached_tokens(SimpleSequence(5, list(range(50, 58)))) == 0
    assert not manager.reset_prefix_cache()


# --- encoder-decoder ---


def test_cross_tables() -> None:
    manager = SelfAttnBlockSpaceManager(4, 8, 0, 0)
    group = SimpleSequenceGroup("r", [SimpleSequence(1, [1, 2]), SimpleSequence(2, [1, 2])], SimpleSequence(3, [5] * 9))
    assert manager.can_allocate(group) is AllocStatus.OK
    manager.allocate(group)
    assert len(manager.get_cross_block_table(group)) == 3
    assert manager.get_num_free_gpu_blocks() == 4
    manager.check()
    more = SimpleSequenceGroup("s", [SimpleSequence(5, [1, 2])], SimpleSequence(6, [5] * 13))
    assert manager.can_allocate(more) is AllocStatus.LATER
    before = manager_dump(manager)
    with pytest.raises(NoFreeBlocksError):
        manager.allocate(more)
    with pytest.raises(DuplicateRequestError):
        manager.allocate(SimpleSequenceGroup("r", [SimpleSequence(5, [1])], SimpleSequence(6, [1])))
    assert manager_dump(manager) == before
    manager.free_cross(group)
    assert manager.get_num_free_gpu_blocks() == 7
    for seq in group.get_seqs():
        manager.free(seq)
    assert manager.get_num_free_gpu_blocks() == 8


@pytest.mark.parametrize("window", [None, 4])
def test_encoder_decoder_is_refused_with_caching_or_window(window: int | None) -> None:
    manager = SelfAttnBlockSpaceManager(4, 8, 0, 0, window, enable_caching=window is None)
    group = SimpleSequenceGroup("r", [SimpleSequence(1, [1])], SimpleSequence(3, [5]))
    for act in (manager.can_allocate, manager.allocate):
        with pytest.raises(UnsupportedError, match="encoder-decoder") as caught:
            act(group)
        assert isinstance(caught.value, NotImplementedError)


# --- copies, checks, arguments ---


def test_copies_are_independent(manager: SelfAttnBlockSpaceManager) -> None:
    parent = start(manager, 1, range(6))
    child = parent.fork(2)
    manager.fork(parent, child)
    gone = start(manager, 3, range(50, 54))
    manager.free(gone)
    before = manager_dump(manager)
    twin = copy.copy(manager)
    assert manager_dump(twin) == before
    twin.check()
    child.token_ids.append(60)
    copies = twin.append_slots(child, 0)
    twin.swap_out(alone(parent))
    twin.free(child)
    twin.check()
    assert manager_dump(manager) == before
    manager.check()
    assert manager.append_slots(child, 0) == copies
    manager.check()


def test_the_self_check_names_the_law(manager: SelfAttnBlockSpaceManager) -> None:
    seq = start(manager, 1, range(6))
    block = manager.block_tables[1].blocks[0]
    manager.block_allocator.fork(block)
    with pytest.raises(InvariantError, match="PAGE-1"):
        manager.check()
    manager.free(seq)
