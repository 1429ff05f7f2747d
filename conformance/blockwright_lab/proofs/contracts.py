"""Contracts: functions of the implementation do what the specification defines as a set, for all small numbers.

Each takes a few numbers, runs the function itself, loops included, and tells whether it gives what the specification
says. They are tried with every choice from the ranges beside them, so that nothing of these is left open; what theorems
say for all numbers (`windows`, `tables`, `paging`) is not here.
"""

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import blockwright
from blockwright.kinds import ChunkedLocalAttentionSpec
from blockwright_conformance.kv_cache.blockwright import kv_cache_spec
from blockwright_spec.manager.outcomes import Step
from blockwright_spec.manager.plans import whole_demand
from blockwright_spec.manager.preconditions import starting
from blockwright_spec.manager.state import Config, Hit, Running, Waiting, initial
from blockwright_spec.reads import Chunked, Full, Group, Kind, Mamba, Sinks, Sliding, longest_hit, peak
from blockwright_spec.worker import storage

from ..known_bugs.variants import variant


class Contract(NamedTuple):
    """A condition: its name, the functions that it is about, what it says, and the numbers with which it is tried."""

    name: str
    about: frozenset[str]
    holds: Callable[..., bool]
    ranges: tuple[range, ...]

    def fault(self) -> str:
        """Return with which numbers it does not hold, or fails; nothing if it holds with all."""
        for numbers in product(*self.ranges):
            try:
                if not self.holds(*numbers):
                    return f"not so for {numbers}"
            except Exception as error:
                return f"{type(error).__name__} for {numbers}: {error}"
        return ""


class Answer(NamedTuple):
    """What came of one contract: nothing is said where it holds."""

    name: str
    said: str
    seconds: float


def answers(contracts: tuple[Contract, ...]) -> Iterator[Answer]:
    for each in contracts:
        started = time.perf_counter()
        yield Answer(each.name, each.fault(), time.perf_counter() - started)


@cache
def uncompiled() -> Any:
    """Return a copy of the package whose functions take any lookup, as those of a compiled core do not."""
    return variant()


def holds_its_peak(kind: Kind, tokens: int, step: int, size: int) -> bool:
    """Compare the most blocks held with the largest set of a step."""
    return bool(rule_of(kind, size).peak(tokens, step, size, 0) == peak(kind, size, tokens, step))


def rule_of(kind: Kind, size: int) -> Any:
    window = uncompiled().core.tables.window
    match kind:
        case Sliding(width):
            return window.SlidingRule(width, size)
        case Sinks(sinks, width):
            return window.SlidingRule(width, size, sinks)
        case Chunked(chunk):
            return window.ChunkedRule(chunk)
        case Mamba():
            return window.MambaRule()
    return window.WindowRule()


def holds_the_most(kind: Kind, tokens: int, step: int, flights: int, cached: int = 1) -> bool:
    """Compare the most blocks of a request with the specification's, steps in flight included."""
    caching = bool(cached)
    limits = storage.Limits(tokens, step, flights=flights, caching=caching)
    config = Config((Group(kind, 2),), 8, tokens, caching)
    spec = kv_cache_spec(kind, 2, uncompiled())
    answer = uncompiled().core.steps.plans.most_blocks(spec, tokens, step, caching, steps_in_flight=flights)
    return bool(answer == storage.held(config, config.groups[0], limits))


