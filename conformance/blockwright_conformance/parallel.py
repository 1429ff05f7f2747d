"""Runs one function on many arguments in several processes, and ends them all when it is interrupted."""

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import active_children, get_context
from typing import Any, TypeVar

R = TypeVar("R")


def in_parallel(function: Callable[..., R], calls: Sequence[tuple[Any, ...]], jobs: int) -> Iterator[tuple[int, R]]:
    """Give the results of the calls as they come, each with the index of its call; one job runs them right here."""
    if jobs == 1:
        for index, call in enumerate(calls):
            yield index, function(*call)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=leave_interrupts) as pool:
        futures = {pool.submit(function, *call): index for index, call in enumerate(calls)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in active_children():
                process.terminate()
            raise


def leave_interrupts() -> None:
    """Leave Ctrl-C to the process that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
