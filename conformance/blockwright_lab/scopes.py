"""Scopes as rows of a file: layers as their names, lists for tuples, prompts all those of some lengths."""

from collections.abc import Callable
from typing import Any

from blockwright_conformance.block_tables.scopes import PagedScope, paged_scope
from blockwright_conformance.kv_cache.scopes import EVERY, Scope, layers, of_groups, strings
from blockwright_conformance.offload.scopes import ChainScope, Slice, TierScope, chain_scope, lists, request
from blockwright_spec.offload.tier_state import Key
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


def keys(letters: str) -> tuple[Key, ...]:
    return tuple(letter.encode() for letter in letters)


def tiers(name: str, manager: str, capacity: int, every: list[int], more: list[str], *rest: Any) -> TierScope:
    """Return a tier's scope: calls name every list of so many keys up to a length, and more lists."""
    own = options(list(rest))
    own |= {"recovered": keys(own["recovered"])} if "recovered" in own else {}
    return TierScope(name, manager, capacity, (*lists(*every), *map(keys, more)), **own)


def chains(name: str, capacities: list[int], *rest: Any) -> ChainScope:
    """Return a chain's scope: places of each tier, blocks of the device, options; "p0 q1" is a `Slice`."""
    own = options([each for each in rest if isinstance(each, dict)])

    def slices(texts: tuple[str, ...]) -> tuple[Slice, ...]:
        named = ([(each[0].encode(), int(each[1:])) for each in text.split()] for text in texts)
        return tuple(request(own.get("span", 1), *each) for each in named)

    own |= {each: slices(own[each]) for each in ("stores", "loads") if each in own}
    return chain_scope(name, tuple(capacities), *(each for each in rest if isinstance(each, int)), **own)


MAKERS: dict[str, Callable[..., Any]] = {"managers": managers, "tables": tables, "tiers": tiers, "chains": chains}


def scope(part: str, row: Any) -> Any:
    """Return a scope of a part from a row, or from its name in the gates."""
    return next(each for each in EVERY if each.name == row) if isinstance(row, str) else MAKERS[part](*row)
