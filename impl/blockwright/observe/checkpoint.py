"""The index over a restart, where the device's memory outlives the process: `KVCacheManager.dump` and `restore`.

A dump lists which block holds which prefix, for the blocks without a holder. Blocks of a running request may still be
written, so they are left out; an engine that ends in good order frees its requests first. A dump is of one moment:
after it nothing more may be written to that memory, and a restored engine writes, so a dump is restored once.

It is JSON behind a checksum: its identity, the prefixes (parents before children), and the blocks with the number of
their prefix and their class (what `keep_wanted` remembers of a candidate), first to be taken first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, cast

from blockwright.core.keys.block_hash import BlockHasher
from blockwright.core.keys.request import MAX_LENGTH, Request
from blockwright.core.manager import KVCacheManager
from blockwright.core.worth.wanted import free_classed
from blockwright.errors import InvalidArgumentError, UnsupportedError
from blockwright.events import BlockStored, KVCacheEvent

LAYOUT = 3
"""Of a dump: one that an earlier version laid out otherwise belongs to another manager."""
MAYBE: tuple[type, ...] = (str, type(None))
FIELDS: tuple[type | tuple[type, ...], ...] = (str, MAYBE, str, int, MAYBE, int, MAYBE, list, str, bool, str)
"""The types of a `BlockStored` in a dump, its bytes as hexadecimal digits."""


def dump(manager: KVCacheManager, told: Iterable[KVCacheEvent], identity: bytes, hasher: BlockHasher | None) -> bytes:
    """Return which free block holds which prefix; see `KVCacheManager.dump`."""
    pool = manager.block_pool
    _refuse_weak_keys(manager)
    if not pool.records_events:
        raise InvalidArgumentError("manager: records no events; make it with enable_kv_cache_events=True")
    keys, groups = pool.block_keys(), pool.block_groups()
    places = [(block, (keys[block], groups[block])) for block in pool.free_block_ids()]
    wanted = {place for _, place in places}
    prefixes: list[list[Any]] = []
    numbers: dict[tuple[bytes | None, int | None], int] = {}
    for event in told:
        if not isinstance(event, BlockStored) or event.medium != "GPU" or not isinstance(event.block_hash, bytes):
            continue
        place = event.block_hash[:16], event.group_id
        if place in wanted and place not in numbers:
            numbers[place] = len(prefixes)
            fields = (*event[:9], event.is_parent_absent, event.lookahead)
            prefixes.append([field.hex() if isinstance(field, bytes) else field for field in fields])
    classes = pool._classes()
    blocks = [(int(block), numbers[place], classes.get(block, 0)) for block, place in places if place in numbers]
    body = json.dumps([_whose(manager, identity, hasher), prefixes, blocks]).encode()
    return hashlib.sha256(body).digest() + body


def restore(manager: KVCacheManager, data: bytes, identity: bytes, hasher: BlockHasher | None) -> int:
    """Publish the prefixes of a dump; see `KVCacheManager.restore`. law: RESTART-1.

    All of it is checked before anything changes: a checksum without a key protects from accidents alone.
    """
    whose, prefixes, blocks = _parts(data)
    pool = manager.block_pool
    count = pool.num_blocks - 1
    if pool.get_num_free_blocks() != count or any(key is not None for key in pool.block_keys()):
        raise InvalidArgumentError("manager: holds or publishes blocks already; restore into a new one")
    _refuse_weak_keys(manager)
    if whose != _whose(manager, identity, hasher) or not pool.enable_caching:
        return 0
    stored = _checked_prefixes(manager, prefixes)
    restored, classes = _checked_blocks(manager, stored, blocks)
    # All are taken, and then given back in the order in which the dump wants them taken again.
    taken = pool.get_new_blocks(count)
    try:
        for block, number in sorted(restored.items(), key=lambda each: each[1]):
            pool._publish_told(block, stored[number])
    except BaseException:
        pool.free_blocks(taken)
        pool.reset_prefix_cache()
        raise
    # Before the others, so that a block without content is taken before one with some.
    pool.free_blocks([each for each in taken if each.block_id not in restored][::-1])
    free_classed(pool, list(restored), classes)
    return len(restored)


def _demand(is_so: bool, what: str) -> None:
    """Raise the error about a dump that no manager wrote, unless something is so."""
    if not is_so:
        raise InvalidArgumentError(f"data: {what}, so no manager wrote it; start without it")


def _parts(data: bytes) -> tuple[Any, list[Any], list[Any]]:
    if hashlib.sha256(data[32:]).digest() != data[:32]:
        raise InvalidArgumentError("data: is no whole dump: its checksum differs; start without it")
    parts: Any = None
    with suppress(ValueError, RecursionError):
        parts = json.loads(data[32:])
    _demand(_is_row(parts, (str, list, list)), "is not an owner, prefixes and blocks")
    return parts[0], parts[1], parts[2]


def _is_row(row: object, kinds: tuple[type | tuple[type, ...], ...]) -> bool:
    """Return whether something is a list of values of exactly these types (of one, where there are several)."""
    if type(row) is not list or len(row) != len(kinds):
        return False
    return all(
        type(value) in (kind if type(kind) is tuple else (kind,)) for value, kind in zip(row, kinds, strict=True)
    )


def _checked_prefixes(manager: KVCacheManager, rows: list[Any]) -> list[BlockStored]:
    """Return the prefixes of a dump as events, each checked to be one that this manager could record. O(tokens)."""
    sizes = [each.block_size for each in manager.managers]
    stored: list[BlockStored] = []
    places: set[tuple[bytes, int]] = set()
    for at, row in enumerate(rows):
        _demand(_is_row(row, FIELDS), f"prefix {at} has not the fields of an event")
        key, parent, tokens, size, lora, group, salt, items, medium, _, ahead = row
        _demand(0 <= group < len(sizes) and size == sizes[group], f"prefix {at} has no group of {size} tokens a block")
        before = None if parent is None else _bytes(parent, at)
        event = BlockStored(_bytes(key, at), before, _bytes(tokens, at), size, lora, group, salt)
        _demand(len(key) >= 32 and (parent is None or len(parent) >= 32), f"prefix {at} has a key below 16 bytes")
        are_ids = len(event.tokens) == 4 * size and max(event.tokens[3::4]) < 128
        _demand(are_ids, f"prefix {at} has not {size} token ids")
        behind = _bytes(ahead, at)
        _demand(len(behind) % 4 == 0 and max(behind[3::4], default=0) < 128, f"prefix {at} looks ahead at no token ids")
        _demand(medium == "GPU", f"prefix {at} is not on the device")
        place = key[:32], group
        _demand(place not in places, f"prefix {at} repeats another")
        places.add(place)
        event = event._replace(lookahead=behind)
        stored.append(event._replace(mm_items=tuple([_item(item, event, at) for item in items])))
    return stored


def _bytes(text: str, at: int) -> bytes:
    found = b""
    with suppress(ValueError):
        found = bytes.fromhex(text)
    _demand(found.hex() == text, f"prefix {at} has text where bytes belong")
    return found


def _item(row: object, event: BlockStored, at: int) -> tuple[str, int, int]:
    """Return a multimodal item of a prefix, checked to overlap its block; it may begin before it, or end after."""
    _demand(_is_row(row, (str, int, int)), f"prefix {at} has an item that is no name, offset and length")
    name, offset, length = cast("tuple[str, int, int]", row)
    first = 0 if event.parent_block_hash is None else -MAX_LENGTH
    overlaps = (
        first <= offset < event.block_size + len(event.lookahead) // 4
        and 0 < length <= MAX_LENGTH
        and offset + length > 0
    )
    _demand(name != "" and overlaps, f"prefix {at} has an item that does not overlap it")
    return name, offset, length


def _checked_blocks(
    manager: KVCacheManager, stored: list[BlockStored], rows: list[Any]
) -> tuple[dict[int, int], dict[int, int]]:
    """Return the number of the prefix of each block of a dump, in its order, and its class, checked. O(blocks)."""
    count, blocks, classes = manager.block_pool.num_blocks - 1, dict[int, int](), dict[int, int]()
    for row in rows:
        _demand(_is_row(row, (int, int, int)), "pairs a block with no prefix")
        block, number, kind = row
        _demand(0 < block <= count and block not in blocks, f"names block {block}, of {count}, wrongly or twice")
        _demand(0 <= number < len(stored), f"names prefix {number}, of {len(stored)}")
        keeps_all = manager.managers[stored[number].group_id or 0].keeps_all
        _demand(kind == 0 or (0 < kind < 4 and not keeps_all), f"gives block {block} a class that it cannot have")
        blocks[block] = number
        classes[block] = kind
    return blocks, classes


def _refuse_weak_keys(manager: KVCacheManager) -> None:
    if manager.block_pool.verifies_tokens:
        raise UnsupportedError("manager: made with verify_tokens=True; a dump has keys, not whole prefixes")
    if manager.prefix_match_unit is not None:
        raise UnsupportedError("manager: made with prefix_match_unit; a dump has whole blocks alone")


def _whose(manager: KVCacheManager, identity: bytes, hasher: BlockHasher | None) -> str:
    """Return a digest that two managers share if one may restore the other's dump: identity, configuration, hasher."""
    key = b"" if hasher is None else Request("key", [0] * (1 + hasher.key_lookahead), 1, hasher=hasher).block_hashes[0]
    sizes = [each.block_size for each in manager.managers]
    return hashlib.sha256(repr((LAYOUT, identity, key, sizes, manager.kv_cache_config)).encode()).hexdigest()
