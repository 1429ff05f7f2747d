"""Gates of exhaustive search and of long histories: their common parts, and their rows of the report."""

import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Final

from blockwright._terminal import Advance
from blockwright._text import printable_lines
from blockwright.errors import InvalidArgumentError

from .checker.explore import CopyError, Explorer, Result
from .checker.history import HistoryError
from .checker.parallel import in_order
from .checker.world import World
from .gates import GateResult, Profile, Way, gates

LIMIT = 2_000_000
"""Transitions after which a scope is left unfinished, and says so; only those of long runs are so large."""

LONG: Final = 400
"""Characters of a fault that are printed; the report has all."""


def explored(kind: str, result: Result, script: str) -> GateResult:
    found, scope = result.violation, result.scope
    unfinished = f"unfinished: to depth {result.depth}" if result.transitions == LIMIT else ""
    law, detail = (found.law, found.detail) if found else ("", unfinished)
    counts = result.states, result.transitions, int(found is not None), result.seconds
    return GateResult(kind, scope.name, layers_of(scope.name), *counts, law, detail, script, dict(result.fired))


def layers_of(scope: str) -> str:
    return scope.partition(",")[0]


def raised(kind: str, scope: str, error: Exception) -> GateResult:
    """Return the row of a scope, or a gate, that ended with an error of its own: what others found is kept."""
    text = "" if isinstance(error, InvalidArgumentError) else "".join(traceback.format_exception(error))
    return GateResult(kind, scope, layers_of(scope), 0, 0, 1, 0.0, "RAISED-1", f"{type(error).__name__}: {error}", text)


def kept(work: Callable[..., GateResult], kind: str, name: str, *call: Any) -> GateResult:
    try:
        return work(*call)
    except Exception as error:
        return raised(kind, name, error)


def announced(row: GateResult) -> None:
    """Say what is wrong as soon as it is found, where it does not stand in the way of a report on standard output."""
    if row.violations:
        text = f"{row.kind}, {row.scope}: {row.law}: {row.detail[:LONG]}"
        print(printable_lines(text), file=sys.stderr, flush=True)


def rows_of_calls(
    work: Callable[..., GateResult],
    kind: str,
    names: Sequence[str],
    calls: Sequence[tuple[Any, ...]],
    profile: Profile,
    progress: Advance,
) -> list[GateResult]:
    """Make the row of each call, in several processes; one that raises is a row as well."""
    whole = [(work, kind, name, *call) for name, call in zip(names, calls, strict=True)]
    return in_order(kept, whole, names, profile.jobs, progress, profile.explorer, announced)


def covered(kind: str, scope: str, results: list[GateResult], everything: frozenset[str]) -> GateResult:
    """Return the row that fails if some action or refusal never happened."""
    fired: Counter[str] = Counter()
    for row in results:
        fired.update(row.fired)
    missing, total = sorted(everything - fired.keys()), len(everything)
    law, detail = ("SEEN-1", f"never happened: {', '.join(missing)}") if missing else ("", "")
    counts = total, sum(fired.values()), len(missing), 0.0
    passed = total - len(missing)
    return GateResult(kind, scope, "all", *counts, law, detail, fired=dict(fired), tried=total, passed=passed)


def ran(
    kind: str,
    scope: str,
    runs: Iterable[Callable[[], Mapping[str, int]]],
    once: Callable[[str], bool] = lambda name: True,
    text_of: Callable[[Sequence[Any], str], str] = lambda actions, fault: "",
) -> GateResult:
    """Return the row of long histories, up to one that fails: an error that names a law breaks it, others REF-0.

    `once` defines a call, `text_of` makes the text of a counterexample from its actions and the fault.
    """
    started, law, detail, way, fired = time.perf_counter(), "", "", "", Counter[str]()
    try:
        for run in runs:
            fired.update(run())
    except HistoryError as error:
        law, detail = error.violation.law, error.violation.detail
        way = error.script or text_of(error.violation.actions, f"{law}: {detail}")
    except CopyError:
        raise
    except Exception as error:
        law, detail = getattr(error, "law", ""), getattr(error, "detail", "")
        law, detail = law or "REF-0", (law and detail) or f"{type(error).__name__}: {error}"
    counts = 0, sum(count for name, count in fired.items() if once(name)), int(bool(law))
    seconds = time.perf_counter() - started
    return GateResult(kind, scope, layers_of(scope), *counts, seconds, law, detail, way, fired)


