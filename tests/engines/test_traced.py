"""Property: with `BLOCKWRIGHT_TRACE` a vLLM writes a trace of its run, which `blockwright conform --trace` accepts.

How: vLLM's real schedulers over random arrivals, aborts and resets, with the worker of `stub`, and a whole vLLM with a
tiny model; each file is checked as the command does.
Not covered: `prefix_match_unit`, which is not traced; faults of the core, which tests/conformance/test_trace.py plants.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from blockwright_conformance.trace import check

FULL, OTHERS = ("full", 40, 0, 0), (("full", 60, 0, 3), ("full sliding", 90, 2, 0), ("full chunked", 90, 0, 0))
"""Groups of layers, blocks, steps in flight, drafts."""


@pytest.fixture
def accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Have the engines of this process traced; return a check of the trace and its least number of steps."""
    monkeypatch.setenv("BLOCKWRIGHT_TRACE", str(tmp_path / "engine-%p.trace"))

    def run(least: int) -> None:
        code, said = check(tmp_path / f"engine-{os.getpid()}.trace"), capsys.readouterr().out.splitlines()
        assert (code, said[-1:]) == (0, ["The trace is whole."]), said
        assert int(said[-2].partition(" steps of ")[0].replace(",", "")) > least

    return run


@pytest.mark.parametrize("walk", [FULL, *OTHERS, ("full state", 120, 2, 3)])
def test_a_run_of_the_scheduler(walk: tuple[str, int, int, int], models_folder: Path, accepted: Any) -> None:
    from tests.engines import stub

    groups, blocks, depth, drafts = walk
    kinds = stub.drafting([kind for word in groups.split() for kind in stub.KINDS[word]()], drafts)
    made = stub.scheduler(models_folder, True, kinds, blocks, is_async=depth > 0, drafts=drafts, interval=0)
    stub.walk([stub.Side(made, kinds, depth=depth, drafts=drafts)], 1, 120, made.hash_block_size, exact=False)
    made.shutdown()
    accepted(500)


@pytest.mark.slow
def test_a_whole_run(models_folder: Path, accepted: Any) -> None:
    from tests.engines import models, served
    from vllm import LLM

    options = served.PLAIN | {"num_gpu_blocks_override": 24, "max_model_len": 512}
    llm = LLM(str(models.make("llama", models_folder)), scheduler_cls=served.OURS, **options)
    served.generate(count=40)(llm, served.Served())
    llm.llm_engine.engine_core.shutdown()
    accepted(1_500)
