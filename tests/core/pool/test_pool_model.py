"""Property: the pool and its packed index behave as a queue, a counter per block and a dictionary of lists.

How: drawn sequences of every public call against a plain model, comparing all observable state after each, with keys
chosen so that they crowd into few slots, wrap around the end of the table, or differ only in their high word or group.

Not covered: managers above the pool, events (laws EV-1 to EV-5, in lock-step), and concurrency.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.support import ids_of, keyed_hasher

from blockwright import BlockPool, Request
from blockwright.errors import BlockError, NoFreeBlocksError

LAYOUTS = {
    "all in one slot": lambda token: 0,
    "last slots, wrapping": lambda token: -1 - token % 3,
    "neighbouring slots": lambda token: token % 5,
    "equal modulo the table": lambda token: (token % 3) * 2**20,
    "extreme words": lambda token: (2**63, 2**63 - 1, 0, 2**64 - 1)[token % 4],
    "spread": lambda token: token * 0x9E3779B97F4A7C15,
}


class Model:
    """A pool in plain containers. Keys are (token, group)."""

    def __init__(self, num_blocks: int) -> None:
        self.free = list(range(1, num_blocks))
        self.holders: Counter[int] = Counter()
        self.key_of: dict[int, tuple[int, int]] = {}
        self.blocks_of: dict[tuple[int, int], list[int]] = {}
        self.evictions = 0

    def take(self, count: int) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        for block in taken:
            self.holders[block] = 1
            if key := self.key_of.pop(block, None):
                self.evictions += 1
                self.blocks_of[key].remove(block)
                if not self.blocks_of[key]:
                    del self.blocks_of[key]
        return taken

    def publish(self, block: int, key: tuple[int, int]) -> None:
        if block not in self.key_of:
            self.key_of[block] = key
            self.blocks_of.setdefault(key, []).append(block)

    def release(self, blocks: list[int]) -> None:
        for block in blocks:
            self.holders[block] -= 1
            if not self.holders[block]:
                self.free.insert(len(self.free) if block in self.key_of else 0, block)

    def touch(self, blocks: list[int]) -> None:
        for block in blocks:
            if not self.holders[block]:
                self.free.remove(block)
            self.holders[block] += 1

    def reset(self) -> bool:
        if +self.holders:
            return False
        self.key_of, self.blocks_of = {}, {}
        return True


operations = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 4)),
        st.tuples(st.just("publish"), st.integers(1, 12), st.integers(0, 6), st.integers(0, 1)),
        st.tuples(st.just("release"), st.lists(st.integers(1, 12), max_size=5)),
        st.tuples(st.just("touch"), st.lists(st.integers(1, 12), max_size=4)),
        st.tuples(st.just("reset")),
        st.tuples(st.just("copy")),
    ),
    max_size=40,
)


def step(pool: BlockPool, model: Model, requests: list[Request], operation: tuple[object, ...]) -> None:
    """Do one operation on both, or see it refused by both."""
    match operation:
        case ("take", int(count)):
            try:
                taken = ids_of(pool.get_new_blocks(count))
            except NoFreeBlocksError:
                assert count > len(model.free)
            else:
                assert taken == model.take(count)
        case ("publish", int(block), int(token), int(group)):
            try:
                pool.cache_full_blocks(requests[token], [block], 0, 1, 2, group)
            except BlockError:
                assert not model.holders[block]
            else:
                model.publish(block, (token, group))
        case ("release", list(blocks)):
            try:
                pool.free_blocks(blocks)
            except BlockError:
                assert Counter(blocks) - model.holders
            else:
                model.release(blocks)
        case ("touch", list(blocks)):
            try:
                pool.touch(blocks)
            except BlockError:
                assert any(not model.holders[block] and block not in model.key_of for block in blocks)
            else:
                model.touch(blocks)
        case ("reset",):
            assert pool.reset_prefix_cache() == model.reset()


def compare(pool: BlockPool, model: Model, requests: list[Request]) -> None:
    pool.check()
    assert pool.free_block_ids() == model.free
    assert pool.ref_counts() == [model.holders[block] for block in range(13)]
    assert pool.num_evictions == model.evictions
    words = [request.block_hashes[0] for request in requests]
    assert pool.block_keys() == [words[model.key_of[b][0]] if b in model.key_of else None for b in range(13)]
    for token, word in enumerate(words):
        for group in (0, 1):
            blocks = model.blocks_of.get((token, group))
            found = pool.get_cached_block(word, [group])
            assert (None if found is None else ids_of(found)) == (blocks and blocks[:1])


@settings(max_examples=300)
@given(st.sampled_from(sorted(LAYOUTS)), operations)
def test_pool_equals_model(layout: str, given_operations: list[tuple[object, ...]]) -> None:
    hasher = keyed_hasher(LAYOUTS[layout])
    requests = [Request(f"r{token}", [token, token], 2, hasher=hasher) for token in range(7)]
    pool, model = BlockPool(13), Model(13)
    for operation in given_operations:
        if operation == ("copy",):
            pool = pool.copy()
        step(pool, model, requests, operation)
        compare(pool, model, requests)
