"""Which known bugs corrupt data, and the world that shows each of them; and why the others do not (`shown.toml`)."""

import tomllib
from pathlib import Path

TABLES: dict[str, dict[str, list[str]]] = tomllib.loads(
    Path(__file__).with_name("shown.toml").read_text(encoding="utf-8")
)

SHOWN: dict[str, str] = {bug: world for world, bugs in TABLES["shown"].items() for bug in bugs}
"""By id, the world of `worlds` in which the bug is caught."""

HARMLESS: dict[str, str] = {bug: why for why, bugs in TABLES["harmless"].items() for bug in bugs}
"""By id: whatever goes wrong, what the model reads stays right."""
