"""What a source reads of the manager's objects, found by the names that vLLM's own sources give them.

It goes from the names under which these objects come in (`_ENTRIES`) through assignments, loops, subscripts and calls.
"""

from __future__ import annotations

import ast
import re

# What an expression is, by the kind of what it is read from. "block*" is a collection of blocks.
STEPS = {
    ("manager", "block_pool"): "pool",
    ("manager", "coordinator"): "coordinator",
    ("manager", "get_blocks"): "blocks",
    ("coordinator", "block_pool"): "pool",
    ("coordinator", "single_type_managers"): "group*",
    ("group", "block_pool"): "pool",
    ("blocks", "blocks"): "block**",
    ("pool", "blocks"): "block*",
    ("pool", "null_block"): "block",
    ("pool", "free_block_queue"): "queue",
    ("pool", "get_cached_block"): "block*",
    ("pool", "cached_block_hash_to_block"): "hashes",
    ("hashes", "get_one_block"): "block",
    ("queue", "iter_blocks_after"): "block*",
    ("queue", "get_all_free_blocks"): "block*",
    ("queue", "fake_free_list_head"): "block",
    ("queue", "fake_free_list_tail"): "block",
    ("block", "next_free_block"): "block",
}
# Names of arguments and attributes under which these come in, and what they are.
_ENTRIES = {
    "kv_cache_manager": "manager",
    "gpu_block_pool": "pool",
    "block_pool": "pool",
}
_TYPES = {"KVCacheBlocks": "blocks", "KVCacheManager": "manager", "KVCacheBlock": "block", "BlockPool": "pool"}


class Reader(ast.NodeVisitor):
    """Collects the names that a module reads on the manager's objects."""

    optional = ""  # how a name ends for which a default is given

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._kinds: dict[str, str] = {}
        self._owned: set[str] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outer, self._kinds = self._kinds, dict(self._kinds)
        self._take_arguments(node)
        for statement in node.body:
            self.visit(statement)
        self._kinds = outer

    def _take_arguments(self, node: ast.FunctionDef) -> None:
        for each in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
            kind = self._declared(each.annotation) or _ENTRIES.get(each.arg)
            self._bind(ast.Name(each.arg), kind)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)  # type: ignore[arg-type]

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, self._owned = self._owned, _made_in(node)
        self.generic_visit(node)
        self._owned = outer

    def visit_Assign(self, node: ast.Assign) -> None:
        kind = self._kind(node.value)
        self.visit(node.value)
        for target in node.targets:
            self._bind(target, kind)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._bind(node.target, self._kind(node.value))
            self.visit(node.value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._bind(node.target, self._kind(node.value))
        self.visit(node.value)

    def visit_For(self, node: ast.For) -> None:
        self._loop(node.target, node.iter)
        self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        for each in getattr(node, "generators", ()):  # of a comprehension: bound before what it makes is read
            self._loop(each.target, each.iter)
        super().generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        kind = self._kind(node.value)
        if kind is not None and not kind.endswith("*"):
            self.names.add(f"{kind}.{node.attr}")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        if isinstance(function, ast.Attribute):
            kind = self._kind(function.value)
            if kind is not None and not kind.endswith("*"):
                self.names.update(f"{kind}.{function.attr}({each.arg})" for each in node.keywords if each.arg)
        elif isinstance(function, ast.Name) and function.id == "getattr" and len(node.args) > 1:
            kind, name = self._kind(node.args[0]), node.args[1]
            if kind is not None and not kind.endswith("*") and isinstance(name, ast.Constant):
                self.names.add(f"{kind}.{name.value!s}" + (self.optional if len(node.args) > 2 else ""))
        self.generic_visit(node)

    @staticmethod
    def _declared(annotation: ast.expr | None) -> str | None:
        if annotation is None:
            return None
        words = re.findall(r"\w+", ast.unparse(annotation))
        found = [_TYPES[word] for word in words if word in _TYPES]
        return found[0] if found and words[0] in {*_TYPES, "Optional"} else None

    def _loop(self, target: ast.expr, source: ast.expr) -> None:
        if isinstance(source, ast.Call) and isinstance(source.func, ast.Name) and source.args:
            name, source = source.func.id, source.args[0]
            if name == "enumerate" and isinstance(target, ast.Tuple):
                target = target.elts[1]
            elif name not in ("reversed", "list", "tuple", "sorted"):
                return self._bind(target, None)
        kind = self._kind(source)
        return self._bind(target, kind[:-1] if kind is not None and kind.endswith("*") else None)

    def _bind(self, target: ast.expr, kind: str | None) -> None:
        if isinstance(target, ast.Name):
            self._kinds.pop(target.id, None)
            if kind is not None:
                self._kinds[target.id] = kind

    def _kind(self, node: ast.expr) -> str | None:
        """Return what an expression is, None if it is none of the manager's objects."""
        if isinstance(node, ast.Name):
            return self._kinds.get(node.id)
        if isinstance(node, ast.Attribute):
            outer = self._kind(node.value)
            if outer is not None:
                return STEPS.get((outer, node.attr))
            entry = node.attr.lstrip("_")
            return None if entry in self._owned else _ENTRIES.get(entry)
        if isinstance(node, ast.Subscript):
            outer = self._kind(node.value)
            if outer is not None and outer.endswith("*"):
                return outer if isinstance(node.slice, ast.Slice) else outer[:-1]
            return None
        if isinstance(node, ast.Call) and not isinstance(node.func, ast.Name):
            return self._kind(node.func)
        return None


def _made_in(node: ast.ClassDef) -> set[str]:
    """Return the entries that a class makes itself, with a call, so that they are not the engine's."""
    made: set[str] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Call):
            made.update(
                target.attr.lstrip("_")
                for target in each.targets
                if isinstance(target, ast.Attribute) and target.attr.lstrip("_") in _ENTRIES
            )
    return made
