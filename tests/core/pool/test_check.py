"""Property: the self-check notices damage, ends, and names the law that is broken.

How: first what an engine may hold through public calls, in both builds; then damage done to each private array and
counter, in the uncompiled build. Every check must end within seconds, whatever it meets.

Not covered: damage that leaves a consistent but wrong state, such as a key changed together with its place in the
index; only the specification, which knows what was written, can tell (conformance).
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest
from librt.vecs import vec
from mypy_extensions import i32
from tests.core.support import Setup, admit, every_setup, full, mamba, manager_of, pure_only, sliding, table

from blockwright import KVCacheManager, Request, Sha256Hasher
from blockwright.core.pool.index import LINK, LOW, MARK
from blockwright.core.tables.view import INSTEAD
from blockwright.errors import InvariantError, ReadOnlyError


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def in_use(spec_manager: KVCacheManager | None = None) -> KVCacheManager:
    """Two requests that share a prefix, two eviction candidates, free blocks without content, a pair of duplicates.

    With full attention and blocks of 4: "a" holds 1, 2, 3; "b" holds 1, 2, 4 (4 and 3 unpublished); 5 and 6 are
    candidates, 6 first; "c" holds 7, published like 1, and 8; 9 .. 12 are free without content.
    """
    manager = manager_of(full(), 13) if spec_manager is None else spec_manager
    size = manager.managers[0].block_size
    hasher = Sha256Hasher(b"")
    early = Request("c", list(range(size + 1)), size, hasher=hasher)
    for name, first, length in (("a", 0, 10), ("b", 0, 11), ("gone", 50, 8)):
        request = Request(name, list(range(first, first + length)), size, hasher=hasher)
        admit(manager, request)
    manager.free(request)
    assert manager.allocate_slots(early, size + 1) is not None
    manager.check()
    return manager


def test_the_example_is_as_described() -> None:
    manager = in_use()
    assert [table(manager, name) for name in ("a", "b", "c")] == [[1, 2, 3], [1, 2, 4], [7, 8]]
    assert manager.block_pool.free_block_ids() == [9, 10, 11, 12, 6, 5]
    assert manager.block_pool.block_key(7) == manager.block_pool.block_key(1) is not None


def broken(manager: KVCacheManager, held_elsewhere: dict[int, int] | None = None) -> InvariantError:
    """Run the self-check, which must end and complain; the message shows law and both sides."""
    with time_limit(20), pytest.raises(InvariantError) as caught:
        manager.check(held_elsewhere)
    error = caught.value
    assert str(error).startswith(f"{error.law}: ")
    assert repr(error.expected) in str(error)
    assert repr(error.actual) in str(error)
    assert error.expected != error.actual
    return error


# ---------------------------------------------------------------------- through public calls


@pytest.mark.parametrize("name", INSTEAD)
def test_a_group_is_only_read(name: str) -> None:
    """One group's tables cannot be changed behind the manager's back."""
    manager = in_use()
    with pytest.raises(ReadOnlyError, match=f"KVCacheManager.{INSTEAD[name]}"):
        getattr(manager.managers[0], name)("a")
    manager.check()


@pytest.mark.parametrize(
    ("hold", "held"),
    [
        (lambda m: m.block_pool.touch([3]), {3: 1}),
        (lambda m: m.block_pool.touch([1, 1, 0]), {1: 2}),
        (lambda m: m.block_pool.get_new_blocks(1), {9: 1}),
        (lambda m: m.block_pool.touch([5]), {5: 1}),
    ],
    ids=["a table's block", "a shared block, twice", "a new block", "a candidate"],
)
def test_knows_what_is_held_through_the_pool(hold: Callable[[KVCacheManager], object], held: dict[int, int]) -> None:
    """A connector or an engine may hold blocks; whoever knows how many says so, and a leak is found too."""
    manager = in_use()
    hold(manager)
    for each in (manager, manager.copy()):
        each.check()
        each.check(held)
        for wrong in ({}, {**held, 2: 1}, {block: times + 1 for block, times in held.items()}):
            assert broken(each, wrong).law == "REF-1"
    manager.block_pool.free_blocks([block for block, times in held.items() for _ in range(times)])
    manager.check({})


@every_setup
def test_sound_states_pass(setup: Setup) -> None:
    manager = in_use(setup.manager(40))
    with time_limit(20):
        manager.check()
        manager.copy().check()
        manager.block_pool.check()


# ---------------------------------------------------------------------- private arrays


def assign(array: object, index: int, value: int) -> None:
    array[index] = value  # type: ignore[index]


def added(thing: object, name: str, value: int) -> None:
    setattr(thing, name, getattr(thing, name) + value)


def group(manager: KVCacheManager, name: str) -> object:
    return manager._state.groups[0]._tables[name]


def entry(manager: KVCacheManager, name: str, index: int, block: int) -> None:
    assign(manager._state.groups[0]._tables[name].blocks, index, block)


def link(manager: KVCacheManager, block: int, behind: int | None = None, before: int | None = None) -> None:
    """Change one of the neighbours of a block in the queue."""
    was = manager.block_pool._rows[4 * block + LINK]
    behind, before = (was >> 32 if behind is None else behind), (was % 2**32 if before is None else before)
    assign(manager.block_pool._rows, 4 * block + LINK, behind << 32 | before)


DAMAGE: dict[str, tuple[Callable[[KVCacheManager], object], str]] = {
    "one holder too many": (lambda m: assign(m.block_pool._rows, 4 * 1 + LINK, -3), "REF-1"),
    "one holder too few": (lambda m: assign(m.block_pool._rows, 4 * 1 + LINK, -1), "REF-1"),
    "no holder of a held block": (lambda m: assign(m.block_pool._rows, 4 * 3 + LINK, 0), "REF-1"),
    "a holder of a free block": (lambda m: assign(m.block_pool._rows, 4 * 9 + LINK, -1), "QUEUE-1"),
    "a holder of the null block": (lambda m: assign(m.block_pool._rows, LINK, -1), "QUEUE-1"),
    "a key of the null block": (lambda m: assign(m.block_pool._rows, MARK, 1 << 32), "NULL-1"),
    "more free than queued": (lambda m: added(m.block_pool, "_num_free", 1), "QUEUE-1"),
    "fewer free than queued": (lambda m: added(m.block_pool, "_num_free", -1), "QUEUE-1"),
    "a queue that skips": (lambda m: link(m, 9, behind=11), "QUEUE-1"),
    "a queue that ends early": (lambda m: link(m, 9, behind=0), "QUEUE-1"),
    "a queue in a circle": (lambda m: link(m, 10, behind=10), "QUEUE-1"),
    "a queue that never ends": (lambda m: link(m, 5, behind=9), "QUEUE-1"),
    "a queue that goes astray": (lambda m: link(m, 9, behind=1), "QUEUE-1"),
    "a way back that skips": (lambda m: link(m, 11, before=9), "QUEUE-1"),
    "a way back in a circle": (lambda m: link(m, 11, before=11), "QUEUE-1"),
    "a lost tail": (lambda m: link(m, 0, before=6), "QUEUE-1"),
    "a key before bare blocks": (lambda m: assign(m.block_pool._rows, 4 * 9 + MARK, 9 << 32), "QUEUE-1"),
    "a lost key of a candidate": (lambda m: assign(m.block_pool._rows, 4 * 5 + MARK, 0), "QUEUE-1"),
    "a lost key of a held block": (lambda m: assign(m.block_pool._rows, 4 * 2 + MARK, 0), "KEY-1"),
    "a key out of nothing": (lambda m: assign(m.block_pool._rows, 4 * 3 + MARK, 3 << 32), "KEY-1"),
    "a ring cut": (lambda m: assign(m.block_pool._index._younger, 1, 1), "KEY-1"),
    "a ring that never closes": (lambda m: assign(m.block_pool._index._younger, 7, 7), "KEY-1"),
    "a ring through a stranger": (lambda m: assign(m.block_pool._index._younger, 1, 2), "KEY-1"),
    "a slot emptied": (lambda m: empty_slot(m, 2), "KEY-1"),
    "a slot of another": (lambda m: empty_slot(m, 2, 5), "KEY-1"),
    "a key that moved": (lambda m: assign(m.block_pool._rows, 4 * 2 + LOW, 12345), "KEY-1"),
    "one key too many": (lambda m: added(m.block_pool._index, "num_keyed", 1), "KEY-1"),
    "a block twice in a table": (lambda m: entry(m, "a", 2, 2), "TABLE-2"),
    "a null entry in the middle": (lambda m: entry(m, "a", 1, 0), "TRIM-2"),
    "a free block in a table": (lambda m: entry(m, "a", 2, 9), "REF-1"),
    "another's block in a table": (lambda m: entry(m, "a", 2, 4), "REF-1"),
    "trimmed but not null": (lambda m: added(group(m, "a"), "num_trimmed", 1), "TRIM-1"),
    "published but for the key": (lambda m: added(group(m, "a"), "num_published", 1), "PUB-2"),
    "written beyond the table": (lambda m: added(m._state.running["a"], "num_written", 4), "TABLE-1"),
    "a forgotten table": (lambda m: m._state.running.pop("a"), "TABLE-1"),
    "a table that is not there": (lambda m: m._state.groups[0]._tables.pop("a"), "TABLE-1"),
    "an entry counted from the end": (lambda m: end_on_the_last_block(m), "TABLE-2"),
    "an entry beyond the pool": (lambda m: entry(m, "a", 2, 13), "TABLE-2"),
    "an unpublished block shared": (lambda m: share_last(m), "WRITE-1"),
}


def empty_slot(manager: KVCacheManager, block: int, instead: int = 0) -> None:
    """Empty the slot of a block, or give it to another."""
    slots = manager.block_pool._index._slots
    at = next(at for at, entry in enumerate(slots) if entry >> 32 == block)
    assign(slots, at, instead << 32 | slots[at] % 2**32 if instead else 0)


@pure_only
@pytest.mark.parametrize(("damage", "law"), DAMAGE.values(), ids=DAMAGE.keys())
def test_notices_damage(damage: Callable[[KVCacheManager], object], law: str) -> None:
    manager = in_use()
    damage(manager)
    assert broken(manager).law == law


@pure_only
def test_both_sides_are_told() -> None:
    manager = in_use()
    entry(manager, "a", 2, 2)
    error = broken(manager)
    assert (error.expected, error.actual) == (3, 2)  # distinct blocks


@pure_only
@pytest.mark.parametrize(
    ("option", "what"),
    [("enable_kv_cache_events", "_digests"), ("track_evictions", "_digests"), ("verify_tokens", "contents")],
)
def test_notices_trouble_in_the_history(option: str, what: str) -> None:
    for at, value in ((2, None), (3, b"what was never published")):
        manager = in_use(manager_of(full(), 13, **{option: True}))
        held = getattr(manager.block_pool._history, what)
        held.pop(at, None)
        if value is not None:
            held[at] = value
        assert broken(manager).law == "PUB-1"


def end_on_the_last_block(manager: KVCacheManager) -> None:
    """Have "a" hold block 12, but written as -1; every counter agrees."""
    manager.block_pool.get_new_blocks(4)
    manager.block_pool.free_blocks([9, 10, 11])
    manager.block_pool._release(vec[i32]([3]), 0, 1)
    manager.block_pool._external[12] = 0
    manager.block_pool._num_external = 0
    entry(manager, "a", 2, -1)


def share_last(manager: KVCacheManager) -> None:
    """Have "b" write the block that "a" writes; every counter agrees."""
    pool = manager.block_pool
    pool._touch_entries(vec[i32]([3]))
    entry(manager, "b", 2, 3)
    pool._release(vec[i32]([4]), 0, 1)


@pure_only
@pytest.mark.parametrize("caching", [True, False])
def test_notices_superfluous_states(caching: bool) -> None:
    manager = manager_of(mamba(), 13, caching=caching)
    admit(manager, Request("a", list(range(15)), 4))
    tables = manager._state.groups[0]._tables["a"]
    tables.blocks = manager.block_pool._take(3, tables.blocks)
    error = broken(manager)
    assert (error.law, error.expected) == ("MAMBA-1", 1 + caching)


@pure_only
def test_notices_damage_in_a_window() -> None:
    manager = manager_of(sliding(2, 3), 13)
    request = Request("a", list(range(9)), 2)
    admit(manager, request)
    manager.remove_skipped_blocks(request, 9)
    assert table(manager, "a") == [0, 0, 0, 4, 5]
    entry(manager, "a", 1, 7)
    assert broken(manager).law == "TRIM-1"
    entry(manager, "a", 1, 0)
    entry(manager, "a", 3, 0)
    assert broken(manager).law == "TRIM-2"
