"""Property: with a GPU, blocks arrive whole on their streams, and the order is the documented one.

How: every layout between a GPU and pinned or pageable host memory, and within the GPU, against the plain loop; a kernel
that sleeps holds the stream up, so that a copy that came too early, or a host that waits, shows.
Not covered: two GPUs, other accelerators, speed. Skipped without a GPU.
"""

import time

import pytest

pytest.importorskip("torch", reason="needs torch: pip install torch")

import torch
from tests.device.pools import LAYOUTS, bits, equal, moved_plainly, pair_lists, parts

from blockwright.device import copies, copy_blocks, empty_host_caches_like, swap_blocks
from blockwright.errors import InvalidArgumentError

if not torch.cuda.is_available():
    pytest.skip("needs a GPU that torch can use", allow_module_level=True)

pytestmark = pytest.mark.cuda

DTYPES = (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8)
CYCLES = 1 << 28  # about a tenth of a second

each_layout = pytest.mark.parametrize("layout", LAYOUTS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


def on_gpu(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
    bits(made).copy_(bits(tensor))
    return made


@each_layout
@each_dtype
@pytest.mark.parametrize("scratch", [1 << 20, 1000, 1])
def test_copies_on_a_gpu(layout: str, dtype: torch.dtype, scratch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "SCRATCH_BYTES", scratch)
    dim, make = LAYOUTS[layout]
    for pairs in pair_lists(3, 12, 12, apart=True):
        expected = make(12, dtype)[1]
        cache = on_gpu(expected)
        copy_blocks(cache, pairs, block_dim=dim, stream=torch.cuda.Stream()).synchronize()
        moved_plainly(expected, expected, pairs, dim)
        for token_dim in {*range(expected.dim())} - {dim % expected.dim()}:
            counts = parts(expected, (dim, token_dim), pairs, seed=token_dim)
            copy_blocks(cache, pairs, block_dim=dim, num_tokens=counts, token_dim=token_dim).synchronize()
        assert equal(cache.cpu().contiguous(), expected.contiguous())


@each_layout
@each_dtype
@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("scratch", [1 << 20, 1000, 1])
def test_swaps_out_and_in(
    layout: str, dtype: torch.dtype, pinned: bool, scratch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "SCRATCH_BYTES", scratch)
    dim, make = LAYOUTS[layout]
    stream = torch.cuda.Stream()
    for pairs in pair_lists(5, 12, 9, apart=False)[1:]:
        original = make(12, dtype)[1]
        gpu = on_gpu(original)
        host = empty_host_caches_like(original, 9, block_dim=dim, pin_memory=pinned)
        assert host.is_pinned() == pinned
        bits(host).zero_()
        expected = host.clone()
        moved_plainly(original, expected, pairs, dim)
        swap_blocks(gpu, host, pairs, block_dim=dim, stream=stream).synchronize()
        assert equal(host.contiguous(), expected.contiguous())

        back = {destination: source for source, destination in pairs}
        gpu = torch.zeros_like(gpu)
        expected_gpu = torch.zeros_like(original)
        unique = {source: destination for destination, source in back.items()}
        home = [(destination, source) for source, destination in unique.items()]
        moved_plainly(host, expected_gpu, home, dim)
        swap_blocks(host, gpu, home, block_dim=dim, stream=stream).synchronize()
        assert equal(gpu.cpu().contiguous(), expected_gpu.contiguous())


def test_a_transfer_comes_after_the_current_stream_and_the_host_does_not_wait() -> None:
    gpu = torch.zeros(64, 1024, device="cuda")
    host = empty_host_caches_like(gpu, 64)
    host.zero_()
    pairs, stream = [(block, 63 - block) for block in range(64)], torch.cuda.Stream()
    swap_blocks(gpu, host, pairs, stream=stream).synchronize()  # what is made once, is made
    torch.cuda.synchronize()
    start = time.perf_counter()
    torch.cuda._sleep(CYCLES)
    gpu.fill_(1.0)
    transfer = swap_blocks(gpu, host, pairs, stream=stream)
    queued = time.perf_counter() - start
    assert not transfer.done
    transfer.synchronize()
    assert transfer.done
    assert queued < (time.perf_counter() - start) / 2
    assert bool((host == 1).all())


def test_later_work_waits_for_a_transfer_where_it_is_told_to() -> None:
    gpu = torch.zeros(64, 1024, device="cuda")
    host = torch.ones(64, 1024).pin_memory()
    stream = torch.cuda.Stream()
    for other in (None, torch.cuda.Stream()):
        gpu.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(CYCLES)
        transfer = swap_blocks(host, gpu, [(block, block) for block in range(64)], stream=stream)
        transfer.wait(other)
        with torch.cuda.stream(other or torch.cuda.current_stream()):
            total = gpu.sum()
        torch.cuda.synchronize()
        assert total.item() == 64 * 1024


def test_copies_in_order_need_no_wait_on_one_stream() -> None:
    cache = torch.arange(8.0, device="cuda").repeat_interleave(4096).reshape(8, 4096).contiguous()
    for block in range(7):
        copy_blocks(cache, [(block, block + 1)])
    assert bool((cache == 0).all())


def test_streams_of_another_device_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="stream"):
        copy_blocks(torch.zeros(4, 2), [(0, 1)], stream=torch.cuda.Stream())


def test_pairs_on_the_gpu() -> None:
    cache = torch.arange(4, device="cuda")
    copy_blocks(cache, torch.tensor([[0, 3]], device="cuda")).wait()
    assert cache.tolist() == [0, 1, 2, 0]
