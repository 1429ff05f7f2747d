"""A statement about closed forms, as terms; what the chapters of theorems (``proof_*``) give and the gate proves."""

from typing import Any, NamedTuple


class Theorem(NamedTuple):
    """A statement, and the terms that say it: assumptions and what follows from them."""

    layer: str
    statement: str
    assumptions: list[Any]
    claim: Any
