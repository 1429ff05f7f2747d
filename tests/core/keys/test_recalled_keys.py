"""Property: keys that are recalled from prompts hashed before are those that would be made; nothing else is recalled.

How: prompts that share prefixes of all lengths, some under a salt, go through one hasher, key by key or all at once;
the reference is a hasher with the same secret that has seen nothing. How much is recalled is asked of a chain.

Not covered: which keys these are (test_hashing.py); how much faster that is (`python -m benchmarks --only tokens`).
"""

from __future__ import annotations

import subprocess
import sys
from array import array
from pathlib import Path
from random import Random
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt.vecs import vec
from mypy_extensions import i64
from tests.core.support import COMPILED, admit, full, manager_over

from blockwright import Request, SipHasher
from blockwright.core.keys.block_hash import OVERHEAD, _Memory, _Prompt, _SipChain, next_length
from blockwright.errors import InvalidArgumentError

KEY = bytes(range(16))
MEMORY = 20 << 20
LENGTHS = [8, 16, 32, 64, 128, 192, 256, 320]
prompts = st.lists(
    st.tuples(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 70)), min_size=1, max_size=4), st.booleans()),
    min_size=2,
    max_size=5,
)


def keys(request: Request, size: int, by_one: bool = True) -> list[bytes]:
    if not by_one:
        return request.block_hashes
    return [request.block_digest(i) for i in range(request.num_tokens // size)]


@given(prompts, st.sampled_from([1, 2, 3]), st.booleans())
def test_recalled_keys_are_those_that_would_be_made(
    given_prompts: list[tuple[list[tuple[int, int]], bool]], size: int, by_one: bool
) -> None:
    hasher = SipHasher(KEY)
    for parts, is_salted in given_prompts:
        tokens = [token for token, count in parts for _ in range(count)]
        salt = "salt" if is_salted else None
        request = Request("r", tokens, size, cache_salt=salt, hasher=hasher)
        fresh = Request("r", tokens, size, cache_salt=salt, hasher=SipHasher(KEY))
        assert keys(request, size, by_one) == fresh.block_hashes
        request.append_output_token_ids([1] * 9)
        fresh.append_output_token_ids([1] * 9)
        assert request.block_hashes == fresh.block_hashes


def test_lengths_double_and_then_grow_evenly() -> None:
    found, length = [], 0
    while length < LENGTHS[-1]:
        length = next_length(length)
        found.append(length)
    assert found == LENGTHS
    assert [next_length(count) for count in (7, 9, 20, 63, 100, 129)] == [8, 16, 32, 64, 128, 192]


@pytest.mark.parametrize("equal", [8, 9, 31, 100, 300])
@pytest.mark.parametrize("size", [2, 16])
def test_as_many_blocks_are_recalled_as_are_equal(equal: int, size: int) -> None:
    hasher = SipHasher(KEY)
    first = list(range(300 * size))
    second = [*first[: equal * size], *[7] * (400 * size)]
    hashes = b"".join(keys(Request("r", first, size, hasher=hasher), size))
    words = vec[i64](array("q", hashes))
    chain = hasher.start(b"", size)
    data = array("i", second).tobytes()
    for length in LENGTHS[:5]:
        found = len(chain.recall(data, words[: 2 * length], 350)) // 2
        assert found == (max(length, equal) if length <= equal else length)
    assert len(chain.recall(data, words[:6], 350)) == 6
    assert len(hasher.start(b"salt", size).recall(data, words[:0], 350)) == 0


@pytest.mark.parametrize("doubled", range(8, 19))
def test_prompts_are_compared_to_their_end(doubled: int) -> None:
    """However long two prompts are equal, up to a megabyte: no key beyond is recalled, and none before is left out."""
    size, blocks, rest = 16, 1 << 14, Random(doubled)
    at = (1 << doubled) - rest.randrange(1 << (doubled - 1))  # the first token that differs
    tokens = array("i", bytes(4 * size * blocks))
    words = vec[i64](array("q", [rest.getrandbits(62) for _ in range(2 * blocks)]))
    hasher = SipHasher(KEY)
    cast("_SipChain", hasher.start(b"", size)).remember(tokens.tobytes(), words, 8, blocks)
    tokens[at] = 1
    for known in {8, next_length(max(at // size, 8) // 2), max(at // size, 8) // 64 * 64 or 8}:
        found = hasher.start(b"", size).recall(tokens.tobytes(), words[: 2 * known], blocks)
        assert len(found) == 2 * max(known, at // size)


def test_what_is_kept_is_bounded() -> None:
    memory = _Memory((1 << 24) + 24 * (1 << 18) + OVERHEAD)
    old, new = _Prompt(bytes(1 << 23), vec[i64]([1, 2]), 16), _Prompt(bytes(1 << 24), vec[i64]([3, 4]), 16)
    memory.keep(old)
    memory.note(i64(-5), old)
    assert memory.find(i64(-5)) is old
    memory.keep(new)
    assert (len(old.data), len(old.words), len(new.data)) == (0, 0, 1 << 24)


@pytest.mark.skipif(
    not COMPILED or not Path("/proc/self/statm").exists(), reason="needs the compiled core, and Linux's count of memory"
)
@pytest.mark.parametrize(("size", "length", "count"), [(1, 20_000, 100), (1, 64, 30_000), (16, 2_000, 4_000)])
def test_what_is_remembered_takes_as_much_as_is_said(size: int, length: int, count: int) -> None:
    """In a process of its own, whatever the size of blocks and prompts: no more than a quarter beyond it."""
    program = f"""if True:
        import gc
        from array import array
        from pathlib import Path
        from blockwright import Request, SipHasher
        def held():
            gc.collect()
            return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
        for limit in (0, {MEMORY}):  # the first for what is taken once
            hasher, before = SipHasher(bytes(16), limit), held()
            for first in range({count}):
                tokens = array("i", range(first, first + {length}))
                Request("r", tokens, {size}, hasher=hasher).hash_until({length})
        print(held() - before)
    """
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert int(found) < 1.25 * MEMORY


def test_a_prompt_that_comes_again_is_served_as_the_first_time() -> None:
    tokens = list(range(2001))
    manager = manager_over([full(2)], 1100, 3000)
    admit(manager, Request("writer", tokens))
    for name in ("one", "two"):
        hit, length = manager.get_computed_blocks(request := Request(name, array("i", tokens)))
        assert length == 2000
        assert manager.allocate_slots(request, 1, length, hit) is not None
    assert manager.get_block_ids("one")[0][:1000] == manager.get_block_ids("two")[0][:1000]
    manager.check()


def test_a_hasher_that_remembers_nothing_hashes_all_again() -> None:
    hasher = SipHasher(KEY, remembered_bytes=0)
    first = keys(Request("r", range(320), 2, hasher=hasher), 2)
    data, words = array("i", range(320)).tobytes(), vec[i64](array("q", b"".join(first)))
    assert len(hasher.start(b"", 2).recall(data, words[:16], 160)) == 16
    assert keys(Request("r", range(320), 2, hasher=hasher), 2) == first


@pytest.mark.parametrize("given", [-1, 1 << 60])
def test_what_is_remembered_is_a_number_of_bytes(given: int) -> None:
    with pytest.raises(InvalidArgumentError, match="remembered_bytes"):
        SipHasher(KEY, given)


COST = 4 * 640 + 24 * 320 + OVERHEAD


@pytest.mark.parametrize("limit", [0, COST - 1, COST])
def test_what_is_forgotten_keeps_no_keys(limit: int) -> None:
    hasher, rest = SipHasher(KEY, limit), range(1_000, 1_640)
    old, new = Request("old", range(640), 2, hasher=hasher), Request("new", rest, 2, hasher=hasher)
    chains = [cast("_SipChain", hasher.start(b"", 2)) for _ in (old, new)]
    for request, chain in ((old, chains[0]), (new, chains[1]), (old, chains[0])):
        words = vec[i64](array("q", b"".join(keys(request, 2))))
        chain.remember(bytes(4 * 640), words, 8, 320)
    kept = [prompt for chain in chains if (prompt := chain._prompt) is not None and len(prompt.words) > 0]
    assert len(kept) == (limit >= COST)
    assert all(len(prompt.data) > 0 for prompt in kept)
