"""Property: in every form of keys and values (one size or two, latent, with scales, tokens or heads first) a page has
the documented bytes, and what a step writes is what attention reads, and what a copy moves.

How: bytes counted by hand; random forms (Hypothesis) written through `KVCacheStorage.pages`, and compared with numbers
that are rounded and scaled one vector at a time; attention compared with that over a plain cache of the numbers read;
the bytes of a token of FlashMLA, and each kernel's tensor, taken apart by their documents.
Not covered: the kernels themselves; that layers keep apart (test_storage.py, with the same forms).
"""

from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install torch")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.device.models import formed
from tests.device.pools import bits

from blockwright import FullAttentionSpec, MambaSpec
from blockwright.device import KVCacheStorage, gather_kv, paged_attention, plan_kv_cache, slots, write_kv, write_latent
from blockwright.device.storage import torch_dtype
from blockwright.errors import InvalidArgumentError
from blockwright.kinds import AttentionSpec

HALF: dict[str, Any] = {"block_size": 4, "num_kv_heads": 2, "head_size": 8, "dtype": "half"}


def storage_of(spec: AttentionSpec, blocks: int = 6) -> KVCacheStorage:
    """Blocks of one layer, filled with NaN, under a plan with padded pages."""
    layers = {"a": spec}
    plan = plan_kv_cache(layers, 1 << 24, 1, num_blocks=blocks, page_alignment=48, max_padding=1.0)
    storage = KVCacheStorage(plan)
    storage.fill(value=float("nan"))
    return storage


def kept(vector: torch.Tensor, dtype: torch.dtype, scale: float) -> torch.Tensor:
    """A vector as one that was divided by a scale, rounded (saturating), and multiplied again."""
    if not dtype.is_floating_point or dtype.itemsize > 1:
        return vector.to(dtype).double()
    limit = torch.finfo(dtype).max
    return ((vector.float() / scale).clamp(-limit, limit).to(dtype).float() * scale).double()


def largest(vector: torch.Tensor, dtype: torch.dtype) -> float:
    """The scale by which the largest number of a vector becomes the largest of a dtype."""
    return float(vector.float().abs().max() / torch.finfo(dtype).max) or 1.0


def written(
    spec: AttentionSpec, storage: KVCacheStorage, tokens: int, seed: int
) -> tuple[torch.Tensor, list[tuple[list[torch.Tensor], list[torch.Tensor]]]]:
    """Write tokens to slots at random; return the slots, and each token's keys and values by head, as they are kept."""
    torch.manual_seed(seed)
    dtype, heads, rank = torch_dtype(spec.dtype), spec.num_kv_heads, spec.kv_lora_rank
    slots = torch.randperm((storage.plan.num_blocks - 1) * spec.block_size)[:tokens] + spec.block_size
    keys = torch.randn(tokens, heads, spec.head_size) * 3
    values = keys[..., :rank] if rank else torch.randn(tokens, heads, spec.value_size)
    if tokens:
        keys[0] = 0  # of zeros there is no largest number
    scales = torch.ones(2, heads)
    if spec.scales in ("tensor", "head"):
        beside = storage.scales("a")
        beside.copy_(torch.rand(beside.shape) + 0.5)
        scales = beside.expand(2)[:, None] if beside.dim() == 1 else beside
        scales = scales.expand(2, heads)
    if rank:
        write_latent(storage.pages("a"), keys[:, 0, :rank], keys[:, 0, rank:], slots)
    else:
        write_kv(storage.pages("a"), keys, values, slots)
    found = []
    for token in range(tokens):
        each: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        for head in range(heads):
            vectors = (keys[token, head], values[token, head])
            if rank and spec.scales == "token":
                tiles = [kept(tile, dtype, largest(tile, dtype)) for tile in keys[token, 0, :rank].split(128)]
                each[0].append(torch.cat([*tiles, keys[token, 0, rank:].bfloat16().double()]))
                each[1].append(torch.cat(tiles))
                continue
            for side in (0, 1):
                by_token = largest(vectors[side], dtype) if spec.scales == "token" else 0.0
                scale = by_token or float(scales[0 if rank else side, head])
                each[side].append(kept(vectors[side], dtype, scale))
        found.append(each)
    return slots, found


