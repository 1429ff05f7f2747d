"""Processes that write to a disk until they are killed, forked off a small one that starts them: ``python -m`` this.

It reads a line for each (a `Plan` as JSON), forks, and writes what the fork says, line by line, then ``ended`` and its
exit status (-9 for one that was killed).
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar, NamedTuple, NoReturn, TypeVar

from blockwright.offload.disk import DiskStore
from blockwright.offload.disk.files import BlockFile, Folder

from .blocks import BLOCK_BYTES, IDENTITY, KEYS, SLOTS, Said, Work

T = TypeVar("T")

STEPS = 200


class Plan(NamedTuple):
    """What a process does, and when it is killed."""

    path: str
    seed: int
    threads: int
    delay: float
    call: int
    how: str
    """``before`` the call, ``after`` it, or ``torn``: half way."""


class Fate:
    """Counts the calls that change the disk, and ends the process at the one that the plan says."""

    plan: ClassVar[Plan] = Plan("", 0, 1, 0, 0, "")
    calls: ClassVar[int] = 0
    counting: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def meet(cls, call: Callable[[], T], half: Callable[[float], object]) -> T:
        """Make a call, if the process lives so long; `half` makes only a part of it."""
        with cls.counting:
            cls.calls += 1
            is_last = cls.calls == cls.plan.call
        if is_last and cls.plan.how == "torn":
            half(random.Random(cls.plan.seed).random())
        if is_last and cls.plan.how != "after":
            die()
        result = call()
        if is_last:
            die()
        return result


class DoomedFile(BlockFile):
    """A file whose process may end in each call; some calls write less than they were asked to."""

    def write_some(self, offset: int, parts: Sequence[memoryview]) -> int:
        data = b"".join(parts)

        def half(share: float) -> int:
            return super(DoomedFile, self).write_some(offset, [memoryview(data)[: int(share * len(data)) + 1]])

        is_short = Fate.calls % 5 == 0
        return Fate.meet(lambda: half(0.4) if is_short else super(DoomedFile, self).write_some(offset, parts), half)

    def sync_now(self) -> None:
        Fate.meet(super().sync_now, bool)

    def resize(self, size: int) -> None:
        Fate.meet(lambda: super(DoomedFile, self).resize(size), bool)


class DoomedFolder(Folder):
    """A folder whose process may end in each call."""

    file_class = DoomedFile

    def create(self, name: str, content: bytes) -> None:

        def half(share: float) -> None:
            (self.path / name).write_bytes(content[: int(share * len(content))])

        Fate.meet(lambda: super(DoomedFolder, self).create(name, content), half)

    def rename(self, name: str, to: str) -> None:
        Fate.meet(lambda: super(DoomedFolder, self).rename(name, to), bool)

    def sync(self) -> None:
        Fate.meet(super().sync, bool)


class DoomedStore(DiskStore):
    """A store whose process may end in each of its calls."""

    folder_class = DoomedFolder


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    while True:
        time.sleep(1)


def say(said: Said) -> None:
    """Tell whoever started the process; a line that was written is read, whatever happens then."""
    os.write(1, f"{said.event} {said.slot} {said.key}\n".encode())


def live(plan: Plan) -> None:
    """Open the store and work, in one thread or several with slots and keys of their own, until the end."""
    Fate.plan = plan
    with DoomedStore(Path(plan.path), IDENTITY, BLOCK_BYTES, SLOTS) as store:
        count = plan.threads
        works = [
            Work(store, random.Random(plan.seed + i), range(i, SLOTS, count), range(i, KEYS, count), say)
            for i in range(count)
        ]
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(lambda work: work.run(STEPS), works))


def start(plan: Plan) -> int:
    pid = os.fork()
    if not pid:
        status = 1
        try:
            live(plan)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    if not plan.call:
        time.sleep(plan.delay)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    logging.disable()
    for line in sys.stdin:
        status = start(Plan(*json.loads(line)))
        os.write(1, f"ended {status}\n".encode())


if __name__ == "__main__":
    main()
