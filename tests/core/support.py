"""What the tests of the core share: small kinds, managers of one group, and dumps of everything observable.

A dump is a plain value: equal dumps mean that nothing a caller can see differs. It is taken through public calls, and
what a call would drain (events, statistics) is drained from a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypedDict, Unpack

import pytest

from blockwright import (
    BlockHasher,
    BlockPool,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    FunctionHasher,
    KVCacheBlock,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    KVCacheSpec,
    MambaSpec,
    Request,
    Sha256Hasher,
    SingleTypeKVCacheManager,
    SlidingWindowSpec,
    build_info,
    get_manager_for_kv_cache_spec,
)
from blockwright.core.tables.view import GroupView
from blockwright.errors import BlockwrightError

SHA256 = Sha256Hasher(b"tests")
COMPILED = build_info().kind == "compiled"
pure_only = pytest.mark.skipif(COMPILED, reason="reaches into private state, which only the uncompiled build promises")


def full(block_size: int = 4) -> FullAttentionSpec:
    return FullAttentionSpec(block_size, num_kv_heads=1, head_size=1, dtype="float16")


def sliding(block_size: int = 4, window: int = 6, sinks: int = 0) -> SlidingWindowSpec:
    return SlidingWindowSpec(block_size, 1, head_size=1, dtype="float16", sliding_window=window, sink_len=sinks)


def chunked(block_size: int = 4, chunk: int = 8) -> ChunkedLocalAttentionSpec:
    return ChunkedLocalAttentionSpec(
        block_size, num_kv_heads=1, head_size=1, dtype="float16", attention_chunk_size=chunk
    )


def mamba(block_size: int = 4, drafts: int = 0) -> MambaSpec:
    return MambaSpec(block_size, ((2, 2),), ("float32",), drafts)


def cross(block_size: int = 4) -> CrossAttentionSpec:
    return CrossAttentionSpec(block_size, num_kv_heads=1, head_size=1, dtype="float16")


class Options(TypedDict, total=False):
    """What a manager may be made with."""

    use_eagle: bool
    log_stats: bool
    enable_kv_cache_events: bool
    verify_tokens: bool
    overlap_steps: bool
    publish_on_settlement: bool
    watermark: float
    explain_evictions: bool
    track_evictions: bool
    raise_never_fits: bool
    prefix_match_unit: int


class Setup(NamedTuple):
    """A kind, and whether prefixes are shared."""

    spec: KVCacheSpec
    caching: bool = True

    def manager(self, num_blocks: int = 33, max_model_len: int = 1000, **options: Unpack[Options]) -> KVCacheManager:
        return manager_of(self.spec, num_blocks, max_model_len, self.caching, **options)


SETUPS = {
    "full": Setup(full()),
    "full-1": Setup(full(1)),
    "full-uncached": Setup(full(), False),
    "sliding": Setup(sliding()),
    "sliding-3-2": Setup(sliding(3, 2)),
    "sinks": Setup(sliding(2, 3, 3)),
    "sliding-1": Setup(sliding(2, 1)),
    "sliding-uncached": Setup(sliding(), False),
    "chunked": Setup(chunked()),
    "chunked-3-3": Setup(chunked(3, 3)),
    "mamba": Setup(mamba()),
    "mamba-uncached": Setup(mamba(), False),
}
every_setup = pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS.keys())


def manager_of(
    spec: KVCacheSpec, num_blocks: int = 33, max_model_len: int = 1000, caching: bool = True, **options: Unpack[Options]
) -> KVCacheManager:
    return manager_over([spec], num_blocks, max_model_len, caching, **options)


GROUPS: dict[str, list[KVCacheSpec]] = {
    "full 4, sliding 2": [full(4), sliding(2, 5)],
    "sliding 3, full 2": [sliding(3, 4), full(2)],
    "full 2, sinks": [full(2), sliding(2, 3, 1)],
    "full 2, mamba 4": [full(2), mamba(4)],
    "sliding 2, mamba 3": [sliding(2, 4), mamba(3)],
    "full 3, chunked 2": [full(3), chunked(2, 4)],
    "sliding 2, sliding 4": [sliding(2, 2), sliding(4, 7)],
    "full 1, sliding 2, mamba 4": [full(1), sliding(2, 3), mamba(4)],
    "sliding 4, chunked 2, full 2": [sliding(4, 6), chunked(2, 6), full(2)],
    "mamba 2, mamba 3, full 1": [mamba(2), mamba(3), full(1)],
}
"""Hybrid models of two and three groups, with unequal block sizes."""


def manager_over(
    specs: Sequence[KVCacheSpec],
    num_blocks: int = 33,
    max_model_len: int = 1000,
    caching: bool = True,
    **options: Unpack[Options],
) -> KVCacheManager:
    groups = [KVCacheGroupSpec([f"layers.{number}"], spec) for number, spec in enumerate(specs)]
    return KVCacheManager(KVCacheConfig(num_blocks, groups), max_model_len, caching, **options)


def group_of(
    spec: KVCacheSpec, num_blocks: int = 101, caching: bool = True, group: int = 0
) -> SingleTypeKVCacheManager:
    return get_manager_for_kv_cache_spec(spec, BlockPool(num_blocks, caching), group)


def prompt(length: int, size: int) -> Request:
    return Request("r", list(range(length)), size)


def published(group: SingleTypeKVCacheManager | GroupView, request: Request, entries: list[int]) -> dict[int, int]:
    """Publish the blocks of these entries of a request, as if computed before, and release them; ids by entry."""
    pool, size = group.block_pool, group.block_size
    blocks = pool.get_new_blocks(max(entries) + 1) if entries else []
    for entry in entries:
        pool.cache_full_blocks(request, blocks, entry, entry + 1, size, group.kv_cache_group_id)
    pool.free_blocks(blocks)
    return {entry: blocks[entry].block_id for entry in entries}


def hit(group: SingleTypeKVCacheManager, request: Request, length: int, use_eagle: bool = False) -> list[int]:
    (found,) = type(group).find_longest_cache_hit(
        request.block_hashes, length, [group.kv_cache_group_id], group.block_pool, group.kv_cache_spec, use_eagle
    )
    return ids_of(found)


def needed(spec: KVCacheSpec, num_tokens: int) -> set[int]:
    """The positions below `num_tokens` that some later token reads, as the kinds define it (for short windows)."""

    def first_read(token: int) -> int:
        match spec:
            case SlidingWindowSpec():
                return max(0, token - spec.sliding_window + 1)
            case ChunkedLocalAttentionSpec():
                return token // spec.attention_chunk_size * spec.attention_chunk_size
            case MambaSpec():
                return max(0, token - 1)
        return 0

    reads = {position for token in range(num_tokens, num_tokens + 20) for position in range(first_read(token), token)}
    reads |= set(range(spec.sink_len if isinstance(spec, SlidingWindowSpec) else 0))
    return {position for position in reads if position < num_tokens}


def admit(manager: KVCacheManager, request: Request) -> int:
    """Look a request up and give it slots for all its tokens, which count as computed then; return the hit's tokens."""
    hit, num_hit = manager.get_computed_blocks(request)
    new = manager.allocate_slots(request, request.num_tokens - num_hit, num_hit, hit)
    assert new is not None
    request.num_computed_tokens = request.num_tokens
    return num_hit


