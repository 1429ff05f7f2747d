"""What a state of parts one to three is in the block machine: one function for each part.

Blocks are numbered as there, from 1 where a part has no null block of its own. What has no table of tokens (fences,
copies, readers and writers) gets places that are numbered by block: the first that holds it, the second, and so on.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from itertools import accumulate

from blockwright_spec.block_machine import NULL, Block, Machine, Place, Table
from blockwright_spec.block_tables.state import Paged, PagedTable, ends, entries_of
from blockwright_spec.manager.facts import held_tables
from blockwright_spec.manager.keys import keyed
from blockwright_spec.manager.outcomes import table_of
from blockwright_spec.manager.state import Running, State
from blockwright_spec.offload.chain_state import Chain, Kind, readers, writers
from blockwright_spec.offload.tier_state import Entry, Phase, Tier
from blockwright_spec.reads import Full, Sliding, cut

KEPT = Table(Full(), 1)
"""The table of what is no request's: none of its entries ever dies."""

AT_ONCE = 1000
"""More than the holders that a block ever has."""


def several(name: Hashable, blocks: Iterable[int]) -> dict[Place, int]:
    times: Counter[int] = Counter()
    places: dict[Place, int] = {}
    for block in blocks:
        if block != NULL:
            places[name, block * AT_ONCE + times[block]] = block
            times[block] += 1
    return places


# --- part one: the manager


def of_manager(state: State) -> Machine:
    """Map a manager: requests' tables and their blocks for drafts, fences, and pins: copies and outside."""
    # Keys that look ahead also name tokens behind their block; the machine's keys name contents alone.
    keys = {block: (at, cut(named, keyed(state.config, named))) for block, (at, named) in state.keys}
    groups = tuple(enumerate(state.config.groups))
    counts = Counter(block for table in held_tables(state) for block in table)
    blocks = tuple(
        Block(counts[block] if block != NULL else 0, content, keys.get(block))
        for block, content in enumerate(state.contents)
    )
    tables: dict[Hashable, Table] = {"batches": KEPT}
    held = several("batches", (block for fence in state.batches for table in fence.tables for block in table))
    held |= several("copies", (block for _, source, target in state.copies for block in (source, target)))
    held |= several("outside", state.pins)
    for slot, request in enumerate(state.requests):
        for at, group in groups:
            tables[slot, at], tables["states", slot, at] = table_of(state, request, at, group), KEPT
            if isinstance(request, Running):
                held |= {((slot, at), entry): block for entry, block in enumerate(request.tables[at])}
                drafts = request.states[at] if request.states else ()
                held |= {(("states", slot, at), entry): block for entry, block in enumerate(drafts)}
    beyond = range(state.config.num_blocks, len(blocks))  # the page has no end: what is unheld there is free
    free = frozenset((*state.queue, *(block for block in beyond if not counts[block])))
    return Machine(blocks, free, tables, held)


# --- part two: block tables


def of_tables(state: Paged) -> Machine:
    """Map block tables: absolute block ids from 1, a pin for the block that stands for null, and pins for copies."""
    pins = several("copies", (block + 1 for block in ends(state.copies)))
    if state.null is not None:
        pins["null", 0] = state.null + 1
    counts = Counter(pins.values())
    blocks = tuple(
        Block(entries_of(state, block) + counts[block + 1], content, state.keys[block])
        for block, content in enumerate(state.contents)
    )
    held: dict[Place, int] = dict(pins)
    for slot, table in enumerate(state.tables):
        entries = () if table is None else table.entries
        held |= {(slot, entry): NULL if block == state.null else block + 1 for entry, block in enumerate(entries)}
    tables: dict[Hashable, Table] = {slot: windowed(state, table) for slot, table in enumerate(state.tables)}
    return Machine((Block(), *blocks), frozenset(block + 1 for block in state.free), tables, held)


def windowed(state: Paged, table: PagedTable | None) -> Table:
    """Return what is known of a table: under a window the next token reads as many blocks before it, and itself."""
    size, window = state.config.block_size, state.config.window
    kind = Full() if window is None else Sliding(window * size + 1)
    return Table(kind, size) if table is None else Table(kind, size, table.computed, len(table.entries) * size)


# --- part three: tiers, alone and in a chain


def of_tier(state: Tier) -> Machine:
    """Map a tier: its places are the blocks; what is ready and not read may be evicted."""
    writing = (entry.place + 1 for entry in state.entries if entry.phase is Phase.WRITING)
    reading = (entry.place + 1 for entry in state.entries for _ in range(entry.readers))
    held = {**several("writers", writing), **several("readers", reading)}
    return of_tiers((state,), (), frozenset(), held)


def of_tiers(
    tiers: tuple[Tier, ...], more: tuple[Block, ...], free: frozenset[int], held: Mapping[Place, int]
) -> Machine:
    """Map the places of tiers, one tier after another, and blocks after them; `free` are free ones among those."""
    blocks, unheld = [Block()], set(free)
    for tier in tiers:
        by_place = {entry.place: entry for entry in tier.entries}
        for place, content in enumerate(tier.contents):
            entry = by_place.get(place)
            if entry is None or (entry.phase is Phase.READY and not entry.readers):
                unheld.add(len(blocks))
            blocks.append(Block() if entry is None else block_of(entry, content))
    tables: dict[Hashable, Table] = {"writers": KEPT, "readers": KEPT, "engine": KEPT}
    return Machine((*blocks, *more), frozenset(unheld), tables, held)


def block_of(entry: Entry, content: Hashable) -> Block:
    count = 1 if entry.phase is Phase.WRITING else entry.readers
    return Block(count, content, entry.key if entry.phase is Phase.READY else None)


def of_chain(state: Chain) -> Machine:
    """Map a chain: the places of all tiers, held by transfers, and the device's blocks, by transfers and the engine."""
    firsts = [*accumulate((len(tier.contents) for tier in state.tiers), initial=1)]
    entries = [(at, firsts[at] + each.place, each.key) for at, tier in enumerate(state.tiers) for each in tier.entries]
    writing = [place for at, place, key in entries for _ in range(writers(state, at, key))]
    reading = [place for at, place, key in entries for _ in range(readers(state, at, key))]
    loaded = [block for each in state.transfers if each.kind is Kind.LOAD for block in each.device]
    stored = [block for each in state.transfers if each.kind is Kind.STORE for block in each.device]
    used = [block for block, part in enumerate(state.device) if part is not None and block not in loaded]
    counts, first = Counter((*loaded, *stored, *used)), firsts[-1]
    held = {
        **several("writers", (*writing, *(first + block for block in loaded))),
        **several("readers", (*reading, *(first + block for block in stored))),
        **several("engine", (first + block for block in used)),
    }
    device = tuple(Block(counts[block], part) for block, part in enumerate(state.device))
    free = frozenset(first + block for block in range(len(device)) if not counts[block])
    return of_tiers(state.tiers, device, free, held)
