"""Gate 4, mutants."""

import gc
import resource
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Self

from .exhibit import Place, Trial
from .explore import Explorer
from .mutant_scopes import WHERE
from .mutation import parsed
from .variants import load
from .watched import adapter_on

SECONDS = 0.5
"""Processor time that one action on a mutant may take; a thousand times what it takes otherwise."""
MEMORY = 3 << 30


class OutOfTime(BaseException):
    """A mutant runs on and on."""


@contextmanager
def watch() -> Iterator[None]:
    """Let nothing run for longer than `SECONDS` without setting the watch again."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGVTALRM, stop)
    try:
        rearm()
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def rearm() -> None:
    """Start the watch anew."""
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)


class Limited:
    """An adapter whose every copy, made before each action, starts the watch anew."""

    def copy(self) -> Self:
        """Return an independent copy."""
        rearm()
        return super().copy()  # type: ignore[misc,no-any-return]


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a mutant: who killed it (None: it lives), after how many transitions, and how."""

    key: str
    killer: str | None
    transitions: int
    seconds: float
    how: str = ""


def title_of(where: Place | Trial) -> str:
    return where.scope.name if isinstance(where, Place) else f"trial of {where.__name__}"


memory: dict[str, list[int]] = defaultdict(lambda: list(range(len(WHERE))))


def fate_of(file: str, function: str, key: str) -> Fate:
    """Look for a fault of one mutant in every place until one shows it; its function's last killer comes first."""
    started, transitions = time.perf_counter(), 0
    order = memory[f"{file} {function}"]
    try:
        with watch():
            package = load({file: parsed(file).compiled(key)})
    except (Exception, OutOfTime) as error:
        return Fate(key, "import", 0, time.perf_counter() - started, f"{type(error).__name__}: {error}")
    for number in list(order):
        where = WHERE[number]
        how, steps = verdict(where, package)
        transitions += steps
        if how:
            order.remove(number)
            order.insert(0, number)
            return Fate(key, title_of(where), transitions, time.perf_counter() - started, how)
    return Fate(key, None, transitions, time.perf_counter() - started)


def verdict(where: Place | Trial, package: Any) -> tuple[str, int]:
    """Say how a place shows that a package is wrong, if it does."""
    explorer = None
    gc.disable()
    try:
        with watch():
            if not isinstance(where, Place):
                fault = next(where(package), None)
                return (f"{fault.law}: {fault.detail}" if fault else ""), 0
            base = adapter_on(package, where.adapter)
            explorer = Explorer(where.scope, type(base.__name__, (Limited, base), {}), laws=())
            result = explorer.run()
            found = result.violation
            return (f"{found.law}: {found.detail}" if found else ""), result.transitions
    except OutOfTime:
        how = "runs on and on"
    except Exception as error:
        how = f"{type(error).__name__}: {error}"
    finally:
        gc.enable()
    return how, explorer.result.transitions if explorer else 0


def limit_memory() -> None:
    """Let a mutant that fills the memory fail instead."""
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
