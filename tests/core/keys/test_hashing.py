"""Property: a block's key is exactly the documented function of everything that identifies its prefix.

How: the documented byte layout is computed again, independently, for both built-in hashers and every block size, with
all extra keys; keys that grow with a request equal those of a request made whole; every form of token input gives the
same keys; SHA-256 keys agree between processes.

Not covered: SipHash itself (test_siphash.py), and what keys must tell apart (test_identity.py).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.keys.siphash import reference_siphash128
from tests.core.support import full, sliding

from blockwright import (
    BlockHasher,
    BlockPool,
    FullAttentionManager,
    FunctionHasher,
    GivenHasher,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    MultiModalItem,
    Request,
    Sha256Hasher,
    SipHasher,
)
from blockwright.errors import InvalidArgumentError

KEY = bytes(range(100, 116))
SEED = b"one deployment"
HASHERS: dict[str, BlockHasher] = {
    "sip": SipHasher(KEY),
    "sha256": Sha256Hasher(SEED),
    "function": FunctionHasher(lambda parent, data: hashlib.md5(parent + data).digest(), is_collision_resistant=True),
}
each_hasher = pytest.mark.parametrize("hasher", HASHERS.values(), ids=HASHERS.keys())

tokens = st.integers(0, 2**31 - 1)
names = st.none() | st.text(max_size=20)
BLOCK_SIZES = (1, 2, 3, 16)


def item_lists(length: int) -> st.SearchStrategy[list[MultiModalItem]]:
    """Items within a prompt of this length."""
    place = st.tuples(st.integers(0, length - 1), st.integers(1, length)).map(
        lambda p: (p[0], min(p[1], length - p[0]))
    )
    return st.lists(
        st.builds(lambda name, p: MultiModalItem(name, *p), st.text(min_size=1, max_size=9), place), max_size=3
    )


def packed(token_ids: Sequence[int]) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in token_ids)


def tagged(tag: bytes, text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return tag + len(data).to_bytes(8, "little") + data


def root(lora_name: str | None, cache_salt: str | None) -> bytes:
    adapter = b"" if lora_name is None else tagged(b"L", lora_name)
    return adapter + (b"" if cache_salt is None else tagged(b"S", cache_salt))


def extra(items: Sequence[MultiModalItem], start: int, stop: int) -> bytes:
    """The items that overlap a block, in order of position, each at its place relative to the block."""
    data = b""
    for item in sorted(items, key=lambda item: (item.offset, item.identifier)):
        if item.offset < stop and start < item.offset + item.length:
            place = (item.offset - start).to_bytes(8, "little", signed=True) + item.length.to_bytes(8, "little")
            data += tagged(b"M", item.identifier) + place
    return data


def sip_keys(token_ids: Sequence[int], size: int, root: bytes, items: Sequence[MultiModalItem]) -> list[bytes]:
    parent, keys = reference_siphash128(KEY, root), []
    for start in range(0, len(token_ids) - size + 1, size):
        data = packed(token_ids[start : start + size])
        message = parent + data + bytes(-len(data) % 8)
        if more := extra(items, start, start + size):
            message += reference_siphash128(KEY, more)
        message += (size + ((1 << 32) if more else 0)).to_bytes(7, "little")
        parent = reference_siphash128(KEY, message)
        keys.append(parent)
    return keys


def sha_keys(token_ids: Sequence[int], size: int, root: bytes, items: Sequence[MultiModalItem]) -> list[bytes]:
    """One running digest: seed, identity, block size, then each block, before it its extra keys behind a mark."""
    stream = b"".join(len(part).to_bytes(8, "little") + part for part in (SEED, root)) + size.to_bytes(8, "little")
    keys = []
    for start in range(0, len(token_ids) - size + 1, size):
        if more := extra(items, start, start + size):
            stream += b"\xff\xff\xff\xff" + len(more).to_bytes(4, "little") + more
        stream += packed(token_ids[start : start + size])
        keys.append(hashlib.sha256(stream).digest())
    return keys


@pytest.mark.parametrize("size", BLOCK_SIZES)
@given(data=st.data())
def test_documented_layout(size: int, data: st.DataObject) -> None:
    prompt = data.draw(st.lists(tokens, min_size=1, max_size=3 * size + 2))
    output = data.draw(st.lists(tokens, max_size=2 * size))
    lora, salt = data.draw(names), data.draw(names)
    items = data.draw(item_lists(len(prompt)))
    for hasher, expected in ((HASHERS["sip"], sip_keys), (HASHERS["sha256"], sha_keys)):
        request = Request("r", prompt, size, lora_name=lora, cache_salt=salt, mm_items=items, hasher=hasher)
        request.append_output_token_ids(output)
        assert request.block_hashes == expected(prompt + output, size, root(lora, salt), items)


@pytest.mark.parametrize("size", [*BLOCK_SIZES, 30, 31, 32, 62, 64, 128, 257])
def test_documented_layout_of_long_blocks(size: int) -> None:
    """Blocks whose message passes 128 and 256 bytes, where the length byte turns negative and wraps."""
    prompt = [i * 2654435761 % 2**31 for i in range(3 * size + 1)]
    items = [MultiModalItem("image", size, 1)]
    for chosen in ([], items):
        request = Request("r", prompt, size, mm_items=chosen, hasher=HASHERS["sip"])
        assert request.block_hashes == sip_keys(prompt, size, b"", chosen)


def test_only_full_blocks_have_keys() -> None:
    for count in range(1, 14):
        assert len(Request("r", [5] * count, 4).block_hashes) == count // 4
    assert Request("r", [5] * 9).block_hashes == []
    assert Request("r", [5] * 9).block_size is None


def test_requests_take_the_block_size_of_the_manager_that_caches_them() -> None:
    wide = full(8)
    config = KVCacheConfig(9, [KVCacheGroupSpec(["a"], wide), KVCacheGroupSpec(["b"], sliding(12, 4))])
    manager, hasher = KVCacheManager(config, 64), Sha256Hasher(b"seed")
    first = Request("first", list(range(30)), hasher=hasher, cache_salt="salt")
    assert manager.allocate_slots(first, 30) is not None
    assert first.block_size == manager.hash_block_size == 4
    assert first.block_hashes == Request("f", list(range(30)), 4, hasher=hasher, cache_salt="salt").block_hashes
    second = Request("second", list(range(30)), hasher=hasher, cache_salt="salt")
    assert manager.get_computed_blocks(second)[1] == 24
    second.append_output_token_ids(list(range(10)))
    assert len(second.block_hashes) == 10

    bare = KVCacheManager(config, 64, enable_caching=False)
    third = Request("third", list(range(30)))
    assert bare.allocate_slots(third, 30) is not None
    assert third.block_hashes == []  # nothing is hashed where nothing is found by it
    kind = FullAttentionManager(wide, BlockPool(9, True), 0)
    alone = Request("alone", list(range(9)))
    kind.allocate_new_blocks("alone", 9)
    kind.cache_blocks(alone, 9)
    assert alone.block_size == 8


@each_hasher
@given(data=st.data())
def test_growing_equals_whole(hasher: BlockHasher, data: st.DataObject) -> None:
    size = data.draw(st.sampled_from(BLOCK_SIZES))
    prompt = data.draw(st.lists(tokens, min_size=1, max_size=40))
    steps = data.draw(st.lists(st.lists(tokens, max_size=20), max_size=8))
    items = data.draw(item_lists(len(prompt)))
    request = Request("r", prompt, size, cache_salt="salt", mm_items=items, hasher=hasher)
    for number, step in enumerate(steps):
        copied = request.copy()
        request.append_output_token_ids(step[0] if len(step) == 1 else step)
        copied.append_output_token_ids([9] * number)  # a copy goes its own way
    output = [token for step in steps for token in step]
    assert request.all_token_ids == prompt + output
    assert (request.num_tokens, request.num_prompt_tokens) == (len(prompt + output), len(prompt))
    twin = Request("twin", prompt, size, cache_salt="salt", mm_items=items, hasher=hasher)
    twin.append_output_token_ids(output)
    assert request.block_hashes == twin.block_hashes
    whole = Request("whole", prompt + output, size, cache_salt="salt", mm_items=items, hasher=hasher)
    assert request.block_hashes == whole.block_hashes


@each_hasher
def test_copies_are_independent(hasher: BlockHasher) -> None:
    request = Request("r", list(range(6)), 4, hasher=hasher)
    first, second = request.copy(), request.copy()
    first.append_output_token_ids([6, 7])
    second.append_output_token_ids([8, 9])
    request.append_output_token_ids([6, 7])
    assert first.block_hashes == request.block_hashes
    assert second.block_hashes[0] == request.block_hashes[0]
    assert second.block_hashes[1] != request.block_hashes[1]
    first.num_computed_tokens = 3
    assert request.num_computed_tokens == second.num_computed_tokens == 0


class TensorLike:
    """What a CPU tensor shows to a library that does not import torch."""

    def __init__(self, values: list[int], dtype: str) -> None:
        self._values = np.array(values, dtype)

    def numpy(self) -> object:
        return self._values


@pytest.mark.parametrize("values", [[0, 1, 2**31 - 1, 7, 5], [3] * 40, list(range(1000, 1033))])
def test_every_input_form_agrees(values: list[int]) -> None:
    twice = [value for value in values for _ in range(2)]
    forms: list[object] = [
        values,
        tuple(values),
        array("i", values),
        array("I", values),
        array("q", values),
        array("Q", values),
        *[np.array(values, dtype) for dtype in ("i4", "i8", "u4", "u8")],
        np.array(twice, "i4")[::2],
        np.array(values[::-1], "i4")[::-1],
        np.array(twice, "i8")[::2],
        memoryview(array("i", values)),
        TensorLike(values, "i4"),
        TensorLike(values, "i8"),
        iter(values),
        (value for value in values),
    ]
    expected = Request("r", values, 3, hasher=HASHERS["sip"])
    for form in forms:
        request = Request("r", form, 3, hasher=HASHERS["sip"])
        assert request.prompt_token_ids == values
        assert request.block_hashes == expected.block_hashes
    for form in (values, tuple(values), array("i", values), np.array(values, "i8"), TensorLike(values, "i4")):
        request = Request("r", [1], 3)
        request.append_output_token_ids(form)  # type: ignore[arg-type]
        assert request.output_token_ids == values


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2"])
def test_narrow_arrays(dtype: str) -> None:
    assert Request("r", np.array([1, 2, 100], dtype), 1).prompt_token_ids == [1, 2, 100]


def test_input_is_copied() -> None:
    values = np.arange(8, dtype="i4")
    request = Request("r", values, 4)
    hashes = request.block_hashes
    values[:] = 0
    request.append_output_token_ids([8] * 4)
    assert request.prompt_token_ids == list(range(8))
    assert request.block_hashes[:2] == hashes


def test_default_secret_is_drawn_per_process() -> None:
    """Two processes disagree on the default keys, and agree on SHA-256 under one seed, whatever Python's own seed."""
    program = (
        "from blockwright import Request, Sha256Hasher, MultiModalItem\n"
        "mm = [MultiModalItem('picture', 3, 4)]\n"
        "for hasher in (None, Sha256Hasher(b'seed'), Sha256Hasher(b'other')):\n"
        "    r = Request('r', list(range(20)), 4, lora_name='a', cache_salt='s', mm_items=mm, hasher=hasher)\n"
        "    print(b''.join(r.block_hashes).hex())\n"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for seed in ("1", "2")
    ]
    assert [len(line) for line in runs[0]] == [5 * 32, 5 * 64, 5 * 64]
    assert runs[0][0] != runs[1][0]
    assert runs[0][1:] == runs[1][1:]
    assert runs[0][1] != runs[0][2]


