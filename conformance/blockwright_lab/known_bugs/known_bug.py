"""A known bug, and where it shows: a scope to explore in lock-step, or a trial of something smaller.

Either place can be looked at with any copy of the implementation, reports its findings, and gives the way to them as
calls.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import blockwright
from blockwright_conformance.checker import explore
from blockwright_conformance.checker.diagnose import diagnose
from blockwright_conformance.checker.world import World

from .changes import Change
from .watch import rearm
from .worlds import VariantAdapter, world_on


class Fault(NamedTuple):
    """A broken law, what shows it, and after how many calls."""

    law: str
    detail: str
    length: int
    calls: str = ""


Trial = Callable[[ModuleType], Iterator[Fault]]
"""Puts one copy of the implementation to a test that needs no whole manager, and yields the laws it breaks."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The findings in a place: the laws broken there, after how many calls, and how far one had to look."""

    laws: tuple[str, ...] = ()
    length: int = 0
    detail: str = ""
    states: int = 0
    transitions: int = 0
    script: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """A scope of any part, explored up to the first fault; a manager may have an adapter that watches more."""

    scope: Any
    """A scope of the manager, of block tables, of a tier or of a chain (`worlds.AnyScope`)."""
    adapter: type[VariantAdapter] = VariantAdapter

    @property
    def title(self) -> str:
        return str(self.scope.name)

    def world(self, package: ModuleType = blockwright) -> World[Any, Any]:
        return world_on(self.scope, package, self.adapter)

    def look(self, package: ModuleType, judged: bool) -> Seen:
        result = explore.Explorer(self.world(package), laws=judged).run()
        found = result.violation
        if found is None:
            return Seen((), 0, "", result.states, result.transitions)
        rearm()
        laws = (found.law,) if judged else diagnose(self.world(package), found.actions)
        rearm()
        script = self.world(package).script(found.actions, found.detail)
        return Seen(laws, len(found.actions), found.detail, result.states, result.transitions, script)


@dataclass(frozen=True, slots=True)
class TrialPlace:
    """A trial."""

    trial: Trial

    @property
    def title(self) -> str:
        return f"trial of {self.trial.__name__}"

    def look(self, package: ModuleType, judged: bool) -> Seen:
        rearm()
        faults = list(self.trial(package))
        if not faults:
            return Seen()
        first, length = faults[0], max(fault.length for fault in faults)
        script = f"{(first.calls or inspect.getsource(self.trial)).rstrip()}\n# {first.detail}"
        return Seen(tuple(fault.law for fault in faults), length, first.detail, script=script)


@dataclass(frozen=True, slots=True)
class KnownBug:
    """A real bug, or a choice of other managers that we decided otherwise (ids with D), and what catches it."""

    id: str
    title: str
    story: str
    source: str
    law: str
    """The law that must be broken in its place."""
    place: Place | TrialPlace
    changes: tuple[Change, ...]
