"""Rows of the report that gates of exhaustive search have in common."""

from collections import Counter

from .checker.explore import Result
from .gates import GateResult

LIMIT = 2_000_000
"""Transitions after which a scope is left unfinished, and says so; only those of long runs are so large."""


def explored(kind: str, result: Result, script: str) -> GateResult:
    """Give the row of a scope; `script` is the shortest way to its violation, if there is one."""
    found, scope = result.violation, result.scope
    unfinished = f"unfinished: to depth {result.depth}" if result.transitions == LIMIT else ""
    return GateResult(
        kind=kind,
        scope=scope.name,
        manager=scope.name.partition(",")[0],
        states=result.states,
        transitions=result.transitions,
        violations=int(found is not None),
        seconds=result.seconds,
        law=found.law if found else "",
        detail=found.detail if found else unfinished,
        script=script,
        fired=dict(result.fired),
    )


def covered(kind: str, scope: str, results: list[GateResult], everything: frozenset[str]) -> GateResult:
    """Give the row that fails if some action or refusal never happened."""
    fired: Counter[str] = Counter()
    for row in results:
        fired.update(row.fired)
    missing = sorted(everything - fired.keys())
    return GateResult(
        kind=kind,
        scope=scope,
        manager="all",
        states=len(everything),
        transitions=sum(fired.values()),
        violations=len(missing),
        seconds=0.0,
        law="SEEN-1" if missing else "",
        detail=f"never happened: {', '.join(missing)}" if missing else "",
        fired=dict(fired),
        tried=len(everything),
        passed=len(everything) - len(missing),
    )
