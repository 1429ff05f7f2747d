"""Where a connector that is not vLLM's takes the manager's objects, and what it reads of them there.

vLLM's connectors name these objects alike, and `reading` finds them by their names. Others name them as they like, so
their sources are followed from the methods that vLLM calls, through attributes, results, and the functions and classes
that they are handed to, in the modules of the connector and those it imports; until nothing new is found. Whatever else
is done with such an object (kept in a list, captured by name, handed to a package) cannot be followed, and is said.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType

from blockwright.engines.vllm.reading import STEPS, Reader

METHODS = {
    "bind_kv_cache_manager": {1: "manager"},
    "bind_gpu_block_pool": {1: "pool"},
    "update_state_after_alloc": {2: "blocks"},
}
"""What vLLM brings to a connector, by the method and the number of the argument."""

_KEEP = {"list", "tuple", "sorted", "reversed", "iter", "set"}
_PICK = {"next", "min", "max"}
_LOOK = {"len", "isinstance", "bool", "id", "print", "repr", "str", "hash", "type", "any", "all", "hasattr", "callable"}
_LOG = {"debug", "info", "warning", "error", "exception"}
_CAPTURES = {"locals", "vars", "globals", "eval", "exec", "setattr"}


@dataclass
class Found:
    """What is known of a connector's sources so far."""

    roots: set[str] = field(default_factory=set)  # the connector's classes.
    strangers: set[str] = field(default_factory=set)  # other connectors beside them, which are not read.
    names: set[str] = field(default_factory=set)  # that it reads, as ``kind.name``; with "?" where it gives a default.
    lost: set[str] = field(default_factory=set)  # what is done with the manager's objects that cannot be followed.
    attributes: dict[str, str] = field(default_factory=dict)  # the kinds of attributes, and of what functions return.
    results: dict[str, str] = field(default_factory=dict)
    # Of functions, and of classes as ``Class.__init__``: kinds by number or name.
    arguments: dict[str, dict[int | str, str]] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)  # attributes that hold something else as well.
    functions: set[str] = field(default_factory=set)  # that have been read.
    # Where functions begin that have been read: file, line and name.
    seen: set[tuple[str, int, str]] = field(default_factory=set)

    def size(self) -> int:
        """Return a number that grows with what is known."""
        bound = sum(map(len, self.arguments.values()))
        sets = self.names, self.attributes, self.results, self.others, self.functions
        return bound + sum(map(len, sets))


