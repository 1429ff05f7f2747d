"""Property: the block manager and the tracker of computed blocks keep their books at every limit, and so do copies.

How: small cases, each of which shows one line of `paging/block_manager.py` or `sequence.py`;
every one was asked for by a change that no other test noticed (`blockwright conform --gate mutants`).
Not covered: long histories (the gate `paged`).
"""

from typing import Any

import pytest
from tests.paging.support import alone, start

from blockwright.errors import DuplicateRequestError, InvalidArgumentError, NoFreeBlocksError, UnknownRequestError
from blockwright.paging import (
    AllocStatus,
    Device,
    SelfAttnBlockSpaceManager,
    Sequence,
    SequenceStatus,
    SimpleSequence,
    SimpleSequenceGroup,
)


def manager_of(**given: Any) -> SelfAttnBlockSpaceManager:
    options: dict[str, Any] = {"block_size": 2, "num_gpu_blocks": 8, "num_cpu_blocks": 4, "watermark": 0.0}
    return SelfAttnBlockSpaceManager(**(options | given))


def encoding(name: str, decoder: int, encoder: int, seq_id: int = 1) -> SimpleSequenceGroup:
    seqs = [SimpleSequence(seq_id, list(range(decoder)))]
    return SimpleSequenceGroup(name, seqs, SimpleSequence(seq_id + 100, list(range(encoder))))


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("block_size", (0, -1), 1),
        ("num_gpu_blocks", (0, -1), 1),
        ("num_cpu_blocks", (-1,), 0),
        ("watermark", (-0.5, -1, 1.5, float("nan")), 1),
        ("sliding_window", (0, -1), 1),
    ],
)
def test_arguments_have_limits(name: str, wrong: tuple[Any, ...], right: Any) -> None:
    for value in wrong:
        with pytest.raises(InvalidArgumentError, match=name):
            manager_of(**{name: value})
    manager_of(**{name: right})


def test_the_null_block_is_counted_until_it_is_taken() -> None:
    manager = manager_of(block_size=1, num_gpu_blocks=12, num_cpu_blocks=0, sliding_window=1)
    seq, allocator = start(manager, 1, [0]), manager.block_allocator
    group = alone(seq)
    for length in range(2, 8):
        seq.token_ids.append(0)
        seq.num_computed_tokens = length - 1
        touched = manager.block_tables[1].get_num_blocks_touched_by_append_slots([0], 0)
        needed = touched + (not allocator.has_null_block)
        twin = manager.copy()
        while twin.get_num_free_gpu_blocks() > needed:
            twin.block_allocator.allocate_mutable_block(None, Device.GPU)
        assert twin.can_append_slots(group, 0)
        twin.block_allocator.allocate_mutable_block(None, Device.GPU)
        assert not twin.can_append_slots(group, 0)
        manager.append_slots(seq, 0)
    assert allocator.has_null_block


def test_no_block_of_the_host_need_be() -> None:
    with pytest.raises(InvalidArgumentError, match=r"num_cpu_blocks: must be an integer within 0\.\."):
        manager_of(num_cpu_blocks=-1)


def test_of_several_sequences_without_tokens_the_first_is_named() -> None:
    empty = [SimpleSequence(seq_id, []) for seq_id in (1, 2, 3)]
    with pytest.raises(InvalidArgumentError, match="sequence 1 has no tokens"):
        manager_of().allocate(SimpleSequenceGroup("e", empty[:2], empty[2]))


@pytest.mark.parametrize("given", [{}, {"enable_caching": True}, {"sliding_window": 3}])
def test_a_copy_is_like_the_manager_and_apart_from_it(given: dict[str, Any]) -> None:
    manager = manager_of(watermark=0.25, **given)
    seq = start(manager, 1, range(5))
    if not given:
        group = encoding("e", 3, 2, 5)
        manager.allocate(group)
    twin = manager.copy()
    for name in (
        "block_size num_total_gpu_blocks num_total_cpu_blocks watermark watermark_blocks sliding_window enable_caching "
        "max_block_sliding_window"
    ).split():
        assert getattr(twin, name) == getattr(manager, name)
    assert twin.get_block_table(seq) == manager.get_block_table(seq)
    if not given:
        assert twin.get_cross_block_table(group) == manager.get_cross_block_table(group)
        twin.free_cross(group)
        assert manager.get_cross_block_table(group)
        for _ in range(2):
            manager.free_cross(group)
            with pytest.raises(UnknownRequestError):
                manager.get_cross_block_table(group)
    twin.free(seq)
    twin.check()
    manager.check()
    assert manager.get_block_table(seq) == [0, 1, 2]


def test_the_prompt_is_that_of_the_first_waiting_sequence() -> None:
    manager = manager_of()
    group = SimpleSequenceGroup("g", [SimpleSequence(1, [1] * 15), SimpleSequence(2, [1])])
    assert manager.can_allocate(group, 1) is AllocStatus.OK
    assert manager.can_allocate(group, 2) is AllocStatus.NEVER
    manager.allocate(group)
    assert len(manager.block_tables[2].blocks) == 8


def test_an_encoder_counts_only_where_there_is_one() -> None:
    class Shy:
        """An engine's own group, which has an encoder sequence and says that it has none."""

        request_id = "s"

        def get_seqs(self, status: SequenceStatus | None = None) -> list[Sequence]:
            return [SimpleSequence(1, [1] * 10)]

        def is_encoder_decoder(self) -> bool:
            return False

        def get_encoder_seq(self) -> Sequence:
            return SimpleSequence(2, [1] * 10)

    manager = manager_of()
    assert manager.can_allocate(Shy()) is AllocStatus.OK
    both = encoding("b", 10, 10)
    assert manager.can_allocate(both) is AllocStatus.NEVER
    with pytest.raises(NoFreeBlocksError, match="10 blocks are needed, 8 are free"):
        manager.allocate(both)
    exact = encoding("x", 8, 8)
    assert manager.can_allocate(exact) is AllocStatus.OK
    manager.allocate(exact)
    assert manager.get_num_free_gpu_blocks() == 0


