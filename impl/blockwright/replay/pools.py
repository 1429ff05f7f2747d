"""A pool that serves requests of a trace by the calls an engine makes, and counts what it had cached."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from blockwright import KVCacheConfig, KVCacheGroupSpec, KVCacheManager, Request
from blockwright.kinds import KVCacheSpec
from blockwright.observe import Fact
from blockwright.policies import chooser
from blockwright.replay.keeping import Keeping
from blockwright.replay.offloaded import HostTier, OffloadOptions, SharedBlocks, TierResult, tier_result
from blockwright.replay.records import Trace

PERCENTILES: Final = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class TimedResult:
    """What requests that overlap waited for; times in seconds of the replay's clock.

    Attributes:
        seconds: from the first arrival to the last end.
        queued: from a request's arrival to its first admission, at the percentiles of `PERCENTILES`.
        first_token: from a request's arrival to its first output token, at the same percentiles.
        preemptions: requests that gave up their blocks to others, to go on later.
        recomputed: tokens that were computed once more after that.
        mean_running: requests that ran at the same time, over time.
        output_tokens: tokens of answers that were generated.
        latency: from a request's arrival to its end, at the same percentiles of those that were served.
        goodput: requests per second that were served within the limits of `Overlap`, or at all if it has none.
        per_token: from a token of an answer to the next, on the average of each answer, at the same percentiles.
    """

    seconds: float
    queued: tuple[float, ...]
    first_token: tuple[float, ...]
    preemptions: int
    recomputed: int
    mean_running: float
    output_tokens: int
    latency: tuple[float, ...]
    goodput: float
    per_token: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolResult:
    """The result of a trace on one pool, or on several engines with a pool each, whose counts are added.

    Attributes:
        blocks: usable blocks of the pool; the null block comes on top.
        hit_rate: share of the trace's block references that were hits, partial last blocks counting as references.
            A hit skips computing all blocks before its end, so those that no later token reads count as hits too.
        token_hit_rate: share of its prompt tokens that were hits.
        hit_blocks: the hits.
        evictions: cached blocks that were taken for other content.
        refused: requests that did not fit into the empty pool, and were skipped or, with their answer, cut short.
        mean_used, peak_used: blocks held by the request being served, at its end and at most; of requests that overlap,
            by all that run on an engine, over time and at most.
        checks: self-checks passed.
        seconds: time within the manager's calls.
        uncached: tokens that were not cached, of the request at the 50th, 90th, 95th and 99th percentile of all.
        tenants: per tenant, the share of its own block references that were hits.
        offload: the result of a host tier, or None; the hits above then include the host's.
        policy: the policy or hints that decided what to keep.
        timed: what only requests that overlap have, or None.
        engines, router: how many engines there are, and what chooses one for each request.
        prefill: how many of the engines compute prompts alone.
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
    tenants: dict[str, float] = field(default_factory=dict)
    offload: TierResult | None = None
    policy: str = "lru"
    timed: TimedResult | None = None
    engines: int = 1
    router: str = "round"
    prefill: int = 0


@dataclass(frozen=True, slots=True)
class Way:
    """One of the ways in which a trace is served side by side.

    Attributes:
        blocks: usable blocks of each engine. keeping, keep_wanted: what is kept. offload: the host tier of each.
        engines, router: how many engines there are, and the name of what chooses among them.
        prefill: how many of them compute prompts alone, and hand them over to those that decode. The router is then
            before these, and a prompt goes on to the engine with the fewest requests.
    """

    blocks: int
    keeping: Keeping
    keep_wanted: bool | None = None
    offload: OffloadOptions | None = None
    engines: int = 1
    router: str = "round"
    prefill: int = 0

    @property
    def policy(self) -> str:
        rule = "" if self.keep_wanted is None else ", keep wanted" if self.keep_wanted else ", keep age"
        return self.keeping.name + rule


