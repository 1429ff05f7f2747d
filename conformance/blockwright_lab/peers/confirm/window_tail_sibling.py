"""Only the last window of a prompt is kept: one that parts from it within its last blocks hits nothing at all."""

from .vllm_setup import full, manager, request, sliding


def shown() -> str:
    """Look up a prompt that shares 14 tokens of 18 with an earlier one, with sparse and with dense retention."""
    hits = []
    for retention in (0, None):  # 0 is what its engine core uses; None keeps every window
        kv = manager([full(4), sliding(2, 9)], 40, hash_size=2, retention=retention)
        kv.allocate_slots(request("first", list(range(18)), 2), 18)
        hits.append(kv.get_computed_blocks(request("sibling", [*range(14), 90, 91, 92, 93], 2))[1])
    sparse, dense = hits
    return f"a sibling that shares 14 tokens hits {sparse}, with every window kept {dense}" if sparse < dense else ""
