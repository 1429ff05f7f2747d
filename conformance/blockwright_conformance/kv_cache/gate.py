"""Exhaustive lock-step: every reachable transition of every scope of the profile, several scopes at a time."""

from blockwright._terminal import Advance

from ..checker.explore import Result
from ..checker.parallel import in_parallel
from ..gates import OURS, GateResult, Profile, factory_of
from ..rows import LIMIT, covered, explored
from .adapter_calls import way
from .fitting import capabilities_of, fitted, fitting
from .scopes import FOR_OTHERS, PROFILES, Scope
from .world import EVERYTHING, explorer


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Explore the profile's scopes, the largest first; the last row says whether everything happened that can."""
    scopes = chosen(profile)
    largest = sorted(scopes, key=weight, reverse=True)
    rows: dict[str, GateResult] = {}
    calls = [(each.name, profile.name, profile.implementation) for each in largest]
    for _, row in in_parallel(task, calls, profile.jobs, profile.explorer):
        rows[row.scope] = row
        progress(1, row.scope)
    results = [rows[each.name] for each in scopes]
    if profile.scope or not profile.is_ours:
        return results
    return [*results, coverage(results)]


def size(profile: Profile) -> int:
    """Count the scopes."""
    return len(chosen(profile))


def chosen(profile: Profile) -> list[Scope]:
    """Give the scopes of the profile that are asked for, and that the manager says it can do."""
    scopes = [each for each in known(profile.name, profile.is_ours) if profile.scope in each.name]
    return scopes if profile.is_ours else fitting(scopes, capabilities_of(factory_of(profile.implementation)))


def known(profile: str, is_ours: bool) -> tuple[Scope, ...]:
    """Give the scopes of a profile."""
    return (PROFILES if is_ours else FOR_OTHERS)[profile]


def weight(each: Scope) -> tuple[int, int, int]:
    """Guess how large a scope is, so that the largest start first."""
    return each.slots, len(each.calls) + len(each.prompts), each.config.num_blocks


def task(name: str, profile: str, implementation: str) -> GateResult:
    """Explore the scope of a name: a process that imports the kit from elsewhere has scopes of its own."""
    (each,) = [each for each in known(profile, implementation == OURS) if each.name == name]
    if implementation != OURS:
        each = fitted(each, capabilities_of(factory_of(implementation)))
    return report(explore(each, implementation), implementation)


def explore(each: Scope, implementation: str) -> Result:
    """Explore one scope."""
    return explorer(each, factory_of(implementation), max_transitions=LIMIT).run()


def report(result: Result, implementation: str = OURS) -> GateResult:
    """Give the row of a scope."""
    found = result.violation
    fault = f"{found.law}: {found.detail}" if found else ""
    calls = way(result.scope, factory_of(implementation), found.actions, fault) if found else ""
    return explored("lockstep", result, calls)


def coverage(results: list[GateResult]) -> GateResult:
    """Give the row that fails if some action or refusal never happened."""
    return covered("coverage", "all scopes", results, EVERYTHING)
