"""Property: a pool that is resized while it serves hands out no block beyond its end, and nothing wrong is ever read.

How: worlds of random calls beside an oracle of contents. Each slot of each block has the tokens that were written there
last; memory beyond the end is gone as soon as nothing is held there. Every step reads all that its layers read.
Not covered: every state of small pools (lock-step, in scopes "resized"); recurrent layers, which lock-step has.
"""

from __future__ import annotations

import os
from random import Random
from typing import Any

import pytest
from tests.core.support import SHA256, full, sliding

from blockwright import KVCacheConfig, KVCacheGroupSpec, KVCacheManager, Request, Resizing
from blockwright.errors import InvalidArgumentError, NeverFitsError, StaleHitError

SIZE = 4
"""Tokens of a block."""
ACTIONS = int(os.environ.get("RESIZE_ACTIONS", "3000"))
"""Actions of each world."""


class World:
    """An engine with a memory that tells which tokens were written where."""

    def __init__(self, manager: KVCacheManager, windows: list[int | None], random: Random) -> None:
        self.manager, self.windows, self.random = manager, windows, random
        self.memory: dict[tuple[int, int], tuple[Any, ...]] = {}
        self.running: dict[str, Request] = {}
        self.computed: dict[str, int] = {}
        self.made = self.read = self.shrunk = self.waited = 0

    def tokens(self) -> list[int]:
        """Return a prompt: with few symbols, so that many begin alike."""
        return [self.random.randrange(2) for _ in range(self.random.randrange(1, 30))]

    def admit(self) -> None:
        self.made += 1
        salt = self.random.choice((None, "a", "b"))
        request = Request(
            str(self.made), self.tokens(), block_size=self.manager.hash_block_size, cache_salt=salt, hasher=SHA256
        )
        hit, length = self.manager.get_computed_blocks(request)
        if self.random.random() < 0.1:
            self.resize()  # the hit may have gone stale
        new = request.num_tokens - length
        try:
            given = self.manager.allocate_slots(request, new, length, hit)
        except (StaleHitError, NeverFitsError):
            return
        if given is not None:
            self.copy()
            self.running[request.request_id] = request
            self.step(request, length, request.num_tokens)

    def grow(self) -> None:
        request = self.random.choice(list(self.running.values()))
        request.num_computed_tokens = begin = self.computed[request.request_id]
        if begin >= 60:
            self.free()
            return
        request.append_output_token_ids(self.random.randrange(2))
        if self.manager.allocate_slots(request, 1) is None:
            request.num_computed_tokens = begin
            self.manager.free(request)
            self.forget(request)
            return
        self.copy()
        self.step(request, begin, begin + 1)

    def step(self, request: Request, begin: int, end: int) -> None:
        """Read what the token at `begin` reads, and write those from there on."""
        known, tables = (*map(int, request.all_token_ids),), self.manager.get_block_ids(request.request_id)
        for table, window in zip(tables, self.windows, strict=True):
            for at in range(0 if window is None else max(0, begin - window + 1), begin):
                self.read += 1
                found = self.memory[table[at // SIZE], at % SIZE]
                assert found == (request.cache_salt, *known[: at + 1]), f"block {table[at // SIZE]} holds {found}"
            for at in range(begin, end):
                if table[at // SIZE] != 0:
                    self.memory[table[at // SIZE], at % SIZE] = (request.cache_salt, *known[: at + 1])
        self.computed[request.request_id] = end

    def fork(self) -> None:
        parent = self.random.choice(list(self.running.values()))
        parent.num_computed_tokens = self.computed[parent.request_id]
        self.made += 1
        child = parent.fork(str(self.made))
        if self.manager.fork(parent, child) is not None:
            self.running[child.request_id] = child
            self.computed[child.request_id] = self.computed[parent.request_id]

    def copy(self) -> None:
        """Run the copies before the step that needs them."""
        for pairs in self.manager.take_copies():
            for source, target in pairs:
                for at in range(SIZE):
                    if (source, at) in self.memory:
                        self.memory[target, at] = self.memory[source, at]

    def forget(self, request: Request) -> None:
        del self.running[request.request_id], self.computed[request.request_id]

    def free(self) -> None:
        request = self.random.choice(list(self.running.values()))
        request.num_computed_tokens = self.computed[request.request_id]
        self.manager.free(request)
        self.forget(request)

    def resize(self) -> None:
        pool = self.manager.block_pool
        end = self.random.randrange(4, pool.max_num_blocks + 1)
        self.shrunk += end < pool.num_blocks
        told = self.manager.resize(end)
        self.waited += told.held > 0
        assert pool.num_blocks == end
        assert told.held > 0 or told.requests == ()

    def act(self) -> None:
        choices: list[Any] = [self.admit, self.resize]
        if self.running:
            choices += [self.grow] * 6 + [self.free, self.fork]
        self.random.choice(choices)()
        pool = self.manager.block_pool
        for block, count in enumerate(pool.ref_counts()):  # what is not held beyond the end is gone
            if block >= pool.num_blocks and count == 0:
                for at in range(SIZE):
                    self.memory.pop((block, at), None)


WORLDS: list[tuple[dict[str, Any], list[int | None]]] = [
    ({}, [None]),
    ({"prefix_match_unit": 2}, [None]),
    ({"eviction_order": "adaptive"}, [None]),
    ({"eviction_order": "least_frequently_used"}, [None]),
    ({"shares": {"a": 1, "b": 2}}, [None]),
    ({"keep_wanted": True, "enable_kv_cache_events": True}, [None, 6]),
    ({"watermark": 0.2, "explain_evictions": True, "track_evictions": True}, [6]),
]


@pytest.mark.parametrize(("options", "windows"), WORLDS)
def test_nothing_wrong_is_read(options: dict[str, Any], windows: list[int | None]) -> None:
    specs = [full(SIZE) if window is None else sliding(SIZE, window) for window in windows]
    groups = [KVCacheGroupSpec([f"layers.{at}"], spec) for at, spec in enumerate(specs)]
    manager = KVCacheManager(KVCacheConfig(20, groups), 64, max_num_blocks=33, **options)
    world = World(manager, windows, Random(7))
    for at in range(ACTIONS):
        world.act()
        if at % 97 == 0:
            manager.check()
    assert min(world.shrunk, world.waited) > ACTIONS / 100
    assert world.read > ACTIONS


def small() -> tuple[KVCacheManager, Request, Request]:
    """Return a manager of eight blocks, with memory for eleven, and two requests: on blocks 1 to 3 and 4 to 7."""
    manager = KVCacheManager(KVCacheConfig(9, [KVCacheGroupSpec(["layers.0"], full())]), 64, max_num_blocks=12)
    one, other = (Request(name, range(first, first + count), block_size=4) for name, first, count in PROMPTS)
    for request in (one, other):
        assert manager.allocate_slots(request, request.num_tokens) is not None
        request.num_computed_tokens = request.num_tokens
    return manager, one, other


PROMPTS = (("one", 0, 10), ("other", 100, 13))


def test_a_pool_grows() -> None:
    manager, _, _ = small()
    assert manager.resize(12) == Resizing(num_blocks=12, held=0, requests=())
    assert manager.block_pool.free_block_ids() == [9, 10, 11, 8]
    assert (manager.block_pool.num_blocks, manager.usage) == (12, 7 / 11)


def test_a_pool_shrinks_once_nobody_holds_what_goes() -> None:
    manager, one, other = small()
    assert manager.resize(6) == Resizing(num_blocks=6, held=2, requests=("other",))
    assert manager.block_pool.free_block_ids() == []
    manager.free(one)
    assert manager.block_pool.free_block_ids() == [3, 2, 1]
    again = Request("again", range(100, 113), block_size=4)
    assert manager.get_computed_blocks(again)[1] == 8  # in blocks 4 and 5, which stay
    manager.free(other)
    assert manager.resizing == Resizing(num_blocks=6, held=0, requests=())
    assert sorted(manager.block_pool.free_block_ids()) == [1, 2, 3, 4, 5]
    manager.check()


def test_what_goes_is_forgotten_in_its_order() -> None:
    manager = KVCacheManager(
        KVCacheConfig(9, [KVCacheGroupSpec(["layers.0"], full())]),
        64,
        track_evictions=True,
        enable_kv_cache_events=True,
    )
    firsts = (("one", 0), ("other", 50))
    one, other = (Request(name, range(at, at + 12), block_size=4, hasher=SHA256) for name, at in firsts)
    for request in (one, other):
        manager.allocate_slots(request, 12)
        request.num_computed_tokens = 12
    manager.free(other)
    manager.free(one)
    manager.take_events()
    manager.resize(2)
    assert [each.block_id for each in manager.take_evictions()] == [6, 5, 4, 3, 2]
    assert len(manager.take_events()) == 5
    assert manager.block_pool.num_evictions == 5


@pytest.mark.parametrize("wrong", [1, 0, -3, 13, 2**70, True, 4.0, "8", None])
def test_another_number_is_refused_and_nothing_changes(wrong: Any) -> None:
    manager, _, _ = small()
    before = manager.block_pool.free_block_ids(), manager.block_pool.num_blocks, manager.resizing
    with pytest.raises(InvalidArgumentError, match="num_blocks: must be"):
        manager.resize(wrong)
    assert (manager.block_pool.free_block_ids(), manager.block_pool.num_blocks, manager.resizing) == before


def test_shares_must_fit() -> None:
    groups = [KVCacheGroupSpec(["layers.0"], full())]
    manager = KVCacheManager(KVCacheConfig(9, groups), 64, shares={"a": 3, "b": 2})
    with pytest.raises(InvalidArgumentError, match="shares of tenants sum to 5 blocks"):
        manager.resize(5)
    assert manager.resize(6).num_blocks == 6


def test_memory_is_for_as_many_as_there_are() -> None:
    with pytest.raises(InvalidArgumentError, match="max_num_blocks: must be an integer within 9"):
        KVCacheManager(KVCacheConfig(9, [KVCacheGroupSpec(["layers.0"], full())]), 64, max_num_blocks=8)
