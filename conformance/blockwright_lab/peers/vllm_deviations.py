"""Where vLLM's `KVCacheManager` is known to differ from the specification, and why: strict lists.

What is called a bug is wrong by vLLM's own word (an error in the middle of a call, a hit of what is not cached, an
event that cannot be replayed) and confirmed by a script over its own API. What it documents, and what it never
promised, is no bug. `NOWHERE` marks what no scope shows, only its script.
"""

from blockwright_conformance.capabilities import Deviation, Standing

NOWHERE = r"(?!)"
"""A pattern that nothing matches."""

TRIMS = Deviation(
    "refusal-trims",
    "REF-0",
    r": trimmed by a refusal",
    Standing.DOCUMENTED,
    "A refused call has freed what no later token reads; the specification has a refusal change nothing.",
    "comment in KVCacheManager.allocate_slots: it can be done even if the request cannot be scheduled",
    goes_on=True,
)

ONE_WINDOW = "sliding 1, block 1"
"""A window of the token itself: nothing is ever read of a prefix, so nothing need be cached."""

NO_WINDOW_HIT = Deviation(
    "window-of-one-hits-nothing",
    "HIT-2",
    rf"^{ONE_WINDOW}: .*: hit:",
    Standing.CHOICE,
    "Where no earlier token is read, any length is a hit; vLLM looks for a cached block all the same.",
    goes_on=True,
)

NEW_DEVIATIONS: tuple[Deviation, ...] = (
    TRIMS,
    Deviation(
        "recurrent-load-undercounted",
        "PLAN-1",
        r"mamba.*: loads: error: ValueError in get_new_blocks",
        Standing.BUG,
        "With tokens loaded from elsewhere a recurrent layer takes a block for the loaded state and one for the new;"
        " one is counted, so a call that does not fit is not refused but ends in an error, with blocks taken.",
        "vllm-project/vllm#46892 (open)",
        confirm="mamba_external_demand",
        bugs=("B08",),
    ),
    Deviation(
        "recurrent-load-overcounted",
        "PLAN-1",
        r"mamba.*: loads: refused:",
        Standing.CHOICE,
        "The state of a hit that a load leaves behind is counted as taken, though it is not adopted: a call is refused"
        " that fits. A later step serves it.",
        "MambaManager.get_num_blocks_to_allocate",
        goes_on=True,
    ),
    Deviation(
        "whole-request-shares-hits",
        "PLAN-1",
        r"(sliding|chunked|mamba).*: admission: served:",
        Standing.CHOICE,
        "When a whole request must fit, hits that others hold count as never to be taken again, in layers that recycle"
        " blocks too; the specification counts on them only where a layer keeps all.",
        "KVCacheManager.allocate_slots, full_sequence_must_fit",
    ),
    Deviation(
        "stored-event-torn",
        "EV-1",
        r": events: .*a stored event of",
        Standing.BUG,
        "Where blocks of a range are null or not kept, the event of it names their tokens and not their hashes: who"
        " hears it cannot tell which hash covers which tokens.",
        "vllm-project/vllm#44451 (open)",
        confirm="stored_event_tokens",
        bugs=("B64",),
        goes_on=True,
    ),
    Deviation(
        "full-report-announces-nulls",
        "EV-1",
        NOWHERE,
        Standing.BUG,
        "A report of whole hits announces every position up to the hit's end, those that are null in it and cached"
        " nowhere too.",
        "BlockPool.emit_cached_block_events; no thread found",
        confirm="full_report_nulls",
        bugs=("B64",),
    ),
    Deviation(
        "only-reachable-blocks-kept",
        "PUB-2",
        rf"({ONE_WINDOW}|block 2 \+ sliding 2, block 1).*: state:",
        Standing.DOCUMENTED,
        "Blocks of a sliding layer that no aligned hit would need are passed over, not published.",
        "SlidingWindowManager.reachable_block_mask",
        goes_on=True,
    ),
    Deviation(
        "published-as-far-as-aligned",
        "REF-0",
        rf"({ONE_WINDOW}|block 2 \+ sliding 2, block 1|block 1 \+ sliding 3, block 2).*: keys:",
        Standing.DOCUMENTED,
        "With blocks of several sizes nothing is published behind the last place where a hit may end.",
        "HybridKVCacheCoordinator._align_cacheable",
        goes_on=True,
    ),
    NO_WINDOW_HIT,
    Deviation(
        "window-tail-without-slack",
        "HIT-2",
        NOWHERE,
        Standing.BUG,
        "With sparse retention exactly one window is kept below the place where the same prompt would hit: one that"
        " parts from it a block earlier hits nothing at all.",
        "vllm-project/vllm#57610, #57613 (open)",
        confirm="window_tail_sibling",
        bugs=("B39",),
    ),
    Deviation(
        "eagle-block-before-the-last-token",
        "HIT-2",
        r"^[^+]*: eagle: hit:",
        Standing.CHOICE,
        "With one group the block that is matched and given up must not hold the last token, so a hit may be a block"
        " shorter than with several; a token is left to compute all the same.",
        "UnitaryKVCacheCoordinator.find_longest_cache_hit",
        goes_on=True,
    ),
    Deviation(
        "chunks-kept-to-their-end",
        "PUB-2",
        r"chunked.*: (state|keys):",
        Standing.CHOICE,
        "The last block of a chunk is published, though no hit needs it: what comes after it reads a new chunk.",
        "ChunkedLocalAttentionManager",
        goes_on=True,
    ),
    Deviation(
        "partial-key-put-in-again",
        "KEY-1",
        r": check: .*blocks with several keys",
        Standing.BUG,
        "The key of a block's first part, taken back when the block was full, is put in again beside the whole one's.",
        "vllm-project/vllm#49125 (open)",
        confirm="partial_key_again",
        bugs=("B43",),
        goes_on=True,
    ),
    Deviation(
        "partial-keys-are-candidates",
        "QUEUE-1",
        r"block 2 \+ sliding 2, block 1.*: state:",
        Standing.DOCUMENTED,
        "A block that carries only the key of its first part stands among the candidates, though nothing finds it where"
        " no hit may end inside a block.",
        "FullAttentionManager._cache_partial_tail_block",
        goes_on=True,
    ),
    Deviation(
        "deferred-free-in-another-order",
        "QUEUE-1",
        NOWHERE,
        Standing.BUG,
        "What is freed once a step in flight has ended stands in the free queue in another order of groups than what is"
        " freed at once.",
        "vllm-project/vllm#48489 (open)",
        confirm="deferred_free_order",
        bugs=("B54",),
    ),
    Deviation(
        "evictions-counted-of-nothing",
        "MET-1",
        NOWHERE,
        Standing.BUG,
        "A block that is taken counts as evicted from the prefix cache, whether or not it was in it.",
        "vllm-project/vllm#47715",
        confirm="eviction_metrics",
        bugs=("B65",),
    ),
)
"""vLLM 0.33.0."""

