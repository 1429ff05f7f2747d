"""Property: the managers of other engines pass the kit in the shapes that `examples/managers` declares for them.

How: each is put through scopes where its package is installed; true defects are strict expected failures; the mended
manager of nano-vllm has none. A tree that frees a page which a table still has is red.
Not covered: all scopes of a profile; `blockwright conform --impl` runs them.
"""

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest

from blockwright_conformance import ConformanceError, run_conformance

pytestmark = pytest.mark.without_vllm
FOLDER = Path(__file__).parents[2] / "examples" / "managers"
MANAGERS = [
    ("nanovllm", "nano_vllm:NanoAdapter", "pr", "", "nano_vllm.toml"),
    ("nanovllm", "nano_mended:OneLeftAdapter", "pr", "", "nano_mended.toml"),
    ("nanovllm", "nano_mended:MendedAdapter", "pr", "", ""),
    ("vllm", "vllm_manager:VllmAdapter", "quick", "block 2: parting", ""),
    ("vllm", "vllm_manager:VllmAdapter", "quick", "sliding 3, block 1", ""),
    ("nanovllm", "transformers_cache:TransformersAdapter", "quick", "", ""),
    ("sglang", "sglang_tree:TreeAdapter", "quick", "", ""),
]


@pytest.mark.parametrize(("package", "name", "profile", "scope", "listed"), MANAGERS)
def test_a_manager_of_another_make_passes(
    package: str, name: str, profile: str, scope: str, listed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if PathFinder.find_spec(package) is None:
        pytest.skip(f"{package} is not installed; make test-engines")
    monkeypatch.syspath_prepend(FOLDER)
    if package == "sglang":
        import_module("tests.engines.sglang_bed")
    report = run_conformance(name, None, FOLDER / listed if listed else (), profile, scope)
    print(f"{name}: {len(report.scopes)} scopes, {report.transitions} transitions")
    if package == "sglang":
        tree = sys.modules["sglang_tree"].TreeAdapter
        insert = tree.insert

        def freed(self: Any, name: str, end: int) -> None:
            before = [*self.tables[name]]
            insert(self, name, end)
            self.tables[name][:] = before

        monkeypatch.setattr(tree, "insert", freed)
        with pytest.raises(ConformanceError, match="free: expected"):
            run_conformance(name, None, (), profile, "alone")
