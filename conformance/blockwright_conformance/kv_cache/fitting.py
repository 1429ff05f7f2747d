"""Which scopes a manager can be put through, by what it declares that it can do.

A factory may carry its `Capabilities` as an attribute; without, the manager is taken to do everything.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from blockwright_spec.reads import Mamba

from ..capabilities import Capabilities, Needs, needs_of_words
from .scopes import Scope, layer_name


def needs_of(scope: Scope) -> Needs:
    """Give the needs of a scope: kinds of layers, optional calls, and features of its configuration and its steps."""
    config = scope.config
    kinds = [layer_name(group.kind).partition(" ")[0] for group in config.groups]
    states = any(isinstance(group.kind, Mamba) and group.kind.drafts for group in config.groups)
    features: dict[str, Any] = {
        "caching": config.caching,
        "uncached": not config.caching,
        "eagle": config.eagle,
        "overlaps": config.overlaps,
        "settles": config.settles,
        "watermark": config.watermark,
        "events": config.tells,
        "groups": len(config.groups) > 1,
        "block sizes": len({group.block_size for group in config.groups}) > 1,
        "drafts": scope.drafts or states,
        "lookahead": any(scope.lookaheads),
        "encoder": scope.encoder,
        "extra keys": any(extra for extra, _ in scope.prompts),
    }
    return needs_of_words(kinds, scope.calls, features)


FEATURES = (
    "caching",
    "uncached",
    "eagle",
    "overlaps",
    "settles",
    "watermark",
    "events",
    "groups",
    "block sizes",
    "drafts",
    "lookahead",
    "encoder",
    "extra keys",
)
"""The words for features; those for calls are `scopes.CALLS`."""


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
