"""Trials of the pool's memory: the index of prefixes, the version of the pool, and how keys were lost.

KEY-1     the index finds, of each key, the oldest block that carries it, however crowded its slots are
PLAN-3    a plan is stale once any block was taken, held once more, released, or forgotten; otherwise it holds
LOSS-2    an explanation tells how the key that is missing was lost
"""

from collections.abc import Callable, Iterator
from itertools import product
from random import Random
from types import ModuleType
from typing import Any

from librt.vecs import vec
from mypy_extensions import i32, i64

from ..known_bugs.known_bug import Fault
from ..known_bugs.watch import rearm
from .call_trials import manager_of, started

Key = tuple[int, int, int]
NUM_BLOCKS = 9
"""Its index has 32 slots."""
CROWDED: tuple[Key, ...] = tuple(product((30, 31, 62, 63, 0, 32), (5, 6), (0, 1)))
"""Keys whose home slots are the last ones and the first one, so that probing wraps around."""


def index(package: ModuleType) -> Iterator[Fault]:
    """Add and drop keys at random, beside a list of the blocks of each (KEY-1)."""
    for seed in range(4):
        rearm()
        if wrong := indexed(package, Random(seed)):
            yield Fault("KEY-1", wrong, 1)
            return


def lined_up(package: ModuleType) -> Iterator[Fault]:
    """Take some blocks where the least recently accessed go first, after those without content (QUEUE-1)."""
    core, request = package.core, package.Request("r", list(range(5)), 1)
    for count in range(NUM_BLOCKS - 1):
        rearm()
        order = core.access_order.AccessOrder(NUM_BLOCKS)
        store = core.store.BlockStore(NUM_BLOCKS, None, order)
        blocks = store.take(NUM_BLOCKS - 1, vec[i32]())
        store.publish(blocks, request, 1, 0, 1, 0, 5)
        for now, block in enumerate((3, 1, 5, 2, 4)):
            order.accessed(block, float(now))
        store.release(blocks, 0, NUM_BLOCKS - 1)
        found, wanted = list(store.take(count, vec[i32]())), [6, 7, 8, 3, 1, 5, 2, 4][:count]
        if found != wanted:
            yield Fault("QUEUE-1", f"{count} blocks by access: expected {wanted}, found {found}", 1)


def crowds(package: ModuleType) -> Iterator[Fault]:
    """Publish every block of an index under keys that share a home slot, or a word, or all but the group (KEY-1)."""
    if list(package.core.index.zeros64(3)) != [0, 0, 0] or list(package.core.index.zeros32(2)) != [0, 0]:
        yield Fault("KEY-1", "vectors of zeros hold others", 1)
    ways: tuple[Callable[[int], Key], ...] = (
        lambda block: (0, 9 - block, 0),
        lambda block: (block << 20, 3, 0),
        lambda block: (32 * block, 3, block % 2),
        lambda block: (7, 7, block),
    )
    for count in (9, 40):
        for key_of in ways:
            rearm()
            found = package.core.index.PrefixIndex(count)
            for block in range(1, count):
                found.add(block, *key_of(block))
            low, high, group = key_of(count)
            blocks = [found.find(*key_of(block)) for block in range(1, count)]
            missing = [found.find(*key) for key in ((low, high, group), (low, high, group + 9), (low, -99, group))]
            if blocks != list(range(1, count)) or any(missing):
                yield Fault("KEY-1", f"{count} blocks, {key_of(1)}, ...: found {blocks}, of no block {missing}", 1)
                return
            for block in range(1, count):
                keys = [key_of(each) for each in range(1, count)]
                matching = [at + 1 for at, key in enumerate(keys) if found.matches(block, *key)]
                if matching != [block]:
                    yield Fault("KEY-1", f"block {block} matches the keys of {matching}", 1)
                    return
            for block in range(1, count, 2):
                found.drop(block)
            if [found.find(*key_of(block)) for block in range(1, count)] != [
                0 if block % 2 else block for block in range(1, count)
            ]:
                yield Fault("KEY-1", f"{count} blocks, {key_of(1)}, ...: dropping some takes others away", 1)
                return


