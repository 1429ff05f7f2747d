"""How time and memory grow with the pool: the same work in small, middling and huge pools.

Each size is measured twice. *In order*: requests were admitted one after another, so a request's blocks lie side by
side. *Scattered*: requests grew side by side in shuffled order and were released in shuffled order, so that neighbours
in a block table and in the free queue lie far apart in memory, as after long service. Beside the second stands the same
access pattern over bare arrays and in plain C: what the memory system alone costs at that size.
"""

import gc
import random
import tracemalloc
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.floor import Floor
from benchmarks.measure import now, require, since, summary
from benchmarks.sides import BLOCK_SIZE, MAX_MODEL_LEN, Ours

SIZES = (1_000, 50_000, 4_000_000)
REQUEST = 50
"""Blocks of each request."""
SAMPLED, BURST = 400, 20
"""Requests that are timed in one repetition, at most, a different random choice each time; how many arrive at once."""
DECODING, DECODE_STEPS = 250, 16
"""Running requests of a decode step, and steps of one repetition: each request passes one block boundary."""
ROUNDS, FLOOR_ROUNDS = 9, 3
"""Repetitions of each number; the median counts."""
FLAT_TARGET = 1.5
"""Growth of the time per operation from the first size to any other, at most; or that of plain C, if that is more."""
BYTES_TARGET = 56.0
"""Bookkeeping per block, at most."""

PATHS = ("lookup", "adopt", "release", "churn", "decode-batch")
BARE_ARRAYS = {"read 4 bytes a block": 4, "read 64 bytes a block": 64}


@dataclass(frozen=True)
class Scale:
    """Numbers of one pool size.

    Attributes:
        num_blocks: blocks of the pool, all of them published.
        in_order, scattered: ns per block (decode: per request) of each of `PATHS`.
        bare: ns per read of bare arrays of that many blocks, at the ids of scattered tables; empty without numpy.
        floor_in_order, floor_scattered: the paths in plain C; empty unless asked for.
        bytes_per_block: memory of the manager, index included; memory of requests does not count.
        objects_per_block: objects of the manager that the garbage collector tracks.
    """

    num_blocks: int
    in_order: dict[str, float]
    scattered: dict[str, float]
    bare: dict[str, float]
    floor_in_order: dict[str, float]
    floor_scattered: dict[str, float]
    bytes_per_block: float
    objects_per_block: float


def measure(num_blocks: int, floor: Floor | None) -> Scale:
    """Fill a pool of `num_blocks` blocks and measure it. Takes a good while for millions of blocks."""
    pool = _Pool(num_blocks)
    in_order = {name: _median(sample) for name, sample in pool.samples().items()}
    pool.fill_scattered()
    tables = pool.tables()
    scattered = {name: _median(sample) for name, sample in pool.samples().items()}
    return Scale(
        pool.num_blocks,
        in_order,
        scattered,
        _bare_arrays(pool.num_blocks, tables),
        _plain_c(pool, floor, scattered=False),
        _plain_c(pool, floor, scattered=True),
        pool.bytes_per_block,
        pool.objects_per_block,
    )


def _plain_c(pool: "_Pool", floor: Floor | None, scattered: bool) -> dict[str, float]:
    if floor is None:
        return {}
    rounds = [floor.scaling(pool.num_requests, REQUEST, pool.num_sampled, scattered) for _ in range(FLOOR_ROUNDS)]
    return {name: summary([times[name] for times in rounds]).median for name in rounds[0]}


def _median(sample: Callable[[], float]) -> float:
    gc.collect()
    gc.disable()
    try:
        return summary([sample() for _ in range(ROUNDS)]).median
    finally:
        gc.enable()


