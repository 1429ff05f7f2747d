"""Property: vLLM's offloading managers, unmodified, do what the specification says but for what is listed.

Tested on the published files where `make bench-peers` has fetched them (folder .peers, or BLOCKWRIGHT_PEERS; skipped
without): scopes of both releases, none with a finding that is not listed; and scripts that confirm the bugs.
Not covered: whole scopes of an ARC (the command runs them); tiers of files, objects and peers.
"""

import os
from pathlib import Path

import pytest

from blockwright_conformance.capabilities import Standing, judge
from blockwright_lab.peers.confirm.__main__ import confirm
from blockwright_lab.peers.engines import engine_of

PEERS = Path(os.environ.get("BLOCKWRIGHT_PEERS") or Path(__file__).resolve().parents[2] / ".peers")
needs_old = pytest.mark.skipif(
    not (PEERS / "vllm-0.11.0").is_dir(), reason="the peer's files are not there: make bench-peers"
)
needs_new = pytest.mark.skipif(not (PEERS / "vllm").is_dir(), reason="the peer's files are not there: make bench-peers")

LIMIT = 1500


def unlisted(name: str, scope: str) -> tuple[list[str], set[str]]:
    engine = engine_of(name)
    chosen = next(each for each in engine.scopes if each.name == scope)
    explored = engine.explore(chosen, PEERS, LIMIT)
    verdict = judge(explored.findings, engine.deviations)
    assert explored.transitions > 10
    return [f"{each.law}: {each.detail}" for each in verdict.unlisted], {each.name for each, _ in verdict.known}


@needs_new
@pytest.mark.parametrize(
    "scope",
    [
        "LRU, 1 place, 3 keys",
        "LRU, 2 places, 3 keys",
        "LRU requests, 1 place, 3 keys",
        "ARC, 1 place, 3 keys",
        "LRU requests, a walk, 8 places, 16 keys",
        "ARC requests, a walk, 8 places, 16 keys",
    ],
)
def test_right_calls_have_no_finding(scope: str) -> None:
    assert unlisted("vllm-offload-0.33.0", scope) == ([], set())


@needs_new
@pytest.mark.parametrize(
    ("scope", "names"),
    [
        ("LRU, a key twice", {"store-of-a-key-twice", "store-of-a-key-twice-refused"}),
        ("ARC, wrong calls", {"completing-nothing-is-passed-over", "wrong-calls-are-assertions"}),
        ("LRU requests strict, 2 places", {"requests-count-as-use", "requests-order-their-keys"}),
    ],
)
def test_what_is_listed_shows_and_nothing_else(scope: str, names: set[str]) -> None:
    assert unlisted("vllm-offload-0.33.0", scope) == ([], names)


@needs_old
def test_the_old_release_evicts_what_a_store_names() -> None:
    assert unlisted("vllm-offload-0.11.0", "LRU, 1 place, 3 keys") == ([], {"store-evicts-what-it-names"})
    engine = engine_of("vllm-offload-0.11.0")
    scripts = {each.confirm for each in engine.deviations if each.standing is Standing.BUG}
    assert scripts == {"offload_store_evicts_named"}
    assert "evicted" in confirm("offload_store_evicts_named", PEERS)
