"""Contracts on the specification's definitions, and on the implementation's closed forms beside those definitions."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from blockwright_conformance.kv_cache.blockwright import kv_cache_spec
from blockwright_spec import reads as book
from blockwright_spec.block_tables import counts
from blockwright_spec.manager import hits, room
from blockwright_spec.manager.demand import Step
from blockwright_spec.manager.facts import goes_back
from blockwright_spec.manager.plans import whole_demand
from blockwright_spec.manager.preconditions import start_of
from blockwright_spec.manager.state import Config, Hit, Running, Waiting, initial
from blockwright_spec.reads import Ahead, Chunked, Full, Group, Kind, Mamba, Sinks, Sliding
from blockwright_spec.worker import storage

from ..known_bugs.variants import variant
from .contract import CONTRACTS, Contract


def to(most: int, least: int = 1) -> range:
    return range(least, most + 1)


NO, FLAG, ATTENTION = range(1), (False, True), "full sliding sinks chunked"
ALL = f"{ATTENTION} mamba"
LAYERS: dict[str, tuple[Callable[[int, int], Kind], range, range]] = {
    "full": (lambda width, sinks: Full(), to(1), NO),
    "sliding": (lambda width, sinks: Sliding(width), to(6), NO),
    "sinks": (lambda width, sinks: Sinks(sinks, width), to(4), to(3)),
    "chunked": (lambda width, sinks: Chunked(width), to(4), NO),
    "mamba": (lambda width, sinks: Mamba(), to(1), to(2, 0)),
}
"""The kinds by name, made of a width (window or chunk) and a number of sinks; and both (or drafts) where tried."""

OWN: Any = variant()
"""A copy of the package that is not compiled: CrossHair follows Python only."""
CORE: Any = OWN.core

READS, TABLES, PLANS = "spec: reads", "core: tables", "core: plans"


def rule(kind: Kind, size: int) -> Any:
    window = CORE.tables.window
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


def bare(of: Any, **fields: Any) -> Any:
    """Return an instance with some fields alone: constructors take numbers, not what stands for many."""
    made = object.__new__(of)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def tables(kind: Kind, size: int, layout: str = "Row") -> Any:
    own = rule(kind, size)
    given = {"rule": own, "sinks": own.sinks, "_block_size": size, "has_spots": False}
    return bare(getattr(CORE.tables.layouts, layout), **given, is_encoder=False, num_states=0)


Function = Callable[..., None]


def contract(part: str, statement: str, *tried: Iterable[int]) -> Callable[[Function], Function]:
    def add(function: Function) -> Function:
        CONTRACTS.append(Contract(part, "all", statement, function, tried))
        return function

    return add


Maker = Callable[[Callable[[int, int], Kind], int], Function]


def of_kinds(
    part: str, statement: str, *rest: Iterable[int], layers: str = ALL, tried: str = ""
) -> Callable[[Maker], Maker]:
    """Add a contract for each of several kinds; for those in `tried`, values are, `rest` being the other arguments'."""

    def add(make: Maker) -> Maker:
        for layer in layers.split():
            kind, *own = LAYERS[layer]
            values = (*own, *rest) if layer in tried.split() else ()
            # What a token reads under sinks is walked: so there are few of them, and narrow windows.
            function = make(kind, 3 if layer == "sinks" else 2**40)
            CONTRACTS.append(Contract(part, layer, statement, function, values))
        return make

    return add


# --- the definitions


@of_kinds(READS, "a token reads earlier positions, and later tokens read no others of them")
def _(kind: Callable[[int, int], Kind], most: int) -> Function:
    def holds(width: int, sinks: int, length: int, later: int, position: int) -> None:
        assert 1 <= width <= most and 0 <= sinks <= most and 0 <= length <= later
        each = kind(width, sinks)
        if position in book.reads(each, later):
            assert 0 <= position < later
            assert position >= length or position in book.reads(each, length)

    return holds


