"""Theorems about the entries of block tables: how many there are, which take blocks, which a position lies in.

Both sides are read from the source: `blockwright.core`, and the specification's chapters `reads`, `plans`, `storage`.
"""

from collections.abc import Iterator
from typing import Any

from blockwright.core.keys import request
from blockwright.core.pool import store
from blockwright.core.steps import plans, publication
from blockwright.core.tables import group
from blockwright.worker import replica, rows
from blockwright_spec import reads
from blockwright_spec.manager import plans as spec_plans
from blockwright_spec.worker import inputs, storage

from . import symbolic
from .symbolic import z3
from .theorem import Theorem


def table_theorems() -> Iterator[Theorem]:
    yield from of_entries()
    yield from of_growth()
    yield from of_demand()
    yield from of_most_blocks()
    yield from of_keys()
    yield from of_rows()
    yield from of_places()


LAYOUTS: dict[str, Any] = {"ROW": 0, "LAST_STATE": 1, "ONE_STATE": 2}
KINDS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "attention": ("Full", ()),
    "mamba": ("Mamba", ()),
    "mamba uncached": ("Mamba", ()),
}


def methods(layout: int, size: Any, **more: Any) -> dict[str, Any]:
    """Return what the names in the methods of `GroupTables` stand for, in a group of one layout."""
    code = symbolic.Source(group)
    known: dict[str, Any] = {**LAYOUTS, "self._layout": layout, "self._block_size": size, "self.is_encoder": False}
    known["self.runs_ahead"] = False
    known["self.entries_for"] = lambda length: code.apply("GroupTables.entries_for", [length], known)
    return known | more


def of_entries() -> Iterator[Theorem]:
    """Return the theorems about the entries of a table."""
    n, k, b, held = z3.Ints("n k b held")
    code = symbolic.Source(group)
    given = [n >= 0, b >= 1, held >= 0, k >= 0]
    for layout, name in ((0, "attention"), (1, "mamba"), (2, "mamba uncached")):
        known = methods(layout, b)
        size = n + 1 if layout == 2 else b  # a lone state's entry covers all positions
        wanted = symbolic.entries(size, n)
        has = known["self.entries_for"](n)
        yield Theorem(name, "entries_for covers the slots, and no entry more", given, has == wanted)
        new = z3.If(wanted > held, 1 if layout else wanted - held, 0)
        missing = code.apply("GroupTables.missing", [held, n], known)
        assumed = [*given, z3.Or(held == 0, layout != 2), held <= 1] if layout == 2 else given
        yield Theorem(name, "missing counts the new blocks of the entries", assumed, missing == new)


def of_growth() -> Iterator[Theorem]:
    """Return the theorems about what growth changes, and about what is written and published."""
    n, k, b, held, published, begin = z3.Ints("n k b held published begin")
    book, code = symbolic.Source(reads), symbolic.Source(group)
    given = [n >= 0, b >= 1, held >= 0, published >= 0, k >= 0, begin >= 0]
    table = {"len(table.blocks)": held, "table.num_published": published, "MAX_LENGTH": 2**40}
    known = methods(0, b, **table)
    full = symbolic.entries(b, n + 1) - 1  # entries whose end is at or before n
    publishes = code.apply("GroupTables.publishes", [None, n], known)
    newly = publishes == (published < full)
    yield Theorem("attention", "publishes says whether a block is full that was not", given, newly)
    stop = code.value("GroupTables.publish", "stop", {"num_tokens": n, "self._block_size": b})
    yield Theorem("attention", "publish goes as far as blocks are full", given, (k < stop) == ((k + 1) * b <= n))
    quiet = code.apply("GroupTables.in_place_slots", [None, True], known)
    missing = code.apply("GroupTables.missing", [held, n], known)
    unchanged = (n <= quiet) == z3.Not(z3.Or(missing > 0, publishes))
    yield Theorem("attention", "growth changes nothing exactly up to in_place_slots", given, unchanged)
    uncached = code.apply("GroupTables.in_place_slots", [None, False], known)
    yield Theorem("attention", "uncached, only new blocks change anything", given, (n <= uncached) == (missing <= 0))
    covered = code.value("GroupTables.table_from_hit", "slots", {"size": held, "self._block_size": b})
    yield Theorem("attention", "a hit covers its blocks' tokens", given, known["self.entries_for"](covered) == held)
    for layout, (name, kind) in enumerate(KINDS.items()):
        own, size = methods(layout, b), n + 1 if layout == 2 else b
        start, end = book.apply("writes", [kind, begin, n], {})
        own |= {"ask.begin": begin, "ask.certain": n}
        entry = code.value("GroupTables.shared_entry", "entry", own)
        assumed = [*given, begin < n, start < end]
        yield Theorem(name, "a step begins to write where the specification says", assumed, entry == start / size)
        state_entry = code.value("GroupTables.state_block", "entry", own | {"num_tokens": n})
        partial = code.value("GroupTables.partial_entry", "entry", own | {"written": n})
        last = z3.And(state_entry == (n - 1) / size, partial == (n - 1) / size)
        yield Theorem(name, "the last token lies in the last entry", [*given, n >= 1], last)


