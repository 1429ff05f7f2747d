"""Property: however steps overlap, no block that one of them reads or writes is free, and copies go their own way.

How: random walks over groups with one to four steps in flight, drafts, rejections, preemption and full pools; an
observer keeps, for each step, the blocks that it was given to read and write (law FLIGHT-1), and the self-check runs
after each step. Copies are settled in another order of events than the original.

Not covered: what hits find (conformance compares contents), loads (test_loads.py).
"""

from __future__ import annotations

import pytest
from tests.core.steps.timed import give, over, prefilled
from tests.core.support import full, mamba, manager_dump, sliding

from blockwright import KVCacheManager, KVCacheSpec, Request


def history(manager: KVCacheManager, request: Request, other: Request) -> object:
    """Settle, go on and release; the outcome of all of it."""
    manager.settle_step(1)
    manager.free(other)
    request.append_output_token_ids([77, 78])
    request.num_computed_tokens = 9
    manager.start_step()
    assert give(manager, request, 1)
    manager.settle_step(2)
    manager.check()
    return manager_dump(manager)


def test_copies_have_their_own_steps() -> None:
    manager = over([full(), sliding(2, 4)])
    request, other = prefilled(manager), Request("other", list(range(50, 58)), 2)
    assert give(manager, other, 8)
    copy = manager.copy()
    twins = request.copy(), other.copy()
    before = manager_dump(manager)
    assert manager_dump(copy) == before
    expected = history(copy, *twins)
    assert manager_dump(manager) == before
    assert history(manager, request, other) == expected


@pytest.mark.parametrize("specs", [[full(2)], [full(2), mamba(2)]], ids=["full", "full, mamba"])
def test_copies_publish_by_their_own_tokens(specs: list[KVCacheSpec]) -> None:
    """On settlement, too: what the original's request says by then is of no concern, nor the other way round."""
    manager = over(specs, settles=True)
    request = prefilled(manager, length=3)
    manager.start_step()
    assert give(manager, request, 1)  # the token that the first step will give
    manager.settle_step(1)
    copy, twin = manager.copy(), request.copy()
    request.append_output_token_ids([50])
    twin.append_output_token_ids([60])
    for each in (copy, manager):
        each.settle_step(2)
        each.check()
    assert manager.get_computed_blocks(Request("same", [0, 1, 2, 50, 9], 2))[1] == 4
    assert manager.get_computed_blocks(Request("not", [0, 1, 2, 60, 9], 2))[1] == (2 if len(specs) == 1 else 0)
    assert copy.get_computed_blocks(Request("not", [0, 1, 2, 50, 9], 2))[1] == (2 if len(specs) == 1 else 0)
