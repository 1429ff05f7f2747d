"""The gates of managers: exhaustive lock-step of small scopes, and the state machine over those too large for it."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from blockwright._terminal import Advance
from blockwright_spec.manager.outcomes import Reason

from ..checker.diagnose import diagnose
from ..checker.explore import Explorer, Result
from ..checker.history import History, Run, run_machine
from ..gates import GateResult, Profile, factory_of
from ..rows import LIMIT, Exploration, ran
from .actions import NAMES
from .fitting import capabilities_of, fitting
from .scopes import FOR_OTHERS, PROFILES, Scope, large_scopes
from .world import EVERYTHING, Factory, KVCacheWorld


def for_manager(scopes: Iterable[Scope], profile: Profile) -> list[Scope]:
    """Return the scopes that were asked for; of those, what a manager of another make declares that it can do."""
    asked = [each for each in scopes if profile.scope in each.name]
    return asked if profile.is_ours else fitting(asked, capabilities_of(factory_of(profile.implementation)))


class Lockstep(Exploration):
    """The gate of managers, of other makes too: they run the scopes that they declare."""

    def chosen(self, profile: Profile) -> list[Scope]:
        return for_manager((PROFILES if profile.is_ours else FOR_OTHERS)[profile.name], profile)

    def is_whole(self, profile: Profile) -> bool:
        return profile.is_ours and not profile.scope

    def row(self, scope: Scope, profile: Profile) -> GateResult:
        return judged(scope, factory_of(profile.implementation))


def weight(each: Scope) -> tuple[int, int, int]:
    return each.slots, len(each.calls) + len(each.prompts), each.config.num_blocks


GATE = Lockstep(__name__, "lockstep", "all scopes", PROFILES.__getitem__, KVCacheWorld, EVERYTHING, weight)


def judged(scope: Scope, factory: Factory) -> GateResult:
    """Explore a scope with managers of any make (or have the factory do so); report all laws that a fault breaks."""
    explore = getattr(factory, "explore", None)
    explorer = Explorer(KVCacheWorld(scope, factory), max_transitions=LIMIT)
    result: Result = explore(scope) if explore else explorer.run()
    world = KVCacheWorld(result.scope, factory)
    if (found := result.violation) is not None:
        with suppress(Exception):  # what else is broken cannot always be told
            broken = diagnose(world, found.actions)
            laws = [each for each in broken if each != found.law and not each.startswith("REF-0")]
            found.detail += f" (breaks {', '.join(laws)})" if laws else ""
    return GATE.report(result, world)


LENGTHS: dict[str, Any] = {"quick": (2, 60), "pr": (5, 120), "nightly": (2000, 200, False)}
"""Per profile: examples of the machine, the steps of each, and by night that they are others in each run."""
CALLS = frozenset(NAMES) | frozenset(Reason.__members__)
"""What happens once in each call (a batch may both serve and refuse); the rest of what is counted is particular."""


def row(world: KVCacheWorld, runs: Iterable[Run]) -> GateResult:
    return ran("machine", world.scope.name, runs, CALLS.__contains__, world.script)


class Histories(Exploration):
    """The gate of the state machine, of managers of other makes too."""

    def chosen(self, profile: Profile) -> list[Scope]:
        return for_manager(large_scopes(), profile)

    def run(self, profile: Profile, progress: Advance) -> list[GateResult]:
        return super().run(replace(profile, explorer=None), progress)  # the specification as it reads

    def row(self, scope: Scope, profile: Profile) -> GateResult:
        world = KVCacheWorld(scope, factory_of(profile.implementation), is_long=True)
        return row(world, [partial(run_machine, partial(History, world), *LENGTHS[profile.name])])


MACHINE = Histories(f"{__name__}:MACHINE", "machine", "", lambda profile: large_scopes(), KVCacheWorld, frozenset())
