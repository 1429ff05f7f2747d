"""Trials of single parts of the core, beside a plain model of each that shares nothing with it.

HASH-4    a key is the hash that its documentation tells, of the bytes that it tells
LRU-1     of the order by access: candidates go by time, then most tokens first, then by id; the self-check says so
LOSS-1    the last losses are remembered, as many as the pool has blocks that can have a key, with the last cause
BLOCKS-1  what is handed out shows the ids that it was made of
"""

import pickle
from collections.abc import Iterator
from hashlib import sha256
from itertools import product
from random import Random
from types import ModuleType
from typing import Any

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from ..known_bugs.known_bug import Fault
from ..known_bugs.watch import rearm
from .siphash import siphash

KEY = bytes(range(16))
VECTORS = (
    "a3817f04ba25a8e66df67214c7550293 da87c1d86b99af44347659119b22fc45 8177228da4a45dc7fca38bdef60affe4 "
    "9c70b60c5267a94e5f33b6b02985ed51 f88164c12d9c8faf7d0f6e7c7bcd5579 1368875980776f8854527a07690e9627 "
    "14eeca338b208613485ea0308fd7a15e a1f1ebbed8dbc153c0b84aa61ff08239 3b62a9ba6258f5610f83e264f31497b4"
).split()
"""The authors' vectors: of the messages of 0 to 8 bytes that count from 0, with two and four rounds."""
ROUNDS = ((1, 3), (2, 4), (9, 9), (1, 1), (9, 1), (1, 9))
REFUSED = ((0, 3), (1, 0), (10, 3), (1, 10))
SIZES = (1, 2, 3, 4)
EXTRAS = (b"", b"x", b"extra", b"sixteen bytes ..")


def digests(package: ModuleType) -> Iterator[Fault]:
    """Hash messages and chains of blocks (HASH-4)."""
    hashes: Any = package.core.block_hash
    for length, told in enumerate(VECTORS):
        if package.siphash128(KEY, bytes(range(length)), 2, 4).hex() != told:
            yield Fault("HASH-4", f"the published vector of {length} bytes", 1)
    key = bytes(range(200, 216))
    for length, (compression, finalisation) in product((*range(26), 300), ROUNDS):
        message = bytes((31 * at + length) % 256 for at in range(length))
        if package.siphash128(key, message, compression, finalisation) != siphash(
            key, message, compression, finalisation
        ):
            yield Fault("HASH-4", f"{length} bytes in {compression} and {finalisation} rounds", 1)
            return
    yield from refusals(package)
    for low, high in ((1, 2), (-1, 1 << 62), (-(1 << 63), 0)):
        written = hashes.word_bytes(low, high)
        if written != low.to_bytes(8, "little", signed=True) + high.to_bytes(8, "little", signed=True):
            yield Fault("HASH-4", f"the bytes of {low} and {high}", 1)
        if hashes.hash_words(written + b"more") != (low, high):
            yield Fault("HASH-4", f"the words of {written!r}", 1)
    yield from chains(package)


def refusals(package: ModuleType) -> Iterator[Fault]:
    """Give wrong keys, rounds and hashes to what hashes."""
    hashes: Any = package.core.block_hash
    calls: list[tuple[Any, tuple[object, ...]]] = [(package.siphash128, (KEY, b"", *each)) for each in REFUSED]
    calls += [(package.siphash128, (key, b"")) for key in (KEY[1:], KEY + b"1")]
    calls += [(hashes.hash_words, (wrong,)) for wrong in (KEY[1:], bytearray(KEY))]
    for call, arguments in calls:
        try:
            call(*arguments)
        except package.errors.InvalidArgumentError:
            continue
        yield Fault("REFUSE-2", f"{call.__name__} takes {arguments}", 1)


def block_of(tokens: bytes, extra: bytes, size: int, parent: bytes) -> bytes:
    """Give the bytes of a block that SipHash sees."""
    padding = bytes(-len(tokens) % 8)
    more = siphash(KEY, extra) if extra else b""
    return parent + tokens + padding + more + (size + (bool(extra) << 32)).to_bytes(7, "little")


