"""Theorems about the kinds of layers: what each keeps, the blocks of a hit, and the most blocks held at once.

Both sides are read from the source: `blockwright.core.tables.window` and the specification's chapter `reads`.
"""

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple

from blockwright.core.tables import group
from blockwright.core.tables import window as rules
from blockwright_spec import reads

from . import symbolic
from .symbolic import z3
from .theorem import Theorem

FOR_EVER = rules.FOR_EVER


class Layer(NamedTuple):
    """One kind: its record in the specification, its rule in the implementation, and their fields as terms.

    `sinks` are tokens that are read for ever, `heads` the entries that hold them.
    """

    name: str
    kind: tuple[str, tuple[Any, ...]]
    rule: str
    fields: dict[str, Any]
    assumptions: list[Any]
    sinks: Any = 0
    heads: Any = 0


def layers() -> list[Layer]:
    """Return the five kinds."""
    window, chunk, sinks, heads, b = z3.Ints("window chunk sinks heads b")
    own, wide = {"self._window": window}, window >= 1
    cover = [sinks >= 0, heads >= 0, sinks <= heads * b, z3.Or(heads == 0, (heads - 1) * b < sinks)]
    return [
        Layer("full", ("Full", ()), "WindowRule", {"FOR_EVER": FOR_EVER}, []),
        Layer("sliding", ("Sliding", (window,)), "SlidingRule", own, [wide]),
        Layer("sinks", ("Sinks", (sinks, window)), "SlidingRule", own, [wide, *cover], sinks, heads),
        Layer("chunked", ("Chunked", (chunk,)), "ChunkedRule", {"self._chunk": chunk}, [chunk >= 1]),
        Layer("mamba", ("Mamba", ()), "MambaRule", {}, []),
    ]


def window_theorems() -> Iterator[Theorem]:
    for layer in layers():
        yield from of_layer(layer)
        yield from of_peak(layer)
    yield from of_hits()
    yield from of_lookups()


class Sides:
    """Both sides of one layer: sets of the specification, closed forms of the implementation."""

    def __init__(self, layer: Layer) -> None:
        self.layer, self.book = layer, symbolic.Source(reads)
        self.code, self.tables = symbolic.Source(rules), symbolic.Source(group)

    def reads(self, at: Any, position: Any) -> Any:
        runs = self.book.apply("reads", [self.layer.kind, position], {})
        runs = runs if isinstance(runs[0], tuple) else (runs,)
        return z3.Or([z3.And(start <= at, at < stop) for start, stop in runs])

    def closed(self, name: str, *arguments: Any) -> Any:
        """Return the value of a closed form."""
        rule = self.layer.rule if f"{self.layer.rule}.{name}" in self.code.functions else "WindowRule"
        known = {
            **self.layer.fields,
            "self.sinks": self.layer.heads,
            "self.first_needed": lambda length: self.closed("first_needed", length),
        }
        return self.code.apply(f"{rule}.{name}", arguments, known)

    def of_table(self, name: str, *arguments: Any, **known: Any) -> Any:
        """Return the value of a method of `GroupTables` for a table of rows or states."""
        own = {
            "self._layout": 0,
            "ROW": 0,
            "ONE_STATE": 2,
            "FOR_EVER": FOR_EVER,
            "self.sinks": self.layer.heads,
            "self.rule.first_needed": lambda at: self.closed("first_needed", at),
            "self.rule.last_needing": lambda at: self.closed("last_needing", at),
        }
        return self.tables.apply(f"GroupTables.{name}", arguments, {**own, **known})


