"""The gates that the lab adds to `blockwright conform` (entry point `blockwright.gates`): those of `gates.toml`."""

import tomllib
from pathlib import Path
from typing import Any

from blockwright_conformance.gates import Gate, Way


def gate(name: str, module: str, ways: list[Any], needs: tuple[str, ...] = (), quick: bool = False) -> Gate:
    lines = tuple(Way(line, tuple(kinds), *words) for line, kinds, *words in ways)
    return Gate(name, f"{__package__}.{module}", lines, tuple(needs), quick)


GATES = tuple(
    gate(**row) for row in tomllib.loads(Path(__file__).with_name("gates.toml").read_text(encoding="utf-8"))["gate"]
)
"""In the order in which the command runs them, after the kit's own."""
