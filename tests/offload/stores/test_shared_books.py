"""Property: the manager of a shared store, identities and pools of the host keep their books at every limit.

How: small cases with a store that is a set of keys; each shows one line of `offload/shared/manager.py`,
`offload/identity.py`, `offload/host/pool.py` or `offload/disk/index.py`: every one was asked for by a change of the
source that no other test noticed (`blockwright conform --gate mutants`).
Not covered: servers (test_shared.py), disks (test_disk.py).
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install torch")

import torch

from blockwright.errors import BlockNotReadyError, InvalidArgumentError, InvariantError
from blockwright.offload.checksum import DIGEST_SIZE, checksum
from blockwright.offload.disk import index as disk_index
from blockwright.offload.disk.slots import SlotTable
from blockwright.offload.host import HostPool
from blockwright.offload.identity import CacheIdentity
from blockwright.offload.shared.manager import SharedStoreManager


class Keys:
    """A store that has some keys."""

    def __init__(self, *keys: bytes) -> None:
        self.keys = set(keys)

    def leading(self, keys: Sequence[bytes]) -> int:
        return [*(key in self.keys for key in keys), False].index(False)

    def contains(self, keys: Sequence[bytes]) -> list[bool] | None:
        return [key in self.keys for key in keys]

    def remove(self, keys: Sequence[bytes]) -> bool:
        self.keys -= set(keys)
        return True

    def pin(self, keys: Iterable[bytes]) -> None:
        return


A, B = b"a", b"b"


@pytest.mark.parametrize(("name", "least"), [("block_size", 1), ("max_writing", 0)])
def test_numbers_of_a_shared_store_have_limits(name: str, least: int) -> None:
    given: dict[str, Any] = {"block_size": 16}
    SharedStoreManager(Keys(), **(given | {name: least}))
    for wrong in (least - 1, True, 1.0, "1"):
        with pytest.raises(InvalidArgumentError, match=name):
            SharedStoreManager(Keys(), **(given | {name: wrong}))


def test_what_is_written_is_not_found_though_the_store_has_it() -> None:
    store = Keys()
    manager = SharedStoreManager(store, 16)
    assert manager.prepare_store([A]) is not None
    store.keys.add(A)
    assert manager.lookup([A]) == 0
    assert manager.status_of(A) == -1
    with pytest.raises(BlockNotReadyError):
        manager.prepare_load([A])
    manager.complete_store([A])
    assert (manager.lookup([A]), manager.status_of(A)) == (1, None)


def test_a_block_may_be_read_twice_unless_it_is_blamed() -> None:
    manager = SharedStoreManager(Keys(A), 16)
    for _ in range(2):
        manager.prepare_load([A])
    assert manager.status_of(A) == 2
    manager.complete_load([A], success=False)
    assert manager.status_of(A) == -2
    with pytest.raises(BlockNotReadyError):
        manager.prepare_load([A])


def test_events_tell_what_came_and_what_went() -> None:
    silent, manager = SharedStoreManager(Keys(), 16), SharedStoreManager(Keys(), 16, enable_events=True)
    for each in (silent, manager):
        each.prepare_store([A])
        each.complete_store([A])
        each.complete_load([])
        each.remove([A])
        assert each.copy().take_events() == each.take_events() or each is silent
    assert silent.take_events() == []
    assert silent.copy().take_events() == []
    manager.prepare_store([A, B])
    manager.complete_store([A, B])
    manager.remove([B])
    twin = manager.copy()
    for each in (manager, twin):
        events = [(list(event.block_hashes), event.removed) for event in each.take_events()]
        assert events == [([A, B], False), ([B], True)]
        assert each.take_events() == []
    manager.prepare_store([B])
    manager.complete_store([B])
    assert len(manager.take_events()) == 1
    assert twin.take_events() == []


def test_readers_below_one_break_the_check() -> None:
    manager = SharedStoreManager(Keys(A, B), 16)
    manager.check()
    manager.prepare_load([A, B])
    manager.check()
    manager._readers[A] = 0
    with pytest.raises(InvariantError, match="TIER-3"):
        manager.check()


# ---------------------------------------------------------------------- names


def test_the_bytes_of_an_identity_are_these() -> None:
    """They name what lies on disks and servers: another encoding loses it."""
    identity = CacheIdentity(
        "m", "l", "d", 16, b"s", {"yes": True, "no": False, "float": 0.5, "int": -1, "bytes": b"b"}
    )
    encoded = identity.encode()
    one = (1).to_bytes(8, "little")
    for part in (b"s" + one + b"m", b"b" + one + b"s", b"?" + one + b"\1", b"?" + one + b"\0"):
        assert part in encoded
    yes, no = (encoded.index(b"s" + len(name).to_bytes(8, "little") + name) for name in (b"yes", b"no"))
    assert encoded[yes + 12 :].startswith(b"?" + one + b"\1")
    assert encoded[no + 11 :].startswith(b"?" + one + b"\0")
    assert hash(identity) == hash(encoded)
    assert len(identity.describe()["hash_seed"]) == len("blake2b:") + 16


# ---------------------------------------------------------------------- memory of the host


@pytest.mark.parametrize("width", [1, 3])
def test_tensors_of_several_widths_lie_aligned(width: int) -> None:
    caches = [torch.zeros((2, width), dtype=torch.uint8), torch.zeros((2, 1), dtype=torch.int64)]
    pool = HostPool(caches, 2)
    assert (pool.offsets, pool.bytes_per_block) == ([0, 8], 16)
    made: Any = pool.caches
    assert [tuple(each.shape) for each in made] == [(2, width), (2, 1)]
    turned = HostPool(caches[::-1], 2)
    assert (turned.offsets, turned.bytes_per_block) == ([0, 8], 16)


def test_a_tensor_with_one_number_per_block_has_a_place() -> None:
    pool = HostPool([torch.zeros(2, dtype=torch.int32), torch.zeros((2, 2), dtype=torch.int32)], 3)
    made: Any = pool.caches
    flat, pairs = made
    assert (tuple(flat.shape), tuple(pairs.shape)) == ((3,), (3, 2))
    pool.block_view(1)[:] = bytes(range(12))
    assert flat[1].item() == int.from_bytes(bytes(range(4)), "little")


# ---------------------------------------------------------------------- records of a disk


def test_records_beyond_those_read_at_once_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_index, "_RECORDS_AT_ONCE", 2)
    records = {slot: disk_index.Record(b"key%d" % slot, bytes(DIGEST_SIZE), slot, 9) for slot in (0, 2, 4)}
    size = disk_index.RECORD_SIZE
    data = b"".join(
        records[slot].encode(slot, "blake2b_128").ljust(size, b"\0") if slot in records else bytes(size)
        for slot in range(5)
    )
    reads: list[tuple[int, int]] = []

    class File:
        def read(self, offset: int, buffers: Sequence[memoryview]) -> None:
            for buffer in buffers:
                reads.append((offset, len(buffer)))
                buffer[:] = data[offset : offset + len(buffer)]

    assert dict(disk_index.scan(File(), 5, "blake2b_128")) == records  # type: ignore[arg-type]
    assert reads == [(0, 2 * size), (2 * size, 2 * size), (4 * size, size)]


@pytest.mark.parametrize(("data", "damaged"), [(None, 0), (b"", 2), (bytes(15), 2), (bytes(48), 2), (bytes(32), 0)])
def test_a_hint_of_another_size_counts_as_zeros(data: bytes | None, damaged: int) -> None:
    assert disk_index.decoded_recency(data, 2) == ([(0, 0)] * 2, damaged)


def test_a_hint_that_cannot_be_true_counts_as_zeros() -> None:
    most = disk_index.COUNT_MAX
    uses = [(5, 5), (5, 4), (0, most - 1), (0, most), (2**64 - 1, 2**64 - 1), (3, 9)]
    sound = [(5, 5), (0, 0), (0, most - 1), (0, 0), (0, 0), (3, 9)]
    assert disk_index.decoded_recency(disk_index.encoded_recency(uses), 6) == (sound, 3)


@pytest.mark.parametrize("key_size", [0, disk_index.KEY_SIZE_MAX + 1, 2**16 - 1, 2])
def test_a_record_whose_key_is_of_no_possible_length_is_damaged(key_size: int) -> None:
    body = struct.pack(f"<16sQQH{disk_index.KEY_SIZE_MAX}s", bytes(16), 1, 9, key_size, b"key")
    sealed = checksum("blake2b_128", struct.pack("<Q", 0), [memoryview(body)]) + body
    assert disk_index.decoded(sealed, 0, "blake2b_128") is None


# ---------------------------------------------------------------------- slots of a disk


def record(key: bytes, written: int) -> disk_index.Record:
    """A record of a block."""
    return disk_index.Record(key, bytes(DIGEST_SIZE), written, 9)


def test_slots_begin_without_blocks_and_uses() -> None:
    table = SlotTable(2)
    assert (table.blocks(), table.uses(), table.get(0)) == ([], [(0, 0), (0, 0)], None)
    assert table.tick() == 1


def test_of_two_records_with_one_key_the_later_counts() -> None:
    for found in ([(0, record(A, 5)), (1, record(A, 7))], [(1, record(A, 7)), (0, record(A, 5))]):
        table = SlotTable(3)
        table.recover([*found, (2, record(B, 2))], [(5, 9), (7, 8), (1, 50)])
        assert table.blocks() == [(B, 2), (A, 1)]
        assert table.uses() == [(0, 0), (7, 9), (2, 8)]  # numbered anew; the last slot's hint is about another block
        assert table.counts.recovered == 2
        assert table.tick() == 10
    empty = SlotTable(0)
    empty.recover([], [])
    assert empty.tick() == 1
    first = SlotTable(2)
    first.recover([(0, record(A, 0)), (1, record(A, 0))], [(1, 5), (0, 0)])
    assert (first.blocks(), first.uses()[0]) == ([(A, 0)], (0, 1))


def test_a_slot_is_written_by_one_at_a_time() -> None:
    table = SlotTable(3)
    with table.writing([0, 1]):
        with pytest.raises(InvalidArgumentError, match="twice"), table.writing([2, 2]):
            pass
        with pytest.raises(BlockNotReadyError, match="place 1 is being written"), table.writing([2, 1]):
            pass
        with table.writing([2]):
            pass
        table.publish([0, 1], [record(A, table.tick()), OSError()])
    assert table.blocks() == [(A, 0)]
    assert (table.counts.writes, table.counts.failures) == (1, 1)
    with table.writing([0]):
        assert table.get(0) is None
    with table.writing([0, 1]):
        pass


def test_reads_are_counted_and_order_the_blocks() -> None:
    table = SlotTable(2)
    first, second = record(A, table.tick()), record(B, table.tick())
    table.publish([0, 1], [first, second])
    assert table.blocks() == [(A, 0), (B, 1)]
    table.hit(0, first)
    assert table.blocks() == [(B, 1), (A, 0)]
    assert table.uses() == [(1, 3), (2, 2)]
    table.hit(0, second)  # another block lay there when it was read
    table.missed()
    assert table.uses() == [(1, 3), (2, 2)]
    assert table.damaged(0, second) is False
    assert table.damaged(0, first) is True
    assert table.get(0) is None
    counts = table.counts
    assert (counts.hits, counts.misses, counts.corrupt) == (2, 2, 1)
    assert table.tick() == 4


# ---------------------------------------------------------------------- the breaker
