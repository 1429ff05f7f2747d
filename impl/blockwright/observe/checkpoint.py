"""The index over a restart, where the device's memory outlives the process (extra ``events``: msgspec).

`dump` writes which block holds which prefix: of the blocks that nobody holds. What a running request holds may still
be written, so it is left out; an engine that ends in good order frees its requests first. A dump is of one moment:
after it nothing more may be written to that memory, and a restored engine writes, so a dump is restored once.
"""

from __future__ import annotations

import hashlib

import msgspec

from blockwright import GivenHasher, KVCacheManager, MultiModalItem, Request
from blockwright.core.block_hash import BlockHasher
from blockwright.errors import InvalidArgumentError, UnsupportedError
from blockwright.events import BlockStored
from blockwright.observe.stream import EventStream


class _Dump(msgspec.Struct, array_like=True):
    whose: bytes
    prefixes: list[BlockStored]
    """Parents before children."""
    blocks: list[tuple[int, int]]
    """Blocks with the number of their prefix, first to be taken first."""


def dump(manager: KVCacheManager, stream: EventStream, identity: bytes, hasher: BlockHasher | None) -> bytes:
    """Return which free block holds which prefix. O(num_blocks + tokens).

    Args:
        manager: made with ``enable_kv_cache_events=True``.
        stream: what its events were recorded in; recorded up to now.
        identity: all that decides what the bytes of a block are, and whose memory it is: a `CacheIdentity`'s digest and
            the name of the memory, say.
        hasher: of the requests; None if the engine gives its own keys, whose seed is then part of the identity.

    Raises:
        InvalidArgumentError: the manager records no events.
        UnsupportedError: it verifies tokens, since keys alone do not say what a block holds.
    """
    pool = manager.block_pool
    if not pool.records_events:
        raise InvalidArgumentError("manager: records no events; make it with enable_kv_cache_events=True")
    _refuse_weak_keys(manager)
    stream.record(manager.take_events())
    keys, groups = pool.block_keys(), pool.block_groups()
    places = [(block, (keys[block], groups[block])) for block in pool.free_block_ids()]
    wanted = {place for _, place in places}
    prefixes: list[BlockStored] = []
    numbers: dict[tuple[bytes | None, int | None], int] = {}
    for event in stream.snapshot().events:
        if event.medium == "GPU" and isinstance(event.block_hash, bytes):
            place = event.block_hash[:16], event.group_id
            if place in wanted:
                numbers[place] = len(prefixes)
                prefixes.append(event)
    blocks = [(block, numbers[place]) for block, place in places if place in numbers]
    body = msgspec.msgpack.encode(_Dump(_whose(manager, identity, hasher), prefixes, blocks))
    return hashlib.sha256(body).digest() + body


def restore(manager: KVCacheManager, data: bytes, identity: bytes, hasher: BlockHasher | None) -> int:
    """Publish what `dump` wrote, each block under its own key, in the same order of eviction; return how many blocks.

    Nothing is restored, and 0 returned, where the identity, the configuration or the hasher's seed differs. The manager
    tells it in events like any publication. If the call does not end well, nothing is restored.
    O(num_blocks + tokens). law: RESTART-1.

    Args:
        manager: new: nothing is held or published.
        data: what `dump` returned.
        identity: of this engine.
        hasher: of the requests to come; the same seed as before.

    Raises:
        InvalidArgumentError: the data is damaged, or the manager is not new.
        UnsupportedError: the manager verifies tokens.
    """
    body = data[32:]
    try:
        if hashlib.sha256(body).digest() != data[:32]:
            raise ValueError("its checksum differs")
        found = msgspec.msgpack.decode(body, type=_Dump)
    except (ValueError, msgspec.MsgspecError) as error:
        raise InvalidArgumentError(f"data: is no whole dump: {error}") from error
    pool = manager.block_pool
    count = pool.num_blocks - 1
    if pool.get_num_free_blocks() != count or any(key is not None for key in pool.block_keys()):
        raise InvalidArgumentError("manager: holds or publishes blocks already; restore into a new one")
    _refuse_weak_keys(manager)
    if found.whose != _whose(manager, identity, hasher):
        return 0
    restored = [block for block, _ in found.blocks]
    taken = pool.get_new_blocks(count)
    try:
        for block, number in sorted(found.blocks, key=lambda each: each[1]):
            event = found.prefixes[number]
            at, request = _request(event)
            table = [0] * at + [block]
            pool.cache_full_blocks(request, table, at, at + 1, event.block_size, event.group_id)
    except BaseException:
        pool.free_blocks(taken)
        pool.reset_prefix_cache()
        raise
    known = set(restored)
    pool.free_blocks([each for each in taken if each.block_id not in known][::-1])
    pool.free_blocks(restored)
    return len(restored)


def _refuse_weak_keys(manager: KVCacheManager) -> None:
    if manager.block_pool.verifies_tokens:
        raise UnsupportedError("manager: made with verify_tokens=True; a dump has keys, not whole prefixes")


def _whose(manager: KVCacheManager, identity: bytes, hasher: BlockHasher | None) -> bytes:
    """Return a digest of all that must be the same: identity, configuration, and what the hasher makes of a token."""
    key = b"" if hasher is None else Request("key", [0], 1, hasher=hasher).block_hashes[0]
    sizes = [each.block_size for each in manager.managers]
    return hashlib.sha256(repr((identity, key, sizes, manager.kv_cache_config)).encode()).digest()


def _request(event: BlockStored) -> tuple[int, Request]:
    """Return the place of an event's block in a request that has it, with its key, its parent's and its items.

    What comes before is not known and not told: it is made up, as long as the items begin there.
    """
    size, items = event.block_size, event.mm_items
    at = 0 if event.parent_block_hash is None else max([1, *(-(offset // size) for _, offset, _ in items)])
    end = max([size, *(offset + length for _, offset, length in items)])
    prompt = [0] * (at * size) + [*event.token_ids] + [0] * (end - size)
    hashes = [event.parent_block_hash] * at + [event.block_hash] * (len(prompt) // size - at)
    return at, Request(
        "restored",
        prompt,
        size,
        hasher=GivenHasher(hashes),  # type: ignore[arg-type]
        cache_salt=event.cache_salt,
        lora_name=event.lora_name,
        mm_items=sorted(MultiModalItem(name, at * size + offset, length) for name, offset, length in items),
    )
