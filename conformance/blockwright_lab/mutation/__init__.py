"""Mutants of the implementation: small wrong changes, each of which some check must notice."""