def of_layer(layer: Layer) -> Iterator[Theorem]:
    """Return the theorems about what one kind keeps."""
    n, q, p, i, b = z3.Ints("n q p i b")
    sides, given = Sides(layer), [*layer.assumptions, n >= 0, p >= 0, i >= 0, b >= 1]

    def first(length: Any) -> Any:
        return sides.closed("first_needed", length)

    needed = sides.reads(p, n)
    last = (i + 1) * b - 1
    size = {"self._block_size": b, "table.num_trimmed": i}
    kept = sides.of_table("first_kept", n, **size)
    own = symbolic.larger(i, layer.heads)  # the next entry that may die
    dead = z3.And(i >= layer.heads, i < kept)

    def claim(statement: str, formula: Any, *assumed: Any) -> Theorem:
        return Theorem(layer.name, statement, [*given, *assumed], formula)

    yield claim("a token reads only earlier positions", z3.Implies(needed, p < n))
    yield claim("the token at n reads all that later tokens read below n", needed, p < n, q >= n, sides.reads(p, q))
    from_first = z3.Or(p >= first(n), p < layer.sinks)
    yield claim("needed positions are those from first_needed on, and sinks", needed == from_first, p < n)
    yield claim("first_needed lies within the tokens", z3.And(first(n) >= 0, first(n) <= n))
    in_block = z3.And(i * b <= p, p <= last)
    gone = z3.Implies(dead, z3.And(p < n, z3.Not(needed)))  # of full attention no entry is
    yield claim("entries before first_kept are dead", gone, in_block)
    alive = z3.Or(last >= n, sides.reads(last, n), z3.And(i < layer.heads, sides.reads(i * b, n)))
    yield claim("the last position keeps every other entry alive, or a sink", alive, z3.Not(dead))
    yield claim("trims says whether the next entry is dead", sides.of_table("trims", None, n, **size) == (own < kept))
    trim_at = sides.of_table("trim_at", i, **size)
    yield claim("an entry dies exactly from trim_at on", (first(n) >= (own + 1) * b) == (n >= trim_at), n <= FOR_EVER)
    bound = sides.closed("last_needing", p)
    yield claim("last_needing bounds what is needed", (first(n) < p) == (n <= bound), p >= 1, n <= FOR_EVER)


# ---------------------------------------------------------------------- hits


def of_hits() -> Iterator[Theorem]:
    """Return the theorems about the blocks of a hit: `length` is k blocks long."""
    n, k, i, b, longest = z3.Ints("n k i b longest")
    _, sliding, sinks, chunked, mamba = layers()
    window, chunk = sliding.fields["self._window"], chunked.fields["self._chunk"]
    given = [k >= 1, b >= 1, i >= 0, i < k]
    windows = hit_run("SlidingRule", window, b, sinks.sinks)
    for layer, run in ((sliding, windows), (sinks, windows), (mamba, hit_run("MambaRule"))):
        read, whole = Sides(layer), (i + 1) * b - 1
        holds = read.reads(whole, k * b)  # the last position of a block is the last to be dead
        holds = z3.Or(holds, read.reads(i * b, k * b)) if layer is sinks else holds
        assumed, claim = [*layer.assumptions, *given], holds == z3.Or(i >= k - run, i < layer.heads)
        yield Theorem(layer.name, "the needed blocks of a hit are the last hit_run, and those of sinks", assumed, claim)
    known = {"sink_len": sinks.sinks, "block_size": b}
    heads = symbolic.Source(rules).passed("SlidingRule.__init__", "super().__init__", 1, known)
    covers = z3.And([z3.substitute(each, (sinks.heads, heads)) for each in sinks.assumptions[1:]])
    yield Theorem("sinks", "sinks lie in the first blocks", [b >= 1, sinks.sinks >= 0], covers)
    first = Sides(chunked).closed
    same = first("first_needed", n) == first("first_needed", longest)
    assumed = [chunk >= 1, n >= first("first_needed", longest), n <= longest]
    yield Theorem(chunked.name, "within a chunk all hits start at the same position", assumed, same)
    assumed, claim = [k >= 1, b >= 1, chunk == k * b, n >= 0, i == n / chunk], first("first_needed", n) == (i * k) * b
    yield Theorem(chunked.name, "a chunk of whole blocks starts at a block", assumed, z3.And(claim))


