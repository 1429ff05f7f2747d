"""Property: attention over a paged cache is that of a loop over single positions, and touches nothing else.

How: random steps (kinds, block sizes, windows, chunks, head ratios, layouts, dtypes; prefill, chunked prefill, decode
and padding in one batch) over caches that hold NaN in every slot that no token of a request reads, against the loop of
`tests.device.steps` in float64. Both ways of computing are run: batches by length, and the padded ones that a GPU gets
without waiting. Tensors without memory show that no value is waited for there.
Not covered: a real GPU (test_step_cuda.py), refusals (test_step_refusals.py), speed.
"""

import math
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install torch")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.device.pools import bits
from tests.device.steps import LAYOUTS, Step, attention_of, empty_cache, random_step, read_by, spec_of

from blockwright.device import KVPages, attention, gather_kv, paged_attention, write_kv
from blockwright.device import slots as slots_module
from blockwright.device import step as step_module

KINDS = ("full", "sliding", "chunked", "sinks", "cross")
STORED = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
ATTENDED = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

# The result is a mean of values, all below 6 here; its error is a few roundings of one of them, and of a score.
ROUNDINGS = 60


def bound(dtype: torch.dtype) -> float:
    return ROUNDINGS * torch.finfo(dtype).eps


def lists_of_requests(longest: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    decode = st.tuples(st.integers(0, longest), st.integers(1, 4))
    prefill = st.tuples(st.integers(0, longest), st.integers(0, longest))
    padding = st.tuples(st.just(-1), st.integers(0, 2))
    return st.lists(st.one_of(decode, prefill, padding), max_size=5)


@st.composite
def steps(draw: st.DrawFn, cache_dtypes: Any = STORED, dtypes: Any = ATTENDED) -> Step:
    kv_heads = draw(st.integers(1, 3))
    spec = spec_of(
        draw(st.sampled_from(KINDS)),
        draw(st.integers(1, 9)),
        block_size=draw(st.integers(1, 5)),
        num_kv_heads=kv_heads,
        head_size=draw(st.sampled_from([1, 3, 8])),
        dtype=draw(st.sampled_from(cache_dtypes)),
    )
    return random_step(
        spec,
        draw(lists_of_requests(14)),
        num_heads=kv_heads * draw(st.integers(1, 4)),
        dtype=draw(st.sampled_from(dtypes)),
        layout=draw(st.sampled_from(LAYOUTS)),
        padding=draw(st.integers(0, 3)),
        seed=draw(st.integers(0, 2**20)),
    )


def attended(step: Step, **options: Any) -> torch.Tensor:
    return paged_attention(
        step.query,
        step.cache,
        step.spec,
        step.table,
        step.starts,
        step.seq_lens,
        encoder_lens=step.encoder_lens,
        **options,
    )


def attended_padded(step: Step, slack: int) -> torch.Tensor:
    """As on a GPU that is not waited for, with bounds that are reached, or not by `slack`."""
    longest = max([0, *step.starts.diff().tolist()])
    lengths = [0, *step.seq_lens.tolist(), *step.encoder_lens.tolist()]
    with pytest.MonkeyPatch.context() as patch:
        for module in (attention, step_module):
            patch.setattr(module, "on_host", lambda *_, **__: False)
        patch.setattr(attention, "DECODE_QUERIES", 10**6)
        return attended(step, max_query_len=longest + slack, max_seq_len=max(lengths) + slack)


def assert_near(actual: torch.Tensor, expected: torch.Tensor, limit: float) -> None:
    assert actual.shape == expected.shape
    assert not actual.isnan().any()
    assert float((actual.double() - expected).abs().max() if expected.numel() else 0) <= limit


@settings(max_examples=150)
@given(steps())
def test_attention_is_that_of_a_loop(step: Step) -> None:
    before = bits(step.cache).clone()
    expected = attention_of(step)
    for actual in (attended(step), attended_padded(step, 0), attended_padded(step, 3)):
        assert actual.dtype == step.query.dtype
        assert_near(actual, expected, bound(step.query.dtype))
    assert torch.equal(bits(step.cache), before)


@settings(max_examples=40)
@given(steps([torch.float64], [torch.float64]), st.integers(1, 5), st.integers(1, 200), st.floats(-2, 2))
def test_cut_as_it_may_be(step: Step, tile: int, scratch: int, scale: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "QUERY_TILE", tile)
        patch.setattr(attention, "SCRATCH_ELEMENTS", scratch)
        out = torch.full_like(step.query, math.nan)
        assert attended(step, scale=scale, out=out) is out
        padded = attended_padded(step, 1)
    assert_near(out, attention_of(step, scale), 1e-13)
    assert_near(padded, attention_of(step), 1e-13)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("scratch", "most"), [(1, 30), (64, 60), (10**6, 240)])
