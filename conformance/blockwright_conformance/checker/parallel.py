"""Runs one function on many arguments in several processes, and ends them all when it is interrupted."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from blockwright._terminal import Advance

from .compiled import first_on_path

R = TypeVar("R")


def in_parallel(
    function: Callable[..., R], calls: Sequence[tuple[Any, ...]], jobs: int, explorer: Path | None = None
) -> Iterator[tuple[int, R]]:
    """Yield the results of the calls as they come, each with the index of its call; one job runs them right here.

    With a folder of `compiled` as `explorer` they run in separate processes, which import the kit from there.
    """
    if jobs == 1 and explorer is None:
        for index, call in enumerate(calls):
            yield index, function(*call)
        return
    workers = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=leave_interrupts)
    with workers as pool, interrupts() as came, first_on_path(explorer):
        try:
            with interrupts_held_back():
                futures = {pool.submit(function, *call): index for index, call in enumerate(calls)}
            for future in as_completed(futures):
                if came:
                    raise KeyboardInterrupt
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in active_children():
                process.terminate()
            raise


def in_order(
    work: Callable[..., R],
    calls: Sequence[tuple[Any, ...]],
    names: Sequence[str],
    jobs: int,
    progress: Advance,
    explorer: Path | None = None,
    seen: Callable[[R], object] = id,
) -> list[R]:
    """Make calls, report the name of each part that has ended, and return the results in order; `seen` gets each."""
    found: dict[int, R] = {}
    for index, result in in_parallel(work, calls, jobs, explorer):
        found[index] = result
        seen(result)
        progress(1, names[index])
    return [found[index] for index in range(len(calls))]


@contextmanager
def interrupts() -> Iterator[list[int]]:
    """Return a list that remembers interrupts: one that comes while an object is finalised would be lost."""
    came: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before in (signal.SIG_IGN, None):
        yield came
        return
    signal.signal(signal.SIGINT, remember)
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Have no interrupt until the end of the block, nor in the processes that it starts, until they leave interrupts.

    A process inherits blocked signals; before its first line runs, an interrupt would end it with a traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
