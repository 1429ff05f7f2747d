"""Numbers for keys: an index from opaque, non-empty bytes to small slots, on which everything else is packed.

Chains through packed arrays: a key's hash chooses a bucket, the bucket names the first slot, `_following` the next one
in the same bucket. There are two buckets for each slot, so a search hardly ever looks at a second key. The whole key is
compared: equal hashes prove nothing.

A Python dict would do, but its searches and deletions were measured to take two to three times as long (docs: bench).
Which slot a key gets is not to be relied on; nothing that a caller sees depends on it.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import read_i64_le
from librt.vecs import extend, vec
from mypy_extensions import i32, i64

from blockwright._copies import copy_fields
from blockwright.core.keys.packed import zeros32
from blockwright.errors import InvalidArgumentError

FIRST_SIZE: Final = 8


def keys_of(block_hashes: object) -> list[bytes]:
    """Return the hashes of a call as a list, read once; the caller's own list if it gave one.

    Raises:
        InvalidArgumentError: not an iterable of bytes, or one of them is empty.
    """
    hashes: list[object]
    if type(block_hashes) is list:
        hashes = block_hashes
    elif isinstance(block_hashes, (bytes, str)):
        raise InvalidArgumentError("block_hashes: one key is not a list of keys; pass [key]")
    else:
        try:
            iterator = iter(block_hashes)  # type: ignore[call-overload]
        except TypeError:
            kind = type(block_hashes).__name__
            raise InvalidArgumentError(f"block_hashes: must be an iterable of bytes, not {kind}") from None
        # Once, and before anything changes: an iterator may run code of the caller's, or raise in its middle.
        hashes = list(iterator)
    keys: list[bytes] = hashes  # type: ignore[assignment]
    is_exact = True
    for key in hashes:
        if type(key) is not bytes:
            if not isinstance(key, bytes):
                raise InvalidArgumentError(f"block_hashes: a block hash is bytes, not {type(key).__name__}")
            is_exact = False
        elif len(key) == 0:
            raise InvalidArgumentError("block_hashes: a block hash must not be empty")
    return keys if is_exact else keys_of([b"".join((key,)) for key in keys])


def shown(key: bytes) -> str:
    """Return the beginning of a key for an error message."""
    return key[:8].hex() + ("..." if len(key) > 8 else "")


def spread(key: bytes) -> i64:
    """Return 31 bits that depend on every byte of a key; the same in both builds. O(length)."""
    size: i64 = len(key)
    mixed: i64 = size
    at: i64 = 0
    while at + 8 <= size:
        word = read_i64_le(key, at)
        mixed = (((mixed ^ word ^ (word >> 31)) & 0x7FFFFFFF) * 0x9E3779B1 >> 20) & 0x7FFFFFFF
        at += 8
    while at < size:
        mixed = ((mixed ^ i64(key[at])) * 0x9E3779B1 >> 20) & 0x7FFFFFFF
        at += 1
    return mixed


@final
class KeyIndex:
    """Gives each of its keys a slot, from 1 on; slot 0 is never used.

    Attributes:
        keys: the key in each slot; empty where there is none. Only to be read.
        count: number of keys.
        size: slots that there are, slot 0 included.
    """

    def __init__(self) -> None:
        self.keys: list[bytes] = [b""]
        self.count: i64 = 0
        self.size: i64 = 1
        self._buckets: vec[i32] = zeros32(FIRST_SIZE)
        self._following: vec[i32] = zeros32(1)
        self._hashes: vec[i32] = zeros32(1)
        # Per slot, and for the first of a walk at 0: the slot that came next in the last walk.
        self._next: vec[i32] = zeros32(1)
        self._mask: i64 = FIRST_SIZE - 1
        self._unused: i64 = 0  # the first of a chain, through `_following`, of slots without key

    def copy(self) -> KeyIndex:
        """Return an independent copy. O(slots)."""
        twin = KeyIndex()
        copy_fields(self, twin)
        return twin

    def find(self, key: bytes) -> i64:
        """Return the slot of a key, or 0. O(1)."""
        return self._found(key, spread(key))

    def _found(self, key: bytes, hashed: i64) -> i64:
        slot: i64 = i64(self._buckets[hashed & self._mask])
        while slot != 0:
            if i64(self._hashes[slot]) == hashed:
                own = self.keys[slot]
                if own is key or own == key:
                    return slot
            slot = i64(self._following[slot])
        return 0

    def find_after(self, last: i64, key: bytes) -> i64:
        """Return the slot of a key, or 0, in a walk that came through slot `last` just before (0: it begins). O(1).

        Blocks of one request are named in the same order in each call; so what came next the last time is tried first.
        """
        slot: i64 = i64(self._next[last])
        own = self.keys[slot]
        if own is key or own == key:
            return slot
        slot = self.find(key)
        self._next[last] = i32(slot)
        return slot

    def find_all(self, keys: list[bytes]) -> vec[i32]:
        """Return the slot of each key, 0 where it has none. O(keys)."""
        slots = zeros32(i64(len(keys)))
        following = self._next
        known = self.keys
        slot: i64 = 0
        at: i64 = 0
        for key in keys:
            last = slot
            slot = i64(following[last])
            own = known[slot]
            if own is not key and own != key:
                slot = self.find(key)
                following[last] = i32(slot)
            slots[at] = i32(slot)
            at += 1  # noqa: SIM113
        return slots

    def put_after(self, last: i64, key: bytes) -> i64:
        """Return the slot of a key, which gets one if it has none (`count` grows then), in a walk as in `find_after`.

        Complexity: O(1), now and then O(count).
        """
        slot: i64 = i64(self._next[last])
        own = self.keys[slot]
        if own is key or own == key:
            return slot
        slot = self.put(key)
        self._next[last] = i32(slot)
        return slot

    def put(self, key: bytes) -> i64:
        """Return the slot of a key, which gets one if it has none."""
        hashed = spread(key)
        slot = self._found(key, hashed)
        if slot != 0:
            return slot
        if self._unused == 0:
            self._grow()
        bucket = hashed & self._mask
        following = self._following
        slot = self._unused
        self._unused = i64(following[slot])
        following[slot] = self._buckets[bucket]
        self._buckets[bucket] = i32(slot)
        self._hashes[slot] = i32(hashed)
        self.keys[slot] = key
        self.count += 1
        return slot

    def drop_all(self, slots: vec[i32]) -> None:
        """Take away the keys of slots that have one. O(slots)."""
        following = self._following
        buckets = self._buckets
        hashes = self._hashes
        keys = self.keys
        unused = self._unused
        for slot in slots:
            # The hash is kept, so that a key need not be read again to find its bucket.
            bucket: i64 = i64(hashes[i64(slot)]) & self._mask
            at: i64 = i64(buckets[bucket])
            if at == i64(slot):
                buckets[bucket] = following[at]
            else:
                while following[at] != slot:
                    at = i64(following[at])
                following[at] = following[i64(slot)]
            keys[i64(slot)] = b""
            following[i64(slot)] = i32(unused)
            unused = i64(slot)
        self._unused = unused
        self.count -= i64(len(slots))

    def _grow(self) -> None:
        """Double the slots, and the buckets with them. O(count)."""
        old = self.size
        size: i64 = FIRST_SIZE if old == 1 else 2 * old
        more = zeros32(size - old)
        self.keys.extend([b""] * (size - old))
        self._hashes = extend(self._hashes, more)
        self._next = extend(self._next, more)
        following = extend(self._following, more)
        buckets = zeros32(2 * size)
        slot: i64 = 1
        while slot < old:
            bucket: i64 = i64(self._hashes[slot]) & (2 * size - 1)
            following[slot] = buckets[bucket]
            buckets[bucket] = i32(slot)
            slot += 1
        while slot < size:
            following[slot] = i32(slot + 1) if slot + 1 < size else 0
            slot += 1
        self._unused = old
        self._buckets = buckets
        self._following = following
        self._mask = 2 * size - 1
        self.size = size
