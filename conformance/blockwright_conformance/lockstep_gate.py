"""Gate 1, exhaustive lock-step: every reachable transition of every scope of the profile, several scopes at a time."""

import gc
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from blockwright._terminal import Advance

from .explore import EVERYTHING, Explorer, Result
from .gates import GateResult, Profile, factory_of
from .scopes import PROFILES, Scope
from .trace import script


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Explore the profile's scopes; the last row says whether everything happened that can."""
    scopes = [each for each in PROFILES[profile.name] if profile.scope in each.name]
    results = [report(result) for result in explored(scopes, profile, progress)]
    order = {each.name: number for number, each in enumerate(scopes)}
    results.sort(key=lambda row: order[row.scope])
    return results if profile.scope else [*results, coverage(results)]


def size(profile: Profile) -> int:
    """Count the scopes."""
    return sum(profile.scope in each.name for each in PROFILES[profile.name])


def explored(scopes: list[Scope], profile: Profile, progress: Advance) -> list[Result]:
    """Explore scopes in parallel processes, those that are expected to be largest first."""
    if profile.jobs == 1:
        return [told(explore(each, profile.implementation), progress) for each in scopes]
    with ProcessPoolExecutor(profile.jobs, mp_context=get_context("spawn")) as pool:
        largest = sorted(scopes, key=weight, reverse=True)
        futures = [pool.submit(explore, each, profile.implementation) for each in largest]
        try:
            return [told(future.result(), progress) for future in as_completed(futures)]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def told(result: Result, progress: Advance) -> Result:
    """Report the progress that a scope makes."""
    progress(1, result.scope.name)
    return result


def weight(each: Scope) -> tuple[int, int, int]:
    """Guess how large a scope is, so that the largest start first."""
    return each.slots, len(each.calls) + len(each.prompts), each.config.num_blocks


def explore(each: Scope, implementation: str) -> Result:
    """Explore one scope; the collector rests, since nothing here forms cycles."""
    gc.disable()
    try:
        return Explorer(each, factory_of(implementation)).run()
    finally:
        gc.enable()


def report(result: Result) -> GateResult:
    """Give the row of a scope."""
    found, scope = result.violation, result.scope
    fault = f"{found.law}: {found.detail}" if found else ""
    return GateResult(
        kind="lockstep",
        scope=scope.name,
        manager=scope.name.partition(",")[0],
        states=result.states,
        transitions=result.transitions,
        violations=int(found is not None),
        seconds=result.seconds,
        law=found.law if found else "",
        detail=found.detail if found else "",
        script=script(scope.config, scope.slots, found.actions, fault) if found else "",
        fired=dict(result.fired),
    )


def coverage(results: list[GateResult]) -> GateResult:
    """Give the row that fails if some action or refusal never happened."""
    fired: Counter[str] = Counter()
    for row in results:
        fired.update(row.fired)
    missing = sorted(EVERYTHING - fired.keys())
    return GateResult(
        kind="coverage",
        scope="all scopes",
        manager="all",
        states=len(EVERYTHING),
        transitions=sum(fired.values()),
        violations=len(missing),
        seconds=0.0,
        law="SEEN-1" if missing else "",
        detail=f"never happened: {', '.join(missing)}" if missing else "",
        fired=dict(fired),
    )
