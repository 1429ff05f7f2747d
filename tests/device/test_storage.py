"""Property: in the memory of a plan every layer has its own bytes of every block that its group holds, at addresses
that suit its elements; groups share memory block by block and in no other way; whole blocks are filled and moved.

How: random models (Hypothesis). Of each layer's views all byte addresses are listed, by shape and strides, and compared
with the page that is theirs. Random bytes are written through one view of one block, and the memory is compared with
what it was. Blocks are copied, swapped and filled, and read through every view.

Not covered: which plan is made (test_plan.py); GPUs, but for one test that is skipped without.
"""

import math
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install torch")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.device.models import DTYPES, Model, models
from tests.device.pools import bits

from blockwright import FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec
from blockwright.device import KVCacheStorage, copy_blocks, empty_host_caches_like, plan_kv_cache, swap_blocks
from blockwright.device.storage import torch_dtype
from blockwright.errors import BlockError, InvalidArgumentError, TooLittleMemoryError, UnsupportedError
from blockwright.kinds import AttentionSpec

NAN = float("nan")


def stored(model: Model, device: str = "cpu") -> KVCacheStorage:
    with pytest.raises(TooLittleMemoryError) as said:
        plan_kv_cache(model.layers, 0, model.max_model_len, **model.options)
    needed = said.value.needed_bytes
    plan = plan_kv_cache(model.layers, needed, model.max_model_len, max_padding=1.0, **model.options)
    return KVCacheStorage(plan, device)


def views_of(storage: KVCacheStorage, name: str) -> list[torch.Tensor]:
    return list(storage.views(name))


def addresses(view: torch.Tensor) -> torch.Tensor:
    """The address of every byte of a view, one by one; shape (elements, element size)."""
    found = torch.tensor([view.data_ptr()])
    for size, stride in zip(view.shape, view.stride(), strict=True):
        found = (found[:, None] + torch.arange(size) * stride * view.element_size()).reshape(-1)
    return found[:, None] + torch.arange(view.element_size())


def reads(tensor: torch.Tensor) -> list[float]:
    """The different values in a tensor; 7 for NaN."""
    found: list[float] = tensor.to(torch.float64).nan_to_num(7.0).unique().tolist()
    return found


def noise(storage: KVCacheStorage) -> list[torch.Tensor]:
    for tensor in storage.tensors:
        tensor.copy_(torch.randint(256, tensor.shape, dtype=torch.uint8))
    return [tensor.clone() for tensor in storage.tensors]


@settings(max_examples=80)
@given(models(), st.data())
def test_every_layer_has_its_own_bytes_of_a_block(model: Model, data: st.DataObject) -> None:
    storage = stored(model)
    plan = storage.plan
    block = data.draw(st.integers(0, plan.num_blocks - 1))
    for group in plan.groups:
        taken: set[int] = set()
        for name in group.layer_names:
            number = plan.place_of(name)[1]
            tensor = storage.tensors[number]
            first = tensor[block].data_ptr()
            page = set(range(first, first + plan.page_sizes[number]))
            for view in views_of(storage, name):
                assert view.shape[0] == plan.num_blocks
                starts = addresses(view[block])
                assert not (starts[:, 0] % view.element_size()).any()
                own = set(starts.reshape(-1).tolist())
                assert len(own) == view[block].numel() * view.element_size()
                assert own <= page
                assert not own & taken
                taken |= own
        assert len(taken) == sum(group.page_bytes)


@settings(max_examples=60)
@given(models())
def test_shapes_and_dtypes_are_the_declared_ones(model: Model) -> None:
    storage = stored(model)
    assert [tuple(tensor.shape) for tensor in storage.tensors] == [
        (storage.plan.num_blocks, page) for page in storage.plan.page_sizes
    ]
    for name in model.layers:
        spec, views = storage.plan.spec_of(name), views_of(storage, name)
        assert [view.dtype for view in views] == [torch_dtype(dtype) for dtype in spec.element_types]
        if isinstance(spec, MambaSpec):
            assert [view.shape[1:] for view in views] == [torch.Size(shape) for shape in spec.shapes]
        elif isinstance(spec, AttentionSpec) and not spec.kv_lora_rank and spec.head_size_v is None:
            assert views[0].shape[1:] == torch.Size((2, spec.block_size, spec.num_kv_heads, spec.head_size))


