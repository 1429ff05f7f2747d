"""Property: the benchmark measures what an engine can call: no private name of the library is used in it.

Tested by reading every source of the package: no attribute that begins with an underscore is taken of anything but
`self`, and from `blockwright` only its front doors (the media of offloading are such, its bookkeeping is not), its
errors, its build record and its terminal helpers are imported.
Not covered: what reaches private state by other ways (`getattr` with a computed name).
"""

import ast
from pathlib import Path

import pytest

import blockwright.bench
from blockwright.bench import training

SOURCES = sorted(set(Path(blockwright.bench.__file__).parent.glob("*.py")) - {Path(training.__file__)})  # not measured
FRONT_DOORS = ("blockwright", "blockwright.paging", "blockwright.offload", "blockwright.device", "blockwright.observe")
ALLOWED = (
    *FRONT_DOORS,
    "blockwright.observe.wire",
    "blockwright.errors",
    "blockwright.events",
    "blockwright._terminal",
)
MEDIA = ("blockwright.bench", "blockwright.offload.")
INSIDE = "blockwright.offload.tiers"


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.name))
def test_no_private_attribute_is_read(source: Path) -> None:
    tree = ast.parse(source.read_text(encoding="utf-8"))
    private = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not (isinstance(node.value, ast.Name) and node.value.id == "self")
        and not node.attr.startswith("__")
    ]
    assert private == []


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.name))
def test_only_the_front_door_is_imported(source: Path) -> None:
    tree = ast.parse(source.read_text(encoding="utf-8"))
    imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    inside = [name for name in imported if name.partition(".")[0] == "blockwright"]
    assert [name for name in inside if name not in ALLOWED and not name.startswith(MEDIA)] == []
    assert [name for name in inside if name.startswith(INSIDE)] == []
