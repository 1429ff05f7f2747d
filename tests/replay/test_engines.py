"""Several engines share a trace out as their router says, and a sweep's answer names the least that is enough.

How: two conversations whose engines are worked out by hand, for each router and for one that is written here; generated
workloads, whose counts must add up and, on one engine, be those of a replay without a router; answers to results that
are made up; the bytes of the blocks of models whose sizes are published.

Not covered: the index of a router (tests/observe); times of a single engine (test_timed.py).
"""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from array import array
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import pytest

from blockwright.errors import InvalidArgumentError
from blockwright.policies import Lru
from blockwright.replay import (
    Overlap,
    PoolResult,
    TimedResult,
    Trace,
    TraceRequest,
    WorkloadOptions,
    generate_workload,
    timed,
)
from blockwright.replay.answer import answer
from blockwright.replay.groups import block_bytes, layer_spec
from blockwright.replay.keeping import Keeping
from blockwright.replay.offloaded import OffloadOptions
from blockwright.replay.pool_sizes import parse_engines
from blockwright.replay.pools import Way
from blockwright.replay.routers import Routing
from blockwright.replay.simulate import replay, replay_ways
from blockwright.replay.step_time import Linear

SIXTEENTH = Linear(base=1 / 16, tokens=1 / 16)
FULL = layer_spec("full", 16)
KEEPING = Keeping("lru", Lru)
WORKLOAD = generate_workload(WorkloadOptions(conversations=40, turns=4, think=3, system_prompts=3, seed=3))


def served(trace: Trace, way: Way, options: Overlap) -> PoolResult:
    (pool,) = replay_ways(trace, [FULL], [way], check_every=20, overlap=options).pools
    return replace(pool, seconds=0.0)


def turn(number: int, *contents: int, after: int = -1, delay: float = 0.0) -> TraceRequest:
    """A request of a second each for a block of its prompt and for its answer, a moment after the one before."""
    return TraceRequest(
        array("i", contents), array("i", [16] * len(contents)), number / 64, 17, after=after, delay=delay
    )


def test_a_turn_waits_for_its_answer_and_then_for_its_delay() -> None:
    """Not in the open loop: there the second turn comes while the first one computes its prompt."""
    trace = Trace("turns", "made", (turn(0, 1, 2), turn(1, 1, 2, 3, after=0, delay=5)), 0.0)
    closed = served(trace, Way(20, KEEPING), Overlap(2, SIXTEENTH))
    assert closed.timed is not None
    assert (closed.timed.seconds, closed.hit_blocks) == (4 + 5 + 3 + 2 / 16, 2)
    assert closed.timed.latency == (3 + 1 / 16, *[4 + 1 / 16] * 3)
    together = Trace("turns", "made", (trace.requests[0], replace(trace.requests[1], after=-1)), 0.0)
    opened = served(together, Way(20, KEEPING), Overlap(2, SIXTEENTH))
    assert opened.timed is not None
    assert opened.timed.seconds == (33 + 18 + 15 * 3 + 2) / 16
    # With a rate, first turns have it; a turn that must not come before its own time waits for that, too.
    late = Trace("turns", "made", (trace.requests[0], replace(trace.requests[1], arrival=50.0)), 0.0)
    for rate, seconds in ((None, 53 + 1 / 16), (1, 4 + 5 + 3 + 2 / 16)):
        timed = served(late, Way(20, KEEPING), Overlap(2, SIXTEENTH, arrivals=rate)).timed
        assert timed is not None
        assert timed.seconds == seconds
    with pytest.raises(InvalidArgumentError, match="after: must be -1 or an earlier request than 0, not 0"):
        served(Trace("turns", "made", (turn(0, 1, after=0),), 0.0), Way(20, KEEPING), Overlap(1))


@pytest.mark.parametrize(
    ("router", "hits"),
    [
        ("round", 0),  # every other one: each turn goes to where it was not before
        ("prefix", 4),
        ("cost", 4),
        (f"{__name__}:to_the_second", 4),
        ("load", 4),  # all are idle, so that turns are dealt out from their number on
    ],
)
def test_routers_by_hand(router: str, hits: int) -> None:
    """Two conversations of two turns, the second of which come long after the first, in the other order."""
    first = [turn(0, 1, 2), turn(64, 5, 6)]
    again = [turn(64 * 50, 5, 6, 7), turn(64 * 60, 1, 2, 3)]
    trace = Trace("two", "made", (*first, *(again if router != "load" else again[::-1])), 0.0)
    pool = served(trace, Way(40, KEEPING, engines=2, router=router), Overlap(4, SIXTEENTH))
    assert (pool.hit_blocks, pool.engines, pool.router) == (hits, 2, router)


