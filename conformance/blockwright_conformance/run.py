"""The gates for managers of other makes, in one line of a test: ``run_conformance(MyAdapter)``."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from blockwright.policies import policy_named

from .capabilities import Capabilities, Deviation, Verdict, expected_of, findings, judge, said
from .gates import GateResult, factory_of
from .kv_cache.fitting import capabilities_of, check_names, fitting, lacks, none_fits
from .kv_cache.gate import judged
from .kv_cache.scopes import FOR_OTHERS
from .kv_cache.world import Factory
from .policies import PolicyAdapter, PolicyManagers


class ConformanceError(AssertionError):
    """A manager differs from the specification, or no longer differs where it was expected to."""


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """What came of all scopes: those that were run, those left out and why, and the findings that were expected."""

    scopes: tuple[GateResult, ...]
    left_out: dict[str, list[str]]
    verdict: Verdict

    @property
    def transitions(self) -> int:
        return sum(each.transitions for each in self.scopes)


def run_conformance(
    factory: Factory | str | None = None,
    capabilities: Capabilities | None = None,
    expected_failures: str | Path | Iterable[Deviation] = (),
    profile: str = "pr",
    scope: str = "",
    policy: Callable[[], object] | str | None = None,
) -> ConformanceReport:
    """Put a manager, or an eviction policy, through every scope that it can do, in lock-step with the specification.

    Args:
        factory: makes a manager from a `Config` (`adapter.ManagerAdapter`), or its name as ``module:factory``, or
            ``exec:COMMAND`` for a process that speaks the protocol of ``docs/reference/vectors.md``.
        capabilities: the manager's abilities; by default those that the factory declares, else all.
        expected_failures: a strict list, or the TOML file that holds it (`expected`).
        profile: how far to go: "quick", "pr" or "nightly".
        scope: only scopes whose names contain this; expected failures that do not show are then let pass.
        policy: instead of a manager, the factory of an eviction policy, or its name as ``blockwright replay`` takes it.

    Raises:
        ConformanceError: a difference is not expected, or an expected one is missing; with the calls of the shortest
            way to it.
        ValueError: an argument names nothing, or no scope can be run.
    """
    if profile not in FOR_OTHERS:
        raise ValueError(f"profile: expected one of {', '.join(FOR_OTHERS)}, not {profile!r}")
    expected = expected_of(expected_failures)
    if (factory is None) == (policy is None):
        raise ValueError("policy: is asked by Blockwright's own manager; name either a factory or a policy")
    if policy is not None:
        managers = PolicyManagers(policy_named(policy) if isinstance(policy, str) else policy)
        make: Factory = managers
    else:
        make = factory_of(factory) if isinstance(factory, str) else factory  # type: ignore[assignment]
    can = capabilities if capabilities is not None else capabilities_of(make if policy is None else PolicyAdapter)
    if can is not None:
        check_names(can)
    scopes = [each for each in (FOR_OTHERS[profile] if policy is None else managers.scopes) if scope in each.name]
    left_out = lacks(scopes, can)
    rows = tuple([judged(each, make) for each in fitting(scopes, can)])
    if not rows:
        named = f"no scope of profile {profile}" + (f" with {scope!r} in its name" if scope else "")
        why = f"can be run: {none_fits(scopes, can)}" if scopes else "exists"
        raise ValueError(f"scope: {named} {why}")
    verdict = judge(findings(rows), expected)
    if fault := said(verdict, not scope):
        raise ConformanceError(fault)
    return ConformanceReport(rows, left_out, verdict)
