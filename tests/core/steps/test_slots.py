"""Property: slots end at the maximum length, and a request is known by its name and by nothing else.

How: small managers of one group, by hand; refusals and errors are compared by a dump of the whole observable state.

Not covered: hits (test_manager.py), argument ranges (test_integers.py, test_bad_input.py), what a step takes, publishes
and releases (conformance).
"""

from __future__ import annotations

import pytest
from tests.core.support import admit, full, ids_of, manager_dump, manager_of, sliding, started, table

from blockwright import Request
from blockwright.errors import DuplicateRequestError, InvalidArgumentError


def test_slots_end_at_the_maximum() -> None:
    manager = manager_of(full(), 33, 18)
    request = started(manager, "r", 15)
    assert ids_of(manager.allocate_slots(request, 1, num_lookahead_tokens=100)) == [5]  # 18 slots, five blocks
    request.append_output_token_ids([1, 2, 3])
    before = manager_dump(manager)
    with pytest.raises(InvalidArgumentError, match=r"num_new_tokens.*max_model_len"):
        manager.allocate_slots(request, 4)
    assert manager_dump(manager) == before
    assert manager.allocate_slots(request, 3) is not None
    assert len(table(manager, "r")) == 5
    with pytest.raises(InvalidArgumentError, match="num_new_tokens"):
        manager.allocate_slots(Request("long", list(range(19)), 4), 19)


# ---------------------------------------------------------------------- release


def test_ids_belong_to_one_request_at_a_time() -> None:
    manager = manager_of(full())
    one, other = started(manager, "r", 9), Request("r", list(range(9)), 4)
    before = manager_dump(manager)
    for call in (
        lambda: manager.allocate_slots(other, 1),
        lambda: manager.allocate_slots_batch([other], 1),
        lambda: manager.free(other),
        lambda: manager.cache_blocks(other, 1),
        lambda: manager.remove_skipped_blocks(other, 1),
    ):
        with pytest.raises(DuplicateRequestError, match="'r'"):
            call()
    assert manager_dump(manager) == before
    manager.free(one.copy())  # a copy is the same request
    assert manager.usage == 0.0
    admit(manager, other)
    with pytest.raises(DuplicateRequestError, match="'r'"):
        manager.free(one)


def test_renamed_requests() -> None:
    """Tables are found by name: a request keeps its own."""
    manager = manager_of(full())
    request = started(manager, "r", 9)
    with pytest.raises(AttributeError):
        request.request_id = "renamed"  # type: ignore[misc]
    manager.free(request)
    manager.check()
    assert manager.usage == 0.0


def test_one_request_on_several_managers() -> None:
    """A request may run on several managers at a time (a draft model has its own), each with its own tables."""
    managers = [manager_of(full()), manager_of(sliding()), manager_of(full())]
    request = Request("r", list(range(9)), 4)
    for manager in managers:
        assert manager.allocate_slots(request, 9) is not None
    request.num_computed_tokens = 9
    request.append_output_token_ids([1])
    for manager in managers[::-1]:
        assert manager.allocate_slots(request, 1) is not None
        manager.check()
    managers[0].free(request)
    assert managers[0].usage == 0.0
    assert managers[1].usage > 0.0
    for manager in managers:
        manager.free(request)
        manager.check()
        assert manager.usage == 0.0


def test_what_is_published_ahead_of_the_count_stays_as_it_is() -> None:
    """Another request has found it: what both hold is not written again, and a fork starts no earlier."""
    manager = manager_of(full(2))
    request = Request("r", [0], block_size=2)
    assert manager.allocate_slots(request, 4) is not None
    request.append_output_token_ids([1, 2, 3])
    request.num_computed_tokens = 1
    manager.cache_blocks(request, 4)
    other = Request("s", [0, 1, 2, 3, 9], block_size=2)
    assert admit(manager, other) == 4
    with pytest.raises(InvalidArgumentError, match="went back"):
        manager.allocate_slots(request, 2)
    with pytest.raises(InvalidArgumentError, match="4 to 4 computed tokens"):
        manager.fork(request, request.fork("t"))
    request.num_computed_tokens = 4
    assert manager.allocate_slots(request, 2) is not None
    manager.check()


def test_a_batch_names_whoever_took_or_published_blocks() -> None:
    """And nobody of whom only counts have changed, as all can tell from the buffers alone."""
    manager = manager_of(full(4))
    request = started(manager, "r", 5)
    names = []
    for token in range(5):
        request.append_output_token_ids([token])
        batch = manager.allocate_slots_batch([request], 1)
        assert (len(batch.new_block_ids) > 0) == (request.num_tokens == 9)
        names += batch.request_ids
        request.num_computed_tokens += 1
    assert names == ["", "", "r", "r", ""]  # 8 tokens publish a block, 9 take one
