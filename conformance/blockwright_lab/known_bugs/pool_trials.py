"""Trials of a few calls, without a world, in which known bugs of keys, counts and restarts show.

HASH-1    different prefixes (tokens, adapter, salt, multimodal items) have different keys, equal ones equal keys
HASH-2    keys cannot be foreseen: a hasher that is given no key draws its own
HASH-3    a hasher that is not collision resistant serves no hits unless tokens are verified
STAT-1    the statistics count exactly the lookups of requests admitted since they were last taken, and apart those of
          requests that go on
CALL-1    a stream of events that is interrupted while it folds a batch loses none of it
RESTART-1 a new manager finds what nobody held when the dump was made, in the order in which it would be evicted
"""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import product
from types import ModuleType
from typing import Any

from blockwright_conformance.kv_cache.blockwright import kv_cache_config
from blockwright_spec.manager.events import law_restart_finds_what_stood_there
from blockwright_spec.manager.state import Config

from ..scopes import layer
from .known_bug import Fault

NAMES = (None, "a", "b", "ab")
LONG = "item " * 20
ONE = (
    *(("a", 0, 1), ("b", 0, 1), ("a", 1, 1), ("a", 0, 2), ("a", 2, 2), ("a", 1, 2)),
    *((f"{LONG}1", 0, 1), (f"{LONG}2", 0, 1)),
)
ITEMS = ((), (ONE[0], ONE[2]), *((item,) for item in ONE))
"""Multimodal items of a prompt: identifier, offset, length."""

NUM_TOKENS = 4
BLOCK_SIZE = 2
NUM_MANY = 600
"""Blocks among which a key of 16 bits would repeat (2.7 times, as a rule)."""


def requests(package: ModuleType) -> Iterator[tuple[tuple[object, ...], Any]]:
    keys_of = partial(one, package, package.SipHasher(bytes(range(16))))  # one hasher: it remembers what it made
    for lora, salt in product(NAMES, NAMES):
        yield from keys_of((0,) * NUM_TOKENS, lora, salt, ())
    for tokens in product((0, 1, 256), repeat=NUM_TOKENS):
        yield from keys_of(tokens, None, None, ())
    for tokens in product((0, 1 << 31, 1 << 40, (1 << 40) + 1), repeat=NUM_TOKENS - 1):
        yield from keys_of((*tokens, 0), None, None, ())
    for items, lora in product(ITEMS, NAMES[:2]):
        yield from keys_of((0,) * NUM_TOKENS, lora, None, items)
    for token in range(NUM_MANY):
        yield from keys_of((token, 1 << token % 31), "many", None, ())
    for token, salt in product((0, 1), NAMES):
        yield from keys_of((0,) * 9 * BLOCK_SIZE + (token,) * BLOCK_SIZE, None, salt, ())