def of_demand() -> Iterator[Theorem]:
    """Return the theorems about demand: the quick bound, and what a step reaches."""
    slots, written, least, b, held, free = z3.Ints("slots written least b held free")
    code, tables, spec = symbolic.Source(plans), symbolic.Source(group), symbolic.Source(spec_plans)
    known = {"ask.slots": slots, "tables.num_written": written, "config.least_size": least}
    bound = code.value("fits", "most", known | {"new": code.value("fits", "new", known)})
    given = [slots >= 0, written >= 0, least >= 1, b >= least, held >= 0]
    more = symbolic.larger(0, slots - written)
    lemma = more / b <= more / least
    yield Theorem("all", "smaller blocks are no fewer", given, lemma)
    for layout, name in enumerate(KINDS):
        missing = tables.apply("GroupTables.missing", [held, slots], methods(layout, b))
        assumed = [*given, held * b >= written if layout == 0 else held >= 0, lemma]
        claim = missing + 1 <= bound
        yield Theorem(name, "a group takes no more than the quick bound, a copy included", assumed, claim)
    begin, external, new, ahead, longest = z3.Ints("begin external new ahead longest")
    own = {"step.added.external": external, "step.new": new, "step.lookahead": ahead, "config.max_model_len": longest}
    reach = spec.apply("reach", [None, begin, None], own)
    asked = {"ask.stop": begin + external + new, "ask.ahead": ahead, "config.max_len": longest}
    claim = code.value("fits", "ask.slots", asked) == reach
    yield Theorem("all", "a step asks for the slots of the specification", [begin >= 0, free >= 0], claim)


def of_most_blocks() -> Iterator[Theorem]:
    """Return the theorems about the most blocks of a request, with lookahead and steps in flight (PLAN-2)."""
    n, b, step, flights, drafts, encoder, s = z3.Ints("n b step flights drafts encoder s")
    code, tables, book = symbolic.Source(plans), symbolic.Source(group), symbolic.Source(storage)
    most_held = symbolic.Source(storage)
    count = z3.Function("peak", *(z3.IntSort() for _ in range(5)))  # `proof_windows` has its value
    given = [n >= 1, b >= 1, step >= 1, flights >= 1, drafts >= 0, encoder >= 0]
    spans: dict[str, Any] = {"entries": symbolic.entries, "group.block_size": b}
    spans |= {"peak": lambda kind, size, slots, step: count(slots, step, size, 0), "span(config, group)": b}
    ask = {"self.rule.peak": count}
    for name, kind, layout, states in (
        ("attention", ("Full", ()), 0, 0),
        ("cross", ("Cross", ()), 0, 0),
        ("mamba", ("Mamba", ()), 1, drafts),
    ):
        own = methods(layout, b, **ask, **{"self.num_states": states, "self.is_encoder": name == "cross"})
        spans |= {"group.kind": kind, "group.kind.drafts": drafts}
        wanted = most_held.apply("most_held", [None, None, n, step, encoder], spans)
        counted = tables.apply("GroupTables.peak", [n, step, encoder], own)
        yield Theorem(name, "peak counts the table's blocks and the states of drafts", given, counted == wanted)
    one = tables.apply("GroupTables.peak", [n, step, encoder], methods(2, b, **ask, **{"self.num_states": drafts}))
    alone = [*given, n <= b, z3.Implies(n <= b, count(n, step, b, 0) == 1)]
    yield Theorem("mamba uncached", "one state, and those of drafts", alone, one == wanted)
    asked = code.value("most_blocks", "most_new", {**known_counts(step, flights, n)})
    same = symbolic.smaller(s + asked, n) == symbolic.smaller(s + step * flights, n)
    yield Theorem("all", "steps longer than the request end where it ends", [*given, s >= 0], same)
    two = z3.If(n > b, 2, 1)
    more = code.value("most_blocks", "more", {"tables.entries_for": lambda at: (at + b - 1) / b, "tokens": n})
    term = code.added("most_blocks", "most", {"steps_in_flight": flights, "more": more})
    flown = book.returned("held", {**spans, "limits.tokens": n, "alone": two, "limits.flights": flights}, 1)
    each = two + drafts + term == flown
    yield Theorem("mamba", "a state more for each step in flight, as far as there are entries", given, each)


