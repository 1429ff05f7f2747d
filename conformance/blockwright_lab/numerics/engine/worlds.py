"""The worlds of the numerics gate: which layers and features meet in the schedules that are drawn.

A world is a row of the gate. Within it everything is drawn: block sizes, windows, chunks, the pool, the requests, and
which features are on; simple values first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from blockwright_conformance.kv_cache.scopes import rows_of
from blockwright_spec.reads import Chunked, Cross, Full, Group, Mamba, Sinks, Sliding

from ...scopes import plain
from .schedule import EngineConfig, Job, Schedule

MAX_LEN = 32

MOST_JOBS = 9


@dataclass(frozen=True)
class World:
    """What is drawn in a row of the gate."""

    name: str  # of the row
    kinds: tuple[str, ...]  # of layers that every model of this world has
    more: tuple[str, ...] = ()  # of layers that it may have besides
    guessers: tuple[str, ...] = ("ngram", "random")  # who may guess tokens ahead; none: nobody
    preemptions: tuple[str, ...] = ("recompute", "swap")  # ways of preemption
    offloads: tuple[str, ...] = ("",)  # when blocks may go to the host
    overlaps: tuple[bool, ...] = (False,)  # whether steps overlap
    caching: tuple[bool, ...] = (True,)  # whether prefixes may be shared
    forks: bool = True  # whether requests may fork
    spares: tuple[int, ...] = (0, 2, 6, 14)  # blocks of the pool beyond what one request needs
    pace: tuple[int, ...] = (0, 1, 3)  # steps between two requests
    shared: tuple[int, ...] = (0, 16, 8, 12, 13)  # tokens that requests of a family share
    units: bool = False  # whether hits may end inside blocks
    dtypes: tuple[tuple[str, str], ...] = (("float64", ""),)  # of the model, and of keys and values at rest


FILE = rows_of(__file__)
WORLDS = {row["name"]: World(**{name: plain(value) for name, value in row.items()}) for row in FILE["world"]}
EVERYTHING = frozenset(FILE["everything"])


Chooser = Callable[[Any], Any]


def layer(choose: Chooser, kind: str, sizes: Sequence[int], drafts: int) -> Group:
    size = choose(sizes)
    match kind:
        case "full":
            return Group(Full(), size)
        case "sliding":
            return Group(Sliding(choose((6, 3, 4, 5, 9, 2, 1))), size)
        case "sinks":
            return Group(Sinks(choose((1, 3, 5)), choose((4, 2, 6, 1))), size)
        case "chunked":
            return Group(Chunked(size * choose((2, 1, 3))), size)
        case "mamba":
            return Group(Mamba(drafts), size)
    return Group(Cross(), size)


NO, RARELY, OFTEN = (False,), (False, False, False, True), (False, True)


def features(choose: Chooser, world: World) -> EngineConfig:
    caching = choose(world.caching)
    overlap = choose(world.overlaps)
    guesser = choose(("", *world.guessers))
    offload = choose(world.offloads) if caching else ""
    return EngineConfig(
        max_num_seqs=choose((4, 6, 3, 2)),
        max_num_batched_tokens=choose((16, 32, 12, 7)),
        max_model_len=MAX_LEN,
        enable_caching=caching,
        spare_blocks=choose(world.spares),
        align_chunks=choose(OFTEN),
        drafts=choose((1, 2)) if guesser else 0,
        guesser=guesser or "ngram",
        declare_drafts=choose((True, False)) if guesser else True,
        preemption=choose(world.preemptions),
        host_blocks=choose((32, 64, 12)),
        load_steps=choose((1, 2, 4)),
        lose_load_every=choose((0, 0, 1, 2)),
        offload=offload,
        offload_blocks=choose((32, 64, 12)) if offload else 32,
        overlap_steps=overlap,
        publish_on_settlement=choose(OFTEN if overlap else NO),
        delay_publication=choose(RARELY if caching else NO),
        trim_early=choose(RARELY),
        plan_first=choose(RARELY),
        staged=choose(RARELY),
        padded=choose(RARELY),
        full_sequence_must_fit=choose(RARELY),
        watermark=choose((0.0, 0.0, 0.1)),
        reserved_blocks=choose((0, 0, 1)),
    )


def job(choose: Chooser, world: World, arrival: int) -> Job:
    """Choose a request: of one of two families, whose shared tokens others may have left behind."""
    output = choose(range(1, MAX_LEN - 25))
    forks = (0, 0, 0, 1, 2) if world.forks else (0,)
    return Job(
        shared=choose(world.shared),
        own=choose(range(1, 11)),
        output=output,
        arrival=arrival,
        family=choose((0, 0, 1)),
        variation=choose((0, 1, 2)),
        seed=choose((None, 1)),
        salt=choose((None,) * 7 + ("salt",)),
        adapter=choose((0,) * 7 + (1,)),
        encoder=choose(range(1, 10)) if "cross" in world.kinds else 0,
        abort=choose(range(16)) if choose(RARELY) else None,
        forks=tuple(sorted(choose(range(output)) for _ in range(choose(forks)))),
    )


def schedule(choose: Chooser, world: World) -> Schedule:
    config = features(choose, world)
    kinds = [*world.kinds, *(kind for kind in world.more if choose(OFTEN))]
    sizes = choose(((4,), (2, 4), (4, 8), (3, 6), (1, 2)))
    layers = tuple(layer(choose, kind, sizes, config.drafts) for kind in kinds)
    eagle = config.guesser == "eagle" and config.drafts > 0
    draft = layer(choose, choose(("full", "sliding")), sizes, 0) if eagle else None
    jobs: list[Job] = []
    while len(jobs) < MOST_JOBS and (not jobs or choose((False,) + (True,) * 7)):
        jobs.append(job(choose, world, jobs[-1].arrival + choose(world.pace) if jobs else 0))
    if world.units and config.enable_caching:
        units = [unit for unit in range(1, min(sizes) + 1) if not any(size % unit for size in sizes)]
        config = replace(config, prefix_match_unit=choose(units))
    resets = (choose(range(5, 25)),) if choose(RARELY) else ()
    seed, grows, (dtype, cache) = choose((0, 1, 2)), choose(OFTEN), choose(world.dtypes)
    return Schedule(layers, draft, config, tuple(jobs), resets, seed, grows, dtype, cache or None)


def random_schedule(world: World, seed: object) -> Schedule:
    return schedule(Random(f"{world.name} {seed}").choice, world)
