"""To begin with, chapter 3: laws, in every part: a law is a function that returns whether it holds.

A law of states is given a state. A law of steps, or of calls, is given the state before and what came of it. Two laws
are about every call of every part: a call may be ended from outside (memory runs out, or an interrupt comes), and it
may be given bytes that another program wrote, or damaged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Law:
    """A named law, of states or of steps, and where it comes from."""

    id: str
    holds: Callable[..., bool]
    statement: str
    source: str


def listed(holds: Callable[..., bool], source: str) -> Law:
    """Return the law that a function states: the first line of its docstring is the law's name and its sentence."""
    name, _, statement = (holds.__doc__ or "").partition("\n")[0].partition(": ")
    return Law(name, holds, statement, source)


@dataclass(frozen=True, slots=True)
class Ended:
    """A call that something else ended: the state before, the one after the whole call, and the one that is found.

    None is found where every later call is refused, and no block is handed out.
    """

    before: Any
    after: Any
    found: Any | None


def law_ended_call_is_whole(call: Ended) -> bool:
    """CALL-1: a call that is interrupted had its whole outcome or none, or no later call is served."""
    return call.found in (None, call.before, call.after)


def law_odd_bytes_are_refused(raised: type[BaseException] | None, named: tuple[type, ...], took_much: bool) -> bool:
    """CALL-2: bytes of others are read, or refused by an error that the reader names, at a bounded cost."""
    return not took_much and (raised is None or issubclass(raised, named))


CALL_LAWS = (listed(law_ended_call_is_whole, "Ctrl-C, `MemoryError`"), listed(law_odd_bytes_are_refused, "vLLM #42892"))
"""The laws of every call."""