def holds_the_whole(kinds: tuple[Kind, ...], sizes: tuple[int, ...], tokens: int, step: int, ahead: int) -> bool:
    """Compare the most blocks held in steps of one size, over all groups at once, with the specification's."""
    groups, longest = tuple(Group(kind, size) for kind, size in zip(kinds, sizes, strict=True)), tokens + 1
    config = Config(groups, 8, longest)
    step = min(step, tokens)
    state = replace(initial(config, 1), requests=(Waiting((0, (0,) * tokens)),))
    start = starting(state, 0, Hit(), Step(step, ahead))
    assert isinstance(start, Running)
    core = uncompiled().core
    specs = [kv_cache_spec(group.kind, group.block_size, uncompiled()) for group in groups]
    pool = core.pool.pool.BlockPool(8)
    tables = [core.tables.group.group_tables(spec, pool, at, 1) for at, spec in enumerate(specs)]
    ask = core.tables.ask.StepRequest()
    ask.new, ask.ahead = step, ahead
    own = SimpleNamespace(groups=tables, config=SimpleNamespace(max_len=longest))
    return bool(core.steps.plans.most_in_steps(own, tokens, ask) == whole_demand(state, start, 0, Step(step, ahead)))


class Cached:
    """A lookup in which the blocks that are cached are given; its walk is that of `Probe`."""

    def last_run(self, *arguments: int) -> Any:
        return uncompiled().core.tables.window.Probe.last_run(self, *arguments)

    def __init__(self, blocks: tuple[int, ...], block_size: int, max_length: int, margin: int) -> None:
        self.block_size, self.margin, self.run_end = block_size, margin, -1
        self._limit = min(max_length // block_size, len(blocks))
        self.blocks = blocks

    def cached(self, index: int) -> bool:
        """Return whether a block is cached, within the length asked for."""
        return index < self._limit and bool(self.blocks[index])

    def fill_run(self) -> int:
        return next((at for at in range(self._limit) if not self.blocks[at]), self._limit)


def hit_is_longest(kinds: tuple[Kind, ...], tokens: int, eagle: int, *cached: int) -> bool:
    """Compare the longest hit of blocks of one token with the longest aligned length at which all can be read."""
    groups, count = tuple(Group(kind, 1) for kind in kinds), len(cached) // len(kinds)
    held = [cached[at * count : (at + 1) * count] for at in range(len(kinds))]

    def found(at: int, prefix: Any) -> bool:
        return bool(held[at][len(prefix[1]) - 1])

    most = tokens - 1 + eagle  # as the core asks: a margin more
    probes: list[Any] = [Cached(blocks, 1, most, eagle) for blocks in held]
    answer = uncompiled().core.tables.window.common_hit([rule_of(kind, 1) for kind in kinds], probes, 1, tokens - 1)
    return bool(answer == longest_hit(groups, found, (0, (0,) * tokens), bool(eagle)))


@cache
def of_device(name: str) -> Any:
    """Return a module of `blockwright.device` that needs no torch, without importing the package, which does."""
    path = Path(blockwright.__path__[0]) / "device" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"blockwright_plain_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def grows_as_far_as_it_may(page: int, most: int, chunk: int, size: int) -> bool:
    """Compare how many times larger a chunked layer's blocks may be with the largest factor that is allowed."""
    spec, own = ChunkedLocalAttentionSpec(1, 1, size, "int8", chunk), 2 * size
    family = of_device("pages").Family(("layer",), {"layer": spec})
    factors = (each for each in range(1, chunk + 1) if chunk % each == 0 and own * each <= page and each <= most)
    return bool(family.growth(page, most) == max(factors, default=1))


def about(module: str, *names: str) -> frozenset[str]:
    return frozenset(f"blockwright.{module}:{name}" for name in names)


def to(most: int, least: int = 1) -> range:
    return range(least, most + 1)


ANY, NO = to(1, 0), to(0, 0)
"""Yes or no."""


def peaks(rule: str, name: str, holds: Callable[..., bool], *more: range) -> Contract:
    """Return the contract of a rule's peak, tried with tokens, steps and block sizes after its own numbers."""
    return Contract(
        f"{name}_holds_its_peak", about("core.tables.window", f"{rule}.peak"), holds, (*more, to(8), to(4), to(3))
    )


def most(name: str, holds: Callable[..., bool], *ranges: range) -> Contract:
    return Contract(f"{name}_requests_hold_the_most", about("core.steps.plans", "most_blocks"), holds, ranges)


def wholes(name: str, holds: Callable[..., bool], *more: range) -> Contract:
    """Return the contract of what a whole request holds, tried with tokens, steps, and lookahead last."""
    sums = about("core.steps.plans", "most_in_steps", "gcd") | about("core.tables.group", "GroupTables.held_in_step")
    return Contract(f"{name}_hold_the_whole", sums, holds, (*more, to(13), to(5), to(2, 0)))


def hits(name: str, rules: str, holds: Callable[..., bool], *ranges: range) -> Contract:
    """Return the contract of a longest hit, tried with its numbers, tokens, and each of six blocks cached or not."""
    walked = about("core.tables.window", "Probe.last_run", "common_hit", *(f"{rule}.longest" for rule in rules.split()))
    return Contract(name, walked, holds, (*ranges, *(ANY,) * 6))


def both_suit(window: int, *numbers: int) -> bool:
    return hit_is_longest((Full(), Sliding(window)), *numbers)


GROWTH = about("device.pages", "Family.growth")
CONTRACTS: Final = (
    peaks("WindowRule", "full", lambda *n: holds_its_peak(Full(), *n)),
    peaks("SlidingRule", "sliding", lambda window, *n: holds_its_peak(Sliding(window), *n), to(6)),
    peaks("SlidingRule", "sinks", lambda s, w, *n: holds_its_peak(Sinks(s, w), *n), to(3), to(4)),
    peaks("ChunkedRule", "chunked", lambda times, *n: holds_its_peak(Chunked(times * n[-1]), *n), to(3)),
    peaks("MambaRule", "mamba", lambda *n: holds_its_peak(Mamba(), *n)),
    most("full", lambda *n: holds_the_most(Full(), *n), to(8), to(3), to(3)),
    most("sliding", lambda window, *n: holds_the_most(Sliding(window), *n), to(5), to(8), to(3), to(3)),
    most("chunked", lambda times, *n: holds_the_most(Chunked(2 * times), *n), to(3), to(8), to(3), to(3)),
    most("mamba", lambda drafts, *n: holds_the_most(Mamba(drafts), *n), to(2, 0), to(8), to(1), to(3), ANY),
    wholes("full", lambda *n: holds_the_whole((Full(), Full()), (2, 3), *n)),
    wholes("sliding", lambda w, *n: holds_the_whole((Full(), Sliding(w)), (1, 2), *n), to(5)),
    wholes("sinks", lambda w, *n: holds_the_whole((Sinks(2, w), Mamba(2)), (2, 3), *n), to(5)),
    wholes("chunked", lambda c, *n: holds_the_whole((Chunked(2 * c), Sliding(4)), (2, 3), *n), to(3)),
    hits("full_hits_are_longest", "WindowRule", lambda *n: hit_is_longest((Full(),), *n), to(6), ANY),
    hits("sliding_hits_are_longest", "SlidingRule", lambda w, *n: hit_is_longest((Sliding(w),), *n), to(6), to(6), ANY),
    hits(
        "sink_hits_are_longest",
        "SlidingRule",
        lambda s, w, *n: hit_is_longest((Sinks(s, w),), *n),
        to(3),
        to(3),
        to(6),
        ANY,
    ),
    hits("chunked_hits_are_longest", "ChunkedRule", lambda c, *n: hit_is_longest((Chunked(c),), *n), to(6), to(6), NO),
    hits("mamba_hits_are_longest", "MambaRule", lambda *n: hit_is_longest((Mamba(),), *n), to(6), NO),
    hits("hits_suit_all_groups", "WindowRule SlidingRule", both_suit, to(4), to(3), ANY),
    Contract("blocks_grow_as_far_as_they_may", GROWTH, grows_as_far_as_it_may, (to(12), to(6), to(8), to(3))),
)
"""Every contract."""
