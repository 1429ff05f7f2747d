"""The gates of managers: exhaustive lock-step of small scopes, and the state machine over those too large for it."""

import os
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import SystemRandom

from blockwright._terminal import Advance
from blockwright_spec.manager.outcomes import Reason

from ..checker.diagnose import diagnosed
from ..checker.explore import Explorer, Result
from ..gates import GateResult, Profile, factory_of
from ..rows import LIMIT, Exploration, ran
from .actions import NAMES
from .blockwright import BlockwrightAdapter
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


def judged(scope: Scope, factory: Factory, most: int = LIMIT) -> GateResult:
    """Explore a scope with managers of any make (or have the factory do so); report all laws that a fault breaks."""
    explore = getattr(factory, "explore", None)
    explorer = Explorer(KVCacheWorld(scope, factory), max_transitions=most)
    result: Result = explore(scope) if explore else explorer.run()
    world = KVCacheWorld(result.scope, factory)
    if result.violation is not None:
        result.violation = diagnosed(world, result.violation)
    return GATE.report(result, world)


class AnyOrderAdapter(BlockwrightAdapter):
    """Blockwright as a manager that makes its own choices: the specification follows them."""

    follows_policy = False


class AnyOrder(Exploration):
    """The gate that shows that a manager may choose its own blocks: every scope once so, by night whole."""

    def chosen(self, profile: Profile) -> list[Scope]:
        scopes = PROFILES["pr" if profile.name == "quick" else profile.name]
        return for_manager(scopes, profile) if profile.is_ours else []

    def row(self, scope: Scope, profile: Profile) -> GateResult:
        most = LIMIT if profile.name == "nightly" else BEGINNING
        return replace(judged(scope, AnyOrderAdapter, most), kind="any order")


BEGINNING = 150
"""Transitions of each scope that are made in any order, but for long runs."""
ANY_ORDER = AnyOrder(f"{__name__}:ANY_ORDER", "any order", "", PROFILES.__getitem__, KVCacheWorld, frozenset(), weight)

SECONDS = {"quick": 1.0, "pr": 2.0, "nightly": 120.0}
"""Per profile: how long the machine runs in each world."""
CALLS = frozenset(NAMES) | frozenset(Reason.__members__)
"""What happens once in each call (a batch may both serve and refuse); the rest of what is counted is particular."""


class Histories(Exploration):
    """The gate of the state machine, of managers of other makes too: its seeds are others in each run."""

    def chosen(self, profile: Profile) -> list[Scope]:
        return for_manager(large_scopes(), profile)

    def run(self, profile: Profile, progress: Advance) -> list[GateResult]:
        return super().run(replace(profile, explorer=None), progress)  # the specification as it reads

    def row(self, scope: Scope, profile: Profile) -> GateResult:
        return hunted(scope, factory_of(profile.implementation), SECONDS[profile.name])


def hunted(scope: Scope, factory: Factory, seconds: float) -> GateResult:
    """Run the state machine of a scope; a finding is kept in Hypothesis's database, and tried first the next time."""
    from hypothesis.database import DirectoryBasedExampleDatabase

    from ..machine import hunt

    folder = Path(os.environ.get("HYPOTHESIS_STORAGE_DIRECTORY", ".hypothesis"))
    first, database = SystemRandom().randrange(2**32), DirectoryBasedExampleDatabase(folder / "examples")
    runs = [partial(hunt, scope, factory, seconds, first, database)]
    found = ran("machine", scope.name, runs, CALLS.__contains__, KVCacheWorld(scope, factory).script)
    return replace(found, detail=f"{found.detail} (seed {first})") if found.violations else found


MACHINE = Histories(f"{__name__}:MACHINE", "machine", "", lambda profile: large_scopes(), KVCacheWorld, frozenset())