KEEPS_LAST = r"(chunked|sliding 1, block 1).*: "
"""Layers of 0.11.0 of which the last published block is kept though no token reads it."""

OLD_DEVIATIONS: tuple[Deviation, ...] = (
    TRIMS,
    NO_WINDOW_HIT,
    Deviation(
        "last-published-block-kept",
        "TRIM-1",
        KEEPS_LAST + "state:",
        Standing.DOCUMENTED,
        "The last published block is kept though no later token reads it, to have its hash at hand.",
        "comments in remove_skipped_blocks",
        goes_on=True,
    ),
    *(
        Deviation(
            f"last-published-block-kept-{word}",
            law,
            KEEPS_LAST + f"{word}:",
            Standing.DOCUMENTED,
            "What follows in the answers and in the state from the last published block being kept.",
            "comments in remove_skipped_blocks",
            goes_on=True,
        )
        for law, word in (
            ("STEP-1", "step"),
            ("REF-0", "tables"),
            ("REF-0", "queue"),
            ("REF-0", "references"),
            ("REF-0", "free"),
        )
    ),
    Deviation(
        "freed-blocks-at-the-tail",
        "QUEUE-1",
        r": state:",
        Standing.CHOICE,
        "All freed blocks go to the tail of the free queue, those without content too, so that cached ones are evicted"
        " before them.",
        "BlockPool.free_blocks; changed in later releases",
        goes_on=True,
    ),
    Deviation(
        "hit-without-a-new-token",
        "REF-0",
        r"error: ValueError in allocate_slots: num_new_tokens must be greater than 0",
        Standing.DOCUMENTED,
        "A hit cannot be adopted without computing a token.",
        "KVCacheManager.allocate_slots; later releases allow it",
    ),
    Deviation(
        "eagle-drops-in-each-group",
        "HIT-2",
        r" \+ .*: eagle: hit:",
        Standing.BUG,
        "Each group drops a block of the hit, one after another, until little or nothing is left.",
        "vllm-project/vllm#32802 (closed by a later release)",
        confirm="old_eagle_hybrid",
        bugs=("B36",),
        goes_on=True,
    ),
    Deviation(
        "encoder-blocks-hide-a-shortage",
        "PLAN-1",
        r"cross.*: error: ValueError in get_new_blocks",
        Standing.BUG,
        "Of a running request its encoder blocks are subtracted from what the other groups need, so a call that does"
        " not fit is not refused but ends in an error, with blocks taken.",
        "SingleTypeKVCacheManager.get_num_blocks_to_allocate returns a negative number; mended in later releases",
        confirm="old_cross_demand",
    ),
    Deviation(
        "null-parent-breaks-event",
        "REF-0",
        r"error: AssertionError in cache_full_blocks: assert parent_block",
        Standing.BUG,
        "With events on, a block is published after one that is null or has no hash, and the event asks for its hash.",
        "BlockPool.cache_full_blocks; mended in later releases",
        confirm="old_null_parent",
    ),
    *(
        Deviation(
            f"null-block-published{suffix}",
            law,
            rf"(sliding|chunked).*: put off: {kind}",
            Standing.BUG,
            "Where publication was put off and the window has moved on, the null block is published under the prefix"
            " that the freed block had, and serves hits.",
            "BlockPool.cache_full_blocks; mended in later releases",
            confirm="old_null_published",
        )
        for suffix, law, kind in (
            ("", "NULL-1", "state:"),
            ("-key", "REF-0", "keys:"),
            ("-content", "PUB-1", "state:"),
            ("-hit", "HIT-1", "(state|hit):"),
        )
    ),
    Deviation(
        "publication-goes-back",
        "REF-0",
        r": put off: error: AssertionError in cache_full_blocks: assert blk",
        Standing.CHOICE,
        "To publish fewer tokens than are published sets the count of published blocks back, and the next call fails;"
        " its scheduler never does.",
        "SingleTypeKVCacheManager.cache_blocks",
    ),
)
"""vLLM 0.11.0."""
