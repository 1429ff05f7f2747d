"""Property: the paths of an offload tier do the same work on both sides, and their own checks notice work not done.

Tested by running each path once in a small size, on Blockwright and, where `make bench-peers` has fetched it, on vLLM
0.11.0; by comparing what both answer to the same calls; and by managers that do part of the work only. Not covered: the
numbers.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from blockwright.bench.measure import WorkNotDoneError
from blockwright.bench.offload import paths as offload_paths
from blockwright.bench.offload.paths import OffloadSide, OursOffload
from blockwright.bench.peers import vllm_offload as vllm_offload_peer

PEERS = Path(os.environ.get("BLOCKWRIGHT_PEERS") or Path(__file__).resolve().parents[2] / ".peers")
needs_peer = pytest.mark.skipif(
    not vllm_offload_peer.PUBLISHED.root(PEERS).is_dir(), reason="the peer's files are not there: make bench-peers"
)
each_path = pytest.mark.parametrize("path", offload_paths.all_paths(), ids=lambda path: str(path.name))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few places and blocks."""
    monkeypatch.setattr(offload_paths, "PLACES", 12)
    monkeypatch.setattr(offload_paths, "BATCH", 4)


@each_path
def test_every_path_runs_on_blockwright(path: Any) -> None:
    sample = path.ours()
    assert all(sample() != 0 for _ in range(3))


@needs_peer
@each_path
def test_every_path_runs_on_the_peer(path: Any) -> None:
    sample = path.peer(vllm_offload_peer.load(PEERS))
    assert all(sample() != 0 for _ in range(3))


@needs_peer
def test_the_peer_is_loaded_from_the_folder() -> None:
    manager = vllm_offload_peer.load(PEERS).manager(2)
    folder = vllm_offload_peer.PUBLISHED.root(PEERS) / "vllm" / "v1" / "kv_offload"
    assert type(manager).prepare_store.__code__.co_filename == str(folder / "lru_manager.py")
    assert type(manager.backend).free.__code__.co_filename == str(folder / "backends" / "cpu.py")


def answers(side: OffloadSide) -> list[object]:
    """Return what a manager answers."""
    manager = side.manager(5)
    keys = [bytes([at]) * 32 for at in range(8)]
    story: list[object] = []
    for stored in (keys[:3], keys[2:4], keys[5:8], keys[:2]):
        output = manager.prepare_store(stored)
        story.append([output.block_hashes_to_store, [int(i) for i in output.store_spec.block_ids]])
        story.append(output.block_hashes_evicted)
        manager.complete_store(stored)
        manager.touch(keys[1:4])
        story.append(manager.lookup(keys))
        spec = manager.prepare_load(stored)
        story.append([int(i) for i in spec.block_ids])
        story.append(manager.prepare_store([bytes([9 + at]) for at in range(4)]) is None)
        manager.complete_load(stored)
    return story


@needs_peer
def test_both_sides_answer_alike() -> None:
    assert answers(OursOffload()) == answers(vllm_offload_peer.load(PEERS))


@each_path
@pytest.mark.parametrize("skipped", ["prepare_store", "complete_store"])
def test_work_that_is_not_done_is_noticed(path: Any, skipped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = OursOffload()

    class Partial:
        def __init__(self, num_blocks: int) -> None:
            self._inner = whole(inner, num_blocks)

        def __getattr__(self, name: str) -> Any:
            return (lambda *arguments: None) if name == skipped else getattr(self._inner, name)

    whole = OursOffload.manager
    monkeypatch.setattr(OursOffload, "manager", lambda self, num_blocks: Partial(num_blocks))
    with pytest.raises((WorkNotDoneError, LookupError, ValueError)):
        path.ours()()
