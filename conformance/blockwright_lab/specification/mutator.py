"""Mutants of the specification: every small wrong change of a chapter, put into the functions that run.

The rules are those of `mutation`, and four that suit a text of expressions: a filter of a comprehension left out, a
field of a ``replace(...)`` left as it was, an element of a display left out, and a step from a state to a state left
out; and every refusal is left out once. A change is put in by giving the function another code, so that every chapter
that has imported it sees it at once, laws too; and it is taken out again.

What is never changed: the laws and what only they call, docstrings, and the policy `lru` (which laws must not
depend on: gate `choices`). What the type checker refuses is left to it: exchanged arguments, few of which are of one
type, a name that is never bound, and a function that ends without its answer.
"""

import ast
import gc
import importlib
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType

import blockwright_spec

from ..mutation.mutator import Change, Mutation, Source, Swap, functions, of_block

SPEC = Path(blockwright_spec.__file__).resolve().parent
"""The folder of the specification's sources."""

CHAPTERS = (
    "reads", "manager/state", "manager/choices", "manager/hits", "manager/preconditions", "manager/plans",
    "manager/publication", "manager/effects", "manager/transitions", "manager/in_time/in_flight",
    "manager/in_time/forks", "manager/in_time/explain",
    "block_tables/state", "block_tables/outcomes", "block_tables/effects", "block_tables/counts",
    "block_tables/transitions", "block_tables/marks",
    "offload/tier_state", "offload/tier_calls", "offload/chain_state", "offload/chain_effects", "offload/chain_calls",
    "worker/rows", "worker/inputs", "worker/storage",
)  # fmt: skip
"""The chapters that say what happens; the others only name it, or are laws."""

ONLY_LAWS = tomllib.loads(Path(__file__).with_name("only_laws.toml").read_text(encoding="utf-8"))
"""Functions that nothing but laws calls: they belong to the laws."""


@cache
def chapter(name: str) -> Source:
    """Return a chapter, parsed once per process; what belongs to the laws is left out."""
    text = (SPEC / f"{name}.py").read_text(encoding="utf-8")
    laws = {f"{name}.py {function}" for function, _ in functions(ast.parse(text), "") if function.startswith("law_")}
    return Source(f"{name}.py", laws | ONLY_LAWS.keys(), text, changes)


def all_mutations() -> list[Mutation]:
    """Return every mutant of the specification, in the order of the book."""
    return [mutation for name in CHAPTERS for mutation in chapter(name).mutations]


REFUSALS = ("Refusal(", "PagedRefusal(", "TierRefusal(", "ChainRefusal(", "RowRefusal.")


def refuses(value: ast.expr | None) -> bool:
    """Return whether an expression is a refusal: one that is made here, or one that was found before."""
    if isinstance(value, ast.Tuple):
        return len(value.elts) == 2 and ast.unparse(value.elts[0]) == "()" and refuses(value.elts[1])
    if isinstance(value, ast.BoolOp):
        return all(map(refuses, value.values))
    if value is None or isinstance(value, ast.IfExp):
        return False
    return ast.unparse(value) in ("refusal", "wrong") or ast.unparse(value).startswith(REFUSALS)


def changes(function: ast.FunctionDef, _unguarded: bool) -> Iterator[Change]:
    """Return every change of a function, and those that leave a refusal out."""
    yield from of_function(function)
    yield from guards_of(function)


def guards_of(function: ast.FunctionDef) -> Iterator[Change]:
    """Return the changes that leave out one refusal of a function, whatever its condition."""
    for owner, field, at, statement in blocks(function):
        value = statement.value if isinstance(statement, ast.Return) else None
        if refuses(value) or (isinstance(statement, ast.Raise) and "Illegal" in ast.unparse(statement)):
            yield statement, Swap(owner, field, at, ast.copy_location(ast.Pass(), statement))
        elif isinstance(value, ast.IfExp) and refuses(value.body) != refuses(value.orelse):
            rest = value.orelse if refuses(value.body) else value.body
            yield statement, Swap(statement, "value", None, rest)
        elif isinstance(value, ast.BoolOp) and refuses(value.values[-1]):
            yield statement, Swap(statement, "value", None, value.values[0])


def blocks(function: ast.FunctionDef) -> Iterator[tuple[ast.AST, str, int, ast.stmt]]:
    """Return every statement of a function, with where it stands."""
    for owner in ast.walk(function):
        for field in ("body", "orelse"):
            held = getattr(owner, field, None)
            yield from ((owner, field, at, each) for at, each in enumerate(held if isinstance(held, list) else ()))


def of_function(function: ast.FunctionDef) -> Iterator[Change]:
    """Return every change of a function; those of the cases of a match, which `mutation` passes over, too."""
    returns = ast.unparse(function.returns) if function.returns else "None"
    cases = (case for node in ast.walk(function) if isinstance(node, ast.Match) for case in node.cases)
    for owner in (function, *cases):
        for statement, swap in of_block(owner, "body", returns):
            if not is_left(function, statement, swap):
                yield statement, swap
    for statement in statements(function):
        yield from ((statement, swap) for swap in of_expressions(statement))