class _Pool:
    """A pool whose blocks are all eviction candidates, and the requests that published them."""

    def __init__(self, num_blocks: int) -> None:
        self._random = random.Random(7)
        self._serial = 0
        self._side = Ours()
        self.num_requests = num_blocks // REQUEST
        self.num_blocks = self.num_requests * REQUEST
        self.num_sampled = min(SAMPLED, self.num_requests)
        self._requests = [self._request(REQUEST) for _ in range(self.num_requests)]
        gc.collect()
        objects = len(gc.get_objects())
        tracemalloc.start()
        # Spare blocks, so that a request that adopts a hit finds room for its next token without evicting.
        self._manager = self._side.manager(self.num_blocks + self.num_sampled + 1, MAX_MODEL_LEN)
        self._fill_in_order()
        gc.collect()
        self.bytes_per_block = tracemalloc.get_traced_memory()[0] / self.num_blocks
        tracemalloc.stop()
        self.objects_per_block = (len(gc.get_objects()) - objects) / self.num_blocks

    def _request(self, num_blocks: int, serial: int | None = None) -> Any:
        """Return a request of that many full blocks and one more token; only those of one serial number are alike."""
        if serial is None:
            self._serial += 1
            serial = self._serial
        return self._side.request(f"r{serial}", array("i", [serial]) * (num_blocks * BLOCK_SIZE + 1))

    def _fill_in_order(self) -> None:
        for request in self._requests:
            require(self._manager.allocate_slots(request, REQUEST * BLOCK_SIZE) is not None)
        for request in self._requests:
            self._manager.free(request)
        require(self._manager.usage == 0)

    def fill_scattered(self) -> None:
        """Empty the pool and let the requests grow side by side, in another order each step."""
        require(self._manager.reset_prefix_cache())
        order = list(self._requests)
        for step in range(REQUEST):
            self._random.shuffle(order)
            require(self._manager.allocate_slots_batch(order, BLOCK_SIZE).num_served == len(order))
            for request in order:
                request.num_computed_tokens = (step + 1) * BLOCK_SIZE
        self._random.shuffle(order)
        for request in order:
            self._manager.free(request)
        require(self._manager.usage == 0)

    def _bursts(self) -> Iterator[list[Any]]:
        """Yield, a burst at a time, requests that arrive just now and whose prefixes are cached, chosen at random."""
        serials = self._random.sample(range(1, self.num_requests + 1), self.num_sampled)
        for first in range(0, len(serials), BURST):
            yield [self._request(REQUEST, serial) for serial in serials[first : first + BURST]]

    def tables(self) -> list[list[int]]:
        """Return the cached block tables of some requests, chosen at random."""
        hits = [self._manager.get_computed_blocks(request) for burst in self._bursts() for request in burst]
        require(all(length == REQUEST * BLOCK_SIZE for _, length in hits))
        return [[int(block) for block in hit.ids[0]] for hit, _ in hits]

    def samples(self) -> dict[str, Callable[[], float]]:
        """Return one repetition of each path. To be run in this order: the last two evict what the others read."""
        samples = (self._lookup, self._adopt, self._release, self._churn, self._decode)
        return dict(zip(PATHS, samples, strict=True))

    def _lookup(self) -> float:
        spent = 0
        for burst in self._bursts():
            begin = now()
            hits = [self._manager.get_computed_blocks(request) for request in burst]
            spent += since(begin)
            require(all(length == REQUEST * BLOCK_SIZE for _, length in hits))
        return spent / (self.num_sampled * REQUEST)

    def _adopt_all(self) -> tuple[list[Any], int]:
        requests = []
        spent = 0
        for burst in self._bursts():
            found = [(request, *self._manager.get_computed_blocks(request)) for request in burst]
            begin = now()
            for request, hit, length in found:
                self._manager.allocate_slots(request, 1, length, hit)
            spent += since(begin)
            requests += burst
        return requests, spent

    def _adopt(self) -> float:
        requests, spent = self._adopt_all()
        for request in requests:
            require(len(self._manager.get_block_ids(request.request_id)[0]) == REQUEST + 1)
            self._manager.free(request)
        return spent / (self.num_sampled * REQUEST)

    def _release(self) -> float:
        requests, _ = self._adopt_all()
        require(self._manager.usage > 0)
        begin = now()
        for request in requests:
            self._manager.free(request)
        spent = since(begin)
        require(self._manager.usage == 0)
        return spent / (self.num_sampled * REQUEST)

    def _churn(self) -> float:
        requests = [self._request(REQUEST) for _ in range(self.num_sampled)]
        begin = now()
        for request in requests:
            hit, length = self._manager.get_computed_blocks(request)
            self._manager.allocate_slots(request, REQUEST * BLOCK_SIZE - length, length, hit)
            self._manager.free(request)
        spent = since(begin)
        require(self._manager.get_computed_blocks(requests[-1])[1] == REQUEST * BLOCK_SIZE)
        return spent / (len(requests) * REQUEST)

    def _decode(self) -> float:
        requests = [self._request(2) for _ in range(DECODING)]
        for i, request in enumerate(requests):
            prompt = 1 + i % BLOCK_SIZE
            require(self._manager.allocate_slots(request, prompt) is not None)
            request.num_computed_tokens = prompt
        spent = 0
        for _ in range(DECODE_STEPS):
            begin = now()
            step = self._manager.allocate_slots_batch(requests, 1)
            spent += since(begin)
            require(step.num_served == DECODING)
            for request in requests:
                request.num_computed_tokens += 1
        for request in requests:
            self._manager.free(request)
        return spent / (DECODING * DECODE_STEPS)


def _bare_arrays(num_blocks: int, tables: list[list[int]]) -> dict[str, float]:
    try:
        import numpy
    except ImportError:
        return {}
    bare = {}
    for title, width in BARE_ARRAYS.items():
        words = width // 4
        memory = numpy.ones((num_blocks + len(tables) + 1) * words, dtype=numpy.int32)
        where = numpy.array([block * words for table in tables for block in table], dtype=numpy.int64)
        rounds = []
        for _ in range(ROUNDS):
            memory += 1  # walk the whole array, so that no read finds its line still in a near cache
            begin = now()
            memory.take(where)
            rounds.append(since(begin) / len(where))
        bare[title] = summary(rounds).median
    return bare
