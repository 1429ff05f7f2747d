"""Mutants of offloading's books that nothing can tell from the original, each with the reason."""

from .mutant_realm import Rule

EQUIVALENT: dict[str, str] = {}

RULES: tuple[Rule, ...] = ()
