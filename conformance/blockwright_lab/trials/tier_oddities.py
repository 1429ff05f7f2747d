"""Trials of what random walks of tiers and chains cannot meet: broken books, strange backends, edges of what is packed.

CHECK-1   the self-check tells a law that is broken: which, of what, what it demands, and what there is
TIER-2    places of foreign backends, and backends that are copied
CHAIN-2   a load that cannot be, since a tier has lost a block, holds nothing
"""

import gc
import weakref
from collections.abc import Iterator
from itertools import chain
from types import ModuleType
from typing import Any

from librt.vecs import vec
from mypy_extensions import i32

from blockwright_conformance.offload.tier_adapter import TOKENS, foreign_backend

from ..known_bugs.known_bug import Fault, Trial
from ..known_bugs.watch import rearm

SPREAD: tuple[tuple[bytes, int], ...] = (
    (b"", 0),
    (b"a", 243020),
    (b"\xff", 642992),
    (b"ab", 634175571),
    (b"1234567", 971200183),
    (b"12345678", 118251071),
    (b"123456789", 842097329),
    (b"\xff" * 8, 20251),
    (b"\x80" * 15, 1139273631),
    (b"12345678" + b"\xff" * 8, 797214416),
    (bytes(range(200, 240)), 88694323),
)
"""Keys and how they are spread: the same in every build."""

A, B, C, D = b"a", b"b", b"c", b"d"


