"""Replay a trace through the real manager, and count the savings of the prefix cache.

Requests are served one after another, through the calls an engine makes: look up the cached prefix, allocate slots for
the rest (adopting the hit), and release once the prompt is computed. Output tokens are not replayed. Several pool sizes
are replayed in one pass: a request's tokens are built and hashed once and then served by each pool.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from blockwright import KVCacheConfig, KVCacheGroupSpec, KVCacheManager, Request, Sha256Hasher, build_info
from blockwright.arguments import integer
from blockwright.errors import InvalidArgumentError
from blockwright.kinds import KVCacheSpec, MambaSpec
from blockwright.observe import Fact
from blockwright.policies import Lru, chooser
from blockwright.replay.foresight import references_of
from blockwright.replay.keeping import Keeping
from blockwright.replay.offloaded import HostTier, OffloadOptions, TierResult
from blockwright.replay.records import Trace

PERCENTILES: Final = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class PoolResult:
    """The result of a trace on one pool.

    Attributes:
        blocks: usable blocks of the pool; the null block comes on top.
        hit_rate: share of the trace's block references that were hits, partial last blocks counting as references.
            A hit skips computing all blocks before its end, so those that no later token reads count as hits too.
        token_hit_rate: share of its prompt tokens that were hits.
        hit_blocks: the hits.
        evictions: cached blocks that were taken for other content.
        refused: requests that did not fit into the empty pool, and were skipped.
        mean_used, peak_used: blocks held by the request being served, at its end and at most.
        checks: self-checks passed.
        seconds: time within the manager's calls.
        uncached: tokens that were not cached, of the request at the 50th, 90th, 95th and 99th percentile of all.
        uncached_continuing: the same of requests that go on from an earlier one.
        tenants: per tenant, the share of its own block references that were hits.
        offload: the result of a host tier, or None; the hits above then include the host's.
    """

    blocks: int
    hit_rate: float
    token_hit_rate: float
    hit_blocks: int
    evictions: int
    refused: int
    mean_used: float
    peak_used: int
    checks: int
    seconds: float
    uncached: tuple[int, ...] = ()
    uncached_continuing: tuple[int, ...] = ()
    tenants: dict[str, float] = field(default_factory=dict)
    offload: TierResult | None = None


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Hold the results of one pass: a result per pool in the order asked for, and the time spent on the trace itself.

    `prepare_seconds` is the time to build token ids and to hash blocks, `check_seconds` that of the self-checks.
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
) -> ReplayResult:
    """Serve all requests of `trace` on a pool of each size, for one group of layers of the kind `spec`.

    `step_tokens` bounds the tokens computed per step (default: the whole prompt in one step). Recurrent layers end a
    step at the last block boundary besides, since only a state at a boundary can be found again. With `check_every`,
    every pool checks itself each time after that many requests, and at the end. With `offload`, there is a host tier
    behind each pool. `note` is given the journal of the calls, of one pool without a host tier. `advance` is called
    after each request. `keeping` decides which blocks are kept; without it, the least recently used is evicted first.
    `more` are further groups of layers in the same pool, and `keep_wanted` is the manager's: with recurrent layers,
    steps also end at each request's junction.

    Complexity: O(tokens) to prepare and O(blocks) per pool to serve.

    Raises:
        InvalidArgumentError: a size, step or interval below 1, or no size.
        InvariantError: a self-check failed.
    """
    _require_positive(pool_sizes, step_tokens, check_every)
    longest = trace.max_prompt_tokens
    if note is not None and (len(pool_sizes) > 1 or offload is not None):
        raise InvalidArgumentError("note: the journal is of one pool without a host tier")
    clock = _Clock()
    specs = [spec, *more]
    pools = [
        _Pool(specs, size, longest, step_tokens, offload, note, clock, keeping, keep_wanted) for size in pool_sizes
    ]
    continuing = references_of(trace, spec.block_size).continuing()
    whose = None if keeping is None else keeping.tenant
    # Keys never leave this process, so any collision-resistant hash gives the same result: take the faster one.
    hasher = Sha256Hasher(b"replay") if build_info().kind == "pure" else None
    prepare_seconds = check_seconds = 0.0
    for number, recorded in enumerate(trace.requests, 1):
        start = time.perf_counter()
        salt = None if whose is None else whose(number - 1)
        tokens = recorded.token_ids()
        request = Request(f"request {number}", tokens, spec.block_size, hasher=hasher, cache_salt=salt)
        prepare_seconds += time.perf_counter() - start
        clock.now = max(clock.now, recorded.arrival)
        for pool in pools:
            pool.serve(request)
        if check_every and (number % check_every == 0 or number == len(trace.requests)):
            start = time.perf_counter()
            for pool in pools:
                pool.check()
            check_seconds += time.perf_counter() - start
        advance()
    results = tuple(pool.result(trace, spec.block_size, continuing) for pool in pools)
    return ReplayResult(results, prepare_seconds, check_seconds)


def _require_positive(pool_sizes: Sequence[int], step_tokens: int | None, check_every: int | None) -> None:
    if not pool_sizes:
        raise InvalidArgumentError("pool_sizes: must name at least one number of blocks")
    named = [("pool_sizes", size) for size in pool_sizes] + [("step_tokens", step_tokens), ("check_every", check_every)]
    for name, value in named:
        if value is not None:
            integer(name, value, 1)


def _percentiles(counts: Sequence[int]) -> tuple[int, ...]:
    """Return the counts at the 50th, 90th, 95th and 99th percentile: that many in a hundred are no larger."""
    ranked = sorted(counts)
    return tuple(ranked[-(-each * len(ranked) // 100) - 1] for each in PERCENTILES) if ranked else ()


class _Clock:
    """The time of a replay: a request begins when it arrives, or when the one before ends; tokens take a time each."""

    TOKEN_SECONDS = 1e-5

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class _Pool:
    """One pool serving the trace: its manager, and the counts so far."""

    def __init__(
        self,
        specs: Sequence[KVCacheSpec],
        num_blocks: int,
        max_model_len: int,
        step_tokens: int | None,
        offload: OffloadOptions | None,
        note: Callable[[Fact], object] | None,
        clock: _Clock,
        keeping: Keeping | None,
        keep_wanted: bool | None,
    ) -> None:
        groups = [KVCacheGroupSpec([f"layers.{at}"], spec) for at, spec in enumerate(specs)]
        config = KVCacheConfig(num_blocks=num_blocks + 1, kv_cache_groups=groups)
        spec = specs[0]
        on_evict = offload is not None and offload.store_on == "evict"
        kept = keeping or Keeping("lru", Lru)
        policy: Any = kept.make()
        self._ending = getattr(policy, "ending", None)
        self._manager = KVCacheManager(
            config,
            max_model_len,
            track_evictions=on_evict,
            shares={name: int(part * num_blocks) for name, part in kept.shares} or None,
            hint_guard=kept.guard,
            eviction_policy=chooser(policy),
            keep_wanted=keep_wanted,
            raise_never_fits=False,
        )
        self._uncached = array("q")
        self._by_tenant: dict[str, list[int]] = {}
        if note is not None:
            self._manager.record(note, clock)
        self._clock = clock
        self._host = None if offload is None else HostTier(self._manager, spec.block_size, offload)
        self._num_blocks = num_blocks
        self._step_tokens = step_tokens or max_model_len
        self._boundary = spec.block_size if any(isinstance(each, MambaSpec) for each in specs) else 1
        self._hit_tokens = self._hit_blocks = self._host_tokens = self._refused = self._checks = 0
        self._served = self._sum_used = self._peak_used = 0
        self._seconds = 0.0
        self._block_size = spec.block_size

    def serve(self, request: Request) -> None:
        """Compute the whole prompt, in steps, and release it; count it as refused where it does not fit."""
        start = time.perf_counter()
        manager, host = self._manager, self._host
        request.num_computed_tokens = 0
        num_external = host.load(request) if host else 0
        num_hit = request.num_computed_tokens
        if num_external:
            end = self._step_end(num_hit, request.num_tokens)
            new = manager.allocate_slots(request, end - num_hit)
        else:
            hit, num_hit = manager.get_computed_blocks(request)
            end = self._step_end(num_hit, request.num_tokens, request.junction)
            new = manager.allocate_slots(request, end - num_hit, num_hit, hit)
        used = self._used()
        while new is not None and end < request.num_tokens:
            self._compute(request, end)
            end = self._step_end(end, request.num_tokens, request.junction)
            new = manager.allocate_slots(request, end - request.num_computed_tokens)
            used = max(used, self._used())
        if new is not None:
            self._compute(request, end)
        if new is None:
            self._refused += 1
        else:
            self._served += 1
            self._hit_tokens += num_hit
            self._hit_blocks += num_hit // self._block_size
            self._host_tokens += num_external
            self._sum_used += self._used()
            self._peak_used = max(self._peak_used, used)
            if self._ending is not None:
                self._ending(self._manager, request, num_hit, self._clock.now)
        self._uncached.append(request.num_tokens - (0 if new is None else num_hit))
        if request.cache_salt is not None:
            counts = self._by_tenant.setdefault(request.cache_salt, [0, 0])
            counts[0] += 0 if new is None else num_hit // self._block_size
            counts[1] += -(-request.num_tokens // self._block_size)
        manager.free(request)
        if host:
            host.end(request)
        self._seconds += time.perf_counter() - start

    def _compute(self, request: Request, end: int) -> None:
        if self._host:
            self._host.step(request, end)
        self._clock.now += (end - request.num_computed_tokens) * _Clock.TOKEN_SECONDS
        request.num_computed_tokens = end

    def _step_end(self, begin: int, num_tokens: int, junction: int = 0) -> int:
        """Return where the step from `begin` ends: at most at the end of the prompt, or where a state is wanted."""
        end = min(begin + self._step_tokens, num_tokens)
        if self._boundary > 1 and begin < junction < end:
            end = junction
        aligned = end // self._boundary * self._boundary
        return aligned if aligned > begin else end

    def _used(self) -> int:
        return self._num_blocks - self._manager.block_pool.get_num_free_blocks()

    def check(self) -> None:
        """Have the manager, and the host tier behind it, recompute all their invariants."""
        if self._host:
            self._host.check()
        else:
            self._manager.check()
        self._checks += 1

    def result(self, trace: Trace, block_size: int, continuing: Sequence[bool]) -> PoolResult:
        """Return the counts."""
        host, references = self._host, trace.num_references(block_size)
        return PoolResult(
            blocks=self._num_blocks,
            hit_rate=self._hit_blocks / references,
            token_hit_rate=self._hit_tokens / trace.num_tokens,
            hit_blocks=self._hit_blocks,
            evictions=self._manager.block_pool.num_evictions,
            refused=self._refused,
            mean_used=self._sum_used / self._served if self._served else 0.0,
            peak_used=self._peak_used,
            checks=self._checks,
            seconds=self._seconds,
            uncached=_percentiles(self._uncached),
            uncached_continuing=_percentiles(
                [each for each, goes in zip(self._uncached, continuing, strict=True) if goes]
            ),
            tenants={name: hits / asked for name, (hits, asked) in sorted(self._by_tenant.items())},
            offload=host.result(self._hit_blocks, self._host_tokens // block_size, references) if host else None,
        )
