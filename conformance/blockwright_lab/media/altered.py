"""A directory with files that were altered while it was closed: every byte of every file, and other things as files.

A store works in a directory and is closed. Its files are altered: every byte in turn, and at random bits, ranges and
records that are flipped, zeroed, cut off, added, exchanged or copied, counts and lengths of extreme values (in records
under the right checksum as well), an older file in place of a newer one, files that are gone, are links, directories or
FIFOs, or that others may write to. Then it is opened, all it serves is compared, every place is written and read, and
it is opened once more. The laws of chapter `directory` define the permitted results.

Not covered: an attacker who forges blocks, checksums included, in a directory that only its owner can write to.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from blockwright.errors import InvalidArgumentError, StoreDirectoryError
from blockwright.offload.disk import DiskStore, check_store
from blockwright.offload.disk.files import LOCK, UNPUBLISHED
from blockwright.offload.disk.folder import HEADER
from blockwright.offload.disk.index import RECORD_SIZE
from blockwright.offload.disk.store import BLOCKS, INDEX, RECENCY
from blockwright_spec.offload.directory import (
    CHECKED_LAWS,
    DIRECTORY_LAWS,
    Altered,
    Checked,
    Place,
    Reopened,
    Served,
)

from .altering import FILES, RANDOM, STANDING, STRIDE, Before, Trial
from .blocks import BLOCK_BYTES, IDENTITY, KEYS, SLOTS, Work, content_of, key_of, parts_of, read
from .power import LOG, NotedStore, contents, lay_out

RUN: Final = "disk, files altered"
COUNTS: Final = {"quick": 300, "pr": 4_000, "nightly": 100_000}
"""Directories that are altered; more than half of them in one byte, in turn, so that nightly alters every byte."""

ENOUGH = 5
LONG: Final = 20.0
"""Seconds that nothing here takes."""

MEMORY: Final = Path("/dev/shm")

PER_DIRECTORY: Final = 50
"""Alterations of one directory, before another is made."""


# --- one directory


def made(path: Path, draw: random.Random) -> Before:
    earlier: dict[str, bytes] = {}
    for _ in range(2):
        with NotedStore(path, IDENTITY, BLOCK_BYTES, SLOTS) as store:
            Work(store, draw, range(SLOTS), range(KEYS), lambda said: None).run(15)
            held = store.blocks()
        earlier, files = (earlier or contents(path)), contents(path)
    number = {key_of(key): key for key in range(KEYS)}
    return Before(files, earlier, tuple((slot, number[key]) for key, slot in held))


def altered(trial: Trial) -> frozenset[Altered]:
    before, now = trial.before.files, trial.files
    found = {Altered.REST}
    if now.get(HEADER) != before[HEADER]:
        found.add(Altered.HEADER)
    if now.get(INDEX) != before[INDEX] or now.get(BLOCKS) != before[BLOCKS]:
        found.add(Altered.PLACE)
    if now.get(RECENCY) != before[RECENCY]:
        found.add(Altered.RECENCY)
    for name, kind in trial.kinds:
        if kind == "all_in_it":
            found.add(Altered.KIND)
        elif kind == "readable" or (kind == "open_to_all" and name not in now):
            continue
        elif UNPUBLISHED not in name:
            found.add(Altered.RECENCY if name == RECENCY else Altered.KIND)
    return frozenset(found)


def untouched(trial: Trial) -> frozenset[int]:
    index, blocks = trial.files.get(INDEX, b""), trial.files.get(BLOCKS, b"")
    before = trial.before
    return frozenset(
        slot
        for slot, key in before.held
        for first, at, size in ((slot * RECORD_SIZE, slot * STRIDE, len(content_of(key))),)
        if same(before.files[INDEX], index, first, RECORD_SIZE) and same(before.files[BLOCKS], blocks, at, size)
    )


def same(one: bytes, other: bytes, first: int, size: int) -> bool:
    """Return whether two files have the same bytes in a range; a file that ends before has zeros there."""
    return one[first : first + size].ljust(size, b"\0") == other[first : first + size].ljust(size, b"\0")


def laid_out(path: Path, trial: Trial) -> dict[str, tuple[int, int, bytes]]:
    """Make the directory, and beside it a file that must not be touched; return that file's content."""
    lay_out(path, trial.files)
    outside = path.with_name("outside")
    if not outside.exists():
        lay_out(outside, {"precious": b"precious data" * 100})
    for name, kind in trial.kinds:
        STANDING[kind](path / name, outside)
    return seen(outside)


def seen(outside: Path) -> dict[str, tuple[int, int, bytes]]:
    return {file.name: (file.stat().st_mode, file.stat().st_mtime_ns, file.read_bytes()) for file in outside.iterdir()}


def checked(path: Path, whole: frozenset[int]) -> Checked | None:
    """Check and repair a directory; None if it is refused."""
    try:
        found, again = check_store(path, repair=True), check_store(path)
    except (StoreDirectoryError, InvalidArgumentError):
        return None
    named, twice = (frozenset((*each.damaged_records, *each.damaged_blocks)) for each in (found, again))
    return Checked(whole, named, twice, 0)


def num_unreadable(store: DiskStore) -> int:
    sizes = {len(content_of(key)) for key in range(KEYS)}
    return sum(not any(store.get(key, at, parts_of(bytearray(size))) for size in sizes) for key, at in store.blocks())


