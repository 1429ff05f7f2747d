"""The small worlds in which known bugs show (`places.toml`), by name."""

import tomllib
from pathlib import Path
from typing import Any

from .. import scopes
from . import instrumented
from .known_bug import Place

ROWS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("places.toml").read_text(encoding="utf-8"))
ADAPTERS = ROWS.pop("adapters")

PLACES = {
    name: Place(scopes.scope(part, row), getattr(instrumented, ADAPTERS.get(name, "VariantAdapter")))
    for part, rows in ROWS.items()
    for name, row in rows.items()
}
