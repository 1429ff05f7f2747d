"""The gates for managers of other makes, in one line of a test.

from blockwright_conformance import run_conformance

def test_conformance():
    run_conformance(MyAdapter)
"""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from blockwright.replay.keeping import policy_named

from .capabilities import Capabilities, Deviation, Finding, Verdict, judge
from .expected_failures import expected_of, said
from .gates import factory_of
from .kv_cache.actions import Action
from .kv_cache.counterexample.adapter_calls import way
from .kv_cache.fitting import capabilities_of, fitted, lacking
from .kv_cache.scopes import FOR_OTHERS, POLICIES, Scope
from .kv_cache.world import Factory, KVCacheWorld, explorer
from .others import none_fits
from .policies import PolicyManagers
from .rows import LIMIT


class ConformanceError(AssertionError):
    """A manager differs from the specification, or no longer differs where it was expected to."""


@dataclass(frozen=True, slots=True)
class ScopeReport:
    """What came of one scope."""

    scope: str
    states: int
    transitions: int
    seconds: float
    finding: Finding | None


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """What came of all scopes: those that were run, those left out and why, and the findings that were expected."""

    scopes: tuple[ScopeReport, ...]
    left_out: dict[str, list[str]]
    verdict: Verdict

    @property
    def transitions(self) -> int:
        """Count the transitions executed in lock-step."""
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
        capabilities: what the manager can do; by default what the factory declares, else everything.
        expected_failures: a strict list, or the TOML file that holds it (`expected`).
        profile: how far to go: "quick", "pr" or "nightly".
        scope: only scopes whose names contain this; expected failures that do not show are then let pass.
        policy: instead of a manager, what makes an eviction policy, or its name as ``blockwright replay`` takes it.

    Raises:
        ConformanceError: something differs that is not expected, or what was expected does not; with the calls of the
            shortest way to it.
        ValueError: an argument names nothing, or no scope can be run.
    """
    if profile not in FOR_OTHERS:
        raise ValueError(f"profile: expected one of {', '.join(FOR_OTHERS)}, not {profile!r}")
    expected = expected_of(expected_failures)
    if (factory is None) == (policy is None):
        raise ValueError("policy: is asked by Blockwright's own manager; name either a factory or a policy")
    if policy is not None:
        make: Factory = PolicyManagers(policy_named(policy) if isinstance(policy, str) else policy)
    else:
        make = factory_of(factory) if isinstance(factory, str) else factory  # type: ignore[assignment]
    can = capabilities if capabilities is not None else capabilities_of(make)
    scopes = [each for each in (FOR_OTHERS[profile] if policy is None else POLICIES) if scope in each.name]
    left_out = {each.name: words for each in scopes if (words := lacking(each, can))}
    reports = tuple([explored(fitted(each, can), make) for each in scopes if each.name not in left_out])
    if not reports:
        why = f": {none_fits(scopes, can)}" if scopes else ""
        raise ValueError(f"scope: no scope of profile {profile} that the manager can do contains {scope!r}{why}")
    verdict = judge([each.finding for each in reports if each.finding], expected)
    if fault := said(verdict, not scope):
        raise ConformanceError(fault)
    return ConformanceReport(reports, left_out, verdict)


def explored(scope: Scope, factory: Factory) -> ScopeReport:
    """Explore one scope, up to the first difference."""
    started = time.perf_counter()
    result = (
        factory.explore(scope)
        if isinstance(factory, PolicyManagers)
        else explorer(scope, factory, max_transitions=LIMIT).run()
    )
    finding = None
    if result.violation is not None:
        law, detail, actions = result.violation.law, result.violation.detail, result.violation.actions
        detail += also(scope, factory, actions, law)
        finding = Finding(law, scope.name, detail, way(scope, factory, actions, f"{law}: {detail}"), len(actions))
    return ScopeReport(scope.name, result.states, result.transitions, time.perf_counter() - started, finding)


def also(scope: Scope, factory: Factory, actions: tuple[Action, ...], law: str) -> str:
    """Return the laws that a counterexample breaks beyond the one found, in words; empty if that cannot be told."""
    from .checker.diagnose import diagnose

    with suppress(Exception):
        broken = diagnose(KVCacheWorld(scope, factory), actions).laws
        laws = [each for each in broken if each != law and not each.startswith("REF-0")]
        return f" (breaks {', '.join(laws)})" if laws else ""
    return ""
