"""Trials of one tier beside a plain model of it, and of what it is packed on: rings, numbers for keys, places.

TIER-2    places: fresh ones first, then the last returned; one that is claimed is nobody else's
TIER-4    orders of use and numbers for keys, in both directions, while they grow, shrink and are copied
TIER-6    what goes: the idle block used longest ago, or what ARC as published says; and what it learns
REF-0     all else that a tier says, its refusals' texts included
"""

from collections.abc import Callable, Iterator
from itertools import product
from random import Random
from types import ModuleType
from typing import Any

from librt.vecs import vec
from mypy_extensions import i32

from blockwright_conformance.offload.tier_adapter import TOKENS, foreign_backend

from ..known_bugs.known_bug import Fault, Trial
from ..known_bugs.watch import rearm
from .tier_model import Key, Refused, TierModel

NAMED: tuple[Key, ...] = tuple(
    b"k%d" % at
    if at % 3 == 0
    else b"a key of %d" % at
    if at % 3 == 1
    else b"%d" % (at % 10) + b"x" * (7 + at % 10 // 8)
    for at in range(60)
)
MANY: tuple[Key, ...] = tuple(dict.fromkeys(NAMED))
"""Keys of fewer bytes than a refusal shows, of as many, and of more."""

CALLS = ("touch", "prepare_load", "complete_load", "prepare_store", "prepare_store", "complete_store", "remove")
CALM = (*("touch", "prepare_store", "complete_store") * 3, "remove")

WORLDS: tuple[tuple[str, str, int, int, int, int], ...] = tuple(
    (policy, backend, capacity, keys, steps, seed)
    for policy in ("LRU", "ARC")
    for backend, capacity, keys, steps, seed in (
        ("packed", 3, 6, 220, 1),
        ("packed", 1, 4, 80, 2),
        ("packed", 6, 14, 300, 3),
        ("foreign", 4, 9, 150, 4),
        ("silent", 2, 5, 60, 5),
        ("packed", 0, 3, 15, 6),
        ("packed", 20, 45, 250, 7),
        ("foreign", 12, 20, 60, 8),
        ("calm", 4, 8, 400, 9),
        ("calm", 1, 4, 150, 10),
        ("calm", 2, 6, 250, 11),
        ("calm", 6, 12, 500, 12),
        ("calm", 3, 6, 500, 13),
    )
)
"""Policy, backend, places, keys, calls, seed."""


class Both:
    """A manager and its model."""

    def __init__(self, package: ModuleType, policy: str, backend: str, capacity: int, keys: tuple[Key, ...]) -> None:
        offload: Any = package.offload
        self.package, self.keys, self.backend = package, keys, backend
        recovered = keys[2 : 2 + capacity // 2] if backend == "foreign" else ()
        made = offload.CPUBackend(TOKENS, capacity)
        if backend == "foreign":
            made = foreign_backend(offload)(capacity, recovered)
        self.manager = getattr(offload, f"{policy}OffloadingManager")(made, backend != "silent")
        self.model = TierModel(policy, capacity, recovered)

    def copy(self) -> "Both":
        """Copy both."""
        twin = object.__new__(Both)
        vars(twin).update(vars(self))
        twin.manager, twin.model = self.manager.copy(), self.model.copy()
        return twin


def tier_beside_model(*world: Any) -> Trial:
    """Give the trial that does the same at random to a tier and to a model, and compares all they say (REF-0)."""

    def trial(package: ModuleType) -> Iterator[Fault]:
        if wrong := walked(package, *world):
            yield Fault("REF-0", wrong, 1)

    trial.__name__ = f"{world[0]} beside a model, {world[1]}, {world[2]} places"
    return trial


def walked(package: ModuleType, policy: str, backend: str, capacity: int, keys: int, steps: int, seed: int) -> str:
    """Walk once, copies being gone on from or left behind; tell the first difference."""
    random = Random(seed)
    both = Both(package, policy, backend, capacity, MANY[:keys])
    left = None
    for step in range(steps):
        rearm()
        if left and (wrong := compared(*left)):
            return f"call {step}, on a copy: {wrong}"
        if step % 5 == 1 and backend != "foreign":
            twin = both.copy()
            both, left = (both, (twin, random)) if random.random() < 0.5 else (twin, (both, random))
        name, arguments = drawn(random, both)
        if wrong := called(random, both, name, arguments) or compared(both, random):
            return f"call {step}, {name}{arguments}: {wrong}"
    return ""


def drawn(random: Random, both: Both) -> tuple[str, tuple[Any, ...]]:
    """Draw a call: mostly one that is not refused."""
    name, model = random.choice(CALLS if both.backend != "calm" else CALM), both.model
    fit: dict[str, Callable[[Key], bool]] = {
        "prepare_load": lambda key: model.blocks[key].state == "ready",
        "complete_load": lambda key: model.blocks[key].readers > 0,
        "complete_store": lambda key: model.blocks[key].state == "writing",
        "remove": model.is_idle,
    }
    able = [key for key in model.blocks if fit[name](key)] if name in fit else list(both.keys)
    if random.random() < 0.15 or not able:
        able = list(both.keys)
    if both.backend == "calm" and name == "complete_store":
        return name, ([key for key in both.keys if model.status_of(key) == -1], True)
    if both.backend == "calm" and name == "prepare_store" and random.random() < 0.3:  # as many as there are, and ghosts
        able = [*model.ghosts[0], *model.ghosts[1]] + [key for key in both.keys if key not in model.blocks]
    count = random.choice((0, 1, 1, 1, 2, 2, 3, 5)) if random.random() < 0.97 else len(both.keys)
    keys = [random.choice(able) for _ in range(count)]
    if random.random() < 0.7:
        keys = list(dict.fromkeys(keys))
    return name, (keys, random.random() < 0.8) if name.startswith("complete") else (keys,)


def called(random: Random, both: Both, name: str, arguments: tuple[Any, ...]) -> str:
    """Make a call on both, and compare the answers, or the refusals and what they say."""
    errors: Any = both.package.errors
    keys, *rest = arguments
    given = random.choice((list, tuple, iter))(keys)
    try:
        wanted: object = getattr(both.model, name)(*arguments)
    except Refused as refused:
        try:
            found = getattr(both.manager, name)(given, *rest)
        except errors.BlockwrightError as error:
            text = str(error)
            is_told = type(error).__name__ == refused.error and refused.why in text and f" {refused.shown}" in text
            is_whole = text.partition(f" {refused.shown}")[2][:1] in ("", " ")
            return "" if is_told and is_whole else f"expected {refused.error} on {refused.shown}, found {error!r}"
        return f"expected {refused.error}, found {found}"
    found = getattr(both.manager, name)(given, *rest)
    if name == "prepare_store" and found is not None:
        found = found.block_hashes_to_store, found.store_spec.block_ids, found.block_hashes_evicted
    elif name == "prepare_load":
        found = found.block_ids
    return "" if found == wanted else f"expected {wanted}, found {found}"


def compared(both: Both, random: Random) -> str:
    """Compare all that both say."""
    manager, model, keys = both.manager, both.model, both.keys
    some, count = [random.choice(keys) for _ in range(3)], random.choice((0, 1, 2, len(keys)))
    ready = [key for key in keys if model.lookup([key])]
    pairs: list[tuple[str, object, object]] = [
        ("order of use", list(model.blocks), manager.recency()),
        ("statuses", [model.status_of(key) for key in keys], [manager.status_of(key) for key in keys]),
        ("free places", model.num_free, manager.num_free),
        ("idle blocks", model.victims(count), manager.idle_blocks(count)),
        ("lookup", model.lookup(some), manager.lookup(some)),
        ("lookup of what is ready", model.lookup([*ready, *some]), manager.lookup(iter([*ready, *some]))),
        ("places", [each.place for each in model.blocks.values()], manager.places_of(iter(model.blocks)).block_ids),
        ("events", model.events.copy() if both.backend != "silent" else [], told(manager)),
    ]
    model.events.clear()
    if model.arc:
        pairs.append(("ARC", (model.once, model.often, *model.ghosts, model.target), manager.policy_state()))
    if both.backend == "foreign":
        counts = {each.place: -1 if each.state == "writing" else each.readers for each in model.blocks.values()}
        shown = {at: status.ref_cnt for at, status in manager.backend.blocks.items()}
        pairs.append(("what the backend's statuses say", counts, shown))
    manager.check()
    return "; ".join(f"{name}: expected {want}, found {found}" for name, want, found in pairs if want != found)


def told(manager: Any) -> list[tuple[tuple[Key, ...], bool]]:
    """Take events; those of another medium or block size are none of a tier's."""
    own = manager.backend.block_size, manager.backend.medium
    return [
        (tuple(each.block_hashes) if (each.block_size, each.medium) == own else (), each.removed)
        for each in manager.take_events()
    ]


# --- what a tier is packed on


def rings(package: ModuleType) -> Iterator[Fault]:
    """Keep orders of slots beside lists (TIER-4)."""
    made = package.offload.tiers.ring.Ring
    for seed in range(4):
        rearm()
        if wrong := ring_walked(made(), Random(seed)):
            yield Fault("TIER-4", wrong, 1)
            return


def ring_walked(ring: Any, random: Random) -> str:
    """Walk a ring and a list; tell the first difference."""
    order: list[int] = []
    ring.grow(size := 9)
    for _ in range(150):
        out = [slot for slot in range(1, size) if slot not in order]
        some = random.sample(out, min(len(out), random.randrange(4)))
        held = random.sample(order, min(len(order), random.randrange(4)))
        act = random.choice(("push", "push all", "leave", "leave all", "refresh", "refresh all", "grow", "copy"))
        if act == "push" and some:
            ring.push(some[0])
            order.append(some[0])
        elif act == "push all":
            ring.push_all(vec[i32](some))
            order += some
        elif act == "leave" and held:
            ring.leave(held[0])
            order.remove(held[0])
        elif act == "leave all":
            ring.leave_all(vec[i32](held))
            order = [slot for slot in order if slot not in held]
        elif act == "refresh" and held:
            ring.refresh(held[0])
            order.append(order.pop(order.index(held[0])))
        elif act == "refresh all":
            named = [0, *held, *held[:1], 0]
            ring.refresh_all(vec[i32](named))
            for slot in [slot for slot in reversed(named) if slot]:
                order.append(order.pop(order.index(slot)))
        elif act == "grow":
            ring.grow(grown := random.randrange(size + 2))
            size = max(size, grown)
        elif act == "copy":
            twin, ring = random.sample((ring, ring.copy()), 2)
            before = twin.members()
            spare = next(iter(out), 0)
            ring.push(spare) if spare else None
            if twin.members() != before or twin.backwards() != before[::-1] or twin.count != len(before):
                return "a copy follows its original"
            ring.leave(spare) if spare else None
        found = ring.members(), ring.backwards(), ring.count
        if found != (order, order[::-1], len(order)):
            return f"{act}: expected {order}, found {found}"
    return ""


def key_numbers(package: ModuleType) -> Iterator[Fault]:
    """Give keys numbers beside a dictionary, some of which share buckets, in walks and without (TIER-4)."""
    keys: Any = package.offload.tiers.keys
    for seed in range(3):
        rearm()
        if wrong := index_walked(keys.KeyIndex(), Random(seed), keys.FIRST_SIZE):
            yield Fault("TIER-4", wrong, 1)
            return


def index_walked(index: Any, random: Random, first_size: int) -> str:
    """Walk an index and a dictionary; tell the first difference."""
    slots: dict[Key, int] = {}
    for _ in range(120):
        some = random.sample(MANY, random.randrange(1, 6))
        act = random.choice(("put", "put after", "find after", "drop", "copy", "find all"))
        last = random.choice([0, *slots.values()])
        if act == "drop":
            gone = [key for key in slots if random.random() < 0.3]
            random.shuffle(gone)
            index.drop_all(vec[i32]([slots.pop(key) for key in gone]))
        elif act.startswith("put"):
            for key in some:
                last = index.put(key) if act == "put" else index.put_after(last, key)
                if slots.setdefault(key, last) != last or len(set(slots.values())) < len(slots) or not last:
                    return f"{act} {key!r}: {last}, of {slots}"
        elif act == "find after":
            for key in some:
                found = index.find_after(last, key)
                if found != slots.get(key, 0):
                    return f"{act} {last} {key!r}: {found}, of {slots}"
                last = found
        elif act == "copy":
            twin, index = random.sample((index, index.copy()), 2)
            if slots:
                index.drop_all(vec[i32]([slot := slots.pop(key := next(iter(slots)))]))
                if twin.find(key) != slot or key not in twin.keys:
                    return "a copy follows its original"
        if list(index.find_all(some)) != [slots.get(key, 0) for key in some]:
            return f"{act}, {some}: {list(index.find_all(some))}, of {slots}"
        held = [(slot, key) for slot, key in enumerate(index.keys) if key]
        if held != sorted((slot, key) for key, slot in slots.items()) or index.count != len(slots):
            return f"{act}: {index.count} keys, {held}"
        if wrong := ill_packed(index, first_size):
            return f"{act}: {wrong}"
    return ""


def ill_packed(index: Any, first_size: int) -> str:
    """Say how an index is not packed as it says: twice as many buckets as slots, each slot in one chain."""
    sizes = {len(index.keys), len(index._following), len(index._hashes), len(index._next)}
    buckets = first_size if index.size == 1 else 2 * index.size
    if sizes != {index.size} or len(index._buckets) != buckets or index._mask != buckets - 1:
        return f"{sizes} slots, {len(index._buckets)} buckets, mask {index._mask}"
    chained: list[int] = []
    for slot in (*index._buckets, index._unused):
        while slot and len(chained) <= index.size:
            chained.append(slot)
            slot = index._following[slot]
    return "" if sorted(chained) == list(range(1, index.size)) else f"chains of {sorted(chained)}"


def places(package: ModuleType) -> Iterator[Fault]:
    """Take, return and claim places beside lists of them (TIER-2)."""
    for seed, capacity in product(range(3), (1, 5, 12)):
        rearm()
        if wrong := places_walked(package, Random(seed), capacity):
            yield Fault("TIER-2", wrong, 1)
            return


def places_walked(package: Any, random: Random, capacity: int) -> str:
    """Walk a backend and lists; tell the first difference."""
    backend = package.offload.CPUBackend(TOKENS, capacity)
    fresh, freed, given = list(range(capacity)), list[int](), list[int]()
    for _ in range(80):
        act = random.choice(("take", "take", "return", "claim", "copy"))
        if act == "take":
            count = random.randrange(len(fresh) + len(freed) + 1)
            wanted = [fresh.pop(0) if fresh else freed.pop() for _ in range(count)]
            given += wanted
            if list(found := backend.take_places(count)) != wanted:
                return f"take {count}: expected {wanted}, found {list(found)}"
        elif act == "return":
            some = random.sample(given, random.randrange(len(given) + 1))
            backend.return_places(vec[i32](some))
            given = [place for place in given if place not in some]
            freed += some
        elif act == "claim":
            place = random.randrange(-1, capacity + 1)
            try:
                backend.claim_place(place)
            except package.errors.BlockError as error:
                if place in fresh + freed or f"place {place}" not in str(error).replace("place: ", "place "):
                    return f"claim {place}: {error}"
                continue
            if place not in fresh + freed:
                return f"claim {place}: it is not free"
            passed = [each for each in fresh if each < place] if place in fresh else []
            freed = [each for each in freed if each != place] + passed[::-1]
            fresh = [each for each in fresh if each > place] if place in fresh else fresh
            given.append(place)
        else:
            twin, backend = random.sample((backend, backend.copy()), 2)
            before = [twin.is_used(place) for place in range(-1, capacity + 1)], twin.num_free_places()
            changed = backend.copy()
            changed.take_places(changed.num_free_places())
            changed.return_places(vec[i32](given))
            if ([twin.is_used(place) for place in range(-1, capacity + 1)], twin.num_free_places()) != before:
                return "a copy follows its original"
        used = [place for place in range(-1, capacity + 1) if backend.is_used(place)]
        if used != sorted(given) or backend.num_free_places() != len(fresh) + len(freed):
            return f"{act}: expected {sorted(given)} used, found {used}; {backend.num_free_places()} free"
    return ""


TRIALS: tuple[Trial, ...] = (rings, key_numbers, places, *(tier_beside_model(*world) for world in WORLDS))
