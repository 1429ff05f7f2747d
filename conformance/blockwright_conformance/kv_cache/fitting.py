"""Which scopes a manager can be put through, by what it declares that it can do.

A factory may carry its `Capabilities` as an attribute; without, the manager is taken to do everything.
"""

from collections.abc import Iterable
from dataclasses import replace

from ..capabilities import Capabilities
from .needs import needs_of
from .scopes import Scope

QUESTIONS = frozenset(("plan", "explain", "pin"))
"""Optional calls that change nothing: a manager without them is put through the scope without asking."""


def capabilities_of(factory: object) -> Capabilities | None:
    """Give what the managers of a factory can do, or None for everything.

    Raises:
        ValueError: what it declares is no `Capabilities`.
    """
    declared = getattr(factory, "capabilities", None)
    if declared is not None and not isinstance(declared, Capabilities):
        raise ValueError(f"capabilities: expected a Capabilities, not {declared!r}")
    return declared


def lacking(scope: Scope, capabilities: Capabilities | None) -> list[str]:
    """Name what a scope needs and a manager cannot do; nothing if it can be put through it."""
    if capabilities is None:
        return []
    needs = needs_of(scope)
    return capabilities.lacks(replace(needs, calls=needs.calls - QUESTIONS))


def fitted(scope: Scope, capabilities: Capabilities | None) -> Scope:
    """Give a scope without the optional calls that a manager does not have."""
    return scope if capabilities is None else replace(scope, calls=scope.calls & capabilities.calls)


def fitting(scopes: Iterable[Scope], capabilities: Capabilities | None) -> list[Scope]:
    """Give the scopes that a manager can be put through whole, questions aside."""
    return [fitted(each, capabilities) for each in scopes if not lacking(each, capabilities)]


def walkable(scopes: Iterable[Scope], capabilities: Capabilities | None) -> list[Scope]:
    """Give the scopes that a manager can be put through once the engine leaves out the calls that it does not have."""
    return fitting([fitted(each, capabilities) for each in scopes], capabilities)