def percentiles(counts: Sequence[float]) -> tuple[Any, ...]:
    """Return the counts at the 50th, 90th, 95th and 99th percentile: that many in a hundred are no larger."""
    ranked = sorted(counts)
    return tuple(ranked[-(-each * len(ranked) // 100) - 1] for each in PERCENTILES) if ranked else ()


def over_seeds(results: Sequence[PoolResult]) -> PoolResult:
    """Return one result of the same way under several seeds: means of what is counted, and the longest times."""
    merged: PoolResult = _merged(results, ("uncached", "queued", "first_token", "latency", "per_token"))
    return replace(merged, refused=max(each.refused for each in results))


def _merged(found: Sequence[Any], longest: Sequence[str]) -> Any:
    one = found[0]
    if isinstance(one, dict):
        return {name: _merged([each.get(name, 0.0) for each in found], longest) for name in one}
    if hasattr(one, "__dataclass_fields__"):
        values = {each: _merged([getattr(result, each) for result in found], longest) for each in one.__slots__}
        for name in set(longest) & set(values):
            values[name] = tuple(map(max, zip(*(getattr(result, name) for result in found), strict=False)))
        return type(one)(**values)
    if isinstance(one, int | float):
        mean = sum(found) / len(found)
        return round(mean) if isinstance(one, int) else mean
    return one


class Clock:
    """The time of a replay: a request begins when it arrives, or when the one before ends; tokens take a time each."""

    def __init__(self, token_seconds: float = 1e-5) -> None:
        self.now = 0.0
        self.token_seconds = token_seconds

    def __call__(self) -> float:
        return self.now


class Pool:
    """One pool serving the trace: its manager, and the counts so far."""

    def __init__(
        self,
        specs: Sequence[KVCacheSpec],
        way: Way,
        uncached: array[int],
        max_model_len: int,
        step_tokens: int | None,
        note: Callable[[Fact], object] | None,
        clock: Clock,
        tells_events: bool = False,
        skip: int = 0,
        shared: SharedBlocks | None = None,
    ) -> None:
        """Take how a trace is served; of each request by its number, `uncached` is given the tokens to compute."""
        groups = [KVCacheGroupSpec([f"layers.{at}"], spec) for at, spec in enumerate(specs)]
        # Users count the blocks that hold something; one more is the null block.
        config = KVCacheConfig(num_blocks=way.blocks + 1, kv_cache_groups=groups)
        kept, offload, block_size = way.keeping, way.offload, specs[0].block_size
        policy: Any = kept.make()
        self._ending = getattr(policy, "ending", None)
        self.manager = KVCacheManager(
            config,
            max_model_len,
            track_evictions=offload is not None and offload.store_on == "evict",
            shares={name: int(part * way.blocks) for name, part in kept.shares} or None,
            hint_guard=kept.guard,
            eviction_order=chooser(policy),
            keep_wanted=way.keep_wanted,
            enable_kv_cache_events=tells_events,
            raise_never_fits=False,
        )
        if note is not None:
            self.manager.record(note, clock)
        self.way = way
        self.clock = clock
        self.block_size = block_size
        self.hosts, self._shared = list[HostTier](), shared
        self.host: HostTier | None = None  # the last of them; those before it were lost
        self._add_host()
        self._step_tokens = step_tokens or max_model_len
        self._boundary = block_size if any(each.is_recurrent for each in specs) else 1
        self.is_plain = len(specs) == 1 and specs[0].reads_all
        # Whether what decoding takes may be taken later: a window's blocks would come free later, and a host stores.
        self.may_wait = self.is_plain and note is None and way.offload is None
        self._uncached, self._skip = uncached, skip
        self.by_tenant: dict[str, list[int]] = {}
        self.hit_tokens = self.hit_blocks = self.host_tokens = self.checks = 0
        self.served = self.sum_used = 0
        self.refused = self.peak_used = 0
        self.seconds = 0.0

    def _add_host(self) -> None:
        if self.way.offload is not None:
            self.host = HostTier(self.manager, self.block_size, self.way.offload, self._shared)
            self.hosts.append(self.host)

    def lose(self) -> None:
        """Forget what is cached, as an engine does that starts again: on its device, host and disk, but in no store."""
        self.manager.reset_prefix_cache()
        self._add_host()

    def serve(self, request: Request, number: int) -> None:
        """Compute the whole prompt, in steps, and release it; count it as refused where it does not fit."""
        start = time.perf_counter()
        num_hit, num_external, end = self.admit(request)
        fits, used = end > 0, self.used()
        while fits and end < request.num_tokens:
            self.compute(request, end)
            end = self.step_end(end, request)
            fits = self.extend(request, end)
            used = max(used, self.used())
        if fits:
            self.compute(request, end)
            self.served += 1
            self.sum_used += self.used()
            self.peak_used = max(self.peak_used, used)
        self.count(request, number, num_hit if fits else 0, num_external if fits else 0)
        self.finish(request, num_hit, fits)
        self.seconds += time.perf_counter() - start

    def admit(self, request: Request, most: int | None = None) -> tuple[int, int, int]:
        """Look a request up and give it slots; return its hit, the tokens of that on the host, and its step's end.

        The end is 0 where there is no room; with `most` tokens in this step, there must be room for all of it, and the
        end is that of the hit while a part of that is still to come.
        """
        manager, host = self.manager, self.host
        request.num_computed_tokens = 0
        num_external = host.load(request, self.clock.now) if host else 0
        num_hit, hit = request.num_computed_tokens, None
        # A load has admitted the request with its hit, so that it is looked up only without one.
        if not num_external:
            hit, num_hit = manager.get_computed_blocks(request)
        # What would be computed behind a load that takes time is computed once it has come.
        if num_external and most is not None and host and host.ready_at > self.clock.now:
            return num_hit, num_external, num_hit
        end = self.step_end(num_hit, request, most)
        if num_external:
            new = manager.allocate_slots(request, end - num_hit)
        else:
            new = manager.allocate_slots(request, end - num_hit, num_hit, hit, full_sequence_must_fit=most is not None)
        return num_hit, num_external, 0 if new is None else end

    def expect(self, request: Request) -> int:
        """Give a request blocks for a prompt that another engine has computed; return its tokens that are to come.

        They are at least one, and 0 where there is no room.
        """
        prompt = request.num_prompt_tokens
        hit, num_hit = self.manager.get_computed_blocks(request, max_tokens=prompt - 1)
        new = self.manager.allocate_slots(
            request, 0, num_hit, hit, num_external_computed_tokens=prompt - num_hit, full_sequence_must_fit=True
        )
        return 0 if new is None else prompt - num_hit

    def extend(self, request: Request, end: int, ahead: int = 0) -> bool:
        new = end - request.num_computed_tokens
        return self.manager.allocate_slots(request, new, num_lookahead_tokens=ahead) is not None

    def compute(self, request: Request, end: int) -> None:
        if self.host:
            self.host.step(request, end, self.clock.now)
        self.clock.now += (end - request.num_computed_tokens) * self.clock.token_seconds
        request.num_computed_tokens = end

    def step_end(self, begin: int, request: Request, most: int | None = None) -> int:
        """Return where the step from `begin` ends: at most at the end of the prompt, or where a state is wanted."""
        end = min(begin + min(self._step_tokens, most or self._step_tokens), request.num_tokens)
        # Where prompts part, a recurrent layer must stop to leave a state that both can begin with.
        if self._boundary > 1 and begin < request.junction < end:
            end = request.junction
        # States are kept at ends of blocks: a step that stops between two leaves none.
        aligned = end // self._boundary * self._boundary
        return aligned if aligned > begin else end

    def count(self, request: Request, number: int, num_hit: int, num_external: int) -> None:
        """Add a prompt to the counts: when it is first served, or with a hit of 0 when it is refused."""
        # The warm-up fills the pool, and is in no rate.
        if number < self._skip:
            return
        self.hit_tokens += num_hit
        self.hit_blocks += num_hit // self.block_size
        self.host_tokens += num_external
        self._uncached[number] = request.num_prompt_tokens - num_hit
        if request.cache_salt is not None:
            counts = self.by_tenant.setdefault(request.cache_salt, [0, 0])
            counts[0] += num_hit // self.block_size
            counts[1] += -(-request.num_prompt_tokens // self.block_size)

    def finish(self, request: Request, num_hit: int, is_served: bool) -> None:
        if not is_served:
            self.refused += 1
        elif self._ending is not None:
            self._ending(self.manager, request, num_hit, self.clock.now)
        self.release(request)

    def release(self, request: Request, preempted: bool = False) -> None:
        self.manager.free(request, preempted=preempted)
        if self.host:
            self.host.end(request)

    def num_free(self) -> int:
        return self.manager.block_pool.get_num_free_blocks()

    def used(self) -> int:
        return self.way.blocks - self.num_free()

    def check(self) -> None:
        if self.host:
            self.host.check()
        else:
            self.manager.check()
        self.checks += 1


def result_of(
    pools: Sequence[Pool],
    trace: Trace,
    uncached: array[int],
    skip: int = 0,
    timed: TimedResult | None = None,
    used: float = 0.0,
) -> PoolResult:
    """Return the result of the pools of one way, which served the trace together."""
    way, size = pools[0].way, pools[0].block_size
    references, served = trace.num_references(size, skip), sum(pool.served for pool in pools)
    hits, host_hits = sum(pool.hit_blocks for pool in pools), sum(pool.host_tokens for pool in pools) // size
    # Engines serve the same tenants: their counts are added before they are divided.
    by_tenant: dict[str, list[int]] = {}
    for pool in pools:
        for name, counts in pool.by_tenant.items():
            by_tenant[name] = [sum(both) for both in zip(counts, by_tenant.get(name, (0, 0)), strict=True)]
    return PoolResult(
        blocks=way.blocks,
        hit_rate=hits / references,
        token_hit_rate=sum(pool.hit_tokens for pool in pools) / trace.tokens_from(skip),
        hit_blocks=hits,
        evictions=sum(pool.manager.block_pool.num_evictions for pool in pools),
        refused=sum(pool.refused for pool in pools),
        mean_used=used if timed else sum(pool.sum_used for pool in pools) / served if served else 0.0,
        peak_used=max(pool.peak_used for pool in pools),
        checks=sum(pool.checks for pool in pools),
        seconds=sum(pool.seconds for pool in pools),
        uncached=percentiles(uncached[skip:]),
        tenants={name: hits / asked for name, (hits, asked) in sorted(by_tenant.items())},
        offload=tier_result([host for pool in pools for host in pool.hosts], hits, host_hits, references),
        policy=way.policy,
        timed=timed,
        engines=way.engines,
        router=way.router,
        prefill=way.prefill,
    )
