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

    @property
    def devices(self) -> tuple[Device, ...]:
        return tuple(Device) if self.config.num_cpu else (Device.GPU,)


FILE = rows_of(__file__)
PAGED_CALLS: dict[str, str] = FILE["calls"]
"""What else the users of tables may do, by a word for it."""


def of_row(theme: str, size: int, gpu: int, cpu: int, tokens: int, words: str, *rest: Any) -> PagedScope:
    """Return a scope of one symbol from a row of the file: `size` slots in a block, tables of up to `tokens` tokens."""
    own = {"slots": 2, "prompts": strings(1, 1, tokens - 1), "max_tokens": tokens, **options(rest)}
    caching, window = own.pop("caching", True), own.pop("window", None)
    kind = f"{'prefix caching' if caching else 'naive'}, block {size}"
    kind += "" if window is None else f", window {window}"
    config = PagedConfig(size, gpu, cpu, caching, window)
    return PagedScope(f"{kind}: {theme}", config, calls=calls(words, PAGED_CALLS.keys()), **own)


PAGED_PR, PAGED_LARGE = (tuple([of_row(*row) for row in FILE[name]]) for name in ("pr", "nightly"))

PAGED_PROFILES = profiles(PAGED_PR, PAGED_LARGE, "block 1: fork", "block 2: swap, copies")
