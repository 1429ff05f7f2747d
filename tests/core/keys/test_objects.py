"""Property: public objects behave as Python values where they are values, and say so where they are not.

How: equality, hashing, copying and pickling of everything public; what holds state is copied by its own `copy()` only,
and refuses the general ways. Native classes are not derived from, but for hashers, which are meant to be.

Not covered: that `copy()` copies everything (test_manager.py).
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from tests.core.support import (
    COMPILED,
    admit,
    chunked,
    cross,
    full,
    mamba,
    manager_dump,
    manager_of,
    pool_dump,
    request_dump,
    sliding,
    started,
)

from blockwright import (
    BatchAllocation,
    BlockHasher,
    BlockPool,
    FullAttentionSpec,
    FunctionHasher,
    KVCacheBlock,
    KVCacheBlocks,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    MultiModalItem,
    Request,
    Sha256Hasher,
    SipHasher,
    build_info,
)
from blockwright import errors as all_errors
from blockwright.core.manager import PrefixCacheStats
from blockwright.errors import (
    BlockwrightError,
    EventGapError,
    InvalidArgumentError,
    InvariantError,
    JournalGapError,
    LostBatchError,
    NeverFitsError,
    TooLittleMemoryError,
    UnsupportedError,
)
from blockwright.events import AllBlocksCleared, BlockRemoved, BlockStored

VALUES: list[object] = [
    full(), sliding(), chunked(), mamba(), cross(), manager_of(full()).kv_cache_config, MultiModalItem("i", 0, 1),
    PrefixCacheStats(False, 1, 2, 3), BlockStored(b"h", None, bytes(4), 1, None, 0), BlockRemoved(b"h", 0),
    AllBlocksCleared(), build_info(),
]  # fmt: skip
WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
}
each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())


@each_way
@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_are_values(value: object, way: Callable[[Any], Any]) -> None:
    assert way(value) == value
    assert repr(way(value)) == repr(value)


ERRORS = [
    error
    for error in vars(all_errors).values()
    if isinstance(error, type)
    and issubclass(error, BlockwrightError)
    and error
    not in (
        EventGapError,
        InvariantError,
        JournalGapError,
        LostBatchError,
        NeverFitsError,
        TooLittleMemoryError,
    )
]


@each_way
@pytest.mark.parametrize("error", ERRORS)
def test_errors_travel(error: type[BlockwrightError], way: Callable[[Any], Any]) -> None:
    """Between processes, for one."""
    twin = way(error("what: it says"))
    assert type(twin) is error
    assert str(twin) == "what: it says"


@each_way
def test_a_gap_of_events_travels(way: Callable[[Any], Any]) -> None:
    twin = way(EventGapError(3, 5, 9))
    assert "batch 3 is not kept, only 5..8" in str(twin)
    assert (twin.sequence, twin.oldest, twin.following) == (3, 5, 9)
    twin = way(LostBatchError(3, "why"))
    assert (str(twin), twin.sequence) == (str(LostBatchError(3, "why")), 3)


@each_way
def test_what_would_fit_travels(way: Callable[[Any], Any]) -> None:
    twin = way(TooLittleMemoryError("available_bytes: too few", 4096, 5, 12))
    assert str(twin) == "available_bytes: too few"
    assert (twin.needed_bytes, twin.needed_blocks, twin.longest_model_len) == (4096, 5, 12)


@each_way
def test_broken_laws_travel(way: Callable[[Any], Any]) -> None:
    """A worker process that fails the self-check must be able to say so."""
    twin = way(InvariantError("REF-1", "holders", [1], [2]))
    assert (twin.law, twin.expected, twin.actual) == ("REF-1", [1], [2])


@each_way
def test_allocations_travel(way: Callable[[Any], Any]) -> None:
    """From the scheduler to workers of other processes: every field, and none of the manager's state."""
    manager = manager_of(full())
    requests = [started(manager, name, 9) for name in "rq"]
    for request in requests:
        request.append_output_token_ids([1])
    reported = manager.allocate_slots_batch(requests, 4)
    twin = way(reported)
    assert type(twin) is BatchAllocation
    buffers = ("new_block_ids", "new_block_offsets", "nulled_entries", "nulled_offsets", "replaced_entries")
    for name in (*buffers, "changed_tables", "num_tables"):
        assert getattr(twin, name) == getattr(reported, name)
    by_hand = BatchAllocation(2, None, *(getattr(reported, name) for name in buffers))
    assert [getattr(way(by_hand), name) for name in buffers] == [getattr(reported, name) for name in buffers]
    assert list(twin.new_block_ids)
    assert (twin.num_served, twin.refused, twin.number, twin.request_ids) == (2, None, 1, ["r", "q"])


def stateful() -> list[object]:
    manager = manager_of(full())
    request = started(manager, "r", 9)
    request.append_output_token_ids([1])
    pool = manager.block_pool
    return [manager, request, pool, manager.get_blocks("r"), pool.null_block, manager.managers[0]]


@pytest.mark.parametrize("index", range(6))
@pytest.mark.parametrize("way", [copy.deepcopy, pickle.dumps])
def test_state_is_not_copied_by_accident(index: int, way: Callable[[Any], Any]) -> None:
    says_what_to_use = index < 4
    with pytest.raises(UnsupportedError if says_what_to_use else (TypeError, UnsupportedError)) as caught:
        way(stateful()[index])
    assert "; use " in str(caught.value) or not says_what_to_use