def started(manager: KVCacheManager, request_id: str, num_tokens: int, block_size: int = 4, first: int = 0) -> Request:
    request = Request(request_id, list(range(first, first + num_tokens)), block_size)
    admit(manager, request)
    return request


def table(manager: KVCacheManager, request_id: str) -> list[int]:
    (ids,) = manager.get_block_ids(request_id)
    return ids


def ids_of(blocks: object) -> list[int]:
    if hasattr(blocks, "get_block_ids"):
        (ids,) = blocks.get_block_ids()
        return list(ids)
    assert isinstance(blocks, Sequence)
    return [block.block_id for block in blocks]


def pool_dump(pool: BlockPool) -> object:
    """Everything a pool says of itself: queue, counters, keys, which block serves each key, events to come."""
    keys = pool.block_keys()
    serving = {key: [block.block_id for block in pool.get_cached_block(key, [0]) or []] for key in keys if key}
    return (
        pool.free_block_ids(),
        pool.get_num_free_blocks(),
        pool.ref_counts(),
        keys,
        serving,
        pool.num_evictions,
        pool.get_usage(),
        pool.copy().take_events(),
    )


def single_dump(manager: SingleTypeKVCacheManager | GroupView) -> object:
    tables = {name: [block.block_id for block in blocks] for name, blocks in manager.req_to_blocks.items()}
    return tables, manager.num_cached_block, pool_dump(manager.block_pool)


def manager_dump(manager: KVCacheManager) -> object:
    names = manager.request_ids()
    each = {
        name: (manager.num_published(name), manager.num_settled(name), manager.get_draft_block_ids(name))
        for name in names
    }
    return (
        names,
        each,
        manager.steps_in_flight,
        [single_dump(group) for group in manager.managers],
        manager.copy().make_prefix_cache_stats(),
    )


def request_dump(request: Request) -> object:
    return request.request_id, request.num_computed_tokens, request.all_token_ids, request.block_hashes


def keyed_hasher(low_words: Callable[[int], int]) -> BlockHasher:
    """A hasher for requests of one block: the key's low word is `low_words(token)`, its high word the token."""

    def digest(parent: bytes, data: bytes) -> bytes:
        token = int.from_bytes(data[:4], "little")
        return (low_words(token) % 2**64).to_bytes(8, "little") + token.to_bytes(8, "little")

    return FunctionHasher(digest, is_collision_resistant=True)


def one_block(token: int) -> Request:
    return Request(f"r{token}", [token, token], 2, hasher=SHA256)


def publish(pool: BlockPool, token: int, blocks: Iterable[object], group: int = 0) -> bytes:
    request = one_block(token)
    for block in blocks:
        pool.cache_full_blocks(request, [block], 0, 1, 2, group)
    return request.block_hashes[0]


def filled(pool: BlockPool, count: int) -> list[KVCacheBlock]:
    """Take blocks and publish each under its own key: block i under that of token i."""
    blocks = pool.get_new_blocks(count)
    for block in blocks:
        publish(pool, block.block_id, [block])
    return blocks


def served(pool: BlockPool, key: bytes, groups: Iterable[int] = (0,)) -> list[int] | None:
    found = pool.get_cached_block(key, list(groups))
    return None if found is None else ids_of(found)


def unchanged_by(pool: BlockPool, error: type[BlockwrightError], match: str, call: Callable[[], object]) -> None:
    before = pool_dump(pool)
    with pytest.raises(error, match=match):
        call()
    assert pool_dump(pool) == before
    pool.check()
