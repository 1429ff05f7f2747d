"""A disk that lies while it serves, under a tier that is stopped at any step: no wrong byte comes, whatever it does.

A life is a tier over a directory, from its opening to a stop at some step: a crash, which leaves all as it is, or
a close. Meanwhile calls of the disk go wrong: writes are lost, torn, turned or land in another block's place and are
reported as done; reads give older bytes, another block's, turned ones; either is an error, or the disk is full; syncs
fail. The next life goes on in the same directory. At last the disk is honest again, and each place takes a block and
keeps it. A life is named by its seed, so that `Random(seed)` plays it again.

Not covered: a header that lies (`altered`); a loss of power (`power`). A clock that jumps has no run: a `DiskStore`
reads none, and orders its blocks by a count.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import ClassVar

from blockwright.errors import OffloadError
from blockwright.offload.disk import DiskBackend, DiskStore
from blockwright.offload.disk.files import BlockFile, Folder
from blockwright.offload.disk.store import stride_of
from blockwright.offload.tiers.lru import LRUOffloadingManager

from .blocks import BLOCK_BYTES, IDENTITY, KEYS, SLOTS, content_of, key_of, parts_of

RUN = "disk, lies while it serves"
LIVES = {"quick": 60, "pr": 1_500, "nightly": 100_000}
IN_A_ROW = 8
"""Lives in one directory."""
WRITES = "lost torn turned misdirected failed full".split()
READS = "stale misdirected turned failed".split()


class Liar:
    """The next fault of `share` of the calls, and how often each has happened."""

    def __init__(self) -> None:
        self.draw, self.share, self.fired = Random(0), 0.0, Counter[str]()

    def chosen(self, what: str, names: Sequence[str]) -> str:
        if self.draw.random() >= self.share:
            return ""
        name = self.draw.choice(names)
        self.fired[f"{what} {name}"] += 1
        return name


LIAR = Liar()
"""That of the files of this module; one store is used at a time, by one thread."""


class LyingFile(BlockFile):
    """A file of a disk that lies, as `LIAR` says."""

    def write_some(self, offset: int, parts: Sequence[memoryview]) -> int:
        data, draw = bytearray(b"".join(parts)), LIAR.draw
        match LIAR.chosen("write", WRITES):
            case "lost":
                return len(data)
            case "torn":
                first, last = sorted((draw.randrange(len(data) + 1), draw.randrange(len(data) + 1)))
                if first < last:
                    super().write_some(offset + first, [memoryview(data)[first:last]])
                return len(data)
            case "turned":
                data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
                return super().write_some(offset, [memoryview(data)])
            case "misdirected":
                super().write_some(elsewhere(self.name, offset, draw), [memoryview(data)])
                return len(data)
            case "failed" | "full" as how:
                raise OSError(errno.ENOSPC if how == "full" else errno.EIO, "a fault")
        old = bytearray(len(data))
        if super().read(offset, [memoryview(old)]):
            OLDER[self.name, offset] = bytes(old)
        return super().write_some(offset, parts)

    def read(self, offset: int, into: Sequence[memoryview]) -> bool:
        how, draw = LIAR.chosen("read", READS), LIAR.draw
        if how == "failed":
            raise OSError(errno.EIO, "a fault")
        whole = super().read(elsewhere(self.name, offset, draw) if how == "misdirected" else offset, into)
        if how == "stale" and (old := OLDER.get((self.name, offset))):
            for part in into:
                part[: len(old)] = old[: len(part)]
                old = old[len(part) :]
        elif how == "turned":
            part = draw.choice([part for part in into if part.nbytes])
            part[draw.randrange(len(part))] ^= 1 << draw.randrange(8)
        return whole

    def sync_now(self) -> None:
        if LIAR.chosen("sync", ["failed"]):
            raise OSError(errno.EIO, "a fault")


OLDER: dict[tuple[str, int], bytes] = {}
"""The bytes of a place of a file before its last write."""


def elsewhere(name: str, offset: int, draw: Random) -> int:
    """Return where another block, or its record, has what this one has at an offset."""
    unit = stride_of(BLOCK_BYTES) if name == "blocks" else 256
    return draw.randrange(SLOTS) * unit + offset % unit


class LyingFolder(Folder):
    """The directory of a disk that lies."""

    file_class = LyingFile

    def sync(self) -> None:
        """Do nothing: no power is lost here."""


class LyingStore(DiskStore):
    """A store on a disk that lies."""

    folder_class: ClassVar[type[Folder]] = LyingFolder


def lives(folder: Path, count: int, seed: int = 0) -> tuple[list[str], dict[str, int]]:
    """Live `count` lives; return the faults, each with the seed of its life, and how often each event happened."""
    fired, LIAR.fired = Counter[str]({"blocks compared": 0, "bytes read": 0, "refused": 0}), Counter()
    for life in range(count):
        path, number = folder / str(life // IN_A_ROW), seed * 1_000_003 + life
        LIAR.draw = draw = Random(number)
        LIAR.share = draw.choice((0.02, 0.1, 0.5))
        faults = [f"life {number}: {fault}" for fault in lived(path, draw, fired)]
        LIAR.share = 0.0
        if not faults and (life % IN_A_ROW == IN_A_ROW - 1 or life == count - 1):
            faults = [f"lives up to {number}: {fault}" for fault in honest(path, fired)]
        if faults:
            return faults, {**fired, **LIAR.fired}
    return [], {**fired, **LIAR.fired}


def lived(path: Path, draw: Random, fired: Counter[str]) -> list[str]:
    """Live one life up to a stop at some step."""
    try:
        store = LyingStore(path, IDENTITY, BLOCK_BYTES, SLOTS)
    except OffloadError:  # the disk failed while it was opened
        fired["refused"] += 1
        return []
    tier, faults = LRUOffloadingManager(DiskBackend(16, store)), list[str]()
    for _ in range(draw.randrange(25)):
        (write if draw.random() < 0.6 else read)(tier, store, draw, fired, faults)
    tier.check()
    if draw.random() < 0.7:
        store._is_closed = True  # the process has ended
        store._close_files()
        fired["crashes"] += 1
    else:
        store.close()
    return faults


def write(tier: LRUOffloadingManager, store: DiskStore, draw: Random, fired: Counter[str], faults: list[str]) -> None:
    """Store some blocks, as a chain does."""
    keys = draw.sample(range(KEYS), draw.randrange(1, 4))
    output = tier.prepare_store([key_of(key) for key in keys])
    if output is None or not output.block_hashes_to_store:
        return
    numbers = {key_of(key): key for key in keys}
    places = zip(output.block_hashes_to_store, output.store_spec.block_ids, strict=True)  # type: ignore[attr-defined]
    items = [(key, place, parts_of(content_of(numbers[key]))) for key, place in places]
    done = [False] * len(items)
    with suppress(OffloadError):
        done = store.put_many(items)
    for (key, _, _), is_written in zip(items, done, strict=True):
        tier.complete_store([key], is_written)


def read(tier: LRUOffloadingManager, store: DiskStore, draw: Random, fired: Counter[str], faults: list[str]) -> None:
    """Read a block that the tier has."""
    if there := tier.recency():
        compare(tier, store, draw.choice(there), fired, faults)


def compare(tier: LRUOffloadingManager, store: DiskStore, name: bytes, fired: Counter[str], faults: list[str]) -> None:
    """Load a block, and compare each byte."""
    (place,) = tier.prepare_load([name]).block_ids  # type: ignore[attr-defined]
    number = next(key for key in range(KEYS) if key_of(key) == name)
    data, found = bytearray(len(content_of(number))), False
    with suppress(OSError, OffloadError):
        found = store.get(name, place, parts_of(data))
    tier.complete_load([name], found)
    fired["blocks compared"] += found
    fired["bytes read"] += len(data) if found else 0
    if found and data != content_of(number):
        faults.append(f"place {place}: block {number} has other bytes than were written")


def honest(path: Path, fired: Counter[str]) -> list[str]:
    """Open the directory on an honest disk: every block that is found is right, and each place takes a new one."""
    faults: list[str] = []
    with DiskStore(path, IDENTITY, BLOCK_BYTES, SLOTS) as store:
        tier = LRUOffloadingManager(DiskBackend(16, store))
        for name in tier.recency():
            compare(tier, store, name, fired, faults)
        for place in range(SLOTS):
            store.put(key_of(place), place, parts_of(content_of(place)))
    with DiskStore(path, IDENTITY, BLOCK_BYTES, SLOTS) as store:
        tier = LRUOffloadingManager(DiskBackend(16, store))
        if len(tier.recency()) < SLOTS:
            faults.append("a place took no block after the disk was honest again")
        for name in tier.recency():
            compare(tier, store, name, fired, faults)
    return faults
