"""To begin with, chapter 3: what a law is, in every part: a function that tells whether it holds.

A law of states is given a state. A law of steps, or of calls, is given the state before and what came of it.
"""

from collections.abc import Callable
from dataclasses import dataclass


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
