"""The blocks of one sequence, in order: the table through which its tokens are written.

    null | null | full | full | partial | empty | empty
    ^ a window has passed     ^ next token        ^ lookahead slots

It works through `DeviceAwareBlockAllocator` alone, so engines may bring their own. A call that needs several blocks
counts them first, so that it does everything or nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import final

from mypy_extensions import i64

from blockwright.arguments import integer
from blockwright.core.keys.request import MAX_TOKEN_ID, count_of
from blockwright.core.pool.check import demand
from blockwright.errors import InvalidArgumentError, NoFreeBlocksError
from blockwright.paging.interfaces import Block, Device, DeviceAwareBlockAllocator
from blockwright.paging.null_block import NullBlock
from blockwright.paging.pool_allocator import PoolBlock


@final
class BlockTable:
    """The blocks of one sequence.

    Example:
        >>> from blockwright.paging import CpuGpuBlockAllocator
        >>> allocator = CpuGpuBlockAllocator.create("naive", num_gpu_blocks=8, num_cpu_blocks=0, block_size=4)
        >>> table = BlockTable(4, allocator)
        >>> table.allocate([7, 8, 9, 10, 11])
        >>> child = table.fork()
        >>> child.append_token_ids([12])
        >>> table.physical_block_ids, child.physical_block_ids, allocator.clear_copy_on_writes()
        ([0, 1], [0, 2], [(1, 2)])
    """

    def __init__(
        self,
        block_size: int,
        block_allocator: DeviceAwareBlockAllocator,
        _blocks: list[Block] | None = None,
        max_block_sliding_window: int | None = None,
    ) -> None:
        """Make a table, empty unless it is given blocks.

        Args:
            block_size: slots per block.
            block_allocator: whence blocks come.
            _blocks: blocks held for it, as `fork` returned them.
            max_block_sliding_window: how many blocks before the newest computed one a token may still read.

        Raises:
            InvalidArgumentError: names the argument.
        """
        integer("block_size", block_size, 1)
        block_allocator.require_block_size(block_size)
        if max_block_sliding_window is not None:
            integer("max_block_sliding_window", max_block_sliding_window, 1)
        self._size: i64 = block_size
        self._allocator: DeviceAwareBlockAllocator = block_allocator
        self._window: int | None = max_block_sliding_window
        self._blocks: list[Block] = []
        self._num_full: i64 = 0
        self._num_null: i64 = 0
        self._num_computed: i64 = 0
        # Tokens that were found computed when it was allocated; -1 once all its tokens have been computed.
        self._num_found: i64 = -1
        # The ids as last told, and the allocator's moves until then.
        self._ids: list[int] = []
        self._moves: int = -1
        if _blocks is not None:
            self.update(_blocks)

    @staticmethod
    def get_num_required_blocks(token_ids: Sequence[object], block_size: int, num_lookahead_slots: int = 0) -> int:
        """Return how many blocks hold some tokens and lookahead slots. O(1).

        Example:
            >>> BlockTable.get_num_required_blocks([0] * 9, 4, 3), BlockTable.get_num_required_blocks([0] * 9, 4, 4)
            (3, 4)
        """
        integer("block_size", block_size, 1)
        count_of("num_lookahead_slots", num_lookahead_slots)
        return -((len(token_ids) + num_lookahead_slots) // -block_size)

    def allocate(self, token_ids: Sequence[int], device: Device = Device.GPU, extra_hash: int | None = None) -> None:
        """Hold blocks for the first tokens; full blocks with known content are shared. O(tokens).

        Raises:
            InvalidArgumentError: it holds blocks already, there are no tokens, or one is out of range.
            NoFreeBlocksError: not enough blocks are free; nothing is held.
        """
        tokens = checked(token_ids)
        if self._blocks:
            raise InvalidArgumentError("token_ids: the table is allocated already; append to it")
        if not tokens:
            raise InvalidArgumentError("token_ids: a table starts with a token at least")
        size = int(self._size)
        count = len(tokens)
        whole = count // size * size
        chunks = [tokens[at : at + size] for at in range(0, whole, size)]
        allocator = self._allocator
        rest = 1 if whole < count else 0
        free = allocator.get_num_free_blocks(device)
        if len(chunks) + rest > free:
            needed = allocator.get_num_blocks_to_take(None, chunks, device, extra_hash) + rest
            if needed > free:
                raise NoFreeBlocksError(f"{needed} blocks are needed, {free} are free")
        with self._allocator:
            blocks = allocator.allocate_immutable_blocks(None, chunks, device, extra_hash) if chunks else []
            if rest:
                last = allocator.allocate_mutable_block(blocks[-1] if blocks else None, device, extra_hash)
                last.append_token_ids(tokens[whole:])
                blocks.append(last)
            self._hold(blocks, count, 0, allocator.num_computed_blocks(blocks) * size if device is Device.GPU else -1)

    def update(self, blocks: list[Block]) -> None:
        """Take these blocks for the table's, whatever it held. O(blocks).

        Raises:
            InvalidArgumentError: a null block comes after another one, or tokens after an empty slot.
        """
        size = self._size
        null: i64 = 0
        while null < i64(len(blocks)) and isinstance(blocks[null], NullBlock):
            null += 1
        full = null * size
        at = null
        while at < i64(len(blocks)):
            block = blocks[at]
            if isinstance(block, NullBlock):
                raise InvalidArgumentError(f"blocks: entry {at} is null, after others that are not")
            filled = size - block.num_empty_slots
            if filled > 0 and full != at * size:
                raise InvalidArgumentError(f"blocks: entry {at} has tokens, after empty slots")
            full += filled
            at += 1
        self._hold(blocks[:], full, null, -1)

    def _hold(self, blocks: list[Block], num_full: i64, num_null: i64, num_found: i64) -> None:
        """Take other blocks; no step has computed any of their tokens yet."""
        self._blocks = blocks
        self._ids = []
        self._num_full = num_full
        self._num_null = num_null
        self._num_computed = 0
        self._num_found = num_found

    def _twin(self, block_allocator: DeviceAwareBlockAllocator, blocks: list[Block]) -> BlockTable:
        twin = BlockTable(int(self._size), block_allocator, None, self._window)
        twin._hold(blocks, self._num_full, self._num_null, self._num_found)
        twin._num_computed = self._num_computed
        return twin

    def append_token_ids(
        self,
        token_ids: Sequence[int],
        num_lookahead_slots: int = 0,
        num_computed_slots: int | None = None,
        extra_hash: int | None = None,
    ) -> None:
        """Write tokens after the last one, with slots for more behind them; all or nothing. O(tokens + lookahead).

        Under a window the entries that it has passed become null first. A block that others hold is copied before it
        is written (the allocator lists the copies). law: PAGE-3, PAGE-9, PAGE-11.

        Args:
            token_ids: the new tokens.
            num_lookahead_slots: slots to have beyond them.
            num_computed_slots: tokens with KV data; needed under a window.
            extra_hash: for new blocks, as in `allocate`.

        Raises:
            InvalidArgumentError: the table is not allocated or not on the GPU, a count is out of range or missing.
            BlockError: a block to be copied is itself a copy still to be made.
            NoFreeBlocksError: not enough blocks are free.
        """
        blocks = self._blocks
        self._require_growing(num_lookahead_slots)
        tokens: list[int] = token_ids if type(token_ids) is list else list(token_ids)
        size = self._size
        start = self._num_full
        stop: i64 = start + i64(len(tokens))
        first: i64 = start // size
        dead = self._num_dead(num_computed_slots)
        missing = -((stop + num_lookahead_slots) // -size) - i64(len(blocks))
        # The usual step of decoding: the block is there, and no window has passed one. Nothing needs counting.
        if missing <= 0 and dead <= self._num_null and stop <= (first + 1) * size:
            if tokens:  # into one block that is there: a refusal is all or nothing by itself
                try:
                    blocks[first].append_token_ids(tokens)
                    self._num_full = stop
                except BaseException as error:
                    self._allocator.end_call(error)
                    raise
            return
        self._allocator.require_whole()
        tokens = checked(tokens)
        written = blocks[first : min(-(stop // -size), i64(len(blocks)))] if tokens else []
        adopted = -1
        if written:
            adopted = self._allocator.num_to_adopt(written[0], tokens[: (first + 1) * size - start])
        with self._allocator:
            self._write(tokens, start, dead, missing, written, adopted, extra_hash)

    def _write(
        self,
        tokens: list[int],
        start: i64,
        dead: i64,
        missing: i64,
        written: list[Block],
        adopted: int,
        extra_hash: int | None,
    ) -> None:
        blocks = self._blocks
        size = self._size
        stop: i64 = start + i64(len(tokens))
        first: i64 = start // size
        if adopted >= 0:  # known content, before anything is taken that could evict it
            self._require_room(dead, max(missing, 0) + adopted, written[1:])
            written[0].append_token_ids(tokens[: (first + 1) * size - start])
            tokens = tokens[(first + 1) * size - start :]
            written = written[1:]
            first += 1
            start = first * size
        else:
            self._require_room(dead, max(missing, 0), written)
        self._drop(dead)
        self._widen(missing, extra_hash)
        if len(written) > 1 or adopted >= 0:  # all copies before any block fills, and takes known content that is free
            self._allocator.own_blocks(written)
        at: i64 = first * size
        while at < stop:
            here = tokens[max(at - start, 0) : at + size - start]
            if here:
                blocks[at // size].append_token_ids(here)
            at += size
        self._num_full = stop

    def mark_computed(self, num_tokens: int) -> None:
        """Note that a step has computed the first tokens: full blocks up to there count as computed for all.

        Fewer than were noted before change nothing. O(blocks computed since). law: PAGE-16, PAGE-17.

        Raises:
            InvalidArgumentError: the table is not allocated or not on the GPU, or the number is more than was written.
        """
        self._require_growing(0)
        self._allocator.require_whole()
        count = operator.index(num_tokens)
        if not 0 <= count <= self._num_full:
            raise InvalidArgumentError(
                f"num_tokens: must be within 0..{self._num_full}, the tokens written, not {num_tokens!r}"
            )
        stop: i64 = count
        with self._allocator:
            # A count that falls back, as after a rejected draft, takes no data away.
            if stop > self._num_computed:
                self._allocator.note_computed(self._blocks, int(self._num_computed), count, int(self._size))
                self._num_computed = stop
            if self._num_computed == self._num_full:
                self._num_found = -1

    @property
    def num_computed_tokens(self) -> int:
        """Tokens reported by `mark_computed`."""
        return int(self._num_computed)

    @property
    def num_found_tokens(self) -> int | None:
        """Tokens found computed when it was allocated on the GPU; None once all its tokens have been computed."""
        return None if self._num_found < 0 else int(self._num_found)

    def ensure_num_empty_slots(self, num_empty_slots: int, extra_hash: int | None = None) -> None:
        """Make sure of `num_empty_slots` slots after the last token; missing blocks are taken, all or none.

        O(new blocks).

        Raises:
            InvalidArgumentError: the table is not allocated or not on the GPU, or the number is out of range.
            NoFreeBlocksError: not enough blocks are free.
        """
        self._require_growing(num_empty_slots)
        missing = -((self._num_full + num_empty_slots) // -self._size) - i64(len(self._blocks))
        if missing > 0:
            self._require_room(self._num_null, missing, [])
            with self._allocator:
                self._widen(missing, extra_hash)

    def fork(self) -> BlockTable:
        """Return a table that shares all blocks, each held once more; null entries stay null. O(blocks). law: PAGE-1.

        Raises:
            InvalidArgumentError: the table is not allocated.
        """
        self._require_allocated()
        self._allocator.require_whole()
        blocks = self._blocks
        with self._allocator:
            twins = self._allocator.fork(blocks[-1])
            at: i64 = 0
            # The allocator's fork follows the blocks, and null entries are none of a chain.
            while at < self._num_null:
                twins[at] = blocks[at]
                at += 1
            child = self._twin(self._allocator, twins)
            child._ids = self._ids[:]
            child._moves = self._moves
        return child

    def free(self) -> None:
        """Release all blocks, last first; the table can be allocated again. O(blocks).

        Raises:
            InvalidArgumentError: the table is not allocated.
        """
        self._require_allocated()
        self._allocator.require_whole()
        with self._allocator:
            self._allocator.release_blocks(self._blocks)
            self._hold([], 0, 0, -1)

    @property
    def physical_block_ids(self) -> list[int]:
        """Absolute ids of the blocks; null entries have the null block's.

        Complexity: O(blocks), about 1 ns for each with the same id as at the last call.
        """
        blocks = self._blocks
        moves = self._allocator.num_moves()
        # A block that is held has another id, by a copy or a swap: all are asked again.
        if moves < 0 or moves != self._moves:
            self._ids = []
            self._moves = moves
        ids = self._ids
        at: i64 = len(ids)
        while at < i64(len(blocks)):
            block = blocks[at]
            place = int(block._mark) - 1 if isinstance(block, PoolBlock) else block.block_id
            if place is None or place < 0:
                self._moves = -1  # freed behind the table's back: ask again next time
            else:
                ids.append(place)
            at += 1
        return ids[:]

    @property
    def blocks(self) -> list[Block]:
        """The blocks, in a new list. O(blocks)."""
        return self._blocks[:]

    @property
    def num_full_slots(self) -> int:
        """Tokens written, those of null entries too."""
        return int(self._num_full)

    def get_unseen_token_ids(self, ids: Sequence[int]) -> list[int]:
        """Return the tokens of a sequence that are not written yet, of all its `ids`. O(unseen tokens)."""
        return checked(ids[int(self._num_full) :])[:]

    def get_num_blocks_touched_by_append_slots(self, token_ids: Sequence[object], num_lookahead_slots: int) -> int:
        """Return how many blocks an append writes or takes at most. O(1).

        ``1 + ceil((n + lookahead - first_chunk) / block_size)``, where the first chunk is the rest of the block of the
        next token.
        """
        count_of("num_lookahead_slots", num_lookahead_slots)
        return int(self.num_touched(len(token_ids), num_lookahead_slots))

    def num_touched(self, num_tokens: i64, num_lookahead_slots: i64) -> i64:
        """Return how many blocks an append touches, given counts. O(1)."""
        size = self._size
        first_chunk = size - self._num_full % size
        return 1 - ((num_tokens + num_lookahead_slots - first_chunk) // -size)

    def num_beyond_full(self) -> i64:
        """Return how many entries are not full of tokens: a partial one, and those of lookahead slots. O(1)."""
        return i64(len(self._blocks)) - self._num_full // self._size

    def copy_onto(self, block_allocator: DeviceAwareBlockAllocator) -> BlockTable:
        """Return a copy on a copy of the allocator: equal blocks, independent of this table. O(blocks).

        For blocks of `CpuGpuBlockAllocator`: its copies know on which of the two devices a block is.

        Raises:
            InvalidArgumentError: the blocks are an engine's own.
        """
        if not self._blocks:
            return self._twin(block_allocator, [])
        chain: list[PoolBlock] = []
        before: Block | None = self._blocks[-1]
        while isinstance(before, PoolBlock):
            chain.append(before)
            before = before._prev
        prev: Block | None = None
        blocks = self._blocks[:]
        at: i64 = len(chain)
        if at != i64(len(blocks)):
            raise InvalidArgumentError("block_allocator: only tables of CpuGpuBlockAllocator's blocks can be copied")
        for i, block in enumerate(blocks):
            at -= 1
            prev = block_allocator.copy_block(chain[at], prev)
            if not isinstance(block, NullBlock):
                blocks[i] = prev
        return self._twin(block_allocator, blocks)

    def check(self) -> None:
        """Recompute the table's own invariants: null entries, slots, distinct blocks of one device. O(blocks).

        Raises:
            InvariantError: PAGE-3, PAGE-9 or PAGE-10 is broken.
        """
        blocks = self._blocks
        null = [isinstance(block, NullBlock) for block in blocks]
        demand("PAGE-3", "null entries, which come first", [i < self._num_null for i in range(len(blocks))], null)
        kept = blocks[self._num_null :]
        counts = [int(self._size) - block.num_empty_slots for block in kept]
        rest = int(self._num_full - self._num_null * self._size)
        expected = [max(0, min(int(self._size), rest - i * int(self._size))) for i in range(len(kept))]
        demand("PAGE-9", "tokens in each entry that is not null", expected, counts)
        demand("PAGE-9", "tokens beyond the entries", 0, max(0, rest - int(self._size) * len(kept)))
        demand("PAGE-10", "distinct blocks", len(kept), len({block.block_id for block in kept}))
        cpu = sum([self._allocator.is_on(block, Device.CPU) for block in kept])
        gpu = sum([self._allocator.is_on(block, Device.GPU) for block in kept])
        demand("PAGE-10", "the device that holds all entries", len(kept), max(cpu, gpu))

    # ------------------------------------------------------------------ steps of an append

    def _num_dead(self, num_computed_slots: int | None) -> i64:
        """Return how many leading entries a window has passed; never one that is still written."""
        window = self._window
        if window is None:
            return 0
        if num_computed_slots is None:
            raise InvalidArgumentError("num_computed_slots: is needed under a sliding window")
        if not 0 <= num_computed_slots <= self._num_full:
            raise InvalidArgumentError(
                f"num_computed_slots: must be within 0..{self._num_full}, the tokens written, not {num_computed_slots}"
            )
        dead = num_computed_slots // self._size - window
        return max(self._num_null, min(dead, self._num_full // self._size, i64(len(self._blocks)) - 1))

    def _require_room(self, dead: i64, missing: i64, written: list[Block]) -> None:
        allocator = self._allocator
        free = allocator.get_num_free_blocks(Device.GPU)
        needed = int(missing)
        if written:
            needed += allocator.num_to_copy(written)
        if dead > self._num_null:
            # The null block is taken before anything is released, so that it must fit now.
            null = 0 if allocator.has_null_block else 1
            if null > free:
                raise NoFreeBlocksError("a block is needed as the null block, none is free")
            needed += null - allocator.num_freed(self._blocks[self._num_null : dead])
        if needed > free:
            raise NoFreeBlocksError(f"{needed} blocks are needed, {free} are free")

    def _drop(self, dead: i64) -> None:
        at = self._num_null
        if at >= dead:
            return
        allocator = self._allocator
        blocks = self._blocks
        null = allocator.allocate_or_get_null_block()
        allocator.release_blocks(blocks[at:dead])
        while at < dead:
            blocks[at] = null
            at += 1
        self._ids = []
        self._num_null = dead

    def _widen(self, missing: i64, extra_hash: int | None) -> None:
        blocks = self._blocks
        while missing > 0:
            blocks.append(self._allocator.allocate_mutable_block(blocks[-1], Device.GPU, extra_hash))
            missing -= 1

    def _require_allocated(self) -> None:
        if not self._blocks:
            raise InvalidArgumentError("table: it holds no blocks: never allocated, or freed")

    def _require_growing(self, num_slots: int) -> None:
        self._require_allocated()
        count_of("num_lookahead_slots", num_slots)
        # law: PAGE-10
        if not self._allocator.is_on(self._blocks[-1], Device.GPU):
            raise InvalidArgumentError("table: its blocks are not on the GPU; swap them in first")


def checked(token_ids: Sequence[int]) -> list[int]:
    """Check each token, and return them as a list: the caller's own if it is one. O(tokens)."""
    tokens: list[int] = token_ids if type(token_ids) is list else list(token_ids)
    step: i64 = 1 << 61
    grows = step * 8 != 0  # uncompiled: there a subclass's own methods would run later
    try:
        # Not by `isinstance`: a subclass of int may run code when it is read later, in mid-change.
        if grows and any([type(token) is not int for token in tokens]):
            tokens = [operator.index(token) for token in tokens]
        for token in tokens:
            if not 0 <= token <= MAX_TOKEN_ID:
                raise InvalidArgumentError(f"token_ids: must be within 0..{MAX_TOKEN_ID}, {token!r} is not")
    except TypeError as error:
        raise InvalidArgumentError("token_ids: must be integers") from error
    return tokens
