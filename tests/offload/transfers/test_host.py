"""Property: blocks pass between the device and the host's pool bit for bit, and nothing else changes on either side.

How: every layout and dtype, one and several device blocks per block, both ways of copying, against the plain loop over
`HostPool.caches`, whose own layout is checked against the elements in their order; wrong specs are refused before
anything moves; a copy is held up to see that a transfer is cancelled, or out of time, between blocks.
Not covered: a GPU (test_host_cuda.py), and speed (`benchmarks.offload.host`).
"""

import gc
import random
import threading
import weakref
from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="needs torch: pip install torch")

import torch
from tests.device.pools import DTYPES, LAYOUTS, bits, equal, moved_plainly, twin

from blockwright.device.layout import Caches
from blockwright.errors import BlockError, InvalidArgumentError
from blockwright.offload.host import HostHandler, HostPool
from blockwright.offload.host import copies as host_copies
from blockwright.offload.media import SharedLoadStoreSpec
from blockwright.offload.tiers.interfaces import CPULoadStoreSpec, GPULoadStoreSpec
from blockwright.offload.worker import OffloadingWorker, TransferSpec

DEVICE_BLOCKS, HOST_BLOCKS = 14, 5

each_layout = pytest.mark.parametrize("layout", LAYOUTS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


def moved(handler: HostHandler, spec: TransferSpec) -> None:
    """Move blocks and wait for them."""
    worker = OffloadingWorker()
    worker.register_handler(GPULoadStoreSpec, CPULoadStoreSpec, handler)
    worker.register_handler(CPULoadStoreSpec, GPULoadStoreSpec, handler)
    assert worker.transfer_async(5, spec)
    worker.wait([5])
    assert worker.get_finished() == [(5, True)]


def ids(k: int) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Scattered blocks of the host, k blocks of the device for each, and the pairs that these make."""
    draw = random.Random(k)
    on_host = draw.sample(range(HOST_BLOCKS), 3)
    on_device = draw.sample(range(DEVICE_BLOCKS), 3 * k)
    rows = [block * k + place for block in on_host for place in range(k)]
    return on_device, on_host, list(zip(on_device, rows, strict=True))


@each_layout
@each_dtype
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("stretch", [1, 1 << 30], ids=["by stretches", "by index"])
def test_to_the_host_and_back(
    layout: str, dtype: torch.dtype, k: int, stretch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_copies, "STRETCH_BYTES", stretch)
    monkeypatch.setattr(host_copies, "PART_BYTES", 1)
    dim, make = LAYOUTS[layout]
    memory, device = make(DEVICE_BLOCKS, dtype)
    pool = HostPool(device, HOST_BLOCKS, device_blocks_per_block=k, block_dim=dim)
    host = pool.caches
    assert isinstance(host, torch.Tensor)
    on_device, on_host, pairs = ids(k)
    expected_host = host.clone()
    moved_plainly(device, expected_host, pairs, dim)
    before = memory.clone()
    handler = HostHandler(device, pool, block_dim=dim, threads=2)
    moved(handler, (GPULoadStoreSpec(on_device), CPULoadStoreSpec(on_host)))
    assert equal(host.contiguous(), expected_host.contiguous())
    assert equal(memory, before)

    other_memory, other = twin(*make(DEVICE_BLOCKS, dtype))
    expected_memory, expected = twin(other_memory, other)
    moved_plainly(host, expected, [(row, block) for block, row in pairs], dim)
    handler.close()
    handler = HostHandler(other, pool, block_dim=dim)
    moved(handler, (CPULoadStoreSpec(on_host), GPULoadStoreSpec(on_device)))
    assert equal(other_memory, expected_memory)
    assert equal(host.contiguous(), expected_host.contiguous())
    handler.close()


@each_layout
def test_a_block_holds_its_elements_in_order(layout: str) -> None:
    """Whatever the strides on the device: shapes and dtypes alone decide where a byte lies."""
    dim, make = LAYOUTS[layout]
    device = make(DEVICE_BLOCKS, torch.bfloat16)[1]
    pool = HostPool(device, 2, device_blocks_per_block=2, block_dim=dim)
    with_blocks = GPULoadStoreSpec([9, 4, 0, 13]), CPULoadStoreSpec([1, 0])
    handler = HostHandler(device, pool, block_dim=dim)
    moved(handler, with_blocks)
    handler.close()
    for block, sources in ((1, (9, 4)), (0, (0, 13))):
        elements = [bits(device.select(dim, source)).reshape(-1) for source in sources]
        assert bytes(pool.block_view(block)) == bytes(torch.cat(elements).view(torch.uint8).tolist())


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.zeros(9, 4, 6), [(0, 96, 10, 96)]),
        (torch.zeros(2, 9, 4, 6).transpose(0, 1), [(0, 96, 10, 96), (864, 96, 106, 96)]),
        (torch.zeros(9, 4, 6)[:, :2], [(0, 96, 10, 48)]),
        (torch.zeros(9, 4, 6)[:, :, :3], [(row * 24, 96, 10 + row * 12, 12) for row in range(4)]),
        (torch.zeros(9, 6, 4).transpose(1, 2)[:, :1], [(head * 16, 96, 10 + head * 4, 4) for head in range(6)]),
        (torch.zeros(9, 2, 0), []),
        (torch.zeros(9), [(0, 4, 10, 4)]),
    ],
    ids=["whole", "stacked", "first half", "some heads", "exchanged", "empty", "one element"],
)
def test_stretches(tensor: torch.Tensor, expected: list[tuple[int, int, int, int]]) -> None:
    found = host_copies.stretches(tensor, 10)
    assert [(stretch.address - tensor.data_ptr(), *stretch[1:]) for stretch in found] == expected


def caches_of_layers() -> list[torch.Tensor | tuple[torch.Tensor, ...]]:
    """Layers of different kinds: stacked, keys and values, one byte wide, eight bytes wide."""
    draw = torch.Generator().manual_seed(1)

    def made(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        tensor = torch.empty(shape, dtype=dtype)
        bits(tensor).random_(0, 127, generator=draw)
        return tensor

    keys, values = made(torch.bfloat16, DEVICE_BLOCKS, 4, 3, 8), made(torch.bfloat16, DEVICE_BLOCKS, 4, 3, 8)
    return [made(torch.int8, DEVICE_BLOCKS, 5), (keys, values), made(torch.int64, DEVICE_BLOCKS, 3)]


@pytest.mark.parametrize("stretch", [1, 1 << 30], ids=["by stretches", "by index"])
def test_layers_of_different_kinds(stretch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_copies, "STRETCH_BYTES", stretch)
    caches = caches_of_layers()
    pool = HostPool(caches, 2)
    assert pool.offsets == [0, 6, 198, 392]
    assert pool.bytes_per_block == 416
    handler = HostHandler(caches, pool)
    moved(handler, (GPULoadStoreSpec([7, 2]), CPULoadStoreSpec([0, 1])))
    view, (small, (keys, values), large) = pool.block_view(0), caches
    assert isinstance(small, torch.Tensor)
    assert isinstance(large, torch.Tensor)
    for begin, tensor in ((0, small), (6, keys), (198, values), (392, large)):
        expected = bytes(tensor[7].reshape(-1).view(torch.uint8).tolist())
        assert bytes(view[begin : begin + len(expected)]) == expected
    assert bytes(view[5:6]) == b"\0"
    handler.close()


def test_views_share_the_memory() -> None:
    pool = HostPool(torch.zeros(3, 4, dtype=torch.int16), 2)
    view = pool.block_view(1)
    assert (view.nbytes, view.format, view.readonly, view.contiguous) == (8, "B", False, True)
    view[2:4] = b"\x05\x00"
    assert isinstance(pool.caches, torch.Tensor)
    assert pool.caches.tolist() == [[0, 0, 0, 0], [0, 5, 0, 0]]
    del pool
    assert bytes(view) == b"\0\0\5\0\0\0\0\0"


def test_a_view_keeps_the_memory_and_lets_go_of_it() -> None:
    pool = HostPool(torch.zeros(3, 4), 2)
    memory = weakref.ref(pool.buffer)
    view = pool.block_view(1)
    del pool
    gc.collect()
    assert memory() is not None
    del view
    gc.collect()
    assert memory() is None


def test_a_pool_of_no_blocks() -> None:
    caches = torch.zeros(3, 4)
    pool = HostPool(caches, 0)
    handler = HostHandler(caches, pool)
    moved(handler, (GPULoadStoreSpec([]), CPULoadStoreSpec([])))
    with pytest.raises(BlockError, match="host block 0"):
        pool.block_view(0)
    handler.close()


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ((GPULoadStoreSpec([1, 2]), CPULoadStoreSpec([0, 1])), InvalidArgumentError, "pass 2 for each"),
        ((GPULoadStoreSpec([1, 14]), CPULoadStoreSpec([0])), BlockError, "device block 14"),
        ((GPULoadStoreSpec([-1, 1]), CPULoadStoreSpec([0])), BlockError, "device block -1"),
        ((GPULoadStoreSpec([1, 2]), CPULoadStoreSpec([5])), BlockError, "host block 5"),
        ((CPULoadStoreSpec([-1]), GPULoadStoreSpec([1, 2])), BlockError, "host block -1"),
        ((GPULoadStoreSpec([1, 2, 3, 4]), CPULoadStoreSpec([0, 0])), BlockError, "twice"),
        ((CPULoadStoreSpec([0]), GPULoadStoreSpec([2, 2])), BlockError, "twice"),
        ((GPULoadStoreSpec([1, 2]), GPULoadStoreSpec([3, 4])), InvalidArgumentError, "one on the host"),
        ((GPULoadStoreSpec([1, 2]), SharedLoadStoreSpec([b"a"])), InvalidArgumentError, "one on the host"),
    ],
)
def test_wrong_specs_are_refused(spec: TransferSpec, error: type[Exception], message: str) -> None:
    caches = torch.ones(DEVICE_BLOCKS, 4)
    pool = HostPool(caches, HOST_BLOCKS, device_blocks_per_block=2)
    handler = HostHandler(caches, pool)
    with pytest.raises(error, match=message):
        handler.transfer_async(1, spec)
    assert handler.get_finished() == []
    assert not pool.buffer.any()
    assert bool((caches == 1).all())
    handler.close()


def test_a_source_may_be_named_twice() -> None:
    caches = torch.arange(DEVICE_BLOCKS * 4).reshape(DEVICE_BLOCKS, 4)
    pool = HostPool(caches, HOST_BLOCKS)
    handler = HostHandler(caches, pool)
    moved(handler, (GPULoadStoreSpec([3, 3]), CPULoadStoreSpec([0, 4])))
    assert pool.block_view(0) == pool.block_view(4)
    handler.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_blocks": -1}, "num_blocks"),
        ({"num_blocks": True}, "num_blocks"),
        ({"num_blocks": 1, "device_blocks_per_block": 0}, "device_blocks_per_block"),
        ({"num_blocks": 1, "block_dim": 2}, "block_dim"),
    ],
)
def test_bad_pools(options: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        HostPool(torch.zeros(3, 4), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "caches",
    [torch.zeros(3, 5), torch.zeros(3, 4, dtype=torch.int32), [torch.zeros(3, 4)] * 2, torch.zeros(1, 4).expand(3, 4)],
    ids=["shape", "dtype", "layers", "shared memory"],
)
def test_a_pool_that_does_not_fit(caches: Caches) -> None:
    before = threading.active_count()
    with pytest.raises(InvalidArgumentError):
        HostHandler(caches, HostPool(torch.zeros(3, 4), 2))
    assert threading.active_count() == before


def test_an_unknown_device() -> None:
    caches = torch.zeros(3, 4, device="meta")
    pool = HostPool(torch.zeros(3, 4), 2)
    with pytest.raises(InvalidArgumentError, match="'meta'"):
        HostHandler(caches, pool)


@pytest.mark.parametrize("how", ["cancelled", "closed"])
def test_ended_between_blocks(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block being moved is moved to its end before the transfer is reported; those after it are not touched."""
    begun, go = threading.Event(), threading.Event()
    copy: Callable[..., object] = host_copies.copy_bytes

    def held(*arguments: int) -> None:
        begun.set()
        assert go.wait(20)
        copy(*arguments)

    monkeypatch.setattr(host_copies, "STRETCH_BYTES", 1)
    monkeypatch.setattr(host_copies, "PART_BYTES", 1)
    monkeypatch.setattr(host_copies, "copy_bytes", held)
    caches = torch.ones(DEVICE_BLOCKS, 4)
    pool = HostPool(caches, HOST_BLOCKS)
    handler = HostHandler(caches, pool, threads=1)
    assert handler.transfer_async(1, (GPULoadStoreSpec([1, 2, 3]), CPULoadStoreSpec([0, 1, 2])))
    assert begun.wait(20)
    if how == "cancelled":
        assert handler.cancel(1)
        assert handler.get_finished() == []
        go.set()
        handler.wait([1])
    else:
        closing = threading.Thread(target=handler.close)
        closing.start()
        while handler.transfer_async(2, (GPULoadStoreSpec([]), CPULoadStoreSpec([]))):
            handler.wait([2])
            assert handler.get_finished() == [(2, True)]
        go.set()
        closing.join(20)
    assert handler.get_finished() == [(1, False)]
    assert isinstance(pool.caches, torch.Tensor)
    assert pool.caches[:, 0].tolist() == [1, 0, 0, 0, 0]
    handler.close()


def test_out_of_time() -> None:
    caches = torch.ones(DEVICE_BLOCKS, 4)
    handler = HostHandler(caches, HostPool(caches, HOST_BLOCKS), timeout=1e-9)
    assert handler.transfer_async(1, (GPULoadStoreSpec([1]), CPULoadStoreSpec([0])))
    handler.wait([1])
    assert handler.get_finished() == [(1, False)]
    assert handler.stats()["GPU", "CPU"].timed_out == 1
    handler.close()


@pytest.mark.parametrize("name", ["num_blocks", "device_blocks_per_block"])
@pytest.mark.parametrize("value", [-1, True, 1.0, "1", None])
def test_counts_are_whole_numbers(name: str, value: object) -> None:
    with pytest.raises(InvalidArgumentError, match=name):
        HostPool(torch.zeros(2, 3), **{"num_blocks": 2, name: value})  # type: ignore[arg-type]


def test_caches_have_the_shape_of_the_devices() -> None:
    """Down to one element per block, and no dimension but that of the blocks."""
    for shape in ((4,), (4, 1), (4, 3), (4, 1, 1), (4, 2, 1)):
        caches = HostPool(torch.zeros(shape), 2).caches
        assert isinstance(caches, torch.Tensor)
        assert caches.shape == (2, *shape[1:])


def test_a_block_of_bytes_is_not_padded_and_ids_count_from_zero() -> None:
    pool = HostPool(torch.zeros((2, 3), dtype=torch.uint8), 2)
    assert pool.bytes_per_block == 3
    for wrong in (-1, 2):
        with pytest.raises(BlockError, match="ids count from 0 to 1"):
            pool.block_view(wrong)
    assert [len(pool.block_view(block)) for block in (0, 1)] == [3, 3]
