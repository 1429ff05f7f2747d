"""Mutants that nothing can tell from the original, by key, each with the reason. Not yet filled."""

EQUIVALENT: dict[str, str] = {}
