"""Exhaustive lock-step: every reachable transition of every scope of the profile, several scopes at a time."""

from ..checker.explore import Result
from ..gates import OURS, GateResult, Profile, factory_of
from ..rows import LIMIT, Exploration, explored
from .counterexample.adapter_calls import way
from .fitting import capabilities_of, fitting
from .scopes import FOR_OTHERS, PROFILES, Scope
from .world import EVERYTHING, KVCacheWorld, explorer


class Lockstep(Exploration):
    """The gate of managers, of other makes too: those are put through the scopes that they say they can do."""

    def chosen(self, profile: Profile) -> list[Scope]:
        scopes = (PROFILES if profile.is_ours else FOR_OTHERS)[profile.name]
        asked = [each for each in scopes if profile.scope in each.name]
        return asked if profile.is_ours else fitting(asked, capabilities_of(factory_of(profile.implementation)))

    def is_whole(self, profile: Profile) -> bool:
        return profile.is_ours and not profile.scope

    def row(self, scope: Scope, profile: Profile) -> GateResult:
        result = explorer(scope, factory_of(profile.implementation), max_transitions=LIMIT).run()
        return self.report(result, profile.implementation)

    def report(self, result: Result, implementation: str = OURS) -> GateResult:
        found = result.violation
        fault = f"{found.law}: {found.detail}" if found else ""
        calls = way(result.scope, factory_of(implementation), found.actions, fault) if found else ""
        return explored(self.kind, result, calls)


def weight(each: Scope) -> tuple[int, int, int]:
    """Guess how large a scope is."""
    return each.slots, len(each.calls) + len(each.prompts), each.config.num_blocks


GATE = Lockstep(__name__, "lockstep", "all scopes", PROFILES.__getitem__, KVCacheWorld, EVERYTHING, weight)
size, run, report, coverage = GATE.size, GATE.run, GATE.report, GATE.coverage
