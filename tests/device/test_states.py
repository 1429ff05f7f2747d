"""Property: the recurrences of a step are those of a loop over its tokens, and touch only the blocks they are told to.

How: random steps (prefill, decode, drafts, requests that begin from zero, padding; a block that is read and written)
over caches that hold NaN in every other block, against the loop of `tests.device.steps` in float64: outputs, written
states, and all other bytes. The way of a GPU, which is not waited for, runs here too, and on tensors without memory.
Not covered: a real GPU (test_step_cuda.py), refusals (test_step_refusals.py), speed.
"""

from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install torch")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.device.pools import bits
from tests.device.steps import StateStep, random_state_step, states_of

from blockwright.device import causal_conv, selective_scan, state_blocks, states

# The error of a sum of terms of about 1, and of states of 10 and less: of computing, and then of being kept.
COMPUTED = {torch.float64: 1e-12, torch.float32: 2e-4}
KEPT = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn)


@st.composite
def requests(draw: st.DrawFn) -> tuple[int, int, bool]:
    count = draw(st.one_of(st.integers(0, 4), st.integers(0, 40)))
    return count, draw(st.integers(0, max(0, min(3, count - 1)))), draw(st.booleans())


@st.composite
def state_steps(draw: st.DrawFn, dtypes: Any = KEPT[:4], cache_dtypes: Any = KEPT) -> StateStep:
    return random_state_step(
        draw(st.lists(requests(), max_size=4)),
        channels=draw(st.integers(1, 3)),
        size=draw(st.integers(1, 3)),
        width=draw(st.integers(2, 5)),
        dtype=draw(st.sampled_from(dtypes)),
        cache_dtype=draw(st.sampled_from(cache_dtypes)),
        padding=draw(st.integers(0, 2)),
        seed=draw(st.integers(0, 2**20)),
    )


def run(step: StateStep, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    where = (step.reads, step.writes, step.starts)
    scanned = selective_scan(step.x, step.dt, step.a, step.b, step.c, step.states, *where, d=step.d, **options)
    return scanned, causal_conv(step.x, step.weight, step.inputs, *where, bias=step.bias)


def assert_near(actual: torch.Tensor, expected: torch.Tensor, computed: float) -> None:
    """Equal but for rounding: `computed` of the computation, and once to the dtype that it is kept in."""
    assert actual.shape == expected.shape
    assert not actual.isnan().any()
    kept = torch.finfo(actual.dtype)
    limit = computed + kept.eps * expected.abs().clamp(min=kept.smallest_normal)
    assert bool(((actual.double() - expected).abs() <= limit).all())


def assert_ran(step: StateStep, before: StateStep, actual: tuple[torch.Tensor, torch.Tensor]) -> None:
    scanned, states_written, convolved, inputs_written = states_of(before)
    wide = torch.float64 in (step.x.dtype, step.states.dtype)
    computed = COMPUTED[torch.float64 if wide else torch.float32]
    assert actual[0].dtype == actual[1].dtype == step.x.dtype
    assert_near(actual[0], scanned, computed)
    assert_near(actual[1], convolved, computed)
    for cache, old, written in (
        (step.states, before.states, states_written),
        (step.inputs, before.inputs, inputs_written),
    ):
        for block in range(cache.shape[0]):
            if block in written:
                assert_near(cache[block], written[block], computed)
            else:
                assert torch.equal(bits(cache[block]), bits(old[block]))


@settings(max_examples=150)
@given(state_steps())
def test_recurrences_are_those_of_a_loop(step: StateStep) -> None:
    before, unchecked, counted = step.twin(), step.twin(), step.twin()
    results = run(step)
    assert_ran(step, before, results)
    with pytest.MonkeyPatch.context() as patch:  # as on a GPU that is not waited for
        patch.setattr(state_blocks, "on_host", lambda *_: False)
        longest = max([0, *step.starts.diff().tolist()])
        assert_ran(unchecked, before, run(unchecked, max_query_len=longest))
    counts: dict[str, Any] = {"num_draft_tokens": counted.drafts}
    where = (counted.reads, counted.writes, counted.starts)
    terms = (counted.x, counted.dt, counted.a, counted.b, counted.c)
    scanned = selective_scan(*terms, counted.states, *where, d=counted.d, **counts)
    convolved = causal_conv(counted.x, counted.weight, counted.inputs, *where, bias=counted.bias, **counts)
    assert torch.equal(scanned, results[0])
    assert torch.equal(convolved, results[1])


@settings(max_examples=30)
@given(state_steps([torch.float64], [torch.float64]), st.integers(1, 30))
def test_channels_in_turn(step: StateStep, scratch: int) -> None:
    before = step.twin()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states, "SCRATCH_ELEMENTS", scratch)
        assert_ran(step, before, run(step))


