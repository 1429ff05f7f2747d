"""Shrinking: from a schedule that fails to a smaller one that fails too."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace

from .schedule import EngineConfig, Job, Schedule

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
