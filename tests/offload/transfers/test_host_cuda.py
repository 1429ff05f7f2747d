"""Property: between a GPU and the host's pool blocks arrive bit for bit, in the documented order of streams.

How: every layout there and back; a kernel that sleeps holds the current stream up, so that a copy that came too early,
or a host that waits, shows; likewise it holds up the handler's own stream.
Not covered: speed. Skipped without a GPU.
"""

import pytest

pytest.importorskip("torch", reason="needs torch: pip install torch")

import torch
from tests.device.pools import LAYOUTS, bits, equal

from blockwright.offload.host import HostHandler, HostPool
from blockwright.offload.host.streams import StreamHandler
from blockwright.offload.tiers.interfaces import CPULoadStoreSpec, GPULoadStoreSpec
from blockwright.offload.worker import TransferSpec

if not torch.cuda.is_available():
    pytest.skip("needs a GPU that torch can use", allow_module_level=True)

pytestmark = pytest.mark.cuda

CYCLES = 1 << 28  # about a tenth of a second


def on_gpu(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements on the GPU, in the same strides."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
    bits(made).copy_(bits(tensor))
    return made


def moved(handler: HostHandler, spec: TransferSpec) -> None:
    assert handler.transfer_async(1, spec)
    torch.cuda.synchronize()
    assert handler.get_finished() == [(1, True)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("k", [1, 3])
def test_there_and_back(layout: str, k: int) -> None:
    dim, make = LAYOUTS[layout]
    original = make(14, torch.bfloat16)[1]
    device = on_gpu(original)
    pool = HostPool(device, 4, device_blocks_per_block=k, block_dim=dim)
    assert pool.buffer.is_pinned()
    on_device, on_host = GPULoadStoreSpec([9, 4, 0, 13, 7, 2][: 2 * k]), CPULoadStoreSpec([3, 1])
    handler = HostHandler(device, pool, block_dim=dim)
    moved(handler, (on_device, on_host))
    for place, block in enumerate(on_host.block_ids):
        sources = on_device.block_ids[place * k : (place + 1) * k]
        elements = torch.cat([bits(original.select(dim, source)).reshape(-1) for source in sources])
        assert bytes(pool.block_view(block)) == bytes(elements.view(torch.uint8).tolist())
    bits(device).zero_()
    moved(handler, (on_host, on_device))
    for source in on_device.block_ids:
        assert equal(device.select(dim, source).cpu().contiguous(), original.select(dim, source).contiguous())
    assert handler.stats()["GPU", "CPU"].bytes == 2 * pool.bytes_per_block
    handler.close()


def test_a_store_comes_after_the_current_stream_and_the_host_does_not_wait() -> None:
    device = torch.zeros(8, 1024, device="cuda")
    pool = HostPool(device, 8)
    handler = HostHandler(device, pool)
    spec = GPULoadStoreSpec([1]), CPULoadStoreSpec([0])
    moved(handler, spec)  # what is made once, is made
    torch.cuda._sleep(CYCLES)
    device.fill_(1.0)
    assert handler.transfer_async(1, spec)
    assert handler.get_finished() == []
    assert not handler.cancel(1)
    torch.cuda.synchronize()
    assert handler.get_finished() == [(1, True)]
    assert isinstance(pool.caches, torch.Tensor)
    assert bool((pool.caches[0] == 1).all())


def test_wait_orders_the_current_stream() -> None:
    device = torch.zeros(8, 1024, device="cuda")
    pool = HostPool(device, 8)
    pool.buffer.view(torch.float32).fill_(1.0)
    handler = HostHandler(device, pool)
    inner = handler._handler
    assert isinstance(inner, StreamHandler)
    with torch.cuda.stream(inner._streams[False]):
        torch.cuda._sleep(CYCLES)
    assert handler.transfer_async(1, (CPULoadStoreSpec([0]), GPULoadStoreSpec([5])))
    handler.wait([1, 99])
    total = device.sum()
    assert handler.get_finished() == []
    torch.cuda.synchronize()
    assert total.item() == 1024


def test_back_pressure_and_close() -> None:
    device = torch.zeros(8, 1024, device="cuda")
    handler = HostHandler(device, HostPool(device, 8), max_queued=1)
    torch.cuda._sleep(CYCLES)
    assert handler.transfer_async(1, (GPULoadStoreSpec([1]), CPULoadStoreSpec([0])))
    assert not handler.transfer_async(2, (GPULoadStoreSpec([1]), CPULoadStoreSpec([1])))
    handler.close()
    assert handler.get_finished() == [(1, True)]
    assert not handler.transfer_async(3, (GPULoadStoreSpec([1]), CPULoadStoreSpec([1])))
    assert handler.stats()["GPU", "CPU"][:6] == (1, 1, 0, 0, 0, 2)