def test_keys_that_an_engine_gives_are_taken_as_they_are() -> None:
    """A request over an engine's own growing list has exactly those keys, and shares with whoever has the same."""
    given: list[bytes] = [bytes([at]) * 32 for at in range(2)]
    request = Request("given", [1] * 9, 4, hasher=GivenHasher(given))
    assert request.block_hashes == given
    given.append(b"\xff" * 16)
    request.append_output_token_ids([1, 1, 1])
    assert request.block_hashes == given
    assert list(request.copy().keys(1).words) == list(request.keys(1).words)


@pytest.mark.parametrize("given", [[], [bytes(15), bytes(16)]], ids=["too few", "too short"])
def test_too_few_or_too_short_keys_are_refused_and_nothing_is_appended(given: list[bytes]) -> None:
    with pytest.raises(InvalidArgumentError, match="block_hashes"):
        Request("given", [1] * 8, 4, hasher=GivenHasher(given))
    request = Request("given", [1] * 3, 4, hasher=GivenHasher(given))
    with pytest.raises(InvalidArgumentError, match="block_hashes"):
        request.append_output_token_ids([1])
    assert request.num_tokens == 3


def test_items_cost_no_more_than_the_blocks_they_lie_in() -> None:
    """Each block looks at its own items only, however many there are; items that others contain are not passed over."""
    looks = []

    class Counted(list[MultiModalItem]):
        def __getitem__(self, at: Any) -> Any:
            looks.append(at)
            return super().__getitem__(at)

    items = [MultiModalItem(f"i{at}", 8 * at, 7) for at in range(500)] + [MultiModalItem("long", 0, 30)]
    request = Request("r", list(range(4000)), 4, mm_items=items)
    request._mm_items = Counted(request._mm_items)
    for block in range(1000):
        own = [item for item in items if item.offset < 4 * block + 4 and item.offset + item.length > 4 * block]
        assert request._extra_keys(block).count(b"M") == len(own)
    assert len(looks) < 8 * 1000  # none at all in the compiled build, whose lists are looked at directly