class _Follower(Reader):
    """Reads one file with what is known of all."""

    optional = "?"

    def __init__(self, found: Found, file: Path, tree: ast.Module) -> None:
        super().__init__()
        self.names = found.names
        self.wanted: set[str] = set()
        self._found, self._file = found, file
        self._inside: list[str] = []
        self._class = ""
        self._fine: set[int] = set()
        self._global: set[str] = set()
        self._modules: dict[str, tuple[str, ...]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._modules |= {(each.asname or each.name.split(".")[0]): (each.name,) for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                module = "." * node.level + (node.module or "")
                for each in node.names:  # which may be a module, or of one
                    inner = f"{module}{each.name}" if module.endswith(".") else f"{module}.{each.name}"
                    self._modules[each.asname or each.name] = module, inner

    # ------------------------------------------------------------------ what is known

    def _kind(self, node: ast.expr) -> str | None:
        found = self._found
        if isinstance(node, ast.Attribute) and self._kind(node.value) is None:
            known = found.attributes.get(node.attr) or found.results.get(node.attr)
            return None if node.attr in found.others else known or super()._kind(node)
        if isinstance(node, ast.List | ast.Tuple | ast.Set) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            kinds = {self._kind(each) for each in node.elts}
            return f"{kinds.pop()}*" if len(kinds) == 1 and None not in kinds else None
        if isinstance(node, ast.NamedExpr):
            return self._kind(node.value)
        if isinstance(node, ast.BoolOp):
            return next((kind for each in node.values if (kind := self._kind(each))), None)
        if isinstance(node, ast.IfExp):
            return self._kind(node.body) or self._kind(node.orelse)
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
            for each in node.generators:
                self._loop(each.target, each.iter)
            kind = self._kind(node.elt)
            return None if kind is None else f"{kind}*"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            first = self._kind(node.args[0]) if node.args else None
            name = node.func.id
            if name == "getattr" and first is not None and len(node.args) > 1:
                return STEPS.get((first, str(getattr(node.args[1], "value", ""))))
            if first is not None and name in _KEEP | _PICK:
                return first if name in _KEEP else first.removesuffix("*")
            return found.results.get(name)
        return super()._kind(node)

    def _loop(self, target: ast.expr, source: ast.expr) -> None:
        if isinstance(source, ast.Call) and isinstance(source.func, ast.Name) and isinstance(target, ast.Tuple):
            if source.func.id == "zip":
                self._fine |= {id(each) for each in source.args}
                for each, of in zip(target.elts, source.args, strict=False):
                    self._loop(each, of)
                return
            if source.func.id == "enumerate" and source.args:
                self._fine.add(id(source.args[0]))
        super()._loop(target, source)

    # ------------------------------------------------------------------ where objects go

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.expr):
            if self._kind(node) is not None and id(node) not in self._fine and not self._is_target(node):
                self._lose(node)
            self._fine.update(id(each) for each in self._taken(node))
        elif isinstance(node, ast.stmt):
            self._fine.update(id(each) for each in self._taken(node))
        super().visit(node)

    @staticmethod
    def _is_target(node: ast.expr) -> bool:
        return not isinstance(getattr(node, "ctx", ast.Load()), ast.Load)

    def _taken(self, node: ast.AST) -> list[ast.expr]:
        """Return the operands that a node only looks at, or whose value goes where it is known."""
        match node:
            case ast.Attribute() | ast.Subscript() | ast.FormattedValue() | ast.Expr() | ast.NamedExpr():
                return [node.value]
            case ast.Compare():
                return [node.left, *node.comparators]
            case ast.BoolOp():
                return node.values
            case ast.UnaryOp(op=ast.Not()):
                return [node.operand]
            case ast.IfExp():
                return [node.test, node.body, node.orelse]
            case ast.If() | ast.While() | ast.Assert():
                return [node.test]
            case ast.For():
                return [node.iter]
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return [node.elt, *self._sources(node.generators)]
            case ast.List() | ast.Tuple() | ast.Set():
                return node.elts if self._kind(node) is not None else []
            case ast.DictComp():
                return self._sources(node.generators)
            case ast.Return(value=ast.expr() as value) if self._inside:
                self._note(self._found.results, self._inside[-1], value)
                return [value]
            case ast.Assign(targets=[ast.Name() | ast.Attribute(), *_]) | ast.AnnAssign(value=ast.expr()):
                return [node.value] if node.value is not None else []
            case ast.Call():
                return self._handed(node)
        return []

    @staticmethod
    def _sources(generators: list[ast.comprehension]) -> list[ast.expr]:
        return [each for of in generators for each in (of.iter, *of.ifs)]

    def _handed(self, node: ast.Call) -> list[ast.expr]:
        """Return the function and the arguments of a call that are followed; learn what they are there."""
        function, given = node.func, list(node.args)
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        if name in _CAPTURES and self._kinds:
            self._found.lost.add(f"{self._file.name}:{node.lineno}: {name}() in a function that has them")
        if name == "partial" and given:
            return [node.func, *self._bind_call(given[0], given[1:], node.keywords)]
        first = self._kind(given[0]) if given else None
        if name == "getattr" and first is not None and len(given) > 1:
            return [node.func, given[0]] if isinstance(given[1], ast.Constant) else [node.func]
        is_plain = isinstance(function, ast.Name) and not node.keywords
        if (is_plain and name in _KEEP | _PICK | _LOOK) or (not isinstance(function, ast.Name) and name in _LOG):
            return [node.func, *given]
        return [node.func, *self._bind_call(function, given, node.keywords)]

    def _bind_call(self, function: ast.expr, given: list[ast.expr], named: list[ast.keyword]) -> list[ast.expr]:
        kinds: dict[int | str, str] = {}
        for number, value in enumerate(given):
            if (kind := self._kind(value)) is not None:
                kinds[number] = kind
        for each in named:
            if each.arg and (kind := self._kind(each.value)) is not None:
                kinds[each.arg] = kind
        if not kinds:
            return []
        outer = function.value if isinstance(function, ast.Attribute) else None
        if outer is not None and self._kind(outer) is not None:  # back to the manager
            return [*given, *(each.value for each in named)]
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        is_super = isinstance(outer, ast.Call) and getattr(outer.func, "id", "") == "super"
        if not is_super and (name in METHODS or any(isinstance(each, ast.Starred) for each in given)):
            return []
        home = getattr(outer, "id", name) if outer is not None else name
        if name not in self._found.functions and home in self._modules:
            self.wanted.update(self._modules[home])
        if name in self._found.functions or is_super:
            bound = self._found.arguments.setdefault(name, {})
            bound |= kinds
            return [*given, *(each.value for each in named)]
        return []

    def _note(self, where: dict[str, str], name: str, value: ast.expr) -> None:
        kind = self._kind(value)
        if kind is not None:
            where.setdefault(name, kind)
            if where[name] != kind:
                self._found.others.add(name)

    def _lose(self, node: ast.expr) -> None:
        self._found.lost.add(f"{self._file.name}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)}")

    # ------------------------------------------------------------------ statements

    def visit_Global(self, node: ast.Global) -> None:
        self._global.update(node.names)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self._global.update(node.names)

    def visit_Assign(self, node: ast.Assign) -> None:
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for each, given in zip(target.elts, value.elts, strict=True):
                self.visit(ast.copy_location(ast.Assign([each], given), node))
            return
        for each in node.targets:
            self._keep(each, value)
        super().visit_Assign(node)

    def _bind(self, target: ast.expr, kind: str | None) -> None:
        if isinstance(target, ast.Name) and kind is not None and target.id in self._global:
            self._lose(target)
        super()._bind(target, kind)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._keep(node.target, node.value)
        super().visit_AnnAssign(node)

    def _keep(self, target: ast.expr, value: ast.expr) -> None:
        """Learn what an attribute holds."""
        if isinstance(target, ast.Attribute):
            if self._kind(value) is not None:
                self._note(self._found.attributes, target.attr, value)
            elif target.attr in self._found.attributes and getattr(value, "value", ...) is not None:
                self._found.others.add(target.attr)
            if target.attr in self._found.others:
                self._lose(target)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        found = self._found
        bases = {ast.unparse(each).split(".")[-1] for each in node.bases}
        is_connector = any(isinstance(each, ast.FunctionDef) and each.name in METHODS for each in node.body)
        if node.name not in found.roots and (is_connector or bases & (found.roots | found.strangers)):
            found.strangers.add(node.name)
            return
        outer, self._class = self._class, node.name
        found.functions.add(node.name)
        super().visit_ClassDef(node)
        self._class = outer

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        found = self._found
        found.functions.add(node.name)
        line = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        found.seen.add((str(self._file), line, node.name))
        self._inside.append(node.name)
        super().visit_FunctionDef(node)
        self._inside.pop()

    def _take_arguments(self, node: ast.FunctionDef) -> None:
        super()._take_arguments(node)
        names = [each.arg for each in [*node.args.posonlyargs, *node.args.args]]
        has_self = bool(self._class) and names[:1] in (["self"], ["cls"])
        brought = METHODS.get(node.name, {}) if self._class in self._found.roots else {}
        if node.args.vararg is not None and any(number >= len(names) for number in brought):
            self._found.lost.add(f"{self._file.name}:{node.lineno}: {node.name}(*{node.args.vararg.arg})")
        of_class = self._found.arguments.get(self._class, {}) if node.name == "__init__" else {}
        for key, kind in (self._found.arguments.get(node.name, {}) | of_class).items():
            if isinstance(key, str):
                self._bind(ast.Name(key), kind)
            elif key + has_self < len(names):
                self._bind(ast.Name(names[key + has_self]), kind)
        for number, kind in brought.items():
            if number < len(names):
                self._bind(ast.Name(names[number]), kind)


def follow(files: Iterable[Path], kinds: Collection[type]) -> Found:
    """Return what the sources of a connector's classes read, and what could not be followed. O(sources), some times."""
    found, sources = Found({kind.__name__ for kind in kinds}), dict.fromkeys(files)
    size = -1
    while size != (size := found.size() + len(sources)):
        found.lost.clear()
        for file in list(sources):
            try:
                tree = ast.parse(file.read_text(encoding="utf-8"))
            except (OSError, SyntaxError, ValueError):
                found.lost.add(f"{file.name}: not a source that can be read")
                continue
            reader = _Follower(found, file, tree)
            reader.visit(tree)
            for module in sorted(reader.wanted):
                if (home := _home(module, file)) is not None:
                    sources.setdefault(home)
    for kind in kinds:
        for name in METHODS:
            made = kind.__dict__.get(name)
            if made is not None and not _was_read(made, found):
                found.lost.add(f"{kind.__name__}.{name}: not a method of its source")
    return found


def _was_read(made: object, found: Found) -> bool:
    code = made.__code__ if isinstance(made, FunctionType) and not hasattr(made, "__wrapped__") else None
    if code is None:
        return False
    return (str(Path(code.co_filename).resolve()), code.co_firstlineno, code.co_name) in found.seen


def _home(module: str, file: Path) -> Path | None:
    """Return the source of a module that a file imports; none of vLLM's or of Python's own."""
    if module.startswith("."):
        level = len(module) - len(module.lstrip("."))
        path = file.parents[level - 1].joinpath(*module.lstrip(".").split("."))
        return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)
    if module.split(".")[0] in {"vllm", *sys.stdlib_module_names}:
        return None
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    origin = Path(spec.origin) if spec is not None and spec.origin else None
    return origin.resolve() if origin is not None and origin.suffix == ".py" else None
