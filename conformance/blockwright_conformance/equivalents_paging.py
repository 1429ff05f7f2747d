"""Mutants of the block tables that nothing can tell from the original, each with the reason."""

from .mutant_realm import Rule

GROUPS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    (
        "a shortcut: what does not take it goes the long way, which does the same",
        "paging/block_table.py BlockTable.append_token_ids",
        "if missing <= 0 and dead <= self._num_null and (stop <= (first + 1) * size)",
        (
            "if missing < 0 and dead <= self._num_null and (stop <= (first + 1) * size)",
            "if missing <= -1 and dead <= self._num_null and (stop <= (first + 1) * size)",
            "if missing <= 0 and dead < self._num_null and (stop <= (first + 1) * size)",
            "if missing <= 0 and dead <= self._num_null and (stop < (first + 1) * size)",
            "if missing <= 0 and dead <= self._num_null and (stop <= (first + 1) // size)",
            "if missing <= 0 and dead <= self._num_null and (stop <= (first - 1) * size)",
            "if missing <= 0 and dead <= self._num_null and (stop <= (first + 0) * size)",
        ),
    ),
    (
        "only whether there is room at once is asked first; if in doubt the blocks are counted",
        "paging/block_table.py BlockTable.allocate",
        "if len(chunks) + rest > free",
        ("if len(chunks) + rest >= free",),
    ),
    (
        "only whether there is room at once is asked first; if in doubt the blocks are counted",
        "paging/pool_allocator.py PoolAllocator.allocate_immutable_blocks",
        "if i64(len(made)) > self.pool.num_free()",
        ("if i64(len(made)) >= self.pool.num_free()",),
    ),
    (
        "only whether there is room at once is asked first; if in doubt the blocks are counted",
        "paging/pool_allocator.py PoolAllocator.move_here",
        "if i64(len(blocks)) > pool.num_free()",
        ("if i64(len(blocks)) >= pool.num_free()",),
    ),
    (
        "read only where there are blocks: allocate, update, fork and copy_onto have written it by then",
        "paging/block_table.py BlockTable.__init__",
        "self._num_null: i64 = 0",
        (
            "self._num_null: i64 = 1",
            "self._num_null: i64 = -1",
        ),
    ),
    (
        "a table without blocks has no null entries: __init__, free and an update have counted none",
        "paging/block_table.py BlockTable.allocate",
        "self._num_null = 0",
        ("pass",),
    ),
    (
        "read only where there are blocks: allocate and update write it before",
        "paging/block_table.py BlockTable.free",
        "self._num_null = 0",
        (
            "pass",
            "self._num_null = 1",
            "self._num_null = -1",
        ),
    ),
    (
        "no ids are remembered yet, so that it does not matter whether they are thought to be current",
        "paging/block_table.py BlockTable.__init__",
        "self._moves: int = -1",
        (
            "self._moves: int = 1",
            "self._moves: int = -2",
            "self._moves: int = -0",
        ),
    ),
    (
        "whether a copy is made of a list that is only read",
        "paging/block_table.py BlockTable.append_token_ids",
        "tokens: list[int] = token_ids if isinstance(token_ids, list) else list(token_ids)",
        ("tokens: list[int] = token_ids if not isinstance(token_ids, list) else list(token_ids)",),
    ),
    (
        "whether a copy is made of a list that is only read",
        "paging/block_table.py checked",
        "tokens: list[int] = token_ids if isinstance(token_ids, list) else list(token_ids)",
        ("tokens: list[int] = token_ids if not isinstance(token_ids, list) else list(token_ids)",),
    ),
    (
        "any negative number says that nothing is adopted",
        "paging/block_table.py BlockTable.append_token_ids",
        "adopted = -1",
        ("adopted = -2",),
    ),
    (
        "one round more, in which no tokens are left",
        "paging/block_table.py BlockTable.append_token_ids",
        "while at < stop",
        ("while at <= stop",),
    ),
    (
        "with nothing missing the call below asks for no room and adds no entry",
        "paging/block_table.py BlockTable.ensure_num_empty_slots",
        "if missing > 0",
        (
            "if missing >= 0",
            "if missing > -1",
        ),
    ),
    (
        "ids are only remembered: a table that remembers none, or thinks that they are old, asks its blocks",
        "paging/block_table.py BlockTable.fork",
        "child._ids = self._ids[:]",
        ("pass",),
    ),
    (
        "ids are only remembered: a table that remembers none, or thinks that they are old, asks its blocks",
        "paging/block_table.py BlockTable.fork",
        "child._moves = self._moves",
        ("pass",),
    ),
    (
        "ids are only remembered: a table that thinks that they are old asks its blocks",
        "paging/block_table.py BlockTable.physical_block_ids",
        "if moves < 0 or moves != self._moves",
        (
            "if moves <= 0 or moves != self._moves",
            "if moves < 1 or moves != self._moves",
        ),
    ),
    (
        "ids are only remembered: a table that thinks that they are old asks its blocks",
        "paging/block_table.py BlockTable.physical_block_ids",
        "self._moves = moves",
        ("pass",),
    ),
    (
        "ids are only remembered: a table that thinks that they are old asks its blocks",
        "paging/block_table.py BlockTable.physical_block_ids",
        "self._moves = -1",
        ("self._moves = -2",),
    ),
    (
        "the two are added",
        "paging/block_table.py BlockTable.get_num_blocks_touched_by_append_slots",
        "return int(self.num_touched(len(token_ids), num_lookahead_slots))",
        ("return int(self.num_touched(num_lookahead_slots, len(token_ids)))",),
    ),
    (
        "the two are added",
        "paging/block_manager.py SelfAttnBlockSpaceManager._num_touched",
        "return int(table.num_touched(unseen, num_lookahead_slots))",
        ("return int(table.num_touched(num_lookahead_slots, unseen))",),
    ),
    (
        "without a window nothing is dead, and no entry is dropped for a number below those that are null",
        "paging/block_table.py BlockTable._num_dead",
        "return 0",
        ("return -1",),
    ),
    (
        "a window is at least 1, and no more than num_full tokens are computed: dead is below both bounds",
        "paging/block_table.py BlockTable._num_dead",
        "return max(self._num_null, min(dead, self._num_full // self._size, i64(len(self._blocks)) - 1))",
        (
            "return max(self._num_null, min(dead, self._num_full * self._size, i64(len(self._blocks)) - 1))",
            "return max(self._num_null, min(dead, self._num_full // self._size, i64(len(self._blocks)) + 1))",
            "return max(self._num_null, min(dead, self._num_full // self._size, i64(len(self._blocks)) - 0))",
        ),
    ),
    (
        "room for one byte more or less than needed: integers of one length differ in their bytes, others in "
        "their length",
        "paging/pool_allocator.py encode_extra",
        "size = extra_hash.bit_length() // 8 + 1",
        (
            "size = extra_hash.bit_length() * 8 + 1",
            "size = extra_hash.bit_length() // 7 + 1",
            "size = extra_hash.bit_length() // 8 + 2",
        ),
    ),
    (
        "depths are only compared, and still grow along a sequence, from one number",
        "paging/pool_allocator.py PoolBlock.__init__",
        "self._depth = prev_block._depth + 1 if isinstance(prev_block, PoolBlock) else 0",
        (
            "self._depth = prev_block._depth + 2 if isinstance(prev_block, PoolBlock) else 0",
            "self._depth = prev_block._depth + 1 if isinstance(prev_block, PoolBlock) else 1",
            "self._depth = prev_block._depth + 1 if isinstance(prev_block, PoolBlock) else -1",
        ),
    ),
    (
        "read only once the block is hashed, which writes it",
        "paging/pool_allocator.py PoolBlock.__init__",
        "self._low = 0",
        (
            "self._low = 1",
            "self._low = -1",
        ),
    ),
    (
        "read only once the block is hashed, which writes it",
        "paging/pool_allocator.py PoolBlock.__init__",
        "self._high = 0",
        (
            "self._high = 1",
            "self._high = -1",
        ),
    ),
    (
        "the hash is only remembered: it is computed again",
        "paging/pool_allocator.py PoolBlock.has_hash",
        "return True",
        ("pass",),
    ),
    (
        "the hash is only remembered: it is computed again",
        "paging/pool_allocator.py PoolBlock.has_hash",
        "while isinstance(block, PoolBlock) and (not block._is_hashed)",
        ("while isinstance(block, PoolBlock)",),
    ),
    (
        "the hash is only remembered: it is computed again",
        "paging/pool_allocator.py PoolBlock.has_hash",
        "link._is_hashed = True",
        (
            "pass",
            "link._is_hashed = False",
        ),
    ),
    (
        "the counter is only compared with what a table saw last: any other number says that something moved",
        "paging/pool_allocator.py PoolBlock.block_id",
        "owner.num_moves += 1",
        ("owner.num_moves += 2",),
    ),
    (
        "the counter is only compared with what a table saw last: any other number says that something moved",
        "paging/pool_allocator.py PoolAllocator.free",
        "self.num_moves += 1",
        ("self.num_moves += 2",),
    ),
    (
        "the counter is only compared with what a table saw last: any other number says that something moved",
        "paging/pool_allocator.py PoolAllocator.make_writable",
        "self.num_moves += 1",
        ("self.num_moves += 2",),
    ),
    (
        "the counter is only compared with what a table saw last: any other number says that something moved",
        "paging/pool_allocator.py PoolAllocator.swap_out",
        "self.num_moves += 1",
        ("self.num_moves += 2",),
    ),
    (
        "the counter is only compared with what a table saw last: any other number says that something moved",
        "paging/pool_allocator.py PoolAllocator.move_here",
        "self.num_moves += 1",
        ("self.num_moves += 2",),
    ),
    (
        "the counter is only compared with what a table saw last: any other number says that something moved",
        "paging/prefix_caching.py PrefixCachingBlockAllocator.adopt_filled",
        "self.num_moves += 1",
        ("self.num_moves += 2",),
    ),
    (
        "the counter is only compared with what a table saw last: any other number says that something moved",
        "paging/prefix_caching.py PrefixCachingBlockAllocator.settle",
        "self.num_moves += 1",
        ("self.num_moves += 2",),
    ),
    (
        "the counter is only compared with what a table saw last: any other number says that something moved",
        "paging/pool_allocator.py PoolAllocator.__init__",
        "self.num_moves = 0",
        ("self.num_moves = 1",),
    ),
    (
        "the counter is only compared with what a table saw last: any other number says that something moved",
        "paging/cpu_gpu.py CpuGpuBlockAllocator.num_moves",
        "return int(self._gpu.num_moves + self._cpu.num_moves)",
        ("return int(self._gpu.num_moves + self._cpu.num_moves) + 1",),
    ),
    (
        "one block is asked for, so that the first is the last",
        "paging/pool_allocator.py PoolAllocator.allocate_immutable_block",
        "return self.allocate_immutable_blocks(prev_block, [token_ids], extra_hash)[0]",
        ("return self.allocate_immutable_blocks(prev_block, [token_ids], extra_hash)[-1]",),
    ),
    (
        "the vector has one entry",
        "paging/device_pool.py DevicePool.hold_one",
        "self._one[0] = i32(block)",
        ("self._one[-1] = i32(block)",),
    ),
    (
        "the vector has one entry",
        "paging/device_pool.py DevicePool.release_one",
        "self._one[0] = i32(mark - self.first_id)",
        ("self._one[-1] = i32(mark - self.first_id)",),
    ),
    (
        "the second entry stays 0, which no call takes for a block",
        "paging/device_pool.py DevicePool.__init__",
        "self._one: vec[i32] = zeros32(1)",
        ("self._one: vec[i32] = zeros32(2)",),
    ),
    (
        "room for a block more than there are",
        "paging/device_pool.py DevicePool.__init__",
        "order = AccessOrder(num_blocks + 1) if by_access else None",
        ("order = AccessOrder(num_blocks + 2) if by_access else None",),
    ),
    (
        "room for a block more than there are",
        "paging/device_pool.py DevicePool.__init__",
        "self._filled_in = zeros64(num_blocks + 1)",
        ("self._filled_in = zeros64(num_blocks + 2)",),
    ),
    (
        "epochs are only compared, and what is known to be computed has 0",
        "paging/device_pool.py DevicePool.__init__",
        "self._epoch = 1",
        ("self._epoch = 2",),
    ),
    (
        "epochs are only compared, and what is known to be computed has 0",
        "paging/device_pool.py DevicePool.end_epoch",
        "self._epoch += 1",
        ("self._epoch += 2",),
    ),
    (
        "epochs begin with 1: any number below says that the block is computed",
        "paging/device_pool.py DevicePool.hold_one",
        "self._filled_in[block] = 0",
        ("self._filled_in[block] = -1",),
    ),
    (
        "a function that ends returns None",
        "paging/null_block.py NullBlock.prev_block",
        "return None",
        ("pass",),
    ),
    (
        "a function that ends returns None",
        "paging/null_block.py NullBlock.extra_hash",
        "return None",
        ("pass",),
    ),
    (
        "a function that ends returns None",
        "paging/null_block.py NullBlock.content_hash",
        "return None",
        ("pass",),
    ),
    (
        "a function that ends returns None",
        "paging/interfaces.py DeviceAwareBlockAllocator.own_blocks",
        "return",
        ("pass",),
    ),
    (
        "the first list begins with itself",
        "paging/prefix_caching.py PrefixCachingBlockAllocator.get_common_computed_block_ids",
        "for ids in computed_seq_block_ids[1:]",
        ("for ids in computed_seq_block_ids[0:]",),
    ),
    (
        "what follows does the same for blocks of the GPU alone",
        "paging/cpu_gpu.py CpuGpuBlockAllocator.mark_blocks_as_accessed",
        "return",
        ("pass",),
    ),
    (
        "a single block that is not adopted is the first that is written, and then copies itself: no other call "
        "comes between",
        "paging/block_table.py BlockTable.append_token_ids",
        "if len(written) > 1 or adopted >= 0",
        (
            "if len(written) >= 1 or adopted >= 0",
            "if len(written) > 0 or adopted >= 0",
            "if len(written) > 1 or adopted >= -1",
        ),
    ),
    (
        "nobody ever holds block 0 of a `BlockStore`: its count stays 0",
        "paging/device_pool.py DevicePool.is_held",
        "return 0 < block < self._count and block != self.null and (self._ref[block] > 0)",
        (
            "return 0 <= block < self._count and block != self.null and (self._ref[block] > 0)",
            "return -1 < block < self._count and block != self.null and (self._ref[block] > 0)",
        ),
    ),
    (
        "copies are three numbers each: no place between two is the end of the list",
        "paging/device_pool.py DevicePool.take_pairs",
        "while at < i64(len(copies))",
        ("while at <= i64(len(copies))",),
    ),
    (
        "the group of a copy, which `take_pairs` and `check_holders` pass over; nothing else reads the copies of "
        "this pool",
        "paging/device_pool.py DevicePool.copy_one",
        "return self.copy_on_write(mark - self.first_id, 0) + self.first_id",
        (
            "return self.copy_on_write(mark - self.first_id, 1) + self.first_id",
            "return self.copy_on_write(mark - self.first_id, -1) + self.first_id",
        ),
    ),
    (
        "below 0 a table asks its blocks each time; from the second move on the sum of both devices is what it would "
        "be",
        "paging/pool_allocator.py PoolAllocator.__init__",
        "self.num_moves = 0",
        ("self.num_moves = -1",),
    ),
    (
        "blocks of one place have one content: where that was known, it is found again",
        "paging/pool_allocator.py PoolAllocator.move_here",
        "places[before] = int(block._mark)",
        ("pass #2",),
    ),
    (
        "a block that these tokens do not just fill has no hash, and so is not known",
        "paging/prefix_caching.py PrefixCachingBlockAllocator.known_filled",
        "if not token_ids or count != self._size or self.pool.sharers(block._mark) == 1",
        ("if not token_ids or self.pool.sharers(block._mark) == 1",),
    ),
    (
        "lengths are only compared, and still grow along a sequence, by one size for all",
        "paging/prefix_caching.py PrefixCachingBlockAllocator.settle",
        "pool.publish_words(block._mark, block._low, block._high, (block._depth + 1) * self._size)",
        (
            "pool.publish_words(block._mark, block._low, block._high, (block._depth - 1) * self._size)",
            "pool.publish_words(block._mark, block._low, block._high, (block._depth + 2) * self._size)",
            "pool.publish_words(block._mark, block._low, block._high, (block._depth + 0) * self._size)",
        ),
    ),
)
"""The reason, the function, the statement, and what may stand there instead."""

