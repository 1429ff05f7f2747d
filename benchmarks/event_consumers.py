"""Real consumers of events, fed a replayed trace: do they end with the index that the manager and its tiers have?

    python benchmarks/event_consumers.py TRACE --vllm PYTHON --sglang FOLDER --dynamo FOLDER [--tiers]

PYTHON has vLLM installed, FOLDER holds an unpacked wheel of SGLang or of ai-dynamo-runtime. vLLM's and SGLang's own
classes decode what comes over a socket; Dynamo's indexer, a program of its own, subscribes, asks for replays, and shows
its tree. A consumer that joins when the backlog is overrun is given the snapshot. With --tiers the engine also stores
blocks on the host and on a disk, tells of them, forgets prompts and a tenant, and resets now and then; prompts are cut
short then.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

from blockwright import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheManager, Request, Sha256Hasher
from blockwright.observe import EventStream
from blockwright.observe.publisher import ZmqPublisher
from blockwright.observe.wire import Encoder, hash_of, kinds_of
from blockwright.offload import OffloadingConnector
from blockwright.offload.identity import CacheIdentity
from blockwright.replay import load_trace

SIZE, POOL, PORT = 16, 20_000, 18_090
SPEC = FullAttentionSpec(block_size=SIZE, num_kv_heads=1, head_size=1, dtype="bfloat16")

DECODING = """
import json, sys, types, zmq, msgspec
endpoint, replay, folder = sys.argv[1:]
if folder:  # SGLang's module alone, past what it imports of its engine
    for name in ("sglang.srt.runtime_context", "sglang.srt.utils.network"):
        module = sys.modules[name] = types.ModuleType(name)
        module.get_parallel = module.NetworkAddress = None
    source = open(folder + "/sglang/srt/disaggregation/kv_events.py").read()
    events = types.ModuleType("kv_events")
    sys.modules["kv_events"] = events
    exec(compile(source, "kv_events.py", "exec"), events.__dict__)
else:
    from vllm.distributed import kv_events as events
decoder = msgspec.msgpack.Decoder(type=events.KVEventBatch)
context, known, following, count, joining = zmq.Context(), set(), 0, 0, True
subscriber, asking = context.socket(zmq.SUB), context.socket(zmq.DEALER)
subscriber.set_hwm(10_000_000)
subscriber.connect(endpoint)
subscriber.subscribe(b"")
asking.connect(replay)
print("ready", flush=True)
def apply(payload):
    global count
    for event in decoder.decode(payload).events:
        if type(event) is events.BlockStored:
            assert len(event.token_ids) == event.block_size * len(event.block_hashes)
            known.update((event.medium, each) for each in event.block_hashes)
            count += len(event.block_hashes)
        elif type(event) is events.BlockRemoved:
            known.difference_update((event.medium, each) for each in event.block_hashes)
            count += len(event.block_hashes)
        else:
            known.clear()
while subscriber.poll(2000):
    _, number, payload = subscriber.recv_multipart()
    number = int.from_bytes(number, "big")
    if number > following:
        asking.send_multipart([b"", following.to_bytes(8, "big")])
        while (frames := asking.recv_multipart())[2] != b"\\xff" * 8:
            apply(frames[3])
            following = int.from_bytes(frames[2], "big") + 1
    if number == following:
        apply(payload)
        following += 1
    if joining:
        joining = print("joined", flush=True)
print(json.dumps([count, sorted(known)]))
"""
"""A consumer that needs nothing of ours: it decodes strictly, with the classes of vLLM or of SGLang."""


MEDIA = {
    "vllm": {"DISK": "STORAGE"},
    "sglang": {"CPU": "CPU_PINNED"},
    "dynamo": {"GPU": "device", "CPU": "host_pinned", "DISK": "disk"},
}
"""What consumers call the media, where it is not the same."""


class Replayed:
    """A manager that serves a trace, batch after batch, and the publisher of its events."""

    def __init__(self, trace: Path, form: str, backlog: int, folder: str = "") -> None:
        num_blocks = 1_000 if folder else POOL
        config = KVCacheConfig(num_blocks=num_blocks, kv_cache_groups=[KVCacheGroupSpec(["layers"], SPEC)])
        self.manager = KVCacheManager(config, max_model_len=200_000, enable_kv_cache_events=True)
        self.stream, self.hasher = EventStream(backlog), Sha256Hasher(b"seed")
        self.connector: OffloadingConnector | None = None
        if folder:
            import torch

            identity = CacheIdentity(model="toy", layout="", dtype="bfloat16", block_size=SIZE, hash_seed=b"seed")
            places: dict[str, Any] = {"host_blocks": 2_000, "disk": f"{folder}/blocks", "disk_blocks": 4_000}
            device = [torch.zeros(num_blocks, SIZE, 1, dtype=torch.bfloat16)]
            self.connector = OffloadingConnector.build(self.manager, device, identity=identity, events=True, **places)
        self.prompts = enumerate(cycle(load_trace(trace).requests))
        encoder = Encoder(form, groups=kinds_of([SPEC]))
        any_port = "tcp://127.0.0.1:0"
        self.publisher = ZmqPublisher(self.stream, any_port, any_port, encoder=encoder, high_water_mark=10_000_000)

    def serve(self, count: int) -> None:
        """Serve requests until `count` events were told, and publish them."""
        num_events = 0
        while num_events < count:
            number, recorded = next(self.prompts)
            salt = (None, "tenant")[number % 2]
            tokens = recorded.token_ids()[: 500 * SIZE if self.connector else None]
            request = Request(f"r{number}", tokens, SIZE, cache_salt=salt, hasher=self.hasher)
            hit, length = self.manager.get_computed_blocks(request)
            if self.manager.allocate_slots(request, request.num_tokens - length, length, hit) is not None:
                if self.connector is not None:
                    self.connector.start_step()
                request.num_computed_tokens = request.num_tokens
                if self.connector is not None:
                    self.connector.finish_step([request])
                self.manager.free(request)
            events: list[Any] = list(self.manager.take_events())
            if self.connector is not None:
                self._finish(self.connector, request, number)
                events += [*self.manager.take_events(), *self.connector.take_events()]
            num_events += len(events)
            self.stream.record(events)
            self.publisher.publish()
            time.sleep(0.02)  # about a step's time, in which the publisher's thread sends

    def _finish(self, connector: OffloadingConnector, request: Request, number: int) -> None:
        """End a request; now and then forget prompts or a tenant, or reset what can be."""
        connector.request_finished(request)
        connector.drain()
        if number % 50 == 20:
            connector.forget(request)
        elif number % 400 == 300:
            connector.forget(cache_salt="tenant")
        elif number % 500 == 400:
            self.manager.reset_prefix_cache()

    def found(self, names: dict[str, str]) -> set[tuple[str, int]]:
        """Return what the manager's own pool finds, and its tiers, as a consumer names it."""
        pool = {key for key in self.manager.block_pool.block_keys() if key is not None}
        keys = self.stream.known_keys()
        if {key[:16] for key, _, medium in keys if isinstance(key, bytes) and medium == "GPU"} != pool:
            raise AssertionError("EV-1: the stream's index is not the pool's")
        return {(names.get(medium, medium), hash_of(key)) for key, _, medium in keys}

    def close(self) -> None:
        self.publisher.close()
        if self.connector is not None:
            self.connector.close()


