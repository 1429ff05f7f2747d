"""Counterexamples as calls: lines of Python over public names, to be pasted at a prompt."""

from collections.abc import Sequence
from typing import Any

from .world import M, S, World


def script(world: World[S, M], actions: Sequence[Any], fault: str = "") -> str:
    """Return the calls of a history from a new model, and as comments what was wrong at its end."""
    lines, state = world.opening(), world.initial()
    for action in actions:
        outcome = world.meaning(state, action)
        lines += world.lines(state, action, outcome)
        state = outcome.state
    return "\n".join([*lines, *(f"# {line}" for line in fault.split("; ") if line)])
