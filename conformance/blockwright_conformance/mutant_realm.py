"""Realms of mutants: which sources are mutated, where they are at work, and what nothing can tell from the original."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .exhibit import Where


@dataclass(frozen=True, slots=True)
class Rule:
    """A family of equivalent mutants: those whose keys match all of a regular expression, and the one reason."""

    pattern: str
    reason: str

    def holds(self, key: str) -> bool:
        """Tell whether a mutant belongs to the family."""
        return re.fullmatch(self.pattern, key, re.DOTALL) is not None


@dataclass(frozen=True, slots=True)
class Realm:
    """A part of the implementation whose mutants are looked for in the same places."""

    name: str
    files: tuple[str, ...]
    """The sources that are mutated, by their path in the package."""
    places: tuple[Where, ...]
    """Where a mutant may show itself."""
    equivalent: Mapping[str, str]
    """Mutants that nothing can tell from the original, by key, with a reason that can be checked."""
    rules: tuple[Rule, ...]
    """Families of such mutants."""
    left_out: Mapping[str, str]
    """What is not mutated: a function, a class, or ``guards of`` a function, with the reason."""
    tests: tuple[str, ...] = ()
    """Files of unit tests, for mutants that no place executes or notices: see `mutant_tests`."""

    def excuse(self, key: str) -> str:
        """Give the reason why a mutant is listed as equivalent; empty if it is not."""
        return self.equivalent.get(key) or next((rule.reason for rule in self.rules if rule.holds(key)), "")


def title_of(where: Where) -> str:
    """Give the name of a place."""
    if callable(where):
        return f"trial: {where.__name__}"
    adapter = getattr(where, "adapter", None)
    name = adapter.__name__.removesuffix("Adapter").lower() if adapter else "variant"
    config = getattr(where.scope, "config", None)
    quiet = "" if getattr(config, "caching", True) else ", uncached"
    eagle = ", eagle" if getattr(config, "eagle", False) else ""
    return where.scope.name + quiet + eagle + (f", {name}" if name != "variant" else "")
