"""The disk tier: bandwidth of a `DiskStore`, beside a plain program that writes and reads one file from end to end.

All sides move the same bytes, in blocks of one size, to and from new files of their own on one disk. They take turns,
another one first in each, and a share is the median of the shares within a turn: disks of rented machines are fast for
a burst and then several times slower, for everyone. A plain writer syncs once, at the end, or after each block. Before
a side reads, the pages of its files are dropped from the system's cache; what was read is compared afterwards.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.measure import require
from blockwright._terminal import print_table
from blockwright.offload.checksum import CHECKSUMS
from blockwright.offload.disk import DiskStore
from blockwright.offload.identity import CacheIdentity
from blockwright.offload.media import Item

TARGET = 0.5
"""Least share of the bandwidth of the plain writer that syncs once."""

IDENTITY = CacheIdentity("model", "layout", "dtype", 16, b"")
PLAIN = "plain file, one sync"
PLAIN_OFTEN = "plain file, a sync for each"
READ = "plain file, read"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--blocks", metavar="N", type=int, default=32, help="blocks moved (default %(default)s)")
    parser.add_argument("--mib", metavar="N", type=int, default=8, help="MiB in a block (default %(default)s)")
    parser.add_argument("--batch", metavar="N", type=int, default=16, help="blocks in a call (default %(default)s)")
    parser.add_argument(
        "--folder", metavar="DIR", type=Path, help="on the disk to measure (default: the temporary one)"
    )


def run(args: argparse.Namespace) -> int:
    num_bytes = args.blocks * args.mib << 20
    written, found = memoryview(bytearray(os.urandom(num_bytes))), memoryview(bytearray(num_bytes))
    turns: list[dict[str, float]] = []
    for number in range(args.repeat + 1):
        with tempfile.TemporaryDirectory(prefix="blockwright-bench-", dir=args.folder) as folder:
            turns.append(_turn(Path(folder), number, written, found, args))
    return _report(turns[1:], num_bytes, args)  # a first turn is not counted


def _turn(
    folder: Path, number: int, written: memoryview, found: memoryview, args: argparse.Namespace
) -> dict[str, float]:
    """Let each side write, then each side read, another one first in each turn; return the times in seconds."""
    size, batch = args.mib << 20, args.batch
    sides = {
        PLAIN: partial(_write_plain, folder / "plain", written, size, args.blocks),
        f"put_many of {batch}": partial(_put, folder / "many", written, size, batch),
        PLAIN_OFTEN: partial(_write_plain, folder / "often", written, size, 1),
        "put": partial(_put, folder / "one", written, size, 1),
    }
    readers = {
        READ: partial(_read_plain, folder / "plain", found, size),
        f"get_many of {batch}": partial(_get, folder / "many", found, size, batch),
        "get": partial(_get, folder / "one", found, size, 1),
    }
    times = {name: sides[name]() for name in _rotated(list(sides), number)}
    for name in _rotated(list(readers), number):
        found[:] = bytes(len(found))
        times[name] = readers[name]()
        require(found == written)
    return {name: times[name] for name in (*sides, *readers)}


def _rotated(names: list[str], number: int) -> list[str]:
    return names[number % len(names) :] + names[: number % len(names)]


def _batches(memory: memoryview, size: int, count: int) -> Iterator[list[Item]]:
    """Cut memory into blocks, so many in each call."""
    items: list[Item] = [
        (b"%d" % place, place, [memory[start : start + size]])
        for place, start in enumerate(range(0, len(memory), size))
    ]
    return (items[first : first + count] for first in range(0, len(items), count))


def _put(path: Path, memory: memoryview, size: int, count: int) -> float:
    """Write to a new store; return the seconds, without those of opening and closing it."""
    with DiskStore(path, IDENTITY, size, len(memory) // size) as store:
        begin = time.perf_counter()
        for items in _batches(memory, size, count):
            require(all(store.put_many(items)))
        return time.perf_counter() - begin


def _get(path: Path, memory: memoryview, size: int, count: int) -> float:
    """Read from a store; return the seconds, without those of opening and closing it."""
    with DiskStore(path, IDENTITY, size, len(memory) // size) as store:
        _drop(path / "blocks")
        begin = time.perf_counter()
        for items in _batches(memory, size, count):
            require(all(store.get_many(items)))
        return time.perf_counter() - begin


def _write_plain(path: Path, memory: memoryview, size: int, sync_every: int) -> float:
    """Write a new file from its begin to its end; return the seconds."""
    begin = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        for number, start in enumerate(range(0, len(memory), size), 1):
            require(file.write(memory[start : start + size]) == size)
            if number % sync_every == 0 or start + size >= len(memory):
                os.fsync(file.fileno())
    return time.perf_counter() - begin


def _read_plain(path: Path, memory: memoryview, size: int) -> float:
    """Read a file from its begin to its end; return the seconds."""
    _drop(path)
    begin = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        for start in range(0, len(memory), size):
            require(file.readinto(memory[start : start + size]) == size)
    return time.perf_counter() - begin


def _drop(path: Path) -> None:
    """Let the system forget what it has in memory of a file."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _report(turns: list[dict[str, float]], num_bytes: int, args: argparse.Namespace) -> int:
    rows, is_missed = [], False
    for name in turns[0]:
        base = READ if name.startswith("get") or name == READ else PLAIN
        share = statistics.median(turn[base] / turn[name] for turn in turns)
        judged = ["", ""]
        if name.startswith("put_many"):
            is_missed = share < TARGET
            judged = [f"{TARGET:g}", "MISSED" if is_missed else "met"]
        speeds = [num_bytes / turn[name] / 2**30 for turn in turns]
        spread = f"{min(speeds):.2f} to {max(speeds):.2f}"
        rows.append([name, f"{statistics.median(speeds):.2f}", spread, f"{share:.2f}", *judged])
    print_table(
        "Disk tier",
        ["moved", "GiB/s", "from to", "of plain", "target", ""],
        rows,
        f"{args.blocks} blocks of {args.mib} MiB, checksum {CHECKSUMS[0]}; medians of {args.repeat} interleaved "
        "repetitions, pages dropped before each read",
    )
    return int(args.require and is_missed)