@dataclass(frozen=True)
class Listed:
    """A gate of things with names, for Blockwright's own manager: a module has one as its `GATE`."""

    names: Iterable[str]
    row: Callable[[str, Profile], GateResult]
    whole: Callable[[list[GateResult], Profile], list[GateResult]] = lambda rows, profile: rows
    """Adds to the rows, or sums them up, where all are looked at."""
    nightly: Iterable[str] = ()

    def chosen(self, profile: Profile) -> list[str]:
        names = (*self.names, *(self.nightly if profile.name == "nightly" else ()))
        return [name for name in names if profile.is_ours and profile.scope in name]

    def size(self, profile: Profile) -> int:
        return len(self.chosen(profile))

    def run(self, profile: Profile, progress: Advance) -> list[GateResult]:
        names = self.chosen(profile)
        alone = replace(profile, explorer=None)
        calls = [(name, profile) for name in names]
        rows = rows_of_calls(self.row, type(self).__name__.lower(), names, calls, alone, progress)
        return self.whole(rows, profile) if rows and not profile.scope else rows


@dataclass(frozen=True)
class Exploration:
    """A gate that explores worlds: a module has one as its `GATE`."""

    module: str
    kind: str
    about: str
    """What is explored, for the row that tells of what never happened."""
    profiles: Callable[[str], Sequence[Any]]
    world: Callable[[Any], World[Any, Any]]
    everything: frozenset[str]
    """What must happen in some scope of a profile: every action, every refusal, and more of some worlds."""
    weight: Callable[[Any], Any] = lambda scope: 0
    """How large a scope is, more or less: the largest start first."""

    def chosen(self, profile: Profile) -> list[Any]:
        return [each for each in self.profiles(profile.name) if profile.scope in each.name] if profile.is_ours else []

    def is_whole(self, profile: Profile) -> bool:
        """Return whether everything must happen in the scopes that are asked for."""
        return bool(self.everything) and profile.is_ours and not profile.scope and profile.name != "quick"

    def size(self, profile: Profile) -> int:
        return len(self.chosen(profile))

    def row(self, scope: Any, profile: Profile) -> GateResult:
        return self.report(Explorer(self.world(scope), max_transitions=LIMIT).run())

    def report(self, result: Result, world: World[Any, Any] | None = None) -> GateResult:
        found, world = result.violation, world or self.world(result.scope)
        way = world.script(found.actions, f"{found.law}: {found.detail}") if found else ""
        return explored(self.kind, result, way)

    def run(self, profile: Profile, progress: Advance) -> list[GateResult]:
        scopes = self.chosen(profile)
        names = [each.name for each in sorted(scopes, key=self.weight, reverse=True)]
        calls = [(self.module, name, profile) for name in names]
        rows = dict(zip(names, rows_of_calls(row_of, self.kind, names, calls, profile, progress), strict=True))
        results = [rows[each.name] for each in scopes]
        return [*results, self.coverage(results)] if results and self.is_whole(profile) else results

    def coverage(self, results: list[GateResult]) -> GateResult:
        return covered("coverage", self.about, results, self.everything)


def row_of(module: str, name: str, profile: Profile) -> GateResult:
    """Explore the scope of a name: a process that imports the kit from elsewhere makes its own scopes."""
    module, _, own = module.partition(":")
    gate: Exploration = getattr(import_module(module), own or "GATE")
    (scope,) = [each for each in gate.chosen(profile) if each.name == name]
    return gate.row(scope, profile)


COLUMNS: Final = ("checked by", "what", "came out", "states", "transitions", "violations", "seconds")


COUNTS: Final = ("states", "transitions", "violations", "seconds")


def sums(rows: list[GateResult]) -> dict[Way, GateResult]:
    known = dict.fromkeys(way for gate in gates().values() for way in gate.ways)
    kinds = {kind for way in known for kind in way.kinds}
    others = dict.fromkeys(row.kind for row in rows if row.kind not in kinds)
    ways = (*known, *(Way(kind, (kind,), "rows") for kind in others))
    found = [(way, [row for row in rows if row.kind in way.kinds]) for way in ways]
    return {way: summed(way, own) for way, own in found if not all(row.left_out for row in own)}


def summed(way: Way, rows: list[GateResult]) -> GateResult:
    counts = [(row.tried or int(row.left_out), row.passed) for row in rows]
    if not any(row.tried for row in rows):
        counts = [(1, int(not row.violations and not row.left_out)) for row in rows]
    tried, passed = (sum(each[at] for each in counts) for at in (0, 1))
    states, transitions, violations, seconds = (sum(getattr(row, name) for row in rows) for name in COUNTS)
    return GateResult(way.name, "all", "all", states, transitions, violations, seconds, tried=tried, passed=passed)


def counted(row: GateResult) -> tuple[str, ...]:
    return f"{row.states:,}", f"{row.transitions:,}", f"{row.violations:,}", f"{row.seconds:.1f}"


def cells(rows: list[GateResult]) -> list[tuple[str, ...]]:
    found = ((way, each, f"{each.passed:,} of {each.tried:,} {way.verdict}") for way, each in sums(rows).items())
    return [(way.name, way.things, passed, *counted(each)) for way, each, passed in found]


def as_data(rows: list[GateResult]) -> dict[str, Any]:
    names = ("tried", "passed", *COUNTS)
    return {way.name: {name: round(getattr(each, name), 3) for name in names} for way, each in sums(rows).items()}
