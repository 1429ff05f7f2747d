"""The gate of offloading: every reachable transition of one tier and of chains of two."""

import gc
from typing import TypeVar

from blockwright._terminal import Advance

from ..checker.parallel import in_parallel
from ..checker.search import Result
from ..gates import GateResult, Profile
from ..rows import LIMIT, covered, explored
from .chain_world import CHAIN_EVERYTHING, ChainExplorer
from .scopes import CHAIN_PROFILES, TIER_PROFILES, ChainScope, TierScope
from .script import chain_script, tier_script
from .tier_world import TIER_EVERYTHING, TierExplorer

KIND = "offload"

Scope = TypeVar("Scope", TierScope, ChainScope)


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Explore the profile's scopes; other managers have no tiers."""
    if not profile.is_ours:
        return []
    tiers, chains = chosen(profile, TIER_PROFILES), chosen(profile, CHAIN_PROFILES)
    names = [*(each.name for each in chains), *(each.name for each in tiers)]
    calls = [(name, profile.name) for name in names]
    rows: dict[str, GateResult] = {}
    for _, row in in_parallel(task, calls, profile.jobs, profile.explorer):
        rows[row.scope] = row
        progress(1, row.scope)
    results = [rows[each.name] for each in tiers] + [rows[each.name] for each in chains]
    if results and not profile.scope and profile.name != "quick":
        everything = TIER_EVERYTHING | CHAIN_EVERYTHING
        results.append(covered("coverage", "all scopes of offloading", results, everything))
    return results


def chosen(profile: Profile, profiles: dict[str, tuple[Scope, ...]]) -> list[Scope]:
    """Give the scopes of a profile."""
    return [each for each in profiles[profile.name] if profile.scope in each.name]


def size(profile: Profile) -> int:
    """Count the scopes."""
    return (len(chosen(profile, TIER_PROFILES)) + len(chosen(profile, CHAIN_PROFILES))) * profile.is_ours


def task(name: str, profile: str) -> GateResult:
    """Explore the scope of a name."""
    scopes: tuple[TierScope | ChainScope, ...] = (*CHAIN_PROFILES[profile], *TIER_PROFILES[profile])
    (each,) = [each for each in scopes if each.name == name]
    gc.disable()  # nothing here forms cycles
    try:
        return report(explore(each))
    finally:
        gc.enable()


def explore(scope: TierScope | ChainScope) -> Result:
    """Explore one scope."""
    if isinstance(scope, TierScope):
        return TierExplorer(scope, max_transitions=LIMIT).run()
    return ChainExplorer(scope, max_transitions=LIMIT).run()


def report(result: Result) -> GateResult:
    """Give the row of a scope."""
    found, way = result.violation, ""
    if found is not None:
        script = tier_script if isinstance(result.scope, TierScope) else chain_script
        way = script(result.scope, found.actions, f"{found.law}: {found.detail}")
    return explored(KIND, result, way)
