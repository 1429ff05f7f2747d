"""Contracts on the specification's definitions, and on the core's closed forms, compared with the specification's sets.

A contract is a function of integers: assertions at its head say for which integers it is made, those after them what
holds. CrossHair runs the functions themselves, uncompiled, with integers that stand for all of those at once. Where a
contract has ranges, there are too many paths for that: all integers of the ranges are tried, and others searched.
"""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

from blockwright_conformance.kv_cache.blockwright import kv_cache_spec
from blockwright_spec import reads as book
from blockwright_spec.manager.outcomes import Step
from blockwright_spec.manager.plans import whole_demand
from blockwright_spec.manager.preconditions import starting
from blockwright_spec.manager.state import Config, Hit, Waiting, initial
from blockwright_spec.reads import Chunked, Full, Group, Kind, Mamba, Sinks, Sliding
from blockwright_spec.worker import storage

from ..known_bugs.variants import variant


class Contract(NamedTuple):
    """A statement about some part of the product, the function that says it, and the ranges to try, if any."""

    part: str
    layer: str
    statement: str
    function: Callable[..., None]
    ranges: tuple[range, ...] = ()


CONTRACTS: list[Contract] = []
"""Every contract."""

LAYERS: dict[str, Callable[[int, int], Kind]] = {
    "full": lambda width, sinks: Full(),
    "sliding": lambda width, sinks: Sliding(width),
    "sinks": lambda width, sinks: Sinks(sinks, width),
    "chunked": lambda width, sinks: Chunked(width),
    "mamba": lambda width, sinks: Mamba(),
}
"""The kinds by name, each with its width, the window or the chunk, and its sinks."""

DEFINITIONS, FORMS = "the definitions", "the core"


OWN: Any = variant()
CORE: Any = OWN.core
"""The core of a copy of the package that is not compiled: CrossHair reads Python."""


def rule(kind: Kind, size: int) -> Any:
    window = CORE.window
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


def tables(kind: Kind, size: int, layout: int = 0) -> Any:
    """Return a group's tables with a block size that may stand for many; the constructor takes numbers alone."""
    made = object.__new__(CORE.group.GroupTables)
    made.rule, made._block_size, made._layout, made.is_encoder = rule(kind, size), size, layout, False
    made.sinks, made.num_states = made.rule.sinks, 0
    return made


def table(**fields: Any) -> Any:
    """Return a request's table of which only some fields are read."""
    made = object.__new__(CORE.state.GroupTable)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def contract(part: str, statement: str, *ranges: range) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a contract about all kinds, or none."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        CONTRACTS.append(Contract(part, "all", statement, function, ranges))
        return function

    return add


Maker = Callable[[Callable[[int, int], Kind], int], Callable[..., None]]


def of_kinds(part: str, statement: str, layers: str = "full sliding sinks chunked mamba", **ranges: tuple[range, ...]) -> Callable[[Maker], Maker]:
    """Add a contract for each of several kinds, which is given the kind, and the most sinks and window beside them.

    What a token reads is a tuple under sinks, so that few of them, and narrow windows, are looked at.
    """

    def add(make: Maker) -> Maker:
        for layer in layers.split():
            function = make(LAYERS[layer], 3 if layer == "sinks" else 2**40)
            CONTRACTS.append(Contract(part, layer, statement, function, ranges.get(layer, ())))
        return make

    return add


# --- definitions


@of_kinds(DEFINITIONS, "a token reads earlier positions, and later tokens read no others of them")
def _(kind: Callable[[int, int], Kind], most: int) -> Callable[..., None]:
    def holds(width: int, sinks: int, length: int, later: int, position: int) -> None:
        assert 1 <= width <= most and 0 <= sinks <= most and 0 <= length <= later
        each = kind(width, sinks)
        if position in book.reads(each, later):
            assert 0 <= position < later
            assert position >= length or position in book.reads(each, length)

    return holds


@of_kinds(DEFINITIONS, "a dead entry is written, and no later token reads it")
def _(kind: Callable[[int, int], Kind], most: int) -> Callable[..., None]:
    def holds(width: int, sinks: int, size: int, entry: int, length: int, later: int, position: int) -> None:
        assert 1 <= width <= most and 0 <= sinks <= most and 1 <= size <= 3
        assert 0 <= entry and 0 <= length <= later and position // size == entry
        each = kind(width, sinks)
        if book.dead(each, size, length, entry):
            assert position < length and position not in book.reads(each, later)

    return holds


