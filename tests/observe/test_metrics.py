"""Property: every number shown to Prometheus is what the journal tells, and what the manager itself counts (MET-1).

How: a random history of a manager with a journal; each total is recomputed from the facts in another way, and compared
with the manager's own statistics; times of blocks are recomputed with every block in the sample. The text that
Prometheus reads is parsed back, and the dashboard asks for no name that is not in it. Readers that come too late.
Not covered: that counts are those of the specification (scopes named "counts"); how the dashboard looks; the cost
(docs/how-to/observe.md has what was measured).
"""

import itertools
import json
from pathlib import Path
from random import Random

import pytest

prometheus_client = pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families
from tests.observe.engine import SIZE, full

from blockwright import KVCacheConfig, KVCacheGroupSpec, KVCacheManager, Request, SipHasher
from blockwright.errors import InvalidArgumentError, JournalGapError
from blockwright.observe import Fact
from blockwright.observe.metrics import BOUNDS, Metrics
from blockwright.offload.metrics import TransferStats


def history(seed: int, sample: float = 1.0) -> tuple[KVCacheManager, Metrics, list[Fact]]:
    """Requests that are looked up, admitted, grown alone and in batches, forked, preempted and freed."""
    config = KVCacheConfig(num_blocks=30, kv_cache_groups=[KVCacheGroupSpec(["layer"], full())])
    manager = KVCacheManager(config, max_model_len=256, log_stats=True, track_evictions=True)
    metrics, facts, clock = Metrics(manager, sample=sample, model_name="m"), list[Fact](), itertools.count()
    recorded = manager.record(facts.append, lambda: next(clock) / 50)
    recorded.record(metrics)
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
        if running:
            told = [fact for fact in facts if fact.kind == "batch"][-1]
            free = manager.block_pool.get_num_free_blocks()
            assert (told.tokens, told.step, told.free) == (batch.num_served, batch.num_served, free)
        for each in running[: batch.num_served]:
            each.num_computed_tokens += 1
        while running and (random.random() < 0.4 or batch.refused is not None):
            gone = running.pop(random.randrange(len(running)))
            recorded.free(gone, preempted=random.random() < 0.5)
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
    assert totals["external_queries"] == sum(fact.external_queries for fact in facts) > 0
    assert totals["evicted"] == SIZE * sum(len(fact.evicted) for fact in facts)
    assert 0 < totals["evicted"] <= SIZE * manager.block_pool.num_evictions
    assert facts[-1].free == manager.block_pool.get_num_free_blocks()


def test_steps_in_flight_are_told() -> None:
    config, facts = KVCacheConfig(9, [KVCacheGroupSpec(["layer"], full())]), list[Fact]()
    manager = KVCacheManager(config, 64, overlap_steps=True).record(facts.append, lambda: 1.0)
    step = manager.start_step()
    manager.allocate_slots(Request("r", [1], SIZE), 1)
    manager.settle_step(step)
    started, _, settled = facts
    assert (started, settled) == (Fact(1.0, "start", free=8, step=1), Fact(1.0, "settle", free=7, step=1))


