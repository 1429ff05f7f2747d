"""Blocks in shared stores: a Mooncake store, its own client, a Valkey server and files, over loopback, in turn.

A process of its own lends memory to the Mooncake store. Its own client moves the same bytes between registered memory
and the store, as one piece a block, without header and checksum, 16 blocks a call. Each side writes and reads all
blocks; the sides take turns.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from blockwright.offload import CacheIdentity, FileSystemStore, ValkeyStore
from blockwright_lab.media.cluster import RealCluster, missing
from blockwright_lab.media.server import LocalServer
from blockwright_lab.media.server import missing as missing_server

IDENTITY = CacheIdentity("model", "layers, tokens", "bfloat16", 16, b"seed")
TARGET, BATCH = 0.8, 16
Side = tuple[Callable[[list[bytes]], Any], Callable[[list[bytes]], Any], Callable[[list[bytes]], Any]]
"""Writes, reads and removes the blocks of some keys."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--mib", metavar="N", type=int, default=32, help="MiB a turn (default %(default)s)")
    parser.add_argument("--sizes", metavar="KIB", type=int, nargs="+", default=[64, 256, 1024, 2048])


def of_store(store: Any, source: memoryview, target: memoryview, size: int) -> Side:
    """Return the side of one of our stores."""

    def items(keys: list[bytes], memory: memoryview) -> list[Any]:
        return [(key, None, [memory[at * size : (at + 1) * size]]) for at, key in enumerate(keys)]

    def read(keys: list[bytes]) -> None:
        found = store.get_many(items(keys, target))
        if not all(found):
            raise RuntimeError(f"{store!r} lost blocks: {store.stats()}")

    return lambda keys: store.put_many(items(keys, source)), read, store.remove


def of_client(client: Any, source: memoryview, target: memoryview, size: int) -> Side:
    """Return the side of Mooncake's own client."""
    from blockwright.offload.shared.mooncake import _address

    def each(
        keys: list[bytes], memory: memoryview, call: Callable[[list[str], list[int], list[int]], Sequence[int]]
    ) -> None:
        for start in range(0, len(keys), BATCH):
            names = [key.hex() for key in keys[start : start + BATCH]]
            places = [_address(memory) + (start + at) * size for at in range(len(names))]
            if min(call(names, places, [size] * len(names))) < 0:
                raise RuntimeError("the client lost blocks")

    return (
        lambda keys: each(keys, source, client.batch_put_from),
        lambda keys: each(keys, target, client.batch_get_into),
        lambda keys: client.batch_remove([key.hex() for key in keys], True),
    )


def sides(stack: ExitStack, source: memoryview, target: memoryview, size: int) -> Iterator[tuple[str, Side]]:
    """Open all stores that there are here."""
    if why := missing():
        print(f"no Mooncake store: {why}")
    else:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = RealCluster(folder, owned=6 * source.nbytes + (256 << 20))
        stack.callback(cluster.close)
        plain, ours = (stack.enter_context(closing(cluster.open(IDENTITY))) for _ in range(2))
        for store in (plain, ours):
            store.register(source)
            store.register(target)
        yield "client", of_client(plain._client, source, target, size)
        yield "MooncakeStore", of_store(ours, source, target, size)
    if not missing_server():
        server = stack.enter_context(LocalServer())
        yield "ValkeyStore", of_store(ValkeyStore(server.url, IDENTITY, timeout=20.0), source, target, size)
    for name, place in (("files, /dev/shm", "/dev/shm"), ("files, disk", None)):
        if place is None or Path(place).is_dir():
            where = stack.enter_context(tempfile.TemporaryDirectory(dir=place))
            files = stack.enter_context(closing(FileSystemStore(f"file://{where}", IDENTITY, timeout=20.0)))
            yield name, of_store(files, source, target, size)


def run(args: argparse.Namespace) -> int:
    """Print MB/s of each side, writes / reads, and ours over the client's; return 1 if one is below the target."""
    missed = False
    for kib in args.sizes:
        size, count = kib << 10, max(1, (args.mib << 10) // kib)
        source, target = (
            memoryview(bytearray(random.Random(kib).randbytes(size) * count)),
            memoryview(bytearray(size * count)),
        )
        seconds: dict[tuple[str, str], list[float]] = {}
        with ExitStack() as stack:
            opened = dict(sides(stack, source, target, size))
            for turn in range(args.repeat + 1):
                keys = [b"%d %d %s" % (turn, at, b"-" * 20) for at in range(count)]
                for name, (write, read, remove) in opened.items():
                    for what, call in (("put", write), ("get", read)):
                        began = time.perf_counter()
                        call(keys)
                        seconds.setdefault((name, what), []).append(time.perf_counter() - began)
                    if target != source:
                        raise RuntimeError(f"{name} gave other bytes")
                    target[:] = bytes(len(target))
                    remove(keys)
        rate = {each: size * count / 1e6 / statistics.median(times[1:]) for each, times in seconds.items()}
        print(
            f"{kib} KiB", *(f"{name} {rate[name, 'put']:.0f} / {rate[name, 'get']:.0f}" for name in opened), sep="  |  "
        )
        if "MooncakeStore" in opened:
            # A turn of both is as fast as the machine was then: the median of the turns' ratios.
            ratios = {
                what: statistics.median(
                    plain / own
                    for plain, own in zip(seconds["client", what][1:], seconds["MooncakeStore", what][1:], strict=True)
                )
                for what in ("put", "get")
            }
            print("   of the client:", ", ".join(f"{what} {ratio:.2f}" for what, ratio in ratios.items()), flush=True)
            missed |= min(ratios.values()) < TARGET
    return int(missed and args.require)
