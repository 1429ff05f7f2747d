"""Mutants of the specification: small wrong changes, each of which the laws or the implementation must notice."""
