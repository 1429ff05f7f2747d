"""Mutation: every small wrong change of a source, one at a time.

A source is parsed once; each place where a rule applies becomes a `Mutation` that can be put in, compiled and taken out
again. What is never changed: laws, docstrings, annotations, default arguments, the text of errors, ``__repr__``,
declarations (``x: i64 = ...`` is not deleted, since nothing can read an undeclared name), and capacities.

    comparison   < and <=, > and >=, == and !=, is and is not, in and not in
    arithmetic   + and -, * and //, % to //, & and |; the same in ``+=``; minus dropped
    constant     one more, one less; True and False
    condition    negated; and / or exchanged; one operand of them left out; not dropped
    statement    an assignment, a call, a raise, a return, a break, a continue, a del left out
    loop         ended after two rounds
    call         two arguments exchanged; min and max exchanged, or less an operand; a copy (``x[:]``) not made
    return       the opposite of a bool, one more than an integer, None for anything else
"""

import ast
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from types import CodeType

import blockwright_spec

from ..known_bugs.changes import ROOT

SPEC = Path(blockwright_spec.__file__).resolve().parent

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
STATEMENTS = (ast.Assign, ast.AugAssign, ast.Raise, ast.Return, ast.Break, ast.Continue, ast.Delete, ast.Expr)
EXTREMES = {"min": "max", "max": "min"}
MOST_ROUNDS = 2
INTEGERS = ("int", "i32", "i64")
PLUG_IN, SHIMS = "engines/vllm/", "engines/vllm/single_type_managers.py"
"""What runs inside vLLM, and the one file of it that needs no vLLM."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One wrong change: where it is, and the statement (or condition) before and after it."""

    file: str
    """Its path in the implementation's package, or, of the specification, with the package's name before it."""
    function: str
    line: int
    before: str
    after: str
    number: int = 0
    """Its rank among equal changes of one function."""

    @property
    def of(self) -> str:
        others = "plug-in" if self.file.startswith(PLUG_IN) and self.file != SHIMS else "implementation"
        return "specification" if is_of_specification(self.file) else others

    @property
    def key(self) -> str:
        rank = f" #{self.number + 1}" if self.number else ""
        return f"{self.file} {self.function}: {self.before} -> {self.after}{rank}"

    @property
    def digest(self) -> str:
        """A short name without the file, so that it stays the same when a function moves."""
        text = "\n".join((self.function, self.before, self.after, str(self.number)))
        return blake2b(text.encode(), digest_size=8).hexdigest()


def is_of_specification(file: str) -> bool:
    return file.startswith(f"{SPEC.name}/")


def path_of(file: str) -> Path:
    return SPEC.parent / file if is_of_specification(file) else ROOT / file


@dataclass(frozen=True, slots=True)
class Swap:
    """Puts another node (or list) into a field of a node."""

    owner: ast.AST
    field: str
    index: int | None
    node: object

    def __call__(self) -> "Swap":
        held = getattr(self.owner, self.field)
        if self.index is None:
            setattr(self.owner, self.field, self.node)
            return Swap(self.owner, self.field, None, held)
        was, held[self.index] = held[self.index], self.node
        return Swap(self.owner, self.field, self.index, was)


Change = tuple[ast.stmt, Swap]


class Source:
    """A parsed source with all its mutations, but those of what is left out."""

    def __init__(self, file: str, left_out: Collection[str] = ()) -> None:
        self.file = file
        self.tree = ast.parse(path_of(file).read_text(encoding="utf-8"))
        self.swaps: dict[str, Swap] = {}
        self.mutations: list[Mutation] = []
        seen: Counter[tuple[str, str, str]] = Counter()
        for name, function in functions(self.tree, ""):
            if f"{file} {name}" in left_out or f"{file} {name.rpartition('.')[0]}" in left_out:
                continue
            for statement, swap in changes(function, f"guards of {file} {name}" in left_out):
                before, undo = text_of(statement), swap()
                after = "pass" if isinstance(swap.node, ast.Pass) else text_of(statement)
                undo()
                if after != before:
                    mutation = Mutation(file, name, statement.lineno, before, after, seen[name, before, after])
                    seen[name, before, after] += 1
                    self.mutations.append(mutation)
                    self.swaps[mutation.key] = swap

    def compiled(self, key: str) -> CodeType:
        undo = self.swaps[key]()
        try:
            return compile(ast.fix_missing_locations(self.tree), str(path_of(self.file)), "exec", dont_inherit=True)
        finally:
            undo()


