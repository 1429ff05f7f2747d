"""Counters for Prometheus, under the names on the dashboards that people have (extra ``metrics``: prometheus-client).

`Metrics` is a fold over the journal of a recorded manager: `manager.record(metrics)` keeps it, and the same facts
folded anew give the same numbers. What can be asked of the manager (usage) is asked when Prometheus does. Register it:
``prometheus_client.REGISTRY.register(metrics)``.

A sample of blocks is followed: how long they live, how long they were idle before their eviction, and the gaps between
uses. A block is in the sample by its number, always or never.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from blockwright import KVCacheManager
from blockwright.arguments import guard as _guard
from blockwright.errors import InvalidArgumentError
from blockwright.observe import Fact
from blockwright.offload.metrics import Pair, TransferStats

BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800)
"""Upper bounds of the times of blocks, in seconds; vLLM's."""

_TIMES = {
    "lifetime": "from being taken to being evicted",
    "idle_before_evict": "from the last use to being evicted",
    "reuse_gap": "between two uses",
}


class Metrics(Collector):
    """Numbers of one manager.

    Attributes:
        totals: counts, by name.
        times: how often a time of blocks fell into each class of `BOUNDS`, and beyond, by name.
        sums: the sum of these times.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        *,
        sample: float = 0.01,
        model_name: str = "",
        engine: str = "0",
        names: str = "vllm",
        transfers: Callable[[], Mapping[Pair, TransferStats]] | None = None,
    ) -> None:
        """Start at zero.

        Args:
            manager: the manager itself, asked for usage.
            sample: share of the blocks whose times are followed, 0.0 to 1.0.
            model_name, engine: labels of every number.
            names: ``"vllm"`` or ``"sglang"``.
            transfers: returns the statistics of an offload worker's transfers.

        Raises:
            InvalidArgumentError: names the argument.
        """
        if not 0.0 <= sample <= 1.0:
            raise InvalidArgumentError(f"sample: must be a share within 0.0..1.0, not {sample!r}")
        if names not in ("vllm", "sglang"):
            raise InvalidArgumentError(f"names: must be 'vllm' or 'sglang', not {names!r}")
        self._manager = manager
        self._threshold = int(sample * 2**32)
        self._labels = {"model_name": model_name, "engine": engine}
        self._is_vllm = names == "vllm"
        self._transfers = transfers
        self._size = manager.managers[0].block_size
        self._taken_at: dict[int, float] = {}
        self._used_at: dict[int, float] = {}
        self.totals: Counter[str] = Counter()
        self.times = {name: [0] * (len(BOUNDS) + 1) for name in _TIMES}
        self.sums = dict.fromkeys(_TIMES, 0.0)

    def __call__(self, fact: Fact) -> None:
        """Fold a fact in. O(blocks of the fact)."""
        totals, kind = self.totals, fact.kind
        if kind == "outside":
            totals["external_queries"] += fact.tokens
            totals["external_hits"] += fact.hit
        elif kind == "preempt":
            totals["preemptions"] += 1
        elif kind == "admit":
            totals["queries"] += fact.queries
            totals["hits"] += fact.hit if fact.queries else 0
            known = min(fact.hit + fact.external, fact.prompt)
            totals["local_cache_hit"] += fact.hit
            totals["external_kv_transfer"] += known - fact.hit
            totals["local_compute"] += fact.prompt - known
        totals["evicted"] += len(fact.evicted)
        if self._threshold:
            self._follow(fact)

    def _follow(self, fact: Fact) -> None:
        """Note the times of the blocks in the sample: evicted first, since the same call takes them anew."""
        at, taken, used = fact.at, self._taken_at, self._used_at
        for block in filter(self._is_followed, fact.evicted):
            if block in taken:
                self._time("lifetime", at - taken.pop(block))
                self._time("idle_before_evict", at - used.pop(block))
        for block in filter(self._is_followed, fact.held):
            if block in used:
                self._time("reuse_gap", at - used[block])
                used[block] = at
        for block in filter(self._is_followed, fact.new):
            taken[block] = used[block] = at

    def _is_followed(self, block: int) -> bool:
        """Return whether a block is in the sample."""
        return block * 2654435761 % 2**32 < self._threshold

    def _time(self, name: str, seconds: float) -> None:
        self.times[name][bisect_left(BOUNDS, seconds)] += 1
        self.sums[name] += seconds

    # ------------------------------------------------------------------ what Prometheus asks

    def collect(self) -> Iterator[Metric]:
        """Yield every number, with its labels; with SGLang's names O(num_blocks)."""
        yield from self._vllm() if self._is_vllm else self._sglang()

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _sources(self, name: str, text: str, values: Mapping[str, float]) -> CounterMetricFamily:
        family = CounterMetricFamily(name, text, labels=[*self._labels, "source"])
        for source, value in values.items():
            family.add_metric([*self._labels.values(), source], value)
        return family

    def _vllm(self) -> Iterator[Metric]:
        totals, manager = self.totals, self._manager
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of the blocks that are held.", manager.usage)
        for name, total, text in (
            ("prefix_cache_queries", "queries", "Tokens looked up."),
            ("prefix_cache_hits", "hits", "Tokens found."),
            ("external_prefix_cache_queries", "external_queries", "Tokens looked up beyond the device."),
            ("external_prefix_cache_hits", "external_hits", "Tokens found there."),
            ("num_preemptions", "preemptions", "Preemptions."),
        ):
            yield self._counter(f"vllm:{name}", text, totals[total])
        sources = ("local_compute", "local_cache_hit", "external_kv_transfer")
        by_source = {source: totals[source] for source in sources}
        yield self._sources("vllm:prompt_tokens_by_source", "Prompt tokens by where they came from.", by_source)
        cached = {"device": totals["local_cache_hit"], "external_unspecified": totals["external_kv_transfer"]}
        yield self._sources("vllm:prompt_tokens_cached_by_source", "Cached prompt tokens by tier.", cached)
        info = {**self._labels, "block_size": str(self._size), "num_gpu_blocks": str(manager.block_pool.num_blocks)}
        family = GaugeMetricFamily("vllm:cache_config_info", "The cache's configuration.", labels=list(info))
        family.add_metric(list(info.values()), 1)
        yield family
        for name, text in _TIMES.items():
            yield self._histogram(name, text)
        for (source, target), stats in self._transfers().items() if self._transfers else ():
            way = "store" if source == "GPU" else "load" if target == "GPU" else ""
            if way:
                yield self._counter(f"vllm:kv_offload_{way}_bytes", "Bytes moved.", stats.bytes)
                yield self._counter(f"vllm:kv_offload_{way}_time", "Seconds of transfers.", stats.seconds)

    def _histogram(self, name: str, text: str) -> HistogramMetricFamily:
        family = HistogramMetricFamily(
            f"vllm:kv_block_{name}_seconds", f"Time of sampled blocks {text}.", labels=list(self._labels)
        )
        count, buckets = 0, []
        for bound, number in zip((*map(float, BOUNDS), float("inf")), self.times[name], strict=True):
            count += number
            buckets.append(("+Inf" if bound == float("inf") else str(bound), count))
        family.add_metric(list(self._labels.values()), buckets, self.sums[name])
        return family

    def _sglang(self) -> Iterator[Metric]:
        totals, pool, size = self.totals, self._manager.block_pool, self._size
        free = pool.free_block_ids()
        evictable = sum(map(pool.is_published, free))
        used = pool.num_blocks - 1 - len(free)
        rate = totals["hits"] / totals["queries"] if totals["queries"] else 0.0
        yield self._gauge("sglang:token_usage", "Share of the tokens that are held.", self._manager.usage)
        yield self._gauge("sglang:cache_hit_rate", "Share of looked up tokens that were found.", rate)
        yield self._gauge("sglang:kv_used_tokens", "Tokens that are held.", used * size)
        yield self._gauge("sglang:kv_evictable_tokens", "Tokens that are kept and can be evicted.", evictable * size)
        yield self._gauge("sglang:kv_available_tokens", "Tokens that are free.", (len(free) - evictable) * size)
        yield self._counter("sglang:cached_tokens", "Prompt tokens from the cache.", totals["local_cache_hit"])
        yield self._counter("sglang:evicted_tokens", "Tokens evicted.", totals["evicted"] * size)


__all__ = ["BOUNDS", "Metrics"]

_guard(globals(), __all__)