def chains(package: ModuleType) -> Iterator[Fault]:
    """Hash blocks in a row, a copy of the chain among them, and each alone after its parent."""
    for size, extra in product(SIZES, EXTRAS):
        count = 1 if extra else 3
        data = bytes((7 * at) % 128 for at in range(4 * size * (count + 1)))
        blocks = [data[4 * size * (at + 1) :][: 4 * size] for at in range(count)]
        for hasher, wanted in (
            (package.SipHasher(KEY), sip_keys(blocks, extra, size)),
            (package.Sha256Hasher(b"seed"), sha_keys(blocks, extra, size)),
            (package.FunctionHasher(joined), joined_keys(blocks, extra)),
        ):
            first = hasher.start(b"root", size)
            twin, attempted = first.copy(), first.attempt()
            for chain in (first, twin):
                words = vec[i64]([0] * (2 * count + 2))
                chain.extend(data, 4 * size, count, extra, words, 2)
                found = [chain_words(words, at + 1) for at in range(count)]
                shown = [chain.digest(at, words[2:]) for at in range(count)]
                if found != [each[:16] for each in wanted] or shown not in (wanted, found):
                    yield Fault("HASH-4", f"{type(hasher).__name__}, blocks of {size}, extra {extra!r}", 2)
                    return
            if (attempted is first) != (not isinstance(hasher, package.FunctionHasher)):
                yield Fault("HASH-4", f"{type(hasher).__name__} advances {attempted}", 2)
        parent = (0, 0) if not extra else (5, -6)
        low, high = package.SipHasher(KEY).next_words(*parent, blocks[0], extra)
        before = parent[0].to_bytes(8, "little") + parent[1].to_bytes(8, "little", signed=True)
        if package.core.block_hash.word_bytes(low, high) != siphash(KEY, block_of(blocks[0], extra, size, before)):
            yield Fault("HASH-4", f"the next key after {parent}, blocks of {size}, extra {extra!r}", 1)
    kinds = [package.SipHasher(KEY), package.Sha256Hasher(b""), package.FunctionHasher(joined)]
    told = [(each.is_collision_resistant, each.is_portable) for each in kinds]
    if told != [(True, False), (True, True), (False, False)]:
        yield Fault("HASH-4", f"hashers promise {told}", 1)
    words, bare = vec[i64]([1] * 4), package.core.block_hash.HashChain()
    package.FunctionHasher(lambda _parent, _block: b"").start(b"", 1).extend(bytes(8), 0, 2, b"", words, 0)
    if list(words) != [0] * 4:
        yield Fault("HASH-4", f"empty digests are filled up to {words}", 1)
    for hashed in (
        lambda: package.BlockHasher(True, True).start(b"", 1),
        lambda: bare.extend(b"", 0, 0, b"", words, 0),
        bare.copy,
    ):
        try:
            hashed()
        except NotImplementedError:
            continue
        yield Fault("HASH-4", "an abstract hasher hashes", 1)


def chain_words(words: Any, index: int) -> bytes:
    """Give two words as bytes."""
    return b"".join(int(words[2 * index + at]).to_bytes(8, "little", signed=True) for at in range(2))


def sip_keys(blocks: list[bytes], extra: bytes, size: int) -> list[bytes]:
    """Give the keys of a chain of SipHash."""
    keys = [siphash(KEY, b"root")]
    for tokens in blocks:
        keys.append(siphash(KEY, block_of(tokens, extra, size, keys[-1])))
    return keys[1:]


def sha_keys(blocks: list[bytes], extra: bytes, size: int) -> list[bytes]:
    """Give the keys of a chain of SHA-256."""
    head = b"\x04" + bytes(7) + b"seed" + b"\x04" + bytes(7) + b"root" + size.to_bytes(8, "little")
    more = b"\xff" * 4 + len(extra).to_bytes(4, "little") + extra if extra else b""
    return [sha256(head + more + b"".join(blocks[: at + 1])).digest() for at in range(len(blocks))]


def joined(parent: bytes, block: bytes) -> bytes:
    """Hash in a way of one's own; short, so that it is filled up."""
    return sha256(parent + b"|" + block).digest()[:12]


def joined_keys(blocks: list[bytes], extra: bytes) -> list[bytes]:
    """Give the keys of a chain of one's own."""
    keys = [joined(b"", b"root")]
    for tokens in blocks:
        keys.append(joined(keys[-1], tokens + extra))
    return [key + bytes(4) for key in keys[1:]]


# --- the order by access

NUM_ORDERED = 12
MOVES = ("add", "add", "add", "remove", "accessed", "measure", "pop", "first", "leave")


def order(package: ModuleType) -> Iterator[Fault]:
    """Move candidates at random, beside a sorted list (LRU-1)."""
    for seed in range(6):
        rearm()
        if wrong := ordered(package, Random(seed)):
            yield Fault("LRU-1", wrong, 1)
            return
    yield from unsound(package)


