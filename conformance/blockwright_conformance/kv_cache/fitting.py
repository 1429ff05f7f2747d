"""Which scopes a manager can run, by its declared abilities.

A scope that needs a kind of layer or a feature of its configuration that is not declared is left out. Everything else
that is not declared is left out *of* the scope: the engine does not make the call, drafts no token, sends no salt.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import Any

from blockwright_spec.reads import Mamba

from ..capabilities import Capabilities
from .scopes import FILE, Scope, kind_and_lengths, option


def has(name: str, scope: Scope) -> bool:
    return bool(option(scope.config, name))


OPTIONS = {each: each for each in ("caching", "eagle", "overlaps", "settles", "watermark", "counts")} | {
    "key lookahead": "key_lookahead", "events": "tells", "retention": "retains", "keeping": "keeps", "units": "unit",
}  # fmt: skip
"""Features that an option of a configuration turns on."""

FEATURES: dict[str, Callable[[Scope], object]] = {
    **{name: partial(has, field) for name, field in OPTIONS.items()},
    "uncached": lambda scope: not scope.config.caching,
    "groups": lambda scope: len(scope.config.groups) > 1,
    "block sizes": lambda scope: len({group.block_size for group in scope.config.groups}) > 1,
    "drafts": lambda scope: scope.drafts or keeps_draft_states(scope),
    "lookahead": lambda scope: any(scope.lookaheads),
    "encoder": lambda scope: scope.encoder,
    "extra keys": lambda scope: any(extra for extra, _ in scope.prompts),
}

NAMES: dict[str, dict[str, str]] = {what: FILE[what] for what in ("kinds", "calls", "features")}
"""Everything that a manager may declare, with its meaning."""


def keeps_draft_states(scope: Scope) -> bool:
    return any(isinstance(group.kind, Mamba) and group.kind.drafts for group in scope.config.groups)


def needs_of(scope: Scope) -> Capabilities:
    kinds = [kind_and_lengths(group.kind)[0] for group in scope.config.groups]
    features = (word for word, is_needed in FEATURES.items() if is_needed(scope))
    return Capabilities(frozenset(kinds), frozenset(scope.calls), frozenset(features))


QUESTIONS = frozenset(("plan", "explain", "pin"))
"""Optional calls that change nothing: a manager without them is put through the scope without asking."""


UNDECLARED = Capabilities(
    frozenset(NAMES["kinds"]), frozenset(NAMES["calls"]) - {"forget"}, frozenset(NAMES["features"]),
    absent={"forget": "the adapter has no method `unlearn`"},
)  # fmt: skip
"""The abilities of a manager that declares none: everything that there was before one had to declare a call."""


def capabilities_of(factory: object) -> Capabilities | None:
    """Return the abilities of a factory's managers, or None for all.

    A factory without a declaration is put through scopes with "forget" only if it is a class with a method `unlearn`.

    Raises:
        ValueError: its declaration is no `Capabilities`, or has an unknown name.
    """
    declared = getattr(factory, "capabilities", None)
    if declared is not None and not isinstance(declared, Capabilities):
        raise ValueError(f"capabilities: expected a Capabilities, not {declared!r}")
    if declared is not None:
        check_names(declared)
    return UNDECLARED if declared is None and not hasattr(factory, "unlearn") else declared


def check_names(declared: Capabilities) -> None:
    """Raise a ValueError that gives the nearest known name for each unknown one."""
    wrong = []
    for what, known in NAMES.items():
        names = getattr(declared, what)
        if isinstance(names, str):
            raise ValueError(f"capabilities: {what}: expected a set of names, not the text {names!r}")
        wrong += [
            f"{name!r} is none of the {what} ({hint(name, known)})"
            for name in sorted(frozenset(names) - known.keys(), key=str)
        ]
    if wrong:
        raise ValueError(f"capabilities: {', '.join(wrong)}")


def hint(name: object, known: Iterable[str]) -> str:
    near = get_close_matches(str(name), sorted(known), n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"


def lacking(scope: Scope, capabilities: Capabilities | None) -> list[str]:
    """Name the abilities that a scope needs and a manager lacks; empty if it can run the scope."""
    if capabilities is None:
        return []
    needs = needs_of(scope)
    return capabilities.lacks(replace(needs, calls=needs.calls - QUESTIONS))


def fitted(scope: Scope, capabilities: Capabilities | None) -> Scope:
    """Return a scope without the calls, drafts, lookahead, extra keys and watermark that a manager does not declare."""
    if capabilities is None:
        return scope
    can = capabilities.features
    changes: dict[str, Any] = {"calls": scope.calls & capabilities.calls}
    if "drafts" not in can:
        changes["drafts"] = 0
    if "lookahead" not in can:
        changes["lookaheads"] = (0,)
    if "extra keys" not in can:
        changes["prompts"] = tuple(dict.fromkeys((0, tokens) for _, tokens in scope.prompts))
    if "watermark" not in can:
        changes["config"] = replace(scope.config, watermark=0)
    dropped = sorted(scope.calls - capabilities.calls - QUESTIONS)
    return replace(scope, name=scope.name + (f", without {' '.join(dropped)}" if dropped else ""), **changes)


def fitting(scopes: Iterable[Scope], capabilities: Capabilities | None) -> list[Scope]:
    """Return what can be run of some scopes, each fitted; one that asks no more than another is not run twice."""
    if capabilities is UNDECLARED:
        return [each for each in scopes if "forget" not in each.calls]
    able = [each for scope in scopes if not lacking(each := fitted(scope, capabilities), capabilities)]
    if capabilities is None:
        return able
    asked: dict[Scope, list[frozenset[str]]] = {}
    kept = set()
    for each in sorted(able, key=lambda each: len(each.calls), reverse=True):
        sets = asked.setdefault(replace(each, name="", calls=frozenset()), [])
        if not any(each.calls <= calls for calls in sets):
            sets.append(each.calls)
            kept.add(each.name)
    return [each for each in able if each.name in kept]
