"""Part one, chapter 48: all laws of the part in one list, for the explorer, for self-checks and for the book."""

from .. import block_machine
from ..law import listed
from . import events, metrics, orders, pool_laws, resizing, retention_laws, step_laws, table_laws, unit_laws
from .in_time import explain, folding, forgetting, forks, giving_up, liveness, outside, shortening, time_laws

BLOCK_LAWS = (
    listed(block_machine.law_count_is_of_places, "vLLM KVCacheBlock.ref_cnt; known bugs B01, B02"),
    listed(block_machine.law_null_block_is_one, "vLLM BlockPool.null_block; known bug B57"),
    listed(block_machine.law_candidates_are_unheld, "vLLM FreeKVCacheBlockQueue: eviction candidates; known bug B56"),
    listed(block_machine.law_null_entry_is_dead, "vLLM SingleTypeKVCacheManager.remove_skipped_blocks; known bug B25"),
)
"""The invariants of the block machine."""

LAWS = (
    listed(pool_laws.law_queue_holds_the_unheld, "vLLM BlockPool: touch and free_blocks; known bug B04"),
    listed(pool_laws.law_queue_is_ordered, "vLLM FreeKVCacheBlockQueue; known bugs B02, B66"),
    listed(pool_laws.law_null_is_nothing, "vLLM BlockPool.null_block; known bug B57"),
    listed(pool_laws.law_key_is_single, "vLLM BlockPool.cached_block_hash_to_block; known bug B56"),
    listed(pool_laws.law_key_is_content, "vLLM BlockPool.cache_full_blocks; known bugs B40, B42"),
    listed(time_laws.law_key_looks_ahead, "vLLM num_hash_lookahead_tokens (0.33.0); known bug D84"),
    listed(time_laws.law_copies_commute, "PagedAttention (Kwon et al., 2023), section 4.4; known bug B51"),
    listed(pool_laws.law_free_is_findable_or_empty, "chapter `state`: contents are ghosts; known bug B14"),
    listed(pool_laws.law_hit_is_sound, "vLLM SingleTypeKVCacheManager.find_longest_cache_hit; known bugs B27, B60"),
    listed(pool_laws.law_hit_is_longest, "chapter `reads`: the longest hit; known bugs B36, B55"),
    listed(pool_laws.law_hit_is_cut, "SGLang RadixKey.limit: log-probabilities of a prompt; known bug E200"),
    listed(outside.law_use_reorders_alone, "SGLang BasePrefixCache.match_prefix and touch_prefix; known bug E201"),
    listed(pool_laws.law_hit_leaves_a_token, "vLLM KVCacheManager.get_computed_blocks; known bug B46"),
    listed(explain.law_explanation_is_exact, "chapter `in_time.explain`; vLLM and SGLang tell only the hit's length"),
    listed(table_laws.law_reads_are_there, "the central law; PagedAttention (Kwon et al., 2023)"),
    listed(table_laws.law_dead_is_null, "vLLM SingleTypeKVCacheManager.remove_skipped_blocks; known bug B28"),
    listed(table_laws.law_null_is_dead, "chapter `reads`: dead entries; known bugs B25, B26"),
    listed(table_laws.law_written_is_unshared, "PagedAttention (Kwon et al., 2023), section 4.4"),
    listed(table_laws.law_full_is_published, "vLLM SingleTypeKVCacheManager.cache_blocks; known bug B55"),
    listed(table_laws.law_table_covers, "vLLM KVCacheManager.allocate_slots"),
    listed(table_laws.law_table_is_distinct, "vLLM SingleTypeKVCacheManager.req_to_blocks; known bug B02"),
    listed(table_laws.law_common_is_shared, "vLLM KVCacheManager.get_num_common_prefix_blocks"),
    listed(table_laws.law_states_are_two, "chapter `reads`: a recurrent layer's state; known bug B28"),
    listed(time_laws.law_states_ahead_are_there, "vLLM MambaManager: columns of draft states; known bug B28"),
    listed(table_laws.law_state_is_single, "vLLM MambaManager"),
    listed(table_laws.law_counts_are_ordered, "vLLM KVCacheManager.allocate_slots; known bug B40"),
    listed(time_laws.law_drafts_have_states, "vLLM MambaSpec.num_speculative_blocks"),
    listed(time_laws.law_checkpoint_is_kept, "vLLM MambaManager: prefill checkpoints; known bugs D97, D98"),
    listed(time_laws.law_draft_state_is_its_own, "vLLM MambaSpec.num_speculative_blocks"),
    listed(table_laws.law_state_found_has_run, "vLLM MambaManager.cached_blocks_this_step (0.33.0); known bug B42"),
    listed(time_laws.law_encoder_is_kept, "vLLM CrossAttentionManager"),
    listed(time_laws.law_flight_is_held, "chapter `in_time.in_flight`; known bugs B25, B53"),
    listed(time_laws.law_flights_follow, "chapter `in_time.in_flight`; known bug B25"),
    listed(time_laws.law_fence_has_its_step, "chapter `in_time.in_flight`; known bug B53"),
    listed(time_laws.law_found_is_settled, "chapter `in_time.in_flight`; known bug B42"),
    listed(time_laws.law_load_is_hidden, "chapter `in_time.in_flight`; known bugs B47, B59"),
    listed(time_laws.law_load_has_own_blocks, "vLLM scheduler: a longer remote hit and a local part; known bug E180"),
    listed(liveness.law_head_is_served, "chapter `plans`: admission; known bugs B34, B35"),
    listed(liveness.law_waiting_returns, "chapter `plans`: refusals; vLLM issue 49674"),
    listed(liveness.law_hit_fits, "chapter `units`: room; known bugs E120, E121"),
    listed(unit_laws.law_tail_comes_in_time, "vLLM RFC #45702: partial cache hits for hybrid models"),
    listed(unit_laws.law_part_found_has_run, "vLLM 0.32: a part copied in the step that writes it; known bug E32"),
    listed(resizing.law_end_is_the_end, "vLLM #47363, #50779: an extensible cache; kvcached: blocks that are unmapped"),
)
"""Every law of states."""