def hit_run(rule: str, *fields: Any) -> Any:
    """Return the run of a rule: what its lookup asks for, from its constructor if that works it out."""
    source, known = symbolic.Source(rules), {}
    function = source.functions.get(f"{rule}.__init__")
    if function is not None and "self.hit_run" in ast.unparse(function):
        names = [argument.arg for argument in function.args.args if argument.arg != "self"]
        known["self.hit_run"] = source.value(f"{rule}.__init__", "self.hit_run", dict(zip(names, fields, strict=True)))
    return source.passed(f"{rule}.longest", "probe.last_run", 1, known)


def of_lookups() -> Iterator[Theorem]:
    """Return the theorems about lookups: what is looked at, and the longest leading run."""
    k, b, length, run, margin, known = z3.Ints("k b length run margin known")
    code = symbolic.Source(rules)
    given = [b >= 1, k >= 0, length >= 0, run >= 0, margin >= 0, known >= 0]
    own = {"max_length": length, "block_size": b, "keys.num_blocks()": known}
    limit = code.value("Probe.__init__", "self._limit", own)
    whole = z3.And((k + 1) * b <= length, k < known)
    yield Theorem("full", "a lookup looks at the known blocks that lie within the length", given, (k < limit) == whole)
    own = {"length": length, "probe.block_size": b, "probe.run_end": run, "probe.margin": margin}
    longest = code.returned("WindowRule.longest", own)
    fits = z3.And(k * b <= length, z3.Or(k == 0, k + margin <= run))
    yield Theorem("full", "a hit is a leading run of blocks, its margin cached too", given, (k * b <= longest) == fits)
    yield Theorem("full", "the longest leading run is whole blocks", given, longest % b == 0)
    stop = code.value("Probe.entries", "stop", {"length": length, "self.block_size": b})
    yield Theorem("full", "a hit has an entry for each of its blocks", given, (k < stop) == ((k + 1) * b <= length))
    aligned = code.value("common_hit", "length", {"max_length": length, "alignment": b})
    claim = z3.And(aligned % b == 0, aligned <= length, aligned > length - b)
    yield Theorem("full", "a hit begins at the longest aligned length", given, claim)


# ---------------------------------------------------------------------- the most blocks held at once


def of_peak(layer: Layer) -> Iterator[Theorem]:
    """Return the theorems about the most blocks held: none is exceeded, and each is reached.

    A step from token s on touches the blocks of what the token at s reads, and of what the step fills. `peak` of the
    specification is the most of them over all s. The closed forms take it at a few s; that these do is shown by lemmas:
    no step touches more than the last one or, of a window, than the one a block later.
    """
    n, s, b, e, step, k = z3.Ints("n s b e step k")
    sides = Sides(layer)
    given = [*layer.assumptions, b >= 1, n >= 1, step >= 1, s >= 0, s < n]
    runs = sides.book.apply("reads", [layer.kind, s], {})
    start, stop = (sides.closed("first_needed", s), runs[1][1]) if layer.name == "sinks" else runs
    fills, filled = sides.book.apply("writes", [layer.kind, s, symbolic.smaller(s + step, n)], {})

    def claim(statement: str, formula: Any, *assumed: Any) -> Theorem:
        return Theorem(layer.name, statement, [*given, *assumed], formula)

    if layer.name == "mamba":
        most = sides.closed("peak", n, step, b, z3.IntVal(0))
        two = z3.And(start < stop, start / b != fills / b)
        yield claim("a step touches one block, or one that it reads and one that it fills", filled - fills == 1)
        yield claim("two blocks are held exactly where some step touches two", most == 2, two)
        second = z3.substitute(two, (s, b))  # the step from the second block on reads the first
        yield claim("two blocks are held only where some step touches two", z3.And(b < n, second), most == 2)
        yield claim("one block is held at least", z3.Or(most == 1, most == 2))
        return
    yield claim("a step fills what comes after what it reads", z3.And(stop == fills, stop == s))
    place = z3.If(e < layer.heads, e * b, symbolic.larger(start, e * b))
    through = z3.And(e >= 0, z3.Or(start / b <= e, e < layer.heads), e < (filled + b - 1) / b)
    touches = z3.Or(sides.reads(place, s), z3.And(fills <= place, place < filled))
    yield claim("the entries between lie in what a step touches", z3.And(touches, place / b == e), through)
    inside = z3.Or(sides.reads(k, s), z3.And(fills <= k, k < filled))
    yield claim("what a step touches lies in the entries between", z3.substitute(through, (e, k / b)), inside)
    gone = symbolic.larger(0, sides.closed("first_needed", s) / b - layer.heads)
    touched = (filled + b - 1) / b - gone
    if layer.name == "full":
        most = sides.closed("peak", n, step, b, z3.IntVal(0))
        yield claim("no step touches more than the peak", touched <= most)
        yield claim("the last step touches as many as the peak", touched == most, s == symbolic.larger(0, n - step))
    else:
        yield from of_recycled(layer, given, touched)


