"""Blocks and allocators of one device, over the pool below all managers.

Both kinds share three rules: a full block is never written again; a block that others hold is copied before it is
written; a released block loses its id. They differ in whether full blocks are found by their content.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i64_le, write_i32_le
from librt.vecs import append, vec
from mypy_extensions import i32, i64

from blockwright.arguments import integer
from blockwright.core.keys.block_hash import SipHasher, word_bytes
from blockwright.core.keys.request import MAX_TOKEN_ID
from blockwright.errors import BlockError, InvalidArgumentError, NoFreeBlocksError
from blockwright.paging.device_pool import DevicePool
from blockwright.paging.interfaces import Block, BlockAllocator
from blockwright.paging.null_block import NullBlock

MAX_BLOCKS: Final = 2**30

ROOM: Final = 64
"""Tokens for which a new block has room at once; those of larger blocks grow."""

# The hash of block contents, under a secret drawn once per process.
_HASHER: Final = SipHasher()

_NO_TOKENS: Final[list[int]] = []


def with_tokens(tokens: vec[i32], token_ids: list[int]) -> vec[i32]:
    """Return tokens with others behind them; where there was room the memory is shared. O(token_ids).

    Raises:
        InvalidArgumentError: one is no integer within 0 .. 2**31 - 1.
    """
    try:
        for token in token_ids:
            if token < 0 or token > MAX_TOKEN_ID or not isinstance(token, int):
                break
            tokens = append(tokens, i32(token))
        else:
            return tokens
    except TypeError:
        pass
    raise InvalidArgumentError(f"token_ids: must be integers within 0..{MAX_TOKEN_ID}, found one that is not")


def packed(tokens: vec[i32]) -> bytes:
    writer = BytesWriter()
    for token in tokens:
        write_i32_le(writer, token)
    return writer.getvalue()


def encode_extra(extra_hash: int | None) -> bytes:
    """Encode an extra hash, any integer; different ones differ."""
    if extra_hash is None:
        return b""
    size = extra_hash.bit_length() // 8 + 1
    return b"E" + extra_hash.to_bytes(size, "little", signed=True)


def read_hash(content_hash: bytes) -> tuple[i64, i64]:
    """Return a content hash as two words; raise an `InvalidArgumentError` unless it is 16 bytes."""
    if not isinstance(content_hash, bytes) or len(content_hash) != 16:
        raise InvalidArgumentError(f"block_hashes: a content hash is 16 bytes, not {content_hash!r}")
    return read_i64_le(content_hash, 0), read_i64_le(content_hash, 8)


def hash_tokens(parent: bytes | None, token_ids: list[int], extra_hash: int | None) -> bytes:
    """Return the content hash of a full block with these tokens after the block with the hash `parent`, or first.

    Complexity: O(tokens).

    Raises:
        InvalidArgumentError: a token is out of range, or the parent's hash is not 16 bytes.
    """
    low: i64 = 0
    high: i64 = 0
    if parent is not None:
        low, high = read_hash(parent)
    low, high = _HASHER.next_words(low, high, packed(with_tokens(vec[i32](), token_ids)), encode_extra(extra_hash))
    return word_bytes(low, high)


class PoolBlock(Block):
    """A block of one sequence, of either kind: its tokens, packed, and a place in a pool.

    Copies share the tokens of a full block, which change no more, and have their own of another.
    """

    def __init__(
        self,
        prev_block: Block | None,
        token_ids: list[int],
        block_size: int,
        allocator: BlockAllocator,
        block_id: int | None = None,
        computed: bool = False,
        extra_hash: int | None = None,
    ) -> None:
        """Make a block as `Block.Factory` describes.

        Raises:
            InvalidArgumentError: more tokens than slots, or one is out of range.
        """
        if block_size < 1:
            integer("block_size", block_size, 1)
        if len(token_ids) > block_size:
            raise InvalidArgumentError(f"token_ids: a block has {block_size} slots, {len(token_ids)} tokens were given")
        self._prev: Block | None = prev_block
        self._allocator: BlockAllocator = allocator
        self._size: i64 = block_size
        self._tokens: vec[i32] = vec[i32]()
        if token_ids:
            self._tokens = self._written(token_ids)
        self._mark: i64 = 0 if block_id is None else block_id + 1
        self._computed: bool = computed
        self._accessed = -1.0
        self._extra: int | None = extra_hash
        self._depth: i64 = prev_block._depth + 1 if isinstance(prev_block, PoolBlock) else 0
        self._is_hashed = False
        self._low: i64 = 0
        self._high: i64 = 0

    def append_token_ids(self, token_ids: list[int]) -> None:
        """Write tokens to the empty slots; a physical block that others hold too is copied first. law: PAGE-11.

        Complexity: O(block_size).

        Raises:
            InvalidArgumentError: more tokens than empty slots, or one is out of range.
            NoFreeBlocksError: it has to be copied and no block is free.
            BlockError: it has to be copied, and is itself a copy still to be made.
        """
        # Also where it is full or freed: to write nothing changes nothing.
        if not token_ids:
            return
        if i64(len(self._tokens)) + i64(len(token_ids)) > self._size:
            raise InvalidArgumentError(
                f"token_ids: {len(token_ids)} tokens do not fit into {self.num_empty_slots} empty slots"
            )
        # Before the block is copied, so that a wrong token leaves everything as it was.
        tokens = self._written(token_ids)
        if self._mark != 0:
            owner = self._allocator
            if isinstance(owner, PoolAllocator):
                owner.make_writable(self)
            else:
                place = owner.cow_block_if_not_appendable(self)
                self._mark = 0 if place is None else place + 1
        self._tokens = tokens

    def _written(self, token_ids: list[int]) -> vec[i32]:
        """Return its tokens with others behind them; the first bring room for those that follow. O(token_ids)."""
        if len(self._tokens) > 0:
            return with_tokens(self._tokens, token_ids)
        return with_tokens(vec[i32](capacity=max(len(token_ids), min(int(self._size), ROOM))), token_ids)

    @property
    def block_id(self) -> int | None:
        return None if self._mark == 0 else int(self._mark - 1)

    @block_id.setter
    def block_id(self, value: int | None) -> None:
        owner = self._allocator
        if isinstance(owner, PoolAllocator):
            owner.num_moves += 1
        self._mark = 0 if value is None else value + 1

    @property
    def token_ids(self) -> list[int]:
        return [int(token) for token in self._tokens]

    @property
    def num_tokens_total(self) -> int:
        """Tokens in it and in all blocks before it. O(blocks before)."""
        total = 0
        block: Block | None = self
        while isinstance(block, PoolBlock):
            total += len(block._tokens)
            block = block._prev
        return total if block is None else total + block.num_tokens_total

    @property
    def num_empty_slots(self) -> int:
        return int(self._size) - len(self._tokens)

    @property
    def is_full(self) -> bool:
        return self.is_filled()

    def is_filled(self) -> bool:
        return i64(len(self._tokens)) == self._size

    @property
    def prev_block(self) -> Block | None:
        return self._prev

    @property
    def extra_hash(self) -> int | None:
        return self._extra

    @property
    def computed(self) -> bool:
        return self._computed

    @computed.setter
    def computed(self, value: bool) -> None:
        self._computed = value

    @property
    def last_accessed(self) -> float:
        return self._accessed

    @last_accessed.setter
    def last_accessed(self, value: float) -> None:
        self._accessed = value

    @property
    def content_hash(self) -> bytes | None:
        """Hash of all tokens up to the block's end, 16 bytes; None until it is full. Computed once, O(block_size)."""
        return word_bytes(self._low, self._high) if self.has_hash() else None

    def has_hash(self) -> bool:
        """Hash the content, and that of blocks before it, if not done; False unless all of them are full."""
        if self._is_hashed:
            return True
        chain: list[PoolBlock] = []
        block: Block | None = self
        while isinstance(block, PoolBlock) and not block._is_hashed:
            if not block.is_filled():
                return False
            chain.append(block)
            block = block._prev
        low: i64 = 0
        high: i64 = 0
        if isinstance(block, PoolBlock):
            low = block._low
            high = block._high
        elif block is not None:
            before = block.content_hash
            if before is None:
                return False
            low, high = read_hash(before)
        at: i64 = len(chain)
        while at > 0:
            at -= 1
            link = chain[at]
            low, high = _HASHER.next_words(low, high, packed(link._tokens), encode_extra(link._extra))
            link._low = low
            link._high = high
            link._is_hashed = True
        return True

    def copy_after(self, prev_block: Block | None, allocator: PoolAllocator) -> PoolBlock:
        """Return a copy that follows another block, in another allocator of its kind or the same. O(1)."""
        twin = allocator.make_block(prev_block, _NO_TOKENS, self._extra)
        twin._tokens = self._tokens if self.is_filled() else self._tokens[:]
        twin._mark = self._mark
        twin._computed = self._computed
        twin._accessed = self._accessed
        twin._depth = self._depth
        if self._is_hashed:
            twin._is_hashed = True
            twin._low = self._low
            twin._high = self._high
        return twin

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.block_id}, tokens={len(self._tokens)}/{self._size})"


