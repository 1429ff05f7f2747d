"""A disk that stops: processes are killed while they write, power fails, and every byte that is left is compared.

A process writes, overwrites, reads and discards blocks at random in a directory, in one thread or two, and reports each
call before and after it. It is killed (SIGKILL) at a random moment, or before, in or after one of the calls that change
the disk, the making of the directory included. Then the directory is opened: each block that was acknowledged and not
being overwritten must be there, with all its bytes; where one was being overwritten, the old one, the new one or none
may be; and nothing else may be served. The next process goes on in the same directory.

A loss of power is played on a model of a disk (`offload_power`), since a killed process leaves its writes behind: the
same work is noted call by call, then for random calls a directory is made of data that the disk may have kept. The laws
are DISK-1 to DISK-3 of the specification's chapter `directory`; a third run alters files (`offload_altered`), under all
of its laws.

Not covered: disks that lose what they have synced, or damage data beside a write.
"""

from __future__ import annotations

import json
import logging
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from blockwright.errors import OffloadError
from blockwright.offload.disk import DiskStore
from blockwright_conformance.gates import GateResult

from . import altered as offload_altered
from . import lying
from .blocks import BLOCK_BYTES, IDENTITY, KEYS, SLOTS, Left, Said, Work
from .power import LOG, Call, Disk, NotedStore, contents, lay_out
from .victim import Plan

KILLS = {"quick": 10, "pr": 300, "nightly": 10_000}
FAILURES = {"quick": 40, "pr": 600, "nightly": 50_000}

LIVES = 12

RUNS = ("disk, processes killed", "disk, power lost", offload_altered.RUN, lying.RUN)


def crash(name: str, profile: str, seed: int = 0) -> GateResult:
    started, law = time.perf_counter(), ""
    with offload_altered.scratch(name == offload_altered.RUN) as folder, quiet():
        if name == offload_altered.RUN:
            count = offload_altered.COUNTS[profile]
            broken, fired = offload_altered.alterations(folder, count, seed)
            faults, law = [text for _, text in broken], next((law for law, _ in broken), "")
        elif name == lying.RUN:
            count = lying.LIVES[profile]
            faults, fired = lying.lives(folder, count, seed)
        else:
            count, stop = (KILLS[profile], kills) if name == RUNS[0] else (FAILURES[profile], failures)
            faults, fired = stop(folder, count, seed)
    return row(name, count, faults, fired, time.perf_counter() - started, law)


def row(name: str, count: int, faults: list[str], fired: dict[str, int], seconds: float, law: str = "") -> GateResult:
    laws = {"other bytes": "DISK-1", "is lost": "DISK-2"}
    law = law or next((law for text, law in laws.items() if faults and text in faults[0]), "DISK-3" if faults else "")
    compared, detail = fired["blocks compared"], "\n".join(faults[:5])
    return GateResult("faults", name, "DiskStore", count, compared, len(faults), seconds, law, detail, fired=fired)


@contextmanager
def quiet() -> Iterator[None]:
    log = logging.getLogger("blockwright.offload")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def compare(kind: type[DiskStore], path: Path, left: Left) -> None:
    try:
        with kind(path, IDENTITY, BLOCK_BYTES, SLOTS) as store:
            left.compare(store)
    except OffloadError as error:
        left.faults.append(f"what was acknowledged is lost: {error}")


# --- processes that are killed


def kills(folder: Path, count: int, seed: int) -> tuple[list[str], dict[str, int]]:
    draw = random.Random(seed)
    fired = {"blocks compared": 0, "killed": 0, "ended": 0, "torn": 0, "before": 0, "after": 0, "at any moment": 0}
    with victims() as (orders, said):
        left = Left(keeps_names=True)
        for life in range(count):
            if life % LIVES == 0:
                left, path = Left(keeps_names=True), folder / str(life)
            plan = planned(path, draw, life)
            orders.write(json.dumps(plan) + "\n")
            orders.flush()
            status = hear(said, left)
            fired["killed" if status == -9 else "ended"] += 1
            fired[plan.how if plan.call else "at any moment"] += 1
            if status not in (0, -9):
                left.faults.append(f"life {life}: the process failed with status {status}: {plan}")
            before = left.checked
            compare(DiskStore, path, left)
            fired["blocks compared"] += left.checked - before
            if left.faults:
                return [f"life {life}, {plan}: {fault}" for fault in left.faults], fired
    return [], fired


def planned(path: Path, draw: random.Random, life: int) -> Plan:
    call = draw.randrange(1, 12 if life % LIVES == 0 else 50) if draw.random() < 0.75 else 0
    how, threads = draw.choice(("before", "after", "torn")), 1 + life // LIVES % 2
    return Plan(str(path), draw.randrange(2**32), threads, draw.random() * 0.04, call, how)


@contextmanager
def victims() -> Iterator[tuple[IO[str], IO[str]]]:
    command = [sys.executable, "-m", "blockwright_lab.media.victim"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdin is None or process.stdout is None:
            raise AssertionError("both are pipes")
        try:
            yield process.stdin, process.stdout
        finally:
            with suppress(BrokenPipeError):
                process.stdin.close()


def hear(lines: IO[str], left: Left) -> int:
    for line in lines:
        event, *numbers = line.split()
        if event == "ended":
            return int(numbers[0])
        left.hear(Said(event, *map(int, numbers)))
    raise AssertionError("the process that starts the others has ended")


# --- power that fails


def failures(folder: Path, count: int, seed: int) -> tuple[list[str], dict[str, int]]:
    draw = random.Random(seed)
    fired = {"blocks compared": 0, "power lost": 0, "calls": 0}
    start, begun = dict[str, bytes](), Left(keeps_names=False)
    for number in range(count):
        if number % LIVES == 0:
            start, begun = {}, Left(keeps_names=False)
        if number % (LIVES // 3) == 0:  # three runs in each directory, each cut short several times
            log = noted(folder / f"noted {number}", start, draw.randrange(2**32))
        left, path = begun.copy(), folder / str(number)
        early = draw.random() < 0.2  # while the directory is opened
        played = log[: draw.randrange(12 if early else len(log) + 1)]
        lay_out(path, played_back(played, start, left).left(draw))
        compare(NotedStore, path, left)
        fired["power lost"] += 1
        fired["calls"] += len(played)
        fired["blocks compared"] += left.checked
        if left.faults:
            return [f"power lost {number}: {fault}" for fault in left.faults], fired
        if (number + 1) % (LIVES // 3) == 0:
            start, begun = contents(path), left.copy()
        shutil.rmtree(path)
    return [], fired


def noted(path: Path, start: dict[str, bytes], seed: int) -> list[Call]:
    lay_out(path, start)
    LOG.clear()
    with NotedStore(path, IDENTITY, BLOCK_BYTES, SLOTS) as store:
        work = Work(
            store, random.Random(seed), range(SLOTS), range(KEYS), lambda said: LOG.append(Call("said", said=said))
        )
        work.run(25)
    return list(LOG)


def played_back(calls: list[Call], start: dict[str, bytes], left: Left) -> Disk:
    disk = Disk(start)
    for call in calls:
        if call.said is not None:
            left.hear(call.said)
        else:
            disk.take(call)
    return disk
