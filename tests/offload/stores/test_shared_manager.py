"""Property: the manager of a shared tier tells what this engine reads and writes, and asks the store about the rest.

How: a store of known content that can be told to forget or to fail, under sequences of calls written down here; errors
must leave everything as it was.
Not covered: bytes (test_shared.py), a store that fails on its own (test_shared_faults.py).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from blockwright.errors import (
    BlockNotReadyError,
    InvalidArgumentError,
    InvariantError,
    NotPreparedError,
    UnknownBlockHashError,
    UnsupportedError,
)
from blockwright.offload import BlockHint, SharedStoreManager
from blockwright.offload.tiers.chain import OffloadChain
from blockwright.offload.tiers.interfaces import OffloadingEvent

A, B, C = b"a", b"b", b"c"


class Known:
    """A store that has these keys, if it answers."""

    def __init__(self, *keys: bytes) -> None:
        self.keys, self.answers, self.asked = set(keys), True, 0
        self.pinned: list[bytes] = []

    def leading(self, keys: Sequence[bytes]) -> int:
        self.asked += 1
        return next((at for at, key in enumerate(keys) if key not in self.keys), len(keys)) if self.answers else 0

    def contains(self, keys: Sequence[bytes]) -> list[bool] | None:
        self.asked += 1
        return [key in self.keys for key in keys] if self.answers else None

    def remove(self, keys: Sequence[bytes]) -> bool:
        self.keys -= set(keys) if self.answers else set()
        return self.answers

    def pin(self, keys: Iterable[bytes]) -> None:
        self.pinned += keys


def managed(*keys: bytes, **options: Any) -> tuple[Known, SharedStoreManager]:
    store = Known(*keys)
    return store, SharedStoreManager(store, 16, enable_events=True, **options)


def stored(manager: SharedStoreManager, *keys: bytes) -> list[bytes] | None:
    output = manager.prepare_store(keys)
    assert output is None or output.block_hashes_evicted == []
    assert output is None or getattr(output.store_spec, "block_hashes", None) == output.block_hashes_to_store
    return None if output is None else output.block_hashes_to_store


def test_lookups_ask_the_store() -> None:
    store, manager = managed(A, B)
    assert manager.lookup([A, B, C]) == 2
    store.keys.discard(A)
    assert manager.lookup([A, B]) == 0
    store.answers = False
    assert manager.lookup(iter([B])) == 0


def test_only_what_the_store_lacks_is_written() -> None:
    store, manager = managed(A)
    assert stored(manager, A, B, C, B) == [B, C]
    assert manager.lookup([A, B]) == 1  # B is being written
    assert stored(manager, B) == []
    store.keys.add(B)
    manager.complete_store([A, B])
    assert manager.status_of(B) is None
    assert manager.lookup([A, B, C]) == 2
    manager.complete_store([C], success=False)
    assert manager.take_events() == [OffloadingEvent([B], 16, "STORE", False)]
    assert manager.take_events() == []


def test_a_store_that_does_not_answer_takes_nothing() -> None:
    store, manager = managed()
    store.answers = False
    assert stored(manager, A) is None
    assert manager.status_of(A) is None


def test_few_may_be_written_at_once() -> None:
    _, manager = managed(max_writing=2)
    assert manager.num_free == 2
    assert stored(manager, A) == [A]
    assert stored(manager, B, C) is None
    assert stored(manager, A, B) == [B]
    assert manager.num_free == 0
    manager.complete_store([A, B])
    assert manager.num_free == 2


def test_a_failed_load_is_a_miss_until_it_is_written_anew() -> None:
    store, manager = managed(A, B)
    assert getattr(manager.prepare_load([A, B]), "block_hashes", None) == [A, B]
    manager.complete_load([A, B], success=False)
    assert manager.lookup([A]) == 0
    with pytest.raises(UnknownBlockHashError):
        manager.prepare_load([A])
    assert manager.take_events() == [OffloadingEvent([A, B], 16, "STORE", True)]
    assert stored(manager, A) == [A]  # though the store still has something there
    manager.complete_store([A])
    assert manager.lookup([A, B]) == 1
    store.answers = False
    assert stored(manager, A) is None


def test_a_failed_store_is_not_found() -> None:
    store, manager = managed()
    assert stored(manager, A) == [A]
    store.keys.add(A)  # it arrived, and the acknowledgement did not
    manager.complete_store([A], success=False)
    assert manager.lookup([A]) == 0
    assert manager.take_events() == []
    assert stored(manager, A) == [A]


def test_readers_are_counted() -> None:
    store, manager = managed(A)
    manager.prepare_load([A, A])
    assert manager.status_of(A) == 2
    store.keys.clear()
    assert stored(manager, A) == []  # being read, so it is there
    manager.complete_load([A], success=False)
    assert manager.status_of(A) == -2
    with pytest.raises(BlockNotReadyError):
        manager.prepare_load([A])
    assert stored(manager, A) == []
    manager.complete_load([A])
    assert manager.status_of(A) is None
    assert stored(manager, A) == [A]
    manager.check()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda manager: manager.complete_load([A]), NotPreparedError),
        (lambda manager: manager.complete_load([B, B]), NotPreparedError),
        (lambda manager: manager.complete_store([A, B]), NotPreparedError),
        (lambda manager: manager.prepare_load([A, C]), BlockNotReadyError),
        (lambda manager: manager.remove([A, B]), BlockNotReadyError),
        (lambda manager: manager.remove([A, C]), BlockNotReadyError),
        (lambda manager: manager.lookup([b""]), InvalidArgumentError),
        (lambda manager: manager.prepare_store([A, "b"]), InvalidArgumentError),
    ],
)
def test_errors_change_nothing(call: Callable[[SharedStoreManager], object], error: type[Exception]) -> None:
    store, manager = managed(A, B)
    manager.prepare_load([B])
    stored(manager, C)
    before = manager.copy()
    with pytest.raises(error):
        call(manager)
    assert [manager.status_of(each) for each in (A, B, C)] == [before.status_of(each) for each in (A, B, C)]
    assert manager.take_events() == before.take_events()
    assert store.keys == {A, B}
    manager.check()


def test_blocks_are_removed_for_all() -> None:
    store, manager = managed(A, B)
    manager.remove([A, A])
    assert store.keys == {B}
    store.answers = False
    manager.remove([B])
    store.answers = True
    assert manager.lookup([B]) == 0
    assert [event.block_hashes for event in manager.take_events()] == [[A], [B]]
    assert manager.idle_blocks(3) == []


def test_empty_calls_do_nothing() -> None:
    store, manager = managed()
    assert manager.lookup([]) == 0
    manager.prepare_load([])
    manager.complete_load([])
    assert stored(manager) == []
    manager.complete_store([])
    manager.touch([])
    assert manager.take_events() == []
    assert store.asked == 2


def test_blame_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockwright.offload.shared.manager._MOST_BLAMED", 2)
    _, manager = managed(A, B, C)
    manager.prepare_load([A, B, C])
    manager.complete_load([A, B, C], success=False)
    assert [manager.lookup([each]) for each in (A, B, C)] == [1, 0, 0]


def test_checks_find_what_is_wrong() -> None:
    _, manager = managed(A)
    stored(manager, B)
    manager._readers[B] = 1
    with pytest.raises(InvariantError, match="TIER-3"):
        manager.check()


def test_the_lists_of_callers_stay_theirs() -> None:
    manager, keys = SharedStoreManager(Known(A, B), 16), [A, B]
    spec = manager.prepare_load(keys)
    keys.clear()
    assert spec.block_hashes == [A, B]
    with pytest.raises(InvalidArgumentError, match="block_hashes: must be an iterable, each item bytes"):
        manager.lookup(A)  # type: ignore[arg-type]


def test_a_store_is_no_nearest_tier() -> None:
    with pytest.raises(UnsupportedError, match="SharedStoreManager cannot be the tier nearest to the device"):
        OffloadChain([SharedStoreManager(Known(), 16)])


def test_blocks_with_hints_that_do_not_end_are_pinned() -> None:
    store, manager = managed(A)
    forever = BlockHint("tenant", 1, float("inf"))
    assert manager.prepare_store_hinted([A, B, C], [forever, forever, BlockHint("tenant", 1, 9.0)]) is not None
    assert store.pinned == [B]  # A is there already
    with pytest.raises(InvalidArgumentError, match="hints"):
        manager.prepare_store_hinted([A], [])
