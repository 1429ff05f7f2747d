"""Property: whatever a caller's own hasher does, keys stay those of the request's own prefix, and the books right.

How: hash functions that raise, append to or release the request they hash for, at each of their calls; that return what
is no digest; hashers that are none.

Not covered: colliding hashers (test_identity.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from tests.core.support import admit, full, manager_of, request_dump

from blockwright import BlockHasher, FunctionHasher, Request, append_output_token_ids_batch
from blockwright.errors import InvalidArgumentError


def fail() -> None:
    raise RuntimeError("half-way")


class Trap:
    """A hash function that does something at its n-th call from now."""

    def __init__(self) -> None:
        self.left = -1
        self.action: Callable[[], Any] = fail
        self.hasher = FunctionHasher(self, is_collision_resistant=True)

    def __call__(self, parent: bytes, data: bytes) -> bytes:
        self.left -= 1
        if self.left == 0:
            self.action()
        return hashlib.md5(parent + data).digest()

    def set(self, calls: int, action: Callable[[], Any]) -> None:
        self.left, self.action = calls, action


@pytest.mark.parametrize("at", [1, 2, 3])
def test_hashers_that_raise_in_a_constructor(at: int) -> None:
    trap = Trap()
    trap.set(at, fail)
    with pytest.raises(RuntimeError):
        Request("r", [1] * 8, 4, hasher=trap.hasher)
    assert len(Request("r", [1] * 8, 4, hasher=trap.hasher).block_hashes) == 2


def test_hashers_that_raise_leave_the_keys_right() -> None:
    """After an append that failed in the hasher, keys are still the keys of the request's own prefix."""
    trap = Trap()
    request = Request("r", [1, 2, 3, 4], 4, hasher=trap.hasher)
    trap.set(2, fail)
    with pytest.raises(RuntimeError):
        request.append_output_token_ids([1, 2, 3, 4, 5, 6, 7, 8])
    request.append_output_token_ids([9])
    whole = Request("w", request.all_token_ids, 4, hasher=trap.hasher).block_hashes
    assert request.block_hashes == whole[: len(request.block_hashes)]


def test_hashers_that_raise_append_nothing() -> None:
    trap = Trap()
    request = Request("r", [1, 2, 3], 4, hasher=trap.hasher)
    before = request_dump(request)
    trap.set(1, fail)
    with pytest.raises(RuntimeError):
        request.append_output_token_ids([4])
    assert request_dump(request) == before


@pytest.mark.parametrize("at", [1, 2])
def test_hashers_that_raise_append_nothing_to_any(at: int) -> None:
    """Nor is anything counted; and without the failure the call does what calls for each request do."""
    trap = Trap()
    requests = [Request(f"r{i}", [1] * (i + 2), 4, hasher=None if i == 1 else trap.hasher) for i in range(4)]
    before, twins = [request_dump(request) for request in requests], [request.copy() for request in requests]
    trap.set(at, fail)
    with pytest.raises(RuntimeError):
        append_output_token_ids_batch(requests, range(11), 2, [2, 5, 0, 4])
    assert [request_dump(request) for request in requests] == before
    append_output_token_ids_batch(requests, range(11), [2, 0, 0, 1], [2, 5, 0, 4])
    for twin, start, stop, count in zip(twins, (0, 2, 7, 7), (2, 7, 7, 11), (2, 0, 0, 1), strict=True):
        twin.append_output_token_ids(list(range(start, stop)))
        twin.num_computed_tokens += count
    assert [request_dump(request) for request in requests] == [request_dump(twin) for twin in twins]
    for wrong in ([1] * 3, [1] * 5):
        with pytest.raises(InvalidArgumentError, match="token_ids"):
            append_output_token_ids_batch(requests, wrong)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_hashers_that_append(at: int) -> None:
    """A hasher that appends to the request it is hashing for: odd, but no reason for wrong keys."""
    trap = Trap()
    request = Request("r", [1, 2, 3], 4, hasher=trap.hasher)
    trap.set(at, lambda: request.append_output_token_ids([7] * 4))
    request.append_output_token_ids([1] * 10)
    request.append_output_token_ids([8] * 4)
    whole = Request("w", request.all_token_ids, 4, hasher=trap.hasher).block_hashes
    assert request.block_hashes == whole[: len(request.block_hashes)]


def test_hashers_that_release() -> None:
    manager, trap = manager_of(full()), Trap()
    request = Request("r", list(range(7)), 4, hasher=trap.hasher)
    admit(manager, request)
    trap.set(1, lambda: manager.free(request))
    request.append_output_token_ids([1])
    manager.check()
    assert manager.usage == 0.0
    with pytest.raises(InvalidArgumentError):
        manager.allocate_slots(request, 1)


@pytest.mark.parametrize("digest", ["text", None, 5, bytearray(16), ()])
def test_hashers_that_return_no_bytes(digest: Any) -> None:
    with pytest.raises(TypeError):
        Request("r", [1] * 8, 4, hasher=FunctionHasher(lambda parent, data: digest, is_collision_resistant=True))


def test_a_hasher_of_ones_own() -> None:
    """Without a chain of its own it is refused when first used."""

    class Bare(BlockHasher):
        pass

    with pytest.raises(NotImplementedError):
        Request("r", [1] * 8, 4, hasher=Bare(True, False))
