"""The search of a wrong specification alone: which laws it breaks, and which of them together.

Breadth-first as `search`, but it goes on past a fault, and what lies beyond a state that breaks a law is not looked at:
a wrong state explains everything after it. A world is any part of the specification with its laws.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from blockwright_conformance.checker.world import World
from blockwright_conformance.kv_cache.world import LOOKUP_LAWS, KVCacheWorld, lookup_view

from ..known_bugs.watch import rearm
from .refusals import REFUSED

UNDEFINED = "no outcome"
"""Stands for a law where a wrong specification fails to say what comes of a call, or what a state is."""


class Judge(NamedTuple):
    """A law of a world: its name, and whether it holds, of a state or of the state before and an outcome."""

    id: str
    holds: Callable[..., bool]
    statement: str = ""


class Alone(World[Any, Any]):
    """A world of the specification that no implementation can be asked about."""

    def unasked(self, *_: Any) -> Any:
        """Raise an error."""
        raise NotImplementedError

    model: Any = unasked
    observe: Any = unasked
    differences: Any = unasked
    examine: Any = unasked
    opening: Any = unasked


@dataclass(slots=True)
class Noticed:
    """Which laws were broken, after how many calls at least, and which together in one step."""

    lengths: dict[str, int] = field(default_factory=dict)
    together: Counter[frozenset[str]] = field(default_factory=Counter)
    transitions: int = 0

    def add(self, laws: frozenset[str], length: int) -> None:
        self.together[laws] += 1
        for law in laws:
            self.lengths.setdefault(law, length)


Enough = Callable[[Noticed], bool]
"""Tells whether a search may end, after every fault."""


class Judging:
    """One search of a world: every state that is reached through sane ones; `refused` stands for all its laws."""

    def __init__(
        self, world: World[Any, Any], enough: Enough, limit: int, refused: Callable[[Any], bool] | None = None
    ) -> None:
        self.world, self.enough, self.limit = world, enough, limit
        self.laws: Sequence[Any] = world.laws if refused is None else (Judge(REFUSED, refused),)
        self.step_laws: Sequence[Any] = world.step_laws if refused is None else ()
        self.view = lookup_view if isinstance(world, KVCacheWorld) else lambda state: None
        viewed = LOOKUP_LAWS if isinstance(world, KVCacheWorld) else ()
        self.viewed = [law for law in self.laws if law.id in viewed]
        self.rest = [law for law in self.laws if law.id not in viewed]
        self.noticed = Noticed()
        self.seen: set[Any] = set()
        self.views: dict[Any, frozenset[str]] = {}

    @property
    def is_over(self) -> bool:
        return self.noticed.transitions >= self.limit or (bool(self.noticed.lengths) and self.enough(self.noticed))

    def run(self) -> Noticed:
        frontier, depth = list(self.first()), 0
        while frontier and not self.is_over:
            depth += 1
            frontier = list(self.level(frontier, depth))
        return self.noticed

    def first(self) -> Iterator[Any]:
        """Return the initial state, if there is one and it breaks no law."""
        try:
            state = self.world.initial()
        except Exception:
            self.noticed.add(frozenset((UNDEFINED,)), 0)
            return
        if broken := self.arrived(state):
            self.noticed.add(broken, 0)
        else:
            yield state

    def level(self, frontier: list[Any], depth: int) -> Iterator[Any]:
        """Return the new sane states one action beyond the frontier's."""
        for state in frontier:
            try:
                rearm()
                actions = list(self.world.enabled(state))
            except Exception:
                self.noticed.add(frozenset((UNDEFINED,)), depth)
                continue
            for action in actions:
                if self.is_over:
                    return
                after = self.step(state, action, depth)
                if after is not None:
                    yield after

    def step(self, state: Any, action: Any, depth: int) -> Any:
        """Perform an action and judge what came of it; return the state it leads to, if that is new and sane."""
        self.noticed.transitions += 1
        rearm()
        try:
            came = self.world.meaning(state, action)
        except Exception:
            self.noticed.add(frozenset((UNDEFINED,)), depth)
            return None
        broken = frozenset().union(*(verdicts(self.step_laws, *pair) for pair in came.steps))
        is_new = False
        if came.state is not state:
            is_new = self.is_new(came.state)
            if is_new or broken:
                broken |= self.arrived(came.state)
        if broken:
            self.noticed.add(broken, depth)
        return came.state if is_new and not broken else None

    def is_new(self, state: Any) -> bool:
        """Return whether a state was not met before; one that has no name is."""
        try:
            name = self.world.digest(state)
        except Exception:
            return True
        return name not in self.seen and not self.seen.add(name)  # type: ignore[func-returns-value]

    def arrived(self, state: Any) -> frozenset[str]:
        """Return the laws that a state breaks, or say that it is none: it cannot be named."""
        try:
            self.world.digest(state)
            view = self.view(state)
        except Exception:
            return verdicts(self.laws, state) or frozenset((UNDEFINED,))
        if view not in self.views:
            self.views[view] = verdicts(self.viewed, state)
        return verdicts(self.rest, state) | self.views[view]


def verdicts(laws: Iterable[Any], *about: Any) -> frozenset[str]:
    """Return the laws that are broken; where one cannot be judged, what it judges is no outcome."""
    return frozenset(filter(None, (verdict(law, *about) for law in laws)))


def verdict(law: Any, *about: Any) -> str:
    try:
        return "" if law.holds(*about) else law.id
    except Exception:
        return UNDEFINED