def is_left(function: ast.FunctionDef, statement: ast.stmt, swap: Swap) -> bool:
    """Return whether a change is not made here: one that the type checker refuses, or that is a refusal left out.

    To return nothing is to leave the return out, and to negate twice changes nothing.
    """
    is_exchange = swap.field == "args" and isinstance(swap.owner, ast.Call) and swap.index is None
    is_nothing = swap.owner is statement and isinstance(swap.node, ast.Constant) and swap.node.value is None
    is_twice = isinstance(swap.node, ast.UnaryOp) and isinstance(swap.node.operand, ast.UnaryOp)
    is_gone = isinstance(swap.node, ast.Pass) and (
        (isinstance(statement, ast.Return) and (statement is function.body[-1] or refuses(statement.value)))
        or (isinstance(statement, ast.Assign) and is_bound_once(function, statement))
    )
    return is_exchange or is_nothing or is_twice or is_gone


def is_bound_once(function: ast.FunctionDef, statement: ast.Assign) -> bool:
    """Return whether a statement binds a name that nothing else in the function does."""
    bound = [node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    bound += [argument.arg for argument in function.args.args]
    own = [node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)]
    return any(bound.count(name) == 1 for name in own)


def statements(function: ast.FunctionDef) -> Iterator[ast.stmt]:
    """Return the simple statements of a function, and the heads of compound ones."""
    for node in ast.walk(function):
        if isinstance(node, ast.stmt) and not isinstance(node, ast.FunctionDef | ast.Assert | ast.Raise | ast.Match):
            yield node


def of_expressions(statement: ast.stmt) -> Iterator[Swap]:
    """Return the changes of a statement's expressions that `mutation` has no rule for."""
    roots = [root for root in ast.iter_child_nodes(statement) if isinstance(root, ast.expr)]
    for node in (statement, *(node for root in roots for node in ast.walk(root))):
        if isinstance(node, ast.comprehension):
            yield from (shorter(node, "ifs", node.ifs, at) for at in range(len(node.ifs)))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("replace", "Done", "PagedDone", "TierDone"):
            yield from (shorter(node, "keywords", node.keywords, at) for at in range(len(node.keywords)))
        elif isinstance(node, ast.Tuple) and any(isinstance(each, ast.Starred) for each in node.elts):
            yield from (shorter(node, "elts", node.elts, at) for at in range(len(node.elts)))
        yield from unchanged(node)


def unchanged(owner: ast.AST) -> Iterator[Swap]:
    """Return the changes that leave out a step from a state to a state: the state stays as it was."""
    for field, held in ast.iter_fields(owner):
        for index, child in enumerate(held) if isinstance(held, list) else ((None, held),):
            if isinstance(child, ast.Call) and child.args and ast.unparse(child.func).rpartition(".")[2] in steps():
                yield Swap(owner, field, index, child.args[0])


@cache
def steps() -> frozenset[str]:
    """Return the functions of all chapters that give another one of what they are given first."""
    trees = (ast.parse((SPEC / f"{name}.py").read_text(encoding="utf-8")) for name in CHAPTERS)
    return frozenset(
        function.name
        for tree in trees
        for _, function in functions(tree, "")
        if function.args.args
        and function.returns is not None
        and (first := function.args.args[0].annotation) is not None
        and ast.unparse(first) == ast.unparse(function.returns)
    )


def shorter(owner: ast.AST, field: str, held: Sequence[ast.AST], at: int) -> Swap:
    """Return the change that leaves one of a list out."""
    return Swap(owner, field, None, [each for number, each in enumerate(held) if number != at])


# --- in the functions that run


@dataclass(frozen=True, slots=True)
class Exchange:
    """A function, and the code that it is to have."""

    function: FunctionType
    code: CodeType


def of_mutation(mutation: Mutation) -> Exchange:
    return Exchange(
        function_of(mutation.file, mutation.function),
        code_of(chapter(mutation.file.removesuffix(".py")).compiled(mutation.key), mutation.function),
    )


def function_of(file: str, name: str) -> FunctionType:
    found = getattr(importlib.import_module(f"blockwright_spec.{file.removesuffix('.py').replace('/', '.')}"), name)
    assert isinstance(found, FunctionType), name
    return found


def code_of(module: CodeType, name: str) -> CodeType:
    return next(each for each in module.co_consts if isinstance(each, CodeType) and each.co_name == name)


@contextmanager
def put_in(exchange: Exchange) -> Iterator[None]:
    """Let a function have another code; the garbage collector waits meanwhile."""
    held = exchange.function.__code__
    gc.disable()
    try:
        exchange.function.__code__ = exchange.code
        yield
    finally:
        exchange.function.__code__ = held
        gc.enable()