class PoolAllocator(BlockAllocator):
    """The blocks of one device; the base of both kinds.

    Attributes:
        pool: who holds what.
        null: the null block, once it was taken.
        num_moves: how often a block that is held got another id, or was released by itself.
    """

    def __init__(self, num_blocks: int, block_size: int, first_id: int, by_access: bool) -> None:
        integer("num_blocks", num_blocks, 0, MAX_BLOCKS)
        integer("first_id", first_id, 0, MAX_BLOCKS)
        integer("block_size", block_size, 1)
        self._size: i64 = block_size
        self.pool = DevicePool(num_blocks, first_id, by_access)
        self.null: NullBlock | None = None
        self.num_moves: i64 = 0

    def copy_to(self, twin: PoolAllocator) -> None:
        """Make another allocator of this kind like this one, without the blocks handed out. O(num_blocks)."""
        twin._size = self._size
        twin.pool = self.pool.copy()
        twin.null = self.null
        twin.num_moves = self.num_moves

    # ------------------------------------------------------------------ what the kinds differ in

    def copy(self) -> PoolAllocator:
        raise NotImplementedError

    def make_block(self, prev_block: Block | None, token_ids: list[int], extra_hash: int | None) -> PoolBlock:
        """Return a block without a place."""
        raise NotImplementedError

    def known(self, block: PoolBlock) -> i64:
        """Return the mark of the block here that is found by a full block's content, or 0."""
        return 0

    def known_filled(self, block: PoolBlock, token_ids: list[int]) -> i64:
        """Return the mark of the block that a shared one gives way to when these tokens fill it, or 0."""
        return 0

    def settle(self, block: PoolBlock) -> None:
        """Publish or share a block that has become full."""

    def count_query(self, hit: bool) -> None:
        """Note that a full block was asked for by its content."""

    # ------------------------------------------------------------------ taking and releasing

    @property
    def block_size(self) -> int:
        return int(self._size)

    def allocate_mutable_block(self, prev_block: Block | None, extra_hash: int | None = None) -> Block:
        self.require_free(1)
        block = self.make_block(prev_block, _NO_TOKENS, extra_hash)
        block._mark = self.pool.take_mark()
        return block

    def allocate_immutable_block(
        self, prev_block: Block | None, token_ids: list[int], extra_hash: int | None = None
    ) -> Block:
        return self.allocate_immutable_blocks(prev_block, [token_ids], extra_hash)[0]

    def allocate_immutable_blocks(
        self, prev_block: Block | None, block_token_ids: list[list[int]], extra_hash: int | None = None
    ) -> list[Block]:
        made = self._make_full(prev_block, block_token_ids, extra_hash)
        # Known content takes no free block; that is counted only where it matters.
        if i64(len(made)) > self.pool.num_free():
            self.require_free(self._num_to_take(made))
        blocks: list[Block] = []
        for block in made:
            self.count_query(not self._place(block))
            blocks.append(block)
        return blocks

    def get_num_blocks_to_take(
        self, prev_block: Block | None, block_token_ids: list[list[int]], extra_hash: int | None
    ) -> int:
        return int(self._num_to_take(self._make_full(prev_block, block_token_ids, extra_hash)))

    def _make_full(
        self, prev_block: Block | None, block_token_ids: list[list[int]], extra_hash: int | None
    ) -> list[PoolBlock]:
        made: list[PoolBlock] = []
        prev = prev_block
        for token_ids in block_token_ids:
            if i64(len(token_ids)) != self._size:
                raise InvalidArgumentError(
                    f"token_ids: an immutable block has {self._size} tokens, {len(token_ids)} were given"
                )
            block = self.make_block(prev, token_ids, extra_hash)
            made.append(block)
            prev = block
        return made

    def _num_to_take(self, blocks: list[PoolBlock]) -> i64:
        count: i64 = 0
        for block in blocks:
            if self.takes_one(block):
                count += 1
        return count

    def takes_one(self, block: PoolBlock) -> bool:
        """Return whether giving a block a place here takes a free one: it is unknown, or known and free. O(1)."""
        mark = self.known(block)
        return mark == 0 or self.pool.is_free(mark) or not self.may_adopt(mark, block)

    def may_adopt(self, mark: i64, block: PoolBlock) -> bool:
        """Return whether a known block may take another's place: nothing computed is lost by it. O(1). law: PAGE-17."""
        if self.pool.is_computed(mark):
            return True
        owner = block._allocator
        return block._mark == 0 or not isinstance(owner, PoolAllocator) or not owner.pool.has_data(block._mark)

    def _place(self, block: PoolBlock) -> bool:
        """Give a block a place here, one of its content if that is known; return whether a new one was taken."""
        pool = self.pool
        mark = self.known(block)
        adopts = mark != 0 and self.may_adopt(mark, block)
        block._allocator = self
        if adopts:
            pool.hold_one(mark)
            block._mark = mark
            return False
        block._mark = pool.take_mark()
        if block.is_filled() and self.known(block) == 0:  # what was known may just have been taken
            self.settle(block)
        return True

    def free(self, block: Block) -> None:
        mark: i64 = block._mark if isinstance(block, PoolBlock) else 0
        self.let_go(block)
        self.num_moves += 1
        # As in the original: who frees blocks one by one has computed them. Tables know.
        if mark != 0 and self.pool.is_free(mark) and self.pool.is_known(mark):
            self.pool.note_computed(mark, True)

    def let_go(self, block: Block) -> None:
        """Release a block of a table, which knows that it does."""
        if isinstance(block, NullBlock):
            self._require_null(block)
            return
        own = self.own(block)
        self.pool.release_one(own._mark)
        own._mark = 0

    def fork(self, last_block: Block) -> list[Block]:
        own = self.own(last_block)
        chain: list[PoolBlock] = [own]
        ids = vec[i32]([i32(own._mark - self.pool.first_id)])
        before = own._prev
        while before is not None:
            if not isinstance(before, PoolBlock):
                raise BlockError(f"last_block: {before!r}, before it, is not a block of this allocator")
            if before._mark != 0:
                ids = append(ids, i32(self.own(before)._mark - self.pool.first_id))
            chain.append(before)
            before = before._prev
        # All at once, so that an error in the middle leaves no count raised.
        self.pool._touch_entries(ids)
        twins: list[Block] = []
        prev: PoolBlock | None = None
        at: i64 = len(chain)
        while at > 0:
            at -= 1
            prev = chain[at].copy_after(prev, self)
            twins.append(prev)
        return twins

    # ------------------------------------------------------------------ writing

    def cow_block_if_not_appendable(self, block: Block) -> int | None:
        # law: PAGE-11, PAGE-12
        own = self.own(block)
        self.make_writable(own)
        return int(own._mark - 1)

    def make_writable(self, block: PoolBlock) -> None:
        own = self.own(block)
        pool = self.pool
        if pool.sharers(own._mark) > 1:
            self.require_no_copy(own._mark)
            self.require_free(1)
            own._mark = pool.copy_one(own._mark)
            self.num_moves += 1

    def require_no_copy(self, mark: i64) -> None:
        """Raise `BlockError` if a block is the target of a copy to come: a copy of it could not be made at once."""
        # law: PAGE-8
        if self.pool.is_copy_target(mark):
            raise BlockError(f"block: {mark - 1} is a copy still to be made; call clear_copy_on_writes first")

    def promote_to_immutable_block(self, block: Block) -> int:
        own = self.own(block)
        if not own.is_full:
            raise BlockError(f"block: {own!r} is not full, so it is still mutable")
        self.settle(own)
        return int(own._mark - 1)

    def clear_copy_on_writes(self) -> list[tuple[int, int]]:
        return self.pool.take_pairs()

    # ------------------------------------------------------------------ moving

    def swap_out(self, blocks: list[Block]) -> None:
        moving = self.moving(blocks)
        if len({id(block) for block in moving}) != len(moving):
            raise BlockError("blocks: one of them is given twice")
        self.num_moves += 1
        for block in moving:
            self.pool.release_one(block._mark)
            block._mark = 0

    def swap_in(self, blocks: list[Block]) -> None:
        coming: list[PoolBlock] = []
        for block in blocks:
            if isinstance(block, NullBlock):
                continue
            if not isinstance(block, PoolBlock) or block._mark != 0:
                raise BlockError(f"blocks: {block!r} has a place already; release it with swap_out")
            coming.append(block)
        self.require_free(self._num_to_take(coming))
        for mover in coming:
            self._place(mover)

    def moving(self, blocks: list[Block]) -> list[PoolBlock]:
        """Return the blocks but the null ones, checked to be held here and free to move. O(blocks)."""
        moving: list[PoolBlock] = []
        pool = self.pool
        for block in blocks:
            if isinstance(block, NullBlock):
                continue
            own = self.own(block)
            if pool.is_copy_end(own._mark):
                raise BlockError(f"blocks: {own!r} has a copy still to be made; call clear_copy_on_writes first")
            moving.append(own)
        return moving

    def move_here(self, blocks: list[PoolBlock], source: PoolAllocator) -> dict[int, int]:
        """Move blocks from another device: each distinct one once, sharing kept; return the ids to copy. O(blocks).

        law: PAGE-15.

        Raises:
            NoFreeBlocksError: not enough blocks are free here; nothing has moved.
        """
        pool = self.pool
        # Counted only where it matters: with enough free blocks each may take its own.
        if i64(len(blocks)) > pool.num_free():
            # Blocks that share an id move once, and share the new one.
            distinct = {int(block._mark): block for block in blocks}
            self.require_free(self._num_to_take(list(distinct.values())))
        origin = source.pool
        places: dict[int, int] = {}
        self.num_moves += 1
        pairs: dict[int, int] = {}
        for block in blocks:
            if block._allocator is self:  # given twice
                continue
            before = int(block._mark)
            place: i64 = places.get(before, 0)
            if place != 0:
                pool.hold_one(place)
                block._mark = place
                block._allocator = self
            elif self._place(block):
                pool.carry_computed(block._mark, origin, before)
                places[before] = int(block._mark)
                pairs[before - 1] = int(block._mark - 1)
            else:
                places[before] = int(block._mark)
            origin.release_one(before)
        return pairs

    # ------------------------------------------------------------------ counts

    def get_num_total_blocks(self) -> int:
        return int(self.pool.num_total())

    def get_num_free_blocks(self) -> int:
        return int(self.pool.num_free())

    def get_num_full_blocks_touched(self, blocks: list[Block]) -> int:
        seen: set[int] = set()
        touched = 0
        for block in blocks:
            if not isinstance(block, PoolBlock) or not block.is_full:
                continue
            if block._mark != 0:
                mark = int(block._mark)
                if mark in seen:
                    continue
                seen.add(mark)
            if self.takes_one(block):
                touched += 1
        return touched

    def get_physical_block_id(self, absolute_id: int) -> int:
        self.require_id(absolute_id)
        return absolute_id - int(self.pool.first_id)

    @property
    def all_block_ids(self) -> frozenset[int]:
        first = int(self.pool.first_id)
        return frozenset(range(first, first + int(self.pool.num_total())))

    def has_id(self, absolute_id: int) -> bool:
        first = int(self.pool.first_id)
        return first <= absolute_id < first + int(self.pool.num_total())

    # ------------------------------------------------------------------ what input must be

    def own(self, block: Block) -> PoolBlock:
        """Return a block, checked to be one that holds something here. O(1).

        Raises:
            BlockError: it is the null block, foreign, or freed.
        """
        if isinstance(block, PoolBlock) and block._allocator is self and self.pool.is_held(block._mark):
            return block
        if isinstance(block, NullBlock):
            raise BlockError(f"block: {block.block_id} is the null block, nothing is done with it")
        if isinstance(block, PoolBlock) and block._allocator is self:
            raise BlockError(f"block: {block!r} holds nothing: it was freed")
        raise BlockError(f"block: {block!r} is not a block of this allocator")

    def require_free(self, count: i64) -> None:
        if count > self.pool.num_free():
            raise NoFreeBlocksError(f"{count} blocks are needed, {self.pool.num_free()} are free")

    def require_id(self, absolute_id: int) -> None:
        if not self.has_id(absolute_id):
            raise BlockError(f"block_id: {absolute_id!r} is not a block of this device")

    def require_known(self, block_ids: list[int]) -> None:
        """Raise `BlockError` unless accesses to all these can be noted."""

    def _require_null(self, block: NullBlock) -> None:
        if block is not self.null:
            raise BlockError(f"block: {block.block_id} is the null block of another allocator")

    def allocate_or_get_null_block(self) -> NullBlock:
        null = self.null
        if null is None:
            self.require_free(1)
            null = NullBlock(self.pool.take_null())
            self.null = null
        return null