@settings(max_examples=50)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 999))
def test_a_prompt_in_chunks_is_the_prompt_at_once(chunks: list[int], seed: int) -> None:
    """Each chunk reads the block that the one before wrote: the same one, or another."""
    whole = random_state_step(
        [(sum(chunks), 0, False)],
        channels=2,
        size=3,
        width=4,
        dtype=torch.float64,
        cache_dtype=torch.float64,
        seed=seed,
    )
    scanned, convolved = run(whole.twin())
    start, read = 0, 0
    for place, count in enumerate(chunks):
        part = slice(start, start + count)
        write = 1 + (place // 2) % 2
        where = torch.tensor([read]), torch.tensor([[write]]), torch.tensor([0, count])
        terms = (whole.x[part], whole.dt[part], whole.a, whole.b[part], whole.c[part])
        assert_near(selective_scan(*terms, whole.states, *where, d=whole.d), scanned[part], 1e-12)
        near = causal_conv(whole.x[part], whole.weight, whole.inputs, *where, bias=whole.bias)
        assert_near(near, convolved[part], 1e-12)
        start, read = start + count, write


def test_no_term_of_a_token_reaches_another_request_or_an_earlier_token() -> None:
    step = random_state_step(
        [(5, 0, True), (6, 2, True), (4, 0, False)],
        channels=2,
        size=2,
        width=3,
        dtype=torch.float64,
        cache_dtype=torch.float64,
        seed=3,
    )
    clean = run(step.twin())
    step.x[8] = torch.nan
    for before, after in zip(clean, run(step), strict=True):
        assert torch.equal(before[:8], after[:8])
        assert torch.equal(before[11:], after[11:])
        assert after[8].isnan().all()


def test_strided_caches_and_those_of_inference_mode() -> None:
    step = random_state_step(
        [(3, 1, True), (1, 0, False)],
        channels=2,
        size=3,
        width=3,
        dtype=torch.float32,
        cache_dtype=torch.float32,
        seed=4,
    )
    page = step.states[0].numel() + step.inputs[0].numel() + 5
    with torch.inference_mode():
        memory = torch.zeros(step.states.shape[0], page)
        paged_states = memory[:, 1 : 1 + step.states[0].numel()].unflatten(1, step.states.shape[1:])
        paged_inputs = memory[:, -1 - step.inputs[0].numel() : -1].unflatten(1, step.inputs.shape[1:])
        paged_states.copy_(step.states)
        paged_inputs.copy_(step.inputs)
    paged = step.twin()
    object.__setattr__(paged, "states", paged_states)
    object.__setattr__(paged, "inputs", paged_inputs)
    for one, other in zip(run(step), run(paged), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(bits(paged_states), bits(step.states))
    assert torch.equal(bits(paged_inputs), bits(step.inputs))


@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.float8_e4m3fn])
def test_a_gpu_is_not_waited_for(cache_dtype: torch.dtype) -> None:
    """Tensors without memory: whatever reads a value, or mixes devices, raises."""
    with torch.device("meta"):
        cache, inputs = torch.empty(9, 3, 2, dtype=cache_dtype), torch.empty(9, 3, 4, dtype=cache_dtype)
        x, terms, ids = torch.empty(6, 3), torch.empty(6, 2), torch.empty(5, dtype=torch.int32)
        where = ids[:4], torch.empty(4, 2, dtype=torch.int32), ids
        a, d, weight = torch.empty(3, 2), torch.empty(3), torch.empty(3, 5)
    assert selective_scan(x, x, a, terms, terms, cache, *where, d=d, max_query_len=3).device.type == "meta"
    assert causal_conv(x, weight, inputs, *where, bias=d).device.type == "meta"
