"""Scopes of block tables: small worlds that the explorer visits whole.

One symbol suffices for laws of resources; what is shared by content needs two, so that equal and unequal content meet.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from blockwright_spec.block_tables.state import Device, PagedConfig
from blockwright_spec.reads import Prefix

from ..kv_cache.scopes import calls, strings


@dataclass(frozen=True, slots=True)
class PagedScope:
    """An allocator's configuration and everything that the users of its tables may do."""

    name: str
    config: PagedConfig
    slots: int
    """Tables that there may be at once."""
    prompts: tuple[Prefix, ...]
    outputs: tuple[tuple[int, ...], ...] = ((0,),)
    """Tokens that may be appended in one call."""
    max_tokens: int = 0
    """Tokens at which a table stops."""
    lookaheads: tuple[int, ...] = (0,)
    calls: frozenset[str] = field(default_factory=frozenset)
    """What else is called: see `PAGED_CALLS`."""

    @property
    def devices(self) -> tuple[Device, ...]:
        return tuple(Device) if self.config.num_cpu else (Device.GPU,)


PAGED_CALLS = {
    "delay": "leave copies pending, and take them by a call of their own",
    "swap": "move tables to the other device and back, alone and together",
    "host": "make tables on the host",
    "ensure": "ask for empty slots without tokens",
    "late": "say that fewer tokens are computed than are written, when a window is trimmed",
    "access": "note accesses of tables and of what is free but found",
    "mark": "mark all blocks as computed",
    "chunks": "mark tables as computed, in chunks of any length",
    "reset": "reset the prefix cache of each device",
    "misuse": "make calls that are wrong",
}


def paged_calls(words: str) -> frozenset[str]:
    """Return a set of calls from their names."""
    return calls(words, PAGED_CALLS.keys())


def paged_scope(theme: str, size: int, gpu: int, cpu: int, tokens: int, words: str, **rest: Any) -> PagedScope:
    """Return a scope of one symbol: blocks of `size` slots, so many on each device, tables of up to `tokens` tokens."""
    caching, window = rest.pop("caching", True), rest.pop("window", None)
    config = PagedConfig(size, gpu, cpu, caching, window)
    options = {"slots": 2, "prompts": strings(1, 1, tokens - 1), "max_tokens": tokens, **rest}
    kind = f"{'prefix caching' if caching else 'naive'}, block {size}"
    kind += "" if window is None else f", window {window}"
    return PagedScope(f"{kind}: {theme}", config, calls=paged_calls(words), **options)


def of_allocator(caching: bool) -> Iterator[PagedScope]:
    """Yield the scopes of one allocator."""
    some: dict[str, Any] = {"caching": caching}
    few = strings(1, 1, 2)
    for size in (1, 2):
        yield paged_scope("fork and append", size, 4, 0, 2 * size + 1, "ensure misuse", **some, lookaheads=(0, 2))
        words = "ensure late misuse" if size == 1 else "late misuse"
        yield paged_scope("window", size, 4, 0, 4 * size + 1, words, **some, window=1, prompts=few)
        yield paged_scope("swap", size, 3, 4 - size, 2 * size, "swap host misuse", **some, lookaheads=(0, 1))
        yield paged_scope("swap, copies pending", size, 3, 4 - size, 2 * size, "swap delay", **some)
    both: dict[str, Any] = {"outputs": ((0,), (1,)), **some}
    yield paged_scope("two symbols", 1, 4, 0, 3, "delay mark reset", **both)
    yield paged_scope("two symbols", 2, 3, 0, 4, "delay mark", **both, prompts=strings(1, 1, 1))
    yield paged_scope("swap, two symbols", 1, 3, 2, 2, "swap", **both, prompts=strings(2, 1, 1))
    yield paged_scope("swap, two symbols, computed", 1, 2, 1, 2, "swap mark", **both, prompts=strings(2, 1, 1))
    yield paged_scope("swap under a window", 1, 4, 2, 4, "swap late", **some, window=1, prompts=few)
    yield paged_scope("three tables", 2, 4, 0, 5, "", **some, slots=3, prompts=strings(1, 2, 3))
    yield paged_scope("three tables, swap", 2, 3, 3, 4, "swap", **some, slots=3, prompts=strings(1, 3, 3))
    outputs: tuple[tuple[int, ...], ...] = ((), (0,), (0, 0, 0))
    yield paged_scope("chunks", 2, 4, 0, 4, "delay", **some, outputs=outputs, lookaheads=(0, 3), prompts=few)


def of_caching() -> Iterator[PagedScope]:
    """Yield the scopes that need access times."""
    some: dict[str, Any] = {"prompts": strings(2, 1, 2), "slots": 1}
    yield paged_scope("chunks computed", 2, 4, 0, 5, "chunks misuse", slots=2, prompts=strings(1, 3, 4))
    yield paged_scope("chunks computed, swap", 2, 2, 2, 4, "chunks swap misuse", prompts=strings(1, 3, 3))
    yield paged_scope("chunks computed, window", 1, 4, 0, 4, "chunks late", window=1, prompts=strings(1, 2, 3))
    both: dict[str, Any] = {"outputs": ((0,), (1,)), "prompts": strings(2, 1, 2)}
    yield paged_scope("chunks computed, two symbols", 2, 2, 0, 3, "chunks mark", **both)
    yield paged_scope("access", 1, 3, 0, 2, "access reset", **some, outputs=((0,), (1,)))
    yield paged_scope("access of partial blocks", 2, 2, 0, 3, "access", **some)
    yield paged_scope("access, swap", 1, 2, 1, 2, "access swap mark misuse", **some)


def larger(caching: bool) -> Iterator[PagedScope]:
    """Yield the scopes of one allocator that only long runs visit."""
    some: dict[str, Any] = {"caching": caching}
    both: dict[str, Any] = {"outputs": ((0,), (1,)), **some}
    outputs: tuple[tuple[int, ...], ...] = ((), (0,), (0, 0), (0, 0, 0))
    for size in (1, 2):
        yield paged_scope("two symbols, larger", size, 4, 0, 2 * size + 1, "delay mark reset", **both)
        yield paged_scope("swap, larger", size, 4, 4, 2 * size + 1, "swap host delay", **some, lookaheads=(0, 1))
        yield paged_scope("window, larger", size, 6, 0, 5 * size + 1, "late delay", **some, window=2)
        yield paged_scope("swap, two symbols, larger", size, 3, 1 + size, 2 * size, "swap mark", **both)
    yield paged_scope("chunks, larger", 2, 5, 0, 6, "delay", **some, outputs=outputs, lookaheads=(0, 3))
    yield paged_scope("three tables, larger", 2, 5, 3, 5, "swap", **some, slots=3)
    if caching:
        yield paged_scope("access, larger", 1, 2, 2, 2, "access swap mark", slots=1, prompts=strings(2, 1, 2))


PAGED_PR: tuple[PagedScope, ...] = (*of_allocator(True), *of_allocator(False), *of_caching())

PAGED_PROFILES: dict[str, tuple[PagedScope, ...]] = {
    "quick": tuple(each for each in PAGED_PR if "block 1: fork" in each.name or "block 2: swap, copies" in each.name),
    "pr": PAGED_PR,
    "nightly": (*PAGED_PR, *larger(True), *larger(False)),
}
"""The scopes of each profile."""
