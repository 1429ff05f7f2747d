"""Mutants of managers, their tables and requests that nothing can tell from the original, by reason."""

LISTED: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "only asked whether it is below 0 (asking.py, timed.py, forks.py)",
        (
            (
                "core/manager.py KVCacheManager.__init__: super().__init__(pool, managers, max_model_len, min(most) "
                "if most else -1, None) -> super().__init__(pool, managers, max_model_len, min(most) if most else "
                "-2, None)"
            ),
        ),
    ),
    (
        "neither is read where there is a source",
        (
            (
                "core/manager.py KVCacheManager.copy: return KVCacheManager(self.kv_cache_config, self._max_len, "
                "source=self) -> return KVCacheManager(self._max_len, self.kv_cache_config, source=self)"
            ),
            (
                "core/request.py Request.copy: return Request('', (), source=self) -> return Request((), '', "
                "source=self)"
            ),
        ),
    ),
    (
        (
            "`stops` is above 0 only for requests that `_check_batch` found running, whose `_held` is then their "
            "tables (`_tables_of`)"
        ),
        (
            (
                "core/manager.py KVCacheManager.allocate_slots_batch: if stop > 0 and isinstance(quiet, "
                "RequestTables) -> if stop > 0"
            ),
        ),
    ),
    (
        "a quiet step of a request ends at 2 or more: a token at least is written and certain before it",
        (
            (
                "core/manager.py KVCacheManager.allocate_slots_batch: if stop > 0 and isinstance(quiet, "
                "RequestTables) -> if stop > 1 and isinstance(quiet, RequestTables)"
            ),
        ),
    ),
    (
        (
            "read only where there is a recurrent layer (asking.py, forks.py, `_covered`, `stopped` of states); with "
            "one no step is quiet: its `quiet_slots` are 0"
        ),
        (
            "core/manager.py KVCacheManager.allocate_slots_batch: quiet.num_drafts = 0 -> pass",
            "core/manager.py KVCacheManager.allocate_slots_batch: quiet.num_drafts = 0 -> quiet.num_drafts = 1",
            "core/manager.py KVCacheManager.allocate_slots_batch: quiet.num_drafts = 0 -> quiet.num_drafts = -1",
        ),
    ),
    (
        "numbers are only compared, and only grow",
        ("core/manager.py KVCacheManager._check_batch: self._batches += 1 -> self._batches += 2",),
    ),
    (
        "only asked whether it is above 0",
        (
            (
                "core/manager.py KVCacheManager._check_batch: stops = vec[i64]([0] * size) -> stops = vec[i64]([-1] "
                "* size)"
            ),
        ),
    ),
    (
        (
            "entries from `first` on are not null: tables are trimmed up to what was settled, which is not beyond "
            "this step's begin, and a recurrent layer jumps only over entries before that of its last state; no "
            "block has the number -1"
        ),
        (
            (
                "core/manager.py KVCacheManager._most_held: if block != 0 and i64(entry) >= first -> if i64(entry) "
                ">= first"
            ),
            (
                "core/manager.py KVCacheManager._most_held: if block != 0 and i64(entry) >= first -> if block != -1 "
                "and i64(entry) >= first"
            ),
        ),
    ),
    (
        (
            "the group's manager raises the same error with the same message (`SingleTypeKVCacheManager._table`); "
            "there is a group at least"
        ),
        ("core/manager.py KVCacheManager.get_num_common_prefix_blocks: self._named(request_id) -> pass",),
    ),
    (
        (
            "where the slots are exactly covered `more` is 0 below, which is returned: a table in a row of `held` "
            "blocks covers `held` times their size; one of one state returns 0 before, or needs none for no token"
        ),
        (
            (
                "core/group.py GroupTables.missing: if held * self._block_size >= num_tokens -> if held * "
                "self._block_size > num_tokens"
            ),
        ),
    ),
    (
        "a table of one state has one entry, and with it `more` is 0 below: no slots ask for a second",
        (
            (
                "core/group.py GroupTables.missing: if held > 0 and self._layout == ONE_STATE -> if held > 1 and "
                "self._layout == ONE_STATE"
            ),
        ),
    ),
    (
        "`more` is at least 1 here, since the slots go beyond what is held; where it is 1 both return 1",
        (
            (
                "core/group.py GroupTables.missing: if more > 1 and self._layout == LAST_STATE -> if self._layout == "
                "LAST_STATE"
            ),
            (
                "core/group.py GroupTables.missing: if more > 1 and self._layout == LAST_STATE -> if more > 0 and "
                "self._layout == LAST_STATE"
            ),
        ),
    ),
    (
        (
            "only `_count_running` asks, and then adds `trim_gain`, which is 0 for one state: `first_kept` is 0 "
            "there; `num_trimmed` is 0 for the same reason"
        ),
        (
            "core/group.py GroupTables.trims: return False -> pass",
            "core/group.py GroupTables.trims: return False -> return True",
        ),
    ),
    (
        (
            "it is only compared with counts of tokens, which no request reaches (`FOR_EVER` is above `MAX_LENGTH`); "
            "where it is lower `_trim` runs and does nothing for one state, whose `first_kept` is 0, and `quiet` is "
            "0 with such a group anyway"
        ),
        (
            "core/group.py GroupTables.trim_at: return FOR_EVER -> pass",
            "core/group.py GroupTables.trim_at: return FOR_EVER -> return FOR_EVER + 1",
        ),
    ),
    (
        (
            "a step of a request that has a table ends at 2 or more: its first one, or its load, has written a token "
            "at least, which is certain. So no later step ends within `quiet`, be it -1, 0 or 1"
        ),
        (
            "core/group.py GroupTables.quiet_slots: return 0 -> return 1",
            "core/group.py GroupTables.quiet_slots: return 0 -> return -1",
        ),
    ),
    (
        (
            "an encoder's table covers `ask.encoder` from the start; a lower bound only makes `_act` grow it by "
            "nothing again, and a higher one is cut by `min` there"
        ),
        (
            "core/group.py GroupTables.quiet_slots: return MAX_LENGTH -> pass",
            "core/group.py GroupTables.quiet_slots: return MAX_LENGTH -> return MAX_LENGTH + 1",
        ),
    ),
    (
        (
            "the null block never has a holder (NULL-1: every counter passes it over), so that its count is not 1; "
            "no block has the number -1"
        ),
        (
            (
                "core/group.py GroupTables.trim_gain: if block != 0 and pool.ref_count(block) == 1 -> if "
                "pool.ref_count(block) == 1"
            ),
            (
                "core/group.py GroupTables.trim_gain: if block != 0 and pool.ref_count(block) == 1 -> if block != -1 "
                "and pool.ref_count(block) == 1"
            ),
        ),
    ),
    (
        "callers ask only whether it is at least 0 (running.py `_count_running`, `_unshare`, `check`)",
        (
            "core/group.py GroupTables.shared_entry: return -1 -> return -2",
            "core/group.py GroupTables.shared_entry: return -1 -> return -2 #2",
            (
                "core/group.py GroupTables.shared_entry: return entry if "
                "self.block_pool.num_sharers(i64(table.blocks[entry])) > 1 else -1 -> return entry if "
                "self.block_pool.num_sharers(i64(table.blocks[entry])) > 1 else -2"
            ),
            "core/group.py GroupTables.partial_entry: return -1 -> return -2",
            (
                "core/group.py GroupTables.partial_entry: return entry if entry < i64(len(table.blocks)) else -1 -> "
                "return entry if entry < i64(len(table.blocks)) else -2"
            ),
        ),
    ),
    (
        (
            "while a request loads, only its hit is written, whole blocks of every group: `written % "
            "self._block_size` is 0; a table of one state has no hit, so that 0 tokens are written and `entry` is -1"
        ),
        (
            (
                "core/group.py GroupTables.partial_entry: if self.is_encoder or running.num_loading > 0 or "
                "(self._layout != ONE_STATE and written % self._block_size == 0) -> if self.is_encoder or "
                "(self._layout != ONE_STATE and written % self._block_size == 0)"
            ),
            (
                "core/group.py GroupTables.partial_entry: if self.is_encoder or running.num_loading > 0 or "
                "(self._layout != ONE_STATE and written % self._block_size == 0) -> if self.is_encoder or "
                "running.num_loading > 1 or (self._layout != ONE_STATE and written % self._block_size == 0)"
            ),
        ),
    ),
    (
        (
            "only `fork` calls it. Of a table in a row `num_covered` is not read; of a recurrent layer `_check_fork` "
            "has seen that the child starts after `num_written - num_drafts` tokens, which the last growth covered: "
            "both are equal"
        ),
        (
            (
                "core/group.py GroupTables.share: twin.num_covered = min(table.num_covered, num_tokens) -> "
                "twin.num_covered = max(table.num_covered, num_tokens)"
            ),
        ),
    ),
    (
        (
            "then nothing is published: of a table in a row the range is empty; of a recurrent layer the one block "
            "before `num_published` is null or has its key, and is passed over by `BlockStore.publish`"
        ),
        ("core/group.py GroupTables.publish: if stop <= start -> if stop < start",),
    ),
    (
        (
            "nothing is released of an empty range; `version` changes once more, and changes anyway for the table in "
            "the next line"
        ),
        (
            "core/group.py GroupTables.release: if len(table.states) > 0 -> if len(table.states) >= 0",
            "core/group.py GroupTables.release: if len(table.states) > 0 -> if len(table.states) > -1",
        ),
    ),
    (
        (
            "written by whoever opens a table before it is read: by `adopt` or `grow`, which follow in managers.py "
            "and `_act`, or by `share` in `fork`"
        ),
        (
            (
                "core/group.py GroupTables.open: table = GroupTable(vec[i32](), 0, 0, 0, vec[i32]()) -> table = "
                "GroupTable(vec[i32](), 0, 0, 1, vec[i32]())"
            ),
            (
                "core/group.py GroupTables.open: table = GroupTable(vec[i32](), 0, 0, 0, vec[i32]()) -> table = "
                "GroupTable(vec[i32](), 0, 0, -1, vec[i32]())"
            ),
        ),
    ),
    (
        "no table has that many entries: a pool has at most 2**30 blocks",
        ("core/group.py GroupTables.most_states: return MAX_LENGTH -> return MAX_LENGTH + 1",),
    ),
    (
        "a list has no `numpy` and no buffer, but is iterable: it is packed in the same way two branches later",
        ("core/request.py pack_tokens: return _pack_list(name, token_ids) -> pass",),
    ),
    (
        (
            "`MAX_TOKEN_ID` is the largest number of 32 bits: where the source runs, `write_i32_le` raises a "
            "ValueError for a larger one, which is caught and told in the same way"
        ),
        (
            (
                "core/request.py _pack_list: if token < 0 or token > MAX_TOKEN_ID or (grows and (not "
                "isinstance(token, int))) -> if token < 0 or (grows and (not isinstance(token, int)))"
            ),
        ),
    ),
    (
        "without a chain nothing is hashed: the list below is of no block",
        ("core/request.py Request.block_hashes: return [] -> pass",),
    ),
    (
        "the layout of full attention is a row (`layout_for`)",
        (
            (
                "core/managers.py SingleTypeKVCacheManager.get_num_common_prefix_blocks: if self._layout != ROW or "
                "not isinstance(self.kv_cache_spec, FullAttentionSpec) -> if not isinstance(self.kv_cache_spec, "
                "FullAttentionSpec)"
            ),
        ),
    ),
    (
        "`layout_for` gives ONE_STATE only without caching, and then the second condition holds",
        (
            (
                "core/managers.py SingleTypeKVCacheManager.find_longest_cache_hit: if layout_for(kv_cache_spec, "
                "block_pool.enable_caching) == ONE_STATE or not block_pool.enable_caching -> if not "
                "block_pool.enable_caching"
            ),
            (
                "core/managers.py SingleTypeKVCacheManager.find_longest_cache_hit: if layout_for(kv_cache_spec, "
                "block_pool.enable_caching) == ONE_STATE or not block_pool.enable_caching -> if "
                "layout_for(block_pool.enable_caching, kv_cache_spec) == ONE_STATE or not block_pool.enable_caching"
            ),
        ),
    ),
    (
        "the constructor takes no other kind (`manages`)",
        (
            (
                "core/managers.py SlidingWindowManager.sliding_window: return spec.sliding_window if "
                "isinstance(spec, SlidingWindowSpec) else 0 -> return spec.sliding_window if isinstance(spec, "
                "SlidingWindowSpec) else 1"
            ),
            (
                "core/managers.py SlidingWindowManager.sliding_window: return spec.sliding_window if "
                "isinstance(spec, SlidingWindowSpec) else 0 -> return spec.sliding_window if isinstance(spec, "
                "SlidingWindowSpec) else -1"
            ),
            (
                "core/managers.py ChunkedLocalAttentionManager.attention_chunk_size: return "
                "spec.attention_chunk_size if isinstance(spec, ChunkedLocalAttentionSpec) else 0 -> return "
                "spec.attention_chunk_size if isinstance(spec, ChunkedLocalAttentionSpec) else 1"
            ),
            (
                "core/managers.py ChunkedLocalAttentionManager.attention_chunk_size: return "
                "spec.attention_chunk_size if isinstance(spec, ChunkedLocalAttentionSpec) else 0 -> return "
                "spec.attention_chunk_size if isinstance(spec, ChunkedLocalAttentionSpec) else -1"
            ),
        ),
    ),
    (
        "True and False are 1 and 0, and below 2: refused with the same message",
        (
            (
                "core/pool.py BlockPool.__init__: if isinstance(num_blocks, bool) or not 2 <= num_blocks <= "
                "MAX_BLOCKS -> if not 2 <= num_blocks <= MAX_BLOCKS"
            ),
        ),
    ),
)
"""Families of equivalent mutants: a reason, and their names."""
