"""Property: the benchmarks measure what an engine can call, check that it was done, and report it as tables and data.

How: sources are read for private names; a short path of each system is measured, and its work left undone; arguments
are wrong in each way.
Not covered: how fast anything is; every path (a profile-guided build runs them all).
"""

import ast
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import benchmarks
from benchmarks import instructions
from benchmarks.__main__ import parser_of, run
from benchmarks.measure import WorkNotDoneError, require
from benchmarks.paths import all_paths
from blockwright.errors import InvalidArgumentError

SOURCES = sorted(set(Path(benchmarks.__file__).parent.glob("*.py")))
SHORT = ("lookup-2", "adopt", "churn-shares", "append", "tokens-cached-array-2k", "paging-fork", "offload-life")
"""A path of each system that takes a fraction of a second, and those that count on what another request has left."""


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.name))
def test_no_private_attribute_is_read(source: Path) -> None:
    tree = ast.parse(source.read_text(encoding="utf-8"))
    taken = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    private = [node for node in taken if node.attr.startswith("_") and not node.attr.startswith("__")]
    assert [ast.unparse(node) for node in private if ast.unparse(node.value) != "self"] == []


def test_paths_are_measured_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.json"
    assert run(parser_of().parse_args(["--only", *SHORT, "--repeat", "1", "--json", str(file)])) == 0
    found = json.loads(file.read_text(encoding="utf-8"))
    assert [row["name"] for row in found["paths"]] == list(SHORT)
    assert all(row["ours"]["median"] > 0 for row in found["paths"])
    shown = capsys.readouterr().out
    assert all(f"[{name}]" in shown for name in SHORT)


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_router_is_told_what_the_engines_own_lookups_say(lookahead: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    routing = pytest.importorskip("benchmarks.routing")
    counts, differences = routing.compare(250, 7, lookahead, "publish", tmp_path)
    assert differences == []
    assert min(counts[name] for name in ("found on a device", "found further on a tier", "chosen for its prefix")) > 20


def test_work_that_was_not_done_is_an_error() -> None:
    with pytest.raises(WorkNotDoneError):
        require([])


def test_names_are_given_once() -> None:
    names = [path.name for path in all_paths()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "nothing"], "--only: nothing is named 'nothing'"),
        (["--repeat", "0"], "--repeat: at least 1"),
        (["--require"], "give --peer-path too"),
        (["--only", "append", "--json", "/no/such/folder/x"], "--json: the folder"),
        (["--only", "append", "--peer-path", "/no/such/folder"], "holds no unpacked vllm package"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        run(parser_of().parse_args(arguments))


def test_a_path_that_takes_more_instructions_is_named_and_drawn() -> None:
    rows: list[Any] = [
        {"day": "2026-01-01", "counts": {"a": 100, "b": 100}},
        {"day": "2026-01-02", "counts": {"a": 105, "b": 106}},
    ]
    assert [said.partition(":")[0] for said in instructions.grown(rows[1]["counts"], rows[0]["counts"])] == ["b"]
    drawn = instructions.picture(rows)
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert "b 1.060" in drawn
