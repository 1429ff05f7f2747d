"""Requests that overlap wait, hold their blocks, are preempted and end as an engine's do.

How: two requests whose times are worked out by hand; requests that do not overlap, which must count what a replay
of one after another counts; generated workloads on small pools of all kinds of layers, with all self-checks on.

Not covered: the manager's own behaviour (the gates); the command (tests/cli).
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from blockwright.errors import InvalidArgumentError
from blockwright.kinds import KVCacheSpec
from blockwright.replay import Overlap, Trace, TraceRequest, WorkloadOptions, generate_workload
from blockwright.replay.groups import groups_of, layer_spec
from blockwright.replay.offloaded import OffloadOptions
from blockwright.replay.pools import PoolResult
from blockwright.replay.simulate import replay
from blockwright.replay.step_time import Linear, Step

FULL = layer_spec("full", 16)


def two(answer: int) -> Trace:
    """Two prompts of two blocks with nothing in common, which arrive together."""
    requests = [TraceRequest(array("i", [at, at + 1]), array("i", [16, 16]), 0.0, answer) for at in (0, 2)]
    return Trace("two", "made", tuple(requests), 0.0)


def served(trace: Trace, blocks: int, options: Overlap, **more: object) -> PoolResult:
    (pool,) = replay(trace, FULL, [blocks], overlap=options, check_every=1, **more).pools  # type: ignore[arg-type]
    assert pool.timed is not None
    return replace(pool, seconds=0.0)


def test_times_by_hand() -> None:
    """A step takes a second; an answer of 17 tokens takes the step that ends its prompt, and 16 more."""
    options = Overlap(2, step_time=Linear(1))
    pool = served(two(17), 6, options)
    assert pool.timed is not None
    assert (pool.timed.queued, pool.timed.first_token, pool.timed.latency) == ((0,) * 4, (1,) * 4, (17,) * 4)
    assert (pool.timed.seconds, pool.timed.preemptions, pool.timed.output_tokens) == (17, 0, 34)
    assert pool.mean_used == pytest.approx((4 + 16 * 6) / 17)
    assert (pool.peak_used, pool.timed.mean_running) == (6, 2)
    assert pool.timed.per_token == (1,) * 4
    # In four blocks both begin. The first needs a third block then, for which the second gives up its own; of those the
    # first is still cached when it goes on at 17 with 33 tokens, of which it computes 17.
    again = served(two(17), 4, options).timed
    assert again is not None
    assert (again.preemptions, again.recomputed, again.latency, again.output_tokens) == (1, 16, (17, 33, 33, 33), 34)
    # In three the second waits for all of its prompt. In two the first is cut short where it needs a third.
    late = served(two(17), 3, options).timed
    assert late is not None
    assert (late.queued, late.preemptions) == ((0, 17, 17, 17), 0)
    alone = served(two(17), 2, options)
    assert (alone.refused, alone.peak_used) == (2, 2)


def test_a_step_has_a_budget_and_a_time() -> None:
    """The second prompt begins in what the first one leaves of 40 tokens, and beside its decoding comes the rest."""
    steps: list[Step] = []

    def note(step: Step) -> float:
        steps.append(step)
        return 1.0

    timed = served(two(3), 6, Overlap(2, max_num_batched_tokens=40, step_time=note)).timed
    assert timed is not None
    halves = 32 * 33 // 2, 8 * 9 // 2, (9 + 32) * 24 // 2
    assert steps == [
        Step(40, 2, 32 + 8, halves[0] + halves[1]),
        Step(25, 2, 33 + 32, 33 + halves[2]),
        Step(2, 2, 34 + 33, 34 + 33),
        Step(1, 1, 34, 34),
    ]
    assert (timed.first_token, timed.latency) == ((1, 2, 2, 2), (3, 4, 4, 4))
    with pytest.raises(InvalidArgumentError, match="max_num_batched_tokens: must be at least 8: one of each request"):
        Overlap(4, drafts=1, max_num_batched_tokens=7)
    for wrong in (0.0, float("nan"), float("inf")):
        never = partial(lambda found, step: found, wrong)
        with pytest.raises(InvalidArgumentError, match="step_time: must return seconds above 0, not"):
            served(two(3), 6, Overlap(2, step_time=never))


def test_drafts_that_are_accepted_save_steps() -> None:
    """All or none of three; else as many as the rate says, on the average, and a preemption loses none of them."""
    trace = two(33)
    for rate, seconds in ((0, 33), (1, 9)):
        timed = served(trace, 12, Overlap(2, step_time=Linear(1), drafts=3, acceptance=rate)).timed
        assert timed is not None
        assert timed.seconds == seconds
    (long,) = replay(two(4001), FULL, [600], overlap=Overlap(2, step_time=Linear(1), drafts=3, acceptance=0.5)).pools
    assert long.timed is not None
    assert long.timed.seconds == pytest.approx(4000 / (1 + 0.5 + 0.25 + 0.125), rel=0.05)
    tight = served(two(100), 10, Overlap(2, step_time=Linear(1), drafts=3))
    assert tight.timed is not None
    assert (tight.timed.output_tokens, tight.timed.preemptions) == (200, 1)


@pytest.mark.parametrize("host", [None, OffloadOptions(200), OffloadOptions(200, "evict")], ids=str)
def test_without_overlap_and_answers_it_counts_as_one_after_another(host: OffloadOptions | None) -> None:
    trace = generate_workload(WorkloadOptions(conversations=12, turns=4, seed=3))
    plain = replay(trace, FULL, [150, 400, 3000], offload=host).pools
    timed = replay(trace, FULL, [150, 400, 3000], offload=host, overlap=Overlap(1, Linear(1e-9), output_tokens=1)).pools
    for one, other in zip(plain, timed, strict=True):
        assert other == replace(one, timed=other.timed, seconds=other.seconds, mean_used=other.mean_used)


@pytest.mark.parametrize(
    ("groups", "blocks"),
    [("full", 390), ("full:1,sliding:2:40", 410), ("mamba", 40), ("full:1,mamba:1,chunked:1:64", 420)],
)
@pytest.mark.parametrize("concurrency", [3, 50])
def test_every_request_ends(groups: str, blocks: int, concurrency: int) -> None:
    trace = generate_workload(WorkloadOptions(conversations=10, turns=4, user_tokens=60, system_tokens=200, seed=4))
    alone = replace(trace, requests=tuple(replace(each, after=-1) for each in trace.requests))  # that wait for none
    first, *more = groups_of(groups, 16)[1]
    results = [
        replay(
            alone if rate == 0 else trace,
            first,
            [blocks],
            more=more,
            step_tokens=64,
            check_every=1,
            overlap=Overlap(concurrency, arrivals=rate),
        ).pools[0]
        for rate in (0, 0, 5)
    ]
    assert replace(results[0], seconds=0) == replace(results[1], seconds=0)
    for pool in results:
        assert pool.timed is not None
        assert pool.refused == 0
        assert pool.timed.output_tokens == sum(max(1, each.num_output_tokens) for each in trace.requests)
        assert pool.timed.mean_running <= concurrency
        assert pool.peak_used <= blocks
        assert pool.timed.preemptions > 0 or concurrency < 50 or pool is results[2]


@pytest.mark.parametrize("blocks", [220, 300, 4000])
def test_blocks_that_are_given_later_change_nothing(blocks: int) -> None:
    trace = generate_workload(WorkloadOptions(conversations=30, turns=4, user_tokens=60, system_tokens=200, seed=4))
    options = Overlap(8, step_time=Linear(0.01, context=1e-6))
    later, (at_once,) = served(trace, blocks, options), replay(trace, FULL, [blocks], overlap=options, note=id).pools
    assert later.mean_used == pytest.approx(at_once.mean_used)
    assert replace(later, checks=0, mean_used=0) == replace(at_once, mean_used=0, seconds=0, timed=later.timed)


@pytest.mark.parametrize(
    "wrong",
    [{"concurrency": 0}, {"drafts": -1}, {"max_num_batched_tokens": 0}, {"arrivals": -1}, {"output_tokens": -1}],
)
def test_bad_options(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{next(iter(wrong))}: must be at least"):
        Overlap(**({"concurrency": 1} | wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "groups"),
    [
        ('{"num_hidden_layers": 32}', "full:1"),
        ('{"n_layer": 4, "sliding_window": 8, "use_sliding_window": false}', "full:1"),
        ('{"num_hidden_layers": 32, "sliding_window": 64}', "sliding:1:64"),
        ('{"model_type": "gemma2", "num_hidden_layers": 4, "sliding_window": 64}', "full:1,sliding:1:64"),
        (
            '{"text_config": {"num_hidden_layers": 62, "sliding_window": 64, "sliding_window_pattern": 6}}',
            "full:1,sliding:6:64",
        ),
        ('{"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}', "full:1,sliding:1:64"),
        ('{"num_hidden_layers": 48, "full_attention_interval": 4}', "full:1,mamba:3"),
        ('{"num_hidden_layers": 16, "attn_layer_period": 8, "attn_layer_offset": 4}', "full:1,mamba:7"),
        ('{"num_hidden_layers": 8, "attn_layer_indices": [3, 7]}', "full:1,mamba:3"),
        ('{"hybrid_override_pattern": "M-M*-M", "num_hidden_layers": 6}', "full:1,mamba:3"),
        ('{"num_hidden_layers": 8, "attention_chunk_size": 64}', "chunked:3:64,full:1"),
        ('{"num_hidden_layers": 6, "block_types": ["recurrent", "recurrent", "attention"], "attention_window_size": 8}',
         "mamba:2,sliding:1:8"),
        ('{"model_type": "mamba2", "num_hidden_layers": 4}', "mamba:1"),
    ],
)  # fmt: skip
def test_groups_of_a_model(tmp_path: Path, config: str, groups: str) -> None:
    (tmp_path / "config.json").write_text(config)
    specs: list[KVCacheSpec] = groups_of(groups, 16)[1]
    assert groups_of(str(tmp_path), 16) == (groups, specs)


@pytest.mark.parametrize("config", ["{", "[]", "{}", '{"layer_types": ["odd"]}', '{"layer_types": ["sliding"]}'])
def test_a_model_that_does_not_say_its_layers(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(InvalidArgumentError, match=r"config\.json does not say which layers the model has"):
        groups_of(str(tmp_path / "config.json"), 16)
