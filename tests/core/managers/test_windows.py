"""Property: groups agree on a hit, a trim ends with the table, and no step behind a hit holds more than was counted.

How: odd cases of each kind, by hand; counts beside the specification's.

Not covered: which hits are found and which entries are trimmed (lock-step, contracts).
"""

from __future__ import annotations

from itertools import product

import pytest
from tests.core.support import (
    chunked,
    full,
    group_of,
    hit,
    ids_of,
    mamba,
    prompt,
    single_dump,
    sliding,
)

from blockwright import BlockPool, KVCacheSpec, get_manager_for_kv_cache_spec
from blockwright.core.tables.window import ChunkedRule, MambaRule, SlidingRule, WindowRule
from blockwright.errors import InvalidArgumentError
from blockwright_spec import reads

# ---------------------------------------------------------------------- hits


def test_chunked_hit_with_few_hashes() -> None:
    """Fewer hashes than `max_length` has blocks: a hit of one block reads that block, which is not cached."""
    group, request = group_of(chunked(4, 8)), prompt(4, 4)
    assert hit(group, request, 15) == []


def test_mamba_without_caching_finds_nothing() -> None:
    assert hit(group_of(mamba(), caching=False), prompt(16, 4), 16) == []


@pytest.mark.parametrize("spec", [full(), sliding(4, 4), sliding(4, 6), sliding(4, 6, 5), chunked(), mamba()], ids=str)
@pytest.mark.parametrize("use_eagle", [False, True])
def test_groups_agree_on_a_hit(spec: KVCacheSpec, use_eagle: bool) -> None:
    """Several groups find what the poorest of them finds alone, and a draft's margin is taken once (known bug B36)."""
    if use_eagle and spec == chunked():
        return
    pool, asked = BlockPool(101), prompt(24, 4)
    for number, length in ((0, 24), (1, 16), (2, 20)):
        group = get_manager_for_kv_cache_spec(spec, pool, number)
        for end in range(4, length + 1, 4):
            group.allocate_new_blocks("r", end)
            group.cache_blocks(asked, end)
    find = type(group).find_longest_cache_hit
    (alone,) = find(asked.block_hashes, 24, [1], pool, spec, use_eagle)
    together = find(asked.block_hashes, 24, [0, 1, 2], pool, spec, use_eagle)
    assert [len(blocks) for blocks in together] == [len(alone)] * 3
    assert ids_of(together[1]) == ids_of(alone)


# ---------------------------------------------------------------------- trim


def test_one_recurrent_state_is_never_trimmed() -> None:
    group = group_of(mamba(2), caching=False)
    group.allocate_new_blocks("r", 12)
    group.remove_skipped_blocks("r", 12)
    assert ids_of(group.req_to_blocks["r"]) == [1]


def test_trim_beyond_the_table() -> None:
    group = group_of(sliding())
    group.allocate_new_blocks("r", 10)
    before = single_dump(group)
    with pytest.raises(InvalidArgumentError, match="num_computed_tokens"):
        group.remove_skipped_blocks("r", 13)
    group.remove_skipped_blocks("unknown", 100)
    assert single_dump(group) == before


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_most_blocks_behind_a_hit(size: int) -> None:
    """From any beginning on, as the specification counts them; from the first token on that is proved."""
    pairs: list[tuple[WindowRule, reads.Kind]] = [
        (WindowRule(True), reads.Full()),
        (MambaRule(), reads.Mamba()),
        *((SlidingRule(window, size), reads.Sliding(window)) for window in (1, 2, 5)),
        *((SlidingRule(window, size, 3), reads.Sinks(3, window)) for window in (1, 2, 5)),
        *((ChunkedRule(times * size), reads.Chunked(times * size)) for times in (1, 2, 3)),
    ]
    for (rule, kind), slots, step in product(pairs, range(1, 15), range(1, 6)):
        for begin in range(slots):
            assert rule.peak(slots, step, size, begin) == reads.peak(kind, size, slots, step, begin), (kind, slots)