def to_the_second(seen: object) -> int:
    """A router of a user: it deals out in no turn, as the engine of one request is that of all."""
    return -int(getattr(seen, "requests", 0)) - int(getattr(seen, "hit", 0))


def to_nobody(_: object) -> None:
    """A router of a user that returns nothing."""


def test_what_a_router_does_not_know_yet_it_does_not_follow() -> None:
    """The turn comes ten seconds after the prompt was computed: with a longer delay of events it goes elsewhere.

    So it does after a restart of the router, if no snapshot has come by then. A snapshot has no delay.
    """
    trace = Trace("one", "made", (turn(0, 1, 2), turn(64, 9), turn(64 * 13, 1, 2, 3), turn(64 * 13 + 1, 1, 2, 4)), 0.0)
    way, restarts = Way(40, KEEPING, engines=2, router="prefix"), [((-1, 5.0, each),) for each in (inf, 50.0, 2.0)]
    cases = [(0.0, (), 4), (100.0, (), 2), *zip((0.0,) * 3, restarts, (2, 2, 4), strict=True), (100.0, restarts[2], 4)]
    for delay, fails, hits in cases:
        assert served(trace, way, Overlap(4, SIXTEENTH, event_delay=delay, fails=fails)).hit_blocks == hits


def test_an_engine_that_fails_loses_its_requests_and_what_it_cached() -> None:
    """After five steps of a second the second request begins anew on the other engine, with 17 more to come."""
    trace = Trace("two", "made", (turn(0, 1, 2), turn(0, 5, 6), turn(64 * 50, 5, 6), turn(64 * 60, 5, 6)), 0.0)
    for back, hits in ((inf, 2), (10.0, 1)):  # requests 0 and 2 go to the first engine, 1 and 3 to the second
        options = Overlap(4, Linear(1), fails=((1, 5.0, back),))
        pool = served(trace, Way(40, KEEPING, engines=2), options)
        assert pool.timed is not None
        assert (pool.timed.latency[0], pool.timed.latency[3], pool.timed.recomputed) == (17, 5 + 17, 32 + 4)
        assert (pool.hit_blocks, pool.timed.output_tokens) == (hits, 4 * 17)
    with pytest.raises(InvalidArgumentError, match="fails: there is no engine 2; they are numbered from 0 on"):
        served(trace, Way(40, KEEPING, engines=2), Overlap(4, fails=((2, 5.0, inf),)))
    with pytest.raises(InvalidArgumentError, match=r"fails: 0 cannot fail after -1\.0 s for 1\.0 s"):
        Overlap(4, fails=((0, -1, 1),))


def test_a_prompt_is_computed_on_one_engine_and_decoded_on_another() -> None:
    """A second a step: the first token after one, then 32 seconds for its prompt to come, and 16 steps."""
    prompts = (turn(0, 1, 2), turn(64 * 60, 1, 2, 3), turn(64 * 120, 1, 2, 3, 4))
    trace = Trace("three", "made", prompts, 0.0)
    for transfer, latency in ((0.0, 17), (1.0, 17 + 32)):
        pool = served(trace, Way(40, KEEPING, engines=2, prefill=1), Overlap(2, Linear(1), transfer=transfer))
        assert pool.timed is not None
        assert (pool.timed.first_token[0], pool.timed.latency[2], pool.hit_blocks, pool.engines, pool.prefill) == (
            *(1, latency, 2 + 3, 2, 1),
        )
        # What the second engine has already does not come again: of a later prompt, 16 tokens do.
        assert pool.timed.latency[0] == 17 + 16 * transfer


def test_blocks_of_a_prompt_are_held_until_the_other_engine_has_room() -> None:
    """Two prompts of two blocks in a pool of three: the second begins once the first has gone to its engine."""
    trace = Trace("two", "made", (turn(0, 1, 2), turn(0, 5, 6)), 0.0)
    pool = served(trace, Way(3, KEEPING, engines=2, prefill=1), Overlap(2, Linear(1), transfer=1.0))
    assert pool.timed is not None
    # The other one has room for it when the first, of three blocks with its answer, has ended.
    assert pool.timed.queued[2] == 1 + 32
    assert pool.timed.latency[2] == (1 + 32 + 16) + 32 + 16


def test_a_prompt_that_begins_anew_on_another_engine_is_counted_once() -> None:
    """The first engine for prompts fails while the third one is on its way; the second one has its blocks too."""
    trace = Trace("three", "made", (turn(0, 1, 2), turn(64 * 60, 1, 2), turn(64 * 120, 1, 2, 3)), 0.0)
    options = Overlap(2, Linear(1), transfer=1.0, fails=((1, 125.0, inf),))
    pool = served(trace, Way(40, KEEPING, engines=3, prefill=2), options)
    assert pool.timed is not None
    assert (pool.hit_blocks, pool.timed.recomputed, pool.timed.queued[3]) == (2, 16, 0)


