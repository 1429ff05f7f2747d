"""Property: the core is five rooms and a facade, and every import goes down.

How: the imports of every module of the core are read from its source, those for type checkers included, and drawn as
rooms and arrows. The drawing is compared with the one below; modules are compared one by one, so that no circle hides
within a room. The way of a request through `allocate_slots` is traced without a hit; with one, and windows; with one
that ends inside a block; with drafts in flight. Of the functions that call others, in the order of their first calls,
neighbours in one file are one stay. Not covered: the rest of the package (`[tool.importlinter]` in pyproject.toml).
"""

import ast
import os
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "impl" / "blockwright"
DRAWING = """
manager -> steps worth records tables pool keys
steps   -> worth records tables pool keys
worth   -> tables pool keys
records -> tables pool keys
tables  -> pool keys
pool    -> keys
keys    ->
"""


def imports_of(source: str) -> set[str]:
    """The modules of the package that a source imports from, by their names in it."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom) and node.module]
    return {name for node in nodes if node.module and (name := node.module.partition("blockwright.")[2])}


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


def test_records_are_named_in_few_files() -> None:
    naming = [module for module, imported in graph().items() if any("core.records" in name for name in imported)]
    assert 0 < len([module for module in naming if "core.records" not in module]) <= 4, naming


TRACED = """
import sys
from blockwright import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheManager, Request, SlidingWindowSpec

def note(frame, event, _):
    code = frame.f_code
    if event == "call" and "core" in code.co_filename.split("blockwright")[-1] and code.co_name[:2] not in ("__", "<l"):
        callers.add(frame.f_back.f_code)
        calls.append(code)

own = dict(num_kv_heads=8, head_size=128, dtype="bfloat16")
for size, new, options in (4, 0, {}), (4, 40, {}), (16, 40, {"prefix_match_unit": 4}), (4, 40, {"overlap_steps": True}):
    specs = [FullAttentionSpec(size, **own), *[SlidingWindowSpec(4, sliding_window=8, **own)] * (size == 4 and new > 0)]
    groups = [KVCacheGroupSpec([str(at)], spec) for at, spec in enumerate(specs)]
    manager = KVCacheManager(KVCacheConfig(num_blocks=60, kv_cache_groups=groups), max_model_len=256, **options)
    calls, callers, first, second = [], set(), Request("first", range(41)), Request("second", range(44))
    for more, drafts in ((new, 0), (3, 2)) if new else ():
        manager.overlap_steps and manager.start_step()
        manager.allocate_slots(first, more, num_draft_tokens=drafts)
        first.num_computed_tokens += more - drafts
    manager.overlap_steps or manager.free(first)
    hit, length = manager.get_computed_blocks(second)
    sys.setprofile(note)
    manager.allocate_slots(second, 44 - length, length, hit), sys.setprofile(None)
    ways = [code.co_filename for code in dict.fromkeys(calls) if code in callers]
    stays = sum(way != before for before, way in zip(["", *ways], ways))
    print(int(length == 0), stays, len({code.co_filename for code in calls}))
"""
AT_MOST = ((1, 14, 16), (0, 25, 20), (0, 30, 19), (0, 24, 21))
"""By row: 1 if there is no hit, the stays on its way, the files that it enters. One stay depends on the keys."""


def test_the_way_of_a_request() -> None:
    uncompiled = {**os.environ, "BLOCKWRIGHT_PURE_PYTHON": "1"}
    done = subprocess.run([sys.executable, "-c", TRACED], env=uncompiled, capture_output=True, text=True, check=True)
    rows = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert all(
        n <= most for row, mosts in zip(rows, AT_MOST, strict=True) for n, most in zip(row, mosts, strict=True)
    ), rows