def known_counts(step: Any, flights: Any, tokens: Any) -> dict[str, Any]:
    """Return what the names of `most_blocks` stand for; `count_of` returns the count that it checks."""
    counts = {"step": step, "steps_in_flight": flights, "num_tokens": tokens}
    return {**counts, "count_of": lambda name, count: count}


def of_keys() -> Iterator[Theorem]:
    """Return the theorems about where the keys of blocks lie among the words of a request's hashes."""
    length, units, index, size, unit = z3.Ints("length units index size unit")
    keys, code = symbolic.Source(request), symbolic.Source(store)
    given = [length >= 0, units >= 1, index >= 0]
    full = z3.Int("full")
    held = keys.returned("BlockKeys.ensure_keys", {"made": length / 2, "self.units": units})
    count = keys.apply("BlockKeys.num_blocks", [], {"self.num_units": full, "self.units": units})
    claim = (index < count) == (units * (index + 1) <= full)
    yield Theorem("all", "a block is full exactly if all its units are", [*given, full >= 0], claim)
    for name in ("find", "loss", "carries", "_publish"):
        at = code.value(f"BlockStore.{name}", "at", {"index": index, "i": index, "keys.units": units, "units": units})
        within = z3.And(at >= 0, at + 2 <= length)
        claim = z3.And(at == 2 * (index * units + units - 1), z3.Implies(index < held, within))
        yield Theorem("all", f"{name.strip('_')} reads the key of a block's last unit, which is there", given, claim)
    whole = (index < held) == (2 * units * (index + 1) <= length)
    yield Theorem("all", "a block has a key exactly if all its units have one", given, whole)
    known = {"unit": unit, "request.block_size": unit}
    count = keys.returned("units_per_block", {"block_size": size, **known})
    yield Theorem("all", "a block is whole units", [unit >= 1, size >= 1, size % unit == 0], count * unit == size)
    known = {"self._num_prompt": length, "size": size, "known": length + index}
    known |= {"self._block_size": size, "i64(len(self._output))": index, "stop": length}
    full = keys.returned("Request.num_full_blocks", known)
    prompt = keys.value("Request.hash_until", "in_prompt", known)
    ends = z3.And(
        (unit < full) == ((unit + 1) * size <= length + index), (unit < prompt) == ((unit + 1) * size <= length)
    )
    yield Theorem("all", "blocks are hashed when they are full", [*given, size >= 1, unit >= 0], ends)


