"""Property: stores take what is new and fits, hold exactly what is being read, and count every block once.

How: small cases, each of which shows one line of `offload/stores.py`: every one was asked for by a change of the source
that no other test noticed (`blockwright conform --gate mutants`).
Not covered: what connectors make of it (test_connector_books.py, test_connector_calls.py).
"""

import pytest
from tests.offload.connector.test_connector_calls import Rig, StillHandler, evicting, manager_of, sliding

from blockwright import FullAttentionSpec, Request
from blockwright.errors import InvariantError
from blockwright.offload import (
    CPUBackend,
    CPULoadStoreSpec,
    GPULoadStoreSpec,
    LRUOffloadingManager,
    OffloadChain,
    OffloadingConnector,
    OffloadingWorker,
)


def test_what_is_known_is_counted_once() -> None:
    rig = Rig()
    first = rig.compute("first", range(5))
    rig.connector.finish_step([first])
    assert rig.connector.stats().known_blocks == 0
    other = Request("other", [*range(4), 50, 51, 52], 2)  # shares two blocks, which the host has or is being given
    hit, num_hit = rig.manager.get_computed_blocks(other)
    assert num_hit == 4
    assert rig.manager.allocate_slots(other, 3, 4, hit) is not None
    other.num_computed_tokens = 7
    rig.connector.finish_step([other])
    assert rig.connector.stats().known_blocks == 2
    rig.connector.finish_step([first, other])
    assert rig.connector.stats().known_blocks == 2


def test_only_what_is_computed_is_stored() -> None:
    rig = Rig()
    request = Request("r", list(range(9)), 2)
    assert rig.manager.allocate_slots(request, 8) is not None
    request.num_computed_tokens = 4
    rig.connector.finish_step([request])
    assert [len(source) for source, _ in rig.handler.blocks()] == [2]


@pytest.mark.parametrize(("host", "stored"), [(1, [1]), (3, [1, 2, 3]), (5, [1, 2, 3, 4, 5])])
def test_the_first_blocks_that_fit_are_stored(host: int, stored: list[int]) -> None:
    rig = Rig(host=host)
    rig.compute("r", range(11))
    assert [source for source, _ in rig.handler.blocks()] == [stored]


def test_of_blocks_of_two_the_right_parts_are_stored_and_held() -> None:
    rig = Rig(per_block=2, host=1)
    rig.compute("r", range(17))
    assert [source for source, _ in rig.handler.blocks()] == [[1, 2]]
    assert rig.manager.block_pool.ref_counts()[1:10] == [2, 2, 1, 1, 1, 1, 1, 1, 1]
    whole = Rig(per_block=2)
    whole.compute("r", range(17))
    assert whole.manager.block_pool.ref_counts()[1:10] == [2] * 8 + [1]


def test_a_block_of_two_whose_first_part_the_window_has_left_is_not_stored() -> None:
    """The two parts are filled by two steps, and a window of two drops the first between them."""
    rig = Rig(sliding(2, 2), per_block=2)
    request = rig.compute("r", range(7))
    rig.handler.end()
    request.append_output_token_ids([7])
    assert rig.manager.allocate_slots(request, 1) is not None
    request.num_computed_tokens = 8
    (table,) = rig.manager.get_block_ids("r")
    assert [table[2], rig.manager.block_pool.is_published(table[3])] == [0, True]
    rig.connector.finish_step([request])
    assert rig.handler.blocks() == []


def test_drafts_that_were_accepted_are_stored_once_they_can_be_found() -> None:
    """Their blocks are published by the next step: until then the offloaded block is not passed over."""
    rig = Rig(per_block=2)
    request = Request("r", [0, 1, 2], 2)
    assert rig.manager.allocate_slots(request, 4) is not None  # a draft in the fourth slot
    request.append_output_token_ids([3, 4])  # it is accepted, and a token comes after it
    request.num_computed_tokens = 4
    rig.connector.finish_step([request])
    assert rig.handler.blocks() == []
    assert rig.manager.allocate_slots(request, 1) is not None
    request.num_computed_tokens = 5
    rig.connector.finish_step([request])
    assert [source for source, _ in rig.handler.blocks()] == [[1, 2]]


def test_the_last_block_that_was_held_goes_first() -> None:
    rig = Rig(num_blocks=4)
    rig.end(rig.compute("r", range(6)))
    rig.handler.end()
    rig.connector.poll()
    assert rig.manager.block_pool.free_block_ids() == [3, 2, 1]


def test_evicted_blocks_are_copied_and_not_held() -> None:
    rig, _ = evicting()
    before = rig.manager.block_pool.ref_counts()
    assert len(rig.connector.pending_copies()) == 1
    assert rig.manager.block_pool.ref_counts() == before


def test_a_store_that_has_ended_is_still_to_be_told() -> None:
    rig = Rig()
    rig.compute("r", range(5))
    rig.handler.end()
    rig.connector.start_step()  # it learns of the end here
    assert not rig.connector.is_idle
    rig.connector.poll()
    assert rig.connector.is_idle


def test_what_steps_fill_is_not_stored_again_on_eviction() -> None:
    spec = FullAttentionSpec(block_size=2, num_kv_heads=1, head_size=1, dtype="float32")
    manager, handler, worker = manager_of(spec, num_blocks=4, track_evictions=True), StillHandler(), OffloadingWorker()
    worker.register_handler(GPULoadStoreSpec, CPULoadStoreSpec, handler)
    worker.register_handler(CPULoadStoreSpec, GPULoadStoreSpec, handler)
    chain = OffloadChain([LRUOffloadingManager(CPUBackend(2, 9))])
    connector = OffloadingConnector(manager, chain, worker, store_on="publish")
    for name, start in (("first", 0), ("second", 50)):  # the first is never told of, so that it is not stored
        request = Request(name, list(range(start, start + 6)), 2)
        assert manager.allocate_slots(request, 6) is not None
        manager.free(request)
    assert connector.pending_copies() == []
    connector.start_step()
    assert handler.begun == {}


def test_a_block_that_nobody_should_hold_breaks_the_check() -> None:
    rig = Rig()
    rig.compute("r", range(5))
    rig.connector.check()
    rig.manager.block_pool.touch([1])
    with pytest.raises(InvariantError):
        rig.connector.check()