@pytest.mark.parametrize("blocks", [100, 300])
@pytest.mark.parametrize("host", [None, OffloadOptions(300, "evict")], ids=str)
def test_engines_for_prompts_serve_all_whatever_fails(blocks: int, host: OffloadOptions | None) -> None:
    """The manager checks itself meanwhile, and each answer has its tokens however often it began anew."""
    fails = ((3, 5.0, 6.0), (0, 12.0, 20.0), (2, 14.0, 3.0), (-1, 30.0, inf))
    options = Overlap(4, Linear(1 / 400, 1e-4), transfer=1e-4)
    together = served(WORKLOAD, Way(blocks, KEEPING, None, host, 4, "prefix"), options)
    for each in (options, replace(options, fails=fails)):
        apart = served(WORKLOAD, Way(blocks, KEEPING, None, host, 4, "prefix", 2), each)
        assert apart.timed is not None
        assert together.timed is not None
        assert (apart.refused, apart.timed.output_tokens) == (together.refused, together.timed.output_tokens)
        assert apart.peak_used <= blocks


def test_bad_numbers_of_engines() -> None:
    for prefill in (-1, 2):
        with pytest.raises(InvalidArgumentError, match=f"prefill: must leave an engine to decode, of 2, not {prefill}"):
            served(WORKLOAD, Way(300, KEEPING, engines=2, prefill=prefill), Overlap(4))
    for text in ("3+", "+1", "3+0", "1+x"):
        with pytest.raises(ArgumentTypeError, match="must be a whole number from 1"):
            parse_engines(text)
    assert parse_engines("1..3,2+1,6+2") == ((1, 0), (2, 0), (3, 0), (3, 1), (8, 2))


def routing(is_plain: bool, name: str, engines: int, delay: float, make: Any, size: int, _: bool) -> Routing:
    return Routing(name, engines, delay, make, size, is_plain)


