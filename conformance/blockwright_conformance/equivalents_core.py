"""Mutants of the core that nothing can tell from the original, each with the reason."""

from . import equivalents_managers
from .equivalents_running import RUNNING
from .mutant_realm import Rule

EQUIVALENT: dict[str, str] = {
    "core/group.py GroupTables.missing: if more > 1 and self._layout == LAST_STATE -> "
    "if more >= 1 and self._layout == LAST_STATE": "where more is 1, both return 1",
}

LISTED: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        (
            "any capacity of a power of two above the number of published blocks will do: block 0 is "
            "never published, so that one slot of as many as there are blocks is empty, and every "
            "probe ends"
        ),
        (
            ("core/index.py PrefixIndex.__init__: while capacity < 2 * num_blocks -> while capacity <= 2 * num_blocks"),
            ("core/index.py PrefixIndex.__init__: while capacity < 2 * num_blocks -> while capacity < 1 * num_blocks"),
        ),
    ),
    (
        "words beyond two per block are never read or written",
        (
            (
                "core/index.py PrefixIndex.__init__: self._words = zeros64(2 * num_blocks) -> "
                "self._words = zeros64(3 * num_blocks)"
            ),
        ),
    ),
    (
        ("block 0 is refused by the third condition: `older[0]` is 0, since the null block never gets a key"),
        (
            (
                "core/index.py PrefixIndex.match_run: if block <= 0 or block >= num_blocks or "
                "older[block] == 0 or (own[2 * block] != words[at]) or (own[2 * block + 1] != "
                "words[at + 1]) or (i64(groups[block]) != group) -> if block < 0 or block >= "
                "num_blocks or older[block] == 0 or (own[2 * block] != words[at]) or (own[2 * block +"
                " 1] != words[at + 1]) or (i64(groups[block]) != group)"
            ),
            (
                "core/index.py PrefixIndex.match_run: if block <= 0 or block >= num_blocks or "
                "older[block] == 0 or (own[2 * block] != words[at]) or (own[2 * block + 1] != "
                "words[at + 1]) or (i64(groups[block]) != group) -> if block <= -1 or block >= "
                "num_blocks or older[block] == 0 or (own[2 * block] != words[at]) or (own[2 * block +"
                " 1] != words[at + 1]) or (i64(groups[block]) != group)"
            ),
        ),
    ),
    (
        (
            "`_younger` of a block that is alone with its key, and of one without, is read by nobody "
            "but `next_duplicate`, for which 0 and the block itself both mean that none follows; "
            "`add` writes it again before a ring is made of it"
        ),
        (
            "core/index.py PrefixIndex.add: self._younger[block] = i32(block) -> pass",
            "core/index.py PrefixIndex.drop: self._younger[block] = 0 -> pass",
            "core/index.py PrefixIndex.drop: self._younger[block] = 0 -> self._younger[block] = 1",
            "core/index.py PrefixIndex.drop: self._younger[block] = 0 -> self._younger[block] = -1",
            "core/index.py PrefixIndex.clear: self._younger = zeros32(count) -> pass",
        ),
    ),
    (
        "where `oldest` is the block itself its own key, which is not erased, matches",
        (
            (
                "core/index.py PrefixIndex.drop: while oldest != block and (not (words[2 * oldest] =="
                " low and words[2 * oldest + 1] == high and (i64(self._groups[oldest]) == group))) ->"
                " while not (words[2 * oldest] == low and words[2 * oldest + 1] == high and "
                "(i64(self._groups[oldest]) == group))"
            ),
        ),
    ),
    (
        "`_mask` keeps every probe below the slot that is added",
        (
            (
                "core/index.py PrefixIndex.clear: self._slots = zeros32(self._mask + 1) -> "
                "self._slots = zeros32(self._mask + 2)"
            ),
        ),
    ),
    (
        (
            "keys without a request are only looked up (managers.py `find_longest_cache_hit`, pool.py"
            " `get_cached_block`), never published, so that `request` is never None here"
        ),
        (
            (
                "core/journal.py Journal.stored: if request is None or (events is None and "
                "self.evictions is None) -> if events is None and self.evictions is None"
            ),
        ),
    ),
    (
        (
            "as `request` is never None here (keys without one are only looked up), the digest of a "
            "block is noted although nothing is told; it is read only by `forgot`, after the same "
            "condition, and by `check`, under it"
        ),
        (
            (
                "core/journal.py Journal.stored: if request is None or (events is None and "
                "self.evictions is None) -> if request is None and (events is None and self.evictions"
                " is None)"
            ),
            "core/journal.py Journal.stored: return -> pass",
        ),
    ),
    (
        (
            "without the second condition the digest of a block is not noted only where a request is "
            "missing, which never is; where nothing is told it is noted, and read by nobody: `forgot`"
            " returns before, `check` asks first"
        ),
        (
            (
                "core/journal.py Journal.stored: if request is None or (events is None and "
                "self.evictions is None) -> if request is None"
            ),
        ),
    ),
    (
        (
            "the step from block 0 writes `_next[-1]`, which is 0 anyway, and `_prev[0]`, which is "
            "written after the loop"
        ),
        ("core/store.py BlockStore.__init__: block: i64 = 1 -> block: i64 = 0",),
    ),
    (
        "without an order an empty queue means that no block is free, which every caller has excluded",
        (
            (
                "core/store.py BlockStore.take_one: if self._order is not None and self._next[0] == 0"
                " -> if self._next[0] == 0"
            ),
        ),
    ),
    (
        (
            "a block with one holder is no end of a copy to come, which holds both of its ends beside"
            " their users: `_ends` is 0 there and nothing is taken off"
        ),
        (
            (
                "core/store.py BlockStore.num_sharers: if count > 1 and len(self._copies) > 0 -> if "
                "count > 0 and len(self._copies) > 0"
            ),
            (
                "core/store.py BlockStore.num_sharers: if count > 1 and len(self._copies) > 0 -> if "
                "count >= 1 and len(self._copies) > 0"
            ),
            (
                "core/store.py BlockStore.num_sharers: if count > 1 and len(self._copies) > 0 -> if "
                "len(self._copies) > 0"
            ),
        ),
    ),
    (
        "each copy to come is three numbers: there are none or at least three",
        (
            (
                "core/store.py BlockStore.num_sharers: if count > 1 and len(self._copies) > 0 -> if "
                "count > 1 and len(self._copies) > 1"
            ),
            ("core/store.py BlockStore.has_copies: return len(self._copies) > 0 -> return len(self._copies) > 1"),
            (
                "core/store.py BlockStore.is_destination: return len(self._copies) > 0 and "
                "self._ends[block] < 0 -> return len(self._copies) > 1 and self._ends[block] < 0"
            ),
        ),
    ),
    (
        "the entry at 0 is a group, which is passed over",
        ("core/store.py BlockStore.end_copies: at: i64 = 0 -> at: i64 = 1",),
    ),
    (
        "0 was passed over by the statement before",
        (
            "core/store.py BlockStore.end_copies: if copies < 0 -> if copies <= 0",
            "core/store.py BlockStore.end_copies: if copies < 0 -> if copies < 1",
        ),
    ),
    (
        ("without a journal `find` below is `_index.find`, so that the loop finds the same blocks one by one"),
        (
            (
                "core/store.py BlockStore.find_run: return self._index.find_run(keys.words, 2 * "
                "keys.units, group, ids, start, stop) -> pass"
            ),
        ),
    ),
    (
        "the null block has no key, so that the second condition ends the loop at 0 as well",
        (
            (
                "core/store.py BlockStore._rank: while tail != 0 and self._index.has_key(tail) -> "
                "while self._index.has_key(tail)"
            ),
            (
                "core/store.py BlockStore._rank: while tail != 0 and self._index.has_key(tail) -> "
                "while tail != -1 and self._index.has_key(tail)"
            ),
        ),
    ),
    (
        ("slots are compared with it, and a step that is taken has at least one, so that 0 and -1 are below alike"),
        ("core/tables.py GroupTable.__init__: self.quiet: i64 = 0 -> self.quiet: i64 = -1",),
    ),
    (
        (
            "written by the first growth of a table with states of drafts (running.py `_act`, for a "
            "new table's `quiet` is below any step), before `state_block` reads it for a worker, and "
            "copied by `copy`"
        ),
        (
            "core/tables.py GroupTable.__init__: self.num_read: i64 = 0 -> self.num_read: i64 = -1",
            "core/tables.py GroupTable.__init__: self.read_block: i64 = 0 -> self.read_block: i64 = 1",
            ("core/tables.py GroupTable.__init__: self.read_block: i64 = 0 -> self.read_block: i64 = -1"),
        ),
    ),
    (
        ("written before it is read wherever tables are made: by `_act` after `_admit`, by `fork`, and by `copy_for`"),
        (
            ("core/tables.py RequestTables.__init__: self.num_written: i64 = 0 -> self.num_written: i64 = 1"),
            ("core/tables.py RequestTables.__init__: self.num_written: i64 = 0 -> self.num_written: i64 = -1"),
            ("core/tables.py RequestTables.__init__: self.num_certain: i64 = 0 -> self.num_certain: i64 = 1"),
            ("core/tables.py RequestTables.__init__: self.num_certain: i64 = 0 -> self.num_certain: i64 = -1"),
            "core/tables.py RequestTables.__init__: self.quiet: i64 = 0 -> self.quiet: i64 = 1",
            "core/tables.py RequestTables.__init__: self.quiet: i64 = 0 -> self.quiet: i64 = -1",
            ("core/tables.py RequestTables.__init__: self.num_settled: i64 = 0 -> self.num_settled: i64 = 1"),
            ("core/tables.py RequestTables.__init__: self.num_settled: i64 = 0 -> self.num_settled: i64 = -1"),
            "core/tables.py RequestTables.__init__: self.trim_at: i64 = 0 -> self.trim_at: i64 = 1",
            "core/tables.py RequestTables.__init__: self.trim_at: i64 = 0 -> self.trim_at: i64 = -1",
        ),
    ),
    (
        "batches and steps are counted from 1, so that 0 and -1 stand before the first alike",
        (
            "core/tables.py RequestTables.__init__: self.batch: i64 = 0 -> self.batch: i64 = -1",
            ("core/tables.py RequestTables.__init__: self.last_step: i64 = 0 -> self.last_step: i64 = -1"),
        ),
    ),
    (
        "whatever is below 0 says that the run was not asked for",
        ("core/window.py Probe.__init__: self.run_end: i64 = -1 -> self.run_end: i64 = -2",),
    ),
    (
        (
            "a missing block stands as -1 so that it is not looked up twice; any number below 0 does "
            "that, and with 0 it is looked up again, in an index that does not change meanwhile"
        ),
        (
            "core/window.py Probe.cached: block = -1 -> pass",
            "core/window.py Probe.cached: block = -1 -> block = -2",
            "core/window.py Probe.cached: block = -1 -> block = -0",
            "core/window.py Probe.cached: if block == 0 -> if block == -1 #2",
        ),
    ),
    (
        "where the first count is 0 the run is looked up again, with the same result",
        (
            "core/window.py WindowRule.longest: if probe.run_end < 0 -> if probe.run_end <= 0",
            "core/window.py WindowRule.longest: if probe.run_end < 0 -> if probe.run_end < 1",
        ),
    ),
    (
        "a first position of 0 is given back as 0 by either branch",
        (
            "core/window.py SlidingRule.first_needed: if first < 0 -> if first <= 0",
            "core/window.py SlidingRule.first_needed: if first < 0 -> if first < 1",
        ),
    ),
    (
        "at least one start is looked at, and no number of blocks is below 0",
        ("core/window.py SlidingRule.peak: most: i64 = 0 -> most: i64 = -1",),
    ),
    (
        ("the tables here are never filled: neither the group's number nor the size of the pool is read by `peak`"),
        (
            (
                "core/peak.py most_blocks: tables = GroupTables(spec, BlockPool(2, enable_caching), "
                "0, spec.block_size) -> tables = GroupTables(spec, BlockPool(3, enable_caching), 0, "
                "spec.block_size)"
            ),
            (
                "core/peak.py most_blocks: tables = GroupTables(spec, BlockPool(2, enable_caching), "
                "0, spec.block_size) -> tables = GroupTables(spec, BlockPool(2, enable_caching), 1, "
                "spec.block_size)"
            ),
            (
                "core/peak.py most_blocks: tables = GroupTables(spec, BlockPool(2, enable_caching), "
                "0, spec.block_size) -> tables = GroupTables(spec, BlockPool(2, enable_caching), -1, "
                "spec.block_size)"
            ),
        ),
    ),
    (
        "neither the number of blocks nor the journal is read where there is a source",
        (
            (
                "core/pool.py BlockPool.__init__: super().__init__(0, None, source) -> "
                "super().__init__(-1, None, source)"
            ),
            ("core/pool.py BlockPool.__init__: super().__init__(0, None, source) -> super().__init__(1, None, source)"),
            ("core/pool.py BlockPool.__init__: super().__init__(0, None, source) -> super().__init__(None, 0, source)"),
            ("core/pool.py BlockPool.copy: return BlockPool(2, source=self) -> return BlockPool(3, source=self)"),
            ("core/pool.py BlockPool.copy: return BlockPool(2, source=self) -> return BlockPool(1, source=self)"),
        ),
    ),
    (
        "any number will do that equal objects share",
        (("core/pool.py KVCacheBlock.__hash__: return hash(int(self._id)) -> return hash(int(self._id)) + 1"),),
    ),
    (
        ("identities are only compared for equality, and the steps of the one list that counts them stay above 0"),
        (
            "core/request.py Request.__init__: _uids[0] += 1 -> _uids[-1] += 1",
            "core/request.py Request.__init__: _uids[0] += 1 -> _uids[0] += 2",
            ("core/request.py Request.__init__: self._uid: i64 = _uids[0] -> self._uid: i64 = _uids[-1]"),
            "core/request.py Request.fork: _uids[0] += 1 -> _uids[-1] += 1",
            "core/request.py Request.fork: _uids[0] += 1 -> _uids[0] += 2",
            "core/request.py Request.fork: child._uid = _uids[0] -> child._uid = _uids[-1]",
        ),
    ),
    (
        "owners are only compared for equality, and the one list that counts them only grows",
        (
            "core/running.py RunningRequests.__init__: _owners[0] += 1 -> _owners[-1] += 1",
            "core/running.py RunningRequests.__init__: _owners[0] += 1 -> _owners[0] += 2",
            (
                "core/running.py RunningRequests.__init__: self._owner: i64 = _owners[0] -> "
                "self._owner: i64 = _owners[-1]"
            ),
        ),
    ),
    (
        (
            "owners are only compared for equality, with each other and with 0 for none: counted down"
            " from 0 they differ as well"
        ),
        ("core/running.py RunningRequests.__init__: _owners[0] += 1 -> _owners[0] -= 1",),
    ),
    (
        "every word is written by `chain.extend` before it is read",
        (
            (
                "core/request.py Request._hash_new_blocks: words = vec[i64]([0] * (2 * full)) if i =="
                " 0 else extend(self._words, vec[i64]([0] * (2 * (full - i)))) -> words = "
                "vec[i64]([-1] * (2 * full)) if i == 0 else extend(self._words, vec[i64]([0] * (2 * "
                "(full - i))))"
            ),
            (
                "core/request.py Request._hash_new_blocks: words = vec[i64]([0] * (2 * full)) if i =="
                " 0 else extend(self._words, vec[i64]([0] * (2 * (full - i)))) -> words = "
                "vec[i64]([1] * (2 * full)) if i == 0 else extend(self._words, vec[i64]([0] * (2 * "
                "(full - i))))"
            ),
            (
                "core/request.py Request._hash_new_blocks: words = vec[i64]([0] * (2 * full)) if i =="
                " 0 else extend(self._words, vec[i64]([0] * (2 * (full - i)))) -> words = "
                "vec[i64]([0] * (2 * full)) if i == 0 else extend(self._words, vec[i64]([1] * (2 * "
                "(full - i))))"
            ),
            (
                "core/request.py Request._hash_new_blocks: words = vec[i64]([0] * (2 * full)) if i =="
                " 0 else extend(self._words, vec[i64]([0] * (2 * (full - i)))) -> words = "
                "vec[i64]([0] * (2 * full)) if i == 0 else extend(self._words, vec[i64]([-1] * (2 * "
                "(full - i))))"
            ),
        ),
    ),
    (
        "with no words before, `extend` of an empty vector makes the same one",
        (
            (
                "core/request.py Request._hash_new_blocks: words = vec[i64]([0] * (2 * full)) if i =="
                " 0 else extend(self._words, vec[i64]([0] * (2 * (full - i)))) -> words = "
                "vec[i64]([0] * (2 * full)) if i == -1 else extend(self._words, vec[i64]([0] * (2 * "
                "(full - i))))"
            ),
        ),
    ),
    (
        "with no whole block of the prompt left `chain.extend` is asked for none and does nothing",
        (
            (
                "core/request.py Request._hash_new_blocks: if i < in_prompt and (not self._mm_items) "
                "-> if i <= in_prompt and (not self._mm_items)"
            ),
        ),
    ),
    (
        (
            "a request whose block is not full yet goes on to hash no block: `full` is `_num_hashed`,"
            " nothing is added, and the copies that are put in place are equal"
        ),
        (
            "core/request.py Request._hash_new_blocks: return -> pass #2",
            (
                "core/request.py Request._hash_new_blocks: if known < (self._num_hashed + 1) * size "
                "-> if known < (self._num_hashed + 0) * size"
            ),
            (
                "core/request.py Request._hash_new_blocks: if known < (self._num_hashed + 1) * size "
                "-> if known < (self._num_hashed - 1) * size"
            ),
            (
                "core/request.py Request._hash_new_blocks: if known < (self._num_hashed + 1) * size "
                "-> if known < (self._num_hashed + 1) // size"
            ),
        ),
    ),
    (
        "the slow path below writes the same four bytes per token, one by one",
        (
            ("core/request.py Request.token_bytes: if stop <= self._num_prompt -> if stop < self._num_prompt"),
            "core/request.py Request.token_bytes: return self._prompt[start * 4:stop * 4] -> pass",
        ),
    ),
    (
        (
            "a content is only compared with others of the same pool, and any length that memory "
            "holds fits into 7 bytes and 9 as well as into 8"
        ),
        (
            (
                "core/request.py Request.prefix_content: head = len(self._root).to_bytes(8, 'little')"
                " + self._root + len(items).to_bytes(8, 'little') + items -> head = "
                "len(self._root).to_bytes(7, 'little') + self._root + len(items).to_bytes(8, "
                "'little') + items"
            ),
            (
                "core/request.py Request.prefix_content: head = len(self._root).to_bytes(8, 'little')"
                " + self._root + len(items).to_bytes(8, 'little') + items -> head = "
                "len(self._root).to_bytes(8, 'little') + self._root + len(items).to_bytes(7, "
                "'little') + items"
            ),
            (
                "core/request.py Request.prefix_content: head = len(self._root).to_bytes(8, 'little')"
                " + self._root + len(items).to_bytes(8, 'little') + items -> head = "
                "len(self._root).to_bytes(9, 'little') + self._root + len(items).to_bytes(8, "
                "'little') + items"
            ),
            (
                "core/request.py Request.prefix_content: head = len(self._root).to_bytes(8, 'little')"
                " + self._root + len(items).to_bytes(8, 'little') + items -> head = "
                "len(self._root).to_bytes(8, 'little') + self._root + len(items).to_bytes(9, "
                "'little') + items"
            ),
        ),
    ),
    (
        (
            "`grows` tells an uncompiled run, as that of mutants is, by a product that is not 0; so "
            "is this one. Compiled, the check that it asks for only repeats what the loop over 32-bit"
            " numbers has checked"
        ),
        (
            "core/request.py _pack_list: step: i64 = 1 << 61 -> step: i64 = 2 << 61",
            "core/request.py _pack_list: step: i64 = 1 << 61 -> step: i64 = 1 << 62",
            "core/request.py _pack_list: step: i64 = 1 << 61 -> step: i64 = 1 << 60",
            "core/request.py _pack_list: grows = step * 8 != 0 -> grows = step // 8 != 0",
            "core/request.py _pack_list: grows = step * 8 != 0 -> grows = step * 9 != 0",
            "core/request.py _pack_list: grows = step * 8 != 0 -> grows = step * 7 != 0",
            "core/request.py _pack_list: grows = step * 8 != 0 -> grows = step * 8 != 1",
            "core/request.py _pack_list: grows = step * 8 != 0 -> grows = step * 8 != -1",
            (
                "core/request.py _pack_list: if token < 0 or token > MAX_TOKEN_ID or (grows and (not "
                "isinstance(token, int))) -> if token < 0 or token > MAX_TOKEN_ID or (not "
                "isinstance(token, int))"
            ),
        ),
    ),
    (
        "all groups of a manager share one pool",
        ("core/explain.py explain: pool = managers[0].block_pool -> pool = managers[-1].block_pool",),
    ),
    (
        "after the lookup `block` is -1 or the id of a block, never 0",
        (
            "core/window.py Probe.cached: return block > 0 -> return block >= 0",
            "core/window.py Probe.cached: return block > 0 -> return block > -1",
        ),
    ),
    (
        "only its sign is read: an explanation looks at lengths, not at blocks",
        ("core/window.py Probe.restore: self._ids[i] = 1 -> self._ids[i] = 2",),
    ),
    (
        "`cached`, asked a statement before, leaves no 0",
        (
            (
                "core/window.py Probe.restore: if self._ids[i] > 0 and self.run_end == i -> if "
                "self._ids[i] >= 0 and self.run_end == i"
            ),
            (
                "core/window.py Probe.restore: if self._ids[i] > 0 and self.run_end == i -> if "
                "self._ids[i] > -1 and self.run_end == i"
            ),
        ),
    ),
    (
        "both are beyond the tokens of any request, and are only compared with such counts",
        ("core/window.py WindowRule.last_needing: return FOR_EVER -> return FOR_EVER + 1",),
    ),
    (
        ("a start below 0 reads nothing and fills less than the start at 0, which was looked at before it"),
        (
            (
                "core/window.py SlidingRule.peak: while start >= 0 and start > last - block_size -> "
                "while start > last - block_size"
            ),
            (
                "core/window.py SlidingRule.peak: while start >= 0 and start > last - block_size -> "
                "while start >= -1 and start > last - block_size"
            ),
        ),
    ),
    (
        (
            "where the chunk of the last start does not begin at 0, the end of the chunk before it, "
            "which is looked at below, touches at least as many blocks: a whole chunk but its last "
            "token, and the step"
        ),
        (
            (
                "core/window.py ChunkedRule.peak: most = (min(start + step, num_tokens) + block_size "
                "- 1) // block_size - self.first_needed(start) // block_size -> most = (min(start + "
                "step, num_tokens) + block_size - 1) // block_size - self.first_needed(start) * "
                "block_size"
            ),
        ),
    ),
    (
        (
            "they differ where the last start is itself the end of a chunk: it was counted above, and"
            " the end of the chunk before touches as many blocks, a chunk being whole blocks"
        ),
        (
            (
                "core/window.py ChunkedRule.peak: start = (start + 1) // self._chunk * self._chunk - "
                "1 -> start = (start + 0) // self._chunk * self._chunk - 1"
            ),
        ),
    ),
    (
        ("a start of 0 is the end of a chunk of one token only, where it is the last start, which was counted above"),
        (
            "core/window.py ChunkedRule.peak: if start >= 0 -> if start > 0",
            "core/window.py ChunkedRule.peak: if start >= 0 -> if start >= 1",
        ),
    ),
    (
        "an empty vector is replaced by an empty one",
        (
            ("core/manager.py KVCacheManager._given: if len(self._nulled) > 0 -> if len(self._nulled) > -1"),
            ("core/manager.py KVCacheManager._given: if len(self._nulled) > 0 -> if len(self._nulled) >= 0"),
            ("core/manager.py KVCacheManager._given: if len(self._replaced) > 0 -> if len(self._replaced) > -1"),
            ("core/manager.py KVCacheManager._given: if len(self._replaced) > 0 -> if len(self._replaced) >= 0"),
            (
                "core/manager.py KVCacheManager.allocate_slots_batch: if len(self._replaced) > 0 -> "
                "if len(self._replaced) > -1"
            ),
            (
                "core/manager.py KVCacheManager.allocate_slots_batch: if len(self._replaced) > 0 -> "
                "if len(self._replaced) >= 0"
            ),
        ),
    ),
    (
        "three numbers are noted of each entry that was copied: there are none or at least three",
        (
            ("core/manager.py KVCacheManager._given: if len(self._replaced) > 0 -> if len(self._replaced) > 1"),
            (
                "core/manager.py KVCacheManager.allocate_slots_batch: if len(self._replaced) > 0 -> "
                "if len(self._replaced) > 1"
            ),
        ),
    ),
    (
        "`_check_admission` asks again for each of both counts whether it is above 0",
        (
            (
                "core/asking.py CheckedRequests._check_ask: if ask.external > 0 or ask.encoder > 0 ->"
                " if ask.external > -1 or ask.encoder > 0"
            ),
            (
                "core/asking.py CheckedRequests._check_ask: if ask.external > 0 or ask.encoder > 0 ->"
                " if ask.external >= 0 or ask.encoder > 0"
            ),
            (
                "core/asking.py CheckedRequests._check_ask: if ask.external > 0 or ask.encoder > 0 ->"
                " if ask.external > 0 or ask.encoder > -1"
            ),
            (
                "core/asking.py CheckedRequests._check_ask: if ask.external > 0 or ask.encoder > 0 ->"
                " if ask.external > 0 or ask.encoder >= 0"
            ),
        ),
    ),
    (
        "`_check_drafts` does nothing without drafts where no recurrent layer limits them",
        (
            (
                "core/asking.py CheckedRequests._check_ask: if ask.drafts > 0 or self._most_drafts >="
                " 0 -> if ask.drafts > -1 or self._most_drafts >= 0"
            ),
            (
                "core/asking.py CheckedRequests._check_ask: if ask.drafts > 0 or self._most_drafts >="
                " 0 -> if ask.drafts >= 0 or self._most_drafts >= 0"
            ),
            (
                "core/asking.py CheckedRequests._check_ask: if ask.drafts > 0 or self._most_drafts >="
                " 0 -> if ask.drafts > 0 or self._most_drafts >= -1"
            ),
        ),
    ),
    (
        "read only of a request that runs, for which it is written below",
        (
            "core/asking.py CheckedRequests._check_ask: certain: i64 = 0 -> certain: i64 = 1",
            "core/asking.py CheckedRequests._check_ask: certain: i64 = 0 -> certain: i64 = -1",
        ),
    ),
    (
        "a layer with room for no draft has had none: `num_drafts` is 0",
        (
            (
                "core/asking.py CheckedRequests._check_step: if self._most_drafts < 0 or "
                "tables.num_drafts == 0 -> if self._most_drafts < 1 or tables.num_drafts == 0"
            ),
            (
                "core/asking.py CheckedRequests._check_step: if self._most_drafts < 0 or "
                "tables.num_drafts == 0 -> if self._most_drafts <= 0 or tables.num_drafts == 0"
            ),
        ),
    ),
    (
        ("the constructor hashes all whole blocks of the prompt at once, so that `i` is 0 wherever this is executed"),
        (
            (
                "core/request.py Request._hash_new_blocks: chain.extend(self._prompt, i * size * 4, "
                "in_prompt - i, b'', words, 2 * i) -> chain.extend(self._prompt, i * size // 4, "
                "in_prompt - i, b'', words, 2 * i)"
            ),
            (
                "core/request.py Request._hash_new_blocks: chain.extend(self._prompt, i * size * 4, "
                "in_prompt - i, b'', words, 2 * i) -> chain.extend(self._prompt, i // size * 4, "
                "in_prompt - i, b'', words, 2 * i)"
            ),
            (
                "core/request.py Request._hash_new_blocks: chain.extend(self._prompt, i * size * 4, "
                "in_prompt - i, b'', words, 2 * i) -> chain.extend(self._prompt, i * size * 5, "
                "in_prompt - i, b'', words, 2 * i)"
            ),
            (
                "core/request.py Request._hash_new_blocks: chain.extend(self._prompt, i * size * 4, "
                "in_prompt - i, b'', words, 2 * i) -> chain.extend(self._prompt, i * size * 3, "
                "in_prompt - i, b'', words, 2 * i)"
            ),
            (
                "core/request.py Request._hash_new_blocks: chain.extend(self._prompt, i * size * 4, "
                "in_prompt - i, b'', words, 2 * i) -> chain.extend(self._prompt, i * size * 4, "
                "in_prompt + i, b'', words, 2 * i)"
            ),
            (
                "core/request.py Request._hash_new_blocks: chain.extend(self._prompt, i * size * 4, "
                "in_prompt - i, b'', words, 2 * i) -> chain.extend(self._prompt, i * size * 4, "
                "in_prompt - i, b'', words, 3 * i)"
            ),
            (
                "core/request.py Request._hash_new_blocks: chain.extend(self._prompt, i * size * 4, "
                "in_prompt - i, b'', words, 2 * i) -> chain.extend(self._prompt, i * size * 4, "
                "in_prompt - i, b'', words, 1 * i)"
            ),
        ),
    ),
    (
        ("buffers of 4 bytes per item then go the slow way, which packs the same; no format has items of 3 or 5 bytes"),
        (
            (
                "core/request.py _pack_view: if view.itemsize != 4 or view.format not in ('i', 'l', "
                "'I', 'L', '<i', '=i') -> if view.itemsize != 3 or view.format not in ('i', 'l', 'I',"
                " 'L', '<i', '=i')"
            ),
            (
                "core/request.py _pack_view: if view.itemsize != 4 or view.format not in ('i', 'l', "
                "'I', 'L', '<i', '=i') -> if view.itemsize != 5 or view.format not in ('i', 'l', 'I',"
                " 'L', '<i', '=i')"
            ),
        ),
    ),
    (
        (
            "only the top bits of both halves are looked at; where they seem to be set `_pack_list` "
            "packs the same, token by token"
        ),
        (
            "core/request.py _pack_view: signs: i64 = 0 -> signs: i64 = 1",
            "core/request.py _pack_view: signs: i64 = 0 -> signs: i64 = -1",
            (
                "core/request.py _pack_view: if signs >> 31 & 1 != 0 or signs < 0 -> if signs >> 31 &"
                " 1 != -1 or signs < 0"
            ),
            (
                "core/request.py _pack_view: if signs >> 31 & 1 != 0 or signs < 0 -> if signs >> 31 &"
                " 1 != 0 or signs < 1"
            ),
            (
                "core/request.py _pack_view: if signs >> 31 & 1 != 0 or signs < 0 -> if signs >> 31 &"
                " 1 != 0 or signs <= 0"
            ),
            (
                "core/request.py _pack_view: if signs >> 31 & 1 != 0 or signs < 0 -> if signs >> 31 |"
                " 1 != 0 or signs < 0"
            ),
        ),
    ),
    (
        "a word of which every bit is set has the top bit of its lower half set, too",
        (
            (
                "core/request.py _pack_view: if signs >> 31 & 1 != 0 or signs < 0 -> if signs >> 31 &"
                " 1 != 0 or signs < -1"
            ),
        ),
    ),
    (
        "`size` is a multiple of 4 and `i` of 8: where 7 bytes are left there are 8",
        ("core/request.py _pack_view: while i + 8 <= size -> while i + 7 <= size",),
    ),
    (
        "the self-check asks only whether it is 0",
        (
            "core/forks.py ForkedRequests.fork: self._num_forks += 1 -> self._num_forks += 2",
            "core/forks.py ForkedRequests.fork: self._num_forks += 1 -> self._num_forks -= 1",
        ),
    ),
    (
        "a step has at least one new token, so that 0 and -1 are below its end alike",
        ("core/forks.py ForkedRequests.fork: each.quiet = 0 -> each.quiet = -1",),
    ),
    (
        (
            "the fast path only says that there is room for more than can be asked for; without it, "
            "or with a larger bound, the exact count below gives the same answer"
        ),
        (
            "core/running.py RunningRequests._fits: return True -> pass",
            (
                "core/running.py RunningRequests._fits: if most <= self.block_pool._num_free and (not"
                " ask.is_planned) -> if most < self.block_pool._num_free and (not ask.is_planned)"
            ),
            (
                "core/running.py RunningRequests._fits: most = self._num_groups * (max(0, ask.slots -"
                " tables.num_written) // self._least_size + 2) -> most = self._num_groups * (max(1, "
                "ask.slots - tables.num_written) // self._least_size + 2)"
            ),
            (
                "core/running.py RunningRequests._fits: most = self._num_groups * (max(0, ask.slots -"
                " tables.num_written) // self._least_size + 2) -> most = self._num_groups * (max(0, "
                "ask.slots + tables.num_written) // self._least_size + 2)"
            ),
            (
                "core/running.py RunningRequests._fits: most = self._num_groups * (max(0, ask.slots -"
                " tables.num_written) // self._least_size + 2) -> most = self._num_groups * (max(0, "
                "ask.slots - tables.num_written) // self._least_size + 3)"
            ),
        ),
    ),
    (
        (
            "overwritten by a manager's constructor, or by what a copy takes over "
            "(`KVCacheManager.__init__`, and below), before it is read"
        ),
        (
            "core/running.py RunningRequests.__init__: self._overlaps = False -> pass",
            ("core/running.py RunningRequests.__init__: self._overlaps = False -> self._overlaps = True"),
            "core/running.py RunningRequests.__init__: self._settles = False -> pass",
            "core/running.py RunningRequests.__init__: self._settles = False -> self._settles = True",
            ("core/running.py RunningRequests.__init__: self._watermark: i64 = 0 -> self._watermark: i64 = 1"),
            ("core/running.py RunningRequests.__init__: self._watermark: i64 = 0 -> self._watermark: i64 = -1"),
        ),
    ),
    (
        ("table entries are written for growth only; where the table is covered already growth changes nothing"),
        (("core/running.py RunningRequests._act: if table.quiet < ask.slots -> if table.quiet <= ask.slots"),),
    ),
)
"""Families of equivalent mutants: a reason, and their names."""

EQUIVALENT |= {key: reason for reason, keys in (*LISTED, *equivalents_managers.LISTED, *RUNNING) for key in keys}

RULES: tuple[Rule, ...] = (
    Rule(
        r"core/store.py .*: self\.version \+= 1 -> self\.version \+= 2( #\d+)?",
        "versions are only compared for equality, and only grow",
    ),
    Rule(r"core/store.py .*: self\.version = 0 -> self\.version = -?1", "versions are only compared for equality"),
    Rule(
        r"core/store.py BlockStore.take: .* append\(ids, 0\) if .* -> .* append\(ids, -?1\) if .*",
        "the new entry is written before anybody reads it",
    ),
    Rule(
        r".*\.copy: return (\w+)\(0, source=self\) -> return \1\(-?1, source=self\)",
        "the number of blocks is not read where there is a source",
    ),
)
