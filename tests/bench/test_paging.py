"""Property: the paths of block tables do the same work on both sides, and their own checks notice work not done.

Tested by running each path once in a small size, on Blockwright and, where `make bench-peers` has fetched it, on vLLM
0.10.2; by asking both managers after each call which tables share which blocks and how many are held; and by managers
that do part of the work only. Not covered: the numbers.
"""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blockwright.bench.measure import WorkNotDoneError
from blockwright.bench.paging import paths as paging_paths
from blockwright.bench.paging import runs as paging_runs
from blockwright.bench.paging.sides import BenchGroup, BenchSequence, OursPaging, PagingSide
from blockwright.bench.peers import vllm_paging as vllm_paging_peer
from blockwright.bench.sides import BLOCK_SIZE, Tokens

PEERS = Path(os.environ.get("BLOCKWRIGHT_PEERS") or Path(__file__).resolve().parents[2] / ".peers")
needs_peer = pytest.mark.skipif(
    not vllm_paging_peer.PUBLISHED.root(PEERS).is_dir(), reason="the peer's files are not there: make bench-peers"
)
each_caching = pytest.mark.parametrize("caching", [False, True], ids=["plain", "caching"])
FULL = 3
"""Full blocks of a prompt."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few sequences of few tokens, which still cross block boundaries and end in a partial block."""
    for name, value in {"BATCH": 4, "STEPS": 20, "SEQUENCES": 4, "LENGTH": 40, "PER_SEQUENCE": 3}.items():
        monkeypatch.setattr(paging_runs, name, value)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("path", paging_paths.all_paths(), ids=lambda path: str(path.name))
def test_every_path_runs_on_blockwright(path: Any) -> None:
    sample = path.ours()
    assert all(sample() > 0 for _ in range(3))


@needs_peer
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("path", paging_paths.all_paths(), ids=lambda path: str(path.name))
def test_every_path_runs_on_the_peer(path: Any) -> None:
    sample = path.peer(vllm_paging_peer.load(PEERS))
    assert all(sample() > 0 for _ in range(3))


@needs_peer
def test_the_peer_is_loaded_from_the_folder() -> None:
    manager = vllm_paging_peer.load(PEERS).manager(8, 8, True)
    folder = vllm_paging_peer.PUBLISHED.root(PEERS) / "vllm" / "core"
    assert type(manager).append_slots.__code__.co_filename == str(folder / "block_manager.py")
    assert type(manager.block_allocator).swap.__code__.co_filename == str(
        folder / "block" / "cpu_gpu_block_allocator.py"
    )


def seen(side: PagingSide, caching: bool, width: int) -> list[list[Any]]:
    """Return what is held after each of the timed calls: which entries are the same block, free blocks per device."""
    manager = side.manager(64, 64, caching)
    tokens = Tokens()
    group = BenchGroup("r0", [BenchSequence(0, tokens.draw(FULL * BLOCK_SIZE + 5), side.waiting)])
    story: list[list[Any]] = []

    def tell(*answers: object) -> None:
        shared: dict[int, int] = {}
        tables = [[shared.setdefault(block, len(shared)) for block in manager.get_block_table(s)] for s in group.seqs]
        story.append([*answers, tables, manager.get_num_free_gpu_blocks(), manager.get_num_free_cpu_blocks()])

    def schedule() -> None:
        for seq in group.seqs:
            manager.get_num_cached_tokens(seq)
            manager.access_all_blocks_in_seq(seq, 1.0)

    manager.allocate(group)
    group.mark(side.running)
    manager.mark_blocks_as_computed(group, FULL * BLOCK_SIZE + 5)
    schedule()
    tell()
    for i in range(1, width):
        child = BenchSequence(i, list(group.seqs[0].token_ids), side.running)
        manager.fork(group.seqs[0], child)
        group.seqs.append(child)
    schedule()
    tell()
    for step in range(BLOCK_SIZE):
        copied = 0
        for seq in group.seqs:
            seq.append(tokens.draw(1)[0])
            copied += len(manager.append_slots(seq, 0))
        tell(step, copied)
    moved_out = len({pair[0] for pair in manager.swap_out(group)})
    group.mark(side.swapped)
    tell(moved_out)
    manager.swap_in(group)
    group.mark(side.running)
    tell()
    for _ in range(width):
        manager.free(group.seqs.pop())
        tell()
    return story


@needs_peer
@each_caching
def test_both_sides_hold_the_same_blocks_after_every_call_on_one_sequence(caching: bool) -> None:
    assert seen(OursPaging(), caching, 1) == seen(vllm_paging_peer.load(PEERS), caching, 1)


@needs_peer
@each_caching
def test_both_sides_hold_the_same_blocks_of_forked_sequences_until_they_are_swapped(caching: bool) -> None:
    ours, peer = (seen(side, caching, 3) for side in (OursPaging(), vllm_paging_peer.load(PEERS)))
    until = 2 + BLOCK_SIZE
    assert ours[:until] == peer[:until]
    assert ours[-1] == peer[-1]


@needs_peer
@each_caching
def test_without_caching_the_peer_forgets_sharing_when_it_swaps_which_its_row_says(caching: bool) -> None:
    ours, peer = (seen(side, caching, 3)[2 + BLOCK_SIZE] for side in (OursPaging(), vllm_paging_peer.load(PEERS)))
    # The last full block was written by each alone, and a partial block follows it.
    own, entries = 2 * 3, (FULL + 2) * 3
    assert ours[-2:] == [64, 64 - FULL - own]
    assert peer[-2:] == [64, 64 - (FULL + own if caching else entries)]


class _Partial:
    """Managers of which some methods are replaced."""

    def __init__(self, replaced: Callable[[Any], dict[str, object]]) -> None:
        self._inner, self._replaced = OursPaging(), replaced
        self.waiting, self.running, self.swapped = self._inner.waiting, self._inner.running, self._inner.swapped

    def manager(self, *args: Any) -> Any:
        inner = self._inner.manager(*args)
        methods = {name: getattr(inner, name) for name in dir(inner) if not name.startswith("_")}
        return SimpleNamespace(**{**methods, **self._replaced(inner)})


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("make", "replaced"),
    [
        (paging_paths.allocate, lambda inner: {"get_num_free_gpu_blocks": lambda: 12}),
        (paging_paths.append, lambda inner: {"append_slots": lambda seq, lookahead: []}),
        (paging_paths.step, lambda inner: {"append_slots": lambda seq, lookahead: []}),
        (
            paging_paths.fork,
            lambda inner: {"get_block_table": lambda seq: [*inner.get_block_table(seq)[:-1], seq.seq_id]},
        ),
        (paging_paths.write_shared, lambda inner: {"append_slots": lambda seq, _: inner.append_slots(seq, 0) and []}),
        (paging_paths.release, lambda inner: {"free": lambda seq: None if seq.seq_id else inner.free(seq)}),
    ],
    ids=["allocate", "append", "step", "fork", "write", "free"],
)
def test_work_that_is_not_done_is_noticed(make: Any, replaced: Callable[[Any], dict[str, object]]) -> None:
    with pytest.raises(WorkNotDoneError):
        make(_Partial(replaced), False)()


@pytest.mark.usefixtures("small")
def test_a_swap_that_moves_nothing_is_noticed() -> None:
    side = _Partial(lambda inner: {"swap_out": lambda group: []})
    with pytest.raises(WorkNotDoneError):
        paging_paths.swap(side, False, 2)()