@contract(DEFINITIONS, "entries cover the slots, and one less does not")
def _(size: int, length: int, entry: int) -> None:
    assert size >= 1 and length >= 0 and entry >= 0
    assert (entry < book.entries(size, length)) == (entry * size < length)


@contract(DEFINITIONS, "a position lies in the entry of its quotient, and in no other")
def _(size: int, position: int, entry: int) -> None:
    assert size >= 1 and position >= 0
    assert (position in book.positions(size, entry)) == (position // size == entry)


# --- what a kind keeps


@of_kinds(FORMS, "needed positions are those from first_needed on, and sinks")
def _(kind: Callable[[int, int], Kind], most: int) -> Callable[..., None]:
    def holds(width: int, sinks: int, size: int, length: int, position: int) -> None:
        assert 1 <= width <= most and 0 <= sinks <= most and size >= 1 and 0 <= position < length
        each = kind(width, sinks)
        kept = position >= rule(each, size).first_needed(length) or (isinstance(each, Sinks) and position < sinks)
        assert (position in book.needed(each, length)) == kept

    return holds


@of_kinds(FORMS, "last_needing is the last length at which an earlier position is needed")
def _(kind: Callable[[int, int], Kind], most: int) -> Callable[..., None]:
    def holds(width: int, sinks: int, size: int, length: int, position: int) -> None:
        assert 1 <= width <= most and 0 <= sinks <= most and size >= 1 and 0 <= length <= 2**40 and position >= 1
        each = rule(kind(width, sinks), size)
        assert (each.first_needed(length) < position) == (length <= each.last_needing(position))

    return holds


@of_kinds(FORMS, "trims, trim_at and first_kept agree with the dead entries")
def _(kind: Callable[[int, int], Kind], most: int) -> Callable[..., None]:
    def holds(width: int, sinks: int, size: int, length: int, trimmed: int) -> None:
        assert 1 <= width <= most and 0 <= sinks <= most and 1 <= size <= 3
        assert 0 <= trimmed and 0 <= length < 2**40
        each = kind(width, sinks)
        group, own = tables(each, size), table(num_trimmed=trimmed)
        entry = max(trimmed, group.sinks)
        is_dead = book.dead(each, size, length, entry)
        assert is_dead == (entry < group.first_kept(length)) == group.trims(own, length)
        assert is_dead == (length >= group.trim_at(trimmed))

    return holds


@contract(FORMS, "entries_for and missing count entries and new blocks in each layout")
def _(layout: int, size: int, held: int, length: int) -> None:
    assert 0 <= layout <= 2 and size >= 1 and held >= 0 and length >= 0 and (layout < 2 or held <= 1)
    group, wanted = tables(Full(), size, layout), book.entries(length + 1 if layout == 2 else size, length)
    assert group.entries_for(length) == wanted
    assert group.missing(held, length) == (0 if wanted <= held else 1 if layout else wanted - held)


@contract(FORMS, "growth changes nothing exactly up to in_place_slots")
def _(size: int, held: int, published: int, length: int, caching: bool) -> None:
    assert size >= 1 and held >= 0 and published >= 0 and 0 <= length < 2**40
    group, own = tables(Full(), size), table(blocks=range(held), num_published=published)
    fills = published < length // size
    assert group.publishes(own, length) == fills
    changes = held < book.entries(size, length) or (caching and fills)
    assert (length <= group.in_place_slots(own, caching)) == (not changes)


# --- the most blocks held


@of_kinds(FORMS, "peak is the most blocks that a step reads and fills")
def _(kind: Callable[[int, int], Kind], most: int) -> Callable[..., None]:
    def holds(width: int, sinks: int, size: int, slots: int, step: int) -> None:
        assert 1 <= width <= 4 and 0 <= sinks <= min(most, 3) and 1 <= size <= 3 and 1 <= slots <= 5 and 1 <= step <= 4
        each = kind(width, sinks)
        if isinstance(each, Chunked):
            each = Chunked(width * size)  # others are refused
        assert rule(each, size).peak(slots, step, size, 0) == book.peak(each, size, slots, step)

    return holds


@of_kinds(FORMS, "no step holds more than the peak", "full sliding sinks chunked")
def _(kind: Callable[[int, int], Kind], most: int) -> Callable[..., None]:
    def holds(width: int, sinks: int, size: int, slots: int, step: int, start: int) -> None:
        assert 1 <= width and 0 <= sinks <= most and 1 <= size <= 3 and 0 <= start < slots and step >= 1
        each = kind(width, sinks)
        if isinstance(each, Chunked):
            each = Chunked(width * size)  # others are refused
        group, stop = tables(each, size), min(start + step, slots)
        assert group.held_in_step(start, stop, stop, 0) <= group.peak(slots, step, 0)

    return holds


@of_kinds(FORMS, "a step holds the blocks that it reads and fills")
def _(kind: Callable[[int, int], Kind], most: int) -> Callable[..., None]:
    def holds(width: int, sinks: int, size: int, start: int, count: int) -> None:
        assert 1 <= width <= 4 and 0 <= sinks <= 3 and 1 <= size <= 3 and start >= 0 and 1 <= count <= 3
        each = kind(width, sinks)
        group, stop = tables(each, size, 1 if isinstance(each, Mamba) else 0), start + count
        held = book.hit_entries(each, size, start) | book.filled(each, size, start, stop)
        assert group.held_in_step(start, stop, stop, 0) == len(held)

    return holds


class Cached:
    """A lookup in which the blocks that are cached are given; its walk is that of `Probe`."""

    def last_run(self, *arguments: int) -> Any:
        return CORE.window.Probe.last_run(self, *arguments)

    def __init__(self, blocks: tuple[bool, ...], max_length: int, margin: int) -> None:
        self.block_size, self.margin, self.run_end = 1, margin, -1
        self._limit = min(max_length, len(blocks))
        self.blocks = blocks

    def cached(self, index: int) -> bool:
        """Return whether a block is cached, within the length asked for."""
        return index < self._limit and self.blocks[index]

    def fill_run(self) -> int:
        return next((at for at in range(self._limit) if not self.blocks[at]), self._limit)


@of_kinds(FORMS, "hits are the longest of which every needed block is cached")
def _(kind: Callable[[int, int], Kind], most: int) -> Callable[..., None]:
    def holds(width: int, sinks: int, tokens: int, eagle: bool, a: bool, b: bool, c: bool, d: bool) -> None:
        assert 1 <= width <= 4 and 0 <= sinks <= 2 and 1 <= tokens <= 4
        each, blocks = kind(width, sinks), (a, b, c, d)
        use = eagle and not isinstance(each, Chunked | Mamba)
        probe = Cached(blocks, tokens - 1 + use, int(use))
        found = CORE.window.common_hit([rule(each, 1)], [probe], 1, tokens - 1)
        assert found == book.longest_hit((Group(each, 1),), lambda at, prefix: blocks[len(prefix[1]) - 1], (0, (0,) * tokens), use)

    return holds


@of_kinds(FORMS, "most_blocks counts steps in flight, and drafts", "full sliding chunked mamba")
def _(kind: Callable[[int, int], Kind], most: int) -> Callable[..., None]:
    def holds(width: int, drafts: int, tokens: int, step: int, flights: int, caching: bool) -> None:
        assert 1 <= width <= 3 and 0 <= drafts <= 2 and 1 <= tokens <= 5 and 1 <= step <= 2 and 1 <= flights <= 3
        each = kind(2 * width if kind(2, 0) == Chunked(2) else width, 0)
        if isinstance(each, Mamba):
            each = Mamba(drafts)
        config = Config((Group(each, 2),), 8, tokens, caching)
        wanted = storage.held(config, config.groups[0], storage.Limits(tokens, step, flights=flights, caching=caching))
        spec = kv_cache_spec(each, 2, OWN)
        assert CORE.plans.most_blocks(spec, tokens, step, caching, steps_in_flight=flights) == wanted

    return holds


@of_kinds(FORMS, "a whole request holds the most blocks of all groups at once", "sliding sinks chunked", (RANGES := (to(5), to(13), to(5), to(2, 0))))
def _(kind: Callable[[int, int], Kind], most: int) -> Callable[..., None]:
    def holds(width: int, tokens: int, step: int, ahead: int) -> None:
        assert 1 <= width <= 5 and 1 <= tokens <= 13 and 1 <= step <= 5 and 0 <= ahead <= 2
        ...
