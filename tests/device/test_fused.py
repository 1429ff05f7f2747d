"""Property: flex attention over the cache in place gives what `paged_attention` gives.

How: random steps over caches that hold large finite numbers in every slot that nobody reads (which is what the fused
kernel asks for), with masks by request and by tile of tokens, and tiles of many sizes, uncompiled on the CPU; the block
mask is compared with the mask itself, slot by slot: no tile is left out, and none is visited in vain.
Not covered: the compiled kernel (test_step_cuda.py), speed.
"""

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention", reason="needs a torch with flex attention")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.device.steps import LAYOUTS, Step, random_step, spec_of
from tests.device.test_attention import KINDS, attended, lists_of_requests

from blockwright.device import FlexMask, flex_mask, flex_paged_attention, fused
from blockwright.errors import InvalidArgumentError


@pytest.fixture(autouse=True, scope="module")
def uncompiled() -> Iterator[None]:
    """Let torch run the operator itself instead of tracing it for each shape."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        yield


@st.composite
def finite_steps(draw: st.DrawFn) -> Step:
    kv_heads = draw(st.sampled_from([1, 3]))  # so that padded pages are whole tokens
    dtype = draw(st.sampled_from([torch.float64, torch.float32]))
    spec = spec_of(
        draw(st.sampled_from(KINDS)),
        draw(st.integers(1, 9)),
        block_size=draw(st.integers(1, 5)),
        num_kv_heads=kv_heads,
        head_size=draw(st.sampled_from([1, 4])),
        dtype=dtype,
    )
    return random_step(
        spec,
        draw(lists_of_requests(12)),
        num_heads=kv_heads * draw(st.integers(1, 3)),
        dtype=dtype,
        layout=draw(st.sampled_from(LAYOUTS)),
        padding=draw(st.integers(0, 2)),
        poison=1000.0,
        seed=draw(st.integers(0, 2**20)),
    )


def arguments(step: Step) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (
        (step.query, step.cache, step.spec, step.table, step.starts, step.seq_lens),
        {"encoder_lens": step.encoder_lens},
    )


def longest(step: Step) -> int:
    return int(max([1, *step.starts.diff().tolist()]))


@settings(max_examples=100)
@given(finite_steps(), st.booleans(), st.sampled_from([1, 2, 8, 128]), st.sampled_from([1, 2, 4, 16, 128]))
def test_fused_is_the_reference(step: Step, by_request: bool, token_tile: int, slot_tile: int) -> None:
    args, options = arguments(step)
    bound = longest(step) if by_request else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "TOKEN_TILE", token_tile)
        patch.setattr(fused, "SLOT_TILE", slot_tile)
        mask = flex_mask(*args, **options, max_query_len=bound)
        check_tiles(mask, step.spec.block_size, token_tile, slot_tile)
        expected = attended(step, scale=0.3)
        limit = 1e-12 if step.query.dtype == torch.float64 else 1e-5
        out = torch.full_like(step.query, torch.nan)
        once = flex_paged_attention(*args, **options, max_query_len=bound, scale=0.3)
        again = flex_paged_attention(*args, **options, mask=mask, scale=0.3, out=out)
    assert again is out
    for actual in (once, again):
        assert actual.dtype == expected.dtype
        assert float((actual - expected).abs().max() if actual.numel() else 0) <= limit


def check_tiles(mask: FlexMask, block_size: int, token_tile: int, slot_tile: int) -> None:
    """Check that a tile is visited if and only if it has slots of a block of which one of the tokens reads any."""
    batch, width = mask.rows.shape
    b, q, kv = torch.meshgrid(torch.arange(batch), torch.arange(width), torch.arange(mask.slots), indexing="ij")
    if not b.numel():
        return
    read = mask.block_mask.mask_mod(b, torch.zeros_like(b), q, kv)
    tiles, slot_tiles = -(-width // token_tile), -(-mask.slots // slot_tile)
    expected = torch.zeros(batch, tiles, slot_tiles, dtype=torch.bool)
    for batch_entry, token, slot in read.nonzero().tolist():
        first = slot - slot % mask.page
        reached = slice(first // slot_tile, (first + block_size - 1) // slot_tile + 1)
        expected[batch_entry, token // token_tile, reached] = True
    actual = torch.zeros_like(expected)
    for batch_entry in range(batch):
        for tile in range(tiles):
            count = int(mask.block_mask.kv_num_blocks[batch_entry, 0, tile])
            actual[batch_entry, tile, mask.block_mask.kv_indices[batch_entry, 0, tile, :count].long()] = True
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("num_blocks", [0, 3])
@pytest.mark.parametrize("requests", [0, 2])
@pytest.mark.parametrize("tokens", [0, 3])
@pytest.mark.parametrize("bound", [None, 0, 1, 99])
def test_steps_of_nothing(num_blocks: int, requests: int, tokens: int, bound: int | None) -> None:
    """No tokens, or none of any request: as an idle rank runs them, or a graph is warmed up."""
    spec = spec_of("full", 1, block_size=2, num_kv_heads=1, head_size=4, dtype=torch.float32)
    query, cache = torch.ones(tokens, 2, 4), torch.zeros(num_blocks, 2, 2, 1, 4)
    lengths = torch.zeros(requests, dtype=torch.int32)
    arguments = (query, cache, spec, torch.zeros(requests, 3, dtype=torch.int32), torch.zeros(requests + 1).int())
    mask = flex_mask(*arguments, lengths, max_query_len=bound)
    for made in (None, mask):
        assert torch.equal(
            flex_paged_attention(*arguments, lengths, max_query_len=bound, mask=made), torch.zeros_like(query)
        )


def test_refusals() -> None:
    spec = spec_of("full", 1, block_size=2, num_kv_heads=1, head_size=4, dtype=torch.float32)
    step = random_step(spec, [(3, 1)], num_heads=1, dtype=torch.float64, poison=0.0)
    args, options = arguments(step)
    with pytest.raises(InvalidArgumentError, match="only paged_attention converts"):
        flex_paged_attention(*args, **options)
    step = random_step(spec, [(3, 1)], num_heads=1, dtype=torch.float32, poison=0.0)
    args, options = arguments(step)
    other = random_step(spec, [(3, 2)], num_heads=1, dtype=torch.float32, poison=0.0)
    with pytest.raises(InvalidArgumentError, match="mask is of another step"):
        flex_paged_attention(*args, **options, mask=flex_mask(*arguments(other)[0]))
    with pytest.raises(InvalidArgumentError, match="mask: must be a FlexMask or None, not 3"):
        flex_paged_attention(*args, **options, mask=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="scale=nan: pass a finite number"):
        flex_paged_attention(*args, **options, scale=float("nan"))
    pages = torch.zeros(step.cache.shape[0], step.cache[0].numel() + 1)
    odd = pages[:, 1:].unflatten(1, step.cache.shape[1:])
    with pytest.raises(InvalidArgumentError, match="whole number of tokens apart"):
        flex_paged_attention(step.query, odd, *args[2:], **options)


def test_a_gpu_is_not_waited_for() -> None:
    """Tensors without memory: whatever reads a value, or mixes devices, raises."""
    spec = spec_of("sliding", 4, block_size=4, num_kv_heads=2, head_size=8, dtype=torch.float32)
    with torch.device("meta"):
        cache, query = torch.empty(9, 2, 4, 2, 8), torch.empty(6, 4, 8)
        starts, table = torch.empty(5, dtype=torch.int32), torch.empty(7, 3, dtype=torch.int32)
    for bound in (3, None):
        mask = flex_mask(query, cache, spec, table, starts, starts[:4], max_query_len=bound)
        assert mask.reads.device.type == "meta"