def test_one_walk_finds_what_an_index_of_each_engine_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was evicted, forgotten by an engine that failed, or comes late."""
    results = []
    options = Overlap(4, Linear(1 / 100, 1e-4), event_delay=0.3, fails=((2, 30.0, 20.0), (-1, 60.0, 5.0)))
    for is_plain in (True, False):
        monkeypatch.setattr(timed, "Routing", partial(routing, is_plain))
        results.append(served(WORKLOAD, Way(300, KEEPING, engines=4, router="prefix"), options))
    assert results[0] == results[1]
    assert results[0].evictions > 0


def test_a_warm_up_is_not_counted() -> None:
    (cold,) = replay_ways(WORKLOAD, [FULL], [Way(200, KEEPING)]).pools
    (warm,) = replay_ways(WORKLOAD, [FULL], [Way(200, KEEPING)], skip=70).pools
    begun = replace(WORKLOAD, requests=tuple(WORKLOAD.requests[:70]))
    (first,) = replay_ways(begun, [FULL], [Way(200, KEEPING)]).pools
    assert warm.hit_blocks == cold.hit_blocks - first.hit_blocks
    assert warm.hit_rate == warm.hit_blocks / (WORKLOAD.num_references(16) - begun.num_references(16))
    trace = Trace("two", "made", (turn(0, 1, 2), turn(64, 5, 6)), 0.0)
    (pool,) = replay_ways(trace, [FULL], [Way(40, KEEPING)], overlap=Overlap(1, Linear(1)), skip=1).pools
    assert pool.timed is not None
    assert (pool.timed.queued, pool.timed.goodput, pool.timed.seconds) == ((16,) * 4, 1 / (34 - 1), 34)


@pytest.mark.parametrize("host", [None, OffloadOptions(300, "evict")], ids=str)
def test_engines_serve_all_and_one_is_a_replay(host: OffloadOptions | None) -> None:
    options = Overlap(4, Linear(1 / 400, 1e-4), ttft=0.5)
    (one,) = replay(WORKLOAD, FULL, [500], overlap=options, offload=host, check_every=20).pools
    for router in ("round", "prefix"):
        alone = served(WORKLOAD, Way(500, KEEPING, None, host, 1, router), options)
        assert alone == replace(one, seconds=0.0, router=router)
        pool = served(WORKLOAD, Way(500, KEEPING, None, host, 3, router), options)
        assert pool.timed is not None
        assert one.timed is not None
        assert (pool.refused, pool.timed.output_tokens) == (0, one.timed.output_tokens)
        assert pool.timed.first_token[2] <= one.timed.first_token[2]
        assert pool.timed.goodput > one.timed.goodput
        assert pool.peak_used <= 500
    assert pool.hit_rate > one.hit_rate  # of three pools, to which conversations return
    with pytest.raises(InvalidArgumentError, match=r"must return numbers, or tuples of them, not \[None, N"):
        served(WORKLOAD, Way(500, KEEPING, engines=2, router=f"{__name__}:to_nobody"), options)
    with pytest.raises(InvalidArgumentError, match="--router: expected round, load, prefix, cost or module:factory"):
        served(WORKLOAD, Way(500, KEEPING, router="best"), options)
    with pytest.raises(InvalidArgumentError, match="engines: several serve requests that overlap"):
        replay_ways(WORKLOAD, [FULL], [Way(500, KEEPING, engines=2)])


def result(engines: int, host: int, ttft: float, refused: int = 0, router: str = "round") -> PoolResult:
    empty = served(Trace("t", "made", (turn(0, 1),), 0.0), Way(9, KEEPING, None, OffloadOptions(host)), Overlap(1))
    timed = TimedResult(1.0, (0.0,) * 4, (0.1, 0.1, ttft, 9.0), 0, 0, 1.0, 1, (9.0,) * 4, 1.0)
    return replace(empty, engines=engines, router=router, refused=refused, timed=timed)


def test_the_answer_is_the_least_that_is_enough() -> None:
    sizes = {("host", 64): "64GiB", ("host", 0): "0"}
    swept = [result(n, host, 8 / n - host / 64) for n in (1, 2, 3, 4) for host in (0, 64)]
    assert answer(swept, {"ttft": 2.0}, sizes) == (
        "3 engines with 64GiB of host each keep P95 TTFT below 2 s; 2 do not."
    )
    assert answer(swept[-2:], {"ttft": 1.5}, {}) == (
        "4 engines with 64 blocks of host each keep P95 TTFT below 1.5 s; with no host they do not."
    )
    assert answer(swept[2:4], {"ttft": 5.0}, sizes) == (
        "2 engines with no host keep P95 TTFT below 5 s; nothing smaller was tried."
    )
    assert answer(swept[-2:], {"ttft": 0.5, "latency": 9.5}, sizes).startswith("None of these keeps P95 TTFT below 0.5")
    assert answer([result(1, 0, 1.0, refused=3)], {"ttft": 2.0}, sizes) == (
        "None of these keeps P95 TTFT below 2 s; nearest is 1 engine: P95 TTFT 1.00 s, 3 refused."
    )
    routed = [result(1, 0, 3.0), result(2, 0, 2.5), result(2, 0, 1.0, router="prefix")]
    assert answer(routed, {"ttft": 2.0}, {}) == ("2 engines behind 'prefix' keep P95 TTFT below 2 s; 1 does not.")


LLAMA = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}


@pytest.mark.parametrize(
    ("config", "precision", "parallel", "size"),
    [
        (LLAMA, None, 1, 16 * 128 * 1024),  # 128 KiB a token, as published of Llama 3 8B
        (LLAMA | {"torch_dtype": "float32"}, None, 1, 32 * 128 * 1024),
        (LLAMA | {"torch_dtype": "float32"}, "fp8", 4, 2 * 128 * 1024),
        (LLAMA, None, 16, 2 * 128 * 1024),  # a head is not shared out
        ({"text_config": LLAMA | {"head_dim": 64}}, None, 1, 8 * 128 * 1024),
        (LLAMA | {"kv_lora_rank": 512, "qk_rope_head_dim": 64}, None, 8, 16 * 576 * 2 * 32),
        # Six groups of ten layers or fewer share the pool: a block has the ten layers of one.
        (LLAMA | {"num_hidden_layers": 62, "sliding_window": 1024, "sliding_window_pattern": 6}, None, 1,
         16 * 10 * 4096),
    ],
)  # fmt: skip
def test_the_bytes_of_a_block(
    tmp_path: Path, config: dict[str, object], precision: str | None, parallel: int, size: int
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert block_bytes(str(tmp_path), 16, precision, parallel) == size


@pytest.mark.parametrize(
    "config",
    [
        {"num_hidden_layers": 2},
        LLAMA | {"torch_dtype": "odd"},
        LLAMA | {"full_attention_interval": 4},
        LLAMA | {"head_dim": "x"},
    ],
)
def test_a_model_that_does_not_say_its_bytes(tmp_path: Path, config: dict[str, object]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        InvalidArgumentError, match=r"--memory: .* does not say the sizes of the model .*; give --blocks"
    ):
        block_bytes(str(tmp_path / "config.json"), 16, None, 1)