@pytest.mark.parametrize(("decoder", "encoder", "which"), [(0, 2, 1), (2, 0, 101)])
def test_both_sides_of_an_encoder_need_tokens(decoder: int, encoder: int, which: int) -> None:
    manager = manager_of()
    with pytest.raises(InvalidArgumentError, match=f"sequence {which} has no tokens"):
        manager.allocate(encoding("e", decoder, encoder))
    assert manager.get_num_free_gpu_blocks() == 8
    assert not manager.block_tables


def test_a_known_sequence_is_not_allocated_again() -> None:
    manager = manager_of()
    start(manager, 1, range(3))
    group = SimpleSequenceGroup("g", [SimpleSequence(2, [1]), SimpleSequence(1, [1])])
    with pytest.raises(DuplicateRequestError, match="sequence 1"):
        manager.allocate(group)
    assert list(manager.block_tables) == [1]
    manager.allocate(encoding("e", 2, 2, 7))
    with pytest.raises(DuplicateRequestError, match="'e' has a cross block table"):
        manager.allocate(encoding("e", 2, 2, 8))


@pytest.mark.parametrize("caching", [False, True])
def test_extra_hashes_matter_only_with_caching(caching: bool) -> None:
    manager = manager_of(enable_caching=caching)
    seq = SimpleSequence(1, [1, 2, 3], extra_hash=9)
    manager.allocate(alone(seq))
    seq.status = SequenceStatus.RUNNING
    seq.token_ids += [4, 5]
    manager.append_slots(seq, 0)
    blocks = manager.block_tables[1].blocks
    assert [block.extra_hash for block in blocks] == [9 if caching else None] * 3


def test_a_swap_in_has_room_for_the_null_block_and_a_number_of_slots() -> None:
    manager = manager_of(num_gpu_blocks=4, sliding_window=9)
    seq = start(manager, 1, range(3))
    manager.swap_out(alone(seq))
    seq.status = SequenceStatus.SWAPPED
    assert manager.can_swap_in(alone(seq), 0) is AllocStatus.OK
    held = manager.block_allocator.allocate_mutable_block(None, Device.GPU)
    assert manager.can_swap_in(alone(seq), 0) is AllocStatus.OK
    more = manager.block_allocator.allocate_mutable_block(None, Device.GPU)
    assert manager.can_swap_in(alone(seq), 0) is AllocStatus.LATER  # two, and one for the null block
    with pytest.raises(InvalidArgumentError, match="num_lookahead_slots"):
        manager.can_swap_in(alone(seq), -1)
    manager.block_allocator.free(held)
    manager.block_allocator.free(more)


def test_a_sequence_that_is_shorter_than_its_table_counts_as_grown_by_nothing() -> None:
    manager = manager_of(num_gpu_blocks=3)
    seq = start(manager, 1, range(4))
    del seq.token_ids[3:]
    assert manager.can_append_slots(alone(seq), 2) is True
    assert manager.can_append_slots(alone(seq), 3) is False  # two blocks, and one is free


# ---------------------------------------------------------------------- hashes of sequences


def test_hashes_are_remembered_and_what_changed_is_hashed_anew() -> None:
    tracker: Any = SelfAttnBlockSpaceManager(2, 8, 0, enable_caching=True)
    seq = SimpleSequence(1, [1, 2, 3, 4, 5])
    hashes = tracker._hashes_of(seq)
    assert len(hashes) == 2
    assert tracker._hashes_of(seq) is hashes
    seq.token_ids += [6]
    assert tracker._hashes_of(seq) is hashes
    assert len(hashes) == 3
    twin = tracker.copy()
    copied = twin._hashes_of(seq)
    assert copied == hashes
    assert copied is not hashes
    seq.token_ids += [7, 8]
    assert (len(twin._hashes_of(seq)), len(hashes)) == (4, 3)
    shorter = SimpleSequence(1, [1, 2])
    assert tracker._hashes_of(shorter) == hashes[:1]
    other = SimpleSequence(1, [1, 2], extra_hash=5)
    assert tracker._hashes_of(other) != hashes[:1]
    tracker.remove_seq_from_computed_blocks_tracker(other)
    assert tracker._hashes_of(shorter) == hashes[:1]


def test_sequences_tell_what_they_were_given() -> None:
    seq = SimpleSequence(4, [1, 2], num_computed_tokens=1, extra_hash=7)
    assert (seq.get_len(), seq.get_num_computed_tokens(), seq.extra_hash()) == (2, 1, 7)
    twin = seq.fork(5)
    assert (twin.seq_id, twin.get_len(), twin.get_num_computed_tokens(), twin.extra_hash()) == (5, 2, 1, 7)
    twin.token_ids.append(3)
    assert seq.token_ids == [1, 2]
    group = SimpleSequenceGroup("g", [seq, twin])
    group.get_seqs().clear()
    assert group.get_seqs() == [seq, twin]
    assert group.get_seqs(SequenceStatus.RUNNING) == []
    assert (group.is_encoder_decoder(), group.get_encoder_seq()) == (False, None)
    with pytest.raises(InvalidArgumentError, match="ids must differ"):
        SimpleSequenceGroup("g", [seq, seq])
