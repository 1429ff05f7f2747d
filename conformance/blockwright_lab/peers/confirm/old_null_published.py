"""vLLM 0.11.0: publication was put off, the window moved on: the null block is published, and served as a hit."""

from .old_setup import manager, request


def shown() -> str:
    """Put publication off, as a load does, let the window leave the first block, and look up its prompt."""
    kv, own = manager(6, sliding=3), request("r", [0, 1, 2, 3, 4])
    kv.allocate_slots(own, 4, delay_cache_blocks=True)
    own.num_computed_tokens = 4
    kv.allocate_slots(own, 1)
    blocks, length = kv.get_computed_blocks(request("again", [0, 1, 2]))
    ids = [block.block_id for block in blocks.blocks[0]]
    return f"a hit of {length} tokens in blocks {ids}: block 0 is the null block" if 0 in ids else ""
