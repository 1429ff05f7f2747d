"""An exhibit of the museum: one real bug of another manager, put back into this one.

It names where the bug is told of in public, how it is put back (patches of the implementation's sources), where it
shows (a scope to explore, or a trial of something smaller), and the one law that must be broken there.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

from blockwright_conformance.kv_cache.blockwright import BlockwrightAdapter
from blockwright_conformance.kv_cache.scopes import Scope

from .instrumented import VariantAdapter
from .variants import Patch
from .worlds import WorldScope


class Fault(NamedTuple):
    """A broken law, what shows it, and after how many calls."""

    law: str
    detail: str
    length: int
    calls: str = ""
    """The calls that show it, where the trial's own text does not."""


Trial = Callable[[ModuleType], Iterator[Fault]]
"""Puts one copy of the implementation to a test that needs no whole manager, and gives the laws it breaks."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where exhibits are looked at: a scope in lock-step, through an adapter."""

    scope: Scope
    adapter: type[BlockwrightAdapter] = VariantAdapter


@dataclass(frozen=True, slots=True)
class WorldPlace:
    """Where exhibits of block tables and offloading are looked at: a scope in lock-step."""

    scope: WorldScope


Where = Place | WorldPlace | Trial
"""A place, or a trial."""


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A known bug: its id (of the corpus; D: a choice of the originals that we decided otherwise), and its catcher."""

    id: str
    title: str
    story: str
    source: str
    law: str
    where: Where
    patches: tuple[Patch, ...]


def patch(file: str, old: str, new: str, times: int = 1) -> Patch:
    """Give a patch of one source: of the core, unless the file names another folder."""
    return Patch(file if "/" in file else f"core/{file}", old, new, times)
