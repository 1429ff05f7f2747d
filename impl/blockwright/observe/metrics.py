"""Counters for Prometheus, under the names on the dashboards that people have (extra ``metrics``: prometheus-client).

`Metrics` reads the journal of a manager: its totals, which miss nothing however seldom Prometheus asks, and its facts
for the times of blocks. What can be asked of the manager (usage) is asked when Prometheus does. One call sets it up::

    Metrics(manager, connector=connector, registry=prometheus_client.REGISTRY)

A sample of blocks is followed: how long they live, how long they were idle before their eviction, and the gaps between
uses. A block is in the sample by its number, always or never.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from blockwright import KVCacheManager
from blockwright.arguments import guard as _guard
from blockwright.errors import InvalidArgumentError, JournalGapError
from blockwright.observe import Fact
from blockwright.offload import OffloadingConnector, OffloadingWorker
from blockwright.offload.metrics import LATENCY_BOUNDS, Pair, TransferStats
from blockwright.offload.worker import PairStats

BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800)
"""Upper bounds of the times of blocks, in seconds; vLLM's."""

_TIMES = {
    "lifetime": "from being taken to being evicted",
    "idle_before_evict": "from the last use to being evicted",
    "reuse_gap": "between two uses",
}


_MOVED = {
    "finished": "Transfers that arrived whole.",
    "failures": "Transfers that were refused, failed, or were given up.",
    "bytes": "Bytes that arrived.",
    "seconds": "Seconds of moving, without the wait.",
    "wait_seconds": "Seconds in the queue.",
}