@of_kinds(READS, "a dead entry is written, and no later token reads it")
def _(kind: Callable[[int, int], Kind], most: int) -> Function:
    def holds(width: int, sinks: int, size: int, entry: int, length: int, later: int, position: int) -> None:
        assert 1 <= width <= most and 0 <= sinks <= most and 1 <= size <= 3
        assert entry >= 0 and 0 <= length <= later and position // size == entry
        each = kind(width, sinks)
        if book.dead(each, size, length, entry):
            assert position < length and position not in book.reads(each, later)

    return holds


@contract(READS, "entries cover the slots, and one less does not")
def _(size: int, length: int, entry: int) -> None:
    assert size >= 1 and length >= 0 and entry >= 0
    assert (entry < book.entries(size, length)) == (entry * size < length)


# --- what a kind keeps


@of_kinds(TABLES, "needed positions are those from first_needed on, and sinks")
def _(kind: Callable[[int, int], Kind], most: int) -> Function:
    def holds(width: int, sinks: int, size: int, length: int, position: int) -> None:
        assert 1 <= width <= most and 0 <= sinks <= most and size >= 1 and 0 <= position < length
        each = kind(width, sinks)
        kept = position >= rule(each, size).first_needed(length) or (isinstance(each, Sinks) and position < sinks)
        assert (position in book.needed(each, length)) == kept

    return holds


@of_kinds(TABLES, "last_needing is the last length at which an earlier position is needed")
def _(kind: Callable[[int, int], Kind], most: int) -> Function:
    def holds(width: int, sinks: int, size: int, length: int, position: int) -> None:
        assert 1 <= width <= most and 0 <= sinks <= most and size >= 1 and 0 <= length <= 2**40 and position >= 1
        each = rule(kind(width, sinks), size)
        assert (each.first_needed(length) < position) == (length <= each.last_needing(position))

    return holds


@of_kinds(TABLES, "trims, trim_at and first_kept agree with the dead entries")
def _(kind: Callable[[int, int], Kind], most: int) -> Function:
    def holds(width: int, sinks: int, size: int, length: int, trimmed: int) -> None:
        assert 1 <= width <= most and 0 <= sinks <= most and 1 <= size <= 3
        assert trimmed >= 0 and 0 <= length < 2**40
        each = kind(width, sinks)
        group, own = tables(each, size), bare(CORE.tables.table.GroupTable, num_trimmed=trimmed)
        entry = max(trimmed, group.sinks)
        is_dead = book.dead(each, size, length, entry)
        assert is_dead == (entry < group.first_kept(length)) == group.trims(own, length)
        assert is_dead == (length >= group.trim_at(trimmed))

    return holds


@contract(TABLES, "entries_for and missing count entries and new blocks in each layout")
def _(layout: int, size: int, held: int, length: int) -> None:
    assert 0 <= layout <= 2 and size >= 1 and held >= 0 and length >= 0 and (layout < 2 or held <= 1)
    group = tables(Full(), size, ("Row", "LastState", "OneState")[layout])
    wanted = book.entries(length + 1 if layout == 2 else size, length)
    assert group.entries_for(length) == wanted
    assert group.missing(held, length) == (0 if wanted <= held else 1 if layout else wanted - held)


@contract(TABLES, "growth changes nothing exactly up to in_place_slots")
def _(size: int, held: int, published: int, length: int, caching: bool) -> None:
    assert size >= 1 and held >= 0 and published >= 0 and 0 <= length < 2**40
    group, own = tables(Full(), size), bare(CORE.tables.table.GroupTable, blocks=range(held), num_published=published)
    fills = published < length // size
    assert group.publishes(own, length) == fills
    changes = held < book.entries(size, length) or (caching and fills)
    assert (length <= group.in_place_slots(own, caching, length)) == (not changes)


# --- the most blocks held


def whole_chunks(kind: Kind, size: int) -> Kind:
    """Return a kind whose chunk is so many blocks long; others are refused."""
    return Chunked(kind.chunk * size) if isinstance(kind, Chunked) else kind


