"""Trials of the store of blocks beside a plain model of it: lists and dictionaries, and no packed array.

QUEUE-1   which blocks are free, in the order in which they are taken: as they were released, or accessed
REF-1     how many hold each block, copies to come and their two ends included
KEY-1     which block serves a prefix: the oldest that carries its key and, where tokens are compared, its content
EVENT-1   what is told: prefixes stored and removed, contents lost, losses explained
PLAN-3    the version is another one after each change, so that a plan is noticed to be stale
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import product
from random import Random
from types import ModuleType
from typing import Any

from librt.vecs import vec
from mypy_extensions import i32

from ..known_bugs.known_bug import Fault
from ..known_bugs.watch import rearm

COUNT = 7
"""Blocks, the null block included."""
SIZE = 2
"""Tokens of a block; requests are hashed by one."""
PROMPTS = ((1, 2, 3, 4, 5, 6, 7), (1, 2, 3, 4, 9, 9), (1, 2, 1, 4), (2, 2))
LORA = (None, None, None, "adapter")
STEPS = 40
NEVER = -1.0


class Books:
    """What the store must say: the model."""

    def __init__(self, ordered: bool, noted: frozenset[str]) -> None:
        self.ordered, self.noted = ordered, noted
        self.bare = list(range(1, COUNT))
        self.candidates: list[int] = []
        self.holders = [0] * COUNT
        self.keys: dict[int, tuple[Any, ...]] = {}
        """Key, content and digest of published blocks, in the order of their publication."""
        self.copies: list[tuple[int, int, int]] = []
        self.times, self.lengths = [NEVER] * COUNT, [0] * COUNT
        self.causes = [1] * COUNT
        self.lost: list[Any] = [None] * COUNT
        self.last = 0
        self.counts: dict[int, int] = {}
        self.events: list[tuple[Any, ...]] = []
        self.evictions: list[tuple[Any, ...]] = []
        self.num_evictions = 0

    def __deepcopy__(self, _memo: object) -> "Books":
        twin = object.__new__(Books)
        for name, held in vars(self).items():
            setattr(twin, name, held.copy() if isinstance(held, list | dict) else held)
        return twin

    def ranked(self) -> list[int]:
        """Give the candidates in their order."""
        if not self.ordered:
            return self.candidates
        return sorted(self.candidates, key=lambda block: (self.times[block], -self.lengths[block], block))

    def queue(self) -> list[int]:
        """Give the free blocks in the order in which they will be taken."""
        return self.bare + self.ranked()

    def refs(self) -> list[int]:
        """Give the counts of holders."""
        ends = [block for _, source, new in self.copies for block in (source, new)]
        return [self.holders[block] + ends.count(block) for block in range(COUNT)]

    def forget(self, block: int) -> None:
        """Forget when a block was accessed."""
        self.times[block], self.lengths[block] = NEVER, 0

    def remember(self, key: tuple[Any, ...], cause: int) -> None:
        """Note a loss in the ring of the last ones."""
        if "losses" not in self.noted:
            return
        self.lost = [None if each and each[0] == key else each for each in self.lost]
        self.last = self.last % (COUNT - 1) + 1
        self.lost[self.last] = key, cause
        kind = 3 * key[1] + cause - 1
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def taken(self) -> int:
        """Take the next block."""
        block = self.queue()[0]
        (self.bare if self.bare else self.candidates).remove(block)
        if block in self.keys:
            key, _, digest = self.keys.pop(block)
            self.num_evictions += 1
            if all(held[0] != key for held in self.keys.values()):
                self.remember(key, self.causes[block])
                if "evictions" in self.noted:
                    self.evictions.append((key[1], block, digest))
                if "events" in self.noted:
                    self.events.append(("BlockRemoved", digest, key[1]))
            if self.ordered:
                self.forget(block)
        return block

    def freed(self, block: int) -> None:
        """Put a block that nobody holds any more in the queue."""
        if block in self.keys:
            self.candidates.append(block)
        else:
            self.bare.insert(0, block)
            self.forget(block)

    def serving(self, key: tuple[Any, ...], content: bytes) -> int:
        """Give the block that serves a prefix."""
        compared = "contents" in self.noted
        able = [at for at, held in self.keys.items() if held[0] == key and (not compared or held[1] == content)]
        return able[0] if able else 0


class Both:
    """A store and its model, and tables that hold blocks of them."""

    def __init__(self, store: Any, books: Books, tables: list[list[int]]) -> None:
        self.store, self.books, self.tables = store, books, tables
        self.seen = {store.version}

    def copy(self) -> "Both":
        """Copy all of it."""
        store = type(self.store)(0, None, self.store)
        twin = Both(store, deepcopy(self.books), [table[:] for table in self.tables])
        twin.seen |= self.seen
        return twin


class Prefixes:
    """Requests, and what their blocks are: key, content and digest, by request, group and entry."""

    def __init__(self, package: ModuleType, weak: bool) -> None:
        hasher = package.FunctionHasher(lambda parent, block: bytes([sum(parent) % 2]) * 16) if weak else None
        hasher = hasher or package.Sha256Hasher(b"")
        self.requests = [
            package.Request(f"r{at}", list(prompt), 1, hasher=hasher, lora_name=LORA[at])
            for at, prompt in enumerate(PROMPTS)
        ]
        self.keys = [request.keys(SIZE) for request in self.requests]
        self.blocks = [
            [self.block(request, entry) for entry in range(request.num_tokens // SIZE)] for request in self.requests
        ]

    def block(self, request: Any, entry: int) -> tuple[Any, ...]:
        """Give hash, content, digest, parent and tokens of a block."""
        digests, start = request.block_hashes, entry * SIZE
        own = digests[start + SIZE - 1]
        before = digests[start - 1] if entry else None
        tokens = tuple(request.all_token_ids[start : start + SIZE])
        return own[:16], request.prefix_content(start + SIZE), own, before, tokens


def store_beside_model(package: ModuleType) -> Iterator[Fault]:
    """Do the same at random to a store and to the model of it, and compare all that they say."""
    noted: tuple[frozenset[str], ...] = (
        frozenset(),
        frozenset({"contents", "evictions"}),
        frozenset({"events", "losses"}),
        frozenset({"contents", "events", "losses", "evictions"}),
    )
    for seed, (ordered, what) in product((1, 2), product((False, True), noted)):
        rearm()
        if wrong := walked(package, Random(f"{seed} {ordered} {sorted(what)}"), ordered, what):
            yield Fault(*wrong, 1)
            return


def walked(package: ModuleType, random: Random, ordered: bool, noted: frozenset[str]) -> tuple[str, str] | None:
    """Walk once; give the law that is broken and how."""
    core = package.core
    prefixes = Prefixes(package, "contents" in noted)
    journal = core.journal.Journal(
        [] if "events" in noted else None,
        {} if "contents" in noted else None,
        core.journal.Losses(COUNT) if "losses" in noted else None,
        [] if "evictions" in noted else None,
    )
    order = core.access_order.AccessOrder(COUNT) if ordered else None
    store = core.store.BlockStore(COUNT, journal if noted else None, order)
    both, done = Both(store, Books(ordered, noted), [[]]), list[str]()
    for _ in range(STEPS):
        twin = both.copy()
        for each in (both, twin):
            before = each.store.version
            name, changes = random.choice(ACTIONS)(each, prefixes, random)
            done.append(name)
            if "expected" in name:
                return "QUEUE-1", str(done)
            if changes and each.store.version in each.seen:
                return "PLAN-3", f"{done}: the version is {each.store.version} again"
            if not changes and each.store.version != before:
                return "PLAN-3", f"{done}: the version changes from {before} to {each.store.version}"
            each.seen.add(each.store.version)
        for each in (both, twin):
            if wrong := compared(each, prefixes):
                return wrong[0], f"ordered {ordered}, noted {sorted(noted)}: {done}: {wrong[1]}"
        told(both) if random.random() < 0.3 else None
        if random.random() < 0.3:
            both = twin
        both.store.check()
    return None


# --- what is done: each gives its name, and whether it changes what a plan leans on


def take(both: Both, _prefixes: Prefixes, random: Random) -> tuple[str, bool]:
    """Take some blocks for a table."""
    store, books, table = both.store, both.books, random.choice(both.tables)
    count = random.choice((0, 1, 1, 2, 3))
    if count > len(books.queue()):
        return "no room", False
    if count == 1 and random.random() < 0.5:
        ids = [*table, store.take_one()]
    else:
        ids = list(store.take(count, vec[i32](table)))
    table += [books.taken() for _ in range(count)]
    for block in table[len(table) - count :]:
        books.holders[block] += 1
    return f"take {count}: {ids}" + ("" if ids == table else f", expected {table}"), True


def publish(both: Both, prefixes: Prefixes, random: Random) -> tuple[str, bool]:
    """Publish a range of a table as blocks of a request."""
    books, table = both.books, random.choice(both.tables)
    at, group = random.randrange(len(PROMPTS)), random.randrange(2)
    stop = min(len(table), len(prefixes.blocks[at]))
    start = random.randrange(stop + 1)
    both.store.publish(vec[i32](table), prefixes.requests[at], SIZE, group, SIZE, start, stop)
    for entry in range(start, stop):
        own, content, digest, parent, tokens = prefixes.blocks[at][entry]
        if table[entry] and table[entry] not in books.keys:
            is_new = all(held[0] != (own, group) for held in books.keys.values())
            books.keys[table[entry]] = (own, group), content, digest
            if is_new and "events" in books.noted:
                books.events.append(("BlockStored", digest, parent, tokens, SIZE, LORA[at], group))
    return f"publish {table}[{start}:{stop}] as r{at} in {group}", False


def release(both: Both, _prefixes: Prefixes, random: Random) -> tuple[str, bool]:
    """Release the end of a table, or trim its beginning."""
    store, books, at = both.store, both.books, random.randrange(len(both.tables))
    table = both.tables[at]
    if not table:
        return "nothing", False
    cut, trims = random.randrange(len(table)), random.random() < 0.4
    start, stop = (0, cut + 1) if trims else (cut, len(table))
    store.release(vec[i32](table), start, stop)
    if trims:
        store.note_trim(vec[i32](table), start, stop)
    for block in reversed(table[start:stop]):
        if not block:
            continue
        books.causes[block] = 2 if trims else 1
        books.holders[block] -= 1
        if not books.refs()[block]:
            books.freed(block)
    both.tables[at] = [0] * stop + table[stop:] if trims else table[:start]
    return f"{'trim' if trims else 'release'} {table}[{start}:{stop}]", True


def touch(both: Both, prefixes: Prefixes, random: Random) -> tuple[str, bool]:
    """Hold the blocks of a hit, after a null entry, in a new table."""
    books, at, group = both.books, random.randrange(len(PROMPTS)), random.randrange(2)
    hit = [books.serving((own, group), content) for own, content, *_ in prefixes.blocks[at]]
    hit = hit[: hit.index(0)] if 0 in hit else hit
    if not hit:
        return "no hit", False
    first = random.randrange(len(hit))
    hit[:first] = [0] * first
    free = both.store.count_free_hits(vec[i32](hit), prefixes.keys[at], group, SIZE, first)
    wanted = sum(not books.refs()[block] for block in hit if block)
    both.store.touch_entries(vec[i32](hit))
    for block in hit:
        if block and not books.refs()[block]:
            books.candidates.remove(block)
        books.holders[block] += bool(block)
    both.tables.append(hit)
    return f"touch {hit}: {free} free" + ("" if free == wanted else f", expected {wanted}"), True


def copied(both: Both, _prefixes: Prefixes, random: Random) -> tuple[str, bool]:
    """Copy a shared block for one that is to write it."""
    books, table = both.books, random.choice(both.tables)
    ends = {new for _, _, new in books.copies}
    shared = [at for at, block in enumerate(table) if block and books.holders[block] > 1 and block not in ends]
    if not shared or not books.queue():
        return "nothing to copy", False
    at, group = random.choice(shared), random.randrange(COUNT)
    block = table[at]
    new, wanted = both.store.copy_on_write(block, group), books.taken()
    books.holders[block] -= 1
    books.holders[wanted] += 1
    books.copies.append((group, block, wanted))
    table[at] = wanted
    return f"copy {block} to {new}" + ("" if new == wanted else f", expected {wanted}"), True


def end(both: Both, _prefixes: Prefixes, random: Random) -> tuple[str, bool]:
    """End the copies to come."""
    books = both.books
    told, wanted = both.store.take_copies() if random.random() < 0.8 else None, books.copies
    if told is None:  # the version is another one, for the queue is
        both.store.end_copies()
    ends = dict.fromkeys(block for _, source, new in books.copies for block in (source, new))
    books.copies = []
    for block in reversed([block for block in ends if not books.holders[block]]):
        books.freed(block)
    return f"copies {told}" + ("" if told in (None, wanted) else f", expected {wanted}"), bool(ends)


def access(both: Both, _prefixes: Prefixes, random: Random) -> tuple[str, bool]:
    """Note when a published block was accessed, and how long its prefix is."""
    books, order = both.books, both.store._order
    known = [block for block in range(1, COUNT) if block in books.keys or books.holders[block]]
    if order is not None and known:
        block, now, length = random.choice(known), random.choice((1.0, 2.0)), random.randrange(1, 4)
        order.accessed(block, now)
        order.measure(block, length)
        books.times[block], books.lengths[block] = now, length
    return "access", False


def reset(both: Both, _prefixes: Prefixes, random: Random) -> tuple[str, bool]:
    """Drop every key, if that may be; more often, release everything before."""
    books, reserved = both.books, 0
    if random.random() < 0.5:
        return "nothing", False
    unpublished = [block for block in range(1, COUNT) if books.refs()[block] and block not in books.keys]
    held = [block for block in range(1, COUNT) if books.refs()[block]]
    reserved = len(held) if held == unpublished and random.random() < 0.7 else 0
    may, told = len(held) == reserved, both.store.forget_all(reserved)
    if may:
        books.bare += books.ranked()
        for block in books.ranked():
            books.forget(block) if books.ordered else None
        seen = set[Any]()
        for _, (key, _, _) in sorted(books.keys.items()):
            first = next(block for block, each in books.keys.items() if each[0] == key)
            seen.add((first, key))
        for _, key in sorted(seen):
            books.remember(key, 3)
        books.candidates, books.keys = [], {}
        if "events" in books.noted:
            books.events.append(("AllBlocksCleared",))
    return f"reset but for {reserved}: {told}" + ("" if told is may else f", expected {may}"), may


def clear(both: Both, prefixes: Prefixes, random: Random) -> tuple[str, bool]:
    """Release all tables, and drop every key."""
    for table in both.tables:
        both.store.release(vec[i32](table), 0, len(table))
        for block in reversed(table):
            both.books.causes[block] = 1
            both.books.holders[block] -= bool(block)
            if block and not both.books.refs()[block]:
                both.books.freed(block)
    both.tables[:] = [[], []]
    return reset(both, prefixes, random)[0], True


Action = Callable[[Both, Prefixes, Random], tuple[str, bool]]
ACTIONS: tuple[Action, ...] = (
    *(take,) * 5, *(publish,) * 5, *(release,) * 4, *(touch,) * 5, *(copied,) * 5, end, end, access, access, access,
    reset, clear,
)  # fmt: skip


# --- comparing


def compared(both: Both, prefixes: Prefixes) -> tuple[str, str] | None:
    """Compare all that a store says with its model; give the law that differs and how."""
    store, books = both.store, both.books
    refs, blocks = books.refs(), range(COUNT)
    held = [block for block in blocks if books.holders[block]]
    news = [any(new == block for _, _, new in books.copies) for block in blocks]
    keys = [books.keys[block][0][0] if block in books.keys else None for block in blocks]
    groups = [books.keys[block][0][1] if block in books.keys else None for block in blocks]
    pairs: list[tuple[str, Any, Any]] = [
        ("QUEUE-1", store.free_block_ids(), books.queue()),
        ("QUEUE-1", store._backwards(), books.queue()[::-1]),
        ("REF-1", store.ref_counts(), refs),
        ("REF-1", [store.ref_count(block) for block in blocks], refs),
        ("QUEUE-1", store._num_free, len(books.queue())),
        ("QUEUE-1", store._num_evictions, books.num_evictions),
        ("KEY-1", store.block_keys(), keys),
        ("KEY-1", store.block_groups(), groups),
        ("KEY-1", [store.is_published(block) for block in blocks], [key is not None for key in keys]),
        ("COPY-1", store.pending_copies(), books.copies),
        ("COPY-1", store.has_copies(), bool(books.copies)),
        ("COPY-1", [store.is_destination(block) for block in blocks], news),
        ("COPY-1", [store.num_sharers(block) for block in held], [books.holders[block] for block in held]),
    ]
    for at, group in product(range(len(PROMPTS)), range(2)):
        own = prefixes.keys[at]
        serving = [books.serving((key, group), content) for key, content, *_ in prefixes.blocks[at]]
        pairs += [("KEY-1", [store.find(own, entry, group, SIZE) for entry in range(len(serving))], serving)]
        for start in range(len(serving)):
            ids = vec[i32]([0] * len(serving))
            stop = next((entry for entry in range(start, len(serving)) if not serving[entry]), len(serving))
            found = store.find_run(ids, own, group, SIZE, start, len(serving))
            pairs += [("KEY-1", (found, list(ids)[start:stop]), (stop, serving[start:stop]))]
        for entry, (key, content, *_) in enumerate(prefixes.blocks[at]):
            right = [block for block, held in books.keys.items() if held[0] == (key, group)]
            if "contents" in books.noted:
                right = [block for block in right if books.keys[block][1] == content]
            carrying = [block for block in blocks if store.carries(block, own, entry, group, SIZE)]
            pairs += [("KEY-1", carrying, sorted(right))]
            cause = next((held[1] for held in books.lost if held and held[0] == (key, group)), 0)
            cause = cause if "losses" in books.noted else -1
            pairs += [("LOSS-1", store.loss(own, entry, group), cause)]
    if store._journal is not None:
        told = [(type(each).__name__, *vars(each).values()) for each in store._journal.events or ()]
        pairs += [("EVENT-1", told, books.events)]
        pairs += [("EVENT-1", [tuple(each) for each in store._journal.evictions or ()], books.evictions)]
        if store._journal.losses is not None:
            pairs += [("LOSS-1", store._journal.losses.counts, books.counts)]
    return next(((law, f"{found}, expected {wanted}") for law, found, wanted in pairs if found != wanted), None)


# --- alone


def store_alone(package: ModuleType) -> Iterator[Fault]:
    """Have a store by access run out of bare blocks, copied with copies to come, and asked for what it refuses."""
    for law, wrong in (
        *by_access(package),
        *copied_copies(package),
        *refused(package),
        *checked(package),
        *lost(package),
        *remembered(package),
    ):
        yield Fault(law, wrong, 1)


def crowded(package: ModuleType) -> tuple[Any, Any, Prefixes]:
    """Give a store by access of which every block is a candidate: of r0 in group 0, and in group 1."""
    rearm()
    order = package.core.access_order.AccessOrder(COUNT)
    store, prefixes = package.core.store.BlockStore(COUNT, None, order), Prefixes(package, False)
    ids = store.take(6, vec[i32]())
    for group in (0, 1):
        table = vec[i32]([3, 2, 1] if group == 0 else list(ids)[3:])
        store.publish(table, prefixes.requests[0], SIZE, group, SIZE, 0, 3)
        for entry, block in enumerate(table):
            order.accessed(block, 5.0 + group)
            order.measure(block, SIZE * (entry + 1))
        store.release(table, 0, 3)
    return store, order, prefixes


def by_access(package: ModuleType) -> Iterator[tuple[str, str]]:
    """Take and reset where only candidates are free: the longest prefix goes first."""
    ranked = [1, 2, 3, 6, 5, 4]
    store, order, _ = crowded(package)
    for at in range(6):
        if store.free_block_ids() != ranked[at:] or store.take_one() != ranked[at]:
            yield "QUEUE-1", f"by access, all are candidates: {store.free_block_ids()}, expected {ranked[at:]}"
    store, order, _ = crowded(package)
    store.take_one()
    order.accessed(2, 9.0)
    if store.free_block_ids() != [3, 6, 5, 4, 2]:
        yield "QUEUE-1", f"accessed while another is taken: {store.free_block_ids()}"
    store, order, _ = crowded(package)
    version = store.version
    if not store.forget_all() or store.version == version or order.size or store.free_block_ids() != ranked:
        yield "QUEUE-1", f"reset by access: {store.free_block_ids()}, {order.size} candidates"
    store.check()


def copied_copies(package: ModuleType) -> Iterator[tuple[str, str]]:
    """Copy a store while copies are to come, and copy on write in both."""
    rearm()
    store = package.core.store.BlockStore(COUNT, None)
    ids = store.take(2, vec[i32]())
    store.touch_entries(ids)
    store.copy_on_write(1, 3)
    store.take_copies()
    store.touch_entries(ids)
    store.copy_on_write(1, 4)
    twin = package.core.store.BlockStore(COUNT, None)
    store.copy_to(twin)
    for each, group in ((store, 5), (twin, 6)):
        each.copy_on_write(2, group)
    for each, group in ((store, 5), (twin, 6)):
        if each.pending_copies() != [(4, 1, 4), (group, 2, 5)]:
            yield "COPY-1", f"copies to come, of a store and its copy: {each.pending_copies()}"
    version = twin.version
    twin.take_copies()
    if twin.version == version or store.pending_copies() != [(4, 1, 4), (5, 2, 5)]:
        yield "COPY-1", "copies taken from a copy"


def refused(package: ModuleType) -> Iterator[tuple[str, str]]:
    """Adopt hits that do not hold, with contents compared and without; the message names the entry."""
    for weak, journal in ((False, None), (True, package.core.journal.Journal(None, {}))):
        rearm()
        store, prefixes = package.core.store.BlockStore(COUNT, journal), Prefixes(package, weak)
        ids = store.take(5, vec[i32]())
        store.publish(ids, prefixes.requests[0], SIZE, 0, SIZE, 0, 3)
        free = store.take_one()
        hits: list[tuple[list[int], int, str]] = [
            ([1, 2, 3], 0, ""),
            ([0, 0, 3], 2, ""),
            ([1, 2, 3, free], 0, "4 blocks, the request has 3 full ones"),
            ([1, 0, 3], 2, "entry 0 is outside the window but not the null block"),
            ([0, 2, 3], 2, "entry 1 is outside the window but not the null block"),
            ([4, 2, 3], 0, "block 4 at entry 0 no longer"),
            ([1, 4, 3], 0, "block 4 at entry 1 no longer"),
            ([1, 2, 4], 0, "block 4 at entry 2 no longer"),
            ([0, 1, 3], 1, "block 1 at entry 1 no longer"),
            ([1, 2, 0], 0, "block 0 at entry 2 no longer"),
            ([1, 2, COUNT], 0, f"block {COUNT} at entry 2 no longer"),
        ]
        for hit, first, words in hits:
            yield from answered(package, store, prefixes.keys[0], hit, first, words)
        if weak:  # of r1 the last block has the key of another content
            yield from answered(package, store, prefixes.keys[1], [1, 2, 3], 0, "block 3 at entry 2 no longer")
            yield from answered(package, store, prefixes.keys[2], [1, 2], 0, "block 2 at entry 1 no longer")
            yield from answered(package, store, prefixes.keys[2], [0, 2], 1, "block 2 at entry 1 no longer")
            yield from answered(package, store, prefixes.keys[1], [1, 2], 0, "")


def answered(
    package: ModuleType, store: Any, keys: Any, hit: list[int], first: int, words: str
) -> Iterator[tuple[str, str]]:
    """Adopt a hit; say whether it was refused in the wrong words, or not at all."""
    try:
        free = store.count_free_hits(vec[i32](hit), keys, 0, SIZE, first)
    except package.errors.StaleHitError as error:
        if not words or words not in str(error):
            yield "HIT-2", f"hit {hit} from {first}: {error}"
    else:
        if words or free:
            yield "HIT-2", f"hit {hit} from {first} is taken, {free} of it free"


def lost(package: ModuleType) -> Iterator[tuple[str, str]]:
    """Take blocks for other content, of trimmed and of released tables, with each thing noted alone and with all."""
    for noted in (("events",), ("evictions",), ("losses",), ("events", "evictions", "losses", "contents")):
        rearm()
        values: dict[str, Any] = {"events": [], "evictions": [], "contents": {}}
        values["losses"] = package.core.journal.Losses(COUNT)
        journal = package.core.journal.Journal(
            *(values[what] if what in noted else None for what in ("events", "contents", "losses", "evictions"))
        )
        store, prefixes = package.core.store.BlockStore(COUNT, journal), Prefixes(package, False)
        ids = list(store.take(6, vec[i32]()))
        for group in (0, 1):
            table = vec[i32](ids[3 * group : 3 * group + 3])
            store.publish(table, prefixes.requests[0], SIZE, group, SIZE, 0, 3)
            store.release(table, 0, 3)
            if group == 0:
                store.note_trim(table, 0, 3)
        again = vec[i32]([3])
        store.touch_entries(again)
        store.release(again, 0, 1)
        store.check()
        digests = [block[2] for block in prefixes.blocks[0]]
        events, evictions = journal.take_events(), journal.take_evictions()
        if evictions != [] or len(events) != (6 if "events" in noted else 0):
            yield "EVENT-1", f"noted {noted}: {events} and {evictions} before any is taken"
        store.take(6, vec[i32]())
        store.check()
        told = [(each.block_hash, each.group_id) for each in journal.take_events()]
        order = ((1, 0, 2), (0, 0, 1), (2, 1, 6), (1, 1, 5), (0, 1, 4), (2, 0, 3))
        wanted = [(digests[entry], group) for entry, group, _ in order]
        if told != (wanted if "events" in noted else []):
            yield "EVENT-1", f"noted {noted}: removed are {told}"
        lost_ones = [(digests[entry], group, block) for entry, group, block in order]
        evicted = [(each.block_hash, each.group, each.block_id) for each in journal.take_evictions()]
        if evicted != (lost_ones if "evictions" in noted else []):
            yield "EVENT-1", f"noted {noted}: lost are {evicted}"
        causes = [[store.loss(prefixes.keys[0], entry, group) for entry in range(3)] for group in (0, 1)]
        if causes != ([[2, 2, 1], [1] * 3] if "losses" in noted else [[-1] * 3] * 2):
            yield "LOSS-1", f"noted {noted}: causes {causes}"


def remembered(package: ModuleType) -> Iterator[tuple[str, str]]:
    """Ask losses of a key of zeros, and of a copy; forget the access of a block without content."""
    rearm()
    losses = package.core.journal.Losses(COUNT)
    twin = losses.copy()
    twin.note_release(1, 2)
    for block, key in ((1, (0, 0, 0)), (2, (5, 5, 0)), (3, (6, 6, 0))):
        losses.lose(block, *key)
        twin.lose(block, *key)
    for each, first in ((losses, 1), (twin, 2)):
        causes = [each.cause(*key) for key in ((0, 0, 0), (5, 5, 0), (6, 6, 0), (7, 7, 0))]
        if causes != [first, 1, 1, 0]:
            yield "LOSS-1", f"causes {causes}, expected {[first, 1, 1, 0]}"
    order = package.core.access_order.AccessOrder(COUNT)
    store, prefixes = package.core.store.BlockStore(COUNT, None, order), Prefixes(package, False)
    ids = store.take(3, vec[i32]())
    for block in ids:
        order.accessed(block, 9.0)
        order.measure(block, 4)
    store.release(ids, 0, 3)
    ids = store.take(6, vec[i32]())
    store.publish(ids[:3], prefixes.requests[0], SIZE, 0, SIZE, 0, 3)
    order.accessed(1, 3.0)
    store.release(ids, 0, 6)
    if store.free_block_ids() != [4, 5, 6, 2, 3, 1]:
        yield "QUEUE-1", f"blocks that were accessed under other content: {store.free_block_ids()}"


def checked(package: ModuleType) -> Iterator[tuple[str, str]]:
    """Break the heap, the candidates, the index and the copies to come; the self-check tells both sides."""
    store, order, _ = crowded(package)
    order._times[4] = 0.0
    yield from noticed(package, store, "QUEUE-1", "the candidates form a heap by access", True, False)
    store, order, _ = crowded(package)
    order._times[order._heap[1]] = 0.0
    yield from noticed(package, store, "QUEUE-1", "the candidates form a heap by access", True, False)
    for noted in ("contents", "events", "evictions"):
        journal = package.core.journal.Journal(
            [] if noted == "events" else None,
            {} if noted == "contents" else None,
            None,
            [] if noted == "evictions" else None,
        )
        store, prefixes = package.core.store.BlockStore(COUNT, journal), Prefixes(package, False)
        store.publish(store.take(2, vec[i32]()), prefixes.requests[0], SIZE, 0, SIZE, 0, 2)
        del (journal.contents if noted == "contents" else journal._digests)[1]
        what = "blocks with a remembered prefix" if noted == "contents" else "blocks with a digest to tell"
        yield from noticed(package, store, "PUB-1", what, [1, 2], [2])
    store, order, _ = crowded(package)
    store.forget_all()
    order.add(store.take_one())
    store._num_free += 1
    store._ref[1] = 0
    yield from noticed(package, store, "QUEUE-1", "candidates by access that are not published", [], [1])
    store, _, _ = crowded(package)
    store._index.num_keyed = 9
    yield from noticed(package, store, "KEY-1", "the number of published blocks", 6, 9)
    rearm()
    store = package.core.store.BlockStore(COUNT, None)
    ids = store.take(1, vec[i32]())
    store.touch_entries(ids)
    store.copy_on_write(1, 0)
    store._ends[1] = 2
    what = "copies to come that each block is the source of"
    yield from noticed(package, store, "COPY-1", what, [0, 1, -1, 0, 0, 0, 0], [0, 2, -1, 0, 0, 0, 0])


def noticed(
    package: ModuleType, store: Any, law: str, what: str, expected: object, actual: object
) -> Iterator[tuple[str, str]]:
    """Check a broken store."""
    try:
        store.check()
    except package.errors.InvariantError as error:
        told = (error.law, error.expected, error.actual)
        if told != (law, expected, actual) or what not in str(error):
            yield "CHECK-1", f"{law}: {what}: told {error}"
    else:
        yield "CHECK-1", f"{law}: {what}: said to be sound"


def told(both: Both) -> None:
    """Take what is to be told, of both."""
    journal, books = both.store._journal, both.books
    if journal is not None:
        journal.take_events()
        journal.take_evictions()
        books.events, books.evictions = [], []
        if journal.losses is not None:
            journal.losses.take_counts()
            books.counts = {}
