"""The two sides of a comparison, reached through one interface: Blockwright's public API, and a peer's."""

import itertools
import random
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from blockwright import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    Request,
    Sha256Hasher,
    SlidingWindowSpec,
    append_output_token_ids_batch,
)

BLOCK_SIZE = 16
MAX_MODEL_LEN = 1 << 20

Windows = Sequence[int | None]
"""One group of layers each: tokens of a sliding window, or None for full attention."""


class Side(Protocol):
    """A manager under measurement.

    The managers and requests that it returns share vLLM's names: `allocate_slots(request, num_new_tokens,
    num_new_computed_tokens, new_computed_blocks)`, `get_computed_blocks`, `free`, `get_block_ids`,
    `reset_prefix_cache`, `append_output_token_ids`, `num_computed_tokens`. So the timed loops are the same for both.
    """

    def manager(self, num_blocks: int, max_model_len: int, windows: Windows = (None,)) -> Any:
        """Return a new manager with prefix caching, for groups of such windows."""

    def request(self, request_id: str, prompt_token_ids: Any) -> Any:
        """Return a request with its block hashes computed."""

    def hash_filled(self, request: Any) -> None:
        """See that the blocks that its tokens fill have been hashed."""

    def mark_running(self, request: Any) -> None:
        """Tell the request that it has been admitted."""

    def advance(self, requests: Sequence[Any], token_ids: list[int]) -> None:
        """Count the token that each request has computed, and append the next."""


class Ours:
    """Blockwright, as installed."""

    def __init__(self, hasher: Any = None, block_size: int = BLOCK_SIZE) -> None:
        self._hasher, self.block_size = hasher, block_size

    def manager(
        self, num_blocks: int, max_model_len: int, windows: Windows = (None,), overlap_steps: bool = False
    ) -> KVCacheManager:
        return KVCacheManager(self.config(num_blocks, windows), max_model_len, overlap_steps=overlap_steps)

    def config(self, num_blocks: int, windows: Windows) -> KVCacheConfig:
        """Return what a manager of such a pool is made for."""
        groups = [KVCacheGroupSpec([f"layers.{i}"], _kind(window, self.block_size)) for i, window in enumerate(windows)]
        return KVCacheConfig(num_blocks, groups)

    def request(self, request_id: str, prompt_token_ids: Any) -> Request:
        request = self.arriving(request_id, prompt_token_ids)
        self.hash_filled(request)
        return request

    def arriving(self, request_id: str, prompt_token_ids: Any) -> Request:
        return Request(request_id, prompt_token_ids, BLOCK_SIZE, hasher=self._hasher)

    def hash_filled(self, request: Any) -> None:
        """Ask for the last key, which has all of them made."""
        if request.num_tokens >= BLOCK_SIZE:
            request.block_digest(request.num_tokens // BLOCK_SIZE - 1)

    def mark_running(self, request: Any) -> None:
        """Nothing to tell."""

    def advance(self, requests: Sequence[Any], token_ids: list[int]) -> None:
        append_output_token_ids_batch(requests, token_ids, 1)


TENANTS = 100
"""Tenants that have a share."""


class SharedOurs(Ours):
    """Blockwright with equal shares for tenants, to each of which requests belong in turn."""

    def __init__(self, shared: int) -> None:
        super().__init__()
        self._shares = {f"tenant {number}": shared // TENANTS for number in range(TENANTS)}
        self._salts = itertools.cycle(self._shares)

    def manager(
        self, num_blocks: int, max_model_len: int, windows: Windows = (None,), overlap_steps: bool = False
    ) -> KVCacheManager:
        return KVCacheManager(self.config(num_blocks, windows), max_model_len, shares=self._shares)

    def arriving(self, request_id: str, prompt_token_ids: Any) -> Request:
        return Request(request_id, prompt_token_ids, BLOCK_SIZE, cache_salt=next(self._salts))


class With(Ours):
    """Blockwright with something that costs time: options of the manager, or a journal."""

    def __init__(self, journal: bool = False, block_size: int = BLOCK_SIZE, **options: Any) -> None:
        super().__init__(block_size=block_size)
        self._journal, self._options = journal, options

    def manager(
        self, num_blocks: int, max_model_len: int, windows: Windows = (None,), overlap_steps: bool = False
    ) -> KVCacheManager:
        made = KVCacheManager(self.config(num_blocks, windows), max_model_len, **self._options)
        if self._journal:
            made.start_journal()
        return made

    def arriving(self, request_id: str, prompt_token_ids: Any) -> Request:
        return Request(request_id, prompt_token_ids, self._options.get("prefix_match_unit", self.block_size))

    def hash_filled(self, request: Any) -> None:
        unit = self._options.get("prefix_match_unit", self.block_size)
        request.block_digest(request.num_tokens // unit - 1)


def _kind(window: int | None, block_size: int) -> FullAttentionSpec | SlidingWindowSpec:
    if window is None:
        return FullAttentionSpec(block_size, num_kv_heads=8, head_size=128, dtype="bfloat16")
    return SlidingWindowSpec(block_size, num_kv_heads=8, head_size=128, dtype="bfloat16", sliding_window=window)


def ours_sha256() -> Ours:
    """Return Blockwright with SHA-256 block hashes."""
    return Ours(Sha256Hasher(b"bench"))


class Tokens:
    """Pseudo-random token ids of a 128k vocabulary, a different run for each call, the same in every process."""

    def __init__(self, seed: int = 1) -> None:
        self._state = seed

    def draw(self, count: int) -> list[int]:
        """Return `count` ids. Complexity: O(count)."""
        self._state += 1
        return random.Random(self._state).choices(range(128_000), k=count)


def as_list(ids: list[int]) -> Any:
    return list(ids)


def as_array(ids: list[int]) -> Any:
    return array("i", ids)


def as_array64(ids: list[int]) -> Any:
    return array("q", ids)


def as_numpy() -> Callable[[list[int]], Any] | None:
    """Return a converter to a numpy array of 32-bit integers, or None without numpy."""
    try:
        import numpy
    except ImportError:
        return None
    return lambda ids: numpy.array(ids, dtype=numpy.int32)