@settings(max_examples=150)
@given(st.integers(0, 2).flatmap(lambda kind: formed(kind, caching=True)), st.integers(0, 8), st.integers(0, 2**20))
def test_what_is_written_is_read(spec: AttentionSpec, tokens: int, seed: int) -> None:
    storage = storage_of(spec)
    slots, expected = written(spec, storage, tokens, seed)
    for slot, (keys, values) in zip(slots.tolist(), expected, strict=True):
        block, place = divmod(slot, spec.block_size)
        read = gather_kv(storage.pages("a"), [block], place, place + 1)
        assert torch.equal(read[0][0].double(), torch.stack(keys))
        assert torch.equal(read[1][0].double(), torch.stack(values))
    untouched = set(range(storage.plan.num_blocks)) - {slot // spec.block_size for slot in slots.tolist()}
    assert all(bool((storage.tensors[0][block] == 255).all()) for block in untouched)


@settings(max_examples=60)
@given(st.integers(0, 2).flatmap(lambda kind: formed(kind, caching=True)), st.integers(1, 4), st.integers(0, 2**20))
def test_attention_is_that_over_what_is_kept(spec: AttentionSpec, new: int, seed: int) -> None:
    """The same step over a cache of one head size, in float64, with zeros behind the shorter of key and value."""
    storage = storage_of(spec)
    length = 2 * spec.block_size + 1
    slots, expected = written(spec, storage, length, seed)
    by_token = sorted(zip(slots.tolist(), expected, strict=True), key=lambda pair: pair[0])
    new = min(new, length)
    width = max(spec.head_size, spec.value_size)
    wide = type(spec)(
        spec.block_size, spec.num_kv_heads, width, torch.float64,
        **{name: getattr(spec, name) for name in ("sliding_window", "attention_chunk_size") if hasattr(spec, name)},
    )  # fmt: skip
    plain = torch.zeros(4, 2, spec.block_size, spec.num_kv_heads, width, dtype=torch.float64)
    torch.manual_seed(seed)
    ordered = KVCacheStorage(storage.plan)
    for position, (slot, (keys, values)) in enumerate(by_token):
        block, place = divmod(slot, spec.block_size)
        to, at = divmod(position + spec.block_size, spec.block_size)
        plain[to, 0, at, :, : spec.head_size] = torch.stack(keys)
        plain[to, 1, at, :, : spec.value_size] = torch.stack(values)
        for mine, theirs in zip(ordered.pages("a").tensors, storage.pages("a").tensors, strict=True):
            bits(mine)[to, at] = bits(theirs)[block, place]
    if spec.scales in ("tensor", "head"):
        ordered.scales("a").copy_(storage.scales("a"))
    query = torch.randn(new, 2 * spec.num_kv_heads, spec.head_size, dtype=torch.float64)
    padded = torch.nn.functional.pad(query, (0, width - spec.head_size))
    rest = (torch.tensor([[1, 2, 3]]), torch.tensor([0, new]), torch.tensor([length]))
    options: dict[str, Any] = {"scale": 0.3, "encoder_lens": rest[2]}
    actual = paged_attention(query, ordered.pages("a"), spec, *rest, **options)
    reference = paged_attention(padded, plain, wide, *rest, **options)[..., : spec.value_size]
    assert actual.shape == (new, 2 * spec.num_kv_heads, spec.value_size)
    assert float((actual - reference).abs().max()) <= 1e-9


def test_tensors_of_kernels() -> None:
    """The shapes and strides of `kv`, and FlashMLA's token: 512 float8, 4 scales of 128 each, 64 of 16 bits."""
    layers = {
        "nhd": FullAttentionSpec(4, 2, 8, "half"), "hnd": FullAttentionSpec(4, 2, 8, "half", kv_layout="HND"),
        "two": FullAttentionSpec(4, 2, 8, "half", head_size_v=4),
        "latent": FullAttentionSpec.latent(4, 16, 8, "half"),
        "mla": FullAttentionSpec.latent(4, 512, 64, "fp8", scales="token"),
        "token": FullAttentionSpec(4, 2, 8, "fp8", scales="token", kv_layout="HND"),
    }  # fmt: skip
    plan = plan_kv_cache(layers, 1 << 17, 16, layers_per_group=6, shared_layers={"again": "mla"})
    storage = KVCacheStorage(plan)
    shapes = {name: tuple(storage.kv(name).shape[1:]) for name in layers}
    assert shapes == {
        "nhd": (2, 4, 2, 8), "hnd": (2, 4, 2, 8), "two": (4, 2, 12), "latent": (4, 24), "mla": (4, 656),
        "token": (2, 4, 2, 8),
    }  # fmt: skip
    assert all(view[1].is_contiguous() for view in (storage.kv("nhd"), storage.kv("hnd").transpose(-3, -2)))
    assert storage.scales("token").shape[1:] == (2, 4, 2)
    latent, rope = torch.randn(1, 512) * torch.arange(1, 513), torch.randn(1, 64)
    write_latent(storage.pages("again"), latent, rope, torch.tensor([6]))
    token = storage.kv("mla")[1, 2]
    scales = token[512:528].clone().view(torch.float32)
    assert torch.equal(scales, latent.view(4, 128).abs().amax(1) / 448)
    numbers = token[:512].view(torch.float8_e4m3fn).float().view(4, 128)
    assert numbers.abs().amax(1).tolist() == [448.0] * 4
    assert torch.equal(token[528:].clone().view(torch.bfloat16), rope[0].bfloat16())
    assert torch.equal(storage.scales("mla")[1, 2], scales)
    write_kv(storage.pages("token"), torch.ones(1, 2, 8), torch.full((1, 2, 8), 3.0), torch.tensor([9]))
    page = storage.tensors[plan.place_of("token")[1]][2]
    assert page[128 : 128 + 64].view(torch.float32).nonzero().flatten().tolist() == [1, 5, 9, 13]  # (2, heads, tokens)


def test_copies_move_all_of_a_token() -> None:
    layers = {
        "mla": FullAttentionSpec.latent(4, 128, 2, "fp8", scales="token"),
        "token": FullAttentionSpec(4, 2, 4, "fp8", scales="token", head_size_v=8, kv_layout="HND"),
    }
    storage = KVCacheStorage(plan_kv_cache(layers, 1 << 16, 16, layers_per_group=2))
    for tensor in storage.tensors:
        tensor.copy_(torch.randint(256, tensor.shape, dtype=torch.uint8))
    before = {name: [bits(part).clone() for part in storage.pages(name).tensors] for name in layers}
    storage.copy_blocks(0, [(1, 3), (1, 4)], num_tokens=[3, 0])
    storage.copy_blocks(0, [(2, 5)])
    for name, parts in before.items():
        for now, old in zip(storage.pages(name).tensors, parts, strict=True):
            assert torch.equal(bits(now)[3], torch.cat([old[1, :3], old[3, 3:]]))
            assert torch.equal(bits(now)[4], old[4])
            assert torch.equal(bits(now)[5], old[2])
    states = KVCacheStorage(plan_kv_cache({"s": MambaSpec(4, ((3,),), ("half",))}, 1 << 10, 16))
    with pytest.raises(InvalidArgumentError, match="states of group 0 are copied whole"):
        states.copy_blocks(0, [(1, 2)], num_tokens=[1])


def test_unchecked_padding_writes_no_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where tokens without a slot write to the null block what it holds."""
    monkeypatch.setattr(slots, "on_host", lambda *_: False)
    storage, new = storage_of(FullAttentionSpec(4, 2, 4, "fp8", scales="token")), torch.ones(3, 2, 4)
    write_kv(storage.pages("a"), new, new, torch.tensor([-1, 9, -1]))
    changed = [block for block in range(6) if not bool((storage.tensors[0][block] == 255).all())]
    assert (changed, storage.scales("a").nan_to_num().count_nonzero().item()) == ([2], 4)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kv_lora_rank": 4}, "latent attention has one head"),
        ({"num_kv_heads": 1, "kv_lora_rank": 4, "scales": "token", "dtype": "fp8"}, "must be a multiple of 128"),
        ({"kv_layout": "nhd"}, "kv_layout: must be 'NHD' or 'HND'"),
        ({"scales": "block", "dtype": "fp8"}, "scales: must be 'tensor', 'head', 'token' or None"),
        ({"scales": "tensor"}, "scales: numbers of half need none"),
        ({"scales": "token", "dtype": "fp8", "head_size_v": 3}, "must be a multiple of 4"),
    ],
)
def test_declarations_that_make_no_sense(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        FullAttentionSpec(**HALF | fields)


def test_operators_name_the_other_one() -> None:
    storage = storage_of(FullAttentionSpec.latent(4, 4, 2, "half"))
    scaled = storage_of(FullAttentionSpec(4, 1, 4, "fp8", scales="tensor"))
    vectors, slots = torch.ones(1, 1, 4), torch.tensor([5])
    with pytest.raises(InvalidArgumentError, match="use write_latent"):
        write_kv(storage.pages("a"), vectors, vectors, slots)
    with pytest.raises(InvalidArgumentError, match="use write_kv"):
        write_latent(scaled.pages("a"), vectors[0], vectors[0], slots)
    with pytest.raises(InvalidArgumentError, match="declares no scales"):
        storage.scales("a")
    table = (torch.tensor([[1]]), torch.tensor([0, 1]), torch.tensor([1]))
    with pytest.raises(InvalidArgumentError, match="scale: of latent attention"):
        paged_attention(torch.ones(1, 1, 6), storage.pages("a"), FullAttentionSpec.latent(4, 4, 2, "half"), *table)
    with pytest.raises(InvalidArgumentError, match=r"pass storage.pages\(layer\) as the cache"):
        paged_attention(torch.ones(1, 1, 4), scaled.kv("a"), scaled.plan.spec_of("a"), *table)
