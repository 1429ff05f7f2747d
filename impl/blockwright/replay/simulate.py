"""Replay a trace through the real manager, and count the savings of the prefix cache.

Requests are served one after another, through the calls an engine makes: look up the cached prefix, allocate slots for
the rest (adopting the hit), and release once the prompt is computed. Output tokens are not replayed. All pools are
replayed in one pass: a request's tokens are built and hashed once and then served by each pool. With `Overlap`,
requests run at the same time instead, and decode (`timed`); each pool then has a pass of its own.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from blockwright import Request, Sha256Hasher, build_info
from blockwright.arguments import integer
from blockwright.errors import InvalidArgumentError
from blockwright.kinds import KVCacheSpec
from blockwright.observe import Fact
from blockwright.policies import Lru
from blockwright.replay.keeping import Keeping
from blockwright.replay.offloaded import Link, OffloadOptions, SharedBlocks
from blockwright.replay.pools import PERCENTILES, Clock, Pool, PoolResult, Way, result_of
from blockwright.replay.records import Trace, TraceRequest
from blockwright.replay.routers import MAX_ENGINES, is_told, router_named
from blockwright.replay.timed import Overlap, serve_timed


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Hold the results of one pass.

    Attributes:
        pools: a result per pool, in the order asked for.
        prepare_seconds, check_seconds: the time to build token ids and hash blocks, and that of the self-checks.
    """

    pools: tuple[PoolResult, ...]
    prepare_seconds: float
    check_seconds: float


def replay(
    trace: Trace,
    spec: KVCacheSpec,
    pool_sizes: Sequence[int],
    *,
    step_tokens: int | None = None,
    check_every: int | None = None,
    offload: OffloadOptions | None = None,
    note: Callable[[Fact], object] | None = None,
    advance: Callable[[], None] = lambda: None,
    keeping: Keeping | None = None,
    more: Sequence[KVCacheSpec] = (),
    keep_wanted: bool | None = None,
    overlap: Overlap | None = None,
    skip: int = 0,
) -> ReplayResult:
    """Serve all requests of `trace` on a pool of each size, for one group of layers of the kind `spec`, and for `more`.

    `step_tokens` bounds the tokens of a prompt's step; recurrent layers also end one at the last block boundary, and
    with `keep_wanted` at each request's junction, since only a state at a boundary is found again. Every pool checks
    itself after each `check_every` requests, and at the end. `offload` is a host tier behind each pool. `note` is given
    the journal of the calls, of one pool without a host tier; `advance` is called after each request. `keeping` decides
    which blocks are kept (default: the least recently used is evicted first). With `overlap`, requests run at the same
    time. The first `skip` requests are not counted.

    Complexity: O(tokens) to prepare, with `overlap` for each pool, and O(blocks) per pool to serve.

    Raises:
        InvalidArgumentError: a size, step or interval below 1, or no size.
        InvariantError: a self-check failed.
    """
    _require_positive(pool_sizes, step_tokens, check_every)
    keeping = keeping or Keeping("lru", Lru)
    return replay_ways(
        trace,
        [spec, *more],
        [Way(size, keeping, keep_wanted, offload) for size in pool_sizes],
        step_tokens=step_tokens,
        check_every=check_every,
        note=note,
        advance=advance,
        overlap=overlap,
        skip=skip,
    )


