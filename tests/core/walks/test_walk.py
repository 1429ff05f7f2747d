"""Property: whatever an engine does, the laws hold after each step, observers can follow, and both builds do the same.

How: long seeded walks of a small engine (walk.py) through all kinds of layer, and Hypothesis choosing the steps of
short ones, so that a failure shrinks; the same walks in a process of each build, compared by a digest of all outputs
and states. Every kind of outcome must have been seen.

Not covered: agreement with the specification, which the conformance kit shows on all reachable states of small scopes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.support import COMPILED, SETUPS, Setup, every_setup
from tests.core.walks.walk import Walk, walk

ROOT = Path(__file__).resolve().parents[3]
OUTCOMES = {
    "hit", "no hit", "admitted", "not admitted", "batch", "batch cut short", "alone", "refused", "cache reset",
    "cache in use", "InvalidArgumentError", "StaleHitError", "UnknownRequestError", "DuplicateRequestError", "trim",
    "preempt", "clone",
}  # fmt: skip


@pytest.mark.parametrize("name", SETUPS)
def test_long_walks(name: str) -> None:
    seen = set()
    for seed in range(6 if COMPILED else 3):
        seen |= walk(name, seed, 400).seen
    impossible = set() if SETUPS[name].caching else {"hit"}
    if name == "mamba-uncached":
        impossible.add("refused")  # a running request never needs another block
    assert seen >= OUTCOMES - impossible


@every_setup
@settings(max_examples=30)
@given(st.randoms(note_method_calls=False, use_true_random=False), st.booleans(), st.sampled_from([4, 8, 14]))
def test_drawn_walks(setup: Setup, random: Random, use_eagle: bool, num_blocks: int) -> None:
    walked = Walk(setup, random, num_blocks, use_eagle and not hasattr(setup.spec, "attention_chunk_size"))
    for _ in range(25):
        walked.step()


@pytest.mark.skipif(not COMPILED, reason="compared once, in the run of the compiled build")
@pytest.mark.parametrize("name", SETUPS)
def test_builds_agree(name: str) -> None:
    """The uncompiled build, in a process of its own, gives and holds exactly what this one does."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.core.walks.walk", name, "1000", "400"],
        env={**os.environ, "BLOCKWRIGHT_PURE_PYTHON": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [walk(name, 1000, 400).trace.hexdigest(), "pure"]
