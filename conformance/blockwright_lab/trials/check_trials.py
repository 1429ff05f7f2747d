"""Trials of the self-check: states broken by hand, each of which it must notice under the name of the law.

CHECK-1   a broken state is noticed, with both sides told, and a sound one passes

With full attention and blocks of 4: "a" holds 1, 2, 3; "b" holds 1, 2, 4 (3 and 4 unpublished); 5 and 6 are candidates
for eviction, 6 first; "c" holds 7, published like 1, and 8; 9 .. 12 are free without content.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from librt.vecs import vec
from mypy_extensions import i32

from ..known_bugs.known_bug import Fault
from ..known_bugs.watch import rearm

Damage = Callable[[Any], object]

TOLD: dict[str, str] = json.loads(Path(__file__).with_name("check_told.json").read_text(encoding="utf-8"))
"""What is told of each: the law, what it is about, what it demands and what was found, in this order."""


def put(thing: Any, name: str, index: int, value: object) -> None:
    """Write to an array of an object."""
    getattr(thing, name)[index] = value


def add(thing: Any, name: str, value: int) -> None:
    """Add to a counter of an object."""
    setattr(thing, name, getattr(thing, name) + value)


def table(manager: Any, name: str) -> Any:
    """Give the table of a request."""
    return manager.managers[0].table_of(name)


def pool(manager: Any) -> Any:
    """Give the pool."""
    return manager.block_pool


def index(manager: Any) -> Any:
    """Give the index of the pool."""
    return manager.block_pool._index


def slot(manager: Any, block: int, instead: int) -> None:
    """Give the slot of a block to another, or to none."""
    slots = index(manager)._slots
    slots[list(slots).index(block)] = instead


def counted_from_the_end(manager: Any) -> None:
    """Have "a" hold block 12, but written as -1; every counter agrees."""
    pool(manager).get_new_blocks(4)
    pool(manager).free_blocks([9, 10, 11, 3])
    put(table(manager, "a"), "blocks", 2, -1)


def share_last(manager: Any) -> None:
    """Have "b" write the block that "a" writes; every counter agrees."""
    pool(manager).touch_entries(vec[i32]([3]))
    put(table(manager, "b"), "blocks", 2, 3)
    pool(manager).release(vec[i32]([4]), 0, 1)


def queue(name: str, at: int, value: int) -> Damage:
    """Damage a link of the queue, or a count."""
    return lambda manager: put(pool(manager), name, at, value)


def ring(name: str, at: int, value: int) -> Damage:
    """Damage the index."""
    return lambda manager: put(index(manager), name, at, value)


def entry(name: str, at: int, block: int) -> Damage:
    """Damage a table."""
    return lambda manager: put(table(manager, name), "blocks", at, block)


DAMAGE: dict[str, tuple[str, Damage]] = {
    "a shared block released": ("REF-1", lambda manager: pool(manager).free_blocks([1])),
    "a request released below": ("TABLE-1", lambda manager: manager.managers[0].free("a")),
    "a request added below": ("TABLE-1", lambda manager: manager.managers[0].allocate_new_blocks("d", 5)),
    "one holder too many": ("REF-1", queue("_ref", 1, 3)),
    "one holder too few": ("REF-1", queue("_ref", 1, 1)),
    "no holder of a held block": ("REF-1", queue("_ref", 3, 0)),
    "a holder of a free block": ("REF-1", queue("_ref", 9, 1)),
    "a negative count": ("REF-1", queue("_ref", 9, -1)),
    "a holder of the null block": ("NULL-1", queue("_ref", 0, 1)),
    "a key of the null block": ("NULL-1", ring("older", 0, 1)),
    "more free than queued": ("QUEUE-1", lambda manager: add(pool(manager), "_num_free", 1)),
    "fewer free than queued": ("QUEUE-1", lambda manager: add(pool(manager), "_num_free", -1)),
    "a queue that skips": ("QUEUE-1", queue("_next", 9, 11)),
    "a queue that ends early": ("QUEUE-1", queue("_next", 9, 0)),
    "a queue in a circle": ("QUEUE-1", queue("_next", 10, 10)),
    "a queue that never ends": ("QUEUE-1", queue("_next", 5, 9)),
    "a queue that goes astray": ("QUEUE-1", queue("_next", 9, 1)),
    "a way back that skips": ("QUEUE-1", queue("_prev", 11, 9)),
    "a way back in a circle": ("QUEUE-1", queue("_prev", 11, 11)),
    "a lost tail": ("QUEUE-1", queue("_prev", 0, 6)),
    "a key before bare blocks": ("QUEUE-1", ring("older", 9, 9)),
    "a lost key of a candidate": ("QUEUE-1", ring("older", 5, 0)),
    "a lost key of a held block": ("KEY-1", ring("older", 2, 0)),
    "a key out of nothing": ("KEY-1", ring("older", 3, 3)),
    "a ring cut": ("KEY-1", ring("_younger", 1, 1)),
    "a ring that never closes": ("KEY-1", ring("_younger", 7, 7)),
    "a ring through a stranger": ("KEY-1", ring("_younger", 1, 2)),
    "a slot emptied": ("KEY-1", lambda manager: slot(manager, 2, 0)),
    "a slot of another": ("KEY-1", lambda manager: slot(manager, 2, 5)),
    "a key that moved": ("KEY-1", ring("_words", 4, 12345)),
    "one key too many": ("KEY-1", lambda manager: add(index(manager), "num_keyed", 1)),
    "a block twice in a table": ("TABLE-2", entry("a", 2, 2)),
    "a null entry in the middle": ("TRIM-2", entry("a", 1, 0)),
    "a free block in a table": ("REF-1", entry("a", 2, 9)),
    "another's block in a table": ("REF-1", entry("a", 2, 4)),
    "an entry beyond the pool": ("TABLE-2", entry("a", 2, 13)),
    "an entry counted from the end": ("TABLE-2", counted_from_the_end),
    "an unpublished block shared": ("WRITE-1", share_last),
    "trimmed but not null": ("TRIM-1", lambda manager: add(table(manager, "a"), "num_trimmed", 1)),
    "published but for the key": ("PUB-2", lambda manager: add(table(manager, "a"), "num_published", 1)),
    "written beyond the table": ("TABLE-1", lambda manager: add(manager._state.running["a"], "num_written", 4)),
    "a forgotten table": ("TABLE-1", lambda manager: manager._state.running.pop("a")),
    "a table that is not there": ("TABLE-1", lambda manager: manager.managers[0]._tables.pop("a")),
}


def in_use(package: ModuleType, **options: bool) -> Any:
    """Give a manager in the state that this module describes."""
    spec = package.FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=1, dtype="float32")
    config = package.KVCacheConfig(num_blocks=13, kv_cache_groups=[package.KVCacheGroupSpec(["layer"], spec)])
    manager = package.KVCacheManager(config, max_model_len=40, **options)
    hasher = package.Sha256Hasher(b"")
    early = package.Request("c", list(range(5)), 4, hasher=hasher)
    for name, first, length in (("a", 0, 10), ("b", 0, 11), ("gone", 50, 8)):
        request = package.Request(name, list(range(first, first + length)), 4, hasher=hasher)
        hit, found = manager.get_computed_blocks(request)
        manager.allocate_slots(request, length - found, found, hit)
    manager.free(request)
    manager.allocate_slots(early, 5)
    return manager


def self_checks(package: ModuleType) -> Iterator[Fault]:
    """Break states, and have them checked (CHECK-1)."""
    in_use(package).check()
    for what, (law, damage) in DAMAGE.items():
        manager = in_use(package)
        damage(manager)
        yield from noticed(package, manager, what, law)
    for option, what in (("enable_kv_cache_events", "_digests"), ("verify_tokens", "contents")):
        for at, value in ((2, None), (3, b"what was never published")):
            manager = in_use(package, **{option: True})
            manager.check()
            held = getattr(pool(manager)._journal, what)
            if value is None:
                del held[at]
            else:
                held[at] = value
            yield from noticed(package, manager, f"{what} of block {at}", "PUB-1")
    yield from of_windows(package)


def of_windows(package: ModuleType) -> Iterator[Fault]:
    """Break tables whose first entries are given back, and states."""
    sizes: dict[str, Any] = {"num_kv_heads": 1, "head_size": 1, "dtype": "float32"}
    sliding = package.SlidingWindowSpec(block_size=2, sliding_window=3, **sizes)
    states = package.MambaSpec(block_size=4, shapes=((1,),), dtypes=("float32",))
    for spec, at, block, law in ((sliding, 1, 7, "TRIM-1"), (sliding, 3, 0, "TRIM-2"), (states, 0, 0, "MAMBA-1")):
        for caching in (True, False):
            config = package.KVCacheConfig(num_blocks=13, kv_cache_groups=[package.KVCacheGroupSpec(["layer"], spec)])
            manager = package.KVCacheManager(config, max_model_len=40, enable_caching=caching)
            request = package.Request("a", list(range(9)), spec.block_size)
            manager.allocate_slots(request, 9)
            manager.remove_skipped_blocks(request, 9)
            manager.check()
            held = table(manager, "a")
            if law == "MAMBA-1":
                held.blocks = pool(manager).take(3, held.blocks)
            else:
                held.blocks[at] = block
            yield from noticed(package, manager, f"{law} with caching {caching}", law)


def noticed(package: ModuleType, manager: Any, what: str, law: str) -> Iterator[Fault]:
    """Check a broken state."""
    rearm()
    try:
        manager.check()
    except package.errors.InvariantError as error:
        if error.law != law or error.expected == error.actual or str(error) != TOLD[what]:
            yield Fault("CHECK-1", f"{what}: expected {TOLD[what]}, found {error}", 1)
    else:
        yield Fault("CHECK-1", f"{what}: {law} is broken, and the state is said to be sound", 1)
