"""What the mutation gate leaves out, and why.

Lock-step reaches the bookkeeping through `KVCacheManager`, that of offloading through managers and chains. What it does
not call, or only to check itself, is listed here: a function by its qualified name, or ``guards of`` a function for its
conditions that only raise. A function that is neither here nor killed by some scope shows up as a survivor.
"""

OFFLOAD = tuple(
    f"offload/tiers/{name}.py"
    for name in (
        "arc",
        "backend",
        "books",
        "chain",
        "entries",
        "ghosts",
        "keys",
        "lru",
        "manager",
        "moves",
        "ring",
        "transfers",
    )
)
"""Those of them that keep the books of what is off the device."""

FILES = (
    "core/store.py",
    "core/index.py",
    "core/group.py",
    "core/window.py",
    "core/tables.py",
    "core/plan.py",
    "core/steps.py",
    "core/running.py",
    "core/asking.py",
    "core/timed.py",
    "core/manager.py",
    "core/explain.py",
    "core/request.py",
    "core/managers.py",
    "core/pool.py",
    "core/journal.py",
    *OFFLOAD,
)
"""The sources that are mutated."""

SELF_CHECK = "the self-check: it is what finds other mutants, and is tested on states broken by hand"
CONSTRUCTOR = "checks of a constructor's arguments: no scope makes a wrong manager or request; unit tests do"
ONE_BY_ONE = "a name for engines that call managers of one kind by themselves; unit tests compare it with this path"
BARE_POOL = "a name of the bare pool; unit tests and the museum's trial of the pool"
SHOWN = "a view for people, not used by any decision; unit tests"
FOUND = "blocks that a disk has kept; the crash gate and unit tests of the disk tier"
PACKING = "conversion of token ids from lists, buffers and tensors; unit tests"

MEMORY = "what is remembered of lost prefixes, read by explanations only; unit tests compare it with a model"
WRITTEN = "initial values, each written before it is read"

LEFT_OUT: dict[str, str] = {
    "core/store.py BlockStore.loss": MEMORY,
    "core/explain.py eviction_stats": MEMORY,
    "core/pool.py BlockPool.explains_evictions": MEMORY,
    "core/pool.py BlockPool.tracks_evictions": SHOWN,
    "core/manager.py KVCacheManager.overlap_steps": SHOWN,
    "core/plan.py Ask.__init__": WRITTEN,
    "core/group.py GroupTables.state_block": "asked by workers that run a model, not by a scheduler; unit tests",
    "core/store.py BlockStore.check": SELF_CHECK,
    "core/store.py BlockStore._backwards": SELF_CHECK,
    "core/index.py PrefixIndex.slot_blocks": SELF_CHECK,
    "core/journal.py Journal.check": SELF_CHECK,
    "core/group.py GroupTables.is_row": SELF_CHECK,
    "core/group.py GroupTables.most_states": SELF_CHECK,
    "core/group.py GroupTables.all_tables": SELF_CHECK,
    "core/running.py RunningRequests.check": SELF_CHECK,
    "guards of core/pool.py BlockPool.__init__": CONSTRUCTOR,
    "guards of core/manager.py KVCacheManager.__init__": CONSTRUCTOR,
    "guards of core/managers.py SingleTypeKVCacheManager.__init__": CONSTRUCTOR,
    "guards of core/request.py Request.__init__": CONSTRUCTOR,
    "core/request.py _checked_items": CONSTRUCTOR,
    "core/managers.py refuse_eagle": CONSTRUCTOR,
    "core/pool.py require_group": CONSTRUCTOR,
    "core/managers.py get_manager_for_kv_cache_spec": CONSTRUCTOR,
    "core/group.py rule_for": CONSTRUCTOR,
    "core/managers.py SingleTypeKVCacheManager.req_to_blocks": ONE_BY_ONE,
    "core/managers.py SingleTypeKVCacheManager.num_cached_block": ONE_BY_ONE,
    "core/managers.py SingleTypeKVCacheManager.save_new_computed_blocks": ONE_BY_ONE,
    "core/managers.py SingleTypeKVCacheManager.allocate_new_blocks": ONE_BY_ONE,
    "core/managers.py SingleTypeKVCacheManager.cache_blocks": ONE_BY_ONE,
    "core/managers.py SingleTypeKVCacheManager.free": ONE_BY_ONE,
    "core/managers.py SingleTypeKVCacheManager.find_longest_cache_hit": ONE_BY_ONE,
    "core/managers.py SingleTypeKVCacheManager.remove_skipped_blocks": ONE_BY_ONE,
    "core/managers.py SingleTypeKVCacheManager.table_of": ONE_BY_ONE,
    "core/managers.py SingleTypeKVCacheManager.block_size": ONE_BY_ONE,
    "core/managers.py SlidingWindowManager.sliding_window": ONE_BY_ONE,
    "core/managers.py ChunkedLocalAttentionManager.attention_chunk_size": ONE_BY_ONE,
    "core/managers.py CrossAttentionManager.save_new_computed_blocks": ONE_BY_ONE,
    "core/managers.py CrossAttentionManager.cache_blocks": ONE_BY_ONE,
    "core/managers.py _count": ONE_BY_ONE,
    "core/pool.py BlockPool.get_cached_block": BARE_POOL,
    "core/pool.py BlockPool.cache_full_blocks": BARE_POOL,
    "core/pool.py BlockPool.get_new_blocks": BARE_POOL,
    "core/pool.py BlockPool.touch": BARE_POOL,
    "core/pool.py BlockPool.free_blocks": BARE_POOL,
    "core/pool.py BlockPool.ids_of": BARE_POOL,
    "core/pool.py BlockPool.__copy__": SHOWN,
    "core/pool.py BlockPool.num_free": SHOWN,
    "core/pool.py BlockPool.null_block": SHOWN,
    "core/pool.py BlockPool.get_usage": SHOWN,
    "core/pool.py BlockPool.num_evictions": SHOWN,
    "core/pool.py BlockPool.views": SHOWN,
    "core/pool.py KVCacheBlock": SHOWN,
    "core/manager.py KVCacheManager.__copy__": SHOWN,
    "core/manager.py KVCacheManager.usage": SHOWN,
    "core/manager.py KVCacheManager.get_blocks": SHOWN,
    "core/manager.py KVCacheManager.create_empty_block_list": SHOWN,
    "core/manager.py KVCacheManager.max_model_len": SHOWN,
    "core/request.py Request.prompt_token_ids": SHOWN,
    "core/request.py Request.output_token_ids": SHOWN,
    "core/request.py Request.all_token_ids": SHOWN,
    "core/request.py Request.num_prompt_tokens": SHOWN,
    "core/request.py Request.num_output_tokens": SHOWN,
    "offload/tiers/backend.py SlotBackend.claim_place": FOUND,
    "offload/tiers/keys.py shown": "the beginning of a key in the text of an error",
    "guards of offload/tiers/chain.py OffloadChain.__init__": CONSTRUCTOR,
    "offload/tiers/backend.py checked_count": CONSTRUCTOR,
    "core/request.py pack_tokens": PACKING,
    "core/request.py _pack_list": PACKING,
    "core/request.py _pack_view": PACKING,
}
"""What is not mutated: a function or class, or the guards of a function, with the reason."""
