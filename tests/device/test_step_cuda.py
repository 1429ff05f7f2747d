"""Property: on a GPU the operators of a step give what they give on the CPU, and decode steps can be captured.

How: the random steps of the other tests, moved to the GPU: with and without waiting for lengths, with `check`, in every
layout and dtype; a decode step captured in a CUDA graph and
replayed with other lengths, tables and numbers; no synchronization where none is promised.
Not covered: speed. Skipped without a GPU.
"""

from dataclasses import fields
from typing import Any, TypeVar

import pytest

pytest.importorskip("torch", reason="needs torch: pip install torch")

import torch
from tests.device.pools import bits
from tests.device.steps import LAYOUTS, StateStep, Step, random_state_step, random_step, spec_of
from tests.device.test_attention import KINDS, attended, bound

from blockwright.device import causal_conv, gather_kv, paged_attention, selective_scan, write_kv
from blockwright.errors import BlockError

if not torch.cuda.is_available():
    pytest.skip("needs a GPU that torch can use", allow_module_level=True)

pytestmark = pytest.mark.cuda

DECODE = [(30, 1), (0, 1), (17, 3), (-1, 1), (8, 2)]
MIXED = [(30, 1), (0, 40), (13, 300), (-1, 2), (8, 3)]
Moved = TypeVar("Moved", Step, StateStep)


def on_gpu(step: Moved) -> Moved:
    """The same step with all tensors on the GPU, the cache in its strides."""
    moved = {}
    for field in fields(step):
        value = getattr(step, field.name)
        if isinstance(value, torch.Tensor):
            there = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")
            bits(there).copy_(bits(value))
            value = there
        moved[field.name] = value
    return type(step)(**moved)


def made(kind: str, requests: list[tuple[int, int]], dtype: torch.dtype, **options: Any) -> Step:
    cache_dtype = options.pop("cache_dtype", dtype)
    spec = spec_of(kind, 5, block_size=4, num_kv_heads=2, head_size=16, dtype=cache_dtype)
    return random_step(spec, requests, num_heads=8, dtype=dtype, padding=2, **options)


def assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.device.type == "cuda"
    assert not actual.isnan().any()
    limit = 2 * bound(expected.dtype)
    assert float((actual.cpu().double() - expected.double()).abs().max()) <= limit


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("requests", [DECODE, MIXED])
def test_attention(kind: str, layout: str, dtype: torch.dtype, requests: list[tuple[int, int]]) -> None:
    step = made(kind, requests, dtype, layout=layout, seed=2)
    expected, there = attended(step), on_gpu(step)
    out = torch.full_like(there.query, torch.nan)
    assert_near(attended(there, check=True, out=out), expected)
    assert_near(attended(there, max_query_len=300, max_seq_len=700), expected)
    if requests is DECODE:
        torch.cuda.set_sync_debug_mode("error")
        try:
            padded = attended(there, max_query_len=3, max_seq_len=80)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert_near(padded, expected)


@pytest.mark.parametrize("cache_dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float16])
def test_other_dtypes_in_the_cache(cache_dtype: torch.dtype) -> None:
    step = made("full", MIXED, torch.float32, cache_dtype=cache_dtype)
    assert_near(attended(on_gpu(step)), attended(step))


@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_writing_and_gathering(cache_dtype: torch.dtype, layout: str) -> None:
    step = made("full", DECODE, torch.float32, cache_dtype=cache_dtype, layout=layout)
    there = on_gpu(step)
    keys, values = torch.randn(6, 2, 16) * 300, torch.randn(6, 2, 16)
    slots = torch.tensor([9, -1, 17, 4, -1, 30])
    moved = keys.cuda(), values.cuda(), slots.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        write_kv(there.cache, *moved)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    write_kv(step.cache, keys, values, slots)
    assert torch.equal(bits(there.cache).cpu(), bits(step.cache))
    write_kv(there.cache, *moved, check=True)
    assert torch.equal(bits(there.cache).cpu(), bits(step.cache))
    with pytest.raises(BlockError, match="slot 3 lies in the null block"):
        write_kv(there.cache, *moved[:2], torch.tensor([9, 3, -1, -1, -1, -1], device="cuda"), check=True)
    for found, expected in zip(gather_kv(there.cache, [1, 2], 1, 7), gather_kv(step.cache, [1, 2], 1, 7), strict=True):
        assert torch.equal(bits(found).cpu(), bits(expected))


@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_states(cache_dtype: torch.dtype) -> None:
    requests = [(70, 0, True), (1, 0, True), (0, 0, False), (4, 3, True), (9, 0, False)]
    options: dict[str, Any] = {"channels": 5, "size": 4, "width": 4, "dtype": torch.float32}
    step = random_state_step(requests, cache_dtype=cache_dtype, padding=2, seed=1, **options)
    there, waited = on_gpu(step), on_gpu(step)

    def run(these: StateStep, **more: Any) -> tuple[torch.Tensor, torch.Tensor]:
        where = (these.reads, these.writes, these.starts)
        scanned = selective_scan(these.x, these.dt, these.a, these.b, these.c, these.states, *where, d=these.d, **more)
        return scanned, causal_conv(these.x, these.weight, these.inputs, *where, bias=these.bias)

    torch.cuda.set_sync_debug_mode("error")
    try:
        found = run(there, max_query_len=70)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for one, other, expected in zip(found, run(waited), run(step), strict=True):
        assert torch.allclose(one.cpu(), expected, atol=1e-4)
        assert torch.allclose(other.cpu(), expected, atol=1e-4)
    written = step.writes[step.writes > 0].long()
    for these in (there, waited):
        for here, cache in ((step.states, these.states), (step.inputs, these.inputs)):
            assert torch.allclose(cache.cpu()[written].float(), here[written].float(), atol=1e-4, rtol=0.1)
            others = [block for block in range(here.shape[0]) if block not in written.tolist()]
            assert torch.equal(bits(cache.cpu())[others], bits(here)[others])


def test_a_decode_step_in_a_graph() -> None:
    """Captured once; replayed after lengths, tables and numbers were replaced in place."""
    first = on_gpu(made("sliding", DECODE, torch.float32, seed=4))

    def run() -> torch.Tensor:
        return paged_attention(
            first.query, first.cache, first.spec, first.table, first.starts, first.seq_lens,
            max_query_len=3, max_seq_len=first.table.shape[1] * 4,
        )  # fmt: skip

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    longer = [(28, 1), (5, 1), (11, 3), (3, 1), (0, 2)]
    for seed in range(20):
        other = made("sliding", longer, torch.float32, seed=seed)
        if all(getattr(other, name).shape == getattr(first, name).shape for name in ("cache", "table", "query")):
            break
    else:
        pytest.fail("no step of the same shapes was drawn")
    for name in ("query", "cache", "table", "starts", "seq_lens"):
        getattr(first, name).copy_(getattr(other, name))
    graph.replay()
    torch.cuda.synchronize()
    assert_near(result, attended(other))