@settings(max_examples=60)
@given(models(), st.data())
def test_a_write_changes_its_block_of_its_layer_only(model: Model, data: st.DataObject) -> None:
    storage = stored(model)
    before = noise(storage)
    name = data.draw(st.sampled_from(sorted(model.layers)))
    block = data.draw(st.integers(0, storage.plan.num_blocks - 1))
    group, tensor = storage.plan.place_of(name)
    for view in views_of(storage, name):
        row = bits(view)[block]
        row.copy_(torch.randint(128, row.shape, dtype=row.dtype))
    for number, (now, old) in enumerate(zip(storage.tensors, before, strict=True)):
        changed = (now != old).nonzero()
        assert number == tensor or not len(changed)
        assert set(changed[:, 0].tolist()) <= {block}
    for other in storage.plan.groups[group].layer_names:
        if other != name:
            fresh = KVCacheStorage(storage.plan)
            for now, old in zip(fresh.tensors, before, strict=True):
                now.copy_(old)
            assert all(
                torch.equal(bits(a), bits(b))
                for a, b in zip(views_of(storage, other), views_of(fresh, other), strict=True)
            )


def test_two_groups_share_memory_by_block_id() -> None:
    """Block 3 of a sliding layer is the same bytes as block 3 of a full one on its tensor, and no others."""
    shape = (4, 1, 8, "half")
    layers: dict[str, KVCacheSpec] = {
        "f0": FullAttentionSpec(*shape), "f1": FullAttentionSpec(*shape),
        "s0": SlidingWindowSpec(*shape, sliding_window=8), "s1": SlidingWindowSpec(*shape, sliding_window=8),
    }  # fmt: skip
    storage = KVCacheStorage(plan_kv_cache(layers, 1 << 13, 32, shared_layers={"again": "s1"}))
    f0, f1, s0, s1 = (views_of(storage, name)[0] for name in layers)
    f0[3], f1[3] = 1.0, 2.0
    assert (s0[3] == 1.0).all()
    assert (s1[3] == 2.0).all()
    assert not s0[2].any()
    assert not s1[4].any()
    assert views_of(storage, "again")[0].data_ptr() == s1.data_ptr()
    assert storage.kv("again") is storage.kv("s1")


def test_positions_of_keys_and_values() -> None:
    """Keys at 0, values at 1; a token's heads lie together; slot = block * block_size + offset within keys."""
    storage = KVCacheStorage(plan_kv_cache({"a": FullAttentionSpec(4, 2, 8, "float32")}, 1 << 13, 8))
    (cache,) = views_of(storage, "a")
    assert cache.shape[1:] == (2, 4, 2, 8)
    assert cache[0].is_contiguous()
    cache[1, 1, 3, 1, 7] = 5.0
    assert storage.tensors[0].view(torch.float32)[1].nonzero().tolist() == [[64 + 3 * 16 + 8 + 7]]


@settings(max_examples=40)
@given(models(), st.data())
def test_copies_move_whole_blocks(model: Model, data: st.DataObject) -> None:
    storage = stored(model)
    before = noise(storage)
    count = storage.plan.num_blocks
    source, target = data.draw(st.permutations(range(count)))[:2]
    copy_blocks(storage.tensors, [(source, target)])
    for now, old in zip(storage.tensors, before, strict=True):
        assert torch.equal(now[target], old[source])
        others = [block for block in range(count) if block != target]
        assert torch.equal(now[others], old[others])
    for name in model.layers:
        for view in views_of(storage, name):
            assert torch.equal(bits(view)[target], bits(view)[source])
    host = empty_host_caches_like(storage.tensors, 2, pin_memory=False)
    swap_blocks(storage.tensors, host, [(target, 1)])
    assert all(torch.equal(one[1], now[target]) for one, now in zip(host, storage.tensors, strict=True))


