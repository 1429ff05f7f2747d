"""Contracts, which CrossHair confirms for all integers or searches: on definitions, on closed forms, on steps."""
