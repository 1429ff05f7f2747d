"""Scopes of block tables: small worlds that the explorer visits whole.

One symbol suffices for laws of resources; what is shared by content needs two, so that equal and unequal content meet.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from blockwright_spec.paged_state import Device, PagedConfig
from blockwright_spec.reads import Prefix

from .scopes import strings


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
        """Give the devices that have blocks."""
        return tuple(Device) if self.config.num_cpu else (Device.GPU,)


PAGED_CALLS = {
    "delay": "leave copies pending, and take them by a call of their own",
    "swap": "move tables to the other device and back, alone and together",
    "host": "make tables on the host",
    "ensure": "ask for empty slots without tokens",
    "late": "say that fewer tokens are computed than are written, when a window is trimmed",
    "access": "note accesses of tables and of what is free but found",
    "mark": "mark blocks as computed",
    "reset": "reset the prefix cache of each device",
    "misuse": "make calls that are wrong",
}


def paged_calls(words: str) -> frozenset[str]:
    """Give a set of calls from their names."""
    names = frozenset(words.split())
    if unknown := names - PAGED_CALLS.keys():
        raise ValueError(f"unknown calls {sorted(unknown)}; known: {', '.join(PAGED_CALLS)}")
    return names


def paged_scope(theme: str, size: int, gpu: int, cpu: int, tokens: int, words: str, **rest: Any) -> PagedScope:
    """Give a scope of one symbol: blocks of `size` slots, so many on each device, tables of up to `tokens` tokens."""
    caching, window = rest.pop("caching", True), rest.pop("window", None)
    config = PagedConfig(size, gpu, cpu, caching, window)
    options = {"slots": 2, "prompts": strings(1, 1, tokens - 1), "max_tokens": tokens, **rest}
    kind = f"{'prefix caching' if caching else 'naive'}, block {size}"
    kind += "" if window is None else f", window {window}"
    return PagedScope(f"{kind}: {theme}", config, calls=paged_calls(words), **options)


def of_allocator(caching: bool) -> Iterator[PagedScope]:
    """Give the scopes of one allocator."""
    some: dict[str, Any] = {"caching": caching}
    two: dict[str, Any] = {"outputs": ((0,), (1,)), **some}
    few = strings(1, 1, 2)
    for size in (1, 2):
        yield paged_scope("fork and append", size, 4, 0, 2 * size + 1, "ensure misuse", **some, lookaheads=(0, 2))
        yield paged_scope("two symbols", size, 4, 0, 2 * size + 1, "delay mark reset", **two)
        yield paged_scope("window", size, 4, 0, 4 * size + 1, "late misuse", **some, window=1, prompts=few)
        yield paged_scope("swap", size, 3, 3, 2 * size + 1, "swap host misuse delay", **some, lookaheads=(0, 1))
        yield paged_scope("swap, two symbols", size, 3, 2, 2 * size, "swap mark", **two, prompts=strings(2, size, size))
    yield paged_scope("swap under a window", 1, 4, 2, 4, "swap late", **some, window=1, prompts=few)
    yield paged_scope("three tables", 2, 4, 0, 4, "", **some, slots=3, prompts=strings(1, 3, 3))


def of_both() -> Iterator[PagedScope]:
    """Give the scopes that only one allocator needs: access times, chunks of several tokens, forks of forks swapped."""
    yield paged_scope("access", 1, 3, 0, 3, "access reset", outputs=((0,), (1,)), prompts=strings(2, 1, 2), slots=1)
    yield paged_scope("access, swap", 1, 2, 2, 2, "access swap mark misuse", slots=1, prompts=strings(2, 1, 2))
    yield paged_scope("chunks", 2, 5, 0, 6, "delay", outputs=((), (0,), (0, 0), (0, 0, 0)), lookaheads=(0, 3))
    yield paged_scope("three tables, swap", 2, 3, 3, 3, "swap", slots=3, prompts=strings(1, 3, 3), caching=False)


PAGED_PR: tuple[PagedScope, ...] = (*of_allocator(True), *of_allocator(False), *of_both())

PAGED_PROFILES: dict[str, tuple[PagedScope, ...]] = {
    "smoke": PAGED_PR[:4],
    "pr": PAGED_PR,
    "nightly": PAGED_PR,
}
"""The scopes of each profile."""
