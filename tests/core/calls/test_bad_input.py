"""Property: bad input gives a typed error that names the argument, or is a documented harmless no-op; nothing changes.

How: each kind of bad input an engine could send, in turn; afterwards the whole observable state is as before and the
self-check passes. Sequences that fail half-way are among them.

Not covered: other types (test_arguments.py), integers out of range (test_integers.py), hits (test_manager.py), hashers
(test_odd_hashers.py), traces (tests/replay).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from tests.core.support import admit, chunked, cross, full, manager_dump, manager_of, request_dump, started

from blockwright import (
    BlockPool,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    MambaSpec,
    MultiModalItem,
    Request,
    append_output_token_ids_batch,
)
from blockwright.errors import (
    BlockError,
    DuplicateRequestError,
    InvalidArgumentError,
    UnknownRequestError,
    UnsupportedError,
)

HUGE = "x" * 1_000_000
ODD_NAMES = ["0", " ", "\0", "é\u0301", "\ud800", "\U0001f600", "r\nr", HUGE]


Errors = type[Exception] | tuple[type[Exception], ...]


def unchanged(manager: KVCacheManager, error: Errors, call: Callable[[], object]) -> str:
    """See the call raise and change nothing; return the message."""
    before = manager_dump(manager)
    with pytest.raises(error) as caught:
        call()
    assert manager_dump(manager) == before
    manager.check()
    return str(caught.value)


# ---------------------------------------------------------------------- names


@pytest.mark.parametrize("name", ["", None, ["r"], {"r": 1}, bytearray(b"r")])
def test_request_ids_are_hashable(name: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="request_id"):
        Request(name, [1], 4)


@pytest.mark.parametrize("name", ODD_NAMES, ids=range(len(ODD_NAMES)))
def test_odd_names_are_names(name: str) -> None:
    manager = manager_of(full())
    for salt, lora in ((name, None), (None, name), (name, name)):
        request = Request(name, list(range(9)), 4, cache_salt=salt, lora_name=lora)
        admit(manager, request)
        assert manager.request_ids() == [name]
        assert len(manager.get_block_ids(name)[0]) == 3
        other = Request(name, [1], 4)
        assert repr(name)[1:4] in unchanged(manager, DuplicateRequestError, lambda: manager.free(other))  # noqa: B023
        manager.check()
        manager.free(request)
    assert manager.usage == 0.0


def test_unknown_requests() -> None:
    manager = manager_of(full())
    started(manager, "r", 9)
    stranger = Request("stranger", [1] * 9, 4)
    group = manager.managers[0]
    for call in (
        lambda: manager.get_blocks("stranger"),
        lambda: manager.get_block_ids("stranger"),
        lambda: manager.num_published("stranger"),
        lambda: manager.get_num_common_prefix_blocks("stranger", 1),
        lambda: manager.cache_blocks(stranger, 0),
        lambda: manager.remove_skipped_blocks(stranger, 0),
        lambda: group.get_num_common_prefix_blocks("stranger", 1),
    ):
        assert "'stranger'" in unchanged(manager, UnknownRequestError, call)
        unchanged(manager, KeyError, call)
    before = manager_dump(manager)
    manager.free(stranger)
    assert manager_dump(manager) == before


def test_repeated_requests() -> None:
    manager = manager_of(full())
    one, new = started(manager, "one", 8), Request("new", [1] * 9, 4)
    one.append_output_token_ids([1])
    for batch, name in (
        ([one, one], "one"),
        ([one, one.copy()], "one"),
        ([new, new], "new"),
        ([new, new.copy()], "new"),
        ([new, Request("new", [2], 4)], "new"),
        ([new, Request("one", [2], 4)], "one"),
        ([one, new, one], "one"),
    ):
        message = unchanged(manager, DuplicateRequestError, lambda: manager.allocate_slots_batch(batch, 1))  # noqa: B023
        assert repr(name) in message
    assert manager.allocate_slots_batch([one, new], 1).num_served == 2  # a failed batch leaves no mark


# ---------------------------------------------------------------------- tokens and items


class Raising(Sequence[int]):
    """A sequence that raises on the way."""

    def __init__(self, good: int) -> None:
        self._good = good

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: Any) -> Any:
        if index >= self._good:
            raise RuntimeError("half-way")
        return 1


def raising(good: int) -> Iterator[Any]:
    yield from [1] * good
    raise RuntimeError("half-way")


BAD_TOKENS: dict[str, object] = {
    "string": "123",
    "bytes": b"123",
    "bytearray": bytearray(b"123"),
    "none": None,
    "negative": [1, -1],
    "too large": [1, 2**62],
    "huge": [2**70],
    "negative in an array": array("i", [1, -1]),
    "large in an array": np.array([1, 2**62], "u8"),
    "last of five": np.array([1, 1, 1, 1, -1], "i4"),
    "long array": np.array([-(2**40)], "i8"),
    "two dimensions": np.ones((2, 2), "i4"),
    "floats": np.array([1.5]),
    "float": [1.5],
    "float array": array("d", [1.5]),
    "nested": [[1]],
    "string within": ["1"],
    "none within": [None],
    "complex": np.array([1j]),
    "characters": memoryview(b"ab").cast("c"),
}


@pytest.mark.parametrize("tokens", BAD_TOKENS.values(), ids=BAD_TOKENS.keys())
def test_bad_tokens(tokens: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="prompt_token_ids"):
        Request("r", tokens, 4)
    request = Request("r", [1, 2, 3], 4)
    before = request_dump(request)
    with pytest.raises(InvalidArgumentError, match="token_ids"):
        request.append_output_token_ids(tokens)
    assert request_dump(request) == before


@pytest.mark.parametrize("tokens", [np.array([1, 2], ">i4"), np.array([1, 2], dtype=object), list(np.arange(1, 3))])
def test_unusual_integers(tokens: Any) -> None:
    """In an order of bytes or a form that cannot be copied whole: still integers."""
    request = Request("r", tokens, 4)
    request.append_output_token_ids(tokens)
    assert request.all_token_ids == [1, 2, 1, 2]


@pytest.mark.parametrize("tokens", [[], (), array("i"), np.array([], "i4"), iter([])])
def test_a_prompt_has_a_token(tokens: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="prompt_token_ids"):
        Request("r", tokens, 4)


@pytest.mark.parametrize("good", [0, 1, 5])
def test_tokens_that_raise(good: int) -> None:
    request = Request("r", [1, 2, 3], 4)
    before = request_dump(request)
    for tokens in (Raising(good), raising(good)):
        with pytest.raises(RuntimeError, match="half-way"):
            request.append_output_token_ids(tokens)  # type: ignore[arg-type]
    assert request_dump(request) == before
    for tokens in (Raising(good), raising(good)):
        with pytest.raises(RuntimeError, match="half-way"):
            Request("r", tokens, 4)


def test_appending_nothing() -> None:
    request = Request("r", [1, 2, 3], 4)
    before = request_dump(request)
    request.append_output_token_ids([])
    request.append_output_token_ids(())
    with pytest.raises(InvalidArgumentError, match="'r' would have more than 2147483647 tokens"):
        append_output_token_ids_batch([request], [1], num_tokens=2**31 - 1)
    assert request_dump(request) == before


@pytest.mark.parametrize(
    "item", [("", 0, 1), ("i", -1, 2), ("i", 0, 0), ("i", 0, -1), ("i", 0, 4), ("i", 3, 1), ("i", 2, 2), (b"i", 0, 1)]
)
def test_bad_items(item: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="mm_items"):
        Request("r", [1, 2, 3], 4, mm_items=[MultiModalItem("good", 0, 1), MultiModalItem(*item)])


# ---------------------------------------------------------------------- batches


def test_batches_that_do_not_fit_together() -> None:
    manager = manager_of(full())
    one, two = started(manager, "one", 9), started(manager, "two", 9, first=50)
    for request in (one, two):
        request.append_output_token_ids([1])
    bad: list[tuple[Any, Any, Any]] = [
        ([one, two], [1], 0),
        ([one, two], [1, 1, 1], 0),
        ([one, two], [], 0),
        ([one, two], 1, [0]),
        ([one, two], (each for each in (1,)), 0),
        ([one, two], [1, -1], 0),
        ([one, two], 0, 0),
        ([one, two], [1, 0], 0),
        ([one, two], -1, 0),
        ([one, two], 1, -1),
        ([one, two], 1, [0, -1]),
        ([one, two], [1, 10**6], 0),
    ]
    for requests, news, aheads in bad:
        message = unchanged(
            manager,
            InvalidArgumentError,
            lambda: manager.allocate_slots_batch(requests, news, aheads),  # noqa: B023
        )
        assert "num_new_tokens" in message or "num_lookahead_tokens" in message
    one.num_computed_tokens = manager.lease(one) + 1
    assert "'one'" in unchanged(manager, InvalidArgumentError, lambda: manager.allocate_slots_batch([two, one], 1))
    one.num_computed_tokens = 9
    for requests, news in ((Raising(1), 1), (raising(1), 1), ([one, two], Raising(1)), ([one, two], raising(1))):
        unchanged(
            manager,
            (RuntimeError, TypeError),
            lambda: manager.allocate_slots_batch(requests, news),  # type: ignore[arg-type]  # noqa: B023
        )
    pair = (each for each in (one, two))
    step = manager.allocate_slots_batch(pair, (each for each in (1, 1)))  # type: ignore[arg-type]  # iterated once, whole
    assert step.num_served == 2


def test_blocks_that_raise() -> None:
    class Odd:
        @property
        def block_id(self) -> int:
            raise RuntimeError("half-way")

    pool = BlockPool(9)
    blocks = pool.get_new_blocks(3)
    for call in (pool.free_blocks, pool.touch):
        with pytest.raises(BlockError, match="blocks"):
            call([*blocks, Odd()])
        with pytest.raises(RuntimeError, match="half-way"):
            call(raising(2))
    assert pool.ref_counts()[:4] == [0, 1, 1, 1]
    pool.check()


# ---------------------------------------------------------------------- kinds and configurations


BAD_KINDS: list[tuple[str, Any, tuple[Any, ...]]] = [
    ("dtype", FullAttentionSpec, (4, 1, 1, "float17")),
    ("dtypes", MambaSpec, (4, ((1,), (2,)), ("fp8",))),
    ("dtype", MambaSpec, (4, ((1,),), ("nothing",))),
    ("shapes", MambaSpec, (4, ((-1, 2),), ("fp8",))),
]


@pytest.mark.parametrize(("named", "kind", "arguments"), BAD_KINDS)
def test_bad_kinds(named: str, kind: Any, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match=named):
        kind(*arguments)


def test_bad_configurations() -> None:
    group = KVCacheGroupSpec(["layers.0"], full())
    two = KVCacheConfig(9, [group, KVCacheGroupSpec(["layers.1"], chunked())])
    assert len(KVCacheManager(two, 9).managers) == 2
    with pytest.raises(UnsupportedError, match="use_eagle"):
        KVCacheManager(KVCacheConfig(9, two.kv_cache_groups[1:]), 9, use_eagle=True)
    with pytest.raises(UnsupportedError, match="dcp_world_size"):
        KVCacheManager(two, 9, dcp_world_size=2)
    with_encoder = KVCacheConfig(9, [group, KVCacheGroupSpec(["layers.1"], cross())])
    with pytest.raises(UnsupportedError, match="enable_caching"):
        KVCacheManager(with_encoder, 9)
    assert len(KVCacheManager(with_encoder, 9, enable_caching=False).managers) == 2
    with pytest.raises(UnsupportedError, match="kv_cache_config"):
        KVCacheManager(KVCacheConfig(9, [KVCacheGroupSpec([name], cross()) for name in "ab"]), 9, enable_caching=False)
    for names in (["a"], ["b", "a"], ["b", "b"]):
        with pytest.raises(InvalidArgumentError, match="kv_cache_groups"):
            KVCacheConfig(9, [KVCacheGroupSpec(["a"], full()), KVCacheGroupSpec(names, full())])
    for watermark in (-0.1, 1.1, float("nan"), float("inf")):
        with pytest.raises(InvalidArgumentError, match="watermark"):
            KVCacheManager(two, 9, watermark=watermark)
    with pytest.raises(InvalidArgumentError, match="publish_on_settlement"):
        KVCacheManager(two, 9, publish_on_settlement=True)
    for num_blocks in (0, 1, 2**30 + 1):
        with pytest.raises(InvalidArgumentError, match="num_blocks"):
            KVCacheManager(KVCacheConfig(num_blocks, [group]), 9)
    smallest = manager_of(full(), 2)
    admit(smallest, Request("r", [1, 2, 3, 4], 4))
    assert smallest.usage == 1.0
    assert smallest.allocate_slots(Request("q", [1], 4), 1) is None


def test_what_is_passed_in_the_place_of_something_else() -> None:
    with pytest.raises(InvalidArgumentError, match=r"layer_names: must be a sequence.*'layers.0'"):
        KVCacheGroupSpec("layers.0", full())
    with pytest.raises(InvalidArgumentError, match=r"kv_cache_groups\[0\]: .* KVCacheGroupSpec\(layer_names"):
        KVCacheConfig(9, [full()])  # type: ignore[list-item]
    with pytest.raises(InvalidArgumentError, match="block_size: must be a number, 'manager' or None"):
        Request("r", [1], "4")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 16])
def test_block_sizes_that_do_not_match(size: int) -> None:
    manager = manager_of(full())
    request = Request("r", list(range(40)), size)
    calls = (
        lambda: manager.get_computed_blocks(request),
        lambda: manager.allocate_slots(request, 1),
        lambda: manager.allocate_slots_batch([request], 1),
    )
    for call in calls:
        if 4 % size:
            assert "block_size" in unchanged(manager, InvalidArgumentError, call)
        else:
            call()
            manager.check()
            manager.free(request)


@pytest.mark.parametrize("block_hash", [b"", b"x" * 15, "x" * 16, None, 5, bytearray(16)])
def test_bad_hashes(block_hash: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        BlockPool(9).get_cached_block(block_hash, [0])