def ordered(package: ModuleType, random: Random) -> str:
    """Make moves; say what the order tells that the list does not."""
    found = package.core.access_order.AccessOrder(NUM_ORDERED)
    held, times, lengths = set[int](), dict[int, float](), dict[int, int]()

    def ranked() -> list[int]:
        return sorted(held, key=lambda block: (times.get(block, -1.0), -lengths.get(block, 0), block))

    for step in range(150):
        move, block, past = random.choice(MOVES), random.randrange(NUM_ORDERED), found.copy()
        before = found.candidates()
        told: object = None
        wanted: object = None
        if move == "accessed":
            times[block] = float(random.randrange(4))
            found.accessed(block, times[block])
        elif move == "measure":
            lengths[block] = random.randrange(3)
            found.measure(block, lengths[block])
        elif move == "add" and block not in held:
            held.add(block)
            found.add(block)
        elif move == "remove" and block in held:
            held.remove(block)
            found.remove(block)
        elif move == "leave":
            some = random.sample(range(NUM_ORDERED), 4)
            told, wanted = found.leave(vec[i32](some)), [each for each in some if each in held]
            held -= set(some)
        elif move in ("pop", "first") and held:
            count = 1 if move == "pop" else random.randrange(min(len(held), 3) + 1)
            wanted = ranked()[:count]
            told = [found.pop()] if move == "pop" else found.first(count)
            for each in ranked()[:count]:
                held.remove(each)
                times.pop(each, None)
                lengths.pop(each, None)
        if told != wanted or found.candidates() != ranked() or found.size != len(held) or not found.is_sound():
            return f"step {step}, {move} {block}: {told} and {found.candidates()}, expected {wanted} and {ranked()}"
        if [found.time(each) for each in range(NUM_ORDERED)] != [times.get(at, -1.0) for at in range(NUM_ORDERED)]:
            return f"step {step}, {move} {block}: other times than {times}"
        if past.candidates() != before or not past.is_sound():
            return f"step {step}, {move} {block}: a copy has changed"
    return "" if found.first(0) == found.first(-1) == [] else "none are taken out, and there are some"


def unsound(package: ModuleType) -> Iterator[Fault]:
    """Break an order by hand: it must say so."""
    for what, at, value in (
        ("_heap", 0, 3),
        ("_heap", 2, 1),
        ("_place", 0, 1),
        ("_place", 1, 0),
        ("_place", 1, 3),
        ("_times", 1, 9.0),
        ("_times", 2, -5.0),
        ("_times", 3, -5.0),
        ("_times", 5, -5.0),
        ("_times", 6, -5.0),
        ("size", None, 5),
        ("size", None, 7),
    ):
        broken = package.core.access_order.AccessOrder(8)
        for block in range(1, 7):
            broken.accessed(block, float(block))
            broken.add(block)
        if at is None:
            setattr(broken, what, value)
        else:
            getattr(broken, what)[at] = value
        if broken.is_sound():
            yield Fault("LRU-1", f"sound with {what}[{at}] = {value}", 1)


# --- losses


def losses(package: ModuleType) -> Iterator[Fault]:
    """Lose keys at random, beside a list of the last losses (LOSS-1)."""
    for seed, size in ((0, 2), (1, 3), (2, 6)):
        rearm()
        if wrong := lost(package, Random(seed), size):
            yield Fault("LOSS-1", wrong, 1)


def lost(package: ModuleType, random: Random, size: int) -> str:
    """Lose keys, one by one and all of an index; say what is told otherwise than by the list."""
    kinds: Any = package.core.journal
    found, last = kinds.Losses(size), list[tuple[tuple[int, int, int], int] | None]()
    releases, counts = [kinds.EVICTED] * size, dict[int, int]()
    keys = [(low, high, group) for low, high, group in product((1, 2), (3, 4), (0, 1))]

    def remember(key: tuple[int, int, int], cause: int) -> None:
        last[:] = [None if each and each[0] == key else each for each in last][-(size - 2) :] if size > 2 else []
        last.append((key, cause))
        counts[3 * key[2] + cause - 1] = counts.get(3 * key[2] + cause - 1, 0) + 1

    for step in range(120):
        past = found.copy()
        told = [past.cause(*key) for key in keys]
        counted, released = counts.copy(), releases[:]
        block, key = random.randrange(1, size), random.choice(keys)
        move = random.choice(("release", "lose", "lose", "all"))
        if move == "release":
            releases[block] = random.choice((kinds.EVICTED, kinds.TRIMMED))
            found.note_release(block, releases[block])
        elif move == "lose":
            found.lose(block, *key)
            remember(key, releases[block])
        else:
            index = package.core.index.PrefixIndex(size)
            some = [random.choice(keys) for _ in range(1, size)]
            for at, each in enumerate(some):
                if random.random() < 0.6:
                    index.add(at + 1, *each)
                else:
                    some[at] = (0, 0, -1)
            found.lose_all(index)
            for at, each in enumerate(some):
                if each[2] >= 0 and each not in some[:at]:
                    remember(each, kinds.RESET)
        causes = {each[0]: each[1] for each in last if each}
        if [found.cause(*each) for each in keys] != [causes.get(each, 0) for each in keys]:
            return f"{size} blocks, step {step}, {move}: expected {causes}"
        if [past.cause(*key) for key in keys] != told or past.counts != counted:
            return f"{size} blocks, step {step}, {move}: a copy has changed"
        past.lose(block, *key)
        if past.cause(*key) != released[block]:
            return f"{size} blocks, step {step}, {move}: a copy remembers another release of {block}"
        if random.random() < 0.2:
            if found.take_counts() != counts:
                return f"{size} blocks, step {step}: counts other than {counts}"
            counts.clear()
            if found.counts:
                return "counts that were taken are still there"
    return ""


