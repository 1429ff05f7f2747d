"""Property: every number shown to Prometheus is what the journal tells, and what the manager itself counts (MET-1).

How: a random history of a recorded manager; each total is recomputed from the facts in another way, and compared with
the manager's own statistics; times of blocks are recomputed with every block in the sample. The text that Prometheus
reads is parsed back, and the dashboard asks for no name that is not in it.
Not covered: how the dashboard looks; the cost (docs/how-to/observe.md has what was measured).
"""

import itertools
import json
from pathlib import Path
from random import Random

import pytest

prometheus_client = pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families
from tests.observe.engine import SIZE, full

from blockwright import KVCacheConfig, KVCacheGroupSpec, KVCacheManager, Request
from blockwright.errors import InvalidArgumentError
from blockwright.observe import Fact
from blockwright.observe.metrics import BOUNDS, Metrics
from blockwright.offload.metrics import TransferStats


def history(seed: int, sample: float = 1.0) -> tuple[KVCacheManager, Metrics, list[Fact]]:
    """Requests that are looked up, admitted, grown alone and in batches, forked, preempted and freed."""
    config = KVCacheConfig(num_blocks=30, kv_cache_groups=[KVCacheGroupSpec(["layer"], full())])
    manager = KVCacheManager(config, max_model_len=256, log_stats=True, track_evictions=True)
    metrics, facts, clock = Metrics(manager, sample=sample, model_name="m"), list[Fact](), itertools.count()

    def note(fact: Fact) -> None:
        metrics(fact)
        facts.append(fact)

    recorded = manager.record(note, lambda: next(clock) / 50)
    random, running = Random(seed), list[Request]()
    for number in range(300):
        prompt = [random.randrange(2)] * random.randrange(1, 20) + [random.randrange(9)] * random.randrange(1, 9)
        request = Request(f"r{number}", prompt, SIZE)
        hit, length = recorded.get_computed_blocks(request)
        if random.random() < 0.2:
            recorded.found_outside(request, request.num_tokens - length, 0)
        if recorded.allocate_slots(request, request.num_tokens - length, length, hit) is not None:
            request.num_computed_tokens = request.num_tokens
            running.append(request)
        for each in running:
            each.append_output_token_ids([1])
        batch = recorded.allocate_slots_batch(running, 1)
        for each in running[: batch.num_served]:
            each.num_computed_tokens += 1
        while running and (random.random() < 0.4 or batch.refused is not None):
            gone = running.pop(random.randrange(len(running)))
            (recorded.preempt if random.random() < 0.5 else recorded.free)(gone)
            if not running or (batch.refused is not None and random.random() < 0.9):
                break
        for each in [each for each in running if each.num_computed_tokens < each.num_tokens]:
            running.remove(each)
            recorded.free(each)
        if not running and random.random() < 0.2:
            assert recorded.reset_prefix_cache()
        manager.check()
    return manager, metrics, facts


@pytest.mark.parametrize("seed", range(3))
def test_totals_are_what_happened(seed: int) -> None:
    manager, metrics, facts = history(seed)
    totals = metrics.totals

    def of(kind: str) -> list[Fact]:
        return [fact for fact in facts if fact.kind == kind]

    stats = manager.make_prefix_cache_stats()
    assert stats is not None
    assert (totals["queries"], totals["hits"]) == (stats.queries, stats.hits)
    assert totals["local_cache_hit"] == SIZE * sum(len(fact.held) for fact in of("admit"))
    sources = ("local_compute", "local_cache_hit", "external_kv_transfer")
    assert sum(totals[source] for source in sources) == sum(fact.prompt for fact in of("admit"))
    assert totals["preemptions"] == len(of("preempt")) > 0
    assert totals["external_queries"] == sum(fact.tokens for fact in of("outside")) > 0
    assert 0 < totals["evicted"] <= manager.block_pool.num_evictions
    assert facts[-1].free == manager.block_pool.get_num_free_blocks()
    again = Metrics(manager, sample=1.0, model_name="m")
    for fact in facts:
        again(fact)
    assert (again.totals, again.times, again.sums) == (totals, metrics.times, metrics.sums)


