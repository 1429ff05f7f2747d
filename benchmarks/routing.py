"""A router that is fed by the events of two engines with tiers: does it choose as the engines' own lookups say?

    python -m benchmarks.routing [--requests N] [--seed N] [--key-lookahead N]

Each engine has a device and tiers below it: one has the host and a disk, the other a host with blocks of twice the
size, which stores what the device evicts. Their events go over the wire, in vLLM's form, into an index of each. For
each request the router asks both indexes, and both engines are asked by the calls of a scheduler; the answers must be
equal: the hit of the device, and the hit with all tiers. Then the engine that the router chose serves the request.
Prompts share beginnings, salts and adapters; now and then the other engine serves, a prefix cache is reset, with the
tiers or without, and contents are forgotten.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch

from blockwright import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheManager, Request, Sha256Hasher
from blockwright.observe import EventStream, PrefixIndex
from blockwright.observe.wire import Encoder, decode, kinds_of
from blockwright.offload import (
    CPUBackend,
    CPULoadStoreSpec,
    GPULoadStoreSpec,
    HostHandler,
    HostPool,
    LoadResult,
    LRUOffloadingManager,
    OffloadChain,
    OffloadingConnector,
    OffloadingWorker,
)
from blockwright.offload.identity import CacheIdentity

SIZE, POOL = 4, 40
SPEC = FullAttentionSpec(block_size=SIZE, num_kv_heads=1, head_size=1, dtype="float32")
OWNERS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"cache_salt": "tenant"},
    {"cache_salt": "other"},
    {"lora_name": "adapter"},
)


class Answer(NamedTuple):
    """Tokens found on the device, and with all tiers."""

    device: int
    tiers: int


class Engine:
    """A manager with a connector, and the index that a router has of it."""

    def __init__(self, disk: Path | None, lookahead: int, store_on: str) -> None:
        config = KVCacheConfig(num_blocks=POOL, kv_cache_groups=[KVCacheGroupSpec(["layers"], SPEC)])
        self.manager = KVCacheManager(config, max_model_len=256, enable_kv_cache_events=True, track_evictions=True)
        self.hasher = Sha256Hasher(b"seed", lookahead)
        device = torch.zeros(POOL, SIZE, 1)
        if disk is not None:
            identity = CacheIdentity(model="toy", layout="", dtype="float32", block_size=SIZE, hash_seed=b"seed")
            places: dict[str, Any] = {"host_blocks": 8, "disk": disk, "disk_blocks": 120, "identity": identity}
            self.connector = OffloadingConnector.build(self.manager, device, events=True, store_on=store_on, **places)
        else:
            handler, worker = HostHandler(device, HostPool(device, 60, device_blocks_per_block=2)), OffloadingWorker()
            worker.register_handler(GPULoadStoreSpec, CPULoadStoreSpec, handler)
            worker.register_handler(CPULoadStoreSpec, GPULoadStoreSpec, handler)
            chain = OffloadChain(
                [LRUOffloadingManager(CPUBackend(2 * SIZE, 60), enable_events=True)], device_blocks_per_block=2
            )
            self.connector = OffloadingConnector(self.manager, chain, worker, store_on="publish")
        self.stream, self.index, self.heard = EventStream(), PrefixIndex(), 0
        self.encode = Encoder("vllm", groups=kinds_of([SPEC]))
        self.load = 0
        self.most_loaded = 8 * SIZE if disk is not None else POOL * SIZE  # at once: as far as the host has room

    def tell(self) -> None:
        """Send the events since the last call to the router's index, over the wire."""
        self.stream.record(self.manager.take_events())
        self.stream.record(self.connector.take_events())
        for batch in self.stream.since(self.heard):
            self.index.apply(decode(self.encode(batch.events, batch.timestamp)))
            self.heard = batch.sequence + 1

    def routed(self, request: Request) -> Answer:
        """Return the answer of the index; a request computes its last token itself."""
        most = (request.num_tokens - 1) // SIZE * SIZE
        owner: dict[str, Any] = {"cache_salt": request.cache_salt, "lora_name": request.lora_name}
        media = ("GPU", ("GPU", "CPU", "DISK"))
        found = [self.index.match(request.all_token_ids, medium=each, **owner) for each in media]
        device, tiers = [min(each, most) for each in found]
        return Answer(device, min(tiers, device + self.most_loaded))

    def asked(self, request: Request) -> Answer:
        """Return the answer of the engine's own lookups."""
        _, length = self.manager.get_computed_blocks(request)
        external, _ = self.connector.get_num_new_matched_tokens(request, length)
        self.connector.request_finished(request)
        return Answer(length, length + external)

    def serve(self, request: Request) -> None:
        """Compute a request, on what was found."""
        manager, connector = self.manager, self.connector
        self.load += request.num_tokens
        hit, length = manager.get_computed_blocks(request)
        external, _ = connector.get_num_new_matched_tokens(request, length)
        if external:
            manager.allocate_slots(request, 0, length, hit, num_external_computed_tokens=external)
            connector.update_state_after_alloc(request, external)
            connector.start_step()
            (result,) = self.settle()
            request.num_computed_tokens = result.num_computed_tokens
            manager.allocate_slots(request, request.num_tokens - request.num_computed_tokens)
        else:
            manager.allocate_slots(request, request.num_tokens - length, length, hit)
        connector.start_step()
        request.num_computed_tokens = request.num_tokens
        connector.finish_step([request])
        manager.free(request)
        connector.request_finished(request)
        self.settle()

    def settle(self) -> list[LoadResult]:
        """Wait for all transfers; return the loads that ended. `drain` sleeps between looks, as an engine may."""
        found: list[LoadResult] = []
        while not self.connector.is_idle:
            found += self.connector.poll()
            time.sleep(0)
        return found