class Metrics(Collector):
    """Numbers of one manager.

    Attributes:
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
        transfers: Callable[[], Mapping[Pair, TransferStats | PairStats]] | None = None,
        connector: OffloadingConnector | None = None,
        worker: OffloadingWorker | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        """Start the manager's journal, unless it has one, and register.

        Args:
            manager: the usage is read from it, and all counts from its journal, so that they begin where that does.
            sample: share of the blocks whose times are followed, 0.0 to 1.0.
            model_name, engine: labels of every number.
            names: ``"vllm"`` or ``"sglang"``.
            transfers: returns the statistics of transfers, by their pair of media.
            connector: take the transfers from this connector instead. Its lookups are in the manager's journal anyway.
            worker: take the transfers from this worker instead.
            registry: register there, for example with ``prometheus_client.REGISTRY``; None to register later.

        Raises:
            InvalidArgumentError: names the argument.
        """
        if not 0.0 <= sample <= 1.0:
            raise InvalidArgumentError(f"sample: must be a share within 0.0..1.0, not {sample!r}")
        if names not in ("vllm", "sglang"):
            raise InvalidArgumentError(f"names: must be 'vllm' or 'sglang', not {names!r}")
        if sum(each is not None for each in (transfers, connector, worker)) > 1:
            raise InvalidArgumentError("transfers: pass only one of transfers, connector and worker")
        self._manager = manager
        self._journal = manager.start_journal()
        self._reader = self._journal.reader()
        self._threshold = int(sample * 2**32)
        self._labels = {"model_name": model_name, "engine": engine}
        self._is_vllm = names == "vllm"
        self._transfers = transfers
        if connector is not None:
            self._transfers = connector.transfer_stats
        elif worker is not None:
            self._transfers = worker.stats
        self._sizes = [each.block_size for each in manager.managers]
        # The group by which tokens are counted: another may hold a part of them.
        self._group = next((at for at, each in enumerate(manager.managers) if each.keeps_all), 0)
        self._taken_at: dict[int, float] = {}
        self._used_at: dict[int, float] = {}
        self.times = {name: [0] * (len(BOUNDS) + 1) for name in _TIMES}
        self.sums = dict.fromkeys(_TIMES, 0.0)
        if registry is not None:
            registry.register(self)

    def __call__(self, fact: Fact) -> None:
        """Read the journal now. ``manager.record(metrics)`` calls this at each fact, so that scrapes miss no times."""
        self._follow()

    @property
    def totals(self) -> dict[str, int]:
        """What the journal has counted up to now, by name."""
        return self._journal.totals()

    def _follow(self) -> None:
        """Note the times of the blocks in the sample. O(facts since the last call)."""
        if not self._threshold:
            return
        taken, used = self._taken_at, self._used_at
        try:
            moments = self._reader.read_blocks(self._threshold)
        except JournalGapError:  # whatever was taken before may have been taken again
            taken.clear()
            used.clear()
            moments = self._reader.read_blocks(self._threshold)
        for at, what, block in moments:
            if what == "new":
                taken[block] = used[block] = at
            elif what == "evicted" and block in taken:
                self._time("lifetime", at - taken.pop(block))
                self._time("idle_before_evict", at - used.pop(block))
            elif what == "held" and block in used:
                self._time("reuse_gap", at - used[block])
                used[block] = at

    def _time(self, name: str, seconds: float) -> None:
        self.times[name][bisect_left(BOUNDS, seconds)] += 1
        self.sums[name] += seconds

    # ------------------------------------------------------------------ what Prometheus asks

    def collect(self) -> Iterator[Metric]:
        """Yield every number, with its labels; with SGLang's names O(num_blocks)."""
        self._follow()
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
        names = ("local_compute", "local_cache_hit", "external_kv_transfer")
        again = {source: totals[f"resumed_{source}"] for source in names}
        text = "Known tokens of requests that were admitted again, after a preemption or a failed load."
        yield self._sources("blockwright:resumed_tokens", text, again)
        yield self._config()
        for name, text in _TIMES.items():
            about = f"Time of sampled blocks {text}."
            yield self._histogram(f"vllm:kv_block_{name}_seconds", about, BOUNDS, self.times[name], self.sums[name])
        yield from self._offload()

    def _config(self) -> GaugeMetricFamily:
        """Return the configuration, once for each group of layers if there are several."""
        blocks = str(self._manager.block_pool.num_blocks)
        rows = [{**self._labels, "block_size": str(size), "num_gpu_blocks": blocks} for size in self._sizes]
        if len(rows) > 1:
            rows = [row | {"group": str(at)} for at, row in enumerate(rows)]
        family = GaugeMetricFamily("vllm:cache_config_info", "The cache's configuration.", labels=list((*rows, {})[0]))
        for row in rows:
            family.add_metric(list(row.values()), 1)
        return family

    def _offload(self) -> Iterator[Metric]:
        """Yield the transfers from and to the device, of all tiers together: one family for each name."""
        ways: dict[str, list[TransferStats]] = {"store": [], "load": []}
        pairs = dict(self._transfers()) if self._transfers else {}
        yield from self._by_pair(pairs)
        for (source, target), counted in pairs.items():
            stats = counted.transfers if isinstance(counted, PairStats) else counted
            if stats is not None and "GPU" in (source, target):
                ways["store" if source == "GPU" else "load"].append(stats)
        for way, found in ways.items():
            if found:
                moved, seconds = sum(each.bytes for each in found), sum(each.seconds for each in found)
                yield self._counter(f"vllm:kv_offload_{way}_bytes", "Bytes moved.", moved)
                yield self._counter(f"vllm:kv_offload_{way}_time", "Seconds of moving, without the wait.", seconds)
                name, text = f"blockwright:kv_offload_{way}_wait_seconds", "Time of transfers in the queue."
                waits = [sum(numbers) for numbers in zip(*[each.waits for each in found], strict=True)]
                yield self._histogram(name, text, LATENCY_BOUNDS, waits, sum(each.wait_seconds for each in found))

    def _by_pair(self, pairs: Mapping[Pair, TransferStats | PairStats]) -> Iterator[Metric]:
        """Yield what was moved between each two media; the disk and the stores that engines share are media, too."""
        labels = [*self._labels, "source", "target"]
        for name, text in _MOVED.items():
            family = CounterMetricFamily(f"blockwright:kv_transfer_{name}", text, labels=labels)
            for pair, counted in pairs.items():
                stats = counted.transfers if isinstance(counted, PairStats) else counted
                moved = {} if stats is None else stats._asdict()
                if isinstance(counted, PairStats):
                    moved |= {"finished": counted.succeeded, "failures": counted.failed + counted.refused}
                elif stats is not None:
                    moved["failures"] = stats.failed + stats.timed_out + stats.cancelled + stats.refused
                if name in moved:
                    family.add_metric([*self._labels.values(), *pair], moved[name])
            yield family

    def _histogram(
        self, name: str, text: str, bounds: Sequence[float], numbers: Sequence[int], total: float
    ) -> HistogramMetricFamily:
        family = HistogramMetricFamily(name, text, labels=list(self._labels))
        count, buckets = 0, []
        for bound, number in zip((*map(float, bounds), float("inf")), numbers, strict=True):
            count += number
            buckets.append(("+Inf" if bound == float("inf") else str(bound), count))
        family.add_metric(list(self._labels.values()), buckets, total)
        return family

    def _held_tokens(self) -> int:
        """Return the slots of blocks that requests hold, in the group by which tokens are counted. O(blocks held)."""
        manager, held = self._manager, set[int]()
        for name in manager.request_ids():
            held.update(manager.get_block_ids(name)[self._group])
        return len(held - {0}) * self._sizes[self._group]

    def _sglang(self) -> Iterator[Metric]:
        totals, pool, sizes = self.totals, self._manager.block_pool, self._sizes
        size = sizes[self._group] if sizes else 0
        free = pool.free_block_ids()
        bare = len(free) - sum(map(pool.is_published, free))
        if len(sizes) == 1:
            used, evictable, available = pool.num_blocks - 1 - len(free), len(free) - bare, bare * size
        else:  # a token takes a slot in each group
            used = self._held_tokens() // size if size else 0
            evictable = sum(pool.block_group(block) == self._group for block in free)
            available = int(bare / sum(1 / each for each in sizes)) if sizes else 0
        rate = totals["hits"] / totals["queries"] if totals["queries"] else 0.0
        yield self._gauge("sglang:token_usage", "Share of the blocks that are held.", self._manager.usage)
        yield self._gauge("sglang:cache_hit_rate", "Share of looked up tokens that were found.", rate)
        yield self._gauge("sglang:kv_used_tokens", "Tokens that are held.", used * size)
        yield self._gauge("sglang:kv_evictable_tokens", "Tokens that are kept and can be evicted.", evictable * size)
        yield self._gauge("sglang:kv_available_tokens", "Tokens that are free.", available)
        yield self._counter("sglang:cached_tokens", "Prompt tokens from the cache.", totals["local_cache_hit"])
        yield self._counter("sglang:evicted_tokens", "Tokens evicted.", totals["evicted"])


def wsgi_app(registry: CollectorRegistry) -> Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]:
    """Return a WSGI application that serves a registry in Prometheus' text format, with the names as they are.

    prometheus-client's own application (0.23 to 0.26) writes an underscore for each colon of a name where it is asked
    for OpenMetrics, as Prometheus 2 does; then no dashboard finds ``vllm:prefix_cache_hits_total``.
    """
    app = make_wsgi_app(registry)
    return lambda environ, start: app({**environ, "HTTP_ACCEPT": "text/plain"}, start)


__all__ = ["BOUNDS", "Metrics", "wsgi_app"]

_guard(globals(), __all__)