def test_times_of_blocks_are_what_happened() -> None:
    """Recomputed for each block from all that names it."""
    _, metrics, facts = history(1)
    wanted: dict[str, list[float]] = {"lifetime": [], "idle_before_evict": [], "reuse_gap": []}
    for block in range(1, 30):
        names = [
            (fact.at, what) for fact in facts for what in ("evicted", "held", "new") if block in getattr(fact, what)
        ]
        for (at, what), (later, then) in itertools.pairwise(names):
            if what != "evicted" and then in ("held", "evicted"):
                wanted["reuse_gap" if then == "held" else "idle_before_evict"].append(later - at)
        taken = None
        for at, what in names:
            if what == "evicted" and taken is not None:
                wanted["lifetime"].append(at - taken)
            taken = at if what == "new" else None if what == "evicted" else taken
    for name, times in wanted.items():
        assert metrics.sums[name] == pytest.approx(sum(times))
        assert sum(metrics.times[name]) == len(times) > 0
        assert metrics.times[name][0] == sum(time <= BOUNDS[0] for time in times)


def test_prometheus_reads_them_under_the_names_of_dashboards() -> None:
    manager, metrics, _ = history(2)
    moved = {("GPU", "CPU"): TransferStats(started=2, finished=2, bytes=64, seconds=0.5)}
    metrics._transfers = lambda: moved
    registry = prometheus_client.CollectorRegistry()
    registry.register(metrics)
    text = prometheus_client.generate_latest(registry).decode()
    samples = {
        (sample.name, sample.labels.get("source")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "le" not in sample.labels
    }
    assert samples["vllm:kv_cache_usage_perc", None] == pytest.approx(manager.usage)
    assert samples["vllm:prefix_cache_hits_total", None] == metrics.totals["hits"]
    assert samples["vllm:prompt_tokens_by_source_total", "local_compute"] == metrics.totals["local_compute"]
    assert samples["vllm:prompt_tokens_cached_by_source_total", "device"] == metrics.totals["local_cache_hit"]
    assert samples["vllm:kv_block_lifetime_seconds_count", None] == sum(metrics.times["lifetime"])
    assert (samples["vllm:kv_offload_store_bytes_total", None], samples["vllm:kv_offload_store_time_total", None]) == (
        64, 0.5,
    )  # fmt: skip
    assert 'vllm:cache_config_info{block_size="4",engine="0",model_name="m",num_gpu_blocks="30"} 1.0' in text
    board = json.loads((Path(__file__).parents[2] / "docs/grafana.json").read_text())
    shown = " ".join(target["expr"] for panel in board["panels"] for target in panel["targets"])
    names = {word for word in shown.replace("(", " ").replace("[", " ").replace("{", " ").split() if ":" in word}
    names = {name for name in names if name.startswith("vllm:")}
    assert len(names) > 6
    assert names <= {name for name, _ in samples} | {"vllm:kv_block_lifetime_seconds_bucket"} | {
        f"vllm:kv_block_{name}_seconds_bucket" for name in ("idle_before_evict", "reuse_gap")
    }


def test_sglang_names() -> None:
    manager, metrics, _ = history(2)
    metrics._is_vllm = False
    values = {family.name: family.samples[0].value for family in metrics.collect()}
    tokens = [values[f"sglang:kv_{what}_tokens"] for what in ("used", "evictable", "available")]
    assert sum(tokens) == SIZE * (manager.block_pool.num_blocks - 1)
    assert values["sglang:token_usage"] == manager.usage
    assert values["sglang:cached_tokens"] == metrics.totals["local_cache_hit"]


def test_evictions_that_nobody_asks_for_are_bounded() -> None:
    config = KVCacheConfig(num_blocks=30, kv_cache_groups=[KVCacheGroupSpec(["layer"], full())])
    facts: list[Fact] = []
    recorded = KVCacheManager(config, max_model_len=256, track_evictions=True).record(facts.append)
    for number in range(200):
        request = Request(f"r{number}", [number] * 40, SIZE)
        assert recorded.allocate_slots(request, 40) is not None
        recorded.free(request)
    evicted = [block for fact in facts for block in fact.evicted]
    assert [each.block_id for each in recorded.take_evictions()] == evicted[-1024:]
    assert len(evicted) > 1024
    assert recorded.take_evictions() == []


def test_nothing_is_followed_where_the_sample_is_empty_and_wrong_arguments_are_refused() -> None:
    manager, metrics, _ = history(0, sample=0.0)
    assert metrics.times["lifetime"] == [0] * (len(BOUNDS) + 1)
    with pytest.raises(InvalidArgumentError, match="sample"):
        Metrics(manager, sample=2.0)
    with pytest.raises(InvalidArgumentError, match="names"):
        Metrics(manager, names="other")