@pytest.mark.parametrize("index", range(3))
def test_state_is_not_shared_by_accident(index: int) -> None:
    """A shallow copy would count free blocks apart and queue them together: `copy.copy` copies whole, or refuses."""
    thing = stateful()[index]
    before = dump(thing)
    try:
        twin = copy.copy(thing)
    except TypeError:
        return
    assert dump(twin) == before
    use(twin)
    assert dump(twin) != before
    assert dump(thing) == before
    expected = use(thing)
    assert dump(thing) == dump(twin) == expected


def dump(thing: object) -> object:
    if isinstance(thing, KVCacheManager):
        thing.check()
        return manager_dump(thing)
    if isinstance(thing, Request):
        return request_dump(thing)
    assert isinstance(thing, BlockPool)
    return pool_dump(thing)


def use(thing: object) -> object:
    """Change what a manager, a request or a pool holds; return its dump."""
    if isinstance(thing, KVCacheManager):
        admit(thing, Request("another", list(range(30)), 4))
    elif isinstance(thing, Request):
        thing.append_output_token_ids([1] * 9)
    elif isinstance(thing, BlockPool):
        thing.get_new_blocks(3)
    return dump(thing)


@pytest.mark.parametrize("hasher", [SipHasher(bytes(16)), Sha256Hasher(b"seed")])
def test_hashers_are_copied_well_or_not_at_all(hasher: BlockHasher) -> None:
    """A twin with another secret would find nothing, and nobody would know why."""
    try:
        twin = copy.copy(hasher)
    except TypeError:
        return
    assert Request("r", [1] * 8, 4, hasher=twin).block_hashes == Request("r", [1] * 8, 4, hasher=hasher).block_hashes


@pytest.mark.skipif(not COMPILED, reason="plain Python classes can always be derived from")
@pytest.mark.parametrize("base", [KVCacheManager, BlockPool, Request, KVCacheBlocks, KVCacheBlock, BatchAllocation])
def test_native_classes_are_not_derived_from(base: type) -> None:
    class Derived(base):  # type: ignore[misc]
        def __init__(self) -> None:
            pass

    with pytest.raises(TypeError, match="inherit"):
        Derived()


def test_hashers_may_be_derived_from() -> None:
    """An engine may bring its own: equal prefixes give equal keys, and nothing else is asked of it."""

    class Own(BlockHasher):
        def __init__(self) -> None:
            super().__init__(True, True)
            self.inner = FunctionHasher(lambda parent, data: (parent + data)[-16:].ljust(16), True)

        def start(self, root: bytes, block_size: int) -> Any:
            return self.inner.start(root, block_size)

    manager = manager_of(full(), enable_kv_cache_events=True)
    request = Request("r", list(range(9)), 4, hasher=Own())
    assert manager.allocate_slots(request, 9) is not None
    request.num_computed_tokens = 9
    manager.free(request)
    assert manager.get_computed_blocks(Request("q", list(range(9)), 4, hasher=Own()))[1] == 8
    assert len(manager.take_events()) == 2
    manager.check()


def test_identity_of_state() -> None:
    """Managers, pools and requests are themselves and nothing else."""
    manager, request, pool, *_ = stateful()
    assert isinstance(manager, KVCacheManager)
    assert isinstance(request, Request)
    assert isinstance(pool, BlockPool)
    assert manager != manager.copy()
    assert request != request.copy()
    assert pool != pool.copy()
    assert len({manager, request, pool}) == 3
    assert "'r'" in repr(request)


def test_attributes_that_are_read_only() -> None:
    manager, request, pool, *_ = stateful()
    for thing, name in (
        (manager, "usage"), (manager, "max_model_len"), (pool, "num_blocks"), (pool, "num_free"),
        (pool, "null_block"), (request, "num_tokens"), (request, "num_prompt_tokens"), (request, "block_hashes"),
    ):  # fmt: skip
        with pytest.raises(AttributeError):
            setattr(thing, name, 1)


def test_what_is_no_block_says_itself_whether_it_equals_one() -> None:
    class Equal:
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    block = BlockPool(9).get_new_blocks(1)[0]
    assert block == Equal()
    assert block != 1
    assert block == block.__class__(block._pool, block.block_id)


def test_a_model_without_attention_has_no_groups_and_holds_no_blocks() -> None:
    with pytest.raises(UnsupportedError, match="enable_caching"):
        KVCacheManager(KVCacheConfig(9, []), 99)
    manager, request = KVCacheManager(KVCacheConfig(9, []), 99, enable_caching=False), Request("r", [1, 2, 3], 4)
    hit, num_hit = manager.get_computed_blocks(request)
    assert (num_hit, manager.allocate_slots(request, 3, num_hit, hit).blocks) == (0, ())  # type: ignore[union-attr]
    request.num_computed_tokens = 3
    request.append_output_token_ids(4)
    assert manager.allocate_slots_batch([request], 1).num_served == 1
    assert (manager.get_block_ids("r"), manager.get_num_common_prefix_blocks("r", 1), manager.usage) == ((), [], 0.0)
    assert manager.explain_hit(request).num_tokens == 0
    manager.check()
    manager.free(request)


def test_caching_is_on_or_off() -> None:
    with pytest.raises(InvalidArgumentError, match="enable_caching"):
        BlockPool(9, None)


def test_an_engines_own_hashes_are_told_by_events_if_they_are_portable() -> None:
    own = FunctionHasher(lambda parent, data: sha256(parent + data).digest(), True, is_portable=True)
    config = KVCacheConfig(9, [KVCacheGroupSpec(["a"], FullAttentionSpec(4, 1, 1, "float16"))])
    manager, request = KVCacheManager(config, 99, enable_kv_cache_events=True), Request("r", [1] * 9, 4, hasher=own)
    assert manager.allocate_slots(request, 9) is not None
    stored = [each.block_hash for each in manager.take_events() if isinstance(each, BlockStored)]
    assert stored == request.block_hashes
