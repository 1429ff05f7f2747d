"""Schedules of a world, drawn at random and run; what fails is shrunk and told as Python."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import torch

from blockwright.errors import InvalidArgumentError
from blockwright_conformance.gates import GateResult

from .checker import NumericsError
from .engine import run
from .schedule import EngineConfig, Job, Schedule, script
from .worlds import WORLDS, random_schedule

MOST_SHRINKING = 30.0


def examples(name: str, count: int, part: int | None) -> GateResult:
    torch.set_num_threads(1)
    fired, failed = Counter[str](), list[tuple[Schedule, NumericsError]]()

    def fails(schedule: Schedule) -> bool:
        try:
            fired.update(run(schedule))
        except NumericsError as error:
            failed.append((schedule, error))
            return True
        fired["schedules"] += 1
        return False

    started, drawn = time.perf_counter(), time.time_ns() if part is None else part
    schedules = (random_schedule(WORLDS[name], f"{drawn} {number}") for number in range(count))
    if failing := next(filter(fails, schedules), None):
        shrunk(failing, fails, MOST_SHRINKING)
    counts = (fired["schedules"], fired["steps"], int(bool(failed)), time.perf_counter() - started)
    row = GateResult("numerics", name, "Blockwright", *counts, fired=dict(+fired))
    if failed:
        schedule, error = failed[-1]
        row = replace(row, law=error.law, detail=str(error), script=f"{script(schedule)}\n# {error}")
    return row


# ---- shrinking: from a schedule that fails to a smaller one that fails too


def shrunk(schedule: Schedule, fails: Callable[[Schedule], bool], seconds: float) -> Schedule:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        others = (each for each in simpler(schedule) if each != schedule and time.perf_counter() < until)
        smaller = next((each for each in others if still_fails(each, fails)), None)
        if smaller is None:
            break
        schedule = smaller
    return schedule


def still_fails(schedule: Schedule, fails: Callable[[Schedule], bool]) -> bool:
    try:
        return fails(schedule)
    except InvalidArgumentError:  # without one option, the manager may refuse another
        return False


def simpler(schedule: Schedule) -> Iterator[Schedule]:
    """Yield schedules with fewer requests or layers, or with a feature as it is by default."""
    for name in ("jobs", "layers"):
        parts = getattr(schedule, name)
        for size in dict.fromkeys((len(parts) // 2, 1)) if len(parts) > 1 else ():
            for at in range(0, len(parts), size):
                yield replace(schedule, **{name: parts[:at] + parts[at + size :]})
    yield replace(schedule, resets=(), model_seed=0, grow_blocks=False)
    for field in fields(EngineConfig):
        if field.name not in ("max_model_len", "spare_blocks", "enable_caching"):
            plain: Any = field.default
            yield replace(schedule, config=replace(schedule.config, **{field.name: plain}))
    for at, job in enumerate(schedule.jobs):
        for less in simpler_jobs(job):
            yield replace(schedule, jobs=(*schedule.jobs[:at], less, *schedule.jobs[at + 1 :]))


def simpler_jobs(job: Job) -> Iterator[Job]:
    for name in ("forks", "abort", "salt", "adapter", "seed"):
        yield replace(job, **{name: getattr(Job, name)})
    for name, least in (("arrival", 0), ("variation", 0), ("family", 0), ("shared", 0), ("own", 1), ("output", 1)):
        value = getattr(job, name)
        for less in dict.fromkeys((least, (least + value) // 2, value - 1)):
            if least <= less < value:
                yield replace(job, **{name: less})
