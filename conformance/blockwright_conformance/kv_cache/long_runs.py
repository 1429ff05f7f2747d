"""What long histories have in common: how Hypothesis runs a state machine, and the row that tells of the runs."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from ..gates import GateResult


def run_machine(
    base: type[RuleBasedStateMachine], world: object, examples: int, steps: int, derandomize: bool
) -> dict[str, int]:
    """Run the state machine of a world, shrinking what it finds; give how often what happened."""
    fired: dict[str, int] = {}
    machine: Any = type("WorldMachine", (base,), {"world": world, "fired": fired})
    options = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        derandomize=derandomize,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(machine, settings=options)
    return fired


def histories_row(kind: str, name: str, runs: Iterable[Callable[[], dict[str, int]]]) -> GateResult:
    """Do the runs of a world until one fails; give the row of them all.

    An error that names a law breaks it; any other is one that the implementation should not have raised.
    """
    started, law, detail, fired = time.perf_counter(), "", "", dict[str, int]()
    try:
        for run in runs:
            for what, count in run().items():
                fired[what] = fired.get(what, 0) + count
    except Exception as error:
        law = getattr(error, "law", "")
        detail = getattr(error, "detail", "") if law else ""
        law, detail = law or "REF-0", detail or f"{type(error).__name__}: {error}"
    return GateResult(
        kind=kind,
        scope=name,
        manager=name.partition(",")[0],
        states=0,
        transitions=sum(fired.values()),
        violations=int(bool(law)),
        seconds=time.perf_counter() - started,
        law=law,
        detail=detail,
        fired=fired,
    )