def compare(
    num_requests: int, seed: int, lookahead: int, store_on: str, folder: Path
) -> tuple[Counter[str], list[str]]:
    """Return what happened, how often, and the differences that were found."""
    random, counts, differences = Random(seed), Counter[str](), list[str]()
    engines = (Engine(folder / "disk", lookahead, store_on), Engine(None, lookahead, store_on))
    roots = [[random.randrange(99) for _ in range(32)] for _ in range(12)]
    try:
        for number in range(num_requests):
            root = random.choice(roots)
            prompt = root[: random.randrange(1, 33)] + [random.randrange(3) for _ in range(random.randrange(30))]
            owner = random.choice(OWNERS)
            made = [Request(f"r{number}", prompt, SIZE, hasher=each.hasher, **owner) for each in engines]
            routed = [engine.routed(request) for engine, request in zip(engines, made, strict=True)]
            asked = [engine.asked(request) for engine, request in zip(engines, made, strict=True)]
            if routed != asked:
                differences.append(f"request {number}, {len(prompt)} tokens, {owner}: {routed} routed, {asked} asked")
            counts["found on a device"] += any(each.device for each in asked)
            counts["found further on a tier"] += any(each.tiers > each.device for each in asked)
            chosen = max((0, 1), key=lambda at: (routed[at].tiers, routed[at].device, -engines[at].load))
            counts["chosen for its prefix"] += routed[chosen].tiers > routed[1 - chosen].tiers
            if random.random() < 0.1:
                chosen = 1 - chosen
            engine = engines[chosen]
            engine.serve(Request(f"r{number}", prompt, SIZE, hasher=engine.hasher, **owner))
            what = random.random()
            if what < 0.002:
                counts["resets"] += engine.manager.reset_prefix_cache()
            elif what < 0.003:
                counts["resets with tiers"] += 1
                engine.connector.reset_prefix_cache()
            elif what < 0.006 and owner:
                counts["owners forgotten"] += 1
                engine.connector.forget(**owner)
            elif what < 0.01:
                counts["prompts forgotten"] += 1
                engine.connector.forget(Request("gone", prompt, SIZE, hasher=engine.hasher, **owner))
            engine.settle()
            engine.tell()
            if number % 10_000 == 9_999:
                print(f"{number + 1:,} requests, {len(differences)} differences", file=sys.stderr, flush=True)
    finally:
        for engine in engines:
            engine.connector.close()
    return counts, differences


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--key-lookahead", type=int, default=0)
    parser.add_argument("--store-on", choices=("publish", "evict"), default="publish", help="of the engine with a disk")
    args = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        counts, differences = compare(args.requests, args.seed, args.key_lookahead, args.store_on, Path(folder))
    print("\n".join(differences[:10]))
    took = f"{args.requests:,} requests in {time.monotonic() - began:.0f} s"
    print(f"{took}: {dict(counts)}; {len(differences)} differences")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
