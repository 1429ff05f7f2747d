"""Property: each path from raw tokens to blocks does its work on both sides: the hit is as long as what is cached.

Tested on prompts of 2,048 tokens; beside SGLang's tree in Rust where `make bench-peers` has fetched it (folder .peers,
or BLOCKWRIGHT_PEERS) and it can run. Not covered: how fast (the benchmark says that), longer prompts.
"""

import os
from pathlib import Path as FilePath
from typing import Any

import pytest

from blockwright.bench import token_paths
from blockwright.bench.path import Path
from blockwright.bench.peers import sglang
from blockwright.cli import main

PEERS = FilePath(os.environ.get("BLOCKWRIGHT_PEERS") or FilePath(__file__).resolve().parents[2] / ".peers")
SMALL = [path for path in token_paths.all_paths() if path.name.endswith("-2k")]
each_path = pytest.mark.parametrize("path", SMALL, ids=lambda path: str(path.name))


@pytest.fixture(scope="module")
def peer() -> Any:
    library = sglang.PUBLISHED.root(PEERS) / sglang.PUBLISHED.libraries[0]
    found = sglang.load(PEERS) if library.is_file() else None
    if found is None:
        pytest.skip("SGLang's tree in Rust is not there, or cannot run here: make bench-peers")
    return found


@each_path
def test_ours(path: Path) -> None:
    assert path.ours()() > 0


@each_path
def test_the_peer(path: Path, peer: Any) -> None:
    assert path.peer is not None
    assert path.peer(peer)() > 0


def test_without_what_the_peer_needs_there_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: FilePath, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sglang, "machine", lambda: "riscv64")
    assert main(["bench", "--only", SMALL[0].name, "--repeat", "1", "--peer-path", str(tmp_path)]) == 0
    assert "tokens: no peer" in capsys.readouterr().out
