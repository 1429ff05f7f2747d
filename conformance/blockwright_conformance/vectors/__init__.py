"""Vectors for managers in any language: calls, answers and states, as ``docs/reference/vectors.md`` has them."""
