"""The host tier: bandwidth from `transfer_async` to `get_finished`, beside one `index_select` of the same bytes.

The device is the CPU itself. Blocks lie scattered on the device; on the host they are taken in order, as an empty tier
hands them out, and scattered, as a full one does. All memory is touched beforehand, all sides use as many threads, and
they take turns; the median of the turns counts.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.measure import require
from blockwright._terminal import print_table
from blockwright.offload import CPULoadStoreSpec, GPULoadStoreSpec
from blockwright.offload.host import HostHandler, HostPool
from blockwright.offload.worker import OffloadingWorker, TransferSpec

TARGET = 0.8
"""Least share of the bandwidth of `index_select`."""

BASE = "one index_select"

TENSORS = 64  # keys and values of 32 layers
SHAPE = (16, 32, 128)  # tokens, heads, head size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--blocks", metavar="N", type=int, default=256, help="blocks moved (default %(default)s)")
    parser.add_argument("--threads", metavar="N", type=int, default=torch.get_num_threads(), help="for all sides")


def run(args: argparse.Namespace) -> int:
    torch.set_num_threads(args.threads)
    count = args.blocks
    memory = torch.ones(TENSORS, 2 * count, *SHAPE, dtype=torch.bfloat16)
    caches = list(memory.unbind(0))
    pool = HostPool(caches, count, pin_memory=False)
    pool.buffer.fill_(1)
    handler = HostHandler(caches, pool, threads=args.threads)
    worker = OffloadingWorker()
    worker.register_handler(GPULoadStoreSpec, CPULoadStoreSpec, handler)
    worker.register_handler(CPULoadStoreSpec, GPULoadStoreSpec, handler)
    draw = random.Random(0)
    device = draw.sample(range(2 * count), count)
    orders = {"in order": list(range(count)), "scattered": draw.sample(range(count), count)}
    sides: dict[str, Callable[[], object]] = _gathers(memory, device)
    for name, host in orders.items():
        on_device, on_host = GPULoadStoreSpec(device), CPULoadStoreSpec(host)
        sides[f"device to host, {name}"] = partial(_transfer, worker, (on_device, on_host))
        sides[f"host to device, {name}"] = partial(_transfer, worker, (on_host, on_device))
    times = _interleaved(sides, args.repeat)
    worker.close()
    return _report(times, count * pool.bytes_per_block, args)


def _gathers(memory: torch.Tensor, blocks: list[int]) -> dict[str, Callable[[], object]]:
    """Return two ways to gather as many bytes by one `index_select`, into memory that is there.

    The first takes these blocks of all tensors, the second takes whole rows of a tensor that has all of a block in one.
    """
    ids = torch.tensor(blocks)
    out = torch.ones(memory.shape[0], len(blocks), *memory.shape[2:], dtype=memory.dtype)
    flat, flat_out = memory.view(memory.shape[1], -1), out.view(len(blocks), -1)
    return {
        f"{BASE}, all tensors at once": partial(torch.index_select, memory, 1, ids, out=out),
        f"{BASE}, blocks in one piece": partial(torch.index_select, flat, 0, ids, out=flat_out),
    }


def _transfer(worker: OffloadingWorker, spec: TransferSpec) -> None:
    require(worker.transfer_async(0, spec))
    worker.wait([0])
    require(worker.get_finished() == [(0, True)])


def _interleaved(sides: dict[str, Callable[[], object]], repeat: int) -> dict[str, list[float]]:
    """Return the seconds of each side in each of its turns; a first turn is not counted.

    The order changes from turn to turn, since torch's own threads spin for a while after their work, at the cost of
    whoever comes next.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    order = list(sides)
    for turn in range(repeat + 1):
        for name in order:
            begin = time.perf_counter()
            sides[name]()
            if turn:
                times[name].append(time.perf_counter() - begin)
        random.Random(turn).shuffle(order)
    return times


def _report(times: dict[str, list[float]], num_bytes: int, args: argparse.Namespace) -> int:
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    bases = [name for name in medians if name.startswith(BASE)]
    base = min(medians[name] for name in bases)  # the faster of the two
    shares = {name: base / median for name, median in medians.items() if name not in bases}
    rows = []
    for name, median in medians.items():
        judged = [f"{TARGET:g}", "met" if shares[name] >= TARGET else "MISSED"] if name in shares else ["", ""]
        rows.append([name, f"{num_bytes / median / 2**30:.1f}", f"{base / median:.2f}", *judged])
    shape = " x ".join(map(str, SHAPE))
    print_table(
        "Host tier",
        ["moved", "GiB/s", "of index_select", "target", ""],
        rows,
        f"torch {torch.__version__} on the CPU, {args.threads} threads; {args.blocks} blocks of {TENSORS} tensors of "
        f"{shape} bfloat16, {num_bytes / 2**30:.2f} GiB; medians of {args.repeat} interleaved repetitions",
    )
    return int(args.require and min(shares.values()) < TARGET)