def test_a_group_is_copied_by_its_own_tensors() -> None:
    """Where a group has fewer layers than tensors, the other tensors need not move."""
    layers: dict[str, KVCacheSpec] = {f"f{n}": FullAttentionSpec(4, 1, 8, "half") for n in range(2)}
    layers |= {f"s{n}": SlidingWindowSpec(4, 1, 8, "half", sliding_window=8) for n in range(3)}
    storage = KVCacheStorage(plan_kv_cache(layers, 1 << 16, 400, max_num_batched_tokens=8))
    assert [len(storage.tensors_of(group)) for group in range(3)] == [2, 2, 1]
    before = noise(storage)
    copy_blocks(storage.tensors_of(2), [(1, 2)])
    assert torch.equal(storage.tensors[0][2], before[0][1])
    assert torch.equal(storage.tensors[1], before[1])


# --- fill ---


@settings(max_examples=60)
@given(models(), st.data())
def test_poison_reaches_every_element(model: Model, data: st.DataObject) -> None:
    """After a fill with NaN of one group, each of its layers reads only NaN there; other blocks keep their bytes."""
    storage = stored(model)
    before = noise(storage)
    group = data.draw(st.integers(0, len(storage.plan.groups) - 1))
    names = storage.plan.groups[group].layer_names
    dtypes = {torch_dtype(dtype) for name in names for dtype in storage.plan.layers[name].element_types}
    blocks = data.draw(st.lists(st.integers(0, storage.plan.num_blocks - 1), max_size=4))
    if not all(dtype.is_floating_point for dtype in dtypes):
        with pytest.raises(InvalidArgumentError, match=r"value: nan is no torch\.int8"):
            storage.fill(blocks, NAN, group=group)
        assert all(torch.equal(now, old) for now, old in zip(storage.tensors, before, strict=True))
        return
    storage.fill(blocks, NAN, group=group)
    for name in names:
        for view in views_of(storage, name):
            assert view[sorted(set(blocks))].to(torch.float64).isnan().all()
    kept = [block for block in range(storage.plan.num_blocks) if block not in blocks]
    for now, old in zip(storage.tensors, before, strict=True):
        assert torch.equal(now[kept], old[kept])
    for now, old in zip(storage.tensors[len(names) :], before[len(names) :], strict=True):
        assert torch.equal(now, old)


@settings(max_examples=40)
@given(models())
def test_zeros_reach_every_byte(model: Model) -> None:
    storage = stored(model)
    before = noise(storage)
    storage.fill([1], 0.0)
    for now, old in zip(storage.tensors, before, strict=True):
        assert not now[1].any()
        assert torch.equal(now[0], old[0])
    storage.fill()
    assert not any(tensor.any() for tensor in storage.tensors)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -2.5, NAN, float("inf"), 300.0, 3, 2**70])
def test_any_value_in_any_dtype(dtype: str, value: float) -> None:
    """Each element reads as torch itself would convert the value, or the value is refused where it has no form."""
    storage = KVCacheStorage(plan_kv_cache({"a": FullAttentionSpec(4, 1, 8, dtype)}, 1 << 13, 8))
    (view,) = views_of(storage, "a")
    if dtype == "int8" and (not math.isfinite(value) or value != int(value) or abs(value) > 127):
        with pytest.raises(InvalidArgumentError, match=r"value: .* is no torch.int8"):
            storage.fill([2], value)
        return
    storage.fill(torch.tensor([2], dtype=torch.int32), value)
    assert reads(view[2]) == reads(torch.tensor([float(value)]).to(torch_dtype(dtype)))
    assert not view[1].to(torch.float64).any()


