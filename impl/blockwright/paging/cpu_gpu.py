"""The allocators of a GPU and a CPU as one. Ids are absolute: the GPU's blocks come first, then the CPU's."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from blockwright.arguments import integer
from blockwright.core.pool.check import demand
from blockwright.errors import BlockError, InvalidArgumentError
from blockwright.paging.interfaces import Block, Device, DeviceAwareBlockAllocator
from blockwright.paging.naive import NaiveBlockAllocator
from blockwright.paging.null_block import NullBlock
from blockwright.paging.pool_allocator import PoolAllocator, PoolBlock
from blockwright.paging.prefix_caching import PrefixCachingBlockAllocator, require_time


@final
class CpuGpuBlockAllocator(DeviceAwareBlockAllocator):
    """The allocators of two devices as one; the null block is one of the GPU's.

    Example:
        >>> allocator = CpuGpuBlockAllocator.create("naive", num_gpu_blocks=4, num_cpu_blocks=2, block_size=4)
        >>> block = allocator.allocate_mutable_block(None, Device.GPU)
        >>> allocator.swap([block], Device.GPU, Device.CPU), block.block_id
        ({0: 4}, 4)
        >>> allocator.get_physical_block_id(Device.CPU, 4)
        0
    """

    def __init__(self, cpu_block_allocator: PoolAllocator, gpu_block_allocator: PoolAllocator) -> None:
        """Join two allocators of one kind and block size.

        Raises:
            InvalidArgumentError: they differ in kind or block size, or share ids.
        """
        cpu = cpu_block_allocator
        gpu = gpu_block_allocator
        if type(cpu) is not type(gpu) or cpu._size != gpu._size:
            raise InvalidArgumentError("cpu_block_allocator, gpu_block_allocator: must be of one kind and block size")
        first = cpu.pool.first_id
        # An id must name one block: tables do not say on which device they are.
        if first < gpu.pool.first_id + gpu.pool.num_total() and gpu.pool.first_id < first + cpu.pool.num_total():
            raise InvalidArgumentError("cpu_block_allocator: its ids are also those of gpu_block_allocator")
        self._cpu: PoolAllocator = cpu
        self._gpu: PoolAllocator = gpu

    @staticmethod
    def create(allocator_type: str, num_gpu_blocks: int, num_cpu_blocks: int, block_size: int) -> CpuGpuBlockAllocator:
        """Make both allocators: "naive", or "prefix_caching" to find full blocks by their content.

        Complexity: O(blocks).

        Raises:
            InvalidArgumentError: names the argument; there must be a block of the GPU at least, and none of the CPU
                need be.
        """
        integer("num_gpu_blocks", num_gpu_blocks, 1)
        integer("num_cpu_blocks", num_cpu_blocks)
        of_cpu = (num_cpu_blocks, block_size, num_gpu_blocks)
        if allocator_type == "naive":
            return CpuGpuBlockAllocator(NaiveBlockAllocator(*of_cpu), NaiveBlockAllocator(num_gpu_blocks, block_size))
        if allocator_type == "prefix_caching":
            cpu = PrefixCachingBlockAllocator(*of_cpu)
            return CpuGpuBlockAllocator(cpu, PrefixCachingBlockAllocator(num_gpu_blocks, block_size))
        raise InvalidArgumentError(f'allocator_type: must be "naive" or "prefix_caching", not {allocator_type!r}')

    def tear(self) -> None:
        # law: CALL-1
        self._gpu.pool._tear()
        self._cpu.pool._tear()

    def require_whole(self) -> None:
        self._gpu.pool.require_whole()

    def copy(self) -> CpuGpuBlockAllocator:
        """Return an independent copy; tables follow it with `BlockTable.copy_onto`. O(blocks)."""
        return CpuGpuBlockAllocator(self._cpu.copy(), self._gpu.copy())

    def copy_block(self, block: Block, prev_block: Block | None) -> Block:
        if not isinstance(block, PoolBlock):
            raise BlockError(f"block: {block!r} is not of this kind of allocator")
        is_cpu = self._cpu.has_id(int(block._mark) - 1)  # without a place that is no id
        return block.copy_after(prev_block, self._cpu if is_cpu else self._gpu)

    def on(self, device: Device) -> PoolAllocator:
        self.require_whole()
        if device is Device.GPU:
            return self._gpu
        if device is Device.CPU:
            return self._cpu
        raise InvalidArgumentError(f"device: must be Device.GPU or Device.CPU, not {device!r}")

    def allocate_mutable_block(self, prev_block: Block | None, device: Device, extra_hash: int | None = None) -> Block:
        with self:
            return self.on(device).allocate_mutable_block(prev_block, extra_hash)

    def allocate_immutable_block(
        self, prev_block: Block | None, token_ids: list[int], device: Device, extra_hash: int | None = None
    ) -> Block:
        with self:
            return self.on(device).allocate_immutable_block(prev_block, token_ids, extra_hash)

    def allocate_immutable_blocks(
        self, prev_block: Block | None, block_token_ids: list[list[int]], device: Device, extra_hash: int | None = None
    ) -> list[Block]:
        with self:
            return self.on(device).allocate_immutable_blocks(prev_block, block_token_ids, extra_hash)

    def free(self, block: Block) -> None:
        with self:
            self._of(block).free(block)

    def fork(self, last_block: Block) -> list[Block]:
        with self:
            return self._of(last_block).fork(last_block)

    def get_num_total_blocks(self, device: Device) -> int:
        return self.on(device).get_num_total_blocks()

    def get_num_free_blocks(self, device: Device) -> int:
        return self.on(device).get_num_free_blocks()

    def get_physical_block_id(self, device: Device, absolute_id: int) -> int:
        return self.on(device).get_physical_block_id(absolute_id)

    def swap(self, blocks: list[Block], src_device: Device, dst_device: Device) -> dict[int, int]:
        if src_device is dst_device:
            raise InvalidArgumentError(f"dst_device: blocks are on {src_device!r} already")
        source = self.on(src_device)
        with self:
            return self.on(dst_device).move_here(source.moving(blocks), source)

    def swap_out(self, blocks: list[Block], device: Device) -> None:
        with self:
            self.on(device).swap_out(blocks)

    def swap_in(self, blocks: list[Block], device: Device) -> None:
        with self:
            self.on(device).swap_in(blocks)

    @property
    def all_block_ids(self) -> frozenset[int]:
        return self._gpu.all_block_ids | self._cpu.all_block_ids

    def clear_copy_on_writes(self) -> list[tuple[int, int]]:
        with self:
            copies = self._gpu.clear_copy_on_writes()
            return copies + self._cpu.clear_copy_on_writes() if self._cpu.pool.has_copies() else copies

    def cow_block_if_not_appendable(self, block: Block) -> int | None:
        return self._of(block).cow_block_if_not_appendable(block)

    def promote_to_immutable_block(self, block: Block) -> int:
        with self:
            return self._of(block).promote_to_immutable_block(block)

    def mark_blocks_as_accessed(self, block_ids: list[int], now: float) -> None:
        gpu = self._gpu
        of_gpu = [block_id for block_id in block_ids if gpu.has_id(block_id)]
        if len(of_gpu) == len(block_ids):
            gpu.mark_blocks_as_accessed(block_ids, now)
            return
        of_cpu = [block_id for block_id in block_ids if not gpu.has_id(block_id)]
        # Before the GPU's are noted: all or nothing.
        self._cpu.require_known(of_cpu)
        gpu.mark_blocks_as_accessed(of_gpu, now)
        self._cpu.mark_blocks_as_accessed(of_cpu, now)

    def access_blocks(self, blocks: list[Block], now: float) -> None:
        """Note that all blocks of a table, null ones left out, were accessed. O(blocks).

        Raises:
            BlockError: one is foreign, or freed; nothing is noted.
            InvalidArgumentError: `now` is not a number.
        """
        require_time(now)
        for block in blocks:
            if not isinstance(block, NullBlock):
                self._of(block).own(block)
        for block in blocks:
            if isinstance(block, PoolBlock):
                self._of(block).pool.access(block._mark, now)

    def mark_blocks_as_computed(self, block_ids: list[int]) -> None:
        self._gpu.mark_blocks_as_computed(block_ids)

    def get_common_computed_block_ids(self, computed_seq_block_ids: list[list[int]]) -> list[int]:
        return self._gpu.get_common_computed_block_ids(computed_seq_block_ids)

    def get_num_full_blocks_touched(self, blocks: list[Block], device: Device = Device.GPU) -> int:
        return self.on(device).get_num_full_blocks_touched(blocks)

    def get_prefix_cache_hit_rate(self, device: Device) -> float:
        return self.on(device).get_prefix_cache_hit_rate()

    def reset_prefix_cache(self, device: Device | None = None) -> bool:
        if device is not None:
            return self.on(device).reset_prefix_cache()
        # Asked first: to reset the GPU and then refuse for the CPU would be half a call.
        if isinstance(self._gpu, PrefixCachingBlockAllocator) and not self._cpu.pool.can_reset():
            return False
        return self._gpu.reset_prefix_cache() and self._cpu.reset_prefix_cache()

    def find_cached_blocks_prefix(self, block_hashes: list[bytes], device: Device = Device.GPU) -> list[bytes]:
        return self.on(device).find_cached_blocks_prefix(block_hashes)

    def allocate_or_get_null_block(self) -> Block:
        # law: PAGE-2
        return self._gpu.allocate_or_get_null_block()

    @property
    def has_null_block(self) -> bool:
        return self._gpu.null is not None

    # ------------------------------------------------------------------ what tables count before they act

    def require_block_size(self, block_size: int) -> None:
        if i64(block_size) != self._gpu._size:
            raise InvalidArgumentError(
                f"block_size: the blocks of this allocator have {self._gpu._size} slots, not {block_size}"
            )

    def release_blocks(self, blocks: list[Block]) -> None:
        # The last first, so that the beginning of a prefix is evicted last.
        at: i64 = len(blocks)
        while at > 0:
            at -= 1
            self._of(blocks[at]).let_go(blocks[at])

    def num_moves(self) -> int:
        return int(self._gpu.num_moves + self._cpu.num_moves)

    def get_num_blocks_to_take(
        self, prev_block: Block | None, block_token_ids: list[list[int]], device: Device, extra_hash: int | None = None
    ) -> int:
        return self.on(device).get_num_blocks_to_take(prev_block, block_token_ids, extra_hash)

    def is_on(self, block: Block, device: Device) -> bool:
        return not isinstance(block, PoolBlock) or block._allocator is self.on(device)

    def num_to_copy(self, blocks: list[Block]) -> int:
        count = 0
        for block in blocks:
            owner = self._of(block)
            mark = owner.own(block)._mark
            if owner.pool.sharers(mark) > 1:
                owner.require_no_copy(mark)
                count += 1
        return count

    def num_to_adopt(self, block: Block, token_ids: list[int]) -> int:
        """Return -1 if writing these tokens writes the block; else they fill it, others hold it, and it is not copied.

        Then a block with this content takes its place, and the answer is 1 if that is free now. O(block_size).
        """
        owner = self._of(block)
        mark = owner.known_filled(owner.own(block), token_ids)
        if mark == 0:
            return -1
        return 1 if owner.pool.is_free(mark) else 0

    def own_blocks(self, blocks: list[Block]) -> None:
        """Copy those of these blocks that others hold too. O(blocks). law: PAGE-11, PAGE-13.

        Raises: as `cow_block_if_not_appendable`, for blocks that `num_to_copy` was not asked about.
        """
        for block in blocks:
            self.cow_block_if_not_appendable(block)

    def num_computed_blocks(self, blocks: list[Block]) -> int:
        count = 0
        for block in blocks:
            if not isinstance(block, PoolBlock) or not self._of(block).pool.is_computed(block._mark):
                break
            count += 1
        return count

    def note_computed(self, blocks: list[Block], start: int, stop: int, block_size: int) -> None:
        for at in range(start // block_size, -(stop // -block_size)):
            block = blocks[at]
            if isinstance(block, PoolBlock):
                self._of(block).pool.note_computed(block._mark, (at + 1) * block_size <= stop)

    def num_freed(self, blocks: list[Block]) -> int:
        count = 0
        for block in blocks:
            if isinstance(block, PoolBlock):
                owner = self._of(block)
                if owner.pool.ref_count(owner.own(block)._mark - owner.pool.first_id) == 1:
                    count += 1
        return count

    def _of(self, block: Block) -> PoolAllocator:
        """Return the allocator of a block; one that is foreign to both is refused by the GPU's."""
        if isinstance(block, PoolBlock) and block._allocator is self._cpu:
            return self._cpu
        return self._gpu

    # ------------------------------------------------------------------ self-check

    def check(self, blocks: list[Block] | None = None) -> None:
        """Recompute the invariants of both pools from scratch. O(blocks).

        Args:
            blocks: every held block, once for each holder, or None if unknown: counts are then only checked against
                each other.

        Raises:
            InvariantError: names the law and shows both sides.
        """
        entries: list[int] | None = None
        if blocks is not None:
            places = [block.block_id for block in blocks if not isinstance(block, NullBlock)]
            entries = [place for place in places if place is not None]
            demand("PAGE-1", "blocks in tables that hold nothing", 0, len(places) - len(entries))
        self._gpu.pool.check_holders(entries)
        self._cpu.pool.check_holders(entries)
