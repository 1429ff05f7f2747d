"""Reads small functions as formulas: their source, over integers without bounds, as z3 terms.

What is proved is then the code that runs, not a copy of it. It takes functions made of assignments, ``if``, ``match``
over kinds of layer, ``return``, integer arithmetic, comparisons, ``min``, ``max`` and ``range``, and calls of other
functions that it is given; anything else is an error. Of a larger function it takes one expression (`Source.value`,
`Source.passed`, `Source.returned`). Branches that raise are left out: what is proved is proved of calls that return.

`READ` notes every function that was read, so that a list can be checked against what was really proved.
"""

import ast
import importlib
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, reduce
from pathlib import Path
from types import ModuleType
from typing import Any

from blockwright_spec import reads

z3: Any = importlib.import_module("z3")  # without type information, and optional

Value = Any
"""A z3 term, or a pair of them for a range."""

READ: set[str] = set()
"""The functions that were read as formulas, whole or in part: ``package.module:Class.function``."""

INSTEAD: dict[str, ast.Module] = {}
"""Trees to be read in place of the sources of modules, by their names: what is then proved is of a changed source."""


def floor(a: Value, b: Value) -> Value:
    """Divide as Python does, rounding down; `b` is positive, or written as the negative of what is (see `proofs`)."""
    if isinstance(b, int) and b < 0:
        return floor(-a, -b)
    if z3.is_expr(b) and b.decl().kind() == z3.Z3_OP_UMINUS:
        return floor(-a, b.arg(0))
    return z3.IntVal(a) / b if isinstance(a, int) else a / b


def remainder(a: Value, b: Value) -> Value:
    """Return the remainder as Python does; `b` is positive."""
    return z3.IntVal(a) % b if isinstance(a, int) else a % b


