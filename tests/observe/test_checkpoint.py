"""Property: RESTART-1: after a restart each block is found under its own key again (READ-1), or nothing is.

How: random engines of one and several kinds of layers, whose prefixes lose their parents; the index is dumped at many
points, also while requests run, and restored into a new manager. Then faults: every byte of a dump altered, every
shorter dump, and everything else that may differ.
Not covered: whether the memory is really kept.
"""

from contextlib import suppress
from typing import Any

import pytest
from tests.observe.engine import HASHER, SIZE, Engine, full, recurrent, window

from blockwright import BlockHasher, FunctionHasher, KVCacheManager, MultiModalItem, Request, Sha256Hasher
from blockwright.errors import InvalidArgumentError, UnsupportedError
from blockwright.observe import EventStream
from blockwright_spec.manager.events import law_restart_finds_what_stood_there

OURS = b"model, layout, the memory's name"
KINDS = [(full(),), (full(), window(8)), (window(6),), (full(2 * SIZE), window(8)), (full(), recurrent())]


def dump(engine: Engine, hasher: BlockHasher | None = HASHER) -> bytes:
    """What an engine leaves behind."""
    engine.stream.record(engine.manager.take_events())
    return engine.manager.dump(engine.stream.snapshot().events, OURS, hasher)


def queue(manager: KVCacheManager) -> tuple[tuple[int, Any], ...]:
    """What nobody holds, first to be taken first: a block, and what it is found under."""
    pool = manager.block_pool
    keys, groups = pool.block_keys(), pool.block_groups()
    return tuple((block, keys[block] and (groups[block], keys[block])) for block in pool.free_block_ids())


def restarted(engine: Engine, manager: KVCacheManager, data: bytes, may: bool = True, **other: Any) -> int:
    """Restore into a new manager, under the law; how many blocks."""
    count = 0
    with suppress(InvalidArgumentError):
        count = manager.restore(data, **{"identity": OURS, "hasher": HASHER, **other})
    after = queue(manager)
    assert law_restart_finds_what_stood_there(queue(engine.manager), may, after)
    assert count == sum(content is not None for _, content in after)
    assert manager.block_pool.get_num_free_blocks() == manager.block_pool.num_blocks - 1
    return count


@pytest.mark.parametrize("specs", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_what_is_restored_is_what_was_written(seed: int, specs: tuple[Any, ...]) -> None:
    engine = Engine(seed, 60, specs)
    total = orphans = 0
    for _ in range(25):
        engine.steps(6)
        data = dump(engine)
        manager = Engine(0, 60, specs).manager
        total += restarted(engine, manager, data)
        manager.check()
        stream = EventStream()
        stream.record(manager.take_events())
        told = {(event.block_hash, event.group_id): event[:-1] for event in engine.stream.snapshot().events}
        for event in stream.snapshot().events:
            assert event[:-1] == told[event.block_hash, event.group_id]
            orphans += event.is_parent_absent
    assert total > 100
    assert orphans > 0 or len(specs) == 1


def test_duplicates_items_and_a_request_that_runs() -> None:
    """Two blocks of one prefix both come back; what is held is not dumped. An item that began long before, too."""
    engine = Engine(0)
    manager, items = engine.manager, [MultiModalItem("image", 2, 8)]
    requests = [Request(f"r{at}", [1] * 15, SIZE, mm_items=items, hasher=HASHER, cache_salt="t") for at in range(2)]
    running = Request("running", [2] * 11, SIZE, hasher=HASHER)
    for request in (*requests, running):
        assert manager.allocate_slots(request, request.num_tokens) is not None
    for request in requests:
        manager.free(request)
    twin = Engine(0).manager
    assert restarted(engine, twin, dump(engine)) == 6
    same = Request("x", [1] * 15, SIZE, mm_items=items, hasher=HASHER, cache_salt="t")
    assert twin.get_computed_blocks(same)[1] == 12
    assert twin.get_computed_blocks(Request("y", [1] * 15, SIZE, hasher=HASHER))[1] == 0
    assert twin.get_computed_blocks(Request("z", [2] * 11, SIZE, hasher=HASHER))[1] == 0


def test_faults_restore_nothing() -> None:
    """Each byte altered, each shorter dump, and each other engine; then the dump itself, once."""
    engine = Engine(1)
    engine.steps(8)
    data = dump(engine)
    manager = Engine(0).manager
    for at in range(len(data)):
        restarted(engine, manager, data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :], may=False)
        restarted(engine, manager, data[:at], may=False)
    with pytest.raises(InvalidArgumentError, match="data: is no whole dump: its checksum differs"):
        manager.restore(data + b"\0", OURS, HASHER)
    for other in ({"identity": b"another"}, {"hasher": Sha256Hasher(b"another seed")}, {"hasher": None}):
        restarted(engine, manager, data, may=False, **other)
    for num_blocks, specs in ((41, (full(),)), (40, (full(2 * SIZE),)), (40, (full(), full())), (40, (window(8),))):
        restarted(engine, Engine(0, num_blocks, specs).manager, data, may=False)
    assert restarted(engine, manager, data) > 0
    with pytest.raises(InvalidArgumentError, match="manager: holds or publishes"):
        manager.restore(data, OURS, HASHER)


def test_a_call_that_ends_midway_restores_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(1)
    engine.steps(8)
    data = dump(engine)
    manager = Engine(0).manager
    requests = [Request("key", [0], 1, hasher=HASHER), *(Request(f"r{at}", [at] * SIZE, SIZE) for at in range(2))]
    with monkeypatch.context() as patched:
        patched.setattr("blockwright.core.seldom.checkpoint.Request", lambda *_, **__: requests.pop(0))
        with pytest.raises(InvalidArgumentError, match="request: events need keys"):
            manager.restore(data, OURS, HASHER)
    assert restarted(engine, manager, data) > 0


def test_keys_that_an_engine_gives_and_managers_that_cannot() -> None:
    """Without a hasher the identity alone says whose keys they are. Keys that may collide do not say enough."""
    engine = Engine(1)
    engine.steps(8)
    data = dump(engine, None)
    assert restarted(engine, Engine(0).manager, data, hasher=None) > 0
    config = engine.manager.kv_cache_config
    weak = FunctionHasher(lambda parent, block: bytes(16), is_portable=True)
    verifying = KVCacheManager(config, 256, enable_kv_cache_events=True, verify_tokens=True)
    for call in (lambda: verifying.dump([], OURS, weak), lambda: verifying.restore(data, OURS, None)):
        with pytest.raises(UnsupportedError, match="made with verify_tokens"):
            call()
    with pytest.raises(InvalidArgumentError, match="records no events"):
        KVCacheManager(config, 256).dump([], OURS, HASHER)
