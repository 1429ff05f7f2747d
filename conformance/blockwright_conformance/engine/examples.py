"""Schedules of a world, drawn by Hypothesis and run; what fails is shrunk and told as Python."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

import blockwright

from ..gates import GateResult
from .engine import run
from .errors import NumericsError
from .schedule import Schedule, script
from .worlds import WORLDS, schedules


def examples(name: str, count: int, part: int | None, package: Any = blockwright) -> GateResult:
    """Run `count` schedules of a world, and give their row.

    Args:
        name: of the world.
        count: how many.
        part: which schedules: another number draws others; None: others each time.
        package: whose manager runs them.
    """
    torch.set_num_threads(1)
    started, fired, steps = time.perf_counter(), Counter[str](), 0
    last: list[Schedule] = []

    @given(schedules(WORLDS[name]))
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    def each(schedule: Schedule) -> None:
        last[:] = [schedule]
        fired.update(run(schedule, package))
        fired["schedules"] += 1

    law, detail, way = "", "", ""
    try:
        (each if part is None else seed(part)(each))()
    except NumericsError as error:
        law, detail = error.law, str(error)
        way = f"{script(last[0])}\n# {error}"
    return GateResult(
        kind="numerics",
        scope=name,
        manager="Blockwright",
        states=fired["schedules"],
        transitions=fired["steps"],
        violations=int(bool(law)),
        seconds=time.perf_counter() - started,
        law=law,
        detail=detail,
        script=way,
        fired=dict(+fired),
    )
