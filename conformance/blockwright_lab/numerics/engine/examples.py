"""Schedules of a world, drawn at random and by Hypothesis, and run; what fails is shrunk and told as Python."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

import blockwright
from blockwright_conformance.gates import GateResult

from .engine import run
from .errors import NumericsError
from .schedule import Schedule, script
from .shrink import shrunk
from .worlds import WORLDS, random_schedule, schedules

MOST_SHRINKING = 30.0
"""Seconds after which a failing schedule is told as it is."""


class Examples:
    """The schedules of one world, and what happened in them.

    Attributes:
        fired: how often which feature was used, in schedules that went well.
        failed: schedules that did not, each with what was wrong, the last the smallest.
    """

    def __init__(self, name: str, package: Any = blockwright) -> None:
        self.name, self.world, self.package = name, WORLDS[name], package
        self.fired: Counter[str] = Counter()
        self.failed: list[tuple[Schedule, NumericsError]] = []
        self.until = 0.0

    def fails(self, schedule: Schedule) -> bool:
        """Run a schedule, and tell whether it fails."""
        try:
            self.fired.update(run(schedule, self.package))
        except NumericsError as error:
            self.failed.append((schedule, error))
            return True
        self.fired["schedules"] += 1
        return False

    def at_random(self, count: int, part: object) -> None:
        """Run schedules that are drawn at random, up to the first that fails, which is shrunk."""
        for number in range(count):
            schedule = random_schedule(self.world, f"{part} {number}")
            if self.fails(schedule):
                shrunk(schedule, self.fails, MOST_SHRINKING)
                return

    def by_hypothesis(self, count: int, part: int | None) -> None:
        """Run schedules that Hypothesis draws."""
        options = settings(
            max_examples=count,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
            print_blob=False,
            report_multiple_bugs=False,
        )
        test = options(given(schedules(self.world))(self.one))
        try:
            (test if part is None else seed(part)(test))()
        except NumericsError:
            return

    def one(self, schedule: Schedule) -> None:
        """Run a schedule for Hypothesis; once it has shrunk for long enough, only what failed last fails again."""
        if self.until and time.perf_counter() > self.until:
            if schedule == self.failed[-1][0]:
                raise self.failed[-1][1]
            return
        if self.fails(schedule):
            self.until = self.until or time.perf_counter() + MOST_SHRINKING
            raise self.failed[-1][1]


def examples(name: str, at_random: int, by_hypothesis: int, part: int | None, package: Any = blockwright) -> GateResult:
    """Run schedules of a world, and give their row.

    Args:
        name: of the world.
        at_random, by_hypothesis: how many are drawn in which way.
        part: which schedules: another number draws others; None: others each time.
        package: whose manager runs them.
    """
    torch.set_num_threads(1)
    started, runs = time.perf_counter(), Examples(name, package)
    runs.at_random(at_random, time.time_ns() if part is None else part)
    if not runs.failed:
        runs.by_hypothesis(by_hypothesis, part)
    schedule, error = runs.failed[-1] if runs.failed else (None, None)
    return GateResult(
        kind="numerics",
        scope=name,
        manager="Blockwright",
        states=runs.fired["schedules"],
        transitions=runs.fired["steps"],
        violations=int(error is not None),
        seconds=time.perf_counter() - started,
        law="" if error is None else error.law,
        detail="" if error is None else str(error),
        script="" if schedule is None else f"{script(schedule)}\n# {error}",
        fired=dict(+runs.fired),
    )
