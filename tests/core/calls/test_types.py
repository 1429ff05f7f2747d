"""Property: a user's program has types, which hold when it runs.

How: the lint's mypy reads this file in its strict mode, where an argument that is taken but not declared is an error.
Not covered: other type checkers; each call of the API; `inspect`, which finds no annotations of compiled functions.
"""

from __future__ import annotations

from array import array

import numpy as np
from tests.core.support import manager_over

from blockwright import AttentionSpec, FullAttentionSpec, KVCacheSpec, Request, SlidingWindowSpec


def layers() -> dict[str, KVCacheSpec]:
    spec: AttentionSpec = FullAttentionSpec(4, num_kv_heads=1, head_size=1, dtype="float16")
    window: AttentionSpec = SlidingWindowSpec(4, num_kv_heads=1, head_size=1, dtype="float16", sliding_window=6)
    return {"full": spec, "window": window}


def test_tokens_come_in_any_form() -> None:
    request = Request(7, np.array([1, 2]))
    for tokens in (5, np.int64(5), [5], (5,), array("q", [5]), np.array([5])):
        request.append_output_token_ids(tokens)
    assert request.output_token_ids == [5] * 6
    assert request.sync(np.array([1, 2, *[5] * 6, 6])) == 1


def test_answers_have_types() -> None:
    manager = manager_over(list(layers().values()))
    request = Request(("a", 1), [1] * 6)
    blocks = manager.allocate_slots(request, 6)
    assert blocks is not None
    ids: tuple[list[int], ...] | None = blocks.get_block_ids()
    request.num_computed_tokens = 6
    copies: list[list[tuple[int, int]]] | None = manager.fork_with_copies(request, request.fork("b"))
    step = manager.allocate_slots_batch([request], 1)
    total: int = int(sum(step.new_block_ids)) + len(step.nulled_entries)
    picture: str = manager.draw().svg()
    assert (ids is not None and len(ids), copies, total) == (2, [[(2, 5)], [(4, 6)]], 0)
    assert picture.startswith("<svg")