def refusal(work: Any, *arguments: Any) -> str:
    """Make a call; give the name and text of its error, or nothing."""
    try:
        work(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


# --- self-checks


def lru(offload: Any, count: int, keys: str = "", **options: Any) -> Any:
    """Give a tier in which blocks are ready."""
    manager = offload.LRUOffloadingManager(offload.CPUBackend(TOKENS, count), **options)
    manager.prepare_store(names := [key.encode() for key in keys])
    manager.complete_store(names)
    return manager


def arc(offload: Any) -> Any:
    """Give a tier with C and D in T1, B in T2, A in B1."""
    manager = offload.ARCOffloadingManager(offload.CPUBackend(TOKENS, 3))
    for keys in ([A, B, C], [D]):
        manager.prepare_store(keys)
        manager.complete_store(keys)
        manager.touch([B])
    return manager


def self_checks(package: ModuleType) -> Iterator[Fault]:
    """Break books in one way each, and see what the self-check tells (CHECK-1)."""
    rearm()
    for at, (manager, want) in enumerate(broken(package.offload)):
        found = refusal(manager.check)
        if found != f"InvariantError: {want}":
            yield Fault("CHECK-1", f"{at}: expected {want!r}, found {found!r}", 1)
            return


def broken(offload: Any) -> Iterator[tuple[Any, str]]:
    """Give managers and chains that are broken, and what their self-checks must tell."""
    manager = arc(offload)
    slot = {key: manager._entries.index.find(key) for key in (B, C, D)}
    manager._once.leave(slot[D])
    yield manager, f"TIER-4: the blocks of T1 and T2: expected {[B, C, D]}, found {[B, C]}"
    manager = arc(offload)
    manager._once._older[0] = slot[C]
    yield manager, f"TIER-4: T1 read backwards: expected {[slot[D], slot[C]]}, found {[slot[C]]}"
    manager = arc(offload)
    manager._often._older[0] = 0
    yield manager, f"TIER-4: T2 read backwards: expected {[slot[B]]}, found []"
    manager = arc(offload)
    manager._ghosts.index.count += 1
    yield manager, "TIER-4: the number of keys: expected 1, found 2"
    manager = arc(offload)
    manager._ghosts.add(C, 1)
    yield manager, f"TIER-4: ghosts that are present: expected [], found {[C]}"
    manager = arc(offload)
    manager._ghosts.add(b"more", 1)
    yield manager, "TIER-2: T1 and B1 within the capacity: expected True, found False"
    manager = arc(offload)
    for key in (b"1", b"2", b"3"):
        manager._ghosts.add(key, 2)
    yield manager, "TIER-2: all lists within twice the capacity: expected True, found False"
    for target in (-0.5, 3.5):
        manager = arc(offload)
        manager._target = target
        yield manager, f"TIER-2: the target {target} within the capacity: expected True, found False"
    for manager in (arc(offload), lru(offload, 2, "ab"), offload.OffloadChain([lru(offload, 2, "ab")])):
        tier = manager.tiers[0] if hasattr(manager, "tiers") else manager
        at = tier._entries.index.find(B)
        tier._entries.state[at] = 7
        yield manager, f"TIER-1: slot {at} is written, ready or doomed, not 7: expected True, found False"
    made = offload.OffloadChain([lru(offload, 2)])
    made._jobs.readers[5] = 1
    yield made, "CHAIN-1: stores that read blocks of the device: expected {}, found {5: 1}"


# --- backends


def backends(package: ModuleType) -> Iterator[Fault]:
    """Copy backends, free what was not given, recover what must not be, and let go of statuses (TIER-2)."""
    rearm()
    for what, holds in (*own_places(package.offload), *foreign_places(package.offload)):
        if not holds:
            yield Fault("TIER-2", what, 1)
            return


def own_places(offload: Any) -> Iterator[tuple[str, bool]]:
    """Tell what must hold of our backends."""
    kinds: Any = offload.tiers.backend
    slots = kinds.SlotBackend(1, "DISK", 3)
    slots.take_places(1)
    twin = slots.copy()
    facts = twin.block_size, twin.medium, twin.num_blocks, twin.is_used(0), twin.num_free_places()
    yield f"a copy has {facts}", facts == (1, "DISK", 3, True, 2)
    for kind in (kinds.SlotBackend, kinds.CPUBackend):
        made = type("Own", (kind,), {})(*((1, "DISK", 3) if kind is kinds.SlotBackend else (1, 3)))
        yield f"{kind} is copied", refusal(made.copy) == "UnsupportedError: copy: Own does not say how it is copied"
    slots.take_places(2)
    told = refusal(slots.free, offload.BlockStatus())
    yield f"freed a strange status: {told}", told == "BlockError: free: place -1 of 'DISK' is not given out"
    manager = lru(offload, 2, "ab", enable_events=True)
    yield "a copy has other events", manager.copy().take_events() == manager.take_events() != []
    yield "an empty key", refusal(manager.lookup, [b""]).startswith("InvalidArgumentError: block_hashes")
    abstract = offload.tiers.manager.TierManager(offload.CPUBackend(TOKENS, 1))
    yield "no policy", refusal(abstract.idle_blocks, 1).startswith("NotImplementedError")
    manager = lru(offload, 7, "abcdefg")
    told = manager.prepare_store([A, b"new"])  # the index grows in the midst of the call
    yield f"evicted {told}", told is not None and told.block_hashes_evicted == [B]


def foreign_places(offload: Any) -> Iterator[tuple[str, bool]]:
    """Tell what must hold of a foreign backend."""
    kind, made = foreign_backend(offload), offload.LRUOffloadingManager
    for keys, why in (([b""], "block_hashes: a block hash"), ([A, A], "backend: it recovered block 61 twice")):
        told = refusal(made, kind(3, keys))
        yield f"recovered {keys}: {told}", told.startswith(f"InvalidArgumentError: {why}")
    backend = kind(3, [A])
    backend.blocks[0].ref_cnt = 5
    made(backend)
    yield "a recovered block has readers", backend.blocks[0].ref_cnt == 0
    ready = type("Ready", (kind,), {"allocate_blocks": all_ready, "copy": lambda self: self})(3)
    manager = made(ready)
    told = refusal(manager.copy)
    yield f"copied: {told}", told.startswith("UnsupportedError: copy: the statuses of Ready")
    manager.prepare_store([A, B])
    yield "a status says ready too early", [each.ref_cnt for each in ready.blocks.values()] == [-1, -1]
    gone = weakref.ref(ready.blocks[0]) if hasattr(ready.blocks[0], "__weakref__") else None
    slot = manager._entries.index.find(A)
    manager.complete_store([A])
    manager.remove([A])
    gc.collect()
    yield "a status is kept", manager._entries.statuses[slot] is None and (gone is None or gone() is None)
    manager._entries.statuses[manager._entries.index.find(B)] = None
    yield "no status", refusal(manager.places_of, [B]).startswith("InvariantError: TIER-2: the place of slot")


def all_ready(self: Any, block_hashes: list[bytes]) -> list[Any]:
    """Give places that say that they are ready."""
    given = type(self).__mro__[1].allocate_blocks(self, block_hashes)  # type: ignore[attr-defined]
    for each in given:
        each.ref_cnt = 0
    return list(given)


# --- what is packed


def packed(package: ModuleType) -> Iterator[Fault]:
    """Look at the edges of indexes, of ghosts and of what ARC evicts (TIER-4)."""
    rearm()
    offload: Any = package.offload
    for what, holds in (*edges_of_keys(offload), *edges_of_ghosts(offload), *arc_victims(offload)):
        if not holds:
            yield Fault("TIER-4", what, 1)
            return


def edges_of_keys(offload: Any) -> Iterator[tuple[str, bool]]:
    """Tell what must hold of an index of keys."""
    keys: Any = offload.tiers.keys
    for key, wanted in SPREAD:
        yield f"{key!r} is spread to {keys.spread(key)}", keys.spread(key) == wanted
    for first, other in (ALIKE, ALIKE[::-1]):
        index = keys.KeyIndex()
        slot = index.put(first)
        yield "one of two that are spread alike", index.find(other) == 0 and index.put(other) != slot
        yield "two that are spread alike", index.find(first) == slot
    index = keys.KeyIndex()
    names = [b"%d" % at for at in range(40)]
    sizes = set()
    last = 0
    for at, name in enumerate(names):
        twin = index.copy()
        last = index.put_after(last, name)
        index.find_all(names)
        found = list(twin.find_all(names)), list(twin.find_all(names[::-1]))
        yield "a copy finds other keys", found == (list(range(1, at + 1)) + [0] * (40 - at), found[0][::-1])
        sizes.add(index.size)
    yield f"sizes {sizes}", sizes == {8, 16, 32, 64}


def edges_of_ghosts(offload: Any) -> Iterator[tuple[str, bool]]:
    """Tell what must hold of ghosts."""
    ghosts = offload.tiers.ghosts.Ghosts()
    ghosts.discard(A)
    ghosts.trim(1, -1)
    yield "none", (ghosts.once.count, ghosts.often.count, ghosts.index.count) == (0, 0, 0)
    ghosts.add(A, 1)
    ghosts.add(B, 2)
    ghosts.discard(A)
    ring = offload.tiers.ring.Ring()
    ring.grow(3)
    ring.push_all(vec[i32]([1, 2]))
    ring.newer[2] = 1
    yield f"a ring that bites its tail: {ring.members()}", ring.members() == [1, 2, 1]
    yield "one", (ghosts.once.count, ghosts.often.count, ghosts.index.count) == (0, 1, 1) and ghosts.list_of(A) == 0


def arc_victims(offload: Any) -> Iterator[tuple[str, bool]]:
    """Tell which blocks go for several that come in one call, with A in T1, B and C in T2, and perhaps a ghost of D."""
    cases = (
        (4, 2.5, (b"x", b"y", b"z"), [B, A]),
        (5, 2.5, (b"w", b"x", b"y", b"z"), [A, B]),
        (3, 1.5, (D, b"x"), [B, C]),
    )
    for capacity, target, new, wanted in cases:
        manager = offload.ARCOffloadingManager(offload.CPUBackend(TOKENS, capacity))
        for key in (B, C, A):
            manager.prepare_store([key])
            manager.complete_store([key])
            manager.touch([key]) if key != A else None
        if D in new:
            manager._ghosts.add(D, 2)
        manager._target = target
        found = manager.prepare_store(list(new)).block_hashes_evicted
        yield f"{new} into {capacity}: {found}", found == wanted


ALIKE = (b"the key of 254453308", b"the key of 404668819")
"""Two keys that are spread alike."""


# --- chains


def odd_chains(package: ModuleType) -> Iterator[Fault]:
    """Ask chains for what they refuse, and let their tiers do what they should not (CHAIN-2)."""
    rearm()
    offload: Any = package.offload
    facts = (limits_of_chains(offload), lossy_chains(offload, package.errors), ways_down(offload), ways_up(offload))
    for what, holds in chain.from_iterable(facts):
        if not holds:
            yield Fault("CHAIN-2", what, 1)
            return


def limits_of_chains(offload: Any) -> Iterator[tuple[str, bool]]:
    """Tell what must hold of a chain's arguments and transfers."""
    full = offload.OffloadChain([lru(offload, 2)], max_transfers=0)
    yield "a store begins", full.store([A], [0]) is None
    told = refusal(lambda: offload.OffloadChain([lru(offload, 2)], max_transfers=-1))
    yield f"fewer than none: {told}", told.startswith("InvalidArgumentError: max_transfers")
    made = offload.OffloadChain([lru(offload, 2, "a"), lru(offload, 2, "b")], device_blocks_per_block=2)
    for call in (made.store, made.load):
        told = refusal(call, [A], [0, 1, 2])
        yield f"three blocks: {told}", told.endswith("device_ids: 3 given, 1 blocks span 2")
    made.store([C], [4, 5])
    made.load([A], [0, 1])
    made.finish(made.take_transfers()[0].job_id, True)
    twin = made.copy()
    yield "a copy tells other ends", made.take_finished() == twin.take_finished() != []
    made.finish(1, True)
    made.tiers[0].remove([A])
    made.load([B], [0, 1])
    jobs = [(each.kind, each.above, each.below, each.device_ids) for each in made._jobs.under_way.values()]
    yield f"transfers {jobs}", jobs == [("promote", 0, 1, []), ("load", 0, -1, [0, 1])]
    made.store([D], [6, 7])
    begun = [(each.kind, each.above, each.below) for each in made._jobs.under_way.values()][2:]
    yield f"transfers {begun}", begun in ([("store", 0, -1)], [])


def lossy_chains(offload: Any, errors: Any) -> Iterator[tuple[str, bool]]:
    """Tell what must hold where a tier takes nothing, or has lost what it said it had."""
    kind = offload.LRUOffloadingManager
    none = type("None", (kind,), {"prepare_store": lambda self, keys: None})
    yield "nothing is taken", offload.OffloadChain([none(offload.CPUBackend(TOKENS, 2))]).store([A], [0]) is None
    for error in (errors.UnknownBlockHashError, errors.BlockNotReadyError):

        def lost(self: Any, keys: Any, error: Any = error) -> Any:
            raise error("gone")

        lossy = type("Lossy", (kind,), {"prepare_load": lost})(offload.CPUBackend(TOKENS, 2))
        lossy.prepare_store([C])
        lossy.complete_store([C])
        made = offload.OffloadChain([lru(offload, 3, "a"), lru(offload, 2, "b"), lossy])
        told = refusal(made.load, [A, B, C], [0, 1, 2])
        yield f"lost: {told}", told.startswith("UnknownBlockHashError: load: a tier has lost a block meanwhile: ")
        readers = [made.tiers[0].status_of(A), made.tiers[1].status_of(B)]
        yield f"readers {readers}", readers == [0, 0] and made.tiers[0].status_of(C) is None and not made.pins()


def ways_down(offload: Any) -> Iterator[tuple[str, bool]]:
    """Tell what must hold of blocks that go down where one is bad, being written, or there already, below."""
    for room, state in ((0, "bad"), (3, "bad"), (3, "written")):
        lower = lru(offload, 1 + room, "a" if state == "bad" else "")
        if state == "bad":
            lower.prepare_load([A, A])
            lower.complete_load([A], False)
        else:
            lower.prepare_store([A])
        upper = lru(offload, 4, "abc")
        made = offload.OffloadChain([upper, lower], reserve=2)
        made.store([D], [0])
        found = [upper.status_of(key) for key in (A, B, C, D)], made.num_dropped
        wanted = [0, *([1, 1] if room else [None, None]), -1], 0 if room else 2
        yield f"{room}, {state}: {found}", found == wanted
    told = offload.tiers.interfaces.PrepareStoreOutput([], offload.CPULoadStoreSpec([]), [])
    kind = type("Has", (offload.LRUOffloadingManager,), {"prepare_store": lambda self, keys: told})
    upper = lru(offload, 2, "a")
    made = offload.OffloadChain([upper, kind(offload.CPUBackend(TOKENS, 2))], reserve=1)
    made.store([B], [0])
    yield "not taken away", upper.status_of(A) is None and len(made._jobs.under_way) == 1
    made = offload.OffloadChain([lru(offload, 2, "a"), lru(offload, 2)], reserve=1, write="through")
    made.store([B], [0])
    yield "goes down", [each.kind for each in made._jobs.under_way.values()] == ["store"]
    done = made.finish(made.take_transfers()[0].job_id, True)
    yield f"ended {done}", tuple(done) == (0, "store", [B], [0], True)


def ways_up(offload: Any) -> Iterator[tuple[str, bool]]:
    """Tell what must hold of two loads of which one waits for a block that does not arrive."""
    made = offload.OffloadChain([lru(offload, 3), lru(offload, 3, "abc")])
    first, other = made.load([A], [0]), made.load([B], [1])
    ups = {each.block_hashes[0]: each.job_id for each in made.take_transfers()}
    made.finish(ups[A], False)
    ended = [(each.job_id, each.success) for each in made.take_finished()]
    yield f"ended {ended}", ended == [(first, False)] and list(made._jobs.waiting) == [other]
    made = offload.OffloadChain([lru(offload, 4, "a")])
    made.store([B], [0])
    made.load([A], [0])  # which waits until the block has been read
    made.store([C], [1])
    yield "a load overtakes a store", [each.job_id for each in made.take_transfers()] == [0, 2]
    made.finish(2, True)
    yield "a load overtakes the last store", made.take_transfers() == []
    made.finish(0, True)
    yield "a load stays", [each.job_id for each in made.take_transfers()] == [1] and made.pins() == {0: 1}
    made = offload.OffloadChain([lru(offload, 4)])
    for at, key in enumerate((A, B, C)):
        made.store([key], [0])
        yield f"pins {made.pins()}", made.pins() == {0: at + 1}
    for each in made.take_transfers():
        made.finish(each.job_id, True)
        yield f"pins {made.pins()}", made.pins() == ({0: 2 - each.job_id} if each.job_id < 2 else {})


ODDITIES: tuple[Trial, ...] = (self_checks, backends, packed, odd_chains)
