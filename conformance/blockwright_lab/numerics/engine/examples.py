"""Schedules of a world, drawn at random and by Hypothesis, and run; what fails is shrunk and told as Python."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

import blockwright
from blockwright_conformance.gates import GateResult

from .engine import run
from .errors import NumericsError
from .schedule import EngineConfig, Job, Schedule, script
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


# ---- shrinking: from a schedule that fails to a smaller one that fails too

PLAIN = EngineConfig()


def shrunk(schedule: Schedule, fails: Callable[[Schedule], bool], seconds: float) -> Schedule:
    """Give the smallest failing schedule that removing parts and turning features off leads to within some seconds."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        others = (each for each in simpler(schedule) if each != schedule and time.perf_counter() < until)
        smaller = next((each for each in others if fails(each)), None)
        if smaller is None:
            break
        schedule = smaller
    return schedule


def simpler(schedule: Schedule) -> Iterator[Schedule]:
    """Give schedules that lack one thing."""
    jobs, config = schedule.jobs, schedule.config
    size = len(jobs) // 2
    while size:
        for at in range(0, len(jobs), size):
            if left := jobs[:at] + jobs[at + size :]:
                yield replace(schedule, jobs=left)
        size //= 2
    for at in range(len(schedule.layers)):
        if left_layers := schedule.layers[:at] + schedule.layers[at + 1 :]:
            yield replace(schedule, layers=left_layers)
    yield replace(schedule, resets=(), model_seed=0, grow_blocks=False)
    for field in fields(EngineConfig):
        if field.name not in ("max_model_len", "spare_blocks", "enable_caching"):
            yield replace(schedule, config=replace(config, **{field.name: getattr(PLAIN, field.name)}))
    for at, job in enumerate(jobs):
        for less in simpler_jobs(job):
            yield replace(schedule, jobs=(*jobs[:at], less, *jobs[at + 1 :]))


def simpler_jobs(job: Job) -> Iterator[Job]:
    """Give requests that lack one thing."""
    for name, value in (("forks", ()), ("abort", None), ("salt", None), ("adapter", 0), ("seed", None)):
        yield replace(job, **{name: value})  # type: ignore[arg-type]
    yield replace(job, forks=job.forks[:-1])
    for name, least in (("arrival", 0), ("variation", 0), ("family", 0), ("shared", 0), ("own", 1), ("output", 1)):
        value = getattr(job, name)
        for less in dict.fromkeys((least, (least + value) // 2, value - 1)):
            if least <= less < value:
                yield replace(job, **{name: less})