STEP_LAWS = (
    listed(step_laws.law_table_is_append_only, "vLLM V1 worker block tables; known bug B33"),
    listed(step_laws.law_taking_drops_its_key, "vLLM BlockPool._maybe_evict_cached_block; known bug B56"),
    listed(step_laws.law_demand_is_taken, "vLLM get_num_blocks_to_allocate; known bugs B05, B08"),
    listed(step_laws.law_evicted_is_lost, "chapter `hits`: what is lost; vLLM BlockPool.take_events: BlockRemoved"),
    listed(step_laws.law_plan_is_taken, "vLLM KVCacheManager.allocate_slots; known bugs B08, B23"),
    listed(forks.law_preemption_frees_its_own, "vLLM #56897, #54644: whom to preempt; known bug E143"),
    listed(forks.law_copied_fork_is_apart, "transformers PagedAttentionCache.fork_request: copies as it forks"),
    listed(step_laws.law_writer_is_alone, "PagedAttention (Kwon et al., 2023), section 4.4; known bug B01"),
    listed(time_laws.law_copy_is_of_its_entry, "PagedAttention (Kwon et al., 2023), section 4.4"),
    listed(outside.law_outside_changes_alone, "vLLM BlockPool.free_blocks: a block released twice; known bug D61"),
    listed(forgetting.law_forgotten_is_not_found, "SGLang #27058; vLLM #42125; known bugs D93, D94"),
    listed(forgetting.law_everything_is_forgotten, "vLLM pause and update_weights; #57970, #57810; known bug E140"),
    listed(forgetting.law_private_publishes_nothing, "chapter `in_time.forgetting`; known bug E141"),
    listed(forgetting.law_nothing_else_is_lost, "vLLM reset_prefix_cache, which takes all or nothing; known bug D95"),
    listed(giving_up.law_given_up_is_not_found, "ours: the specification wrote what no step had run; known bug E112"),
    listed(folding.law_fold_loses_nothing, "SGLang RadixCache and transformers: equal blocks are freed in place"),
    listed(folding.law_folded_is_first, "SGLang RadixCache and transformers: equal blocks are freed in place"),
    listed(shortening.law_slots_are_given_back, "ours: a batch is cut to its budget after slots were given"),
    listed(giving_up.law_what_has_run_is_found, "a step that fails is no reason to forget the prompt before it"),
    listed(step_laws.law_lease_is_quiet, "vLLM: a call for each request and step; ours: most change nothing"),
    listed(step_laws.law_newcomer_leaves_the_watermark, "vLLM KVCacheManager.allocate_slots; known bug B34"),
    listed(unit_laws.law_copied_has_run, "vLLM 0.32 MambaManager.cached_blocks_this_step guards states; known bug E32"),
    listed(unit_laws.law_tail_is_found, "vLLM RFC #45702: partial cache hits for hybrid models"),
    listed(step_laws.law_last_is_published, "vLLM V1: a block is cached with the next step only; known bug E130"),
    listed(unit_laws.law_resend_hits, "vLLM RFC #45702: partial cache hits for hybrid models"),
    listed(unit_laws.law_state_is_saved, "vLLM BlockPool.move_block_hashes: the key moves to the copy; known bug E39"),
    listed(unit_laws.law_parts_are_near, "ours: what large blocks lose of a system prompt; known bug E35"),
    listed(unit_laws.law_parting_is_seen, "vLLM #53749: a shared prompt below a block; known bugs E170, E172"),
    listed(unit_laws.law_part_goes_on, "ours: a copy that would never fit; known bug E121"),
    listed(resizing.law_nothing_beyond_is_given, "kvcached: KVCacheManager.resize; a shrink that never ends"),
    listed(resizing.law_what_stays_is_found, "vLLM #50779: capacity changes while requests run"),
)
"""Every law of steps."""

