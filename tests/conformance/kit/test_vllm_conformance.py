"""Property: vLLM's managers are put through the gates as they were published, and what is said of them is so.

How: where `make bench-peers` has fetched their files (folder .peers, or BLOCKWRIGHT_PEERS): each script must show its
bug; scopes are followed, and what they show is listed; the shortest way to the under-count of recurrent layers is run
as it is printed. The committed reports must be of the lists as they stand.
Not covered: every scope of the lists (`make peers-conform`).
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from blockwright.errors import InvalidArgumentError
from blockwright_conformance.capabilities import judge
from blockwright_lab.peers.confirm.__main__ import NAMES, confirm
from blockwright_lab.peers.engines import MODULES, deviations_of, engine_of
from blockwright_lab.peers.vllm_engine import NEW, OLD, load

ROOT = Path(__file__).resolve().parents[3]
PEERS = Path(os.environ.get("BLOCKWRIGHT_PEERS") or ROOT / ".peers")
needs_peers = pytest.mark.skipif(
    not all((release.root(PEERS) / "vllm").is_dir() for release in (NEW, OLD)),
    reason="the peers' files are not there: make bench-peers",
)
OURS = tuple(
    dict.fromkeys(
        each.confirm for each in (*deviations_of("vllm-0.33.0"), *deviations_of("vllm-0.11.0")) if each.confirm
    )
)
"""The scripts about these two managers; other engines may have more."""


def test_every_script_confirms_a_listed_bug() -> None:
    listed = {each.confirm for name in MODULES for each in engine_of(name).deviations if each.confirm}
    assert listed == set(NAMES)
    assert set(OURS) <= listed


@needs_peers
@pytest.mark.parametrize("name", OURS)
def test_each_script_shows_its_bug(name: str) -> None:
    assert confirm(name, PEERS)


@needs_peers
@pytest.mark.parametrize(
    ("name", "scope"),
    [
        ("vllm-0.33.0", "full, block 2: life"),
        ("vllm-0.33.0", "chunked 2, block 2: life"),
        ("vllm-0.33.0", "full, block 2 + mamba, block 2: loads"),
        ("vllm-0.33.0", "full, block 2 + sliding 2, block 1: loads"),
        ("vllm-0.11.0", "full, block 2: life"),
        ("vllm-0.11.0", "sliding 2, block 1: put off"),
    ],
)
def test_what_a_scope_shows_is_listed(name: str, scope: str) -> None:
    engine = engine_of(name)
    found = engine.explore(next(each for each in engine.scopes if each.name == scope), PEERS, 300)
    assert found.transitions > 0
    assert judge(found.findings, engine.deviations).unlisted == ()


@needs_peers
def test_the_undercount_of_recurrent_layers_is_found_and_its_way_can_be_run() -> None:
    engine, vllm = engine_of("vllm-0.33.0"), load("0.33.0", PEERS)
    scope = next(each for each in engine.scopes if each.name == "full, block 2 + mamba, block 2: loads")
    verdict = judge(engine.explore(scope, PEERS, 300).findings, engine.deviations)
    (finding,) = next(found for each, found in verdict.known if each.bugs == ("B08",))
    assert finding.steps <= 2
    world: dict[str, Any] = {
        "manager": vllm.manager(scope.config),
        "request": lambda name, tokens: vllm.request(name, 0, tuple(tokens), 2),
    }
    *before, last = finding.script.splitlines()
    exec("\n".join(before), world)
    with pytest.raises(ValueError, match="Cannot get 1 free blocks from the pool"):
        exec(last, world)


@pytest.mark.parametrize("name", ["vllm-0.33.0", "vllm-0.11.0"])
def test_the_committed_report_is_of_the_list_as_it_stands(name: str) -> None:
    engine = engine_of(name)
    data = json.loads((ROOT / "docs/data/engines" / f"{name}.json").read_text(encoding="utf-8"))
    assert data["violations"] == []
    assert [each["id"] for each in data["deviations"]] == [each.name for each in engine.deviations]
    assert [each["reason"] for each in data["deviations"]] == [each.reason for each in engine.deviations]
    assert [each["id"] for each in data["laws"]] == [law for law, _ in engine.laws]
    scopes = {each["name"] for each in data["scopes"]} | {each["name"] for each in data["left_out"]}
    assert scopes == {each.name for each in engine.scopes}


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"engine: there is no 'vllm'; there are "):
        engine_of("vllm")


def test_every_engine_is_found_in_its_module() -> None:
    assert [engine_of(name).name for name in MODULES] == list(MODULES)
