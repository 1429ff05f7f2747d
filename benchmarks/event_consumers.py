"""Real consumers of events, fed a replayed trace: do they end with the index that the manager has?

    python benchmarks/event_consumers.py TRACE --vllm PYTHON --sglang FOLDER --dynamo FOLDER

PYTHON has vLLM installed, FOLDER holds an unpacked wheel of SGLang or of ai-dynamo-runtime. vLLM's and SGLang's own
classes decode what comes over a socket; Dynamo's indexer, a program of its own, subscribes, asks for replays, and shows
its tree. A consumer that joins when the backlog is overrun is given the snapshot.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

from blockwright import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheManager, Request, Sha256Hasher
from blockwright.observe import EventStream
from blockwright.observe.publisher import ZmqPublisher
from blockwright.observe.wire import Encoder, hash_of, kinds_of
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
            known.update(event.block_hashes)
            count += len(event.block_hashes)
        elif type(event) is events.BlockRemoved:
            known.difference_update(event.block_hashes)
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


class Replayed:
    """A manager that serves a trace, batch after batch, and the publisher of its events."""

    def __init__(self, trace: Path, form: str, backlog: int) -> None:
        config = KVCacheConfig(num_blocks=POOL, kv_cache_groups=[KVCacheGroupSpec(["layers"], SPEC)])
        self.manager = KVCacheManager(config, max_model_len=200_000, enable_kv_cache_events=True)
        self.stream, self.hasher = EventStream(backlog), Sha256Hasher(b"seed")
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
            request = Request(f"r{number}", recorded.token_ids(), SIZE, cache_salt=salt, hasher=self.hasher)
            hit, length = self.manager.get_computed_blocks(request)
            if self.manager.allocate_slots(request, request.num_tokens - length, length, hit) is not None:
                request.num_computed_tokens = request.num_tokens
                self.manager.free(request)
            events = self.manager.take_events()
            num_events += len(events)
            self.stream.record(events)
            self.publisher.publish()
            time.sleep(0.02)  # about a step's time, in which the publisher's thread sends

    def found(self) -> set[int]:
        """Return what the manager's own pool finds, as the wire names it."""
        pool = {key for key in self.manager.block_pool.block_keys() if key is not None}
        keys = {key for key, _, _ in self.stream.known_keys()}
        if {key[:16] for key in keys if isinstance(key, bytes)} != pool:
            raise AssertionError("EV-1: the stream's index is not the pool's")
        return {hash_of(key) for key in keys}


def decoded(trace: Path, python: str, folder: str, form: str, count: int) -> str:
    """Feed a process that decodes with other people's classes; half of it before it joins."""
    engine = Replayed(trace, form, backlog=count // 4)
    engine.serve(count // 2)
    command = [python, "-c", DECODING, engine.publisher.endpoint, str(engine.publisher.replay_endpoint), folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(1)
        engine.serve(1)
        process.stdout.readline()  # it has joined: from here on it hears every event as it comes
        engine.serve(count)
        said = process.stdout.read()
    engine.publisher.close()
    heard, known = json.loads(said)
    return verdict(engine, set(known), heard)


def verdict(engine: Replayed, known: set[int], heard: int) -> str:
    """Return whether a consumer knows what the manager finds."""
    ours = engine.found()
    return f"{heard:,} blocks reported, {len(known):,} known, {len(ours):,} found, {len(known ^ ours)} differ"


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


def tree() -> set[int]:
    """Return the blocks in Dynamo's tree."""
    dump = json.loads(call("/dump"))
    stored = [event["event"]["data"]["stored"] for part in dump.values() for event in part["events"]]
    return {block["block_hash"] for event in stored for block in event["blocks"]}


def indexed(trace: Path, folder: str, form: str, count: int) -> str:
    """Feed Dynamo's indexer; it is killed on the way, and another one joins, when the backlog is overrun."""
    engine = Replayed(trace, form, backlog=count // 4)
    endpoints = {"endpoint": engine.publisher.endpoint, "replay_endpoint": engine.publisher.replay_endpoint}
    own = {"instance_id": 1, "model_name": "m", "block_size": SIZE, "dp_rank": 0, **endpoints}
    known: set[int] = set()
    for share in (count // 2, count):
        with indexer(folder):
            call("/register", own)
            time.sleep(0.5)
            engine.serve(share)
            for _ in range(100):
                time.sleep(0.2)
                known = tree()
                if known == engine.found():
                    break
    engine.publisher.close()
    return verdict(engine, known, count // 2 + count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--vllm", metavar="PYTHON")
    parser.add_argument("--sglang", metavar="FOLDER")
    parser.add_argument("--dynamo", metavar="FOLDER")
    args = parser.parse_args()
    python = args.vllm or sys.executable
    if args.vllm:
        print("vLLM's classes:", decoded(args.trace, python, "", "vllm", args.events), flush=True)
    if args.sglang:
        print("SGLang's classes:", decoded(args.trace, python, args.sglang, "sglang", args.events), flush=True)
    for form in ("vllm", "sglang") if args.dynamo else ():
        print(f"Dynamo's indexer, {form}:", indexed(args.trace, args.dynamo, form, args.events), flush=True)


if __name__ == "__main__":
    main()
