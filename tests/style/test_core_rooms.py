"""Property: the core is four rooms and a facade, and every import goes down.

How: the imports of every module of the core are read from its source, those for type checkers included, and drawn as
rooms and arrows. The drawing is compared with the one below; modules are compared one by one, so that no circle hides
within a room. The way of a request is traced through `allocate_slots`, for one without a hit: of the functions of the
core that call others there, in the order of their first calls, neighbours in one file are one stay. Not covered:
imports of the rest of the package (`[tool.importlinter]` in pyproject.toml).
"""

import ast
import os
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "impl" / "blockwright"
ABOVE_NOTHING = {"_text", "arguments", "config", "errors", "events", "exclusions", "kinds"}
"""Modules of the package that stand below the core."""
DRAWING = """
manager -> steps tables pool keys
steps   -> tables pool keys
tables  -> pool keys
pool    -> keys
keys    ->
"""


def imports_of(source: str) -> set[str]:
    """The modules of the package that a source imports from, by their names in it."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom) and node.module]
    names = {node.module.partition("blockwright.")[2] for node in nodes if node.module}
    plain = {name.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import) for name in node.names}
    return {name for name in names | {each.partition("blockwright.")[2] for each in plain} if name}


def graph() -> dict[str, set[str]]:
    """The modules of the core, with the modules of the package that each imports."""
    files = [path for path in (ROOT / "core").rglob("*.py") if path.name != "__init__.py"]
    named = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files}
    return {name: imports_of(path.read_text(encoding="utf-8")) for name, path in named.items()}


def drawn(modules: dict[str, set[str]]) -> str:
    """The rooms of some modules, highest first, with the rooms that each imports from."""
    rooms: dict[str, set[str]] = {}
    for module, imported in modules.items():
        own = rooms.setdefault(module.split(".")[1], set())
        own |= {name.split(".")[1] for name in imported if name.startswith("core.")}
    order = list(TopologicalSorter({room: to - {room} for room, to in rooms.items()}).static_order())[::-1]
    lines = [f"{room:<7} -> {' '.join(each for each in order if each in rooms[room] - {room})}" for room in order]
    return "\n".join(["", *(line.rstrip() for line in lines), ""])


def test_rooms() -> None:
    assert drawn(graph()) == DRAWING


def test_no_circle() -> None:
    """Within a room as well: `static_order` raises `CycleError` for modules that import each other."""
    assert len(list(TopologicalSorter(graph()).static_order())) > len(graph())


def test_what_stands_below() -> None:
    outside = {name for imported in graph().values() for name in imported if not name.startswith("core.")}
    assert outside <= ABOVE_NOTHING


TRACED = """
import sys
from blockwright import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheManager, Request

calls, callers, under_way = [], set(), []

def note(frame, event, _):
    code = frame.f_code
    if "core" not in code.co_filename.split("blockwright")[-1] or code.co_name.startswith(("<", "__init__")):
        return
    if event == "call":
        if under_way:
            callers.add(under_way[-1])
        calls.append(code)
        under_way.append(code)
    elif event == "return":
        under_way.pop()

spec = FullAttentionSpec(block_size=4, num_kv_heads=8, head_size=128, dtype="bfloat16")
config = KVCacheConfig(num_blocks=60, kv_cache_groups=[KVCacheGroupSpec(["layers.0"], spec)])
manager, request = KVCacheManager(config, max_model_len=256), Request("r1", list(range(40)))
hit, length = manager.get_computed_blocks(request)
sys.setprofile(note)
manager.allocate_slots(request, 40 - length, length, hit)
sys.setprofile(None)
stays = []
for code in dict.fromkeys(calls):
    if code in callers and stays[-1:] != [code.co_filename]:
        stays.append(code.co_filename)
print(len(stays))
"""


def test_the_way_of_a_request() -> None:
    uncompiled = {**os.environ, "BLOCKWRIGHT_PURE_PYTHON": "1"}
    done = subprocess.run([sys.executable, "-c", TRACED], env=uncompiled, capture_output=True, text=True, check=True)
    assert 5 < int(done.stdout) <= 14
