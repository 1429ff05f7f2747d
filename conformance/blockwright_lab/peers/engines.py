"""Engines of other makes under test: which there are, and the report of one.

``blockwright conform-engine NAME --peer-path DIR`` follows an engine through its scopes, runs the scripts that
confirm its listed bugs, and judges all of it against its strict list.
"""

from __future__ import annotations

import importlib
import time
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from blockwright._terminal import Advance
from blockwright.errors import InvalidArgumentError
from blockwright_conformance.capabilities import Capabilities, Deviation, Finding, Standing, Verdict, judge
from blockwright_conformance.checker.explore import Result
from blockwright_conformance.checker.parallel import in_order

from .confirm.__main__ import confirm

MODULES = {
    "vllm-0.33.0": "vllm_releases",
    "vllm-0.11.0": "vllm_releases",
    "vllm-offload-0.33.0": "offload_runs",
    "vllm-offload-0.11.0": "offload_runs",
}


class Explored(NamedTuple):
    """What following an engine through one scope came to."""

    states: int
    transitions: int
    seconds: float
    is_unfinished: bool
    findings: tuple[Finding, ...]


def explored(result: Result, limit: int | None, findings: Iterable[Finding]) -> Explored:
    return Explored(result.states, result.transitions, result.seconds, result.transitions == limit, tuple(findings))


def walked(scope: Any, limit: int | None, walk: Callable[[int, int], tuple[int, Iterable[Finding]]]) -> Explored:
    """Take a scope's walks, so many steps from each of its seeds, and return the first finding of each law."""
    started, taken, steps = time.perf_counter(), 0, scope.steps if limit is None else min(limit, scope.steps)
    found: dict[str, Finding] = {}
    for seed in range(scope.seeds):
        count, findings = walk(seed, steps)
        taken += count
        for each in findings:
            found.setdefault(each.law, each)
    return Explored(taken, taken, time.perf_counter() - started, steps < scope.steps, tuple(found.values()))


class Findings(dict[tuple[str, ...], Finding]):
    """What was found in a scope, by sort: the first of a sort, which has a shortest way, and how often it was seen."""

    def add(self, sort: tuple[str, ...], make: Callable[[], Finding]) -> Finding:
        known = self.get(sort)
        self[sort] = make() if known is None else replace(known, count=known.count + 1)
        return self[sort]


@dataclass(frozen=True)
class EngineUnderTest:
    """An engine, and how it is put through the gates."""

    name: str  # what it is called on the command line: the release comes last
    engine: str  # in words
    laws: tuple[tuple[str, str], ...]  # id and statement of all that it is judged by
    scopes: tuple[Any, ...]  # each has a `name`
    # explores a scope on the engine in a folder of peers, to a limit of transitions
    explore: Callable[[Any, Path, int | None], Explored]
    # says why it cannot be put through a scope; empty if it can
    unfit: Callable[[Any], list[str]] = lambda scope: []

    @property
    def version(self) -> str:
        return self.name.rpartition("-")[2]

    @property
    def deviations(self) -> tuple[Deviation, ...]:
        return deviations_of(self.name)


@dataclass
class EngineReport:
    """What was found of an engine."""

    engine: EngineUnderTest
    explored: dict[str, Explored] = field(default_factory=dict)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    confirmed: dict[str, str] = field(default_factory=dict)
    is_whole: bool = True
    """Whether all scopes were explored far enough: only then a deviation that did not show is out of date."""

    @property
    def verdict(self) -> Verdict:
        findings = [finding for each in self.explored.values() for finding in each.findings]
        verdict = judge(findings, self.engine.deviations)
        return verdict._replace(unseen=tuple(each for each in verdict.unseen if not self.confirmed.get(each.confirm)))

    @property
    def violations(self) -> list[str]:
        verdict = self.verdict
        wrong = [f"not listed: {each.law} in {each.scope}: {each.detail}" for each in verdict.unlisted]
        if self.is_whole:
            wrong += [f"listed, and did not show: {each.name}" for each in verdict.unseen]
        return wrong + [f"not confirmed by its script: {name}" for name, seen in self.confirmed.items() if not seen]


def laws_of(engine: str) -> dict[str, str]:
    found: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("laws.toml").read_text(encoding="utf-8"))
    return found[engine]


@cache
def deviations_of(name: str) -> tuple[Deviation, ...]:
    found = tomllib.loads(Path(__file__).with_name("deviations.toml").read_text(encoding="utf-8"))["deviation"]
    return tuple(deviation(**row) for row in found if name in row["engines"])


@cache
def capabilities_of(name: str) -> Capabilities:
    row = tomllib.loads(Path(__file__).with_name("capabilities.toml").read_text(encoding="utf-8"))[name]
    listed: dict[str, Any] = {key: frozenset(value) for key, value in row.items() if isinstance(value, list)}
    return Capabilities(**listed, absent=row["absent"])


