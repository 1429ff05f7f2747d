"""Property: the paths of a whole decode step do the same work on both sides, and their checks notice work not done.

Tested by running each path once in a small size, on Blockwright and, where `make bench-peers` has fetched it, on vLLM
0.33.0 with the slot mapping of 0.11.0; by comparing the block tables and slots that both sides arrive at, step by step;
and by workers that leave out part of a step. Not covered: the numbers.
"""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="a worker's block tables are torch tensors")
pytest.importorskip("numpy", reason="the peer's are numpy arrays")

from blockwright import build_info
from blockwright.bench import groups, step_paths, training
from blockwright.bench.measure import WorkNotDoneError
from blockwright.bench.path import STEP
from blockwright.bench.peers import vllm as vllm_peer
from blockwright.bench.peers import vllm_step as vllm_step_peer
from blockwright.bench.sides import BLOCK_SIZE
from blockwright.bench.step_sides import OursStep, StepSide
from blockwright.cli import main

PEERS = Path(os.environ.get("BLOCKWRIGHT_PEERS") or Path(__file__).resolve().parents[2] / ".peers")
needs_peer = pytest.mark.skipif(
    not all((peer.root(PEERS) / peer.witness).is_file() for peer in (vllm_step_peer.TABLES, vllm_step_peer.MAPPING)),
    reason="the peers' files are not there: make bench-peers",
)
PATHS = step_paths.all_paths()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few requests, short lives: they end and are replaced within two repetitions."""
    monkeypatch.setattr(groups, "BATCH", 4)
    monkeypatch.setattr(groups, "LIFE", 2 * step_paths.WRITES)
    monkeypatch.setattr(step_paths, "STEPS", step_paths.WRITES)
    monkeypatch.setattr(step_paths, "LONG", 2 * groups.SHORTEST)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.name))
def test_every_path_runs_on_blockwright(path: Any) -> None:
    sample = path.ours()
    assert all(sample() > 0 for _ in range(4))


def test_the_worker_is_trained_without_torch() -> None:
    sample = step_paths.step(training.WithoutTorch())
    assert all(sample() > 0 for _ in range(4))


@needs_peer
@pytest.mark.parametrize("path", [path for path in PATHS if path.peer], ids=lambda path: str(path.name))
def test_every_path_runs_on_the_peer(path: Any) -> None:
    sample = path.peer(vllm_step_peer.load(PEERS))
    assert all(sample() > 0 for _ in range(4))


@needs_peer
def test_the_peer_is_loaded_from_the_folders() -> None:
    worker = vllm_step_peer.load(PEERS).worker(8, 64, groups.WINDOWS, 2)
    methods = (worker.manager.allocate_slots, worker.tables[5].append_row, worker.compute_slot_mapping)
    assert [method.__code__.co_filename for method in methods] == [
        str(peer.root(PEERS) / peer.witness)
        for peer in (vllm_peer.PUBLISHED, vllm_step_peer.TABLES, vllm_step_peer.MAPPING)
    ]


def test_the_output_names_the_packages_and_the_microseconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.json"
    assert main(["bench", "--only", STEP, "--repeat", "1", "--json", str(file)]) == 0
    data = json.loads(file.read_text(encoding="utf-8"))
    out = " ".join(capsys.readouterr().out.split())
    assert sorted(data["configuration"]["packages"]) == ["numpy", "torch"]
    assert all(f"{name} {version}" in out for name, version in data["configuration"]["packages"].items())
    limits = [path["limit"] for path in data["paths"]]
    microseconds = data["paths"][0]["ours"]["median"] / 1e3
    judged = build_info().kind == "compiled"  # the limit is that of the compiled core
    assert [limit and (limit["value"], limit["target"]) for limit in limits] == [
        (microseconds, 100) if judged else None,
        None,
        None,
    ]
    assert (f"step-8k: us per step: {microseconds:.2f}" in out) is judged


def story(side: StepSide) -> list[object]:
    """Return the slots of each step, and at last what a kernel reads of each row, while requests come and go."""
    run = step_paths.Stepping(side, groups.SHORTEST, step_paths.WRITES)
    answers: list[object] = []
    for _ in range(4):
        run.start()
        for _ in range(run.steps):
            run.worker.write(run.requests, run.worker.schedule(run.requests))
            answers.append([run.worker.slots(group, groups.BATCH) for group in range(len(groups.WINDOWS))])
            run.advance()
        run.finish()
        for row, request in enumerate(run.requests):
            end = -(-request.num_computed_tokens // BLOCK_SIZE)
            first = (request.num_computed_tokens - groups.WINDOW) // BLOCK_SIZE
            answers += [
                run.worker.entries(group, row, 0 if window is None else first, end)
                for group, window in enumerate(groups.WINDOWS)
            ]
    return answers


@needs_peer
def test_the_peer_and_blockwright_arrive_at_the_same_tables_and_slots() -> None:
    assert story(vllm_step_peer.load(PEERS)) == story(OursStep())


class _Partial(OursStep):
    """Workers of which some methods are replaced."""

    def __init__(self, replaced: Callable[[Any], dict[str, object]]) -> None:
        super().__init__()
        self._replaced = replaced

    def worker(self, *args: Any, **keywords: Any) -> Any:
        inner: Any = super().worker(*args, **keywords)
        names = ("manager", "add", "schedule", "write", "entries", "slots")
        return SimpleNamespace(**{**{name: getattr(inner, name) for name in names}, **self._replaced(inner)})


def test_a_step_that_is_not_written_is_noticed() -> None:
    steps = []

    def forgetful(inner: Any) -> dict[str, object]:
        def write(requests: Any, scheduled: Any) -> None:
            steps.append(scheduled)
            if len(steps) < step_paths.WRITES:
                inner.write(requests, scheduled)

        return {"write": write}

    with pytest.raises(WorkNotDoneError):
        step_paths.step(_Partial(forgetful))()
    assert len(steps) == step_paths.WRITES


@pytest.mark.parametrize("group", [0, 5])
def test_a_wrong_slot_of_one_request_is_noticed(group: int) -> None:
    def slots(inner: Any, of: int, count: int) -> list[int]:
        right: list[int] = inner.slots(of, count)
        return [*right[:-1], right[-1] + 1] if of == group else right

    with pytest.raises(WorkNotDoneError):
        step_paths.step(_Partial(lambda inner: {"slots": partial(slots, inner)}))()


@pytest.mark.parametrize("group", [0, 5])
def test_a_wrong_entry_of_one_row_is_noticed(group: int) -> None:
    def entries(inner: Any, of: int, row: int, begin: int, end: int) -> list[int]:
        right: list[int] = inner.entries(of, row, begin, end)
        return [right[0] + 1, *right[1:]] if (of, row) == (group, 3) else right

    with pytest.raises(WorkNotDoneError):
        step_paths.step(_Partial(lambda inner: {"entries": partial(entries, inner)}))()
