"""The search of a wrong specification alone: which laws it breaks, and which of them together.

Breadth-first as `search`, but it goes on past a fault, and what lies beyond a state that breaks a law is not looked at:
a wrong state explains everything after it. A world is any part of the specification with its laws.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..known_bugs.watch import rearm

UNDEFINED = "no outcome"
"""Stands for a law where a wrong specification fails to say what comes of a call, or what a state is."""


class Judge(NamedTuple):
    """A law of a world: its name, and whether it holds, of a state or of the state before and an outcome."""

    id: str
    holds: Callable[..., bool]


class Came(NamedTuple):
    """What came of an action: each outcome with the state before it, and the state after all."""

    steps: tuple[tuple[Any, Any], ...]
    state: Any


@dataclass(frozen=True, slots=True)
class World:
    """A part of the specification, in a small scope."""

    name: str
    start: Callable[[], Any]
    enabled: Callable[[Any], Iterable[Any]]
    told: Callable[[Any, Any], Came]
    digest: Callable[[], Callable[[Any], Any]]
    """Makes what names states: equal names need be visited only once."""
    state_laws: tuple[Judge, ...]
    step_laws: tuple[Judge, ...]
    view: Callable[[Any], Any] = lambda state: None
    """All of a state that the laws in `viewed` read: they are judged once for all that is equal."""
    viewed: frozenset[str] = frozenset()


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


def judged(world: World, enough: Enough, limit: int) -> Noticed:
    """Visit every state of a world that is reached through sane ones, and note what is broken."""
    return Judging(world, enough, limit).run()


class Judging:
    """One search of a world."""

    def __init__(self, world: World, enough: Enough, limit: int) -> None:
        self.world, self.enough, self.limit = world, enough, limit
        self.noticed = Noticed()
        self.digest = world.digest()
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
            state = self.world.start()
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
            came = self.world.told(state, action)
        except Exception:
            self.noticed.add(frozenset((UNDEFINED,)), depth)
            return None
        broken = frozenset().union(*(verdicts(self.world.step_laws, *pair) for pair in came.steps))
        is_new = False
        if came.state is not state:
            is_new = self.is_new(came.state)
            if is_new or broken:
                broken |= self.arrived(came.state)
        if broken:
            self.noticed.add(broken, depth)
        return came.state if is_new and not broken else None

    def is_new(self, state: Any) -> bool:
        """Tell whether a state was not met before; one that has no name is."""
        try:
            name = self.digest(state)
        except Exception:
            return True
        return name not in self.seen and not self.seen.add(name)  # type: ignore[func-returns-value]

    def arrived(self, state: Any) -> frozenset[str]:
        """Return the laws that a state breaks, or say that it is none: it cannot be named."""
        world = self.world
        viewed = [law for law in world.state_laws if law.id in world.viewed]
        rest = [law for law in world.state_laws if law.id not in world.viewed]
        try:
            self.digest(state)
            view = world.view(state)
        except Exception:
            return verdicts(world.state_laws, state) or frozenset((UNDEFINED,))
        if view not in self.views:
            self.views[view] = verdicts(viewed, state)
        return verdicts(rest, state) | self.views[view]


def verdicts(laws: Iterable[Judge], *about: Any) -> frozenset[str]:
    """Return the laws that are broken; where one cannot be judged, what it judges is no outcome."""
    return frozenset(filter(None, (verdict(law, *about) for law in laws)))


def verdict(law: Judge, *about: Any) -> str:
    try:
        return "" if law.holds(*about) else law.id
    except Exception:
        return UNDEFINED
