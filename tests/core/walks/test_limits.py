"""Property: cost per operation and memory stay flat, however long it runs and however large it gets.

How: each growing thing (a request, its table, a pile of duplicates, a pool, many requests) at a size and at sixteen
times that size, best of three; quadratic cost would show sixteenfold. A million operations of each sort, after a tenth
as many to warm up, must not grow the process. Then single extremes.

Not covered: absolute speed (the benchmark measures it), pools beyond a million blocks, and a hasher whose keys crowd
into one slot of the index, which costs linear time for each of them.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.core.support import COMPILED, admit, full, mamba, manager_of, sliding, started

from blockwright import BlockPool, KVCacheManager, Request
from blockwright.errors import BlockwrightError

pytestmark = pytest.mark.slow
STEPS = 8000 if COMPILED else 500
FACTOR = 16


def appending(count: int) -> Callable[[], None]:
    request = Request("r", [1], 1)

    def run() -> None:
        for _ in range(count):
            request.append_output_token_ids([1])

    return run


def growing(sized: Callable[[int], KVCacheManager], per_step: int) -> Callable[[int], Callable[[], None]]:
    """Give a request more and more slots, one or several blocks a step."""

    def made(count: int) -> Callable[[], None]:
        manager = sized(count * per_step + 10)
        request = Request("r", [1] * (count * per_step), 1)

        def run() -> None:
            for _ in range(count):
                assert manager.allocate_slots(request, per_step) is not None
                request.num_computed_tokens += per_step

        return run

    return made


def duplicates(verify: bool) -> Callable[[int], Callable[[], None]]:
    """Publish one prefix on many blocks, release them out of order, and take each key away again."""

    def made(count: int) -> Callable[[], None]:
        manager = manager_of(full(), 2 * count + 1, verify_tokens=verify)
        requests = [Request(f"r{i}", [1, 2, 3, 4, 5], 4) for i in range(count)]

        def run() -> None:
            for request in requests:
                assert manager.allocate_slots(request, 5) is not None
            for request in requests[::2] + requests[1::2]:
                manager.free(request)
            manager.block_pool.get_new_blocks(2 * count)

        return run

    return made


def many(count: int) -> Callable[[], None]:
    """Run many requests at a time, and release them out of order."""
    manager = manager_of(full(), 2 * count)
    requests = [Request(f"r{i}", [i], 4) for i in range(count)]

    def run() -> None:
        manager.allocate_slots_batch(requests, 1)
        for request in requests[count // 2 :] + requests[: count // 2]:
            manager.free(request)

    return run


def common(count: int) -> Callable[[], None]:
    """StepRequest how long a prefix is that many requests have in common, while another block is held from outside."""
    length = count // 4
    manager = manager_of(full(1), 3 * length, length + 1)
    for i in range(length):
        admit(manager, Request(f"r{i}", [*([1] * length), i], 1))
    manager.block_pool.get_new_blocks(1)

    def run() -> None:
        for _ in range(20):
            assert manager.get_num_common_prefix_blocks("r0", length) == [length]

    return run


GROWING: dict[str, Callable[[int], Callable[[], None]]] = {
    "tokens of a request": appending,
    "blocks, one a step": growing(lambda n: manager_of(full(1), n, n), 1),
    "blocks, three a step": growing(lambda n: manager_of(full(1), n, n), 3),
    "entries of a window": growing(lambda n: manager_of(sliding(1, 4), 100, n), 1),
    "states jumped over": growing(lambda n: manager_of(mamba(1), 100, n), 3),
    "duplicates": duplicates(False),
    "verified duplicates": duplicates(True),
    "requests": many,
    "common prefixes": common,
}


@pytest.mark.parametrize("made", GROWING.values(), ids=GROWING.keys())
def test_cost_is_linear(made: Callable[[int], Callable[[], None]]) -> None:
    small, large = (min(seconds(made(size)) / size for _ in range(3)) for size in (STEPS // FACTOR, STEPS))
    assert large < 6 * small


def seconds(run: Callable[[], None]) -> float:
    gc.collect()
    start = time.process_time()
    run()
    return time.process_time() - start


# ---------------------------------------------------------------------- memory


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def singles(count: int) -> None:
    """Single calls that trim; the request starts again now and then."""
    manager, request = manager_of(sliding(), 300, 10**6), Request("r", [1] * 5, 4)
    for i in range(count):
        if i % 1000 == 0:
            manager.free(request)
            request.num_computed_tokens = 0
        manager.allocate_slots(request, 1)
        request.num_computed_tokens += 1


def batches(count: int) -> None:
    manager = manager_of(sliding(), 3000, 10**6)
    requests = [Request(f"r{i}", [i] * 4, 4) for i in range(8)]
    for i in range(count // 8):
        for request in requests if i % 500 == 0 else []:
            manager.free(request)
            request.num_computed_tokens = 0
        manager.allocate_slots_batch(requests, 1)
        for request in requests:
            request.num_computed_tokens += 1


def lives(count: int) -> None:
    manager = manager_of(full(), 300, 1000, log_stats=True)
    for i in range(count // 10):
        request = Request(f"r{i}", [i % 7] * 20 + [i], 4)
        admit(manager, request)
        request.append_output_token_ids([1])
        manager.free(request)


def refusals(count: int) -> None:
    manager = manager_of(full(), 30, 1000)
    request = started(manager, "r", 9)
    new = Request("new", [1] * 500, 4)
    for _ in range(count // 10):
        assert manager.allocate_slots(new, 110) is None
        for refused, num_tokens in ((new, 500), (request, -1)):
            with contextlib.suppress(BlockwrightError):
                manager.allocate_slots(refused, num_tokens)
                raise AssertionError("accepted")


def copies(count: int) -> None:
    manager = manager_of(full(), 300)
    request = started(manager, "r", 100)
    for _ in range(count // 100):
        manager.copy().free(request.copy())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("use", [singles, batches, lives, refusals, copies])
def test_memory_does_not_grow(use: Callable[[int], None]) -> None:
    count = 1_000_000 if COMPILED else 30_000
    use(count // 10)

    def grows() -> bool:
        before, objects = resident(), sys.getallocatedblocks()
        use(count)
        return resident() - before >= 2**20 or sys.getallocatedblocks() - objects >= 1000

    # What pytest's own thread receives meanwhile (its next tests) comes once; a leak comes each time.
    assert not (grows() and grows())


# ---------------------------------------------------------------------- extremes


def test_a_million_blocks() -> None:
    pool = BlockPool(10**6)
    assert pool.get_num_free_blocks() == 10**6 - 1
    manager = manager_of(full(16), 10**6, 2**31 - 1)
    request = Request("r", [1] * 1000, 16)
    admit(manager, request)
    manager.free(request)
    assert manager.get_computed_blocks(request)[1] == 992
    manager.check()


def test_a_long_chain() -> None:
    """As many blocks as tokens: every walk over a request is a loop, not a recursion."""
    count = 200_000 if COMPILED else 20_000
    manager = manager_of(full(1), count + 2, count)
    request = Request("r", range(count), 1)
    assert len(request.block_hashes) == count
    assert admit(manager, request) == 0
    manager.free(request)
    request.num_computed_tokens = 0
    assert admit(manager, request) == count - 1
    manager.copy().check()
    manager.free(request)
    assert manager.block_pool.free_block_ids()[-1] == 1


def test_long_names() -> None:
    salt = "s" * 3_000_000 if COMPILED else "s" * 300_000
    manager = manager_of(full())
    for other in (salt, salt[:-1] + "t", salt + "s"):
        request = Request(salt, [1] * 9, 4, cache_salt=other)
        assert admit(manager, request) == 0
        manager.free(request)
    manager.check()


def test_the_longest_request() -> None:
    """Lengths up to 2**31 - 1 are counted right, without the tokens to go with them."""
    manager = manager_of(full(2**20), 2**11 + 1, 2**31 - 1)
    request = Request("r", [1] * 10, 2**20)
    assert manager.allocate_slots(request, 2**31 - 1, num_lookahead_tokens=2**31 - 1) is not None
    assert len(manager.get_block_ids("r")[0]) == 2**11
    request.num_computed_tokens = 2**31 - 2
    assert manager.allocate_slots(request, 1, num_lookahead_tokens=2**31 - 1) is not None
    with pytest.raises(BlockwrightError, match="max_model_len"):
        manager.allocate_slots(request, 2)
    manager.check()
    manager = manager_of(sliding(2**20, 2**31 - 1), 2**11 + 1, 2**31 - 1)
    request.num_computed_tokens = 0
    assert manager.allocate_slots(request, 2**31 - 2) is not None
    request.num_computed_tokens = 2**31 - 2
    assert manager.allocate_slots(request, 1) is not None
    assert 0 not in manager.get_block_ids("r")[0]
    manager.check()
