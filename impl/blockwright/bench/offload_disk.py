"""The disk tier: bandwidth of a `DiskStore`, beside a plain program that writes and reads one file from end to end.

All sides move the same bytes, in blocks of one size, to and from files of their own on one disk, and take turns; the
median of the turns counts. A plain writer syncs once, at the end, or as often as the store acknowledges. Before a side
reads, the pages of its files are dropped from the system's cache; every block that is read is compared afterwards.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from blockwright._terminal import print_table
from blockwright.bench.measure import require
from blockwright.offload.checksum import CHECKSUMS
from blockwright.offload.disk import DiskStore
from blockwright.offload.identity import CacheIdentity
from blockwright.offload.media import Item

TARGET = 0.5
"""Least share of the bandwidth of the plain writer that syncs once."""

IDENTITY = CacheIdentity("model", "layout", "dtype", 16, b"")
PLAIN = "plain file, one sync"
PLAIN_OFTEN = "plain file, a sync for each {batch} blocks"
READ = "plain file, read"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what this benchmark can be told."""
    parser.add_argument("--blocks", metavar="N", type=int, default=64, help="blocks moved (default %(default)s)")
    parser.add_argument("--mib", metavar="N", type=int, default=8, help="MiB in a block (default %(default)s)")
    parser.add_argument("--batch", metavar="N", type=int, default=8, help="blocks in a call (default %(default)s)")
    parser.add_argument(
        "--folder", metavar="DIR", type=Path, help="on the disk to measure (default: the temporary one)"
    )


def run(args: argparse.Namespace) -> int:
    """Measure, print the table; return 1 if `--require` is given and the target is missed."""
    num_bytes = args.blocks * args.mib << 20
    written, found = memoryview(bytearray(os.urandom(num_bytes))), memoryview(bytearray(num_bytes))
    times: dict[str, list[float]] = {}
    for turn in range(args.repeat + 1):
        with tempfile.TemporaryDirectory(prefix="blockwright-bench-", dir=args.folder) as folder:
            for name, seconds in _turn(Path(folder), written, found, args):
                times.setdefault(name, [])
                if turn:  # a first turn is not counted
                    times[name].append(seconds)
    return _report(times, num_bytes, args)


def _turn(
    folder: Path, written: memoryview, found: memoryview, args: argparse.Namespace
) -> Iterator[tuple[str, float]]:
    """Let each side write, then read; give their times in seconds."""
    size, batch = args.mib << 20, args.batch
    often = PLAIN_OFTEN.format(batch=batch)
    yield PLAIN, _timed(partial(_write_plain, folder / "once", written, size, args.blocks))
    yield often, _timed(partial(_write_plain, folder / "often", written, size, batch))
    for name, count in ((f"put_many, {batch} blocks", batch), ("put", 1)):
        path = folder / name
        with DiskStore(path, IDENTITY, size, args.blocks) as store:
            items = list(_batches(written, size, count))
            yield name, _timed(partial(_put, store, items))
    yield READ, _read_plain(folder / "once", found, size)
    require(found == written)
    for name, count in ((f"put_many, {batch} blocks", batch), ("put", 1)):
        found[:] = bytes(len(found))
        with DiskStore(folder / name, IDENTITY, size, args.blocks) as store:
            items = list(_batches(found, size, count))
            _drop(folder / name / "blocks")
            yield f"{name.replace('put', 'get')}", _timed(partial(_get, store, items))
        require(found == written)


def _timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _batches(memory: memoryview, size: int, count: int) -> Iterator[list[Item]]:
    """Cut memory into blocks, so many in each call."""
    items: list[Item] = [
        (b"%d" % place, place, [memory[start : start + size]])
        for place, start in enumerate(range(0, len(memory), size))
    ]
    return (items[first : first + count] for first in range(0, len(items), count))


def _put(store: DiskStore, batches: list[list[Item]]) -> None:
    for items in batches:
        require(all(store.put_many(items)))


def _get(store: DiskStore, batches: list[list[Item]]) -> None:
    for items in batches:
        require(all(store.get_many(items)))


def _write_plain(path: Path, memory: memoryview, size: int, sync_every: int) -> None:
    """Write a new file from its begin to its end."""
    with open(path, "wb", buffering=0) as file:
        for number, start in enumerate(range(0, len(memory), size), 1):
            require(file.write(memory[start : start + size]) == size)
            if number % sync_every == 0 or start + size >= len(memory):
                os.fsync(file.fileno())


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


def _report(times: dict[str, list[float]], num_bytes: int, args: argparse.Namespace) -> int:
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    rows, is_missed = [], False
    for name, median in medians.items():
        base = medians[READ if name.startswith("get") or name == READ else PLAIN]
        judged = ["", ""]
        if name.startswith("put_many"):
            is_missed = base / median < TARGET
            judged = [f"{TARGET:g}", "MISSED" if is_missed else "met"]
        low, high = (num_bytes / extreme(times[name]) / 2**30 for extreme in (max, min))
        spread = f"{low:.2f} to {high:.2f}"
        rows.append([name, f"{num_bytes / median / 2**30:.2f}", spread, f"{base / median:.2f}", *judged])
    print_table(
        "Disk tier",
        ["moved", "GiB/s", "from to", "of plain", "target", ""],
        rows,
        f"{args.blocks} blocks of {args.mib} MiB, checksum {CHECKSUMS[0]}; medians of {args.repeat} interleaved "
        "repetitions, pages dropped before each read",
    )
    return int(args.require and is_missed)
