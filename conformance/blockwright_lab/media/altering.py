"""Alterations of the files of a directory: bytes, fields and records that change, and other things as files."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from blockwright.offload.checksum import checksum
from blockwright.offload.disk.files import LOCK, UNPUBLISHED
from blockwright.offload.disk.folder import HEADER
from blockwright.offload.disk.index import RECORD_SIZE
from blockwright.offload.disk.store import BLOCKS, INDEX, RECENCY

from .blocks import BLOCK_BYTES

FILES: Final = (HEADER, INDEX, RECENCY, BLOCKS)
STRIDE: Final = -(-BLOCK_BYTES // 4096) * 4096
UNITS: Final = {HEADER: 8, INDEX: RECORD_SIZE, RECENCY: 16, BLOCKS: STRIDE, LOCK: 8}
EXTREMES: Final = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
NO_NUMBERS: Final[tuple[Any, ...]] = (None, True, -1, 2**70, 1e308, "", "x" * 5000, [], {}, {"a": [{}]}, "\ud800")


@dataclass
class Before:
    """A directory that was closed in order: its files, those of an earlier time, and the blocks by last use."""

    files: dict[str, bytes]
    earlier: dict[str, bytes]
    held: tuple[tuple[int, int], ...]


@dataclass
class Trial:
    """Files to be altered, and their alterations."""

    before: Before
    files: dict[str, bytes]
    draw: random.Random
    done: list[str] = field(default_factory=list)
    kinds: list[tuple[str, str]] = field(default_factory=list)

    def put(self, name: str, content: bytes, what: str) -> None:
        self.files[name] = content
        self.done.append(f"{what} in {name}")


# --- what is done to bytes

Change = Callable[[bytes, random.Random, int], bytes]
"""Returns other bytes, of bytes and the size of a unit of theirs."""


def span(data: bytes, draw: random.Random) -> tuple[int, int]:
    first = draw.randrange(len(data) + 1)
    return first, min(len(data), first + draw.choice((1, 8, 16, 256, draw.randrange(len(data) + 1))))


def flipped(data: bytes, draw: random.Random, unit: int) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 20)) if data else 0):
        changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def filled(data: bytes, draw: random.Random, unit: int) -> bytes:
    first, last = span(data, draw)
    size = last - first
    return data[:first] + draw.choice((bytes(size), b"\xff" * size, draw.randbytes(size))) + data[last:]


def cut(data: bytes, draw: random.Random, unit: int) -> bytes:
    first, last = span(data, draw)
    return data[:first] + (data[last:] if draw.random() < 0.3 else b"")


def extended(data: bytes, draw: random.Random, unit: int) -> bytes:
    at = draw.choice((len(data), draw.randrange(len(data) + 1)))
    return data[:at] + draw.choice((bytes, draw.randbytes))(draw.choice((1, unit, 5000))) + data[at:]


def moved(data: bytes, draw: random.Random, unit: int) -> bytes:
    first, second = (draw.randrange(max(1, len(data) // unit)) * unit for _ in range(2))
    changed, one, other = bytearray(data), data[first : first + unit], data[second : second + unit]
    changed[second : second + unit] = one
    if draw.random() < 0.5:
        changed[first : first + unit] = other
    return bytes(changed)


CHANGES: Final[dict[str, Change]] = {
    "bits": flipped,
    "a range": filled,
    "a cut": cut,
    "more bytes": extended,
    "exchanged units": moved,
    "nothing left": lambda data, draw, unit: b"",
}


def change(trial: Trial) -> None:
    draw = trial.draw
    name = draw.choice((*FILES, INDEX, RECENCY, LOCK, RECENCY + UNPUBLISHED, HEADER + UNPUBLISHED))
    what, changed = draw.choice(list(CHANGES.items()))
    data = trial.files.get(name, draw.randbytes(draw.choice((0, 16, 500))))
    trial.put(name, changed(data, draw, UNITS.get(name, 16)), what)


def extreme(trial: Trial) -> None:
    """Let a field have an extreme value; of a record under the right checksum, where the field is a number."""
    draw, name = trial.draw, trial.draw.choice((HEADER, INDEX, RECENCY))
    data = bytearray(trial.files.get(name, b""))
    if name == HEADER:
        trial.put(name, extreme_header(trial.before.files[HEADER], draw), "an extreme field")
    elif name == RECENCY and len(data) >= 8:
        at = draw.randrange(len(data) // 8) * 8
        data[at : at + 8] = struct.pack("<Q", draw.choice(EXTREMES))
        trial.put(name, bytes(data), "an extreme field")
    elif name == INDEX and len(data) >= RECORD_SIZE:
        slot = draw.randrange(len(data) // RECORD_SIZE)
        record = data[slot * RECORD_SIZE : (slot + 1) * RECORD_SIZE]
        at, kind = draw.choice(((32, "<Q"), (40, "<Q"), (48, "<H")))
        struct.pack_into(kind, record, at, draw.choice(EXTREMES) & (0xFFFF if kind == "<H" else 2**64 - 1))
        if draw.random() < 0.7:
            named = json.loads(trial.before.files[HEADER])["checksum"]
            record[:16] = checksum(named, struct.pack("<Q", slot), [memoryview(record)[16:]])
        data[slot * RECORD_SIZE : (slot + 1) * RECORD_SIZE] = record
        trial.put(name, bytes(data), "an extreme field")


def extreme_header(data: bytes, draw: random.Random) -> bytes:
    found = json.loads(data)
    found[draw.choice(list(found))] = draw.choice((*NO_NUMBERS, *EXTREMES))
    return json.dumps(found).encode() if draw.random() < 0.9 else b"[" * 30_000


def older(trial: Trial) -> None:
    """Put an earlier file in the place of a later one. (Of the index it would be a file that was right once.)"""
    name = trial.draw.choice((RECENCY, BLOCKS))
    trial.put(name, trial.before.earlier[name], "an older file")


def gone(trial: Trial) -> None:
    name = trial.draw.choice(FILES)
    trial.files.pop(name, None)
    trial.done.append(f"{name} is gone")


# --- what stands in the place of a file


def instead(make: Callable[[Path, Path], object]) -> Callable[[Path, Path], None]:
    def put(path: Path, outside: Path) -> None:
        path.unlink(missing_ok=True)
        make(path, outside)

    return put


def open_to_all(path: Path, outside: Path) -> None:
    if path.exists():
        path.chmod(0o666)


def all_in_it(path: Path, outside: Path) -> None:
    path.parent.chmod(0o777)


def readable(path: Path, outside: Path) -> None:
    path.parent.chmod(0o755)
    if path.exists():
        path.chmod(0o644)


STANDING: Final[dict[str, Callable[[Path, Path], None]]] = {
    "link": instead(lambda path, outside: path.symlink_to(outside / "precious")),
    "dangling": instead(lambda path, outside: path.symlink_to(outside / "made")),
    "hard_link": instead(lambda path, outside: os.link(outside / "precious", path)),
    "fifo": instead(lambda path, outside: os.mkfifo(path)),  # which keeps whoever opens it waiting
    "folder": instead(lambda path, outside: path.mkdir()),
    "open_to_all": open_to_all,
    "all_in_it": all_in_it,
    "readable": readable,
}


def other_kind(trial: Trial) -> None:
    if trial.kinds:
        return
    name = trial.draw.choice((*FILES, LOCK, RECENCY + UNPUBLISHED, HEADER + UNPUBLISHED))
    trial.kinds.append((name, trial.draw.choice(list(STANDING))))
    trial.done.append(f"{trial.kinds[-1][1]} at {name}")


RANDOM: Final = {change: 60, extreme: 20, older: 4, gone: 4, other_kind: 12}
