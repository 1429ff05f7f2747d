"""vLLM 0.11.0: with drafts of EAGLE each group drops a block of the hit, one after another."""

from .old_setup import manager, request


def shown() -> str:
    """Look a cached prompt up again, with full attention alone and beside a sliding layer."""
    hits = []
    for layers in ({"full": None}, {"full": None, "sliding": 3}):
        kv = manager(20, eagle=True, **layers)
        kv.allocate_slots(request("first", [0, 1, 2, 3, 4]), 5)
        hits.append(kv.get_computed_blocks(request("again", [0, 1, 2, 3, 4]))[1])
    alone, beside = hits
    return f"a hit of {alone} tokens alone, {beside} beside a sliding layer" if beside < alone else ""