def one(
    package: ModuleType, hasher: Any, tokens: tuple[int, ...], lora: str | None, salt: str | None, items: Any
) -> Iterator[tuple[tuple[object, ...], Any]]:
    own_items = [package.MultiModalItem(*item) for item in items]
    request = package.Request(
        "r", list(tokens), block_size=BLOCK_SIZE, lora_name=lora, cache_salt=salt, mm_items=own_items, hasher=hasher
    )
    for end in range(BLOCK_SIZE, len(tokens) + 1, BLOCK_SIZE):
        key = request.block_digest(end // BLOCK_SIZE - 1)
        yield (lora, salt, tokens[:end], tuple(item for item in items if item[1] < end)), key


def keys(package: ModuleType) -> Iterator[Fault]:
    meaning: dict[bytes, tuple[object, ...]] = {}
    key_of: dict[tuple[object, ...], bytes] = {}
    for prefix, key in requests(package):
        if meaning.setdefault(key, prefix) != prefix or key_of.setdefault(prefix, key) != key:
            calls = f"{requested(meaning[key])}\n{requested(prefix)}"
            yield Fault("HASH-1", f"one key for {meaning[key]} and {prefix}", 2, calls)
            break
    if package.Request("r", [0], block_size=1, hasher=package.SipHasher()).block_hashes == (
        package.Request("r", [0], block_size=1, hasher=package.SipHasher()).block_hashes
    ):
        yield Fault("HASH-2", "two hashers without a key of their own give equal keys", 2)
    yield from weak(package)


def requested(meaning: tuple[Any, ...]) -> str:
    lora, salt, tokens, items = meaning
    words = ", ".join(f"MultiModalItem{item}" for item in items)
    return f"Request('r', {list(tokens)}, {BLOCK_SIZE}, lora_name={lora!r}, cache_salt={salt!r}, mm_items=[{words}])"


def weak(package: ModuleType) -> Iterator[Fault]:
    """Return HASH-3 if a hasher that anyone can collide is trusted."""
    hasher = package.FunctionHasher(lambda parent, block: bytes(16))
    hasher.is_portable = True
    for verify, events in ((False, False), (False, True), (True, False), (True, True)):
        manager = manager_of(package, "full", 1, 4, verify_tokens=verify, enable_kv_cache_events=events)
        try:
            manager.get_computed_blocks(package.Request("two", [1, 1], 1, hasher=hasher))
        except package.errors.InvalidArgumentError:
            if verify:
                yield Fault("HASH-3", "a weak hasher is refused although tokens are verified", 1)
        else:
            if not verify:
                yield Fault("HASH-3", "a weak hasher is trusted", 1)


def config_of(package: ModuleType, layers: str, block_size: int = 1, num_blocks: int = 9) -> Any:
    groups = tuple(layer(f"{each}, block {block_size}") for each in layers.split(" + "))
    return kv_cache_config(Config(groups, num_blocks, 8), package)


def manager_of(package: ModuleType, layers: str, block_size: int = 1, num_blocks: int = 9, **rest: Any) -> Any:
    return package.KVCacheManager(config_of(package, layers, block_size, num_blocks), max_model_len=8, **rest)


def statistics(package: ModuleType) -> Iterator[Fault]:
    """Return STAT-1 unless lookups are counted once each, of what is admitted, and apart those of what goes on."""
    none, manager = (0, 0, 0), manager_of(package, "full", 1, 4, log_stats=True)
    first, other = package.Request("first", [0, 1], 1), package.Request("other", [2, 3], 1)
    asked = ((first, (1, 2, 0), none), (other, none, none), (first, none, (1, 2, 1)))
    for at, (request, new, again) in enumerate(asked):
        hit, length = manager.get_computed_blocks(request)
        manager.allocate_slots(request, 2 - length, length, hit)  # there is no room for both
        wanted, found = (False, *new, *again), tuple(manager.make_prefix_cache_stats())
        if found != wanted:
            yield Fault("STAT-1", f"after request {at}: expected {wanted}, the statistics say {found}", 3 * at + 2)
            return
        if request is other:
            first.num_computed_tokens = 2
            manager.free(first)
            first.num_computed_tokens = 0


# --- rows


def rows(package: ModuleType) -> Iterator[Fault]:
    """Return ROW-1 if a worker's rows differ from the tables after any token of a request of three groups."""
    layers = "full + full + sliding 2"
    manager = manager_of(package, layers, 2, 20)
    sizes = {"max_num_requests": 1, "max_num_tokens": 1, "max_model_len": 8, "max_encoder_len": 0}
    make = package.worker.replica.TableReplica
    replica = make(config_of(package, layers, 2, 20), **sizes, enable_caching=True, keep_changes=False)
    replica.rows.add_request("r", [[], [], []], (), 0)
    request = package.Request("r", [0] * 8, 2)
    for token in range(8):
        request.num_computed_tokens = token
        replica.rows.apply([request], manager.allocate_slots_batch([request], 1))
        wanted, found = [list(each) for each in manager.get_block_ids("r")], replica.rows.block_ids("r")
        if found != wanted:
            yield Fault("ROW-1", f"after token {token}: rows {found}, tables {wanted}", 2 * token + 2)
            return


# --- restarts


def restarts(package: ModuleType) -> Iterator[Fault]:
    """Return RESTART-1 if a manager that restores another's dump finds other blocks, or in another order."""
    hasher, checkpoint = package.Sha256Hasher(b"seed"), package.observe.checkpoint
    options = {"num_blocks": 12, "enable_kv_cache_events": True}
    manager, stream = manager_of(package, "full + sliding 2", **options), package.observe.EventStream()
    requests = [package.Request(f"r{at}", [0, at, 2], 1, hasher=hasher) for at in range(3)]
    for request in requests:
        hit, length = manager.get_computed_blocks(request)
        manager.allocate_slots(request, 3 - length, length, hit)
    for request in requests[1::-1]:
        request.num_computed_tokens = 3
        manager.free(request)
    stream.record(manager.take_events())
    data = checkpoint.dump(manager, stream.snapshot().events, b"ours", hasher)
    for identity in (b"ours", b"another"):
        other, may = manager_of(package, "full + sliding 2", **options), identity == b"ours"
        checkpoint.restore(other, data, identity, hasher)
        if not law_restart_finds_what_stood_there(queue(manager), may, queue(other)):
            yield Fault("RESTART-1", f"restored as {identity!r}: {queue(other)}, of {queue(manager)}", 12)
            return


class Interrupting(bytes):
    """A hash with its use interrupted after some uses."""

    left = 0

    def __hash__(self) -> int:
        Interrupting.left -= 1
        if Interrupting.left == 0:
            raise KeyboardInterrupt
        return bytes.__hash__(self)


def interrupts(package: ModuleType) -> Iterator[Fault]:
    """Return CALL-1 if a stream, or a consumer that follows it, has lost blocks after an interrupt at some point."""
    stored = [package.events.BlockStored(Interrupting([at] * 32), None, bytes(4), 1) for at in range(4)]
    whole = {(bytes([at] * 32), 0, "GPU") for at in range(4)}
    for at in range(1, 40):
        stream, Interrupting.left = package.observe.EventStream(), 0
        stream.record(stored[:2])
        stream.record([*stored[2:], package.events.BlockRemoved(bytes(32)), stored[0]])
        Interrupting.left = at
        with suppress(KeyboardInterrupt):
            stream.known_keys()
        Interrupting.left = 0
        index = package.observe.PrefixIndex()
        for batch in stream.since(0):
            index.apply(batch.events)
        found = [{(bytes(key), *rest) for key, *rest in each.known_keys()} for each in (stream, index)]
        if found != [whole, whole]:
            lost = [len(whole - each) for each in found]
            said = f"interrupted at use {at} of a hash: the stream lost {lost[0]}, a consumer {lost[1]}"
            yield Fault("CALL-1", said, 3)
            return


def chain_of(package: ModuleType, count: int) -> list[Any]:
    stored = package.events.BlockStored
    return [stored(at + 1, at or None, at.to_bytes(4, "little"), 1) for at in range(count)]


def prefixes_gone(package: ModuleType) -> Iterator[Fault]:
    """Return EV-7 if a router does not find a window whose beginning is gone."""
    events = package.events
    layout = events.CacheLayout((events.GroupLayout("sliding_window", 1, 3),), 1)
    index = package.observe.PrefixIndex(chain_of(package, 90), layout=layout)
    for at in range(1, 89):
        index.apply([events.BlockRemoved(at)])
    for at in range(1000, 1200):
        index.apply([events.BlockStored(at, None, at.to_bytes(4, "little"), 1)])
    if (found := index.match(list(range(90)))) != 90:
        yield Fault("EV-7", f"of 90 tokens with the last two cached a router finds {found}", 3)


def copies_gone(package: ModuleType) -> Iterator[Fault]:
    """Return EV-1 if a router forgets a content with one of its two copies."""
    chain, removed = chain_of(package, 3), package.events.BlockRemoved(3)
    index = package.observe.PrefixIndex([*chain, *chain, removed])
    if (found := index.match([0, 1, 2])) != 3:
        yield Fault("EV-1", f"of three blocks with two copies each, one of which went, a router finds {found}", 3)


def queue(manager: Any) -> tuple[Any, ...]:
    keys, groups = manager.block_pool.block_keys(), manager.block_pool.block_groups()
    return tuple((block, keys[block] and (groups[block], keys[block])) for block in manager.block_pool.free_block_ids())