def reopened(path: Path, trial: Trial, is_checked: bool) -> tuple[Reopened, Checked | None, int]:
    kept, whole = laid_out(path, trial), untouched(trial)
    check = checked(path, whole) if is_checked else None
    places = {
        slot: Place(frozenset((key_of(key),)), key_of(key) if slot in whole else None)
        for slot, key in trial.before.held
    }
    served, order, refused, renewed, private = frozenset[Served](), tuple[bytes, ...](), False, False, True
    try:
        store = NotedStore(path, IDENTITY, BLOCK_BYTES, SLOTS)
    except StoreDirectoryError as error:
        refused = str(path) in str(error)
    else:
        with store:
            order = tuple(key for key, _ in store.blocks())
            if check is not None:
                check = replace(check, unreadable=num_unreadable(store))
            served = frozenset(found(store, trial.before))
            fresh = [key for key in range(KEYS) if key_of(key) not in order][:SLOTS]
            items = [(key_of(key), slot, parts_of(content_of(key))) for slot, key in enumerate(fresh)]
            renewed = all(store.put_many(items)) and all_there(store, fresh)
            private = is_private(path, HEADER, INDEX, BLOCKS, LOCK)
        with NotedStore(path, IDENTITY, BLOCK_BYTES, SLOTS) as store:
            renewed = renewed and all_there(store, fresh)
            private = private and is_private(path, *FILES, LOCK)
    used = tuple(key_of(key) for slot, key in trial.before.held if slot in whole)
    empty = Place(frozenset(), None)
    if refused:
        check = None  # of whatever cache it is, a header says so of a check, but not of a store
    after = Reopened(
        places=tuple(places.get(slot, empty) for slot in range(SLOTS)),
        altered=altered(trial),
        refused=refused,
        served=served,
        used=used,
        order=order,
        renewed=renewed,
        private=private,
        outside=seen(path.with_name("outside")) != kept,
    )
    return after, check, len(served)


def found(store: DiskStore, before: Before) -> Iterator[Served]:
    keys = {slot: {key} for slot, key in before.held}
    number = {key_of(key): key for key in range(KEYS)}
    sizes = {len(content_of(key)) for _, key in before.held}
    for key, slot in store.blocks():
        if key in number:
            keys.setdefault(slot, set()).add(number[key])
        else:
            for size in sizes:
                data = bytearray(size)
                if store.get(key, slot, parts_of(data)):
                    yield Served(slot, key, None)
    for slot in range(SLOTS):
        for wanted in keys.get(slot, set()) | {(slot * 7) % KEYS}:
            if (content := read(store, slot, wanted)) is not None:
                yield Served(slot, key_of(wanted), key_of(wanted) if content == content_of(wanted) else None)


def all_there(store: DiskStore, keys: list[int]) -> bool:
    return all(read(store, slot, key) == content_of(key) for slot, key in enumerate(keys))


def is_private(path: Path, *names: str) -> bool:
    """Return whether a directory and those of these files that it has are their owner's alone."""
    modes = [(path / name).lstat().st_mode for name in names if os.path.lexists(path / name)]
    return stat.S_IMODE(path.stat().st_mode) == 0o700 and all(
        stat.S_IMODE(mode) == 0o600 for mode in modes if not stat.S_ISDIR(mode)
    )


@contextmanager
def in_time() -> Iterator[None]:
    """End what waits for ever, such as for the other side of a FIFO, with a `TimeoutError`."""

    def end(signum: int, frame: object) -> None:
        raise TimeoutError(f"not done in {LONG} seconds")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, LONG)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# --- the run


def planned(draw: random.Random, before: Before, number: int, count: int) -> Trial:
    trial = Trial(before, dict(before.files), draw)
    if number % 5 < 3:
        total = sum(len(before.files[name]) for name in FILES)
        at = (number // 5 * 3 + number % 5) * max(1, total * 5 // (count * 3)) % total
        for name in FILES:
            data = bytearray(before.files[name])
            if at < len(data):
                data[at] ^= draw.randrange(1, 256)
                trial.put(name, bytes(data), f"byte {at}")
                return trial
            at -= len(data)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        draw.choices(list(RANDOM), list(RANDOM.values()))[0](trial)
    return trial


def alterations(path: Path, count: int, seed: int) -> tuple[list[tuple[str, str]], dict[str, int]]:
    draw, faults = random.Random(seed), list[tuple[str, str]]()
    fired = dict.fromkeys(("blocks compared", "refused", "repaired", *(kind.name.lower() for kind in Altered)), 0)
    before = Before({}, {}, ())
    for number in range(count):
        if number % PER_DIRECTORY == 0:
            before = made(path / "made", draw)
            shutil.rmtree(path / "made")
        LOG.clear()
        trial = planned(draw, before, number, count)
        what = f"directory {number}, {', '.join(trial.done) or 'as it was'}"
        try:
            with in_time():
                after, check, compared = reopened(path / "altered", trial, number % 2 == 1)
        except Exception as error:
            faults.append(("DISK-5", f"{what}: {type(error).__name__}: {error}"))
        else:
            faults += [(law.id, f"{what}: {law.statement}") for law in DIRECTORY_LAWS if not law.holds(after)]
            faults += [(law.id, f"{what}: {law.statement}") for law in CHECKED_LAWS if check and not law.holds(check)]
            fired["blocks compared"] += compared
            fired["repaired"] += check is not None and bool(check.named)
            fired["refused"] += after.refused
            for kind in after.altered:
                fired[kind.name.lower()] += 1
        shutil.rmtree(path / "altered")
        if len(faults) >= ENOUGH:
            break
    return faults, fired


@contextmanager
def scratch(in_memory: bool = True) -> Iterator[Path]:
    where = MEMORY if in_memory and MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="blockwright-", dir=where) as folder:
        yield Path(folder)