def indexed(package: ModuleType, random: Random) -> str:
    """Add, drop, copy and clear; say what is found otherwise."""
    found, keys = package.core.index.PrefixIndex(NUM_BLOCKS), dict[int, Key]()
    some = random.sample(CROWDED, 7)
    for step in range(40):
        before, known, block = found.copy(), list(keys), random.randrange(1, NUM_BLOCKS)
        if random.random() < 0.02:
            found.clear()
            keys.clear()
        elif block in keys:
            alone = list(keys.values()).count(keys[block]) == 1
            del keys[block]
            if found.drop(block) != alone:
                return f"step {step}: block {block} was {'' if alone else 'not '}the last with its key"
        else:
            key = random.choice(some)
            if found.add(block, *key) is not (key not in keys.values()):
                return f"step {step}: {key} is {'no ' if key in keys.values() else ''}news"
            keys[block] = key
        if wrong := asked(found, keys, some):
            return f"step {step}, block {block}: {wrong}"
        if [each for each in range(NUM_BLOCKS) if before.has_key(each)] != sorted(known):
            return f"step {step}: a copy has changed"
        if wrong := asked(before, {each: before.key(each) for each in known}, some):
            return f"step {step}: a copy has changed: {wrong}"
    return ""


def asked(found: Any, keys: dict[int, Key], some: list[Key]) -> str:
    """Put every question; `keys` are in the order in which they were added."""
    oldest = {key: next((block for block, own in keys.items() if own == key), 0) for key in CROWDED}
    for key, first in oldest.items():
        if found.find(*key) != first:
            return f"{key} found in block {found.find(*key)}, expected {first}"
        ring, block = list[int](), first
        while block and len(ring) < NUM_BLOCKS:
            ring.append(block)
            block = found.next_duplicate(block, first)
        if ring != [block for block, own in keys.items() if own == key]:
            return f"{key} in blocks {ring} of {keys}"
    for block in range(NUM_BLOCKS):
        if [key for key in CROWDED if found.matches(block, *key)] != [keys[each] for each in [block] if each in keys]:
            return f"block {block} of {keys} matches other keys"
        if found.has_key(block) != (block in keys) or (block in keys and found.key(block) != keys[block]):
            return f"block {block} of {keys} has another key"
    if found.num_keyed != len(keys) or sorted(found.slot_blocks()) != sorted(set(oldest.values()) - {0}):
        return f"{found.num_keyed} keys in {found.slot_blocks()}, expected {keys}"
    return runs(found, oldest, some)


def runs(found: Any, oldest: dict[Key, int], some: list[Key]) -> str:
    """Look up several keys in a row, of which a group's are every one or every second."""
    for group, units, start in product((0, 1), (1, 2), (0, 1)):
        row = [key for key in some if key[2] == group]
        words = vec[i64]([word for key in row for word in ((7, 7) * (units - 1) + key[:2])])
        ids = vec[i32]([0] * len(row))
        entries = [oldest[key] for key in row]
        stop = found.find_run(words, 2 * units, group, ids, start, len(row))
        wanted = next((at for at in range(start, len(row)) if not entries[at]), max(start, len(row)))
        if stop != wanted or list(ids[start:stop]) != entries[start:stop] or any(ids[:start]) or any(ids[stop:]):
            return f"run of {row} from {start}: {list(ids)} up to {stop}, expected {entries} up to {wanted}"
        for at, wrong in product(range(len(row)), (-1, 0, NUM_BLOCKS, *range(1, NUM_BLOCKS))):
            held = vec[i32](entries[:stop])
            if at < stop:
                held[at] = wrong
            good = [block > 0 and block < NUM_BLOCKS and found.matches(block, *row[i]) for i, block in enumerate(held)]
            bad = next((i for i in range(start, len(held)) if not good[i]), max(start, len(held)))
            if max(start, found.match_run(words, 2 * units, group, held, start)) != bad:
                return f"{list(held)} match {row} up to {found.match_run(words, 2 * units, group, held, start)}"
    return ""


# --- plans


