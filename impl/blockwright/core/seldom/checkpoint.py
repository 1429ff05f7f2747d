"""The index over a restart, where the device's memory outlives the process: `KVCacheManager.dump` and `restore`.

A dump says which block holds which prefix: of the blocks that nobody holds. What a running request holds may still be
written, so it is left out; an engine that ends in good order frees its requests first. A dump is of one moment: after
it nothing more may be written to that memory, and a restored engine writes, so a dump is restored once.

It is JSON behind a checksum: whose it is, the prefixes (parents before children), and the blocks with the number of
their prefix, first to be taken first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from blockwright.core.block_hash import BlockHasher, GivenHasher
from blockwright.core.request import MultiModalItem, Request
from blockwright.errors import InvalidArgumentError, UnsupportedError
from blockwright.events import BlockStored, KVCacheEvent

if TYPE_CHECKING:
    from blockwright.core.manager import KVCacheManager


def dump(manager: KVCacheManager, told: Iterable[KVCacheEvent], identity: bytes, hasher: BlockHasher | None) -> bytes:
    """Return which free block holds which prefix, as `KVCacheManager.dump` says."""
    pool = manager.block_pool
    if not pool.records_events:
        raise InvalidArgumentError("manager: records no events; make it with enable_kv_cache_events=True")
    _refuse_weak_keys(manager)
    keys, groups = pool.block_keys(), pool.block_groups()
    places = [(block, (keys[block], groups[block])) for block in pool.free_block_ids()]
    wanted = {place for _, place in places}
    prefixes: list[list[Any]] = []
    numbers: dict[tuple[bytes | None, int | None], int] = {}
    for event in told:
        if not isinstance(event, BlockStored) or event.medium != "GPU" or not isinstance(event.block_hash, bytes):
            continue
        place = event.block_hash[:16], event.group_id
        if place in wanted:
            numbers[place] = len(prefixes)
            prefixes.append([field.hex() if isinstance(field, bytes) else field for field in event])
    blocks = [(int(block), numbers[place]) for block, place in places if place in numbers]
    body = json.dumps([_whose(manager, identity, hasher), prefixes, blocks]).encode()
    return hashlib.sha256(body).digest() + body


def restore(manager: KVCacheManager, data: bytes, identity: bytes, hasher: BlockHasher | None) -> int:
    """Publish what `dump` wrote, as `KVCacheManager.restore` says. law: RESTART-1."""
    body = data[32:]
    if hashlib.sha256(body).digest() != data[:32]:
        raise InvalidArgumentError("data: is no whole dump: its checksum differs; start without it")
    whose, prefixes, blocks = json.loads(body)
    pool = manager.block_pool
    count = pool.num_blocks - 1
    if pool.get_num_free_blocks() != count or any(key is not None for key in pool.block_keys()):
        raise InvalidArgumentError("manager: holds or publishes blocks already; restore into a new one")
    _refuse_weak_keys(manager)
    if whose != _whose(manager, identity, hasher):
        return 0
    restored = [block for block, _ in blocks]
    taken = pool.get_new_blocks(count)
    try:
        for block, number in sorted(blocks, key=lambda each: each[1]):
            event = _event(prefixes[number])
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


def _whose(manager: KVCacheManager, identity: bytes, hasher: BlockHasher | None) -> str:
    """Return a digest of all that must be the same: identity, configuration, and what the hasher makes of a token."""
    key = b"" if hasher is None else Request("key", [0], 1, hasher=hasher).block_hashes[0]
    sizes = [each.block_size for each in manager.managers]
    return hashlib.sha256(repr((identity, key, sizes, manager.kv_cache_config)).encode()).hexdigest()


def _event(fields: list[Any]) -> BlockStored:
    """Return an event as it was told."""
    block_hash, parent, tokens, size, lora, group, salt, items, *_ = fields
    before = None if parent is None else bytes.fromhex(parent)
    own = tuple([(name, offset, length) for name, offset, length in items])
    return BlockStored(bytes.fromhex(block_hash), before, bytes.fromhex(tokens), size, lora, group, salt, own)


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
