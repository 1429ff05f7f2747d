"""Scopes as rows of a file, as the kit has them: layers as their names, lists for tuples, prompts by their lengths."""

from collections.abc import Callable
from typing import Any

from blockwright_conformance.block_tables.scopes import of_row as tables
from blockwright_conformance.kv_cache.scopes import EVERY, layers
from blockwright_conformance.kv_cache.scopes import of_row as managers
from blockwright_conformance.kv_cache.scopes import plain as plain
from blockwright_conformance.kv_cache.scopes import rows_of as rows_of
from blockwright_conformance.offload.scopes import chain_of_row as chains
from blockwright_conformance.offload.scopes import tier_of_row as tiers
from blockwright_spec.reads import Group

MAKERS: dict[str, Callable[..., Any]] = {"managers": managers, "tables": tables, "tiers": tiers, "chains": chains}


def layer(text: str) -> Group:
    """Return a layer as scopes name it: "sliding 5, block 4"."""
    return Group(*layers(text)[0])


def scope(part: str, row: Any) -> Any:
    """Return a scope of a part from a row, or from its name in the gates."""
    return next(each for each in EVERY if each.name == row) if isinstance(row, str) else MAKERS[part](*row)
