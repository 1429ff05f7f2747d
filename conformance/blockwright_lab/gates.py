"""The gates that the lab adds to `blockwright conform` (entry point `blockwright.gates`): those of `gates.toml`."""

from pathlib import Path

from blockwright_conformance.gates import gates_of

GATES = gates_of(__package__, Path(__file__).with_suffix(".toml"))
