"""Scopes as rows of a file: layers as their names, lists for tuples, prompts all those of some lengths."""

from typing import Any

from blockwright_conformance.block_tables.scopes import PagedScope, paged_scope
from blockwright_conformance.kv_cache.scopes import Scope, layers, of_groups, strings
from blockwright_spec.reads import Group


def layer(text: str) -> Group:
    """Return a layer as scopes name it: "sliding 5, block 4"."""
    return Group(*layers(text)[0])


def plain(value: Any) -> Any:
    """Return lists as tuples, as scopes and schedules have them."""
    return tuple(map(plain, value)) if isinstance(value, list) else value


def options(rest: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the options at the end of a row; `strings` are prompts."""
    made = {name: plain(value) for each in rest for name, value in each.items()}
    return made | ({"prompts": strings(*made.pop("strings"))} if "strings" in made else {})


def managers(names: str, *row: Any) -> Scope:
    """Return a manager's scope: theme, blocks, longest request, calls, options."""
    return of_groups(layers(names), *row[:4], **options(list(row[4:])))


def tables(*row: Any) -> PagedScope:
    """Return a scope of block tables: theme, slots of a block, blocks of each device, longest table, calls, options."""
    return paged_scope(*row[:6], **options(list(row[6:])))
