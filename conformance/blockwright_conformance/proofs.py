"""Gate 3, proofs of arithmetic: the implementation's closed forms equal the specification's sets, for all integers.

Both sides are read from the source that runs (see `symbolic`). Each theorem is a formula whose negation z3 shows to
have no solution; n, positions, entries, windows, chunks and block sizes are integers without bounds.
"""

import importlib.util
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from blockwright._terminal import Advance

from .gates import GateResult, Profile

TIMEOUT_MS = 20_000
"""For one theorem; each takes milliseconds."""


class Theorem(NamedTuple):
    """A statement, and the terms that say it: assumptions and what follows from them."""

    layer: str
    statement: str
    assumptions: list[Any]
    claim: Any


def size(profile: Profile) -> int:
    """Count the theorems."""
    wanted = not profile.scope and profile.is_ours and importlib.util.find_spec("z3") is not None
    try:
        return sum(1 for _ in theorems()) if wanted else 1
    except (NotImplementedError, KeyError):  # `run` says what could not be read
        return 1


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Prove every theorem; without z3, say so in one row."""
    if profile.scope or not profile.is_ours:
        return []
    if importlib.util.find_spec("z3") is None:
        return [GateResult("proof", "skipped", "all", 0, 0, 0, 0.0, detail="not run: z3-solver is not installed")]
    rows = []
    try:
        for theorem in theorems():
            rows.append(proved(theorem))
            progress(1, theorem.statement)
    except (NotImplementedError, KeyError) as error:  # the code has outgrown the reader of formulas
        rows.append(unread(f"{type(error).__name__}: {error}"))
    return rows


def unread(detail: str) -> GateResult:
    """Give the row that says which code could not be read as a formula, and so was not proved."""
    return GateResult("proof", "all closed forms are read", "all", 0, 0, 1, 0.0, law="PROOF-0", detail=detail)


def proved(theorem: Theorem) -> GateResult:
    """Prove one theorem."""
    from .symbolic import z3

    started, solver = time.perf_counter(), z3.Solver()
    solver.set("timeout", TIMEOUT_MS)
    solver.add(*theorem.assumptions, z3.Not(theorem.claim))
    answer = solver.check()
    detail = ""
    if answer != z3.unsat:
        detail = f"{theorem.layer}: not so for {solver.model()}" if answer == z3.sat else f"undecided: {answer}"
    return GateResult(
        kind="proof",
        scope=theorem.statement,
        manager=theorem.layer,
        states=0,
        transitions=0,
        violations=int(answer != z3.unsat),
        seconds=time.perf_counter() - started,
        law="PROOF-1" if detail else "",
        detail=detail,
        tried=1,
        passed=int(answer == z3.unsat),
    )


class Layer(NamedTuple):
    """One kind: its record in the specification, its rule in the implementation, and their fields as terms."""

    name: str
    kind: tuple[str, tuple[Any, ...]]
    rule: str
    fields: dict[str, Any]
    assumptions: list[Any]
    inherits: frozenset[str] = frozenset()


def layers() -> list[Layer]:
    """Give the four kinds."""
    from .symbolic import z3

    window, chunk = z3.Ints("window chunk")
    return [
        Layer("full", ("Full", ()), "WindowRule", {"FOR_EVER": 2**40}, []),
        Layer("sliding", ("Sliding", (window,)), "SlidingRule", {"self._window": window}, [window >= 1]),
        Layer("chunked", ("Chunked", (chunk,)), "ChunkedRule", {"self._chunk": chunk}, [chunk >= 1]),
        Layer("mamba", ("Mamba", ()), "MambaRule", {}, []),
    ]


def theorems() -> Iterator[Theorem]:
    """Give every theorem."""
    for layer in layers():
        yield from of_layer(layer)
    yield from of_hits()
    yield from of_tables()


class Sides:
    """Both sides of one layer: sets of the specification, closed forms of the implementation."""

    def __init__(self, layer: Layer) -> None:
        from blockwright.core import group, window
        from blockwright_spec import reads

        from .symbolic import Source

        self.layer, self.book, self.code, self.tables = layer, Source(reads), Source(window), Source(group)

    def reads(self, at: Any, position: Any) -> Any:
        """Say that the token at `position` reads the position `at`."""
        from .symbolic import z3

        start, stop = self.book.apply("reads", [self.layer.kind, position], {})
        return z3.And(start <= at, at < stop)

    def closed(self, name: str, *arguments: Any) -> Any:
        """Give the value of a closed form."""
        return self.code.apply(f"{self.layer.rule}.{name}", arguments, self.layer.fields)


def of_layer(layer: Layer) -> Iterator[Theorem]:
    """Give the theorems about what one kind keeps."""
    from .symbolic import z3

    n, q, p, i, b = z3.Ints("n q p i b")
    sides, given = Sides(layer), [*layer.assumptions, n >= 0, p >= 0, i >= 0, b >= 1]
    first: Callable[[Any], Any] = lambda length: sides.closed("first_needed", length)  # noqa: E731
    needed = sides.reads(p, n)
    last = (i + 1) * b - 1
    dead = i < first(n) / b

    def claim(statement: str, formula: Any, *assumed: Any) -> Theorem:
        return Theorem(layer.name, statement, [*given, *assumed], formula)

    yield claim("a token reads only earlier positions", z3.Implies(needed, p < n))
    yield claim("the token at n reads all that later tokens read below n", needed, p < n, q >= n, sides.reads(p, q))
    yield claim("needed positions are those from first_needed on", needed == (p >= first(n)), p < n)
    yield claim("first_needed lies within the tokens", z3.And(first(n) >= 0, first(n) <= n))
    in_block = z3.And(i * b <= p, p <= last)
    yield claim("entries before first_needed // b are dead", z3.And(p < n, z3.Not(needed)), dead, in_block)
    alive = z3.Or(last >= n, sides.reads(last, n))
    yield claim("the last position keeps every other entry alive", alive, z3.Not(dead))
    known = {"self._layout": 0, "ROW": 0, "ONE_STATE": 2, "FOR_EVER": 2**40, "self._block_size": b}
    known |= {"table.num_trimmed": i, "self.rule.last_needing": lambda at: sides.closed("last_needing", at)}
    trim_at = sides.tables.apply("GroupTables.trim_at", [None], known)
    yield claim("an entry dies exactly from trim_at on", (first(n) >= (i + 1) * b) == (n >= trim_at), n <= 2**40)
    bound = sides.closed("last_needing", p)
    yield claim("last_needing bounds what is needed", (first(n) < p) == (n <= bound), p >= 1, n <= 2**40)


def of_hits() -> Iterator[Theorem]:
    """Give the theorems about the blocks of a hit: `length` is k blocks long."""
    from .symbolic import z3

    n, k, i, b, longest = z3.Ints("n k i b longest")
    _, sliding, chunked, mamba = layers()
    window, chunk = sliding.fields["self._window"], chunked.fields["self._chunk"]
    given = [k >= 1, b >= 1, i >= 0, i < k]
    for layer, run in ((sliding, hit_run("SlidingRule", window, b)), (mamba, hit_run("MambaRule"))):
        holds = Sides(layer).reads((i + 1) * b - 1, k * b)  # the last position of a block is the last to be dead
        yield Theorem(
            layer.name,
            "the needed blocks of a hit are the last hit_run",
            [*layer.assumptions, *given],
            holds == (i >= k - run),
        )
    first = Sides(chunked).closed
    same = first("first_needed", n) == first("first_needed", longest)
    yield Theorem(
        chunked.name,
        "within a chunk all hits start at the same position",
        [chunk >= 1, n >= first("first_needed", longest), n <= longest],
        same,
    )
    yield Theorem(
        chunked.name,
        "a chunk of whole blocks starts at a block",
        [k >= 1, b >= 1, chunk == k * b, n >= 0, i == n / chunk],
        z3.And(first("first_needed", n) == (i * k) * b),
    )


def hit_run(rule: str, *fields: Any) -> Any:
    """Give the run of a rule: what its lookup asks for, from its constructor if that works it out."""
    import ast

    from blockwright.core import window

    from .symbolic import Source, term

    functions, known = Source(window).functions, {}
    if f"{rule}.__init__" in functions:
        function = functions[f"{rule}.__init__"]
        names = [argument.arg for argument in function.args.args if argument.arg != "self"]
        told = {ast.unparse(node.target): node.value for node in function.body if isinstance(node, ast.AnnAssign)}
        run = told["self.hit_run"]
        assert run is not None
        known["self.hit_run"] = term(run, dict(zip(names, fields, strict=True)))
    calls = [node for node in ast.walk(functions[f"{rule}.longest"]) if isinstance(node, ast.Call)]
    asked = [node.args[1] for node in calls if ast.unparse(node.func) == "probe.last_run"]
    if not asked:
        raise NotImplementedError(f"{rule}.longest asks for no run")
    return term(asked[0], known)


def of_tables() -> Iterator[Theorem]:
    """Give the theorems about the entries of a table."""
    from blockwright.core import group
    from blockwright_spec import reads

    from .symbolic import Source, z3

    n, k, b, held = z3.Ints("n k b held")
    book, code = Source(reads), Source(group)
    given = [n >= 0, b >= 1, held >= 0, k >= 0]
    for layout, name in ((0, "attention"), (1, "mamba"), (2, "mamba uncached")):
        known: dict[str, Any] = {"self._layout": layout, "ROW": 0, "LAST_STATE": 1, "ONE_STATE": 2}
        known["self._block_size"] = b
        known["self.entries_for"] = lambda length, known=known: code.apply("GroupTables.entries_for", [length], known)
        size = n + 1 if layout == 2 else b  # a lone state's entry covers all positions
        wanted = book.apply("entries", [size, n], {})
        has = known["self.entries_for"](n)
        yield Theorem(name, "entries_for covers the slots, and no entry more", given, has == wanted)
        new = z3.If(wanted > held, 1 if layout else wanted - held, 0)
        missing = code.apply("GroupTables.missing", [held, n], known)
        assumed = [*given, z3.Or(held == 0, layout != 2), held <= 1] if layout == 2 else given
        yield Theorem(name, "missing counts the new blocks of the entries", assumed, missing == new)
