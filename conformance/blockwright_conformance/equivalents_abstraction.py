"""Mutants of the abstraction that nothing can tell from the original, each with the reason."""

EQUIVALENT: dict[str, str] = {}