@of_kinds(
    TABLES, "peak is the most blocks that a step reads and fills", to(3), to(8), to(4), tried="sliding sinks chunked"
)
def _(kind: Callable[[int, int], Kind], most: int) -> Function:
    def holds(width: int, sinks: int, size: int, slots: int, step: int) -> None:
        assert 1 <= width <= 6 and 0 <= sinks <= 3 and 1 <= size <= 3 and 1 <= slots <= 8 and 1 <= step <= 4
        each = whole_chunks(kind(width, sinks), size)
        assert rule(each, size).peak(slots, step, size, 0) == book.peak(each, size, slots, step)

    return holds


@of_kinds(
    TABLES, "no step holds more than the peak", to(3), to(9, 9), to(5), to(8, 0), layers=ATTENTION, tried="chunked"
)
def _(kind: Callable[[int, int], Kind], most: int) -> Function:
    def holds(width: int, sinks: int, size: int, slots: int, step: int, start: int) -> None:
        assert 1 <= width <= most and 0 <= sinks <= most and 1 <= size <= 3 and 0 <= start < slots and step >= 1
        each = whole_chunks(kind(width, sinks), size)
        group, stop = tables(each, size), min(start + step, slots)
        assert group.held_in_step(start, stop, stop, 0) <= group.peak(slots, step, 0)

    return holds


@of_kinds(TABLES, "a step holds the blocks that it reads and fills", to(3), to(12, 0), to(3), tried="full sinks")
def _(kind: Callable[[int, int], Kind], most: int) -> Function:
    def holds(width: int, sinks: int, size: int, start: int, count: int) -> None:
        assert 1 <= width <= 4 and 0 <= sinks <= 3 and 1 <= size <= 3 and start >= 0 and 1 <= count <= 3
        each = kind(width, sinks)
        group, stop = tables(each, size, "LastState" if isinstance(each, Mamba) else "Row"), start + count
        held = book.hit_entries(each, size, start) | book.filled(each, size, start, stop)
        assert group.held_in_step(start, stop, stop, 0) == len(held)

    return holds


@of_kinds(PLANS, "most_blocks counts steps in flight, and drafts", to(8), to(3), to(3), FLAG, tried=ALL)
def _(kind: Callable[[int, int], Kind], most: int) -> Function:
    def holds(width: int, more: int, tokens: int, step: int, flights: int, caching: bool) -> None:
        assert 1 <= width <= 6 and 0 <= more <= 3 and 1 <= tokens <= 8 and 1 <= step <= 3 and 1 <= flights <= 3
        each = whole_chunks(kind(width, more), 2)
        if isinstance(each, Mamba):
            each = Mamba(more)
        config = Config((Group(each, 2),), 8, tokens, caching)
        wanted = storage.held(config, config.groups[0], storage.Limits(tokens, step, flights=flights, caching=caching))
        spec = kv_cache_spec(each, 2, OWN)
        assert CORE.steps.plans.most_blocks(spec, tokens, step, caching, steps_in_flight=flights) == wanted

    return holds


PAIRS: dict[str, Callable[[int], tuple[Group, Group]]] = {
    "full, full": lambda width: (Group(Full(), 2), Group(Full(), 3)),
    "full, sliding": lambda width: (Group(Full(), 1), Group(Sliding(width), 2)),
    "sinks, mamba": lambda width: (Group(Sinks(2, width), 2), Group(Mamba(2), 3)),
    "chunked, sliding": lambda width: (Group(Chunked(2 * width), 2), Group(Sliding(4), 3)),
}


