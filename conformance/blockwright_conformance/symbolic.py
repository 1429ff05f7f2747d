"""Reads small functions as formulas: their source, over integers without bounds, as z3 terms.

What is proved is then the code that runs, not a copy of it. It takes functions made of assignments, ``if``, ``match``
over kinds of layer, ``return``, integer arithmetic, comparisons, ``min``, ``max`` and ``range``, and calls of other
functions that it is given; anything else is an error.
"""

import ast
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

z3: Any = importlib.import_module("z3")  # without type information, and optional

Value = Any
"""A z3 term, or a pair of them for a range."""

OPERATORS: dict[type, Callable[[Value, Value], Value]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: z3.IntVal(a) / b if isinstance(a, int) else a / b,  # divisors here are positive
    ast.Mod: lambda a, b: a % b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
}


def larger(a: Value, b: Value) -> Value:
    """Give the larger of two terms."""
    return z3.If(b > a, b, a)


def smaller(a: Value, b: Value) -> Value:
    """Give the smaller of two terms."""
    return z3.If(b < a, b, a)


BUILTINS: dict[str, Callable[..., Value]] = {
    "max": larger,
    "min": smaller,
    "range": lambda *ends: ends if len(ends) == 2 else (z3.IntVal(0), ends[0]),
    "i64": lambda a: a,
}


class Source:
    """The functions of one module, by name (`Class.method` for methods)."""

    def __init__(self, module: ModuleType) -> None:
        package, _, name = module.__name__.rpartition(".")
        path = Path(sys.modules[package].__path__[0]) / f"{name}.py"  # beside the compiled module, where there is one
        tree = ast.parse(path.read_text(encoding="utf-8"))
        self.functions: dict[str, ast.FunctionDef] = {}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                self.functions[node.name] = node
            elif isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef):
                        self.functions[f"{node.name}.{inner.name}"] = inner

    def apply(self, name: str, arguments: Sequence[Value], known: Mapping[str, Value]) -> Value:
        """Give the value of a call: `arguments` are those after ``self``, `known` what other names stand for."""
        function = self.functions[name]
        names = [argument.arg for argument in function.args.args if argument.arg != "self"]
        return block(function.body, {**known, **dict(zip(names, arguments, strict=True))})


def block(body: Sequence[ast.stmt], known: Mapping[str, Value]) -> Value:
    """Give what a block returns."""
    first, rest = body[0], body[1:]
    match first:
        case ast.Expr(value=ast.Constant()):
            return block(rest, known)
        case ast.Return(value=ast.expr() as value):
            return term(value, known)
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return block(rest, {**known, name: term(value, known)})
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            return block(rest, {**known, name: term(value, known)})
        case ast.If(test=test, body=then, orelse=other):
            condition = term(test, known)
            if isinstance(condition, bool):
                return block([*(then if condition else other), *rest], known)
            return z3.If(condition, block([*then, *rest], known), block([*other, *rest], known))
        case ast.Match(subject=ast.Name(id=subject), cases=cases):
            return chosen(cases, known[subject], known)
    raise NotImplementedError(f"line {first.lineno}: {ast.unparse(first)}")


def chosen(cases: Sequence[ast.match_case], kind: tuple[str, tuple[Value, ...]], known: Mapping[str, Value]) -> Value:
    """Give what the case of a kind returns; a kind is the name of its class and its fields."""
    name, fields = kind
    for case in cases:
        match case.pattern:
            case ast.MatchClass(cls=ast.Name(id=found), patterns=patterns) if found == name:
                names = [pattern.name for pattern in patterns if isinstance(pattern, ast.MatchAs) and pattern.name]
                return block(case.body, {**known, **dict(zip(names, fields, strict=True))})
    raise NotImplementedError(f"no case for {name}")


def term(node: ast.expr, known: Mapping[str, Value]) -> Value:
    """Give the term of an expression."""
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.Name(id=name):
            return known[name]
        case ast.Attribute():
            return known[ast.unparse(node)]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -term(operand, known)
        case ast.BinOp(left=left, op=operator, right=right):
            return OPERATORS[type(operator)](term(left, known), term(right, known))
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            return OPERATORS[type(operator)](term(left, known), term(right, known))
        case ast.BoolOp(op=ast.And(), values=values):
            return z3.And([term(value, known) for value in values])
        case ast.IfExp(test=test, body=then, orelse=other):
            return z3.If(term(test, known), term(then, known), term(other, known))
        case ast.Call(func=function, args=arguments):
            name = ast.unparse(function)
            called = known[name] if name in known else BUILTINS[name]
            return called(*(term(argument, known) for argument in arguments))
    raise NotImplementedError(f"line {node.lineno}: {ast.unparse(node)}")
