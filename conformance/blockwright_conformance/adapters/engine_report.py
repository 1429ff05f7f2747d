"""What came of an engine under the gates: per scope, per law, with every finding and what is known of it.

The same for every engine, so that one page and one table can show them all: `docs/data/engines/*.json`.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from ..gates import GateResult
from .capabilities import Capabilities, Deviation, Finding, Verdict, judge


@dataclass(frozen=True, slots=True)
class ScopeRun:
    """One scope: what was visited, and the laws that were asked there."""

    name: str
    states: int
    transitions: int
    laws: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    """Why it was not run, if it was not."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineReport:
    """An engine, what it was asked, and what was found."""

    engine: str
    package: str
    version: str
    sha256: str
    capabilities: Capabilities
    laws: dict[str, str]
    """Every law that was asked: id and statement."""
    runs: tuple[ScopeRun, ...]
    findings: tuple[Finding, ...]
    deviations: tuple[Deviation, ...]
    complete: bool = True
    """Whether all scopes were run: only then a deviation that did not show is out of date."""
    verdict: Verdict = field(init=False)

    def __post_init__(self) -> None:
        """Judge what was found."""
        object.__setattr__(self, "verdict", judge(self.findings, self.deviations))

    @property
    def violations(self) -> int:
        """Count what the list of deviations does not explain, and what of it did not show."""
        return len(self.verdict.unlisted) + (len(self.verdict.unseen) if self.complete else 0)

    def name_of(self, finding: Finding) -> str:
        """Give the name of the deviation that a finding shows; empty if it is unlisted."""
        return next((each.name for each in self.deviations if each.explains(finding)), "")

    def rows(self) -> list[GateResult]:
        """Give rows for the report of the gates: one per scope, and one for each thing that is not as listed."""
        found = [
            GateResult("engine", run.name, self.engine, run.states, run.transitions, 0, run.seconds)
            for run in self.runs
            if not run.left_out
        ]
        for each in self.verdict.unlisted:
            detail = f"not in the list of deviations: {each.detail}"
            found.append(GateResult("engine", each.scope, self.engine, 0, 0, 1, 0.0, each.law, detail, each.script))
        for known in self.verdict.unseen if self.complete else ():
            detail = f"deviation {known.name} did not show: the list is out of date"
            found.append(GateResult("engine", known.name, self.engine, 0, 0, 1, 0.0, known.law, detail))
        return found

    def to_json(self) -> dict[str, Any]:
        """Give the report as data; seconds are left out, so that equal runs give equal data."""
        shown: dict[str, list[str]] = {law: [] for law in self.laws}
        for finding in self.findings:
            names = shown.setdefault(finding.law, [])
            if (name := self.name_of(finding)) not in names:
                names.append(name)
        return {
            "engine": self.engine,
            "package": self.package,
            "version": self.version,
            "sha256": self.sha256,
            "capabilities": {
                **{name: sorted(getattr(self.capabilities, name)) for name in ("kinds", "calls", "features", "shows")},
                "absent": dict(sorted(self.capabilities.absent.items())),
            },
            "scopes": [
                {
                    "name": run.name,
                    "states": run.states,
                    "transitions": run.transitions,
                    "left_out": list(run.left_out),
                }
                for run in self.runs
            ],
            "laws": {
                law: {
                    "statement": self.laws.get(law, ""),
                    "verdict": "deviates" if names else "holds",
                    "transitions": sum(run.transitions for run in self.runs if law in run.laws),
                    "deviations": names,
                }
                for law, names in shown.items()
            },
            "findings": [{**asdict(each), "deviation": self.name_of(each)} for each in self.findings],
            "deviations": [
                {
                    **asdict(each),
                    "standing": each.standing.name,
                    "shown": any(each is known for known, _ in self.verdict.known),
                }
                for each in self.deviations
            ],
        }
