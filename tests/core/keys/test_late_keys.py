"""Property: keys are made when they are needed; no lookup hashes far beyond its miss, and what fails changes nothing.

How: a hasher that counts the blocks it hashes, and fails at a block that a test names; every call that publishes.

Not covered: which keys these are (test_hashing.py), hashers that do not wait (test_odd_hashers.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.core.support import admit, full, group_of, mamba, manager_dump, manager_of, manager_over, pool_dump, sliding

from blockwright import (
    BlockHasher,
    BlockPool,
    KVCacheManager,
    KVCacheSpec,
    Request,
    append_output_token_ids_batch,
)
from blockwright.core.keys.block_hash import HashChain
from blockwright.errors import InvalidArgumentError
from blockwright.events import BlockStored

FIRST, MOST = 8, 64
"""Keys that a lookup makes after its first hit, and at most at once."""


class Counting(BlockHasher):
    """Hashes as SHA-256 chained by hand; its chains may wait."""

    def __init__(self, is_portable: bool = False, may_wait: bool = True) -> None:
        super().__init__(True, is_portable)
        self.may_wait = may_wait
        self.count = 0
        self.left = -1

    def start(self, root: bytes, block_size: Any) -> HashChain:
        return CountingChain(self, block_size)


class CountingChain(HashChain):
    def __init__(self, hasher: Counting, size: int) -> None:
        self.hasher, self.size = hasher, size

    def copy(self) -> HashChain:
        return self

    def may_wait(self) -> bool:
        return self.hasher.may_wait

    def extend(self, data: bytes, start: Any, num_blocks: Any, extra: bytes, words: Any, at: Any) -> None:
        for block in range(num_blocks):
            self.hasher.left -= 1
            if self.hasher.left == 0:
                raise MemoryError
            self.hasher.count += 1
            parent = words[at - 1].to_bytes(8, "little", signed=True) if at > 0 else b""
            first = start + block * self.size * 4
            digest = hashlib.sha256(parent + data[first : first + self.size * 4] + extra).digest()
            words[at] = int.from_bytes(digest[:8], "little", signed=True)
            words[at + 1] = int.from_bytes(digest[8:16], "little", signed=True)
            at += 2


def request(hasher: Counting, tokens: Sequence[int], name: str = "r") -> Request:
    return Request(name, tokens, 2, hasher=hasher)


@pytest.mark.parametrize("kinds", [[full(2)], [full(2), sliding(2, 6)], [sliding(2, 6), full(4)], [mamba(2), full(2)]])
@pytest.mark.parametrize("known", [0, 1, 7, 8, 9, 40, 300])
def test_a_lookup_hashes_little_beyond_its_miss(kinds: list[KVCacheSpec], known: int) -> None:
    manager, hasher = manager_over(kinds, 3000, 3000), Counting()
    common = list(range(4 * known))
    if known:
        admit(manager, request(hasher, common, "writer"))
        manager.new_step_starts()
    asked = request(hasher, [*common, *[9] * 2000])
    hasher.count = 0
    assert manager.get_computed_blocks(asked)[1] == 4 * known
    assert 2 * known < hasher.count <= 2 * known + min(max(2 * known, FIRST), MOST) + 2
    made = hasher.count
    manager.get_computed_blocks(asked)
    assert hasher.count == made
    assert asked.block_hashes == request(hasher, asked.all_token_ids).block_hashes


def test_a_step_hashes_what_it_publishes() -> None:
    manager, hasher = manager_of(full(2), 99), Counting()
    asked = request(hasher, range(21))
    assert hasher.count == 0
    for step, blocks in ((3, 1), (1, 2), (16, 10), (1, 10)):
        assert manager.allocate_slots(asked, step) is not None
        asked.num_computed_tokens += step
        assert hasher.count == blocks == manager.num_published("r")[0]
    asked.append_output_token_ids(list(range(9)))
    assert hasher.count == 10
    keys = [key for key in manager.block_pool.block_keys() if key is not None]
    assert keys == asked.block_hashes[:10]
    assert hasher.count == 15


def test_without_caching_nothing_is_hashed() -> None:
    manager, hasher = manager_of(full(2), caching=False), Counting()
    admit(manager, request(hasher, range(20)))
    assert hasher.count == 0


def _delayed(manager: KVCacheManager, asked: Request) -> Callable[[], object]:
    manager.allocate_slots(asked, 16, delay_cache_blocks=True)
    return lambda: manager.cache_blocks(asked, 12)


def _settled(manager: KVCacheManager, asked: Request) -> Callable[[], object]:
    step = manager.start_step()
    manager.allocate_slots(asked, 16)
    return lambda: manager.settle_step(step)


def _loaded(manager: KVCacheManager, asked: Request) -> Callable[[], object]:
    manager.allocate_slots(asked, 0, num_external_computed_tokens=16)
    return lambda: manager.finish_load(asked, 12)


def _planned(manager: KVCacheManager, asked: Request) -> Callable[[], object]:
    plan = manager.plan(asked, 16)
    return lambda: manager.commit(plan)


def _running(manager: KVCacheManager, asked: Request) -> Callable[[], object]:
    manager.allocate_slots(asked, 1)
    asked.num_computed_tokens = 1
    return lambda: manager.allocate_slots(asked, 15)


CALLS: dict[str, Callable[[KVCacheManager, Request], Callable[[], object]]] = {
    "new": lambda manager, asked: lambda: manager.allocate_slots(asked, 16),
    "running": _running,
    "batch": lambda manager, asked: lambda: manager.allocate_slots_batch([asked], 16),
    "look up": lambda manager, asked: lambda: manager.get_computed_blocks(asked),
    "commit": _planned,
    "delayed": _delayed,
    "settled": _settled,
    "loaded": _loaded,
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("at", [1, 3])
def test_what_fails_while_keys_are_made_changes_nothing(name: str, at: int) -> None:
    settles = name == "settled"
    manager = manager_over([full(2), sliding(2, 6)], 99, overlap_steps=settles, publish_on_settlement=settles)
    hasher = Counting()
    asked = request(hasher, range(21))
    call = CALLS[name](manager, asked)
    before = manager_dump(manager)
    hasher.left = 1 if name == "look up" else at  # where the first block is missing, no other is hashed
    with pytest.raises(MemoryError):
        call()
    assert manager_dump(manager) == before
    call()
    manager.check()
    keys = {key for key in manager.block_pool.block_keys() if key is not None}
    assert keys <= set(asked.block_hashes)
    assert bool(keys) == (name != "look up")


def test_what_fails_outside_a_manager_changes_nothing() -> None:
    hasher, group = Counting(), group_of(full(2))
    group.allocate_new_blocks("r", 8)
    pool = BlockPool(9)
    asked, blocks = request(hasher, range(8)), pool.get_new_blocks(3)
    calls: tuple[tuple[Callable[[], object], BlockPool], ...] = (
        (lambda: group.cache_blocks(asked, 8), group.block_pool),
        (lambda: pool.cache_full_blocks(request(hasher, range(8)), blocks, 0, 3, 2), pool),
        (lambda: asked.copy().append_output_token_ids([1] * 8), pool),
    )
    for call, books in calls:
        before = pool_dump(books)
        hasher.left = 2
        try:
            call()
        except MemoryError:
            assert pool_dump(books) == before
            call()
        books.check()
    assert pool.block_keys()[1:4] == asked.block_hashes[:3]


def test_a_state_that_was_due_before_a_copy_was_made() -> None:
    """A copy of a request that has no keys yet, in the copy of a manager that has them: they are made again."""
    manager, hasher = manager_of(mamba(2)), Counting()
    asked = request(hasher, range(5))
    early = asked.copy()
    manager.allocate_slots(asked, 4)
    twin = manager.copy()
    early.num_computed_tokens = 4
    twin.free(early)
    assert twin.get_computed_blocks(request(hasher, range(5), "next"))[1] == 4


def test_tokens_that_were_taken_back_are_in_no_event() -> None:
    """A batch that is refused has hashed a block already; the event of the block before has that block's tokens."""
    manager = manager_of(full(2), enable_kv_cache_events=True)
    asked = request(Counting(is_portable=True, may_wait=False), [1, 2, 3, 4])
    with pytest.raises(InvalidArgumentError, match="token_ids"):
        append_output_token_ids_batch([asked], [5, 6, 7], num_tokens=2)
    manager.allocate_slots(asked, 4)
    told = [token for event in manager.take_events() if isinstance(event, BlockStored) for token in event.token_ids]
    assert told == [1, 2, 3, 4]
