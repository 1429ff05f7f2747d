"""Blocks that are written at random to a disk that will stop, and what must be left of them.

Imports little, since processes that are killed start with it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

from blockwright.offload.disk import DiskStore
from blockwright.offload.identity import CacheIdentity

IDENTITY = CacheIdentity("model", "layout", "dtype", 16, b"seed")
BLOCK_BYTES = 5000
"""More than a page, and no multiple of one."""
SLOTS = 6
KEYS = 40


class Said(NamedTuple):
    """The reports of a run before and after each of its calls, so that its state at the end is known."""

    event: str
    """``write`` or ``discard`` before the call, ``written`` or ``discarded`` after it, ``fault`` for a wrong answer."""
    slot: int
    key: int


Say = Callable[[Said], None]


def key_of(number: int) -> bytes:
    return b"key %d" % number


@cache
def content_of(number: int) -> bytes:
    """Return the bytes of a block, of some length, which no other has."""
    draw = random.Random(number)
    return draw.randbytes(draw.choice((BLOCK_BYTES, draw.randrange(16, BLOCK_BYTES))))


def parts_of(data: bytes | bytearray) -> list[memoryview]:
    view, cut = memoryview(data), len(data) // 3
    return [view[:cut], view[cut : cut + 1], view[cut + 1 :]]


def read(store: DiskStore, slot: int, key: int) -> bytes | None:
    data = bytearray(len(content_of(key)))
    return bytes(data) if store.get(key_of(key), slot, parts_of(data)) else None


class Work:
    """Writes, overwrites, reads and discards blocks at random in some of a store's slots, as one manager would."""

    def __init__(
        self, store: DiskStore, draw: random.Random, slots: Sequence[int], keys: Sequence[int], say: Say
    ) -> None:
        self.store, self.draw, self.slots, self.keys, self.say = store, draw, slots, keys, say
        number = {key_of(key): key for key in keys}
        self.held = {slot: number[key] for key, slot in store.blocks() if slot in slots}
        self.own: set[int] = set()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.draw.choices((self.write, self.read, self.discard), (70, 25, 5))[0]()

    def write(self) -> None:
        slots = self.draw.sample(self.slots, self.draw.choice((1, 1, 2, 3)))
        kept = {key for slot, key in self.held.items() if slot not in slots}
        keys = self.draw.sample([key for key in self.keys if key not in kept], len(slots))
        for slot, key in zip(slots, keys, strict=True):
            self.say(Said("write", slot, key))
        items = [(key_of(key), slot, parts_of(content_of(key))) for slot, key in zip(slots, keys, strict=True)]
        if len(items) == 1:
            self.store.put(*items[0])
        elif not all(self.store.put_many(items)):
            self.say(Said("fault", slots[0], keys[0]))
        for slot, key in zip(slots, keys, strict=True):
            self.held[slot] = key
            self.own.add(slot)
            self.say(Said("written", slot, key))

    def read(self) -> None:
        slot, key = self.draw.choice(self.slots), self.draw.choice(self.keys)
        if self.draw.random() < 0.8:
            key = self.held.get(slot, key)
        found = read(self.store, slot, key)
        there = self.held.get(slot) == key
        wrong = found not in (None, content_of(key)) if there else found is not None
        if wrong or (there and slot in self.own and found is None):
            self.say(Said("fault", slot, key))

    def discard(self) -> None:
        slot = self.draw.choice(self.slots)
        key = self.held.pop(slot, 0)
        self.own.discard(slot)
        self.say(Said("discard", slot, key))
        self.store.discard(slot)
        self.say(Said("discarded", slot, key))


class Left:
    """Which blocks each slot may hold after a run's reports, and which it must.

    Attributes:
        may: for each slot the keys of which one may be found there.
        must: for each slot the key that must be, if there is one.
        checked: blocks with every byte compared.
    """

    def __init__(self, keeps_names: bool) -> None:
        self.keeps_names = keeps_names
        self.may: dict[int, set[int]] = {slot: set() for slot in range(SLOTS)}
        self.must: dict[int, int] = {}
        self.faults: list[str] = []
        self.checked = 0

    def copy(self) -> Left:
        other = Left(self.keeps_names)
        other.may = {slot: set(keys) for slot, keys in self.may.items()}
        other.must = dict(self.must)
        return other

    def hear(self, said: Said) -> None:
        event, slot, key = said
        if event == "fault":
            self.faults.append(f"slot {slot}: block {key} was lost, or other bytes were served, before the end")
        elif event == "written":
            self.may[slot], self.must[slot] = {key}, key
        elif event == "discarded":
            self.may[slot] = set() if self.keeps_names else self.may[slot]
        else:
            self.must.pop(slot, None)
            self.may[slot] |= {key} if event == "write" else set()

    def compare(self, store: DiskStore) -> None:
        """Read all blocks of a store, and some that it must not have; go on from the present ones."""
        number = {key_of(key): key for key in range(KEYS)}
        listed = {slot: number[key] for key, slot in store.blocks()}
        for slot in range(SLOTS):
            self._slot(store, slot, listed.get(slot))

    def _slot(self, store: DiskStore, slot: int, key: int | None) -> None:
        must, may = self.must.pop(slot, None), self.may[slot]
        found = None if key is None else read(store, slot, key)
        self.checked += found is not None
        if must is not None and (key != must or found is None):
            self.faults.append(f"slot {slot}: block {must} was acknowledged and is lost")
        if key is not None and key not in may:
            self.faults.append(f"slot {slot}: block {key} is back, which was not written there last")
        if key is not None and found not in (None, content_of(key)):
            self.faults.append(f"slot {slot}: block {key} has other bytes than were written")
        for other in (may | {(slot * 7) % KEYS}) - {key}:
            if read(store, slot, other) is not None:
                self.faults.append(f"slot {slot}: block {other} is served, but not listed")
        if key is not None or self.keeps_names:
            self.may[slot] = set() if key is None else {key}
        if found is not None and key is not None:
            self.must[slot] = key
