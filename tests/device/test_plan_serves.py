"""Property: a plan that fits is served: a request of the longest length, in steps of the largest size or smaller, never
lacks a block; what the plan counts is what the manager counts, and of one group no request would do with less.

How: random models (Hypothesis) are planned with exactly the memory that the refusal of an empty device asks for, and
the manager computes a request under that plan, in random steps. Where there is one group, a schedule is searched that
holds exactly what was counted, and is refused with one block fewer. The longest length and the step that a refusal
names fit, and one more does not.

Not covered: whether several groups would do with less, since their peaks need not fall in one step; several requests at
once, forks (one block more for each copy), loads longer than a step.
once, forks (one block more for each copy), loads longer than a step.
"""

import re
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install torch")

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.device.models import Engine, Model, models

from blockwright import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from blockwright.device import KVCachePlan, plan_kv_cache
from blockwright.errors import TooLittleMemoryError


def planned(model: Model, available: int, **options: Any) -> KVCachePlan:
    given = {**model.options, "max_padding": 1.0, **options}
    return plan_kv_cache(model.layers, available, **{"max_model_len": model.max_model_len, **given})


def refusal(model: Model, available: int, **options: Any) -> TooLittleMemoryError:
    with pytest.raises(TooLittleMemoryError) as caught:
        planned(model, available, **options)
    return caught.value


@settings(max_examples=150)
@given(models(), st.lists(st.integers(1, 40), max_size=8))
def test_the_least_memory_serves_a_request(model: Model, steps: list[int]) -> None:
    said = refusal(model, 0)
    assert refusal(model, said.needed_bytes - 1).needed_bytes == said.needed_bytes
    plan = planned(model, said.needed_bytes)
    assert plan.total_bytes <= said.needed_bytes
    assert plan.num_blocks >= plan.blocks_per_request + 1
    largest = plan.limits.max_num_batched_tokens
    engine = Engine(plan, fewer=plan.num_blocks - 1 - plan.blocks_per_request)
    assert not engine.is_never_served()
    assert engine.serve(min(step, largest) for step in steps)
    assert engine.most_held <= plan.blocks_per_request
    engine.manager.check()


@settings(max_examples=100)
@given(models())
def test_one_block_fewer_is_too_few_for_some_steps(model: Model) -> None:
    """Of one group; several need not have their peaks in one step, and a plan adds the peaks up."""
    spec = next(each for each in model.layers.values() if not isinstance(each, CrossAttentionSpec))
    alone = Model({"a": spec}, model.max_model_len, model.options)
    plan = planned(alone, refusal(alone, 0).needed_bytes)
    assert plan.num_blocks == plan.blocks_per_request + 1
    assert not Engine(plan).is_never_served()
    largest = min(plan.limits.max_num_batched_tokens, model.max_model_len)
    assert not all(Engine(plan, fewer=1).serve([first]) for first in range(1, largest + 1))


ALONE: dict[str, KVCacheSpec] = {
    "full": FullAttentionSpec(4, 1, 4, "half"),
    "sliding": SlidingWindowSpec(4, 1, 4, "half", sliding_window=6),
    "sliding, less than a block": SlidingWindowSpec(4, 1, 4, "half", sliding_window=3),
    "sliding, one token": SlidingWindowSpec(4, 1, 4, "half", sliding_window=1),
    "chunked": ChunkedLocalAttentionSpec(2, 1, 4, "half", attention_chunk_size=6),
    "mamba": MambaSpec(4, ((3,),), ("half",)),
    "mamba with drafts": MambaSpec(4, ((3,),), ("half",), 2),
}


@pytest.mark.parametrize("max_model_len", [1, 4, 5, 23, 40])
@pytest.mark.parametrize("step", [1, 3, 4, 9])
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("name", ALONE)
def test_the_bound_is_tight_for_one_group(name: str, caching: bool, step: int, max_model_len: int) -> None:
    options: dict[str, Any] = {"max_num_batched_tokens": step, "enable_caching": caching}
    model = Model({"a": ALONE[name]}, max_model_len, options)
    plan = planned(model, refusal(model, 0).needed_bytes)
    assert plan.num_blocks == plan.blocks_per_request + 1
    reached = []
    for first in range(1, step + 1):
        engine = Engine(plan)
        assert engine.serve([first])
        reached.append(engine.most_held == plan.blocks_per_request)
        assert Engine(plan, fewer=1).serve([first]) is not reached[-1]
    assert any(reached)


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("flights", [2, 3])
def test_steps_in_flight_hold_more(name: str, flights: int) -> None:
    options: dict[str, Any] = {"max_num_batched_tokens": 5, "max_steps_in_flight": flights}
    model = Model({"a": ALONE[name]}, 40, options)
    plan = planned(model, refusal(model, 0).needed_bytes)
    reached = []
    for first in range(1, 6):
        engine = Engine(plan)
        assert engine.serve([first])
        reached.append(engine.most_held == plan.blocks_per_request)
    assert any(reached)


@settings(max_examples=60)
@given(models(), st.integers(1, 4), st.integers(0, 5), st.lists(st.integers(1, 40), max_size=8))
def test_steps_in_flight_and_lookahead_are_served(model: Model, flights: int, ahead: int, steps: list[int]) -> None:
    recurs = any(isinstance(spec, MambaSpec) for spec in model.layers.values())
    options = {"max_steps_in_flight": flights, "num_lookahead_tokens": 0 if recurs else ahead}
    plan = planned(model, refusal(model, 0, **options).needed_bytes, **options)
    engine = Engine(plan, fewer=plan.num_blocks - 1 - plan.blocks_per_request)
    assert engine.serve(min(step, plan.limits.max_num_batched_tokens) for step in steps)


@settings(max_examples=60)
@given(models(), st.floats(0.0, 0.99))
def test_a_refusal_names_what_fits(model: Model, share: float) -> None:
    available = int(refusal(model, 0).needed_bytes * share)
    said = refusal(model, available)
    longest = said.longest_model_len
    assert longest < model.max_model_len
    assert (f"max_model_len={longest}" in str(said)) == (longest > 0)
    if longest:
        planned(model, available, max_model_len=longest)
    refusal(model, available, max_model_len=longest + 1)
    if found := re.search(r"max_num_batched_tokens=(\d+) at most", str(said)):
        planned(model, available, max_num_batched_tokens=int(found[1]))
        refusal(model, available, max_num_batched_tokens=int(found[1]) + 1)


@settings(max_examples=40)
@given(models(), st.integers(1, 12))
def test_a_refusal_names_the_blocks(model: Model, fewer: int) -> None:
    least = refusal(model, 1 << 30, num_blocks=1).needed_blocks
    assert planned(model, 1 << 30, num_blocks=least).num_blocks == least
    assert planned(model, 1 << 30, num_blocks=least + 1).num_blocks == least + 1
    assert refusal(model, 1 << 30, num_blocks=max(1, least - fewer)).needed_blocks == least


def test_the_encoder_is_counted() -> None:
    layers: dict[str, KVCacheSpec] = {"a": FullAttentionSpec(4, 1, 4, "half"), "b": CrossAttentionSpec(4, 1, 4, "half")}
    plan = plan_kv_cache(layers, 9 * 64, 8, enable_caching=False, max_num_encoder_tokens=21, num_blocks=9)
    assert [group.blocks_per_request for group in plan.groups] == [2, 6]
    assert Engine(plan).serve()
    assert not Engine(plan, fewer=1).serve([8])
