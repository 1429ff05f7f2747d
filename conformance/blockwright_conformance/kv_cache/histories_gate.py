"""The state machine and the random walk over scopes too large to visit whole."""

import time
from collections.abc import Callable
from typing import NamedTuple

from blockwright._terminal import Advance

from ..checker.parallel import in_parallel
from ..gates import GateResult, Profile, factory_of
from .fitting import capabilities_of, walkable
from .scopes import Scope, large_scopes
from .script import script
from .walk import HistoryError, walk


class Length(NamedTuple):
    """How far a profile goes: examples and steps of the state machine, and steps of a walk."""

    examples: int
    steps: int
    walk: int
    seeds: int = 1


LENGTHS = {"quick": Length(2, 20, 100), "pr": Length(15, 40, 600), "nightly": Length(2000, 100, 10_000, 20)}


def size(profile: Profile) -> int:
    """Count the runs."""
    return len(chosen(profile)) * len(tasks(profile))


def chosen(profile: Profile) -> list[Scope]:
    """Give the large scopes that are asked for, without the calls that the manager says it does not have."""
    scopes = [each for each in large_scopes() if profile.scope in each.name]
    return scopes if profile.is_ours else walkable(scopes, capabilities_of(factory_of(profile.implementation)))


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Run both for every large scope, in parallel processes."""
    calls = [(task, profile, each) for each in chosen(profile) for task in tasks(profile)]
    rows: dict[int, GateResult] = {}
    for index, result in in_parallel(apply, calls, profile.jobs):
        rows[index] = result
        progress(1, result.scope)
    return [rows[index] for index in sorted(rows)]


def tasks(profile: Profile) -> tuple[Callable[[Profile, Scope], GateResult], ...]:
    """Give what is run for each scope: the state machine makes every call, so it is for managers that do everything."""
    if profile.is_ours or capabilities_of(factory_of(profile.implementation)) is None:
        return machine, walks
    return (walks,)


def apply(task: Callable[[Profile, Scope], GateResult], profile: Profile, scope: Scope) -> GateResult:
    """Run one of the two for one scope."""
    return task(profile, scope)


def machine(profile: Profile, scope: Scope) -> GateResult:
    """Run the state machine of a scope."""
    from .machine import run_machine

    length = LENGTHS[profile.name]
    factory, fixed = factory_of(profile.implementation), profile.name != "nightly"
    return row("machine", scope, lambda: run_machine(scope, factory, length.examples, length.steps, fixed))


def walks(profile: Profile, scope: Scope) -> GateResult:
    """Take random walks through a scope."""
    length, fired = LENGTHS[profile.name], dict[str, int]()

    def taken() -> dict[str, int]:
        for seed in range(length.seeds):
            for name, count in walk(scope, factory_of(profile.implementation), seed, length.walk).fired.items():
                fired[name] = fired.get(name, 0) + count
        return fired

    return row("walk", scope, taken)


def row(kind: str, scope: Scope, histories: Callable[[], dict[str, int]]) -> GateResult:
    """Give the row of a run: what happened, and the history of a violation."""
    started, fired, law, detail, trace = time.perf_counter(), dict[str, int](), "", "", ""
    try:
        fired = histories()
    except HistoryError as error:
        found = error.violation
        law, detail = found.law, found.detail
        trace = script(scope.config, scope.slots, found.actions, f"{law}: {detail}")
    return GateResult(
        kind=kind,
        scope=scope.name,
        manager=scope.name.partition(",")[0],
        states=0,
        transitions=sum(fired.values()),
        violations=int(bool(law)),
        seconds=time.perf_counter() - started,
        law=law,
        detail=detail,
        script=trace,
        fired=fired,
    )
