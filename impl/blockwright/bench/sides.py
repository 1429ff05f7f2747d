"""The two sides of a comparison, reached through one interface: Blockwright's public API, and a peer's."""

import random
from array import array
from collections.abc import Callable
from typing import Any, Protocol

from blockwright import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    Request,
    Sha256Hasher,
)

BLOCK_SIZE = 16


class Side(Protocol):
    """A manager under measurement.

    The managers and requests that it returns share vLLM's names: `allocate_slots(request, num_new_tokens,
    num_new_computed_tokens, new_computed_blocks)`, `get_computed_blocks`, `free`, `get_block_ids`,
    `reset_prefix_cache`, `append_output_token_ids`, `num_computed_tokens`. So the timed loops are the same for both.
    """

    def manager(self, num_blocks: int, max_model_len: int) -> Any:
        """Return a new manager with prefix caching for one group of full attention layers."""

    def request(self, request_id: str, prompt_token_ids: Any) -> Any:
        """Return a request with its block hashes computed."""

    def mark_running(self, request: Any) -> None:
        """Tell the request that it has been admitted."""


class Ours:
    """Blockwright, as installed."""

    def __init__(self, hasher: Any = None) -> None:
        """Take the block hasher of all requests; None is the default hasher."""
        self._hasher = hasher

    def manager(self, num_blocks: int, max_model_len: int) -> KVCacheManager:
        """Return a new manager."""
        spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=8, head_size=128, dtype="bfloat16")
        return KVCacheManager(KVCacheConfig(num_blocks, [KVCacheGroupSpec(["layers.0"], spec)]), max_model_len)

    def request(self, request_id: str, prompt_token_ids: Any) -> Request:
        """Return a new request."""
        return Request(request_id, prompt_token_ids, BLOCK_SIZE, hasher=self._hasher)

    def mark_running(self, request: Any) -> None:
        """Nothing to tell."""


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
    """Return a list of ints, as a tokenizer hands over."""
    return list(ids)


def as_array(ids: list[int]) -> Any:
    """Return an `array('i')`."""
    return array("i", ids)


def as_numpy() -> Callable[[list[int]], Any] | None:
    """Return a converter to a numpy array of 32-bit integers, or None without numpy."""
    try:
        import numpy
    except ImportError:
        return None
    return lambda ids: numpy.array(ids, dtype=numpy.int32)