def stale_plans(package: ModuleType) -> Iterator[Fault]:
    """Change something between a plan and its commit, or nothing (PLAN-3)."""
    changes: tuple[tuple[str, bool, Callable[[Any, Any], object]], ...] = (
        ("nothing", False, lambda manager, other: None),
        ("a lookup", False, lambda manager, other: manager.get_computed_blocks(package.Request("x", [9], 1))),
        ("a block taken", True, lambda manager, other: manager.block_pool.get_new_blocks(1)),
        ("a block taken and given back", True, lambda manager, other: back(manager)),
        ("a block held once more", True, lambda manager, other: manager.block_pool.touch([1])),
        ("a block released", True, lambda manager, other: manager.block_pool.free_blocks([1])),
        ("a request grown", True, lambda manager, other: grown(manager, other)),
        ("a request ended", True, lambda manager, other: manager.free(other)),
        ("a candidate taken into use", True, lambda manager, other: manager.block_pool.touch([5])),
    )
    for kind, (what, is_stale, change) in product(("full", "sliding"), changes):
        manager = manager_of(package, kind)
        other = started(package, manager, "other")
        manager.free(started(package, manager, "gone", 1)) if kind == "full" else None
        gone = package.Request("gone", [3], 1)
        manager.allocate_slots(gone, 1)
        manager.free(gone)
        plan = manager.plan(package.Request("r", [7, 8], 1), 2)
        try:
            change(manager, other)
        except package.errors.BlockwrightError:
            continue
        yield from committed(package, manager, plan, f"{kind}, {what}", is_stale)
    manager = manager_of(package, "full")
    manager.free(started(package, manager, "gone"))
    plan = manager.plan(package.Request("r", [7, 8], 1), 2)
    manager.reset_prefix_cache()
    yield from committed(package, manager, plan, "a reset", True)


def back(manager: Any) -> None:
    """Take a block and give it back."""
    (block,) = manager.block_pool.get_new_blocks(1)
    manager.block_pool.free_blocks([block])


def grown(manager: Any, request: Any) -> None:
    """Give a request one slot more."""
    request.append_output_token_ids([1])
    manager.allocate_slots(request, 1)


def committed(package: ModuleType, manager: Any, plan: Any, what: str, is_stale: bool) -> Iterator[Fault]:
    """Commit a plan; say whether it was taken as it must be."""
    try:
        manager.commit(plan)
    except package.errors.BlockwrightError as error:
        if not is_stale:
            yield Fault("PLAN-3", f"{what}: {error}", 3)
    else:
        if is_stale:
            yield Fault("PLAN-3", f"{what}: the plan is committed", 3)


# --- losses


def explained(package: ModuleType) -> Iterator[Fault]:
    """Lose a prefix in each way, and have it explained (LOSS-2)."""
    for kind, size, unit in (("full", 1, 1), ("full", 2, 1), ("sliding", 1, 1), ("sliding", 2, 2)):
        for remembers, way in product((True, False), ("kept", "never", "evicted", "trimmed", "reset")):
            manager = manager_of(package, kind, size, 7, explain_evictions=remembers)
            tokens = 4 * size
            request = package.Request("r", [1] * tokens, unit)
            if way != "never":
                manager.allocate_slots(request, tokens)
                request.num_computed_tokens = tokens
                if way == "trimmed":
                    manager.remove_skipped_blocks(request, tokens)
                manager.free(request)
            if way == "reset":
                manager.reset_prefix_cache()
            if way in ("evicted", "trimmed"):
                others = [package.Request(f"other {at}", [2 + at] * 3 * size, unit) for at in range(2)]
                for other in others:
                    manager.allocate_slots(other, 3 * size)
            (part,) = manager.explain_hit(package.Request("again", [1] * (tokens + 1), unit)).groups
            found = None if part.cause is None else part.cause.name
            lost = {"never": "NEVER_PUBLISHED", "reset": "RESET", "kept": None}
            by_window = "TRIMMED" if kind == "sliding" and way == "trimmed" else "EVICTED"
            wanted = lost.get(way, by_window) if remembers or way == "kept" else "UNKNOWN_LOSS"
            if found != wanted and not (kind == "sliding" and way == "trimmed" and found == "EVICTED" and remembers):
                yield Fault("LOSS-2", f"{kind}, block {size}, {way}, remembers {remembers}: {found} for {wanted}", 4)
