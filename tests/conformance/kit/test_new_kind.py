"""Property: a kind that is not in the product is explored from what it reads to its tables, and a wrong rule is found.

How: the scopes of `examples/new_kind`, whole; then with a rule that keeps too little, and one that keeps too much.
The same with wanted lengths (`keep_wanted`). Not covered: kernels that read such tables.
"""

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blockwright import KVCacheConfig, KVCacheGroupSpec, KVCacheManager
from blockwright.errors import UnsupportedError
from blockwright_conformance.kv_cache.blockwright import SPECS, BlockwrightAdapter
from blockwright_conformance.kv_cache.gate import judged
from blockwright_conformance.kv_cache.scopes import LAYERS, of_row

ROOT = Path(__file__).resolve().parents[3]
KIND = runpy.run_path(str(ROOT / "examples/new_kind/strided.py"))
WRONG: dict[str, Any] = {
    "a later position is kept": ("next_kept", lambda rule, position: -(-position // rule.every) * rule.every + 1),
    "only each second one is kept": ("next_kept", lambda rule, at: -(-at // (2 * rule.every)) * 2 * rule.every),
    "the window is one shorter": ("first_needed", lambda rule, count: max(0, count - rule.span + 2)),
}


@pytest.fixture(autouse=True)
def _kind() -> Iterator[None]:
    KIND["add_kind"](*KIND["KIND"])
    yield
    del LAYERS["strided"], SPECS["strided"]


def test_the_kind_is_explored_without_violation() -> None:
    rows = KIND["explored"]()
    assert {row.scope: (row.law, row.detail) for row in rows if row.violations} == {}
    assert [row.scope for row in rows if row.transitions < 100] == []


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KIND["StridedRule"], *WRONG[name])
    assert judged(of_row(*KIND["ROWS"][1]), BlockwrightAdapter).violations > 0


WANTED = ("strided 1 3, block 1", "keeping", 6, 6, "chunks")
PROMPTS: dict[str, Any] = {"slots": 1, "prompts": ["00000", "00011"], "keeps": True}
"""The fourth position is wanted though no window of a wanted hit has it."""


def test_what_is_wanted_of_the_kind_is_kept() -> None:
    row = judged(of_row(*WANTED, PROMPTS), BlockwrightAdapter)
    assert (row.violations, row.detail) == (0, "")
    assert row.transitions > 100


def test_what_the_kind_cannot_have_is_refused() -> None:
    config = KVCacheConfig(9, [KVCacheGroupSpec(["layer"], KIND["SPEC"](2, window_size=2, every=4))])
    with pytest.raises(UnsupportedError, match="wanted_interval: not with layers of a kind that states its own rule"):
        KVCacheManager(config, max_model_len=8, keep_wanted=True, wanted_interval=2)
