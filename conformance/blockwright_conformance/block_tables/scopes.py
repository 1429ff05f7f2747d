"""Scopes of block tables: small worlds that the explorer visits whole; ``scopes.toml`` lists them."""

from dataclasses import dataclass, field
from typing import Any

from blockwright_spec.block_tables.state import Device, PagedConfig
from blockwright_spec.reads import Prefix

from ..kv_cache.scopes import calls, options, profiles, rows_of, strings


@dataclass(frozen=True, slots=True)
class PagedScope:
    """An allocator's configuration and everything that the users of its tables may do."""

    name: str
    config: PagedConfig
    slots: int
    prompts: tuple[Prefix, ...]
    outputs: tuple[tuple[int, ...], ...] = ((0,),)
    """Tokens that may be appended in one call."""
    max_tokens: int = 0
    lookaheads: tuple[int, ...] = (0,)
    calls: frozenset[str] = field(default_factory=frozenset)
    """What else is called: see `PAGED_CALLS`."""

    @property
    def devices(self) -> tuple[Device, ...]:
        return tuple(Device) if self.config.num_cpu else (Device.GPU,)


FILE = rows_of(__file__)
PAGED_CALLS: dict[str, str] = FILE["calls"]
"""What else the users of tables may do, by a word for it."""


def paged_calls(words: str) -> frozenset[str]:
    return calls(words, PAGED_CALLS.keys())


def paged_scope(theme: str, size: int, gpu: int, cpu: int, tokens: int, words: str, **rest: Any) -> PagedScope:
    """Return a scope of one symbol: blocks of `size` slots on each device, tables of up to `tokens` tokens."""
    caching, window = rest.pop("caching", True), rest.pop("window", None)
    config = PagedConfig(size, gpu, cpu, caching, window)
    options = {"slots": 2, "prompts": strings(1, 1, tokens - 1), "max_tokens": tokens, **rest}
    kind = f"{'prefix caching' if caching else 'naive'}, block {size}"
    kind += "" if window is None else f", window {window}"
    return PagedScope(f"{kind}: {theme}", config, calls=paged_calls(words), **options)


def of_row(*row: Any) -> PagedScope:
    """Return a scope from a row of the file: theme, slots of a block, blocks of each device, longest table, calls."""
    return paged_scope(*row[:6], **options(row[6:]))


PAGED_PR, PAGED_LARGE = (tuple([of_row(*row) for row in FILE[name]]) for name in ("pr", "nightly"))

PAGED_PROFILES = profiles(PAGED_PR, PAGED_LARGE, "block 1: fork", "block 2: swap, copies")
"""The scopes of each profile."""
