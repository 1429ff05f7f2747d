"""From raw tokens to blocks: a request is made of a list or an array, matched, and its hit adopted.

Beside SGLang's prefix tree in Rust, as its engine uses it. Both sides are given the same list or array: what a side
makes of it for itself is part of its time. Each sample asserts, outside the timed region, how long the hit was. A
prompt is one token longer than its cached or cacheable part, which is whole blocks.
"""

from collections.abc import Callable
from typing import Any, Protocol

from benchmarks.groups import LARGE
from benchmarks.measure import Sample, now, require, since
from benchmarks.path import TOKENS, Path
from benchmarks.sides import BLOCK_SIZE, MAX_MODEL_LEN, Tokens, as_array, as_array64
from blockwright import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheManager, Request, SipHasher

SIZES = {"2k": 2_048, "8k": 8_192, "32k": 32_768, "128k": 131_072}
SMALL_TARGET = 1 / 3
"""Ratio over the peer to reach with blocks of one token, the peer's own page."""
RUNS = 4
"""Prompts of one repetition."""


class Prefixes(Protocol):
    """What a side does for prompts."""

    def store(self, prompt: Any) -> None:
        """Make a prompt and publish its whole blocks."""

    def request(self, prompt: Any) -> Any:
        """Return a request of raw tokens."""

    def match(self, request: Any) -> tuple[Any, int]:
        """Return what is cached of a request, and how many tokens that is."""

    def adopt(self, request: Any, hit: Any, length: int) -> Any:
        """Hold the hit; return what `drop` needs."""

    def drop(self, request: Any, held: Any) -> None:
        """Release what is held."""

    def reset(self) -> None:
        """Forget all prompts."""

    def num_stored(self) -> int:
        """Return the tokens that are cached."""


class _Ours:
    """A manager of Blockwright with room for one prompt that is stored, and one that runs."""

    def __init__(self, num_tokens: int, page: int = BLOCK_SIZE) -> None:
        self._page = page
        spec = FullAttentionSpec(page, num_kv_heads=8, head_size=128, dtype="bfloat16")
        config = KVCacheConfig(2 * (num_tokens // page + 2), [KVCacheGroupSpec(["layers"], spec)])
        self._manager: KVCacheManager = KVCacheManager(config, MAX_MODEL_LEN)
        self._stored: Any = None
        self._hasher: SipHasher | None = None

    def store(self, prompt: Any) -> None:
        self._stored = Request("stored", prompt, hasher=self._hasher)
        self._manager.allocate_slots(self._stored, self._stored.num_tokens)

    def request(self, prompt: Any) -> Any:
        return Request("arriving", prompt)

    def match(self, request: Any) -> tuple[Any, int]:
        return self._manager.get_computed_blocks(request)

    def adopt(self, request: Any, hit: Any, length: int) -> Any:
        return self._manager.allocate_slots(request, 1, length, hit)

    def drop(self, request: Any, held: Any) -> None:
        self._manager.free(request)

    def reset(self) -> None:
        if self._stored is not None:
            self._manager.free(self._stored)
        require(self._manager.reset_prefix_cache())
        self._hasher = SipHasher()  # which has not seen the prompt that comes next, but another
        require(len(Request("other", range(9 * self._page), self._page, hasher=self._hasher).block_hashes) == 9)

    def num_stored(self) -> int:
        request = self._stored
        return len(self._manager.get_block_ids(request.request_id)[0]) * self._page


def arrive(side: Prefixes, prompt: Any, stored: Any, length: int) -> Sample:
    if length:
        side.store(stored)

    def sample() -> float:
        spent = 0
        for _ in range(RUNS):
            begin = now()
            request = side.request(prompt)
            hit, found = side.match(request)
            held = side.adopt(request, hit, found)
            spent += since(begin)
            require(found == length and held is not None)
            side.drop(request, held)
        return spent / RUNS

    return sample


def again(side: Prefixes, prompt: Any, stored: Any, length: int) -> Sample:
    side.store(stored)
    request = side.request(prompt)

    def sample() -> float:
        side.match(request)
        begin = now()
        for _ in range(RUNS):
            found = side.match(request)
        spent = since(begin)
        require(found[1] == length)
        return spent / RUNS

    return sample


def insert(side: Prefixes, prompt: Any, stored: Any, length: int) -> Sample:
    def sample() -> float:
        spent = 0
        for _ in range(RUNS):
            side.reset()
            begin = now()
            side.store(stored)
            spent += since(begin)
            require(side.num_stored() == length)
        return spent / RUNS

    return sample


CASES: dict[str, tuple[str, Callable[..., Sample], float, float]] = {
    "cached": ("all cached", arrive, 1, 1),
    "half": ("half cached", arrive, 0.5, 1),
    "new": ("not cached", arrive, 0, 2),
    "again": ("matched again", again, 1, 2),
    "insert": ("inserted", insert, 1, 1),
}
"""Of each: what it is called, how it is timed, what part of the prompt is cached, the ratio over the peer to reach."""


FORMS: dict[str, tuple[str, Callable[[list[int]], Any]]] = {
    "list": ("a list", list),
    "array": ("an array of 64 bits", as_array64),
    "array32": ("an array of 32 bits", as_array),
}
"""What a prompt comes in: what it is called, and made by. Integers of 64 bits are those of SGLang, numpy and torch."""


def _path(case: str, form: str, size: str, page: int = BLOCK_SIZE) -> Path:
    title, sample, part, target = CASES[case]
    name, pages = f"tokens-{case}-{form}-{size}", ""
    if page != BLOCK_SIZE:
        name, pages, target = f"{name}-{page}", f", blocks of {page}", SMALL_TARGET
    count, (made_of, convert) = SIZES[size], FORMS[form]

    def on(side: Prefixes) -> Sample:
        bytearray(LARGE)
        prompt, length = Tokens().draw(count + 1), int(count * part)
        return sample(side, convert(prompt), convert(prompt[:length]), length)

    return Path(
        name,
        f"{count:,} tokens from {made_of}{pages}, {title}",
        "prompt",
        target,
        lambda: on(_Ours(count, page)),
        lambda peer: on(peer.tree(count, page)),
        system=TOKENS,
    )


def all_paths() -> list[Path]:
    return [
        _path(case, form, size)
        for case in CASES
        for form in (FORMS if case != "again" else ("array",))
        for size in SIZES
    ] + [_path(case, "array", size, 1) for case in CASES if case != "half" for size in SIZES if size != "2k"]
