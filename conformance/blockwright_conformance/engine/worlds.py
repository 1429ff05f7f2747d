"""The worlds of the numerics gate: which layers and features meet in the schedules that Hypothesis draws.

A world is a row of the gate. Within it everything is drawn: block sizes, windows, chunks, the pool, the requests, and
which features are on; simple values first, so that what fails shrinks to what it needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from blockwright_spec.reads import Chunked, Cross, Full, Group, Mamba, Sliding

from .schedule import EngineConfig, Job, Schedule

MOST_DRAFTS = 2
MAX_LEN = 32
"""Tokens of the longest request."""


@dataclass(frozen=True)
class World:
    """What is drawn in a row of the gate.

    Attributes:
        name: of the row.
        kinds: of layers that every model of this world has.
        more: of layers that it may have besides.
        guessers: who may guess tokens ahead; none: nobody.
        preemptions: ways of preemption.
        offloads: when blocks may go to the host.
        overlaps: whether steps overlap.
        caching: whether prefixes may be shared.
        forks: whether requests may fork.
    """

    name: str
    kinds: tuple[str, ...]
    more: tuple[str, ...] = ()
    guessers: tuple[str, ...] = ("ngram", "random")
    preemptions: tuple[str, ...] = ("recompute", "swap")
    offloads: tuple[str, ...] = ("",)
    overlaps: tuple[bool, ...] = (False,)
    caching: tuple[bool, ...] = (True,)
    forks: bool = True


WORLDS: dict[str, World] = {
    world.name: world
    for world in (
        World("full attention", ("full",), ("full",), caching=(True, False)),
        World("windows", ("sliding",), ("full", "sliding")),
        World("chunks", ("chunked",), ("full", "sliding")),
        World("states", ("mamba",), ("full",), caching=(True, False)),
        World("all kinds", ("full", "sliding", "chunked", "mamba")),
        World("encoder", ("full", "cross"), ("sliding", "mamba"), caching=(False,)),
        World("draft head", ("full",), ("sliding", "mamba"), guessers=("eagle",), overlaps=(False, True)),
        World("steps in flight", ("full",), ("sliding", "chunked", "mamba"), overlaps=(True,)),
        World(
            "offload", ("full",), ("sliding", "chunked", "mamba"), offloads=("publish", "evict"), overlaps=(False, True)
        ),
    )
}
"""All worlds, by name."""

@st.composite
def layer(draw: Any, kind: str, sizes: tuple[int, ...], drafts: int) -> Group:
    """Draw a layer of a kind."""
    size = draw(st.sampled_from(sizes))
    match kind:
        case "full":
            return Group(Full(), size)
        case "sliding":
            return Group(Sliding(draw(st.sampled_from((6, 3, 4, 5, 9, 2, 1)))), size)
        case "chunked":
            return Group(Chunked(size * draw(st.sampled_from((2, 1, 3)))), size)
        case "mamba":
            return Group(Mamba(drafts), size)
    return Group(Cross(), size)


@st.composite
def configs(draw: Any, world: World) -> EngineConfig:
    """Draw the features of an engine."""
    caching = draw(st.sampled_from(world.caching))
    overlap = draw(st.sampled_from(world.overlaps))
    guesser = draw(st.sampled_from(("", *world.guessers)))
    offload = draw(st.sampled_from(world.offloads)) if caching else ""
    flag, rare = st.booleans(), st.sampled_from((False, False, False, True))
    return EngineConfig(
        max_num_seqs=draw(st.sampled_from((4, 6, 3, 2))),
        max_num_batched_tokens=draw(st.sampled_from((16, 32, 12, 7))),
        max_model_len=MAX_LEN,
        enable_caching=caching,
        spare_blocks=draw(st.sampled_from((0, 2, 6, 14))),
        align_chunks=draw(flag),
        drafts=draw(st.integers(1, MOST_DRAFTS)) if guesser else 0,
        guesser=guesser or "ngram",
        declare_drafts=draw(flag) if guesser else True,
        preemption=draw(st.sampled_from(world.preemptions)),
        host_blocks=draw(st.sampled_from((48, 12))),
        load_steps=draw(st.integers(1, 2)),
        lose_load_every=draw(st.sampled_from((0, 0, 2, 3))),
        offload=offload,
        offload_blocks=draw(st.sampled_from((48, 12))) if offload else 48,
        overlap_steps=overlap,
        publish_on_settlement=draw(flag) if overlap else False,
        delay_publication=draw(rare) if caching else False,
        trim_early=draw(rare),
        plan_first=draw(rare),
        full_sequence_must_fit=draw(rare),
        watermark=draw(st.sampled_from((0.0, 0.0, 0.1))),
        reserved_blocks=draw(st.sampled_from((0, 0, 1))),
    )


@st.composite
def jobs(draw: Any, world: World, number: int) -> Job:
    """Draw a request: of one of two families that share up to 16 tokens, in an order that lets some hit others."""
    shared = draw(st.sampled_from((0, 16, 8, 12, 13)))
    own = draw(st.integers(1, 10))
    output = draw(st.integers(1, MAX_LEN - 26))
    forks: tuple[int, ...] = ()
    if world.forks and draw(st.sampled_from((False, False, False, True))):
        forks = tuple(sorted(draw(st.lists(st.integers(0, output - 1), min_size=1, max_size=2))))
    return Job(
        shared=shared,
        own=own,
        output=output,
        arrival=draw(st.sampled_from((0, number, 3 * number))),
        family=draw(st.sampled_from((0, 0, 1))),
        variation=draw(st.integers(0, 2)),
        seed=draw(st.sampled_from((None, 1))),
        salt=draw(st.sampled_from((None,) * 7 + ("salt",))),
        adapter=draw(st.sampled_from((0,) * 5 + (1,))),
        encoder=draw(st.integers(1, 9)) if "cross" in world.kinds else 0,
        abort=draw(st.integers(0, output - 1)) if draw(st.sampled_from((False,) * 7 + (True,))) else None,
        forks=forks,
    )


@st.composite
def schedules(draw: Any, world: World) -> Schedule:
    """Draw a schedule of a world."""
    config = draw(configs(world))
    kinds = [*world.kinds, *(kind for kind in world.more if draw(st.booleans()))]
    sizes = draw(st.sampled_from(((4,), (2, 4), (4, 8), (3, 6), (1, 2))))
    layers = tuple(draw(layer(kind, sizes, config.drafts)) for kind in kinds)
    eagle = config.guesser == "eagle" and config.drafts > 0
    draft = draw(layer(draw(st.sampled_from(("full", "sliding"))), sizes, 0)) if eagle else None
    count = draw(st.integers(1, 8))
    return Schedule(
        layers,
        draft,
        config,
        tuple(draw(jobs(world, number)) for number in range(count)),
        resets=tuple(draw(st.lists(st.integers(5, 25), max_size=1))),
        model_seed=draw(st.integers(0, 2)),
        grow_blocks=draw(st.booleans()),
    )