OPERATORS: dict[type, Callable[[Value, Value], Value]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: floor, ast.Mod: remainder,
    ast.RShift: lambda a, b: floor(a, 2**b),  # only by numbers
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip


def larger(a: Value, b: Value) -> Value:
    return z3.If(b > a, b, a)


def smaller(a: Value, b: Value) -> Value:
    return z3.If(b < a, b, a)


def both(values: Sequence[Value]) -> Value:
    """Return the conjunction of conditions, a truth value if they are."""
    open_ones = [value for value in values if value is not True]
    if any(value is False for value in open_ones):
        return False
    return z3.And(open_ones) if open_ones else True


def negated(value: Value) -> Value:
    """Return the negation of a condition, a truth value if it is one."""
    return not value if isinstance(value, bool) else z3.Not(value)


def either(condition: Value, then: Callable[[], Value], other: Callable[[], Value]) -> Value:
    if isinstance(condition, bool):
        return then() if condition else other()
    return z3.If(condition, then(), other())


BUILTINS: dict[str, Callable[..., Value]] = {
    "max": lambda *values: reduce(larger, values),
    "min": lambda *values: reduce(smaller, values),
    "range": lambda *ends: ends if len(ends) == 2 else (z3.IntVal(0), ends[0]),
    "i64": lambda a: a,
    "i32": lambda a: a,
    "int": lambda a: a,
}


@cache
def text_of(module: str) -> str:
    package, *inside = module.split(".")
    path = Path(sys.modules[package].__path__[0], *inside).with_suffix(".py")  # beside a compiled one
    return path.read_text(encoding="utf-8")


class Source:
    """The functions of one module, by name (`Class.method` for methods)."""

    def __init__(self, module: ModuleType | str) -> None:
        self.module = module if isinstance(module, str) else module.__name__  # by name: without importing it
        tree = INSTEAD.get(self.module) or ast.parse(text_of(self.module))
        self.functions: dict[str, ast.FunctionDef] = {}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                self.functions[node.name] = node
            elif isinstance(node, ast.ClassDef):
                for method in node.body:
                    if isinstance(method, ast.FunctionDef):
                        self.functions[f"{node.name}.{method.name}"] = method

    def function(self, name: str) -> ast.FunctionDef:
        """Return a function's source, and note that it was read."""
        READ.add(f"{self.module}:{name}")
        return self.functions[name]

    def apply(self, name: str, arguments: Sequence[Value], known: Mapping[str, Value]) -> Value:
        """Return the value of a call: `arguments` are those after ``self``, `known` what other names stand for."""
        function = self.function(name)
        names = [argument.arg for argument in function.args.args if argument.arg != "self"]
        return block(function.body, {**known, **dict(zip(names, arguments, strict=True))})

    def value(self, name: str, target: str, known: Mapping[str, Value], which: int = 0) -> Value:
        """Return the term that a function assigns to a name, in the `which`-th of such statements."""
        return term(self._assigned(name, target)[which], known)

    def _assigned(self, name: str, target: str) -> list[ast.expr]:
        found = []
        for node in inner(self.function(name)):
            match node:
                case ast.Assign(targets=[left], value=value) if ast.unparse(left) == target:
                    found.append(value)
                case ast.AnnAssign(target=left, value=ast.expr() as value) if ast.unparse(left) == target:
                    found.append(value)
        if not found:
            raise NotImplementedError(f"{name} assigns nothing to {target}")
        return found

    def added(self, name: str, target: str, known: Mapping[str, Value]) -> Value:
        """Return the term that a function adds to a name, in the first of such statements."""
        for node in inner(self.function(name)):
            match node:
                case ast.AugAssign(target=left, op=ast.Add(), value=value) if ast.unparse(left) == target:
                    return term(value, known)
        raise NotImplementedError(f"{name} adds nothing to {target}")

    def passed(self, name: str, callee: str, at: int, known: Mapping[str, Value]) -> Value:
        """Return the argument number `at` of the first call of `callee` in a function."""
        for node in inner(self.function(name)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == callee:
                return term(node.args[at], known)
        raise NotImplementedError(f"{name} does not call {callee}")

    def returned(self, name: str, known: Mapping[str, Value], which: int = 0) -> Value:
        """Return the term that a function returns, in the `which`-th ``return`` with a value."""
        returns = [node.value for node in inner(self.function(name)) if isinstance(node, ast.Return) and node.value]
        return term(returns[which], known)

    def element(self, name: str, known: Mapping[str, Value], which: int = 0) -> Value:
        """Return the term that the `which`-th set comprehension of a function collects."""
        sets = [node.elt for node in inner(self.function(name)) if isinstance(node, ast.SetComp)]
        return term(sets[which], known)

    def condition(self, name: str, known: Mapping[str, Value], which: int = 0) -> Value:
        """Return the `which`-th condition of an ``if`` or ``while`` in a function."""
        tests = [node.test for node in inner(self.function(name)) if isinstance(node, ast.If | ast.While)]
        return term(tests[which], known)


def entries(size: Value, length: Value) -> Value:
    """Return the specification's number of blocks of a size for so many tokens."""
    return Source(reads).apply("entries", [size, length], {})


def inner(node: ast.AST) -> list[ast.AST]:
    """Return all nodes below one, in the order of the source (`ast.walk` goes level by level)."""
    return [below for child in ast.iter_child_nodes(node) for below in (child, *inner(child))]


def block(body: Sequence[ast.stmt], known: Mapping[str, Value]) -> Value:
    first, rest = body[0], body[1:]
    match first:
        case ast.Expr(value=ast.Constant()):
            return block(rest, known)
        case ast.Expr(value=ast.Call(func=ast.Name(id=name))) if name.startswith("require_"):
            return block(rest, known)
        case ast.Return(value=ast.expr() as value):
            return term(value, known)
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return block(rest, {**known, name: term(value, known)})
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            return block(rest, {**known, name: term(value, known)})
        case ast.AugAssign(target=ast.Name(id=name), op=operator, value=value):
            return block(rest, {**known, name: OPERATORS[type(operator)](known[name], term(value, known))})
        case ast.If(body=[ast.Raise()], orelse=[]):
            return block(rest, known)
        case ast.If(test=test, body=then, orelse=other):
            return either(
                term(test, known), lambda: block([*then, *rest], known), lambda: block([*other, *rest], known)
            )
        case ast.Match(subject=ast.Name(id=subject), cases=cases):
            return chosen(cases, known[subject], known)
    raise NotImplementedError(f"line {first.lineno}: {ast.unparse(first)}")


def chosen(cases: Sequence[ast.match_case], kind: tuple[str, tuple[Value, ...]], known: Mapping[str, Value]) -> Value:
    """Return what the case of a kind returns; a kind is the name of its class and its fields."""
    name, fields = kind
    for case in cases:
        match case.pattern:
            case ast.MatchClass(cls=ast.Name(id=found), patterns=patterns) if found == name:
                names = [pattern.name for pattern in patterns if isinstance(pattern, ast.MatchAs) and pattern.name]
                return block(case.body, {**known, **dict(zip(names, fields, strict=True))})
            case ast.MatchAs(pattern=None, name=None):
                return block(case.body, known)
    raise NotImplementedError(f"no case for {name}")


def term(node: ast.expr, known: Mapping[str, Value]) -> Value:
    """Return the term of an expression; `known` names may be whole expressions, such as ``len(blocks)``."""
    if not (isinstance(node, ast.Constant) and node.value is not None) and (text := ast.unparse(node)) in known:
        return known[text]
    match node:
        case ast.Constant(value=int() | str() as value):
            return value
        case ast.Tuple(elts=parts):
            return tuple(term(part, known) for part in parts)
        case ast.Starred(value=value):
            return term(value, known)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -term(operand, known)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return negated(term(operand, known))
        case ast.BinOp(left=left, op=operator, right=right):
            return OPERATORS[type(operator)](term(left, known), term(right, known))
        case ast.Compare(left=left, ops=operators, comparators=comparators):
            sides = [term(side, known) for side in (left, *comparators)]
            pairs = zip(operators, sides, sides[1:], strict=False)
            return both([OPERATORS[type(operator)](one, other) for operator, one, other in pairs])
        case ast.BoolOp(op=ast.And(), values=values):
            return both([term(value, known) for value in values])
        case ast.BoolOp(op=ast.Or(), values=values):
            return negated(both([negated(term(value, known)) for value in values]))
        case ast.IfExp(test=test, body=then, orelse=other):
            return either(term(test, known), lambda: term(then, known), lambda: term(other, known))
        case ast.Call(func=ast.Name(id="isinstance"), args=[subject, classes]):
            return known[ast.unparse(subject)][0] in ast.unparse(classes).split(" | ")
        case ast.Call(func=ast.Attribute(value=value, attr="clamp"), args=[], keywords=[ast.keyword("min", least)]):
            return larger(term(value, known), term(least, known))
        case ast.Call(func=ast.Attribute(value=value, attr="minimum"), args=[most]):
            return smaller(term(value, known), term(most, known))
        case ast.Call(func=function, args=arguments):
            name = ast.unparse(function)
            called = known[name] if name in known else BUILTINS[name]
            return called(*(term(argument, known) for argument in arguments))
    raise NotImplementedError(f"line {node.lineno}: {ast.unparse(node)}")


def divisors(formula: Value) -> list[Value]:
    """Return what a formula divides by, each once; numbers that are positive are left out."""
    found: dict[int, Value] = {}
    seen: set[int] = set()
    open_ones = [formula] if z3.is_expr(formula) else []
    while open_ones:
        node = open_ones.pop()
        if node.get_id() in seen:
            continue
        seen.add(node.get_id())
        open_ones += node.children()
        if z3.is_idiv(node) or z3.is_mod(node):
            divisor = node.arg(1)
            if not z3.is_int_value(divisor) or divisor.as_long() <= 0:
                found[divisor.get_id()] = divisor
    return list(found.values())
