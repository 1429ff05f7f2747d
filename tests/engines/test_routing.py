"""Property: a router that follows vLLM's own publisher knows what vLLM's own manager finds, however it joined.

How: vLLM's manager serves random prompts, its events go through its `ZmqEventPublisher` over loopback to a
`ZmqSubscriber`, and each lookup is compared: joined first, late, after lost batches, after the engine was replaced, and
with a batch that cannot be read; for full attention and for hybrids, where the router may find less and never more.
Not covered: Blockwright's manager in vLLM (test_hybrids.py); SGLang's publisher, which is not installed here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
import zmq
from vllm.distributed.kv_events import KVEventBatch, ZmqEventPublisher
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.request import Request

from blockwright.observe.subscriber import ZmqSubscriber

SIZE = 4
HEADS: dict[str, Any] = {"block_size": SIZE, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}


def endpoints() -> list[str]:
    """Addresses that nobody listens at."""
    with zmq.Context() as context:
        sockets = [context.socket(zmq.PUB) for _ in range(2)]
        for socket in sockets:
            socket.bind("tcp://127.0.0.1:0")
        found = [socket.getsockopt_string(zmq.LAST_ENDPOINT).replace("127.0.0.1", "*") for socket in sockets]
        for socket in sockets:
            socket.close(linger=0)
    return found


def publisher(places: list[str], rank: int) -> ZmqEventPublisher:
    """vLLM's publisher, once an earlier one has let go of the addresses."""
    for _ in range(100):
        try:
            return ZmqEventPublisher(rank, endpoint=places[0], replay_endpoint=places[1], topic="kv", buffer_steps=50)
        except zmq.ZMQError:
            time.sleep(0.05)
    raise AssertionError(f"the addresses {places} stay in use")


class Engine:
    """vLLM's manager and publisher; some requests are looked up in one step, so that contents have copies."""

    def __init__(self, places: list[str], seed: int, windows: tuple[int, ...] = (), rank: int = 0) -> None:
        init_none_hash(sha256_cbor)
        specs = [FullAttentionSpec(**HEADS), *(SlidingWindowSpec(**HEADS, sliding_window=each) for each in windows)]
        groups = [KVCacheGroupSpec([f"l{at}"], spec) for at, spec in enumerate(specs)]
        self.random, self.count, self.live = Random(seed), 0, list[Any]()
        count = self.random.randint(14, 24) * len(groups)
        self.manager = KVCacheManager(
            KVCacheConfig(num_blocks=count, kv_cache_tensors=[], kv_cache_groups=groups),
            max_model_len=512, hash_block_size=SIZE, enable_caching=True, enable_kv_cache_events=True,
            scheduler_block_size=SIZE, max_in_flight_tokens=512,
        )  # fmt: skip
        self.hasher = get_request_block_hasher(SIZE, sha256_cbor)
        self.publisher = publisher(places, rank)
        self.sent = 0

    def request(self, tokens: list[int]) -> Any:
        self.count += 1
        return Request(f"r{self.count}", tokens, SamplingParams(max_tokens=8), None, block_hasher=self.hasher)

    def step(self) -> None:
        random, manager = self.random, self.manager
        if random.random() < 0.6 or not self.live:
            new = []
            for _ in range(random.randint(1, 3)):
                head = [random.randrange(2)] * (random.randint(1, 4) * SIZE)
                each = self.request(head + [random.randrange(2) for _ in range(random.randint(1, 5))])
                new.append((each, *manager.get_computed_blocks(each)[:2]))
            for each, hit, length in new:
                if manager.allocate_slots(each, each.num_tokens - length, length, hit) is not None:
                    each.num_computed_tokens = each.num_tokens
                    self.live.append(each)
        else:
            manager.free(self.live.pop(random.randrange(len(self.live))))
        if not self.live and random.random() < 0.2:
            manager.reset_prefix_cache()
        if events := manager.take_events():
            self.publisher.publish(KVEventBatch(ts=float(self.sent), events=events))
            self.sent += 1

    def compare(self, router: ZmqSubscriber, exact: bool = True) -> int:
        """Compare some lookups, once the router has heard of everything."""
        for _ in range(100):
            router.poll(0.02)
            if router._next == self.sent and router.is_complete | (not exact):
                break
        hits = 0
        for token in (0, 1):
            prompt = [token] * (5 * SIZE + 1)
            found = self.manager.get_computed_blocks(self.request(prompt))[1]
            routed = router.index.match(prompt, leave=1)
            assert routed == found if exact else routed <= found
            hits += routed > 0
        return hits


@pytest.fixture(params=[(), (6,), (9, 6)], ids=["full", "window", "windows"])
def windows(request: Any) -> Any:
    return request.param


@pytest.fixture
def places() -> list[str]:
    return endpoints()


@pytest.fixture
def engine(places: list[str], windows: tuple[int, ...]) -> Iterator[Engine]:
    engine = Engine(places, 7, windows)
    yield engine
    engine.publisher.shutdown()


def router(places: list[str], **options: Any) -> ZmqSubscriber:
    return ZmqSubscriber(*(each.replace("*", "127.0.0.1") for each in places), topic="kv", patience=0.5, **options)


def test_who_joins_first_and_who_joins_late(engine: Engine, places: list[str]) -> None:
    with router(places) as first:
        hits = 0
        for _ in range(25):
            engine.step()
            hits += engine.compare(first)
        with router(places) as late:
            for _ in range(15):
                engine.step()
                engine.compare(first)
                hits += engine.compare(late)
        assert hits > 20
        assert first.is_complete
        assert first.num_gaps == first.num_snapshots == first.num_unknown == 0


def test_what_was_lost_comes_again_and_what_is_gone_is_said(engine: Engine, places: list[str]) -> None:
    with router(places) as one:
        for count in (3, 4, 10):
            for _ in range(count):
                engine.step()
            while one._sub.poll(300):
                one._sub.recv_multipart()  # which do not come
            engine.step()
            engine.compare(one)
        while engine.sent < 120:  # more than are kept
            engine.step()
        with router(places) as late:
            for _ in range(40):
                late.poll(0.05)
            assert not late.is_complete
            engine.compare(late, exact=False)


def test_another_engine_is_not_taken_for_the_first(engine: Engine, places: list[str], windows: tuple[int, ...]) -> None:
    with router(places) as one:
        for _ in range(12):
            engine.step()
        engine.compare(one)
        engine.publisher.shutdown()
        other = Engine(places, 8, windows)
        for _ in range(20):
            other.step()
        for _ in range(30):
            one.poll(0.1)
        other.step()
        other.compare(one)
        other.publisher.shutdown()


def test_a_batch_that_cannot_be_read_is_a_gap(engine: Engine, places: list[str]) -> None:
    with router(places) as one:
        for number in range(10):
            engine.step()
            if number == 5:
                engine.publisher.publish(KVEventBatch(ts=0.0, events=[{"type": "BlockStored"}]))
                engine.publisher.publish(KVEventBatch(ts=0.0, events=[{"type": "TierBlocksCleared"}]))
                engine.sent += 2
        engine.compare(one)
        assert (one.num_gaps, one.num_unknown, one.is_complete) == (1, 1, False)