def test_one_value_in_several_dtypes() -> None:
    """In a group of several dtypes each layer reads the value; for all groups at once it has no one form."""
    layers: dict[str, KVCacheSpec] = {
        "a": FullAttentionSpec(4, 1, 8, "half"), "b": FullAttentionSpec(4, 1, 8, "float8_e5m2fnuz"),
        "m": MambaSpec(4, ((3,), (2, 2)), ("float32", "bfloat16")),
    }  # fmt: skip
    storage = KVCacheStorage(plan_kv_cache(layers, 1 << 14, 8, max_padding=1.0, max_loss=1.0))
    assert [group.layer_names for group in storage.plan.groups] == [("a", "b"), ("m",)]
    for value in (1.5, NAN):
        with pytest.raises(InvalidArgumentError, match="pass group"):
            storage.fill([1], value)
        storage.fill([1], value, group=0)
        for name in ("a", "b"):
            assert reads(views_of(storage, name)[0][1]) == reads(torch.tensor([value]))
        storage.fill([1], value, group=1)
        for view in views_of(storage, "m"):
            assert reads(view[1]) == reads(torch.tensor([value]))


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"block_ids": [8]}, BlockError, "block_ids: 8 is no block; there are 8"),
    ({"block_ids": [0, -1]}, BlockError, "block_ids: -1 is no block"),
    ({"block_ids": [1.0]}, InvalidArgumentError, r"^block_ids\[0\]: must be an integer"),
    ({"value": None}, InvalidArgumentError, "value: must be a number, not None"),
    ({"group": 1}, InvalidArgumentError, "group: 1 is not within the plan's 1"),
]


@pytest.mark.parametrize(("changed", "error", "words"), BAD)
def test_bad_fills(changed: dict[str, Any], error: type[Exception], words: str) -> None:
    spec = FullAttentionSpec(4, 1, 8, "half")
    storage = KVCacheStorage(plan_kv_cache({"a": spec}, 8 * spec.page_size_bytes, 8))
    before = noise(storage)
    with pytest.raises(error, match=words):
        storage.fill(**{"block_ids": [1], "value": NAN, **changed})
    assert torch.equal(storage.tensors[0], before[0])
    storage.fill([], NAN)
    assert torch.equal(storage.tensors[0], before[0])


def test_unknown_layers_and_groups() -> None:
    storage = KVCacheStorage(plan_kv_cache({"a": FullAttentionSpec(4, 1, 8, "half")}, 1 << 12, 8))
    with pytest.raises(InvalidArgumentError, match="layer_name: 'b' is no layer of the plan"):
        storage.kv("b")
    with pytest.raises(InvalidArgumentError, match="layer_name: 'a' is a layer of attention"):
        storage.states("a")
    recurrent = KVCacheStorage(plan_kv_cache({"m": MambaSpec(4, ((2,),), ("half",))}, 1 << 12, 8))
    assert [tuple(state.shape[1:]) for state in recurrent.states("m")] == [(2,)]
    with pytest.raises(InvalidArgumentError, match="layer_name: 'm' is a recurrent layer"):
        recurrent.kv("m")
    with pytest.raises(InvalidArgumentError, match="group: 1 is not within"):
        storage.tensors_of(1)
    with pytest.raises(InvalidArgumentError, match="has no 'int9'"):
        torch_dtype("int9")


@pytest.mark.parametrize(
    ("device", "words"),
    [
        *((wrong, f"must be a string or a device, not {wrong}") for wrong in (None, 0.5)),
        *((wrong, f"{wrong!r} is no device") for wrong in ("", "gpu", "cuda:x")),
    ],
)
def test_what_is_no_device(device: Any, words: str) -> None:
    plan = plan_kv_cache({"a": FullAttentionSpec(4, 1, 8, "half")}, 1 << 12, 8)
    with pytest.raises(InvalidArgumentError, match=f"device: {words}"):
        KVCacheStorage(plan, device)


def test_no_memory_is_needed_to_look_at_it() -> None:
    """On torch's meta device a plan of any size has its shapes, and no bytes."""
    layers: dict[str, KVCacheSpec] = {f"layers.{n}": FullAttentionSpec(16, 8, 128, "bfloat16") for n in range(32)}
    storage = KVCacheStorage(plan_kv_cache(layers, 1 << 42, 131072), "meta")
    (view,) = views_of(storage, "layers.31")
    assert view.is_meta
    assert view.shape == (2**21, 2, 16, 8, 128)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    layers: dict[str, KVCacheSpec] = {
        "a": FullAttentionSpec(4, 1, 8, "fp8", scales="token"), "m": MambaSpec(4, ((3,), (4,)), ("float32", "bfloat16"))
    }  # fmt: skip
    storage = KVCacheStorage(plan_kv_cache(layers, 1 << 14, 8, max_padding=1.0), "cuda")
    storage.fill([1, 3], NAN)
    for name in layers:
        for view in views_of(storage, name):
            assert view[[1, 3]].to(torch.float64).isnan().all()
            assert not view[2].to(torch.float64).any()