def of_pair(groups: Callable[[int], tuple[Group, Group]]) -> Function:
    def holds(width: int, tokens: int, step: int, ahead: int) -> None:
        assert 1 <= width <= 5 and 1 <= tokens <= 13 and 1 <= step <= 5 and 0 <= ahead <= 2
        two, longest, new = groups(width), tokens + 1, min(step, tokens)
        state = replace(initial(Config(two, 8, longest), 1), requests=(Waiting((0, (0,) * tokens)),))
        asked = Step(new, lookahead=ahead)
        start = start_of(state, 0, Hit(), asked)
        assert isinstance(start, Running)
        pool, ask = CORE.pool.pool.BlockPool(8), CORE.tables.ask.StepRequest()
        ask.new, ask.ahead = new, ahead
        specs = [kv_cache_spec(group.kind, group.block_size, OWN) for group in two]
        made = [CORE.tables.layouts.group_tables(spec, pool, at, 1) for at, spec in enumerate(specs)]
        own = SimpleNamespace(groups=made, config=SimpleNamespace(max_len=longest))
        assert CORE.steps.plans.most_in_steps(own, tokens, ask) == whole_demand(state, start, 0, asked)

    return holds


WHOLE = "a request holds the most blocks of all groups in one step"
CONTRACTS += [
    Contract(PLANS, layer, WHOLE, of_pair(groups), (to(5), to(13), to(5), to(2, 0))) for layer, groups in PAIRS.items()
]


ROOMS: dict[str, Callable[[int], tuple[Group, ...]]] = {
    "full, mamba": lambda drafts: (Group(Full(), 2), Group(Mamba(drafts), 3)),
    "sliding, mamba, mamba": lambda drafts: (Group(Sliding(3), 2), Group(Mamba(drafts), 2), Group(Mamba(drafts), 4)),
    "chunked, ahead": lambda drafts: (Group(Chunked(4), 2), Group(Ahead(drafts), 2)),
    "full, sinks": lambda drafts: (Group(Full(), 2), Group(Sinks(1, 3), 3)),
}


def of_room(groups: Callable[[int], tuple[Group, ...]]) -> Function:
    def holds(drafts: int, num_blocks: int, hit: int, rest: int, more: int) -> None:
        assert 0 <= drafts <= 2 and 2 <= num_blocks <= 12 and 1 <= hit <= 7 and 1 <= rest <= 5 and 0 <= more <= 6
        known = hit + rest
        config = Config(groups(drafts), num_blocks, known + more)
        specs = [kv_cache_spec(each.kind, each.block_size, OWN) for each in config.groups]
        made = [CORE.tables.layouts.group_tables(each, CORE.pool.pool.BlockPool(2), 0, 1) for each in specs]
        most = goes_back(config)
        limits = SimpleNamespace(max_len=config.max_model_len, most_drafts=-1 if most is None else most)
        own = SimpleNamespace(groups=made, config=limits, pool=SimpleNamespace(_size=num_blocks))
        has_room = CORE.steps.units.has_room(own, known, hit)
        assert has_room == room.has_room(config, known, hit)
        stops = [(stop, slots) for stop in range(hit + 1, known + 1) for slots in (stop, known + more)]
        assert not has_room or all(fits(config, known, hit, *ends) for ends in stops if fits(config, known, 0, *ends))

    return holds


def fits(config: Config, known: int, at: int, stop: int, slots: int) -> bool:
    """Return whether a step fits alone, if it looks no further ahead than there may be drafts."""
    most = goes_back(config)
    within = slots if most is None else min(slots, stop + most)
    return room.held_alone(config, known, at, stop, within) < config.num_blocks


ROOM = "a hit has room wherever each step fits with it that fits without (LIVE-3)"
CONTRACTS += [
    Contract("core: units", layer, ROOM, of_room(groups), (to(2, 0), to(9, 3), to(5), to(4), (0, 2, 5)))
    for layer, groups in ROOMS.items()
]


# --- hits