def decoded(trace: Path, python: str, folder: str, form: str, count: int, disk: str) -> str:
    """Feed a process that decodes with other people's classes; half of it before it joins."""
    engine = Replayed(trace, form, count // 4, disk)
    engine.serve(count // 2)
    command = [python, "-c", DECODING, engine.publisher.endpoint, str(engine.publisher.replay_endpoint), folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "ready\n":  # vLLM may say something before
            assert process.poll() is None
        time.sleep(1)
        engine.serve(1)
        process.stdout.readline()  # it has joined: from here on it hears every event as it comes
        engine.serve(count)
        said = process.stdout.read()
    engine.close()
    heard, known = json.loads(said.splitlines()[-1])
    return verdict({(medium, each) for medium, each in known}, engine.found(MEDIA[form]), heard)


def verdict(known: set[tuple[str, int]], ours: set[tuple[str, int]], heard: int) -> str:
    """Return whether a consumer knows what the manager finds."""
    media = ", ".join(f"{count:,} {medium}" for medium, count in sorted(Counter(medium for medium, _ in known).items()))
    return f"{heard:,} blocks reported, {len(known):,} known ({media}), {len(ours):,} found, {len(known ^ ours)} differ"


def call(path: str, data: object = None) -> str:
    """Ask Dynamo's indexer; "" while it is not there."""
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            text: str = answer.read().decode()
            return text or " "
    except urllib.error.URLError:
        return ""


@contextmanager
def indexer(folder: str) -> Iterator[None]:
    code = f'import dynamo._core as core; core.run_kv_indexer(["--port", "{PORT}", "--threads", "1"])'
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": folder}, **quiet)
    try:
        while not call("/health") and process.poll() is None:
            time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()


def tree() -> set[tuple[str, int]]:
    """Return the blocks in Dynamo's trees, one for each medium."""
    dump = json.loads(call("/dump"))
    events = [event for part in dump.values() for event in part["events"]]
    stored = [(event.get("storage_tier", "device"), event["event"]["data"]["stored"]) for event in events]
    return {(tier, block["block_hash"]) for tier, event in stored for block in event["blocks"]}


def indexed(trace: Path, folder: str, form: str, count: int, disk: str) -> str:
    """Feed Dynamo's indexer; it is killed on the way, and another one joins, when the backlog is overrun."""
    engine = Replayed(trace, form, count // 4, disk)
    endpoints = {"endpoint": engine.publisher.endpoint, "replay_endpoint": engine.publisher.replay_endpoint}
    own = {"instance_id": 1, "model_name": "m", "block_size": SIZE, "dp_rank": 0, **endpoints}
    known: set[tuple[str, int]] = set()
    for share in (count // 2, count):
        with indexer(folder):
            call("/register", own)
            time.sleep(0.5)
            engine.serve(share)
            for _ in range(100):
                time.sleep(0.2)
                known = tree()
                if known == engine.found(MEDIA["dynamo"]):
                    break
    engine.close()
    return verdict(known, engine.found(MEDIA["dynamo"]), count // 2 + count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--vllm", metavar="PYTHON")
    parser.add_argument("--sglang", metavar="FOLDER")
    parser.add_argument("--dynamo", metavar="FOLDER")
    parser.add_argument("--tiers", action="store_true")
    args = parser.parse_args()
    python, trace, count = args.vllm or sys.executable, args.trace, args.events
    with tempfile.TemporaryDirectory() as folder:
        disk = [f"{folder}/{at}" if args.tiers else "" for at in range(4)]
        for path in filter(None, disk):
            os.mkdir(path)
        if args.vllm:
            print("vLLM's classes:", decoded(trace, python, "", "vllm", count, disk[0]), flush=True)
        if args.sglang:
            print("SGLang's classes:", decoded(trace, python, args.sglang, "sglang", count, disk[1]), flush=True)
        for form, path in zip(("vllm", "sglang") if args.dynamo else (), disk[2:], strict=False):
            print(f"Dynamo's indexer, {form}:", indexed(trace, args.dynamo, form, count, path), flush=True)


if __name__ == "__main__":
    main()
