"""Property: whatever is forked, appended, swapped and freed, every sequence reads back its own tokens, every law of the
self-check holds, questions are answered truly, errors change nothing, and in the end everything is free.

How: seeded random histories on small pools. A ghost memory holds what each slot of each physical block contains: new
tokens are written through the block ids, returned copies and swaps are executed, and every table is read back.
Not covered: that real tensors move (the device package and the kit do that), more than two devices.
"""

import random

import pytest
from tests.paging.support import alone, group_of, manager_dump

from blockwright.errors import BlockwrightError, NoFreeBlocksError
from blockwright.paging import (
    AllocStatus,
    Device,
    NullBlock,
    SelfAttnBlockSpaceManager,
    SequenceStatus,
    SimpleSequence,
    SimpleSequenceGroup,
)

SIZE = 4
GPU, CPU = 24, 16
Memory = dict[tuple[int, int], tuple[int, ...]]
"""What a slot of a block holds, by absolute block id and slot: the whole prefix up to its token."""


class Walk:
    """One history."""

    def __init__(self, seed: int, window: int | None, caching: bool) -> None:
        self.draw = random.Random(seed)
        self.manager = SelfAttnBlockSpaceManager(SIZE, GPU, CPU, 0.1, window, caching)
        self.memory: Memory = {}
        self.written: dict[int, int] = {}
        self.groups: dict[str, SimpleSequenceGroup] = {}
        self.next_id = 0
        self.refused = 0

    def move(self, pairs: list[tuple[int, int]], source: int, target: int) -> None:
        """Execute copies all at once; the shifts are the devices' first ids."""
        assert not {a + source for a, _ in pairs} & {b + target for _, b in pairs}
        content = {(b + target, slot): self.memory.get((a + source, slot)) for a, b in pairs for slot in range(SIZE)}
        for place, prefix in content.items():
            if prefix is None:
                self.memory.pop(place, None)
            else:
                self.memory[place] = prefix

    def write(self, seq: SimpleSequence) -> None:
        """Compute the tokens of a sequence that are not in its blocks yet."""
        ids = self.manager.get_block_table(seq)
        table = self.manager.block_tables[seq.seq_id]
        for position in range(self.written.get(seq.seq_id, 0), table.num_full_slots):
            self.memory[ids[position // SIZE], position % SIZE] = tuple(seq.token_ids[: position + 1])
        self.written[seq.seq_id] = seq.num_computed_tokens = table.num_full_slots

    def read_back(self) -> None:
        """Compare what every sequence reads with its own tokens."""
        for group in self.groups.values():
            for seq in group.get_seqs():
                table = self.manager.block_tables[seq.seq_id]
                for entry, block in enumerate(table.blocks):
                    if isinstance(block, NullBlock) or block.block_id is None:
                        continue
                    tokens = seq.get_token_ids()
                    for position in range(entry * SIZE, min((entry + 1) * SIZE, table.num_full_slots)):
                        found = self.memory[block.block_id, position % SIZE]
                        assert found == tuple(tokens[: position + 1]), (seq, entry, position)

    def step(self) -> None:
        """Do one thing."""
        kind = self.draw.choice(["admit", "append", "append", "append", "fork", "fork", "swap", "swap", "free", "mark"])
        names = sorted(self.groups)
        if kind == "admit" or not names:
            self.admit()
            return
        group = self.groups[self.draw.choice(names)]
        seq = self.draw.choice(group.seqs)
        assert isinstance(seq, SimpleSequence)
        if kind == "append" and seq.status is SequenceStatus.RUNNING:
            self.append(seq)
        elif kind == "fork" and seq.status is SequenceStatus.RUNNING and len(group.seqs) < 4:
            self.next_id += 1
            child = seq.fork(self.next_id)
            self.manager.fork(seq, child)
            self.written[child.seq_id] = self.written[seq.seq_id]
            group.seqs.append(child)
        elif kind == "swap":
            self.swap(group)
        elif kind == "free":
            self.manager.free(seq)
            group.seqs.remove(seq)
            if not group.seqs:
                del self.groups[group.request_id]
        elif kind == "mark":
            self.manager.mark_blocks_as_computed(group, 0)
            self.manager.access_all_blocks_in_seq(seq, float(self.draw.randrange(9)))

    def admit(self) -> None:
        """Start a group, of few different prompts."""
        self.next_id += 2
        length = self.draw.randrange(1, 14)
        group, _ = group_of(self.next_id, [self.draw.randrange(2)] * length, num_seqs=self.draw.randrange(1, 3))
        self.next_id += 2
        if self.manager.can_allocate(group) is not AllocStatus.OK:
            self.refused += 1
            return
        self.manager.allocate(group)
        self.groups[group.request_id] = group
        for seq in group.seqs:
            assert isinstance(seq, SimpleSequence)
            seq.status = SequenceStatus.RUNNING
            self.write(seq)

    def append(self, seq: SimpleSequence) -> None:
        """Append a few tokens, if there is room; if there may be none, an error must change nothing."""
        new = [self.draw.randrange(2) for _ in range(self.draw.randrange(6))]
        ahead = self.draw.randrange(4)
        seq.token_ids += new
        can = self.manager.can_append_slots(alone(seq), ahead)
        before = manager_dump(self.manager)
        try:
            copies = self.manager.append_slots(seq, ahead)
        except NoFreeBlocksError:
            assert not can
            assert manager_dump(self.manager) == before
            del seq.token_ids[len(seq.token_ids) - len(new) :]
            self.refused += 1
            return
        self.move(copies, 0, 0)
        self.write(seq)

    def swap(self, group: SimpleSequenceGroup) -> None:
        """Move a group to the other device, if there is room."""
        statuses = {seq.status for seq in group.seqs}
        out = statuses == {SequenceStatus.RUNNING}
        can = self.manager.can_swap_out(group) if out else self.manager.can_swap_in(group, 0) is AllocStatus.OK
        before = manager_dump(self.manager)
        try:
            pairs = self.manager.swap_out(group) if out else self.manager.swap_in(group)
        except BlockwrightError:
            assert not can
            assert manager_dump(self.manager) == before
            self.refused += 1
            return
        self.move(pairs, *((0, GPU) if out else (GPU, 0)))
        for seq in group.seqs:
            assert isinstance(seq, SimpleSequence)
            seq.status = SequenceStatus.SWAPPED if out else SequenceStatus.RUNNING


@pytest.mark.parametrize("caching", [False, True], ids=["plain", "caching"])
@pytest.mark.parametrize("window", [None, 3, 9])
@pytest.mark.parametrize("seed", range(3))
def test_random_histories(seed: int, window: int | None, caching: bool) -> None:
    walk = Walk(seed, window, caching)
    for number in range(400):
        walk.step()
        walk.manager.check()
        walk.read_back()
        if number % 50 == 0:
            twin = walk.manager.copy()
            assert manager_dump(twin) == manager_dump(walk.manager)
            twin.check()
    assert walk.refused > 0
    for group in walk.groups.values():
        for seq in group.get_seqs():
            walk.manager.free(seq)
    walk.manager.check()
    null = int(walk.manager.block_allocator.has_null_block)
    assert walk.manager.get_num_free_gpu_blocks() == GPU - null
    assert walk.manager.get_num_free_cpu_blocks() == CPU
    assert walk.manager.block_allocator.get_num_total_blocks(Device.GPU) == GPU