def replay_ways(
    trace: Trace,
    specs: Sequence[KVCacheSpec],
    ways: Sequence[Way],
    *,
    step_tokens: int | None = None,
    check_every: int | None = None,
    note: Callable[[Fact], object] | None = None,
    advance: Callable[[], None] = lambda: None,
    overlap: Overlap | None = None,
    skip: int = 0,
) -> ReplayResult:
    if skip >= len(trace.requests):
        raise InvalidArgumentError(f"skip: leaves no request to count, of {len(trace.requests):,}; skip fewer")
    if note is not None and (len(ways) > 1 or ways[0].offload is not None or ways[0].engines > 1):
        raise InvalidArgumentError("note: the journal is of one pool without a host tier")
    if overlap is None and any(way.engines > 1 for way in ways):
        raise InvalidArgumentError("engines: several serve requests that overlap; give `overlap`, or leave it out")
    for way in ways:
        router_named(way.router)
        if not 1 <= way.engines <= MAX_ENGINES:
            raise InvalidArgumentError(f"engines: must be from 1 to {MAX_ENGINES:,}, not {way.engines}")
        if not 0 <= way.prefill < way.engines:
            raise InvalidArgumentError(f"prefill: must leave an engine to decode, of {way.engines}, not {way.prefill}")
    requests, block_size, whose = trace.requests, specs[0].block_size, ways[0].keeping.tenant
    longest = trace.max_prompt_tokens
    if overlap is not None:
        longest = trace.max_tokens if overlap.output_tokens is None else longest + overlap.output_tokens
    # Keys never leave this process, so any collision-resistant hash gives the same result: take the faster one.
    told = any(way.engines > 1 and is_told(way.router) for way in ways)
    hasher = Sha256Hasher(b"replay") if told or build_info().kind == "pure" else None
    zeros = array("q", bytes(8 * len(requests)))
    prepare_seconds = check_seconds = 0.0

    def pools_of(way: Way, uncached: array[int], clock: Clock) -> list[Pool]:
        tells = way.engines > 1 and is_told(way.router)
        below = way.offload
        shared = SharedBlocks(below.store_blocks, Link(below.store_seconds)) if below and below.store_blocks else None
        known = (specs, way, uncached, longest, step_tokens, note, clock, tells, skip, shared)
        return [Pool(*known) for _ in range(way.engines)]

    def make(number: int, recorded: TraceRequest) -> Request:
        nonlocal prepare_seconds
        start = time.perf_counter()
        salt = None if whose is None else whose(number)
        tokens = recorded.token_ids()
        made = Request(f"request {number + 1}", tokens, block_size, hasher=hasher, cache_salt=salt)
        prepare_seconds += time.perf_counter() - start
        return made

    def ended(pools: Sequence[Pool], count: int) -> None:
        nonlocal check_seconds
        if check_every and (count % check_every == 0 or count == len(requests)):
            start = time.perf_counter()
            for pool in pools:
                pool.check()
            check_seconds += time.perf_counter() - start
        advance()

    results: list[PoolResult] = []
    # Requests that overlap wait for each other in each pool, so that no two pools can share a pass.
    if overlap is not None:
        for way in ways:
            uncached, clock, before = zeros[:], Clock(0.0), prepare_seconds + check_seconds
            fleet = pools_of(way, uncached, clock)
            timed, used = serve_timed(fleet, overlap, requests, make, partial(ended, fleet), skip)
            fleet[0].seconds -= prepare_seconds + check_seconds - before
            results.append(result_of(fleet, trace, uncached, skip, timed, used))
        return ReplayResult(tuple(results), prepare_seconds, check_seconds)
    counts = [zeros[:] for _ in ways]
    pools = [pool for way, uncached in zip(ways, counts, strict=True) for pool in pools_of(way, uncached, Clock())]
    for number, recorded in enumerate(requests):
        request = make(number, recorded)
        # Each pool has its own: one that was admitted before would pass for a request that is resumed.
        for pool, own in zip(pools, [request.copy() for _ in pools[1:]] + [request], strict=True):
            pool.clock.now = max(pool.clock.now, recorded.arrival)
            pool.serve(own, number)
        ended(pools, number + 1)
    results += [result_of([pool], trace, uncached, skip) for pool, uncached in zip(pools, counts, strict=True)]
    return ReplayResult(tuple(results), prepare_seconds, check_seconds)


def _require_positive(pool_sizes: Sequence[int], step_tokens: int | None, check_every: int | None) -> None:
    if not pool_sizes:
        raise InvalidArgumentError("pool_sizes: must name at least one number of blocks")
    named = [("pool_sizes", size) for size in pool_sizes] + [("step_tokens", step_tokens), ("check_every", check_every)]
    for name, value in named:
        if value is not None:
            integer(name, value, 1)


__all__ = ["PERCENTILES", "Overlap", "PoolResult", "ReplayResult", "Way", "replay", "replay_ways"]
