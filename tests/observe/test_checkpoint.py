"""Property: RESTART-1: after a restart each block is found under its own key again (READ-1), or nothing is.

How: random engines of one and several kinds of layers, whose prefixes lose their parents; the index is dumped at many
points, also while requests run, and restored into a new manager. Then faults: every byte of a dump altered, every
shorter dump, everything else that may differ, and documents altered at random under a checksum that is right.
Not covered: whether the memory is really kept.
"""

import copy
import hashlib
import json
from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from tests.observe.engine import HASHER, SIZE, Engine, full, recurrent, window

from blockwright import BlockHasher, FunctionHasher, KVCacheManager, MultiModalItem, Request, Sha256Hasher
from blockwright.errors import InvalidArgumentError, UnsupportedError
from blockwright.events import BlockStored
from blockwright.observe import EventStream, checkpoint
from blockwright_spec.manager.events import law_restart_finds_what_stood_there

CASES = 400
OURS = b"model, layout, the memory's name"
KINDS = [(full(),), (full(), window(8)), (window(6),), (full(2 * SIZE), window(8)), (full(), recurrent())]


def dump(engine: Engine, hasher: BlockHasher | None = HASHER) -> bytes:
    """What an engine leaves behind."""
    engine.stream.record(engine.manager.take_events())
    events = engine.stream.snapshot().events
    return engine.manager.dump([*events, *events[:1]], OURS, hasher)


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
        told = {
            (event.block_hash, event.group_id): event._replace(is_parent_absent=False)
            for event in engine.stream.snapshot().events
        }
        for event in stream.snapshot().events:
            assert event._replace(is_parent_absent=False) == told[event.block_hash, event.group_id]
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
        request.num_computed_tokens = request.num_tokens
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
        for wrong in (data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :], data[:at]):
            with pytest.raises(InvalidArgumentError, match="data: is no whole dump"):
                manager.restore(wrong, OURS, HASHER)
    assert queue(manager) == queue(Engine(0).manager)
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
    checked = checkpoint._checked_prefixes
    with monkeypatch.context() as patched:
        patched.setattr(
            checkpoint, "_checked_prefixes", lambda *given: [*checked(*given)[:-1], BlockStored(b"", None, b"", 1)]
        )
        with pytest.raises(InvalidArgumentError, match="block_hash: must be bytes"):
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


ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    3,
    2**31,
    2**63,
    -(10**40),
    0.5,
    float("nan"),
    "",
    "zz",
    "ab" * 16,
    "\ud800",
    [],
    {},
    [[]] * 3,
)


def altered(random: Random, body: Any) -> Any:
    """A value somewhere in a document replaced by an odd one or by another of it, left out, repeated, or moved."""
    at, places = body, [body]
    while isinstance(at, list) and at and (len(places) < 2 or random.random() < 0.8):
        at = random.choice(at)
        places.append(at)
    rows = [each for each in places if isinstance(each, list) and each]
    row, other = random.choice(rows), random.choice(rows)
    index = random.randrange(len(row))
    match random.randrange(6):
        case 0:
            del row[index]
        case 1:
            row.insert(index, copy.deepcopy(random.choice(other)))
        case 2:
            row[index] = copy.deepcopy(random.choice(other))
        case 3 if isinstance(row[index], int):
            row[index] += random.choice([-1, 1, 2**16])
        case 4 if isinstance(row[index], str) and row[index]:
            cut = random.randrange(len(row[index]))
            row[index] = row[index][:cut] + random.choice(["", "8", "ff", " ", "\0"]) + row[index][cut + 1 :]
        case _:
            row[index] = copy.deepcopy(random.choice(ODD))
    return body


@pytest.mark.parametrize("specs", KINDS)
def test_altered_dumps_under_a_right_checksum_restore_a_sound_state_or_nothing(specs: tuple[Any, ...]) -> None:
    """The checksum has no key: whoever alters a dump can make it again. Then the call may refuse, but not break."""
    random, engine, empty = Random(len(specs)), Engine(3, 30, specs), Engine(0, 30, specs).manager
    engine.steps(12)
    items = [MultiModalItem("image", 2, 8)]
    request = Request("items", [1] * 15, SIZE, mm_items=items, hasher=HASHER, cache_salt="t")
    if engine.manager.allocate_slots(request, 15) is not None:
        engine.manager.free(request)
    for running in engine.running:
        engine.manager.free(running)
    data = dump(engine)
    before, ended = queue(empty), Counter[str]()
    for _ in range(CASES):
        body = json.loads(data[32:])
        for _ in range(random.choice([1, 1, 2, 4])):
            body = altered(random, body) if isinstance(body, list) and body else body
        text = json.dumps(body).encode()
        manager, count = empty.copy(), 0
        with suppress(InvalidArgumentError):
            count = manager.restore(hashlib.sha256(text).digest() + text, OURS, HASHER)
        ended["refused" if count == 0 else "restored"] += 1
        after = queue(manager)
        assert count == sum(content is not None for _, content in after)
        assert after == before if count == 0 else sorted(block for block, _ in after) == list(range(1, 30))
        assert count > 0 or manager.take_events() == []
        manager.check()
    assert min(ended["refused"], ended["restored"]) > 0


@pytest.mark.parametrize(
    "text", [b"", b"[", b"null", b"[" * 100_000, b"[" + b"9" * 5_000 + b"]", b"\xff", b"{}", b'["", [], {}]']
)
def test_what_is_no_dump_is_refused(text: bytes) -> None:
    with pytest.raises(
        InvalidArgumentError, match="data: is not an owner, prefixes and blocks, so no manager wrote it"
    ):
        Engine(0).manager.restore(hashlib.sha256(text).digest() + text, OURS, HASHER)


def test_a_manager_that_caches_nothing_restores_nothing() -> None:
    engine = Engine(1)
    engine.steps(8)
    manager = KVCacheManager(engine.manager.kv_cache_config, 256, enable_caching=False)
    assert manager.restore(dump(engine), OURS, HASHER) == 0
    manager.check()