def functions(node: ast.AST, within: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef) and child.name != "__repr__" and not child.name.startswith("law_"):
            yield within + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from functions(child, f"{within}{child.name}.")


def text_of(statement: ast.stmt) -> str:
    """Return a simple statement in one line, or the head of a compound one."""
    match statement:
        case ast.If(test=test):
            return f"if {ast.unparse(test)}"
        case ast.While(test=test):
            return f"while {ast.unparse(test)}"
        case ast.For(target=target, iter=walked):
            return f"for {ast.unparse(target)} in {ast.unparse(walked)}"
        case _:
            return ast.unparse(statement)


def changes(function: ast.FunctionDef, unguarded: bool) -> Iterator[Change]:
    returns = ast.unparse(function.returns) if function.returns else "None"
    guards = [node for node in ast.walk(function) if unguarded and is_guard(node)]
    inside = {id(child) for guard in guards for child in ast.walk(guard)}
    yield from (change for change in of_block(function, "body", returns) if id(change[0]) not in inside)


def is_guard(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and not node.orelse and all(isinstance(each, ast.Raise) for each in node.body)


def of_block(owner: ast.AST, field: str, returns: str) -> Iterator[Change]:
    for index, statement in enumerate(getattr(owner, field)):
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        if isinstance(statement, STATEMENTS):
            yield statement, Swap(owner, field, index, ast.copy_location(ast.Pass(), statement))
        if isinstance(statement, ast.Raise | ast.FunctionDef):
            continue
        if isinstance(statement, ast.Return):
            yield from ((statement, swap) for swap in of_return(statement, returns))
        yield from ((statement, swap) for swap in of_node(statement))
        if isinstance(statement, ast.For):
            yield from ((statement, swap) for swap in of_loop(statement))
        for inner in ("body", "orelse", "finalbody"):
            if isinstance(getattr(statement, inner, None), list):
                yield from of_block(statement, inner, returns)
        for inner_block in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            yield from of_block(inner_block, "body", returns)


def of_return(statement: ast.Return, returns: str) -> Iterator[Swap]:
    value = statement.value
    if value is None or isinstance(value, ast.Constant):
        return
    if returns == "bool":
        yield Swap(statement, "value", None, ast.UnaryOp(ast.Not(), value))
    elif returns in INTEGERS:
        yield Swap(statement, "value", None, ast.BinOp(value, ast.Add(), ast.Constant(1)))
    else:
        yield Swap(statement, "value", None, ast.Constant(None))


def of_node(node: ast.AST) -> Iterator[Swap]:
    for field, held in ast.iter_fields(node):
        if field in ("annotation", "returns", "args") and not isinstance(node, ast.Call):
            continue
        for index, child in enumerate(held) if isinstance(held, list) else ((None, held),):
            if isinstance(child, ast.expr):
                yield from of_place(node, field, index, child)
                yield from of_node(child)
            elif isinstance(child, ast.comprehension):
                yield from of_loop(child)
                yield from of_node(child)
            elif isinstance(child, ast.keyword) and child.arg != "capacity":
                yield from of_node(child)


def of_loop(loop: ast.For | ast.comprehension) -> Iterator[Swap]:
    """Return the loop over the first two: most tests of a list have one or two in it."""
    walked = loop.iter
    if not isinstance(walked, ast.Tuple | ast.List) or len(walked.elts) > MOST_ROUNDS:
        every = ast.List([ast.Starred(walked, ast.Load())], ast.Load())
        yield Swap(loop, "iter", None, ast.Subscript(every, ast.Slice(None, ast.Constant(MOST_ROUNDS)), ast.Load()))


def of_place(owner: ast.AST, field: str, index: int | None, node: ast.expr) -> Iterator[Swap]:
    def instead(other: ast.expr) -> Swap:
        return Swap(owner, field, index, ast.copy_location(other, node))

    if ((isinstance(owner, ast.If | ast.While | ast.IfExp) and field == "test") or field == "ifs") and not opposite(
        node
    ):
        yield instead(ast.UnaryOp(ast.Not(), node))
    if isinstance(owner, ast.While) and isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt):
        most = ast.Call(ast.Name("min", ast.Load()), [node.comparators[0], ast.Constant(MOST_ROUNDS)], [])
        yield instead(ast.Compare(node.left, node.ops, [most, *node.comparators[1:]]))
    yield from RULES.get(type(node), lambda node, instead: ())(node, instead)
    if isinstance(owner, ast.AugAssign) and field == "value" and type(owner.op) in ARITHMETIC:
        yield Swap(owner, "op", None, ARITHMETIC[type(owner.op)]())