EQUIVALENT: dict[str, str] = {
    f"{where}: {before} -> {after}": reason for reason, where, before, changes in GROUPS for after in changes
}

RULES: tuple[Rule, ...] = (
    Rule(
        r"paging/device_pool\.py DevicePool\.copy: return DevicePool\(0, 0, False, source=self\) -> return "
        r"DevicePool\(.*, source=self\)",
        "a copy: where there is a source, nothing else that the constructor is given is read",
    ),
    Rule(
        r"paging/device_pool\.py DevicePool\.__init__: super\(\)\.__init__\(0, None, source\) -> "
        r"super\(\)\.__init__\((None, 0|-?1, None), source\)",
        "a copy: where there is a source, nothing else that the constructor is given is read",
    ),
    Rule(
        r"paging/(naive|prefix_caching)\.py \w+\.copy: return (\w+)\(0, 1, source=self\) -> return \2\(-?\d, "
        r"\d, source=self\)",
        "a copy: where there is a source, nothing else that the constructor is given is read",
    ),
    Rule(
        r"paging/(naive|prefix_caching)\.py \w+\.copy_after: return (\w+)\(prev_block, _NO_TOKENS, 0, "
        r"allocator, source=self\) -> return \2\(prev_block, (0, _NO_TOKENS|_NO_TOKENS, -?1), allocator, "
        r"source=self\)",
        "a copy: where there is a source, nothing else that the constructor is given is read",
    ),
)
"""Families of such mutants."""