def deviation(engines: list[str], standing: str, reason: str, bugs: Sequence[str] = (), **rest: Any) -> Deviation:
    return Deviation(standing=Standing[standing], reason=" ".join(reason.split()), bugs=tuple(bugs), **rest)


def engine_of(name: str) -> EngineUnderTest:
    """Return an engine by its name.

    Raises InvalidArgumentError if there is none.
    """
    if name not in MODULES:
        raise InvalidArgumentError(f"engine: there is no {name!r}; there are {', '.join(MODULES)}")
    module = importlib.import_module(f"{__package__}.{MODULES[name]}")
    found: EngineUnderTest = next(each for each in module.ENGINES if each.name == name)
    return found


def examine(
    name: str, peer_path: Path, advance: Advance, scope: str = "", jobs: int = 1, limit: int | None = None
) -> EngineReport:
    """Follow an engine through its scopes whose names contain `scope`, and run its scripts.

    Raises InvalidArgumentError if there is no such engine, or no copy of it in `peer_path`.
    """
    engine = engine_of(name)
    report = EngineReport(engine, is_whole=not scope)
    named = [each for each in engine.scopes if scope in each.name]
    report.left_out = {each.name: reasons for each in named if (reasons := engine.unfit(each))}
    chosen = [each for each in named if each.name not in report.left_out]
    for script in dict.fromkeys(each.confirm for each in engine.deviations if each.confirm):
        report.confirmed[script] = confirm(script, peer_path)
    names = [each.name for each in chosen]
    found = in_order(explore, [(name, each, peer_path, limit) for each in names], names, jobs, advance)
    report.explored = dict(zip(names, found, strict=True))
    return report


def explore(name: str, scope: str, peer_path: Path, limit: int | None) -> Explored:
    engine = engine_of(name)
    return engine.explore(next(each for each in engine.scopes if each.name == scope), peer_path, limit)


def as_data(report: EngineReport) -> dict[str, Any]:
    engine, verdict, explored = report.engine, report.verdict, report.explored
    shown = {each.name: found for each, found in verdict.known}
    scopes = [
        {"name": name, "states": each.states, "transitions": each.transitions, "finished": not each.is_unfinished}
        | {"findings": len(each.findings)}
        for name, each in explored.items()
    ]
    return {
        "engine": engine.engine,
        "version": engine.version,
        "name": engine.name,
        "scopes": scopes,
        "left_out": [{"name": name, "reasons": reasons} for name, reasons in report.left_out.items()],
        "states": sum(each.states for each in explored.values()),
        "transitions": sum(each.transitions for each in explored.values()),
        "laws": [of_law(report, law, statement) for law, statement in engine.laws],
        "deviations": [of_deviation(report, each, shown.get(each.name, ())) for each in engine.deviations],
        "violations": report.violations,
    }


def shortest(findings: Iterable[Finding]) -> Finding | None:
    return min(findings, key=lambda each: (each.steps, each.scope), default=None)


def of_law(report: EngineReport, law: str, statement: str) -> dict[str, Any]:
    verdict = report.verdict
    known = [(each, found) for each, found in verdict.known if each.law == law]
    unlisted = [each for each in verdict.unlisted if each.law == law]
    confirmed = [each for each in report.engine.deviations if each.law == law and report.confirmed.get(each.confirm)]
    bugs = [each for each, _ in known if each.standing is Standing.BUG] + confirmed
    reported = (finding for each, found in known if each.standing is Standing.BUG or not bugs for finding in found)
    first = shortest([*unlisted, *reported])
    return {
        "id": law,
        "statement": statement,
        "status": "violated" if bugs or unlisted else "deviates" if known else "satisfied",
        "scopes": len(report.explored),
        "states": sum(each.states for each in report.explored.values()),
        "detail": f"{first.scope}: {first.detail}" if first else "",
        "counterexample": first.script.splitlines() if first else [],
        "deviations": list(dict.fromkeys(each.name for each in [*(each for each, _ in known), *confirmed])),
    }


def of_deviation(report: EngineReport, each: Deviation, found: tuple[Finding, ...]) -> dict[str, Any]:
    first = shortest(found) or Finding(each.law, "", "")
    return {
        "id": each.name,
        "law": each.law,
        "standing": each.standing.name.lower(),
        "reason": each.reason,
        "source": each.reference,
        "bugs": list(each.bugs),
        "confirm": each.confirm,
        "confirmed": report.confirmed.get(each.confirm, ""),
        "scopes": [finding.scope for finding in found],
        "transitions": sum(finding.count for finding in found),
        "detail": first.detail,
        "steps": first.steps,
        "counterexample": first.script.splitlines(),
    }
