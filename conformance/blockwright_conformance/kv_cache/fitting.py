"""Which scopes a manager can be put through, by what it declares that it can do.

A factory may carry its `Capabilities` as an attribute; without, the manager is taken to do everything.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from blockwright_spec.reads import Mamba

from ..capabilities import Capabilities, Needs
from .scopes import Scope, kind_and_lengths

FEATURES: dict[str, Callable[[Scope], object]] = {
    "caching": lambda scope: scope.config.caching,
    "uncached": lambda scope: not scope.config.caching,
    "eagle": lambda scope: scope.config.eagle,
    "overlaps": lambda scope: scope.config.added.overlaps,
    "settles": lambda scope: scope.config.added.settles,
    "watermark": lambda scope: scope.config.watermark,
    "events": lambda scope: scope.config.added.tells,
    "retention": lambda scope: scope.config.added.retains,
    "groups": lambda scope: len(scope.config.groups) > 1,
    "block sizes": lambda scope: len({group.block_size for group in scope.config.groups}) > 1,
    "drafts": lambda scope: scope.drafts or keeps_draft_states(scope),
    "lookahead": lambda scope: any(scope.lookaheads),
    "encoder": lambda scope: scope.encoder,
    "extra keys": lambda scope: any(extra for extra, _ in scope.prompts),
}
"""The words for features, and which scopes need them; those for calls are `scopes.CALLS`."""


def keeps_draft_states(scope: Scope) -> bool:
    """Return whether a recurrent layer keeps states of drafts."""
    return any(isinstance(group.kind, Mamba) and group.kind.drafts for group in scope.config.groups)


def needs_of(scope: Scope) -> Needs:
    """Return the needs of a scope: kinds of layers, optional calls, and features of its configuration and its steps."""
    kinds = [kind_and_lengths(group.kind)[0] for group in scope.config.groups]
    features = (word for word, is_needed in FEATURES.items() if is_needed(scope))
    return Needs(frozenset(kinds), frozenset(scope.calls), frozenset(features))


QUESTIONS = frozenset(("plan", "explain", "pin"))
"""Optional calls that change nothing: a manager without them is put through the scope without asking."""


def capabilities_of(factory: object) -> Capabilities | None:
    """Return what the managers of a factory can do, or None for everything.

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
    """Return a scope without the optional calls that a manager does not have."""
    return scope if capabilities is None else replace(scope, calls=scope.calls & capabilities.calls)


def fitting(scopes: Iterable[Scope], capabilities: Capabilities | None) -> list[Scope]:
    """Return the scopes that a manager can be put through whole, questions aside."""
    return [fitted(each, capabilities) for each in scopes if not lacking(each, capabilities)]


def walkable(scopes: Iterable[Scope], capabilities: Capabilities | None) -> list[Scope]:
    """Return the scopes that a manager can be put through once the engine leaves out calls that it does not have."""
    return fitting([fitted(each, capabilities) for each in scopes], capabilities)