def of_rows() -> Iterator[Theorem]:
    """Return the theorems about a worker's rows: entries of positions, and slots (SLOT-1)."""
    p, b, block, n, longest, stop = z3.Ints("p b block n longest stop")
    code, slots, book = symbolic.Source(rows), symbolic.Source(replica), symbolic.Source(inputs)
    given = [p >= 0, b >= 1, block >= 1, n >= 1, longest >= 1]

    def entry(at: Any) -> Any:
        return code.apply("GroupRows.entry", [at], {"self.shift": -1, "self.block_size": b})

    yield Theorem("all", "a position lies in its entry", given, z3.And(entry(p) * b <= p, p < (entry(p) + 1) * b))
    shifted = [
        code.apply("GroupRows.entry", [p], {"self.shift": i, "self.block_size": 2**i}) == p / 2**i for i in range(31)
    ]
    yield Theorem("all", "a shift is a division by a power of two", given, z3.And(shifted))
    for single, size in ((False, b), (True, n + 1)):
        state_entry = code.apply("GroupRows.state_entry", [n], {"self.is_single": single, "self.entry": entry})
        yield Theorem("mamba", "a state stands in its last token's entry", given, state_entry == (n - 1) / size)
    own = {"layout": 0, "ONE_STATE": 2, "longest": longest, "spec.block_size": b}
    width = code.value("TableRows.__init__", "width", own)
    claim = z3.And(width == symbolic.entries(b, longest), z3.Implies(p < longest, entry(p) < width))
    yield Theorem("all", "a row has an entry for every position", given, claim)
    slot = book.returned("slot_at", {"block": block, "size": b, "position": p, "NULL": 0, "None": -1})
    known = {"block": block, "entry": entry(p), "group.block_size": b, "block_size": b, "position": p}
    answer = slots.passed("TableReplica.slots", "append", 1, known)
    yield Theorem("all", "slots gives the slot of the specification", given, answer == slot)
    known |= {"stop": stop}
    known |= {"begin": slots.value("TableReplica._find_slots_of", "begin", known, 1)}
    base = slots.value("TableReplica._find_slots_of", "self._bases[at]", known)
    known |= {"self._bases[at]": base, "bases[first + row]": base}
    filled = slots.value("TableReplica._find_slots_of", "slot", known)
    end = slots.value("TableReplica._find_slots_of", "end", known)
    quick = slots.value("TableReplica._find_slots", "found[out]", known)
    yield Theorem("all", "a step writes the slot of the specification", given, filled == slot)
    yield Theorem("all", "so does one that reads no table", given, quick == slot)
    follows = z3.And(entry(n) == entry(p), filled + n - p == block * b + n % b, n < stop)
    after = z3.Implies(z3.And(p <= n, n < end), follows)
    yield Theorem("all", "the slots after it in its block follow it", given, after)
    last = z3.Implies(z3.And(p < stop, n >= end, n < stop), entry(n) != entry(p))
    yield Theorem("all", "and no more positions of a step lie in that block", [*given, p < stop], last)


def of_places() -> Iterator[Theorem]:
    """Return the theorems about places in packed structures: the heap of candidates, the ring of losses, and units."""
    at, place, size, unit, count, first = z3.Ints("at place size unit count first")
    heap, ring = (
        symbolic.Source("blockwright.core.pool.order.by_access"),
        symbolic.Source("blockwright.core.pool.journal"),
    )
    one = symbolic.Source("blockwright.core.tables.view")
    below = heap.value("AccessOrder._down", "below", {"place": place})
    above = heap.value("AccessOrder._up", "above", {"place": at})
    given = [place >= 0, at >= 1]
    claim = (above == place) == z3.Or(at == below, at == below + 1)
    yield Theorem("all", "who is below a place of the heap has it above", given, claim)
    yield Theorem("all", "the heap's places above are earlier", given, z3.And(above >= 0, above < at))
    slot = ring.value("Losses._remember", "slot", {"self._last": at, "self._size": size})
    given = [at >= 1, at < size, size >= 2]
    follows = z3.And(slot >= 1, slot < size, z3.If(at + 1 < size, slot == at + 1, slot == 1))
    yield Theorem("all", "losses are kept in a ring", given, follows)
    known = {"rule.first_needed": lambda hit: first, "hit": at, "size": size}
    kept = one.value("GroupReader.find_longest_cache_hit", "first", known)
    own = methods(0, size, **{"self.rule.first_needed": lambda hit: first})
    same = symbolic.Source(group).apply("GroupTables.first_kept", [at], own)
    yield Theorem("all", "a group's own lookup keeps what the manager keeps", [size >= 1, first >= 0], kept == same)
    given = [unit >= 1, size == count * unit, count >= 1]
    own = {"group._block_size": size, "request._block_size": unit}
    asked = symbolic.Source(publication).passed("publish_to", "group.publish", 2, own)
    yield Theorem("all", "publication counts the units of a block", given, asked == count)
