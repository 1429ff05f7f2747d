"""The abstract classes of blocks and allocators, through which block tables work.

Engines may bring their own; `DeviceAwareBlockAllocator` is all that `BlockTable` knows of one. The classes are no
`abc.ABC`: compiled ones would share one cache of `isinstance` among all subclasses, and so be taken for each other by
uncompiled code.

Source: sections 3 and 5 of the named systems (`Block`, `BlockAllocator`, `DeviceAwareBlockAllocator`).
"""

from __future__ import annotations

from enum import Enum
from typing import Any, ClassVar, Protocol

from mypy_extensions import mypyc_attr

from blockwright.errors import BlockwrightError, NoFreeBlocksError, UnsupportedError


class Device(Enum):
    """Where a pool of blocks lies."""

    GPU = 1
    CPU = 2


class AllocStatus(Enum):
    """Whether blocks can be had: now (OK), when others have released some (LATER), or not at all (NEVER)."""

    OK = 1
    LATER = 2
    NEVER = 3


class BlockFactory(Protocol):
    """Makes a block; the nested name is `Block.Factory`. The classes of blocks are such."""

    def __call__(
        self,
        prev_block: Block | None,
        token_ids: list[int],
        block_size: int,
        allocator: BlockAllocator,
        block_id: int | None = None,
        computed: bool = False,
        extra_hash: int | None = None,
    ) -> Block:
        """Make a block that follows `prev_block` and holds these tokens."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Block:
    """A block of one sequence: some tokens, and the physical block that holds their KV data.

    Blocks of several sequences may share a physical block; a `Block` itself belongs to one table.
    """

    Factory: ClassVar[Any] = BlockFactory

    def append_token_ids(self, token_ids: list[int]) -> None:
        """Write tokens to the empty slots; a physical block that others hold too is copied first."""
        raise NotImplementedError

    @property
    def block_id(self) -> int | None:
        """Absolute id of the physical block; None where there is none (freed)."""
        raise NotImplementedError

    @block_id.setter
    def block_id(self, value: int | None) -> None:
        raise NotImplementedError

    @property
    def token_ids(self) -> list[int]:
        """The tokens in it."""
        raise NotImplementedError

    @property
    def num_tokens_total(self) -> int:
        """Tokens in it and in all blocks before it."""
        raise NotImplementedError

    @property
    def num_empty_slots(self) -> int:
        """Slots without a token."""
        raise NotImplementedError

    @property
    def is_full(self) -> bool:
        """Whether every slot has a token."""
        raise NotImplementedError

    @property
    def prev_block(self) -> Block | None:
        """The block before it in its sequence."""
        raise NotImplementedError

    @property
    def extra_hash(self) -> int | None:
        """What identifies the sequence besides its tokens, such as an adapter."""
        raise NotImplementedError

    @property
    def computed(self) -> bool:
        """Whether its KV data is known to be there."""
        raise NotImplementedError

    @computed.setter
    def computed(self, value: bool) -> None:
        raise NotImplementedError

    @property
    def last_accessed(self) -> float:
        """When it was last accessed, on the engine's clock; negative if never."""
        raise NotImplementedError

    @last_accessed.setter
    def last_accessed(self, value: float) -> None:
        raise NotImplementedError

    @property
    def content_hash(self) -> bytes | None:
        """Hash of the whole prefix up to its end, 16 bytes; None until it is full."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class AnyBlockAllocator:
    """The calls that allocators of one device and of several have in common; blocks have absolute ids.

    The complexities and errors given here and below are those of the allocators of this package.
    """

    NoFreeBlocksError: ClassVar[type[Exception]] = NoFreeBlocksError

    def free(self, block: Block) -> None:
        """Release a block, which loses its id; the null block stays. O(1), with prefix caching O(log n).

        Raises:
            BlockError: it is foreign, or was freed already.
        """
        raise NotImplementedError

    def fork(self, last_block: Block) -> list[Block]:
        """Return blocks that share the ids of a sequence's blocks, given its last one. O(blocks).

        Blocks before it that were freed (a window has passed them) have twins without an id.

        Raises:
            BlockError: a block is foreign, or the last one was freed.
        """
        raise NotImplementedError

    @property
    def all_block_ids(self) -> frozenset[int]:
        """All absolute ids. O(blocks)."""
        raise NotImplementedError

    def clear_copy_on_writes(self) -> list[tuple[int, int]]:
        """Return the copies to be made, (source, destination), and let go of both ends. O(copies)."""
        raise NotImplementedError

    def mark_blocks_as_accessed(self, block_ids: list[int], now: float) -> None:
        """Note that blocks were accessed, eviction candidates included, which are then evicted later. O(blocks log n).

        Without prefix caching nothing happens.

        Raises:
            BlockError: one is foreign, or free and without content; nothing is noted.
            InvalidArgumentError: `now` is not a number.
        """
        raise NotImplementedError

    def mark_blocks_as_computed(self, block_ids: list[int]) -> None:
        """Note that all blocks filled until now are computed, whatever the argument. O(1)."""
        raise NotImplementedError

    def get_common_computed_block_ids(self, computed_seq_block_ids: list[list[int]]) -> list[int]:
        """Return the ids that all sequences begin with; empty without prefix caching. O(ids)."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class BlockAllocator(AnyBlockAllocator):
    """The blocks of one device."""

    def allocate_mutable_block(self, prev_block: Block | None, extra_hash: int | None = None) -> Block:
        """Return an empty block that follows `prev_block`. O(1).

        Raises:
            NoFreeBlocksError: every block is held.
        """
        raise NotImplementedError

    def allocate_immutable_block(
        self, prev_block: Block | None, token_ids: list[int], extra_hash: int | None = None
    ) -> Block:
        """Return a full block with these tokens, shared if the content is known. O(block_size).

        Raises: as `allocate_immutable_blocks`.
        """
        raise NotImplementedError

    def allocate_immutable_blocks(
        self, prev_block: Block | None, block_token_ids: list[list[int]], extra_hash: int | None = None
    ) -> list[Block]:
        """Return full blocks, one after another, each shared if its content is known; all or none. O(tokens).

        Raises:
            InvalidArgumentError: the tokens of one are not exactly those of a block.
            NoFreeBlocksError: not enough blocks are free.
        """
        raise NotImplementedError

    def get_num_total_blocks(self) -> int:
        """Return how many blocks there are. O(1)."""
        raise NotImplementedError

    def get_num_free_blocks(self) -> int:
        """Return how many blocks are free. O(1)."""
        raise NotImplementedError

    def get_physical_block_id(self, absolute_id: int) -> int:
        """Return the id of a block on its device, from zero. O(1).

        Raises:
            BlockError: it is not an id of this device.
        """
        raise NotImplementedError

    def swap_out(self, blocks: list[Block]) -> None:
        """Release blocks after their content was moved elsewhere; null ones are passed over. O(blocks).

        Raises:
            BlockError: one is foreign, freed, given twice, or an end of a copy to come. No block is released then.
        """
        raise NotImplementedError

    def swap_in(self, blocks: list[Block]) -> None:
        """Give blocks without an id a place here, known content where it is; all or none. O(blocks).

        Raises:
            BlockError: one has an id, or is of no pool.
            NoFreeBlocksError: not enough blocks are free.
        """
        raise NotImplementedError

    def cow_block_if_not_appendable(self, block: Block) -> int | None:
        """Return the id to write to: the block's own, or that of a copy if others hold it. O(1).

        Raises:
            BlockError: it is the null block, foreign or freed, or shared and itself a copy still to be made.
            NoFreeBlocksError: it has to be copied and no block is free.
        """
        raise NotImplementedError

    def promote_to_immutable_block(self, block: Block) -> int:
        """Make a full block findable by its content; return its id, that of the known block if there is one.

        Raises:
            BlockError: it is the null block, foreign, freed or not full.
        """
        raise NotImplementedError

    def get_num_full_blocks_touched(self, blocks: list[Block]) -> int:
        """Return how many blocks the full ones of these take here: each distinct one that is not held here by content.

        Complexity: O(blocks).
        """
        raise NotImplementedError

    def get_prefix_cache_hit_rate(self) -> float:
        """Return the share of full blocks asked for that were known, since the last reset; 0.0 before any.

        Negative without prefix caching.
        """
        raise NotImplementedError

    def reset_prefix_cache(self) -> bool:
        """Forget all content; False, and no effect, while any block except the null block is held. O(num_blocks)."""
        raise NotImplementedError

    def find_cached_blocks_prefix(self, block_hashes: list[bytes]) -> list[bytes]:
        """Return the leading hashes with computed blocks: marked so, or freed one by one. O(hashes returned).

        Raises:
            InvalidArgumentError: a hash is not 16 bytes.
        """
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class DeviceAwareBlockAllocator(AnyBlockAllocator):
    """The blocks of several devices; calls with a `device` do there what those of `BlockAllocator` do."""

    def tear(self) -> None:
        """Refuse later calls, where that is known: one has ended in the middle of a change."""

    def end_call(self, error: BaseException) -> None:
        """Call `tear` after an error in the middle of a change; our own errors are raised before anything changes."""
        if not isinstance(error, BlockwrightError):
            self.tear()

    def __enter__(self) -> None:
        """Begin a change: an error that ends it is given to `end_call`."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.end_call(error)

    def require_whole(self) -> None:
        """Raise `InterruptedCallError` after `tear`."""

    def allocate_mutable_block(self, prev_block: Block | None, device: Device, extra_hash: int | None = None) -> Block:
        raise NotImplementedError

    def allocate_immutable_block(
        self, prev_block: Block | None, token_ids: list[int], device: Device, extra_hash: int | None = None
    ) -> Block:
        raise NotImplementedError

    def allocate_immutable_blocks(
        self, prev_block: Block | None, block_token_ids: list[list[int]], device: Device, extra_hash: int | None = None
    ) -> list[Block]:
        raise NotImplementedError

    def get_num_total_blocks(self, device: Device) -> int:
        raise NotImplementedError

    def get_num_free_blocks(self, device: Device) -> int:
        raise NotImplementedError

    def get_physical_block_id(self, device: Device, absolute_id: int) -> int:
        raise NotImplementedError

    def swap(self, blocks: list[Block], src_device: Device, dst_device: Device) -> dict[int, int]:
        """Move blocks; return the ids before and after, for the content that has to be copied. O(blocks).

        Each distinct block moves once, and blocks that shared an id share the new one; null blocks stay. A full block
        with content that is known at the destination adopts it, without a pair. A source that others hold stays as it
        is.

        Raises:
            InvalidArgumentError: both devices are one.
            BlockError: a block is not held on `src_device`, or has a copy still to be made.
            NoFreeBlocksError: the destination has not enough free blocks; nothing has moved.
        """
        raise NotImplementedError

    def get_num_full_blocks_touched(self, blocks: list[Block], device: Device = Device.GPU) -> int:
        raise NotImplementedError

    def get_prefix_cache_hit_rate(self, device: Device) -> float:
        raise NotImplementedError

    def reset_prefix_cache(self, device: Device | None = None) -> bool:
        """Forget all content, of all devices if None; False, and nothing happens, while a block is held. O(blocks).

        The null block does not count as held. Without prefix caching there is nothing to forget: True.
        """
        raise NotImplementedError

    def find_cached_blocks_prefix(self, block_hashes: list[bytes], device: Device = Device.GPU) -> list[bytes]:
        raise NotImplementedError

    def allocate_or_get_null_block(self) -> Block:
        """Return the null block, for entries that no token reads; it is taken at the first call. O(1).

        Raises:
            NoFreeBlocksError: it is not there yet, and no block is free.
        """
        raise NotImplementedError

    def cow_block_if_not_appendable(self, block: Block) -> int | None:
        """Return the id to write to; optional if the blocks do this themselves."""
        raise UnsupportedError("cow_block_if_not_appendable: not offered by this allocator")

    def promote_to_immutable_block(self, block: Block) -> int:
        """Make a full block findable; optional if the blocks do this themselves."""
        raise UnsupportedError("promote_to_immutable_block: not offered by this allocator")

    def swap_out(self, blocks: list[Block], device: Device) -> None:
        """Release blocks after their content was moved; `swap` does both halves."""
        raise UnsupportedError("swap_out: not offered by this allocator; use swap")

    def swap_in(self, blocks: list[Block], device: Device) -> None:
        """Give blocks without an id a place; `swap` does both halves."""
        raise UnsupportedError("swap_in: not offered by this allocator; use swap")

    # What tables ask to count before they act. The answers here are safe for any allocator; exact ones refuse less.

    def require_block_size(self, block_size: int) -> None:  # any size suits
        """Raise `InvalidArgumentError` unless blocks have this many slots; an engine's blocks may have any."""

    def release_blocks(self, blocks: list[Block]) -> None:
        """Release the blocks of a table, last first."""
        for block in reversed(blocks):
            self.free(block)

    def num_to_adopt(self, block: Block, token_ids: list[int]) -> int:
        """Return -1 if these tokens are written to the block, else how many free blocks their known content takes."""
        return -1

    def num_moves(self) -> int:
        """Return a number that changes when a held block gets another id; -1 if that is not known. O(1)."""
        return -1

    def get_num_blocks_to_take(
        self, prev_block: Block | None, block_token_ids: list[list[int]], device: Device, extra_hash: int | None = None
    ) -> int:
        """Return how many free blocks `allocate_immutable_blocks` would take at most."""
        return len(block_token_ids)

    def is_on(self, block: Block, device: Device) -> bool:
        """Return whether a block lies on a device; the null block counts as lying everywhere."""
        return True

    @property
    def has_null_block(self) -> bool:
        """Whether the null block has been taken, so that asking for it takes no free block."""
        return False

    def num_to_copy(self, blocks: list[Block]) -> int:
        """Return how many of these blocks a write would copy at most.

        Raises:
            BlockError: one of them cannot be copied now.
        """
        return len(blocks)

    def own_blocks(self, blocks: list[Block]) -> None:
        """Copy those of these blocks that others hold too, before any of them is written.

        Where this does nothing, blocks see to it when they are written.
        """
        return

    def num_computed_blocks(self, blocks: list[Block]) -> int:
        """Return how many leading blocks are known to be computed."""
        return 0

    def note_computed(self, blocks: list[Block], start: int, stop: int, block_size: int) -> None:
        """Note that a step has computed the tokens of a table from one position to another; where not kept, nothing."""

    def num_freed(self, blocks: list[Block]) -> int:
        """Return how many blocks become free, at least, when all these are released."""
        return 0

    def copy_block(self, block: Block, prev_block: Block | None) -> Block:
        """Return a copy of a block for this allocator, itself a copy of the block's, after the copied block before it.

        Raises:
            UnsupportedError: this allocator cannot be copied.
        """
        raise UnsupportedError("copy_block: not offered by this allocator")