class Cached(CORE.tables.window.Probe):  # type: ignore[misc]
    """A lookup in which the blocks that are cached are given."""

    def __init__(self, blocks: tuple[bool, ...], max_length: int, margin: int) -> None:
        self.block_size, self.margin, self.run_end = 1, margin, -1
        self.blocks, self.limit = blocks, min(max_length, len(blocks))
        self.lowest = self.limit

    def cached(self, index: int) -> bool:
        return index < self.limit and self.blocks[index]

    def fill_back(self, start: int, stop: int) -> None:
        pass

    def fill_run(self) -> int:
        return next((at for at in range(self.limit) if not self.blocks[at]), self.limit)


def check_hit(kinds: tuple[Kind, ...], tokens: int, eagle: bool, *cached: tuple[bool, ...]) -> None:
    most = tokens - 1 + eagle  # as the core asks: a margin more
    probes = [Cached(blocks, most, int(eagle)) for blocks in cached]
    hit = CORE.tables.window.common_hit([rule(kind, 1) for kind in kinds], probes, 1, tokens - 1)
    groups, prefix = tuple(Group(kind, 1) for kind in kinds), (0, (0,) * tokens)
    assert hit == book.longest_hit(groups, lambda at, part: cached[at][len(part[1]) - 1], prefix, eagle)


@of_kinds(TABLES, "a hit is the longest of which every needed block is cached", to(6), *(FLAG,) * 7, tried=ALL)
def _(kind: Callable[[int, int], Kind], most: int) -> Function:
    def holds(
        width: int, sinks: int, end: int, eagle: bool, a: bool, b: bool, c: bool, d: bool, e: bool, f: bool
    ) -> None:
        assert 1 <= width <= 6 and 0 <= sinks <= 3 and 1 <= end <= 6
        each = kind(width, sinks)
        check_hit((each,), end, bool(eagle) and not isinstance(each, Chunked), (a, b, c, d, e, f))

    return holds


@contract(TABLES, "a hit suits a leading run and a window at once", to(3), to(3), *(FLAG,) * 6)
def _(width: int, tokens: int, a: bool, b: bool, c: bool, d: bool, e: bool, f: bool) -> None:
    assert 1 <= width <= 3 and 1 <= tokens <= 3
    check_hit((Full(), Sliding(width)), tokens, False, (a, b, c), (d, e, f))


@of_kinds(TABLES, "is_useful says whether some hit can need a block (PUB-2)", to(3), to(4), to(9, 0), FLAG, tried=ALL)
def _(kind: Callable[[int, int], Kind], most: int) -> Function:
    def holds(width: int, sinks: int, size: int, times: int, entry: int, eagle: bool) -> None:
        assert 1 <= width <= 7 and 0 <= sinks <= 3 and 1 <= size <= 3 and 1 <= times <= 4 and 0 <= entry <= 9
        each = whole_chunks(kind(width, sinks), size)
        config = Config((Group(each, size), Group(Full(), size * times)), 8, 99, eagle=eagle)
        group = tables(each, size, "LastState" if isinstance(each, Mamba) else "Row")
        group.keeps_all = isinstance(each, Full)
        group.align(size * times, eagle)
        assert group.is_useful(entry) == hits.useful(config, 0, entry)

    return holds


# --- keys, rows, block tables and plans


@contract("core: keys", "a block is full exactly if all its units are")
def _(units: int, full: int, index: int) -> None:
    assert units >= 1 and full >= 0 and index >= 0
    keys = bare(CORE.keys.request.BlockKeys, units=units, num_units=full)
    assert (index < keys.num_blocks()) == (units * (index + 1) <= full)


@contract("paging", "an append touches the blocks that the specification counts")
def _(size: int, full: int, tokens: int, ahead: int) -> None:
    assert 1 <= size <= 16 and 0 <= full <= 40 and tokens >= 0 and ahead >= 0
    own = bare(OWN.paging.block_table.BlockTable, _size=size, _num_full=full)
    config: Any = SimpleNamespace(block_size=size)
    known: Any = SimpleNamespace(prefix=(0, range(full)))
    assert own.num_touched(tokens, ahead) == counts.touched(config, known, tokens, ahead)
