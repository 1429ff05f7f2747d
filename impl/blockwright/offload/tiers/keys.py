"""Numbers for keys: an index from opaque, non-empty bytes to small slots, on which everything else is packed.

Chains through packed arrays: a key's hash chooses a bucket, the bucket names the first slot, `_following` the next one
in the same bucket. At most one slot per bucket on average, so a search looks at one or two keys. The whole key is
compared, whatever its hash: equal hashes prove nothing.

A Python dict would do, but its searches and deletions were measured to take two to three times as long (docs: bench).
Which slot a key gets is not to be relied on; nothing that a caller sees depends on it.
"""

from __future__ import annotations

from typing import final

from librt.strings import read_i64_le
from librt.vecs import extend, vec
from mypy_extensions import i32, i64

from blockwright.core.index import zeros32
from blockwright.errors import InvalidArgumentError

FIRST_SIZE = 8


def keys_of(block_hashes: object) -> list[bytes]:
    """Return the hashes of a call as a list, read once; the caller's own list if it gave one.

    Raises:
        InvalidArgumentError: not an iterable of bytes, or one of them is empty.
    """
    hashes: list[object]
    if isinstance(block_hashes, list):
        hashes = block_hashes
    elif isinstance(block_hashes, (bytes, str)):
        raise InvalidArgumentError("block_hashes: one key is not a list of keys; pass [key]")
    else:
        try:
            iterator = iter(block_hashes)  # type: ignore[call-overload]
        except TypeError:
            kind = type(block_hashes).__name__
            raise InvalidArgumentError(f"block_hashes: must be an iterable of bytes, not {kind}") from None
        hashes = list(iterator)
    keys: list[bytes] = hashes  # type: ignore[assignment]
    for key in hashes:
        if not isinstance(key, bytes):
            raise InvalidArgumentError(f"block_hashes: a block hash is bytes, not {type(key).__name__}")
        if len(key) == 0:
            raise InvalidArgumentError("block_hashes: a block hash must not be empty")
    return keys


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
    """Gives each of its keys a slot, from 1 on; slot 0 is nobody's.

    Attributes:
        keys: the key in each slot; empty where there is none. Only to be read.
        count: number of keys.
        size: slots that there are, slot 0 included.
    """

    def __init__(self, *, source: KeyIndex | None = None) -> None:
        """Make an empty index, or a copy of `source`."""
        if source is not None:
            self.keys: list[bytes] = source.keys.copy()
            self.count: i64 = source.count
            self.size: i64 = source.size
            self._buckets: vec[i32] = source._buckets[:]
            self._following: vec[i32] = source._following[:]
            self._mask: i64 = source._mask
            self._unused: i64 = source._unused
            return
        self.keys = [b""]
        self.count = 0
        self.size = 1
        self._buckets = zeros32(FIRST_SIZE)
        self._following = zeros32(1)
        self._mask = FIRST_SIZE - 1
        self._unused = 0  # the first of a chain, through `_following`, of slots without key

    def copy(self) -> KeyIndex:
        """Return an independent copy. O(slots)."""
        return KeyIndex(source=self)

    def find(self, key: bytes) -> i64:
        """Return the slot of a key, or 0. O(1)."""
        slot: i64 = i64(self._buckets[spread(key) & self._mask])
        while slot != 0:
            own = self.keys[slot]
            if own is key or own == key:
                return slot
            slot = i64(self._following[slot])
        return 0

    def put(self, key: bytes) -> i64:
        """Return the slot of a key, which gets one if it has none (`count` tells). O(1), now and then O(count)."""
        bucket = spread(key) & self._mask
        first: i64 = i64(self._buckets[bucket])
        slot = first
        while slot != 0:
            own = self.keys[slot]
            if own is key or own == key:
                return slot
            slot = i64(self._following[slot])
        if self._unused == 0:
            self._grow()
            bucket = spread(key) & self._mask
            first = i64(self._buckets[bucket])
        slot = self._unused
        self._unused = i64(self._following[slot])
        self._following[slot] = i32(first)
        self._buckets[bucket] = i32(slot)
        self.keys[slot] = key
        self.count += 1
        return slot

    def drop(self, slot: i64) -> None:
        """Take away the key of a slot that has one. O(1)."""
        following = self._following
        bucket = spread(self.keys[slot]) & self._mask
        at: i64 = i64(self._buckets[bucket])
        if at == slot:
            self._buckets[bucket] = following[slot]
        else:
            while i64(following[at]) != slot:
                at = i64(following[at])
            following[at] = following[slot]
        self.keys[slot] = b""
        following[slot] = i32(self._unused)
        self._unused = slot
        self.count -= 1

    def _grow(self) -> None:
        """Double the slots, and the buckets with them. O(count)."""
        old = self.size
        size: i64 = FIRST_SIZE if old == 1 else 2 * old
        self.keys.extend([b""] * (size - old))
        following = extend(self._following, zeros32(size - old))
        mask: i64 = size - 1
        buckets = zeros32(size)
        slot: i64 = 1
        while slot < old:
            bucket = spread(self.keys[slot]) & mask
            following[slot] = buckets[bucket]
            buckets[bucket] = i32(slot)
            slot += 1
        while slot < size:
            following[slot] = i32(slot + 1) if slot + 1 < size else 0
            slot += 1
        self._unused = old
        self._buckets = buckets
        self._following = following
        self._mask = mask
        self.size = size
