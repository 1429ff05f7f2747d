"""Property: the examples in the docstrings of `blockwright.device` do what they show.

How: doctest over its modules; those with an example are named, so that an empty run does not pass.
Not covered: the documents (tests/docs).
"""

import doctest
import importlib

import pytest

pytest.importorskip("torch", reason="needs torch: pip install torch")

FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


@pytest.mark.parametrize("module", ["copies", "inputs", "pairs", "plan", "planned", "slots", "staging", "storage"])
def test_examples(module: str) -> None:
    results = doctest.testmod(importlib.import_module(f"blockwright.device.{module}"), optionflags=FLAGS)
    assert results.attempted
    assert not results.failed