EVENT_LAWS = (
    listed(events.law_events_are_the_index, "vLLM BlockPool.take_events; known bugs B64a, B64c, B64j"),
    listed(events.law_latecomers_know_the_same, "vLLM #40363: a router that joins late; SGLang #33394; known bug B64l"),
    listed(events.law_parents_come_first, "vLLM BlockStored.parent_block_hash, #58119; known bugs B64b, B64g, B64k"),
    listed(events.law_key_serves_alone, "vLLM #44451: tokens without hashes; known bug B64h"),
    listed(
        events.law_events_tell_all_that_decides,
        "vLLM BlockStored.extra_keys, lookahead_token_ids; SGLang BlockStored.cache_salt; known bugs B64i, E50",
    ),
)
"""Every law of events: of a state, and of one who listens."""

ROUTER_LAWS = (
    listed(
        events.law_routers_find_what_the_engine_finds,
        "vLLM HybridKVCacheCoordinator; llm-d-kv-cache #336, #650; Dynamo #8751; known bugs E220 to E224",
    ),
)
"""The laws of a router's answers."""

METRIC_LAWS = (
    listed(metrics.law_counts_are_what_happened, "Prometheus: counters; vLLM #26850, #47715; known bugs D72a to D72g"),
)
"""The law of what is counted: before and after a step, as it is read, and as it happened."""

ORDER_LAWS = (
    listed(orders.law_order_knows_candidates, "SGLang #27539: a policy that lost blocks; known bug E292"),
    listed(orders.law_order_hears_of_hits, "SGLang LFUStrategy: hits of nodes; known bugs E290, E291, E293"),
)
"""The laws of what an order of eviction is told: of a state, and of the steps of a call."""

RESTART_LAWS = (listed(events.law_restart_finds_what_stood_there, "chapter `directory` says the like of a tier"),)
"""The law of what is found again where the device's memory outlives the process."""

POLICY_LAWS = (
    listed(retention_laws.law_hints_change_no_answer, "vLLM RFC #52113: hints are best-effort; known bug B67c"),
    listed(retention_laws.law_floors_fit, "LMCache: quotas per salt"),
    listed(retention_laws.law_candidate_is_single, "what a duplicate costs its tenant; known bug D60"),
    listed(retention_laws.law_full_is_ordinary, "chapter `keeping`"),
    listed(retention_laws.law_free_block_can_be_taken, "SGLang #27539: a policy that lost blocks; known bug B67a"),
)
"""Every law of states of what goes first, where candidates are told apart."""

POLICY_STEP_LAWS = (
    listed(retention_laws.law_hints_end, "SGLang #21045: soft retention instead of pins; known bug B67b"),
    listed(retention_laws.law_share_is_left, "LMCache: quotas per salt; known bug D40"),
    listed(retention_laws.law_extension_goes_first, "SGLang RadixCache: leaves are evicted first; known bug D41"),
    listed(retention_laws.law_contentless_go_first, "vLLM FreeKVCacheBlockQueue; chapter `lru`"),
    listed(retention_laws.law_passing_go_first, "vLLM #48435: freed windows push out what the next turn needs"),
    listed(retention_laws.law_spares_are_learned, "ARC (FAST 2003): what is hit tells which of two lists is too short"),
)
"""Every law of steps of the same."""

PAIR_LAWS = (
    listed(
        retention_laws.law_share_is_as_if_alone, "LMCache: quotas per salt; Mattson et al. (1970): stack algorithms"
    ),
    listed(retention_laws.law_next_turn_hits, "vLLM #48435: freed windows push out what the next turn needs"),
    listed(retention_laws.law_wrong_hints_are_bounded, "Mattson et al. (1970): stack algorithms; LPC (NeurIPS 2025)"),
)
"""Every law of two histories: with others or with hints, and as it would be without."""

RETENTION_LAWS = (*POLICY_LAWS, *POLICY_STEP_LAWS, *PAIR_LAWS)
"""Every law of what is kept."""
