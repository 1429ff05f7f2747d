"""Property: after a restart a lookup finds exactly what was written to the blocks it returns, or nothing (READ-1).

How: what is written to each block is kept beside a random engine, as its device's memory would; the index is dumped at
many points and restored into a new manager. Damage at every byte of a dump, and everything else that may differ.
Not covered: whether the memory is really kept.
"""

import pytest

msgspec = pytest.importorskip("msgspec")

from tests.observe.engine import HASHER, SIZE, Engine, full

from blockwright import KVCacheManager, MultiModalItem, Request, Sha256Hasher
from blockwright.errors import InvalidArgumentError
from blockwright.observe import EventStream
from blockwright.observe.checkpoint import dump, restore

OURS = b"model, layout, the memory's name"


def again(engine: Engine) -> KVCacheManager:
    """A new manager of the same kind."""
    return Engine(0, engine.manager.block_pool.num_blocks).manager


def published(manager: KVCacheManager) -> dict[int, bytes]:
    """What each block is found by."""
    return {block: key for block, key in enumerate(manager.block_pool.block_keys()) if key is not None}


@pytest.mark.parametrize("seed", range(3))
def test_what_is_restored_is_what_was_written(seed: int) -> None:
    engine = Engine(seed)
    total = 0
    for _ in range(25):
        engine.steps(6)
        data, pool = dump(engine.manager, engine.stream, OURS), engine.manager.block_pool
        manager = again(engine)
        count = restore(manager, data, OURS, HASHER)
        manager.check()
        free, written = pool.free_block_ids(), published(engine.manager)
        wanted = {block: key for block, key in written.items() if block in free}
        assert published(manager) == wanted
        assert count == len(wanted)
        order = manager.block_pool.free_block_ids()
        assert order[len(order) - count :] == [block for block in free if block in wanted]
        stream = EventStream()
        stream.record(manager.take_events())
        assert {key[:16] for key, _, _ in stream.known_keys() if isinstance(key, bytes)} == set(wanted.values())
        total += count
    assert total > 100


def test_duplicates_items_and_a_request_that_runs() -> None:
    """Two blocks of one prefix both come back; what is held is not dumped, nor what hangs on it."""
    engine = Engine(0)
    manager, items = engine.manager, [MultiModalItem("image", 2, 5)]
    requests = [Request(f"r{at}", [1] * 11, SIZE, mm_items=items, hasher=HASHER, cache_salt="t") for at in range(2)]
    running = Request("running", [2] * 11, SIZE, hasher=HASHER)
    for request in (*requests, running):
        assert manager.allocate_slots(request, 11) is not None
    for request in requests:
        manager.free(request)
    data = dump(manager, engine.stream, OURS)
    twin = again(engine)
    assert restore(twin, data, OURS, HASHER) == 4
    assert sorted(published(twin)) == [1, 2, 4, 5]
    same = Request("x", [1] * 11, SIZE, mm_items=items, hasher=HASHER, cache_salt="t")
    assert twin.get_computed_blocks(same)[1] == 8
    assert twin.get_computed_blocks(Request("y", [1] * 11, SIZE, hasher=HASHER))[1] == 0
    assert twin.get_computed_blocks(Request("z", [2] * 11, SIZE, hasher=HASHER))[1] == 0


def test_another_engine_restores_nothing() -> None:
    engine = Engine(1)
    engine.steps(40)
    data = dump(engine.manager, engine.stream, OURS)
    for manager, identity, hasher in (
        (again(engine), b"another", HASHER),
        (again(engine), OURS, Sha256Hasher(b"another seed")),
        (Engine(0, 41).manager, OURS, HASHER),
        (Engine(0, specs=(full(2 * SIZE),)).manager, OURS, HASHER),
    ):
        assert restore(manager, data, identity, hasher) == 0
        assert published(manager) == {}
        manager.check()


def test_damage_is_refused_and_changes_nothing() -> None:
    engine = Engine(1)
    engine.steps(8)
    data = dump(engine.manager, engine.stream, OURS)
    manager = again(engine)
    for at in range(0, len(data), 7):
        damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        for wrong in (damaged, data[:at]):
            with pytest.raises(InvalidArgumentError, match="data: is no whole dump"):
                restore(manager, wrong, OURS, HASHER)
    assert published(manager) == {}
    assert restore(manager, data, OURS, HASHER) == len(published(manager)) > 0
    with pytest.raises(InvalidArgumentError, match="manager: holds or publishes"):
        restore(manager, data, OURS, HASHER)