@given(model=models(), count=st.integers(2, 40))
@settings(max_examples=30, deadline=None)
def test_memory_that_is_resized_keeps_what_stays(model: Model, count: int) -> None:
    storage = stored(model)
    before, old = noise(storage), storage.plan.num_blocks
    storage.resize(count)
    kept = min(count, old)
    assert all(torch.equal(new[:kept], was[:kept]) for new, was in zip(storage.tensors, before, strict=True))
    assert all(not new[kept:].any() for new in storage.tensors)
    assert storage.plan.num_blocks == count
    for name in storage.plan.layers:
        assert {view.untyped_storage().data_ptr() for view in views_of(storage, name)} <= {
            tensor.untyped_storage().data_ptr() for tensor in storage.tensors
        }


@given(model=models(), counts=st.lists(st.integers(2, 40), min_size=1, max_size=4))
@settings(max_examples=30, deadline=None)
def test_memory_that_was_reserved_stays_at_its_addresses(model: Model, counts: list[int]) -> None:
    """Views of before, which a graph would have captured, read and write the blocks that stay."""
    plan = stored(model).plan
    storage = KVCacheStorage(plan, max_num_blocks=40 + plan.num_blocks)
    before, old = noise(storage), plan.num_blocks
    captured, addresses = list(storage.tensors), [tensor.data_ptr() for tensor in storage.tensors]
    kept = min(old, *counts)
    for count in counts:
        storage.resize(count)
        assert [tensor.data_ptr() for tensor in storage.tensors] == addresses
        assert all(len(tensor) == count for tensor in storage.tensors)
    for now, was, first in zip(storage.tensors, captured, before, strict=True):
        assert torch.equal(now[:kept], first[:kept])
        assert not now[kept:].any()
        now[:kept].add_(1)
        assert torch.equal(was[:kept], now[:kept])


def test_more_than_was_reserved_is_refused() -> None:
    spec = FullAttentionSpec(4, num_kv_heads=2, head_size=8, dtype="bfloat16")
    plan = plan_kv_cache({"layers.0": spec}, 1 << 12, max_model_len=16)
    storage = KVCacheStorage(plan, max_num_blocks=plan.num_blocks)
    with pytest.raises(InvalidArgumentError, match="num_blocks"):
        storage.resize(plan.num_blocks + 1)
    with pytest.raises(InvalidArgumentError, match="max_num_blocks"):
        KVCacheStorage(plan, max_num_blocks=plan.num_blocks - 1)
    with pytest.raises(UnsupportedError, match="max_num_blocks"):
        KVCacheStorage(plan, "meta", max_num_blocks=plan.num_blocks)


def test_scales_beside_the_pages_stay_and_a_failure_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = FullAttentionSpec(4, num_kv_heads=2, head_size=8, dtype="fp8", scales="tensor")
    storage = KVCacheStorage(plan_kv_cache({"layers.0": spec, "layers.1": spec}, 1 << 12, max_model_len=16))
    storage.scales("layers.1").fill_(0.5)
    storage.resize(5)
    assert storage.scales("layers.1").tolist() == [0.5, 0.5]
    made, zeros = [0], torch.zeros

    def failing(*shape: Any, **options: Any) -> torch.Tensor:
        made[0] += 1
        if made[0] == 2:
            raise torch.OutOfMemoryError
        return zeros(*shape, **options)

    monkeypatch.setattr(torch, "zeros", failing)
    tensors = list(storage.tensors)
    with pytest.raises(torch.OutOfMemoryError):
        storage.resize(50)
    assert storage.plan.num_blocks == 5
    assert all(one is other for one, other in zip(tensors, storage.tensors, strict=True))
    for wrong in (1, 2.5, True):
        with pytest.raises(InvalidArgumentError, match="num_blocks: must be an integer"):
            storage.resize(wrong)  # type: ignore[arg-type]
