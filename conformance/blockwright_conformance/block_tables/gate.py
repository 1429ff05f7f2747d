"""The gate of block tables: every reachable transition of its scopes."""

import gc

from blockwright._terminal import Advance

from ..checker.parallel import in_parallel
from ..checker.search import Result
from ..gates import GateResult, Profile
from ..rows import LIMIT, covered, explored
from .blockwright import BlockwrightTables
from .scopes import PAGED_PROFILES, PagedScope
from .script import paged_script
from .world import PAGED_EVERYTHING, PagedExplorer


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Explore the profile's scopes, the largest first; other managers have no such tables."""
    if not profile.is_ours:
        return []
    scopes = chosen(profile)
    calls = [(each.name, profile.name) for each in sorted(scopes, key=weight, reverse=True)]
    rows: dict[str, GateResult] = {}
    for _, row in in_parallel(task, calls, profile.jobs, profile.explorer):
        rows[row.scope] = row
        progress(1, row.scope)
    results = [rows[each.name] for each in scopes]
    if scopes and not profile.scope and profile.name != "quick":
        results.append(coverage(results))
    return results


def chosen(profile: Profile) -> list[PagedScope]:
    """Give the scopes of a profile."""
    return [each for each in PAGED_PROFILES[profile.name] if profile.scope in each.name]


def size(profile: Profile) -> int:
    """Count the scopes."""
    return len(chosen(profile)) * profile.is_ours


def weight(each: PagedScope) -> tuple[int, int, int]:
    """Guess how large a scope is, so that the largest start first."""
    return each.config.caching, len(each.outputs) * len(each.lookaheads), len(each.calls) + each.config.num_gpu


def task(name: str, profile: str) -> GateResult:
    """Explore the scope of a name."""
    (each,) = [each for each in PAGED_PROFILES[profile] if each.name == name]
    return report(explore(each))


def explore(each: PagedScope) -> Result:
    """Explore one scope; the collector rests, since nothing here forms cycles."""
    gc.disable()
    try:
        return PagedExplorer(each, BlockwrightTables, max_transitions=LIMIT).run()
    finally:
        gc.enable()


def report(result: Result) -> GateResult:
    """Give the row of a scope."""
    found = result.violation
    way = paged_script(result.scope, found.actions, f"{found.law}: {found.detail}") if found else ""
    return explored("paged", result, way)


def coverage(results: list[GateResult]) -> GateResult:
    """Give the row that fails if some action or refusal never happened."""
    return covered("coverage", "all scopes of block tables", results, PAGED_EVERYTHING)