def opposite(node: ast.expr) -> bool:
    """Return whether exchanging a comparison gives the negation already."""
    return (
        isinstance(node, ast.Compare)
        and len(node.ops) == 1
        and isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.Is | ast.IsNot | ast.In | ast.NotIn)
    )


Instead = Callable[[ast.expr], Swap]


def of_compare(node: ast.Compare, _instead: Instead) -> Iterator[Swap]:
    for index, operator in enumerate(node.ops):
        yield Swap(node, "ops", index, COMPARISONS[type(operator)]())


def of_binary(node: ast.BinOp, _instead: Instead) -> Iterator[Swap]:
    if type(node.op) in ARITHMETIC and not isinstance(node.left, ast.List):
        yield Swap(node, "op", None, ARITHMETIC[type(node.op)]())


def of_constant(node: ast.Constant, instead: Instead) -> Iterator[Swap]:
    if isinstance(node.value, bool):
        yield instead(ast.Constant(not node.value))
    elif isinstance(node.value, int):
        yield instead(ast.Constant(node.value + 1))
        yield instead(ast.Constant(node.value - 1))


def of_junction(node: ast.BoolOp, instead: Instead) -> Iterator[Swap]:
    yield Swap(node, "op", None, ast.Or() if isinstance(node.op, ast.And) else ast.And())
    yield from map(instead, less_one(node.values, lambda rest: ast.BoolOp(node.op, rest)))


def less_one(operands: list[ast.expr], joined: Callable[[list[ast.expr]], ast.expr]) -> Iterator[ast.expr]:
    for index in range(len(operands) if len(operands) > 1 else 0):
        rest = [value for at, value in enumerate(operands) if at != index]
        yield rest[0] if len(rest) == 1 and not isinstance(rest[0], ast.Starred) else joined(rest)


def of_unary(node: ast.UnaryOp, instead: Instead) -> Iterator[Swap]:
    if isinstance(node.op, ast.Not | ast.USub):
        yield instead(node.operand)


def of_call(node: ast.Call, instead: Instead) -> Iterator[Swap]:
    """Return calls with other arguments, of the other extreme, or not made where they only copy."""
    if isinstance(node.func, ast.Name) and node.func.id in EXTREMES:
        yield Swap(node, "func", None, ast.Name(EXTREMES[node.func.id], ast.Load()))
        yield from map(instead, less_one(node.args, lambda rest: ast.Call(node.func, rest, node.keywords)))
    else:
        for index in range(len(node.args) - 1):
            pair = [node.args[index + 1], node.args[index]]
            yield Swap(node, "args", None, [*node.args[:index], *pair, *node.args[index + 2 :]])
    if isinstance(node.func, ast.Attribute) and node.func.attr == "copy" and not node.args:
        yield instead(node.func.value)


def of_subscript(node: ast.Subscript, instead: Instead) -> Iterator[Swap]:
    if ast.unparse(node.slice) == ":" and isinstance(node.ctx, ast.Load):
        yield instead(node.value)


RULES: dict[type[ast.expr], Callable[..., Iterator[Swap]]] = {
    ast.Compare: of_compare,
    ast.BinOp: of_binary,
    ast.Constant: of_constant,
    ast.BoolOp: of_junction,
    ast.UnaryOp: of_unary,
    ast.Call: of_call,
    ast.Subscript: of_subscript,
}
