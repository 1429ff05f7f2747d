"""Property: a peer is vLLM's published manager, unmodified, and loading it leaves no trace in the process.

Tested on folders that are not the peer (each a typed error), and, where `make bench-peers` has fetched the real
files (folder .peers, or BLOCKWRIGHT_PEERS), by comparing what the peer and Blockwright answer to the same calls.
Not covered: the download itself (it needs a package registry); the peer's speed.
"""

import os
import re
import sys
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pytest

from blockwright.bench.peers import fetch as fetch_peers
from blockwright.bench.peers import sglang as sglang_peer
from blockwright.bench.peers import vllm as vllm_peer
from blockwright.bench.peers import vllm_paging as vllm_paging_peer
from blockwright.bench.published import Published
from blockwright.bench.sides import BLOCK_SIZE, Ours, Tokens, Windows
from blockwright.errors import InvalidArgumentError

PEERS = Path(os.environ.get("BLOCKWRIGHT_PEERS") or Path(__file__).resolve().parents[2] / ".peers")
needs_peer = pytest.mark.skipif(
    not (PEERS / "vllm").is_dir(), reason="the peer's files are not there: make bench-peers"
)


each_peer = pytest.mark.parametrize("peer", fetch_peers.PEERS, ids=lambda peer: str(peer.version))


def package(folder: Path, peer: Published, version: str, manager: str = "") -> Path:
    witness = peer.root(folder) / peer.witness
    witness.parent.mkdir(parents=True)
    witness.write_text(manager)
    (peer.root(folder) / peer.package / "_version.py").write_text(f"__version__ = version = '{version}'\n")
    for library in peer.libraries:
        (peer.root(folder) / library).parent.mkdir(parents=True)
        (peer.root(folder) / library).write_bytes(b"")
    return folder


@each_peer
def test_a_folder_without_the_package_is_refused(peer: Published, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"peer_path: .* holds no unpacked (vllm|sglang) .*peers.fetch"):
        peer.load(tmp_path / "nowhere", object)


@each_peer
def test_another_version_is_refused(peer: Published, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"holds {peer.package} 0\.1\.2, not {re.escape(peer.version)}"):
        peer.load(package(tmp_path, peer, "0.1.2"), object)


@each_peer
def test_fetching_into_a_folder_that_holds_another_version_changes_nothing(peer: Published, tmp_path: Path) -> None:
    package(tmp_path, peer, "0.1.2", "kept")
    with pytest.raises(InvalidArgumentError, match=r"0\.1\.2"):
        fetch_peers.fetch(tmp_path, peer)
    assert (peer.root(tmp_path) / peer.witness).read_text() == "kept"


@each_peer
def test_fetching_again_downloads_nothing(peer: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # a download would fail
    assert fetch_peers.fetch(package(tmp_path, peer, peer.version), peer) == 0


def test_a_library_that_is_not_there_yet_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = sglang_peer.PUBLISHED
    folder = package(tmp_path / "old", peer, peer.version)
    (library,) = peer.libraries
    (peer.root(folder) / library).unlink()

    def download(peer: Published, scratch: Path) -> Path:
        with ZipFile(scratch / "wheel", "w") as wheel:
            for file in peer.root(package(tmp_path / "new", peer, peer.version)).rglob("*.*"):
                wheel.write(file, file.relative_to(peer.root(tmp_path / "new")))
        return scratch / "wheel"

    monkeypatch.setattr(fetch_peers, "_download", download)
    assert fetch_peers.fetch(folder, peer) == 1
    assert (peer.root(folder) / library).is_file()
    assert fetch_peers.fetch(folder, peer) == 0


def test_the_peers_lie_beside_one_another(tmp_path: Path) -> None:
    assert len({peer.root(tmp_path) for peer in fetch_peers.PEERS}) == len(fetch_peers.PEERS) == 4


@pytest.mark.parametrize("module", [vllm_peer, vllm_paging_peer], ids=["manager", "paging"])
def test_a_failed_load_leaves_no_trace(module: ModuleType, tmp_path: Path) -> None:
    modules, finders, peer = dict(sys.modules), list(sys.meta_path), module.PUBLISHED
    with pytest.raises(InvalidArgumentError, match=rf"peer_path: vllm {peer.version} in .* could not be loaded"):
        module.load(package(tmp_path, peer, peer.version))
    assert sys.meta_path == finders
    assert {name: module for name, module in sys.modules.items() if name.startswith(("vllm", "torch"))} == {
        name: module for name, module in modules.items() if name.startswith(("vllm", "torch"))
    }


@needs_peer
def test_the_real_peer_is_loaded_from_the_folder_and_leaves_no_trace() -> None:
    numpy, finders = sys.modules.get("numpy"), list(sys.meta_path)
    peer = vllm_peer.load(PEERS)
    manager = peer.manager(8, 1024)
    source = sys.modules.get("vllm"), type(manager).allocate_slots.__code__.co_filename
    assert source == (None, str(PEERS / "vllm" / "v1" / "core" / "kv_cache_manager.py"))
    assert sys.meta_path == finders
    assert sys.modules.get("numpy") is numpy


@needs_peer
@pytest.mark.parametrize(
    ("windows", "num_blocks"), [((None,), 9), ((None, 2 * BLOCK_SIZE, 2 * BLOCK_SIZE), 27)], ids=["one", "three"]
)
def test_the_real_peer_and_blockwright_answer_alike(windows: Windows, num_blocks: int) -> None:
    answers = []
    for side in (vllm_peer.load(PEERS), Ours()):
        tokens = Tokens()
        shared = tokens.draw(5 * BLOCK_SIZE)
        manager = side.manager(num_blocks, 1024, windows)
        first = side.request("first", shared + tokens.draw(3))
        second = side.request("second", shared[: 3 * BLOCK_SIZE] + tokens.draw(BLOCK_SIZE))
        third = side.request("third", tokens.draw(7 * BLOCK_SIZE))
        seen: list[object] = [len(first.block_hashes), len(second.block_hashes)]
        for request in (first, second, third):
            hit, length = manager.get_computed_blocks(request)[:2]
            new = manager.allocate_slots(request, request.num_tokens - length, length, hit)
            seen += [length, None if new is None else new.get_block_ids(), manager.usage]
        seen.append([manager.get_block_ids("first"), manager.get_block_ids("second")])
        manager.free(first)
        manager.free(second)
        seen += [manager.get_computed_blocks(first)[1], manager.usage]
        answers.append(seen)
    assert answers[0] == answers[1]
