"""Property: a step gets its slots, or nothing changes; publication, trimming and release follow, one behaviour a test.

How: small managers of one group, by hand; refusals and errors are compared by a dump of the whole observable state.

Not covered: hits (test_manager.py), argument ranges (test_integers.py, test_bad_input.py), random use (test_walk.py),
agreement with the specification (conformance).
"""

from __future__ import annotations

import pytest
from tests.core.support import (
    Setup,
    admit,
    chunked,
    every_setup,
    full,
    ids_of,
    mamba,
    manager_dump,
    manager_of,
    manager_over,
    sliding,
    started,
    table,
)

from blockwright import KVCacheSpec, MambaSpec, Request
from blockwright.errors import DuplicateRequestError, InvalidArgumentError, StalePlanError


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


def test_nothing_to_do_is_an_error() -> None:
    manager = manager_of(full())
    request = started(manager, "r", 5)
    before = manager_dump(manager)
    with pytest.raises(ValueError, match="num_new_tokens"):
        manager.allocate_slots(request, 0)
    with pytest.raises(ValueError, match="num_new_tokens"):
        manager.allocate_slots(Request("new", [1], 4), 0)
    assert manager_dump(manager) == before


def test_only_drafts_are_taken_back() -> None:
    """What was computed of known tokens is certain, trimmed or not, and so is what the engine said was done."""
    for spec in (full(), sliding(), chunked()):
        manager = manager_of(spec)
        request = Request("r", list(range(6)), 4)
        assert manager.allocate_slots(request, 9) is not None  # three drafts
        for computed in (0, 5, 10):
            request.num_computed_tokens = computed
            before = manager_dump(manager)
            for call in (lambda: manager.allocate_slots(request, 1), lambda: manager.plan(request, 1)):  # noqa: B023
                with pytest.raises(InvalidArgumentError, match="num_computed_tokens"):
                    call()
            assert manager_dump(manager) == before
        manager.remove_skipped_blocks(request, 7)
        request.num_computed_tokens = 6
        with pytest.raises(InvalidArgumentError, match="num_computed_tokens"):
            manager.allocate_slots(request, 1)  # the engine has said that 7 are done
        request.append_output_token_ids([6, 7])
        request.num_computed_tokens = 7
        assert manager.allocate_slots(request, 1) is not None
        manager.check()


def test_delayed_publication() -> None:
    manager = manager_of(full())
    request = Request("r", list(range(18)), 4)
    assert manager.allocate_slots(request, 18, delay_cache_blocks=True) is not None
    assert manager.num_published("r") == (0,)
    for num_tokens, expected in ((0, 0), (3, 0), (9, 2), (4, 2), (18, 4)):
        manager.cache_blocks(request, num_tokens)
        assert manager.num_published("r") == (expected,)
    before = manager_dump(manager)
    with pytest.raises(InvalidArgumentError, match="num_computed_tokens"):
        manager.cache_blocks(request, 19)
    assert manager_dump(manager) == before
    late = Request("late", list(range(30, 48)), 4)
    assert manager.allocate_slots(late, 18, delay_cache_blocks=True) is not None
    late.num_computed_tokens = 18
    late.append_output_token_ids([1])
    assert manager.allocate_slots(late, 1) is not None  # publishes what was put off, too
    assert manager.num_published("late") == (4,)
    manager.check()


# ---------------------------------------------------------------------- release


@every_setup
def test_release_and_preemption(setup: Setup) -> None:
    manager, size = setup.manager(), setup.spec.block_size
    request = Request("r", list(range(10)), size)
    admit(manager, request)
    manager.free(request)
    before = manager_dump(manager)
    manager.free(request)
    manager.free(Request("never seen", [1], size))
    assert manager_dump(manager) == before
    assert manager.usage == 0.0
    assert manager.request_ids() == []
    assert not manager.managers[0].req_to_blocks
    assert not manager.managers[0].num_cached_block
    with pytest.raises(InvalidArgumentError, match="num_computed_tokens"):
        manager.allocate_slots(request, 1)  # the engine has not said that it starts again
    request.num_computed_tokens = 0
    request.append_output_token_ids([77])
    admit(manager, request)
    manager.check()


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


@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
def test_a_request_cannot_go_back_behind_what_was_said_to_be_done(batch: bool) -> None:
    manager = manager_of(sliding(2, 3))
    request = Request("r", [1, 2, 3, 4], block_size=2)
    assert manager.allocate_slots(request, 12) is not None
    request.num_computed_tokens = 12  # done, and told later or never which tokens they are
    if batch:
        assert manager.allocate_slots_batch([request], 1).num_served == 1
        request.num_computed_tokens = 13
        assert manager.allocate_slots_batch([request], 1).num_served == 1
    else:
        assert manager.allocate_slots(request, 1) is not None
    request.num_computed_tokens = 4
    with pytest.raises(InvalidArgumentError, match="went back"):
        manager.allocate_slots(request, 1)
    manager.check()


@pytest.mark.parametrize("caching", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize(
    "spec", [full(2), sliding(2, 3), chunked(2, 4), mamba(2, 4)], ids=["full", "sliding", "chunked", "mamba"]
)
def test_a_request_cannot_go_back_behind_what_was_published(spec: KVCacheSpec, caching: bool) -> None:
    """Accepted drafts may be taken back until they are published, whatever the engine counts at that moment."""
    for accepted in range(5):
        for said in range(4, 5 + accepted):
            manager = manager_over([spec], 30, 50, caching)
            request = Request("r", [1, 2, 3, 4], block_size=2)
            assert manager.allocate_slots(request, 8, num_draft_tokens=4) is not None
            request.append_output_token_ids(list(range(accepted + 1)))
            request.num_computed_tokens = 4
            plan = manager.plan(request, accepted + 1)
            manager.cache_blocks(request, said)
            manager.cache_blocks(request, 0)
            if said > 4:
                with pytest.raises(StalePlanError):
                    manager.commit(plan)
            for computed in range(said):
                request.num_computed_tokens = computed
                before = manager_dump(manager)
                for call in (manager.allocate_slots, manager.plan):
                    with pytest.raises(InvalidArgumentError, match="went back"):
                        call(request, 1)
                with pytest.raises(InvalidArgumentError, match="went back"):
                    manager.allocate_slots_batch([request], 1)
                assert manager_dump(manager) == before
            request.num_computed_tokens = said  # those after it may still be taken back
            if caching and type(spec) is not MambaSpec:
                assert manager.num_published("r") == (said // 2,)
            assert manager.allocate_slots(request, 1) is not None
            manager.check()
            with pytest.raises(InvalidArgumentError, match="num_computed_tokens"):
                manager.cache_blocks(request, said + 2)


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