def test_scratch_memory_is_bounded(padded: bool, scratch: int, most: int) -> None:
    """Eight requests of 5 tokens with 6 elements each: one at a time, two, and all that there are."""
    spec = spec_of("full", 1, block_size=5, num_kv_heads=2, head_size=3, dtype=torch.float64)
    step = random_step(spec, [(4, 1)] * 8, num_heads=4, dtype=torch.float64, seed=1)
    step = replace(step, encoder_lens=torch.zeros(8))
    counts: list[int] = []

    read = KVPages.read

    def counted(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = read(*arguments)
        counts.append(keys.numel())
        return keys, values

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "SCRATCH_ELEMENTS", scratch)
        patch.setattr(KVPages, "read", counted)
        result = attended_padded(step, 0) if padded else attended(step)
    assert counts == [most] * (240 // most)
    assert_near(result, attention_of(step), 1e-13)


@settings(max_examples=40)
@given(
    st.sampled_from(KINDS[:3]), st.integers(1, 7), st.integers(1, 4), st.lists(st.integers(1, 9), min_size=1), st.data()
)
def test_a_prompt_in_chunks_is_the_prompt_at_once(
    kind: str, reach: int, block_size: int, chunks: list[int], data: st.DataObject
) -> None:
    """Written and computed chunk by chunk, with what is behind the window turned to NaN before each."""
    spec = spec_of(kind, reach, block_size=block_size, num_kv_heads=2, head_size=4, dtype=torch.float64)
    total = sum(chunks)
    torch.manual_seed(data.draw(st.integers(0, 999)))
    query, keys, values = torch.randn(total, 4, 4), torch.randn(total, 2, 4), torch.randn(total, 2, 4)
    query, keys, values = query.double(), keys.double(), values.double()
    width = -(-total // block_size)
    table = (torch.randperm(width) + 1)[None]
    slots = table[0, torch.arange(total) // block_size] * block_size + torch.arange(total) % block_size

    def run(pieces: list[int]) -> torch.Tensor:
        _, cache = empty_cache(spec, width + 1)
        results, done = [], 0
        for count in pieces:
            stop = done + count
            write_kv(cache, keys[done:stop], values[done:stop], slots[done:stop])
            first = min(read_by(spec, done))
            row = table.clone()
            row[:, : first // block_size] = 0
            lengths = torch.tensor([0, count]), torch.tensor([stop])
            results.append(paged_attention(query[done:stop], cache, spec, row, *lengths))
            done = stop
            gone = slots[: min(read_by(spec, done))]
            cache[gone // block_size, :, gone % block_size] = math.nan
        return torch.cat(results)

    once = run([total])
    assert_near(run(chunks), once, 1e-13)


def test_long_prompts_and_many_requests() -> None:
    """Several tiles and batches, with the sizes that are used otherwise."""
    for kind in ("full", "sliding"):
        spec = spec_of(kind, 5, block_size=4, num_kv_heads=1, head_size=2, dtype=torch.float64)
        requests = [(9 * i % 50, 1 + i % 3) for i in range(20)] + [(3, attention.QUERY_TILE + 9)]
        step = random_step(spec, requests, num_heads=1, dtype=torch.float64, seed=5)
        assert_near(attended(step), attention_of(step), 1e-13)


@given(st.data())
def test_slots_are_written_and_nothing_else(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(STORED))
    given_dtype = data.draw(st.sampled_from((*ATTENDED, torch.float8_e4m3fn)))
    block_size = data.draw(st.integers(1, 4))
    spec = spec_of("full", 1, block_size=block_size, num_kv_heads=2, head_size=3, dtype=dtype)
    memory, cache = empty_cache(spec, 7, data.draw(st.sampled_from(LAYOUTS)))
    slots = data.draw(st.lists(st.integers(block_size, 7 * block_size - 1), unique=True, max_size=12))
    for place in data.draw(st.lists(st.integers(0, len(slots)), max_size=3)):
        slots.insert(place, -1)
    torch.manual_seed(1)
    keys, values = (torch.randn(len(slots), 2, 3) * 100).to(given_dtype), torch.randn(len(slots), 2, 3).to(given_dtype)
    expected_memory = memory.clone()
    expected = expected_memory.as_strided(cache.shape, cache.stride(), cache.storage_offset())
    for token, slot in enumerate(slots):
        if slot >= 0:
            block, place = divmod(slot, block_size)
            expected[block, 0, place] = keys[token].to(dtype)
            expected[block, 1, place] = values[token].to(dtype)
    unchecked = empty_twin(memory, cache)
    write_kv(cache, keys, values, torch.tensor(slots, dtype=data.draw(st.sampled_from((torch.int32, torch.int64)))))
    assert torch.equal(bits(memory), bits(expected_memory))
    with pytest.MonkeyPatch.context() as patch:  # as on a GPU, where skipped tokens cannot be left out
        patch.setattr(slots_module, "on_host", lambda *_: False)
        write_kv(unchecked[1], keys, values, torch.tensor(slots, dtype=torch.int64))
    assert torch.equal(bits(unchecked[0]), bits(expected_memory))


def empty_twin(memory: torch.Tensor, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    copy = memory.clone()
    return copy, copy.as_strided(cache.shape, cache.stride(), cache.storage_offset())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_saturates(dtype: torch.dtype) -> None:
    spec = spec_of("full", 1, block_size=1, num_kv_heads=1, head_size=4, dtype=dtype)
    _, cache = empty_cache(spec, 2)
    largest = torch.finfo(dtype).max
    numbers = torch.tensor([[[1e30, -1e30, math.inf, math.nan]]])
    write_kv(cache, numbers, numbers, torch.tensor([1]))
    kept = cache[1, 1, 0, 0].float()
    assert kept[:3].tolist() == [largest, -largest, largest]
    assert kept[3].isnan()


def test_caches_of_inference_mode_are_written() -> None:
    with torch.inference_mode():
        cache = torch.zeros(2, 2, 1, 1, 1)
    write_kv(cache, torch.ones(1, 1, 1, requires_grad=True), torch.ones(1, 1, 1), torch.tensor([1]))
    assert cache[1].flatten().tolist() == [1, 1]


@given(st.sampled_from(STORED), st.sampled_from(LAYOUTS), st.integers(1, 4), st.integers(0, 9), st.integers(0, 9))
def test_gathered_is_what_was_written(dtype: torch.dtype, layout: str, size: int, start: int, count: int) -> None:
    spec = spec_of("full", 1, block_size=size, num_kv_heads=2, head_size=3, dtype=dtype)
    _, cache = empty_cache(spec, 25, layout)
    stop = start + count
    width = -(-stop // size) + 1
    row = torch.randperm(24)[:width] + 1
    row[: start // size] = 0
    row[-(-stop // size) :] = 0
    positions = torch.arange(start, stop)
    keys, values = torch.randn(count, 2, 3).to(dtype), torch.randn(count, 2, 3).to(dtype)
    write_kv(cache, keys, values, row[positions // size] * size + positions % size)
    for ids in (row, row.int(), row.tolist()):
        found = gather_kv(cache, ids, start, stop)
        assert torch.equal(bits(found[0]), bits(keys))
        assert torch.equal(bits(found[1]), bits(values))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_a_gpu_is_not_waited_for(kind: str, cache_dtype: torch.dtype) -> None:
    """Tensors without memory: whatever reads a value, or mixes devices, raises."""
    spec = spec_of(kind, 4, block_size=4, num_kv_heads=2, head_size=8, dtype=cache_dtype)
    with torch.device("meta"):
        cache = torch.empty(9, 2, 4, 2, 8, dtype=cache_dtype)
        tokens, query = torch.empty(6, 2, 8, dtype=torch.bfloat16), torch.empty(6, 4, 8, dtype=torch.bfloat16)
        slots, starts = torch.empty(6, dtype=torch.int64), torch.empty(5, dtype=torch.int32)
        table = torch.empty(7, 3, dtype=torch.int32)
    lengths = starts[:4]
    write_kv(cache, tokens, tokens, slots)
    result = paged_attention(
        query, cache, spec, table, starts, lengths, encoder_lens=lengths, max_query_len=3, max_seq_len=12
    )
    assert (result.shape, result.dtype, result.device) == (query.shape, query.dtype, query.device)
    with pytest.raises((RuntimeError, NotImplementedError)):
        paged_attention(query, cache, spec, table, starts, lengths, encoder_lens=lengths)
