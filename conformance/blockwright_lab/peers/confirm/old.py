"""Where vLLM 0.11.0 is wrong by its own word, each shown by a function over its own API."""

from ..vllm_engine import vllm

VERSION = "0.11.0"


def old_cross_demand() -> str:
    """Show that encoder blocks of a running request hide that its next chunk does not fit."""
    kv, request = vllm(VERSION, "full, block 2 + cross, block 2", 4, caching=False)
    own = request("r", [0, 1, 2, 3])
    kv.allocate_slots(own, 2, num_encoder_tokens=4)
    own.num_computed_tokens = 2
    free = kv.block_pool.get_num_free_blocks()
    try:
        kv.allocate_slots(own, 2)
    except ValueError as error:
        return f"{free} free, 1 needed: not refused, but {type(error).__name__}: {error}"
    return ""


def old_eagle_hybrid() -> str:
    """Show that with drafts of EAGLE each group drops a block of the hit, one after another."""
    hits = []
    for layers in ("full, block 2", "full, block 2 + sliding 3, block 2"):
        kv, request = vllm(VERSION, layers, 20, eagle=True)
        kv.allocate_slots(request("first", [0, 1, 2, 3, 4]), 5)
        hits.append(kv.get_computed_blocks(request("again", [0, 1, 2, 3, 4]))[1])
    alone, beside = hits
    return f"a hit of {alone} tokens alone, {beside} beside a sliding layer" if beside < alone else ""


def old_null_parent() -> str:
    """Show that, with events, a block is published after one that is null, and the event of it cannot be made."""
    kv, request = vllm(VERSION, "chunked 2, block 2", 6)
    own = request("r", [0, 1, 2, 3])
    blocks, length = kv.get_computed_blocks(own)
    try:
        kv.allocate_slots(own, 2, length, blocks)
    except AssertionError:
        return f"a hit of {length} tokens, and an AssertionError when it is used"
    return ""


def old_null_published() -> str:
    """Show that the null block is published, and serves a hit, where publication was put off."""
    kv, request = vllm(VERSION, "sliding 3, block 2", 6, enable_kv_cache_events=False)
    own = request("r", [0, 1, 2, 3, 4])
    kv.allocate_slots(own, 4, delay_cache_blocks=True)
    own.num_computed_tokens = 4
    kv.allocate_slots(own, 1)
    blocks, length = kv.get_computed_blocks(request("again", [0, 1, 2]))
    ids = [block.block_id for block in blocks.blocks[0]]
    return f"a hit of {length} tokens in blocks {ids}: block 0 is the null block" if 0 in ids else ""
