"""The block manager that a scheduler talks to: the tables of all sequences, on a GPU and a CPU.

Source: section 5 of the named systems (`SelfAttnBlockSpaceManager`). The manager reads the statuses of sequences and
never sets them: the engine does, after the call.
"""

from __future__ import annotations

import operator
from typing import Final, final

from mypy_extensions import i64

from blockwright.arguments import integer
from blockwright.core.keys.request import count_of, exact_text
from blockwright.core.pool.check import demand
from blockwright.errors import (
    DuplicateRequestError,
    InvalidArgumentError,
    NoFreeBlocksError,
    UnknownRequestError,
    UnsupportedError,
)
from blockwright.paging.block_table import BlockTable, checked
from blockwright.paging.cpu_gpu import CpuGpuBlockAllocator
from blockwright.paging.interfaces import AllocStatus, Block, Device
from blockwright.paging.null_block import NullBlock
from blockwright.paging.pool_allocator import hash_tokens
from blockwright.paging.sequence import Sequence, SequenceGroup, SequenceStatus

ENCODER_AND_CACHING: Final = "encoder-decoder models: prefix caching is not supported"
ENCODER_AND_WINDOW: Final = "encoder-decoder models: a sliding window is not supported"


@final
class SelfAttnBlockSpaceManager:
    """The block tables of all sequences.

    Attributes:
        block_size, num_total_gpu_blocks, num_total_cpu_blocks, watermark, sliding_window, enable_caching: as given.
        watermark_blocks: blocks of the GPU that allocation leaves free.
        max_block_sliding_window: blocks that a sequence needs at most under the window; None without one.
        block_allocator: whence blocks come.
        block_tables: by sequence id.
        cross_block_tables: of encoder sequences, by request id.

    Example:
        >>> from blockwright.paging import SimpleSequence, SimpleSequenceGroup
        >>> manager = SelfAttnBlockSpaceManager(block_size=4, num_gpu_blocks=8, num_cpu_blocks=4, watermark=0)
        >>> seq = SimpleSequence(1, [7, 8, 9, 10, 11])
        >>> group = SimpleSequenceGroup("r", [seq])
        >>> manager.can_allocate(group).name
        'OK'
        >>> manager.allocate(group)
        >>> seq.status = SequenceStatus.RUNNING
        >>> seq.token_ids.append(12)
        >>> manager.append_slots(seq, num_lookahead_slots=0), manager.get_block_table(seq)
        ([], [0, 1])
        >>> manager.swap_out(group)
        [(0, 0), (1, 1)]
    """

    def __init__(
        self,
        block_size: int,
        num_gpu_blocks: int,
        num_cpu_blocks: int,
        watermark: float = 0.01,
        sliding_window: int | None = None,
        enable_caching: bool = False,
    ) -> None:
        """Make a manager without sequences.

        Args:
            block_size: slots per block.
            num_gpu_blocks: at least 1.
            num_cpu_blocks: 0 or more.
            watermark: share of the GPU's blocks that allocation leaves free, 0 to 1.
            sliding_window: tokens that a token reads, itself included; None for all.
            enable_caching: whether full blocks are found by their content.

        Complexity: O(blocks).

        Raises:
            InvalidArgumentError: names the argument.
        """
        count_of("num_cpu_blocks", num_cpu_blocks)
        if not 0 <= watermark <= 1:
            raise InvalidArgumentError(f"watermark: must be within 0..1, not {watermark!r}")
        if sliding_window is not None:
            integer("sliding_window", sliding_window, 1)
        kind = "prefix_caching" if enable_caching else "naive"
        allocator = CpuGpuBlockAllocator.create(kind, num_gpu_blocks, num_cpu_blocks, block_size)
        self.block_size: int = block_size
        self.num_total_gpu_blocks: int = num_gpu_blocks
        self.num_total_cpu_blocks: int = num_cpu_blocks
        self.watermark: float = watermark
        self.watermark_blocks: int = int(watermark * num_gpu_blocks)
        self.sliding_window: int | None = sliding_window
        # One block for the rounding down, and one more for a last block that is not full.
        self.max_block_sliding_window: int | None = None if sliding_window is None else sliding_window // block_size + 2
        self.enable_caching: bool = enable_caching
        self.block_allocator: CpuGpuBlockAllocator = allocator
        self.block_tables: dict[int, BlockTable] = {}
        self.cross_block_tables: dict[str, BlockTable] = {}
        # By sequence id: its extra hash, and the content hashes of its full blocks.
        self._hashes: dict[int, tuple[int | None, list[bytes]]] = {}

    def copy(self) -> SelfAttnBlockSpaceManager:
        """Return an independent copy: allocator and all tables, sharing kept. O(blocks of the pools and tables)."""
        twin = SelfAttnBlockSpaceManager(
            self.block_size, 1, 0, self.watermark, self.sliding_window, self.enable_caching
        )
        twin.num_total_gpu_blocks = self.num_total_gpu_blocks
        twin.num_total_cpu_blocks = self.num_total_cpu_blocks
        twin.watermark_blocks = self.watermark_blocks
        twin.block_allocator = self.block_allocator.copy()
        twin._hashes = {seq_id: (extra, hashes[:]) for seq_id, (extra, hashes) in self._hashes.items()}
        for seq_id, table in self.block_tables.items():
            twin.block_tables[seq_id] = table.copy_onto(twin.block_allocator)
        for request_id, table in self.cross_block_tables.items():
            twin.cross_block_tables[request_id] = table.copy_onto(twin.block_allocator)
        return twin

    def __copy__(self) -> SelfAttnBlockSpaceManager:
        return self.copy()

    # ------------------------------------------------------------------ allocation

    def can_allocate(self, seq_group: SequenceGroup, num_lookahead_slots: int = 0) -> AllocStatus:
        """Return whether the waiting sequences of a group fit: their common prompt, beside the watermark. O(1).

        Under a window no more is counted than the window keeps, though a longer prompt takes more until it is trimmed.

        Raises:
            InvalidArgumentError: no sequence waits, or a number is out of range.
            UnsupportedError: encoder-decoder with prefix caching or a window.
        """
        self._refuse_encoder(seq_group)
        prompt: list[int] = waiting(seq_group)[0].get_token_ids()
        need = BlockTable.get_num_required_blocks(prompt, self.block_size, num_lookahead_slots)
        encoder = seq_group.get_encoder_seq() if seq_group.is_encoder_decoder() else None
        if encoder is not None:
            need += BlockTable.get_num_required_blocks(encoder.get_token_ids(), self.block_size)
        # Beyond the window blocks come back while the prompt is computed in chunks.
        most = self.max_block_sliding_window
        if most is not None:
            need = min(need, most)
        if self.num_total_gpu_blocks - need < self.watermark_blocks:
            return AllocStatus.NEVER
        if self.get_num_free_gpu_blocks() - need >= self.watermark_blocks:
            return AllocStatus.OK
        return AllocStatus.LATER

    def allocate(self, seq_group: SequenceGroup) -> None:
        """Hold blocks for the waiting sequences of a group: the first one's prompt, shared by all. O(tokens).

        Raises:
            InvalidArgumentError: no sequence waits, or one has no tokens.
            DuplicateRequestError: a sequence or the request has a table already.
            NoFreeBlocksError: not enough blocks are free; nothing is held.
            UnsupportedError: encoder-decoder with prefix caching or a window.
        """
        self._refuse_encoder(seq_group)
        seqs = waiting(seq_group)
        ids: list[int] = []
        for seq in seqs:
            seq_id = self._unknown_id(seq)
            if seq_id in ids:
                raise DuplicateRequestError(f"seq_group: two waiting sequences have the id {seq_id}")
            # Read once: an engine's property may answer otherwise the second time.
            ids.append(seq_id)
        request_id = seq_group.request_id
        encoder = seq_group.get_encoder_seq() if seq_group.is_encoder_decoder() else None
        cross: BlockTable | None = None
        if encoder is not None:
            request_id = exact_text(request_id)
            if request_id in self.cross_block_tables:
                raise DuplicateRequestError(f"seq_group: {request_id!r} has a cross block table already")
        prompt = checked(seqs[0].get_token_ids())
        extra = seqs[0].extra_hash() if self.enable_caching else None
        source: list[int] = []
        if encoder is not None:
            source = checked(encoder.get_token_ids())
            self._require_both([(ids[0], prompt), (int(encoder.seq_id), source)])
        # Everything of the engine's has been read: from here on none of its code runs.
        with self.block_allocator:
            if encoder is not None:
                cross = self._allocated(source, None)
            table = self._allocated(prompt, extra)
            self.block_tables[ids[0]] = table
            for seq_id in ids[1:]:
                self.block_tables[seq_id] = table.fork()
            if cross is not None:
                self.cross_block_tables[request_id] = cross

    def _allocated(self, token_ids: list[int], extra_hash: int | None) -> BlockTable:
        table = BlockTable(self.block_size, self.block_allocator, None, self.max_block_sliding_window)
        table.allocate(token_ids, Device.GPU, extra_hash)
        return table

    def _require_both(self, both: list[tuple[int, list[int]]]) -> None:
        need = 0
        for seq_id, token_ids in both:
            if not token_ids:
                raise InvalidArgumentError(f"seq_group: sequence {seq_id} has no tokens")
            need += BlockTable.get_num_required_blocks(token_ids, self.block_size)
        free = self.get_num_free_gpu_blocks()
        if need > free:
            raise NoFreeBlocksError(f"{need} blocks are needed, {free} are free")

    def can_append_slots(self, seq_group: SequenceGroup, num_lookahead_slots: int) -> bool:
        """Return whether the running sequences of a group can be appended to; no watermark. O(sequences). law: PAGE-13.

        Raises:
            UnknownRequestError: a running sequence has no table.
        """
        count_of("num_lookahead_slots", num_lookahead_slots)
        touched = self._null_to_come()
        for seq in seq_group.get_seqs(SequenceStatus.RUNNING):
            touched += self._num_touched(seq, self._table(seq), num_lookahead_slots)
        return touched <= self.get_num_free_gpu_blocks()

    def append_slots(self, seq: Sequence, num_lookahead_slots: int) -> list[tuple[int, int]]:
        """Hold slots for a sequence's new tokens and lookahead; return the copies to make, (source, destination).

        Make them before the step runs, those of one call in any order, those of several calls in the order of the
        calls: a block that one call's copy fills may have been given up for known content, and be the next one's.
        Complexity: O(new tokens + lookahead).

        Raises:
            UnknownRequestError: it has no table.
            InvalidArgumentError: the table is not on the GPU, or a count is out of range.
            NoFreeBlocksError: not enough blocks are free; nothing has changed.
        """
        table = self._table(seq)
        tokens: list[int] = seq.get_token_ids()
        computed: int | None = None
        if self.max_block_sliding_window is not None:
            # Accepted drafts were computed into lookahead slots before the table learns of them, here.
            computed = min(seq.get_num_computed_tokens(), table.num_full_slots)
        extra = seq.extra_hash() if self.enable_caching else None
        table.append_token_ids(tokens[table.num_full_slots :], num_lookahead_slots, computed, extra)
        try:
            return self.block_allocator.clear_copy_on_writes()
        except BaseException:
            self.block_allocator.tear()  # the copies are not told, and the table has grown
            raise

    def fork(self, parent_seq: Sequence, child_seq: Sequence) -> None:
        """Give a child a table that shares the parent's blocks; an unknown parent: nothing happens. O(blocks).

        Raises:
            DuplicateRequestError: the child has a table already.
        """
        self.block_allocator.require_whole()
        table = self.block_tables.get(parent_seq.seq_id)
        if table is None:
            return
        seq_id = self._unknown_id(child_seq)
        with self.block_allocator:
            self.block_tables[seq_id] = table.fork()

    def free(self, seq: Sequence) -> None:
        """Release a sequence's blocks; an unknown one: nothing happens. O(blocks)."""
        self.block_allocator.require_whole()
        seq_id = int(seq.seq_id)
        table = self.block_tables.get(seq_id)
        if table is not None:
            computed = self._num_computed(seq, table, 0)
            with self.block_allocator:
                if computed > 0:
                    table.mark_computed(computed)
                table.free()
                del self.block_tables[seq_id]

    def free_cross(self, seq_group: SequenceGroup) -> None:
        """Release the blocks of a request's encoder sequence; an unknown one: nothing happens. O(blocks)."""
        request_id = exact_text(seq_group.request_id)
        table = self.cross_block_tables.get(request_id)
        if table is not None:
            with self.block_allocator:
                table.free()
                del self.cross_block_tables[request_id]

    # ------------------------------------------------------------------ swapping

    def can_swap_in(self, seq_group: SequenceGroup, num_lookahead_slots: int) -> AllocStatus:
        """Return whether a group's swapped sequences fit on the GPU and can be appended to. O(blocks). law: PAGE-13.

        Raises:
            UnknownRequestError: a swapped sequence has no table.
        """
        count_of("num_lookahead_slots", num_lookahead_slots)
        return self._can_swap(seq_group.get_seqs(SequenceStatus.SWAPPED), Device.GPU, num_lookahead_slots)

    def can_swap_out(self, seq_group: SequenceGroup) -> bool:
        """Return whether the running sequences of a group fit on the CPU. O(blocks). law: PAGE-13.

        Raises:
            UnknownRequestError: a running sequence has no table.
        """
        return self._can_swap(seq_group.get_seqs(SequenceStatus.RUNNING), Device.CPU, 0) is AllocStatus.OK

    def swap_in(self, seq_group: SequenceGroup) -> list[tuple[int, int]]:
        """Move the swapped sequences of a group to the GPU; return what to copy, (CPU id, GPU id), each from zero.

        Complexity: O(blocks).

        Raises:
            UnknownRequestError: a swapped sequence has no table.
            BlockError: a block is not on the CPU.
            NoFreeBlocksError: not enough blocks are free; nothing has moved.
        """
        return self._swap(seq_group.get_seqs(SequenceStatus.SWAPPED), Device.CPU, Device.GPU)

    def swap_out(self, seq_group: SequenceGroup) -> list[tuple[int, int]]:
        """Move the running sequences of a group to the CPU; return what to copy, (GPU id, CPU id), each from zero.

        Complexity: O(blocks).

        Raises:
            UnknownRequestError: a running sequence has no table.
            BlockError: a block is not on the GPU, or has a copy still to be made.
            NoFreeBlocksError: not enough blocks are free; nothing has moved.
        """
        return self._swap(seq_group.get_seqs(SequenceStatus.RUNNING), Device.GPU, Device.CPU)

    def _swap(self, seqs: list[Sequence], source: Device, target: Device) -> list[tuple[int, int]]:
        """Move all blocks of some sequences at once, so that their sharing is kept. law: PAGE-15."""
        allocator = self.block_allocator
        from_id = int(allocator.on(source).pool.first_id)
        to_id = int(allocator.on(target).pool.first_id)
        blocks = self._blocks_of(seqs)
        with allocator:
            pairs = allocator.swap(blocks, source, target)
            return [(before - from_id, after - to_id) for before, after in pairs.items()]

    def _can_swap(self, seqs: list[Sequence], target: Device, num_lookahead_slots: int) -> AllocStatus:
        """Count what moving some sequences and then appending to them touches.

        The distinct full blocks that take a block there, and for each sequence the blocks that appending touches or, if
        there are more, those beyond its full blocks: lookahead slots move as well.
        """
        # Tokens are appended on the GPU alone, and only appending takes the null block.
        touched = self._null_to_come() if target is Device.GPU else 0
        for seq in seqs:
            table = self._table(seq)
            # Lookahead slots that it holds move as well, even if appending would touch fewer blocks.
            touched += max(self._num_touched(seq, table, num_lookahead_slots), int(table.num_beyond_full()))
        allocator = self.block_allocator
        touched += allocator.get_num_full_blocks_touched(self._blocks_of(seqs), target)
        if touched > allocator.get_num_total_blocks(target):
            return AllocStatus.NEVER
        watermark = self.watermark_blocks if target is Device.GPU else 0
        if allocator.get_num_free_blocks(target) - touched >= watermark:
            return AllocStatus.OK
        return AllocStatus.LATER

    # ------------------------------------------------------------------ what it says of itself

    def get_block_table(self, seq: Sequence) -> list[int]:
        """Return a sequence's block ids: absolute, which on the GPU are those of the device. O(blocks).

        Raises:
            UnknownRequestError: it has no table.
        """
        return self._table(seq).physical_block_ids

    def get_cross_block_table(self, seq_group: SequenceGroup) -> list[int]:
        """Return the block ids of a request's encoder sequence. O(blocks).

        Raises:
            UnknownRequestError: it has no such table.
        """
        table = self.cross_block_tables.get(seq_group.request_id)
        if table is None:
            raise UnknownRequestError(f"seq_group: {seq_group.request_id!r} has no cross block table")
        return table.physical_block_ids

    def access_all_blocks_in_seq(self, seq: Sequence, now: float) -> None:
        """Note that all blocks of a sequence were accessed; without prefix caching nothing happens. O(blocks).

        Raises:
            UnknownRequestError: with prefix caching, it has no table.
            InvalidArgumentError: with prefix caching, `now` is not a number.
        """
        if self.enable_caching:
            self.block_allocator.access_blocks(self._table(seq)._blocks, now)

    def mark_blocks_as_computed(self, seq_group: SequenceGroup, token_chunk_size: int) -> None:
        """Note that a step computes the next tokens of a group's sequences, of all those on the GPU.

        A sequence's chunks add up, cached tokens included; a larger value of `get_num_computed_tokens` takes
        precedence. Only full blocks within them are cached from now on. Call it for each group of each step, as a
        scheduler does: before the next step is made up. Without prefix caching nothing happens. O(sequences + blocks
        computed).

        Args:
            seq_group: what the step computes.
            token_chunk_size: tokens of each of its sequences, cached ones included.

        Raises:
            InvalidArgumentError: the number is out of range.
        """
        count_of("token_chunk_size", token_chunk_size)
        self.block_allocator.require_whole()
        chunk = operator.index(token_chunk_size)
        marks: list[tuple[BlockTable, int]] = []
        for seq in seq_group.get_seqs():
            table = self.block_tables.get(seq.seq_id)
            if table is not None:
                marks.append((table, self._num_computed(seq, table, chunk)))
        try:
            for table, computed in marks:
                if computed > 0:
                    table.mark_computed(computed)
        except BaseException:
            self.block_allocator.tear()
            raise

    def _num_computed(self, seq: Sequence, table: BlockTable, num_more: int) -> int:
        """Return how many tokens of a sequence on the GPU are computed, at least the number that it reports; 0 where
        this is not recorded, without prefix caching or on the CPU. law: PAGE-16.
        """
        # Without caching nobody asks; on the CPU nothing is computed.
        if not self.enable_caching or not self.block_allocator.is_on(table._blocks[-1], Device.GPU):
            return 0
        computed = max(table.num_computed_tokens + num_more, operator.index(seq.get_num_computed_tokens()))
        return min(computed, table.num_full_slots)

    def get_common_computed_block_ids(self, seqs: list[Sequence]) -> list[int]:
        """Return the ids of the leading blocks that are computed and common to all sequences. O(blocks).

        Raises:
            UnknownRequestError: a sequence has no table.
        """
        computed: list[list[int]] = []
        for seq in seqs:
            ids = self._table(seq).physical_block_ids
            computed.append(ids[: self.get_num_cached_tokens(seq) // self.block_size])
        return self.block_allocator.get_common_computed_block_ids(computed)

    def get_num_cached_tokens(self, seq: Sequence) -> int:
        """Return how many leading tokens of a sequence need not be computed; 0 without prefix caching. law: PAGE-16.

        Those in full blocks of the GPU that are computed. From `allocate` until all its tokens have been computed it
        keeps its value of `allocate`, however many chunks that takes. Needs no table. Its hashes are kept until
        `remove_seq_from_computed_blocks_tracker`. O(new tokens + blocks).
        """
        self.block_allocator.require_whole()
        if not self.enable_caching:
            return 0
        table = self.block_tables.get(seq.seq_id)
        found = None if table is None else table.num_found_tokens
        if found is not None:
            return found
        return len(self.block_allocator.find_cached_blocks_prefix(self._hashes_of(seq), Device.GPU)) * self.block_size

    def _hashes_of(self, seq: Sequence) -> list[bytes]:
        """Return the hashes of a sequence's full blocks; those that are new are computed now. O(new tokens).

        Tokens are only ever appended to a sequence: one that got shorter, or has another extra hash, is hashed anew.
        """
        tokens: list[int] = seq.get_token_ids()
        extra: int | None = seq.extra_hash()
        size = self.block_size
        known, hashes = self._hashes.get(seq.seq_id, (extra, []))
        if known != extra or len(hashes) > len(tokens) // size:
            hashes = []
        for at in range(len(hashes), len(tokens) // size):
            hashes.append(hash_tokens(hashes[-1] if hashes else None, tokens[at * size : (at + 1) * size], extra))
        self._hashes[seq.seq_id] = extra, hashes
        return hashes

    def remove_seq_from_computed_blocks_tracker(self, seq: Sequence) -> None:
        """Forget the hashes of a sequence; an unknown one: nothing happens. O(1)."""
        self._hashes.pop(seq.seq_id, None)

    def get_num_free_gpu_blocks(self) -> int:
        """Return how many blocks of the GPU are free. O(1)."""
        return self.block_allocator.get_num_free_blocks(Device.GPU)

    def get_num_free_cpu_blocks(self) -> int:
        """Return how many blocks of the CPU are free. O(1)."""
        return self.block_allocator.get_num_free_blocks(Device.CPU)

    def get_prefix_cache_hit_rate(self, device: Device) -> float:
        """Return the share of full blocks asked for that were known; -1.0 without prefix caching. O(1)."""
        return self.block_allocator.get_prefix_cache_hit_rate(device)

    def reset_prefix_cache(self, device: Device | None = None) -> bool:
        """Forget all content, of both devices if None; False, and nothing happens, while a block is held. O(blocks)."""
        self.block_allocator.require_whole()
        return self.block_allocator.reset_prefix_cache(device)

    # ------------------------------------------------------------------ self-check

    def check(self) -> None:
        """Recompute the invariants of tables and pools from scratch. O(blocks of the pools and tables).

        Raises:
            InvariantError: names the law and shows both sides.
        """
        self.block_allocator.require_whole()
        blocks: list[Block] = []
        for table in [*self.block_tables.values(), *self.cross_block_tables.values()]:
            table.check()
            blocks.extend(table.blocks)
        self.block_allocator.check(blocks)
        demand("PAGE-2", "a null block without a window", False, self._has_idle_null())

    def _has_idle_null(self) -> bool:
        return self.sliding_window is None and self.block_allocator.has_null_block

    # ------------------------------------------------------------------ what calls share

    def _table(self, seq: Sequence) -> BlockTable:
        self.block_allocator.require_whole()
        table = self.block_tables.get(seq.seq_id)
        if table is None:
            raise UnknownRequestError(f"seq: sequence {seq.seq_id} has no block table")
        return table

    def _blocks_of(self, seqs: list[Sequence]) -> list[Block]:
        blocks: list[Block] = []
        for seq in seqs:
            blocks.extend([block for block in self._table(seq).blocks if not isinstance(block, NullBlock)])
        return blocks

    def _num_touched(self, seq: Sequence, table: BlockTable, num_lookahead_slots: int) -> int:
        unseen: i64 = max(seq.get_len() - table.num_full_slots, 0)
        return int(table.num_touched(unseen, num_lookahead_slots))

    def _null_to_come(self) -> int:
        """Return 1 if appending may take the null block: there is a window, and none has been taken. law: PAGE-13."""
        return 1 if self.sliding_window is not None and not self.block_allocator.has_null_block else 0

    def _unknown_id(self, seq: Sequence) -> int:
        self.block_allocator.require_whole()
        seq_id = int(seq.seq_id)
        if seq_id in self.block_tables:
            raise DuplicateRequestError(f"seq: sequence {seq_id} has a block table already")
        return seq_id

    def _refuse_encoder(self, seq_group: SequenceGroup) -> None:
        if seq_group.is_encoder_decoder():
            if self.sliding_window is not None:
                raise UnsupportedError(ENCODER_AND_WINDOW)
            if self.enable_caching:
                raise UnsupportedError(ENCODER_AND_CACHING)


def waiting(seq_group: SequenceGroup) -> list[Sequence]:
    seqs = seq_group.get_seqs(SequenceStatus.WAITING)
    if not seqs:
        raise InvalidArgumentError(f"seq_group: no sequence of {seq_group.request_id!r} is waiting")
    return seqs
