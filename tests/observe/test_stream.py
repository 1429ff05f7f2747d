"""Property: a stream's index is the pool's; every snapshot and the batches after it are too; a backlog is bounded.

How: random histories of a small engine, in one group and in two; each earlier snapshot is kept and followed. Gaps,
resets beside other media, and what tiers tell are made by hand.
Not covered: all short histories (lock-step, in the scopes named "events"); the wire (test_wire.py, test_zmq.py).
"""

from collections.abc import Iterable

import pytest
from tests.observe.engine import SIZE, Engine, findable, full

from blockwright import SlidingWindowSpec
from blockwright.errors import EventGapError, InvalidArgumentError
from blockwright.events import AllBlocksCleared, BlockRemoved, BlockStored
from blockwright.observe import EventStream, PrefixIndex
from blockwright.observe.stream import Key
from blockwright.offload import OffloadingEvent

SLIDING = SlidingWindowSpec(block_size=SIZE, num_kv_heads=1, head_size=1, dtype="bfloat16", sliding_window=6)


def shortened(keys: Iterable[Key]) -> set[tuple[object, int]]:
    """Keys as the pool keeps them, and groups."""
    return {(key[:16] if isinstance(key, bytes) else key, group) for key, group, _ in keys}


@pytest.mark.parametrize("specs", [(full(),), (full(), SLIDING)])
@pytest.mark.parametrize("seed", range(3))
def test_every_snapshot_and_what_follows_is_the_index(seed: int, specs: tuple[object, ...]) -> None:
    engine = Engine(seed, specs=specs)  # type: ignore[arg-type]
    snapshots = []
    for _ in range(120):
        snapshots.append(engine.stream.snapshot())
        engine.step()
    there = shortened(engine.stream.known_keys())
    assert there == findable(engine)
    for snapshot in snapshots:
        later = [event for batch in engine.stream.since(snapshot.sequence) for event in batch.events]
        assert shortened(PrefixIndex([*snapshot.events, *later]).known_keys()) == there
    known: set[object] = set()
    for event in engine.stream.snapshot().events:
        is_known = event.parent_block_hash is None or (event.parent_block_hash, event.group_id) in known
        assert event.is_parent_absent is not is_known
        known.add((event.block_hash, event.group_id))


def test_a_consumer_that_is_too_slow_gets_a_gap_and_memory_is_bounded() -> None:
    stream = EventStream(backlog=3)
    for at in range(9):
        stream.record([BlockStored(bytes([at]), None, b"", 1)])
    stream.record([])  # nothing is no batch
    assert [batch.sequence for batch in stream.since(6)] == [6, 7, 8]
    assert stream.since(9) == []
    for wrong in (5, 10, -1):
        with pytest.raises(EventGapError, match=r"batch -?\d+ is not kept, only 6\.\.8") as caught:
            stream.since(wrong)
        assert (caught.value.sequence, caught.value.oldest, caught.value.following) == (wrong, 6, 9)
    stream.record([BlockRemoved(bytes([at])) for at in range(5)])
    assert [len(batch.events) for batch in stream.since(9)] == [5]  # one batch is kept, whatever its size
    assert len(stream) == len(stream.snapshot().events) == 4
    for backlog in (0, -1, True, 1.5):
        with pytest.raises(InvalidArgumentError, match="backlog"):
            EventStream(backlog)  # type: ignore[arg-type]


def test_a_copy_is_independent_and_a_new_stream_another_epoch() -> None:
    stream = EventStream()
    stream.record([BlockStored(b"h", None, b"", 1)])
    twin = stream.copy()
    twin.record([BlockRemoved(b"h")])
    assert (b"h", 0, "GPU") in stream
    assert (b"h", 0, "GPU") not in twin
    assert twin.epoch == stream.epoch != EventStream().epoch


def test_tiers_are_told_apart_and_outlive_a_reset() -> None:
    """What is known of a prefix on the device is told of its copy on a tier; a reset clears the device alone."""
    stream, index = EventStream(), PrefixIndex()
    first = BlockStored(b"a", None, b"\1\0\0\0", 1, cache_salt="tenant")
    stream.record([first, OffloadingEvent([b"a", b"b"], 1, "CPU", False)])
    stream.record([OffloadingEvent([b"b"], 1, "DISK", False), AllBlocksCleared()])
    stream.record([OffloadingEvent([b"b"], 1, "CPU", True)])
    for batch in stream.since(0):
        index.apply(batch.events)
    assert index.known_keys() == stream.known_keys() == {(b"a", 0, "CPU"), (b"b", 0, "DISK")}
    assert index.match([1], cache_salt="tenant", medium="CPU") == 1
    assert index.match([1], cache_salt="tenant") == index.match([1], medium="CPU") == 0
    assert next(event for event in stream.snapshot().events if event.block_hash == b"b").is_parent_absent


def test_a_router_finds_what_the_engine_finds() -> None:
    """By tokens alone, with adapter and salt: as long as the manager's own hit, for one full group."""
    engine = Engine(7)
    engine.steps(150)
    index = PrefixIndex(engine.stream.snapshot().events)
    seen = 0
    for request in engine.running:
        tokens, salt = request.all_token_ids, request.cache_salt
        assert index.match(tokens, lora_name=request.lora_name, cache_salt=salt) == len(request.block_hashes) * SIZE
        seen += index.match(tokens, lora_name="other", cache_salt=salt) == 0
    assert seen == len(engine.running) > 0