def test_times_of_blocks_are_what_happened() -> None:
    """Recomputed for each block from all that names it."""
    _, metrics, facts = history(1)
    wanted: dict[str, list[float]] = {"lifetime": [], "idle_before_evict": [], "reuse_gap": []}
    for block in range(1, 30):
        names = [
            (fact.at, what) for fact in facts for what in ("evicted", "new", "held") if block in getattr(fact, what)
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
    moved["GPU", "STORAGE"] = TransferStats(bytes=6, seconds=0.25)  # a second tier is added, and hides nothing
    metrics._transfers = lambda: {("CPU", "DISK"): TransferStats(bytes=7), **moved}
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
        70, 0.75,
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


def test_a_journal_is_bounded_and_readers_are_told_of_what_they_missed() -> None:
    config = KVCacheConfig(num_blocks=30, kv_cache_groups=[KVCacheGroupSpec(["layer"], full())])
    manager = KVCacheManager(config, max_model_len=256, track_evictions=True)
    late, now = manager.start_journal(num_facts=40, num_blocks=70).reader(), manager.start_journal().reader()
    slow, fast = manager.read_evictions(), manager.read_evictions()
    evicted, read = list[int](), list[Fact]()
    for number in range(300):
        request = Request(f"r{number}", [number] * 40, SIZE)
        assert manager.allocate_slots(request, 40) is not None
        request.num_computed_tokens = 40
        manager.free(request, preempted=number % 2 == 0)
        read += now.read()
        evicted += [each.block_id for each in fast.read()]
    assert [fact.kind for fact in read] == ["admit", "preempt", "admit", "free"] * 150
    assert evicted == [block for fact in read for block in fact.evicted]
    with pytest.raises(JournalGapError, match="read again") as gap:
        late.read()
    assert late.read() == read[gap.value.lost :]
    assert len(read) - gap.value.lost == 7, "70 block ids are those of three admissions, with what each evicts"
    with pytest.raises(JournalGapError) as gap:
        slow.read()
    assert [each.block_id for each in slow.read()] == evicted[gap.value.lost :]
    assert len(manager.take_evictions()) == len(slow) == 0, "what was read by others before is not kept"
    twin = manager.copy()
    assert manager.allocate_slots(Request("s", [1] * 40, SIZE), 40) is not None
    assert twin.journal is not None
    assert twin.journal.totals() != late.journal.totals()


def test_a_function_that_fails_loses_no_result(caplog: pytest.LogCaptureFixture) -> None:
    config = KVCacheConfig(num_blocks=30, kv_cache_groups=[KVCacheGroupSpec(["layer"], full())])
    facts = list[Fact]()
    manager = KVCacheManager(config, max_model_len=256).record(lambda fact: [][1]).record(facts.append)
    assert manager.allocate_slots(Request("r", [1] * 9, SIZE), 9) is not None
    assert "IndexError" in caplog.text
    assert [fact.kind for fact in facts] == ["admit"]


def test_what_is_admitted_while_it_loads_counts_when_that_has_ended() -> None:
    """What came counts, once, however the load ends; what is given up is computed."""
    config = KVCacheConfig(num_blocks=60, kv_cache_groups=[KVCacheGroupSpec(["layer"], full())])
    for came, wanted in ((8, (1, 8)), (4, (5, 4)), (None, (9, 0))):
        manager = KVCacheManager(config, max_model_len=256)
        totals = manager.start_journal().totals
        request = Request("r", [1] * 9, SIZE)
        manager.found_outside(request, 9, 9)
        assert manager.allocate_slots(request, 0, num_external_computed_tokens=8) is not None
        assert totals()["local_compute"] == totals()["external_kv_transfer"] == 0
        manager.free(request) if came is None else manager.finish_load(request, came)
        assert (totals()["local_compute"], totals()["external_kv_transfer"]) == wanted
        assert (totals()["external_queries"], totals()["external_hits"]) == (9, 8)


def test_nothing_is_followed_where_the_sample_is_empty_and_wrong_arguments_are_refused() -> None:
    manager, metrics, _ = history(0, sample=0.0)
    assert metrics.times["lifetime"] == [0] * (len(BOUNDS) + 1)
    with pytest.raises(InvalidArgumentError, match="sample"):
        Metrics(manager, sample=2.0)
    with pytest.raises(InvalidArgumentError, match="names"):
        Metrics(manager, names="other")
    for number in (0, -(2**20), 2**40):
        with pytest.raises(InvalidArgumentError, match="num_facts"):
            KVCacheManager(manager.kv_cache_config, 9).start_journal(num_facts=number)
    with pytest.raises(InvalidArgumentError, match="num_found"):
        manager.found_outside(Request("r", [1]), 1, 2)


def test_several_groups_are_told_apart_and_counted_once() -> None:
    groups = [KVCacheGroupSpec(["a"], full(2 * SIZE)), KVCacheGroupSpec(["b"], full())]
    manager = KVCacheManager(KVCacheConfig(num_blocks=13, kv_cache_groups=groups), max_model_len=256)
    metrics = Metrics(manager, names="sglang")
    for number in range(3):
        request = Request(f"r{number}", [number] * 4 * SIZE, SIZE)
        assert manager.allocate_slots(request, 4 * SIZE) is not None
        values = {family.name: family.samples[0].value for family in metrics.collect()}
        assert values["sglang:kv_used_tokens"] == 4 * SIZE
        request.num_computed_tokens = 4 * SIZE
        manager.free(request)
    assert values["sglang:evicted_tokens"] == 4 * SIZE
    metrics._is_vllm = True
    (info,) = [family for family in metrics.collect() if family.name == "vllm:cache_config_info"]
    assert [(each.labels["group"], each.labels["block_size"]) for each in info.samples] == [
        ("0", str(2 * SIZE)), ("1", str(SIZE)),
    ]  # fmt: skip


def test_a_block_that_two_requests_fill_is_published_once() -> None:
    config = KVCacheConfig(num_blocks=9, kv_cache_groups=[KVCacheGroupSpec(["layer"], full())])
    manager = KVCacheManager(config, max_model_len=64)
    journal = manager.start_journal()
    parent = Request("parent", [1] * SIZE, SIZE, hasher=SipHasher(key_lookahead=1))
    manager.allocate_slots(parent, SIZE)
    parent.num_computed_tokens = SIZE
    child = parent.fork("child")
    manager.fork(parent, child)
    for request in (parent, child):
        request.append_output_token_ids([1])
        manager.allocate_slots(request, 1)
    assert sum(fact.published for fact in journal.reader(0).read()) == sum(manager.block_pool.published()) == 1
