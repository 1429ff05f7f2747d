"""The index over a restart, where the device's memory outlives the process (extra ``events``: msgspec).

`dump` writes which block holds which prefix: of the blocks that nobody holds. What a running request holds may still
be written, so it is left out; an engine that ends in good order frees its requests first. `restore` takes nothing on
trust: it hashes each prefix again and publishes a block only under the key that comes out, so that a lookup finds
exactly what was written (READ-1). Prefixes whose parents are gone cannot be hashed again, and are not dumped.
"""

from __future__ import annotations

import hashlib
from math import gcd
from typing import Any

import msgspec

from blockwright import KVCacheManager, MultiModalItem, Request
from blockwright.core.block_hash import BlockHasher
from blockwright.errors import InvalidArgumentError
from blockwright.observe.stream import EventStream


class _Prefix(msgspec.Struct, array_like=True):
    """A block's part of a prefix, the number of its parent, and the block's hash."""

    parent: int
    tokens: bytes
    group: int
    lora_name: str | None
    cache_salt: str | None
    mm_items: list[tuple[str, int, int]]
    block_hash: bytes


class _Dump(msgspec.Struct, array_like=True):
    identity: bytes
    geometry: list[int]
    prefixes: list[_Prefix]
    blocks: list[tuple[int, int]]
    """Blocks with the number of their prefix, first to be taken first."""


def dump(manager: KVCacheManager, stream: EventStream, identity: bytes) -> bytes:
    """Return which free block holds which prefix. O(num_blocks + tokens).

    Args:
        manager: made with ``enable_kv_cache_events=True``.
        stream: what its events were recorded in; recorded up to now.
        identity: all that decides what the bytes of a block are, and whose memory it is: a `CacheIdentity`'s digest and
            the name of the memory, say.
    """
    stream.record(manager.take_events())
    numbers: dict[tuple[object, int], int] = {}
    prefixes: list[_Prefix] = []
    for event in stream.snapshot().events:
        parent, group = event.parent_block_hash, event.group_id
        if event.medium != "GPU" or (parent is not None and (parent, group) not in numbers):
            continue
        if isinstance(event.block_hash, bytes):
            numbers[event.block_hash, group] = len(prefixes)
            at = -1 if parent is None else numbers[parent, group]
            items, salt = list(event.mm_items), event.cache_salt
            prefixes.append(_Prefix(at, event.tokens, group, event.lora_name, salt, items, event.block_hash))
    short = {(key[:16], group): number for (key, group), number in numbers.items() if isinstance(key, bytes)}
    pool = manager.block_pool
    keys, groups = pool.block_keys(), pool.block_groups()
    places = [(block, (keys[block], groups[block])) for block in pool.free_block_ids()]
    blocks = [(block, short[key]) for block, key in places if key in short]
    body = msgspec.msgpack.encode(_Dump(identity, _geometry(manager), prefixes, blocks))
    return hashlib.sha256(body).digest() + body


def restore(manager: KVCacheManager, data: bytes, identity: bytes, hasher: BlockHasher) -> int:
    """Publish what `dump` wrote, each block under its prefix, in the same order of eviction; return how many blocks.

    Nothing is restored, and 0 returned, where the identity, the pool's size, the groups or the hasher's seed differs.
    The manager tells it in events like any publication. O(num_blocks + tokens).

    Args:
        manager: new: nothing is held or published.
        data: what `dump` returned.
        identity: of this engine.
        hasher: of the requests to come; the same seed as before.

    Raises:
        InvalidArgumentError: the data is damaged, or the manager is not new.
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
    if found.identity != identity or found.geometry != _geometry(manager):
        return 0
    layers = _layers(found)
    requests = [_request(found.prefixes, leaf, hasher, _geometry(manager)) for leaf in _leaves(found.prefixes)]
    restored = set[int]()
    taken = pool.get_new_blocks(count)
    try:
        for path, request in requests:
            size = manager.managers[found.prefixes[path[0]].group].block_size
            units = size // (request.block_size or size)
            own = [request.block_hashes[(at + 1) * units - 1] for at in range(len(path))]
            for layer in layers:
                table = [
                    layer.pop(number, 0) if found.prefixes[number].block_hash == key else 0
                    for number, key in zip(path, own, strict=True)
                ]
                if any(table):
                    group = found.prefixes[path[0]].group
                    pool.cache_full_blocks(request, table, 0, len(table), size, group)
                    restored.update(filter(None, table))
    finally:
        order = [block for block, _ in found.blocks if block in restored]
        pool.free_blocks([each for each in taken if each.block_id not in restored][::-1])
        pool.free_blocks(order)
    return len(restored)


def _geometry(manager: KVCacheManager) -> list[int]:
    """Return the pool's size and the groups' block sizes."""
    return [manager.block_pool.num_blocks, *(each.block_size for each in manager.managers)]


def _layers(found: _Dump) -> list[dict[int, int]]:
    """Return the blocks by the number of their prefix; further blocks of the same prefix in further layers."""
    layers: list[dict[int, int]] = [{}]
    for block, number in found.blocks:
        layer = next((each for each in layers if number not in each), None)
        if layer is None:
            layer = {}
            layers.append(layer)
        layer[number] = block
    return layers


def _leaves(prefixes: list[_Prefix]) -> list[int]:
    """Return the prefixes that no other goes on from."""
    inner = {each.parent for each in prefixes}
    return [number for number in range(len(prefixes)) if number not in inner]


def _request(prefixes: list[_Prefix], leaf: int, hasher: BlockHasher, geometry: list[int]) -> tuple[list[int], Request]:
    """Return the numbers of a leaf's chain, first block first, and a request with its tokens and all that decides."""
    path: list[int] = []
    at = leaf
    while at >= 0:
        path.append(at)
        at = prefixes[at].parent
    path.reverse()
    chain = [prefixes[number] for number in path]
    size = len(chain[0].tokens) // 4
    items = {
        MultiModalItem(name, offset + place * size, length)
        for place, each in enumerate(chain)
        for name, offset, length in each.mm_items
    }
    tokens: Any = memoryview(b"".join(each.tokens for each in chain)).cast("i")
    last = max((item.offset + item.length for item in items), default=0)
    prompt = [*tokens, *([0] * (last - len(tokens)))]  # an item may end beyond the last block
    unit = gcd(*geometry[1:])
    own = {"cache_salt": chain[0].cache_salt, "lora_name": chain[0].lora_name}
    return path, Request("restored", prompt, unit, hasher=hasher, mm_items=sorted(items), **own)  # type: ignore[arg-type]
