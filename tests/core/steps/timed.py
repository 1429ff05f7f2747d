"""What the tests of time share: managers whose steps are in flight, and an engine's side of a step."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.support import manager_dump, manager_over

from blockwright import KVCacheManager, KVCacheSpec, Request


def over(specs: list[KVCacheSpec], num_blocks: int = 41, settles: bool = False, max_len: int = 200) -> KVCacheManager:
    return manager_over(specs, num_blocks, max_len, overlap_steps=True, publish_on_settlement=settles)


def give(manager: KVCacheManager, request: Request, new: int, drafts: int = 0) -> bool:
    """Give slots in the open step; the engine's count runs ahead."""
    if manager.allocate_slots(request, new, num_draft_tokens=drafts) is None:
        return False
    request.num_computed_tokens += new
    return True


def prefilled(manager: KVCacheManager, name: str = "r", length: int = 9, first: int = 0) -> Request:
    """A request whose prompt is in flight, in a step of its own."""
    request = Request(name, list(range(first, first + length)), 2)
    manager.start_step()
    assert give(manager, request, length)
    return request


Errors = type[Exception] | tuple[type[Exception], ...]


def refused(manager: KVCacheManager, error: Errors, call: Any, *arguments: Any, **named: Any) -> str:
    before = manager_dump(manager)
    with pytest.raises(error) as caught:
        call(*arguments, **named)
    assert manager_dump(manager) == before
    manager.check()
    return str(caught.value)