# --- what is handed out


def handles(package: ModuleType) -> Iterator[Fault]:
    """Look at blocks of two groups in every way that there is (BLOCKS-1)."""
    pool, other = package.BlockPool(6), package.BlockPool(6)
    made: Any = package.KVCacheBlocks
    some, none = made(pool, [vec[i32]([1, 0, 2]), vec[i32]([3])]), made(pool, [vec[i32](), vec[i32]()])
    pool.get_new_blocks(3)
    pool.cache_full_blocks(package.Request("r", [1, 2], 2), [1], 0, 1, 2, 0)
    sums = (some + some, some + none, none + some)
    room = vec[i32](capacity=8)
    first = made(pool, [append(room, 1)])
    two, three = (first + made(pool, [vec[i32]([block])]) for block in (2, 3))
    shown: tuple[tuple[object, object], ...] = (
        (some.get_block_ids(), ([1, 0, 2], [3])),
        (none.get_block_ids(), ([], [])),
        (none.get_block_ids(True), None),
        (some.get_block_ids(True), ([1, 0, 2], [3])),
        (made(pool, [vec[i32](), vec[i32]([3])]).get_block_ids(True), ([], [3])),
        (some.get_unhashed_block_ids(), [2]),
        (some.new_empty() == none, True),
        ([each.get_block_ids() for each in sums], [([1, 0, 2, 1, 0, 2], [3, 3]), *[([1, 0, 2], [3])] * 2]),
        (some.get_block_ids(), ([1, 0, 2], [3])),
        ((two.get_block_ids(), three.get_block_ids()), (([1, 2],), ([1, 3],))),
        (tuple([[view.block_id for view in views] for views in some.blocks]), ([1, 0, 2], [3])),
        (some == made(pool, [vec[i32]([1, 0, 2]), vec[i32]([3])]), True),
        (some == made(other, some.ids), False),
        (some == none, False),
        (some == 1, False),
        (hash(some) == hash(made(pool, [vec[i32]([4, 5, 6]), vec[i32]([1])])), True),
        (hash(some) == hash(none), False),
        ((some.pool_is(pool), some.pool_is(other)), (True, False)),
    )
    for number, (found, wanted) in enumerate(shown):
        if found != wanted:
            yield Fault("BLOCKS-1", f"question {number}: expected {wanted}, found {found}", 1)
    for wrong in (made(other, some.ids), made(pool, some.ids[:1])):
        try:
            _ = some + wrong
        except package.errors.InvalidArgumentError:
            continue
        yield Fault("REFUSE-2", f"{wrong} is added", 1)
    yield from sent(package)


def sent(package: ModuleType) -> Iterator[Fault]:
    """Send a batch's allocation to another process (BLOCKS-1)."""
    buffers = [vec[i32]([7 * at + each for each in range(at)]) for at in range(1, 6)]
    kind: Any = package.BatchAllocation
    whole = kind(2, 1, *buffers, 9, ["a", ""])
    bare = kind(2, None, *buffers)
    if bare.number != 0 or bare.request_ids != []:
        yield Fault("BLOCKS-1", f"unknown number {bare.number}, names {bare.request_ids}", 1)
    names = ("new_block_ids", "new_block_offsets", "nulled_entries", "nulled_offsets", "replaced_entries")
    rebuild, fields = whole.__reduce__()
    found = rebuild(*pickle.loads(pickle.dumps(fields)))
    shown = [list(getattr(found, name)) for name in names]
    if shown != [list(buffer) for buffer in buffers] or (found.num_served, found.refused) != (2, 1):
        yield Fault("BLOCKS-1", f"{shown} came of {buffers}", 1)
    if (found.number, found.request_ids) != (9, ["a", ""]):
        yield Fault("BLOCKS-1", f"number {found.number}, names {found.request_ids} came", 1)