def of_recycled(layer: Layer, given: list[Any], touched: Any) -> Iterator[Theorem]:
    """Return the theorems about the peak of a kind that gives blocks back while it runs."""
    n, s, t, b, step, blocks = z3.Ints("n s t b step blocks")
    sides, period = Sides(layer), b
    last = symbolic.larger(0, n - step)
    if layer.name == "chunked":  # of whole blocks; others are refused
        period = layer.fields["self._chunk"]
        given = [*given, blocks >= 1, period == blocks * b]

    def claim(statement: str, formula: Any, *assumed: Any) -> Theorem:
        return Theorem(layer.name, statement, [*given, *assumed], formula)

    at_last = z3.substitute(touched, (s, last))
    yield claim("no step after the last whole one touches more", touched <= at_last, s >= last)
    later = z3.substitute(touched, (s, s + period))
    facts = []
    if layer.name == "chunked":
        start = sides.closed("first_needed", s)
        after = [(x + blocks * b) / b == x / b + blocks for x in (start, s + step + b - 1)]
        facts = [sides.closed("first_needed", s + period) == start + period, *after]
        for fact in facts:
            yield claim("a chunk later is as many whole blocks later", fact)
    yield claim("a step one period later touches as many or more", touched <= later, s + period <= last, *facts)
    known = {"slots": n, "step": step, "block_size": b, "start": s, "begin": z3.IntVal(0), **layer.fields}
    known |= {"self.first_needed": lambda at: sides.closed("first_needed", at), "most": z3.IntVal(0), "last": last}
    known["stop"] = sides.code.value(f"{layer.rule}.peak", "stop", known)
    if layer.rule == "SlidingRule":
        known["self.sinks"] = layer.heads
        known["dead"] = sides.code.value("SlidingRule.peak", "dead", known)
        counted = sides.code.value("SlidingRule.peak", "most", known, 1)
        yield claim("the peak counts what a step touches", counted == symbolic.larger(0, touched))
        begin = sides.code.value("SlidingRule.peak", "last", known)
        yield claim("the peak begins at the last whole step", begin == last)
        going = sides.code.condition("SlidingRule.peak", known)
        yield claim("the peak goes back one period of starts", going == z3.And(s >= 0, s > last - period))
        return
    end = (s + 1) / period * period - 1  # the last position of the last whole chunk
    most = sides.closed("peak", n, step, b, z3.IntVal(0))
    yield claim("the peak is at least what the last whole step touches", most >= at_last)
    at_end, at_later = z3.substitute(touched, (s, end)), z3.substitute(touched, (s, t))
    yield claim("the peak is at least what a step from a chunk's end touches", most >= at_end, s == last, end >= 0)
    in_chunk = [s <= t, t < n, s / period == t / period]
    yield claim("within a chunk no step touches more than a later one", touched <= at_later, *in_chunk)
    either = z3.Or(most == at_last, z3.And(end >= 0, most == at_end))
    yield claim("the peak is what one of the two touches", either, s == last)
