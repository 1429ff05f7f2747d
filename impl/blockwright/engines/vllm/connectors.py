"""Which of vLLM's connectors are served: what each reads of the manager's objects, found in its source.

A connector gets the manager, its pool, and the blocks of a request. Its modules, and those of vLLM's transfer packages
that they import, are followed from the places where these come in (`_ENTRIES`) through assignments, loops, subscripts
and calls; every name that is read on the way is one that the connector needs. It is served if all of them are in
`SERVED`; otherwise it is refused by name when the scheduler is made. That is done for the connector that is configured,
whatever package it comes from. `surface.json` has the same for every connector of the releases that were tried, and

    python -m blockwright.engines.vllm.connectors

prints it as the table of the documentation.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from blockwright.errors import UnsupportedError

_FACTORY = "distributed/kv_transfer/kv_connector/factory.py"
_LIST = "vllm.distributed.kv_transfer.kv_connector.v1"
_FOLLOWED = ("vllm.distributed.kv_transfer.", "vllm.v1.hisparse.", "vllm.v1.kv_offload.", "vllm.v1.simple_kv_offload.")

# What an expression is, by the kind of what it is read from. "block*" is a collection of blocks.
_STEPS = {
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
    ("queue", "iter_blocks_after"): "block*",
    ("queue", "fake_free_list_head"): "block",
    ("block", "next_free_block"): "block",
}
# Names of arguments and attributes under which these come in, and what they are.
_ENTRIES = {
    "kv_cache_manager": "manager",
    "gpu_block_pool": "pool",
    "block_pool": "pool",
}
_TYPES = {"KVCacheBlocks": "blocks", "KVCacheManager": "manager", "KVCacheBlock": "block"}

SERVED = frozenset(
    "block.block_hash block.block_hash_num_tokens block.block_id block.is_null block.ref_cnt "
    "blocks.blocks blocks.get_block_ids blocks.get_block_ids(group_ids) blocks.get_unhashed_block_ids "
    "blocks.get_unhashed_block_ids_all_groups "
    "coordinator.find_longest_cache_hit_per_group coordinator.single_type_managers "
    "group.block_pool group.block_size "
    "manager.block_pool manager.coordinator manager.kv_cache_config manager.max_model_len "
    "pool.blocks pool.cached_block_hashes_by_block pool.free_block_queue pool.free_blocks pool.get_cached_block "
    "pool.get_num_free_blocks pool.null_block pool.touch "
    "queue.iter_blocks_after".split()
)
"""What connectors may read, as ``kind.name``, with the keyword of an argument that not all of them pass."""


class _Reader(ast.NodeVisitor):
    """Collects the names that a module reads on the manager's objects."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._kinds: dict[str, str] = {}
        self._owned: set[str] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outer, self._kinds = self._kinds, dict(self._kinds)
        for each in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
            kind = self._declared(each.annotation) or _ENTRIES.get(each.arg)
            self._bind(ast.Name(each.arg), kind)
        for statement in node.body:
            self.visit(statement)
        self._kinds = outer

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
                self.names.add(f"{kind}.{name.value!s}")
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
                return _STEPS.get((outer, node.attr))
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


def _imports(tree: ast.Module, home: list[str]) -> Iterator[str]:
    """Return the modules that one in the package `home` imports, and the names in them, which may be modules too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = ".".join(home[: len(home) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            yield module
            yield from (f"{module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)


def _file_of(package: Path, module: str) -> Path | None:
    path = package.parent / module.replace(".", "/")
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)


@cache
def _read(package: Path, file: Path) -> tuple[frozenset[str], tuple[Path, ...]]:
    """Return the names that one file reads, and the files of `_FOLLOWED` that it imports."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    reader = _Reader()
    reader.visit(tree)
    home = list(file.parent.relative_to(package.parent).parts) if file.is_relative_to(package.parent) else []
    names = {each for each in _imports(tree, home) if each.startswith(_FOLLOWED) and each != _LIST}
    found = {_file_of(package, name) for name in names}
    return frozenset(reader.names), tuple(each for each in found if each is not None)


def needs(package: Path, files: Iterable[Path]) -> list[str]:
    """Return what connectors in some files, and in those of vLLM's packages that they import, read. O(sources)."""
    waiting, seen, names = [file.resolve() for file in files], set[Path](), set[str]()
    while waiting:
        file = waiting.pop()
        if file not in seen:
            seen.add(file)
            found, imported = _read(package.resolve(), file)
            names |= found
            waiting += imported
    return sorted(names)


def connectors_of(package: Path) -> dict[str, list[str]]:
    """Return what each connector of the vLLM in a folder reads, by the name that it is configured with."""
    tree = ast.parse((package / _FACTORY).read_text(encoding="utf-8"))
    homes: dict[str, Path | None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("register_connector") and len(node.args) == 3:
            name, module, _ = (ast.literal_eval(each) for each in node.args)
            homes[name] = _file_of(package, module)
    for file in (package / _FACTORY).parent.glob("v1/*/connector.py"):  # some are named by their module alone
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            bases = map(ast.unparse, node.bases) if isinstance(node, ast.ClassDef) else ()
            if isinstance(node, ast.ClassDef) and "KVConnectorBase_V1" in bases and "Base" not in node.name:
                homes.setdefault(node.name, file)
    return {name: needs(package, [file]) for name, file in sorted(homes.items()) if file is not None}


def missing(names: Iterable[str]) -> list[str]:
    """Return those of the names that a connector reads that are not served."""
    return [name for name in names if name not in SERVED]


def require_served(connector: Any) -> None:
    """Return if a connector, and each one that it holds, reads only what is served.

    Raises:
        UnsupportedError: it reads more; names the connector, what it reads, and the remedy.
    """
    for each in getattr(connector, "_connectors", ()):
        require_served(each)
    import vllm

    kinds = [kind for kind in type(connector).__mro__ if kind.__module__.split(".")[0] not in sys.stdlib_module_names]
    lacking = missing(needs(Path(inspect.getfile(vllm)).parent, {Path(inspect.getfile(kind)) for kind in kinds}))
    if lacking:
        raise UnsupportedError(
            f"the connector {type(connector).__name__} reads {', '.join(lacking)}, which is not supported under "
            "Blockwright: use another connector, or unset BLOCKWRIGHT_VLLM to serve with vLLM's own manager"
        )


def table(releases: dict[str, Any]) -> str:
    """Return the connectors of some releases, as in `surface.json`, as a table of what they read."""
    names = sorted({name for surface in releases.values() for name in surface["connectors"]}, key=str.lower)
    lines = ["| connector | reads, beside `block_pool` | |", "|---|---|---|"]
    for name in names:
        found = {key: each["connectors"][name] for key, each in releases.items() if name in each["connectors"]}
        every = {each for own in found.values() for each in own}
        reads = sorted({each.split("(")[0] if each.startswith("pool.") else each for each in every})
        lacking = missing(reads)
        kept = [f"`{each}`" for each in lacking or reads if each != "manager.block_pool"]
        some = "" if len(found) == len(releases) else f" ({', '.join(found)})"
        lines.append(f"| {name}{some} | {', '.join(kept) or 'nothing'} | {'refused' if lacking else 'served'} |")
    return "\n".join(lines)


if __name__ == "__main__":
    from blockwright.engines.vllm.surface import known

    print(table(known()))
