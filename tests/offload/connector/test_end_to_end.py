"""Property: three tiers of real media below a manager serve each token the bytes of its prefix, whatever goes wrong.

How: the engine of test_connector.py over the host's memory, a directory and a shared store, with the threads and files
of a real engine; handlers refuse, raise, fail and are cancelled, requests fork, are preempted and aborted, prefixes are
reset; then the engine stops, and another opens the same directory and store. At each stop nothing is pinned, the events
give the index of each tier, and each block that a tier has is what its key says.
Not covered: crashes amid a write (test_offload_crash.py), faults of a server (test_shared_faults.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("torch")
pytest.importorskip("fsspec", reason="needs fsspec: pip install fsspec")

import torch
from tests.offload.connector.engine import WIDTH, Engine, chunked, full, mamba, number, sliding
from tests.offload.stores.mooncake_support import MooncakeSpace
from tests.offload.stores.shared_spaces import Space, space_of

from blockwright import KVCacheSpec, MambaSpec, Request
from blockwright.offload import (
    CacheIdentity,
    CPULoadStoreSpec,
    DiskBackend,
    DiskLoadStoreSpec,
    DiskStore,
    LRUOffloadingManager,
    OffloadingManager,
    RelayHandler,
    SharedLoadStoreSpec,
    SharedStoreManager,
    StoreHandler,
)
from blockwright.offload.hits import GroupBlocks
from blockwright.offload.tiers.interfaces import BlockIDsLoadStoreSpec
from blockwright_lab.media.cluster import FakeCluster, RealCluster, missing

DISK_BLOCKS = 14
IDENTITY = CacheIdentity("model", "tokens, width", "int64", 2, b"seed")


class Media:
    """A directory and a shared store, opened for one engine, as its tiers below the host."""

    def __init__(self, folder: Path, space: Space, timeout: float | None = None) -> None:
        self.folder, self.space, self.timeout = folder, space, timeout
        self.shared = space.open(IDENTITY)

    def __call__(self, engine: Engine) -> list[OffloadingManager]:
        pool, worker, tokens = engine.pool, engine.worker, 4 * engine.per_block
        self.disk = DiskStore(self.folder, IDENTITY, pool.bytes_per_block, DISK_BLOCKS)
        self.handlers = [
            StoreHandler(pool, self.disk, batch=2, max_queued=3, timeout=self.timeout),
            StoreHandler(pool, self.shared, batch=2, max_queued=3, timeout=self.timeout),
            RelayHandler(self.disk, self.shared, pool.bytes_per_block, max_queued=3, timeout=self.timeout),
        ]
        on_disk, in_store, between = map(engine.faulty, self.handlers)
        worker.register_handler(CPULoadStoreSpec, DiskLoadStoreSpec, on_disk)
        worker.register_handler(DiskLoadStoreSpec, CPULoadStoreSpec, on_disk)
        worker.register_handler(SharedLoadStoreSpec, CPULoadStoreSpec, in_store)
        worker.register_handler(DiskLoadStoreSpec, SharedLoadStoreSpec, between)
        self.recovered = {key for key, _ in self.disk.blocks()}
        return [
            LRUOffloadingManager(DiskBackend(tokens, self.disk), enable_events=True),
            SharedStoreManager(self.shared, tokens, enable_events=True),
        ]

    def close(self) -> None:
        for handler in self.handlers:
            handler.close()
        self.disk.close()
        self.shared.close()


class History:
    """What happened to one engine with three tiers, and what its blocks must be."""

    def __init__(self, engine: Engine, media: Media, readable: set[bytes]) -> None:
        self.engine, self.media, self.random = engine, media, Random(engine.random.random())
        self.index: dict[str, set[bytes]] = {"CPU": set(), "DISK": set(media.recovered), "STORE": readable}
        self.requests: list[Request] = []
        self.num_forks = self.num_cancelled = self.num_resets = 0

    def run(self, steps: int) -> None:
        engine, random = self.engine, self.random
        for at in range(steps):
            if len(engine.waiting) < 3:
                length = random.choice([5, 9, 12, 13, 17, 20])
                stem = [random.randrange(5)] * 8
                tokens = (stem + [random.randrange(2) for _ in range(4)] + [7] * 12)[:length]
                self.requests.append(engine.send(f"r{at}", tokens))
            engine.step()
            engine.connector.check()
            self.replay()
            self.meddle(at)
        engine.stop()
        self.replay()

    def meddle(self, at: int) -> None:
        engine, random = self.engine, self.random
        for request in [*engine.waiting, *engine.loading.values(), *engine.running]:
            if request.num_output_tokens > 6 or random.random() < 0.05:
                engine.end(request)
        if engine.running and not engine.manager.overlap_steps and random.random() < 0.2:
            parent = random.choice(engine.running)
            engine.fork(parent, f"f{at}")
            self.requests += [child for child in engine.running if child.request_id == f"f{at}"]
            self.num_forks += 1
        if engine.running and random.random() < 0.1:
            engine.preempt(engine.running[-1]) if not engine.manager.overlap_steps else None
        for job in range(self.last_job() - 3, self.last_job()):
            if random.random() < engine.rate:
                self.num_cancelled += engine.worker.cancel(job)
        if random.random() < 0.03:
            for request in [*engine.waiting, *engine.loading.values(), *engine.running]:
                engine.end(request)
            engine.collect(last=True)
            self.num_resets += engine.manager.reset_prefix_cache()

    def last_job(self) -> int:
        return max(self.engine.chain._jobs.under_way, default=0) + 1

    def replay(self) -> None:
        for event in self.engine.connector.take_events():
            keys = self.index[event.medium]
            if event.removed:
                assert keys >= set(event.block_hashes) or event.medium == "STORE"
                keys.difference_update(event.block_hashes)
            else:
                assert not keys & set(event.block_hashes) or event.medium == "STORE"
                keys.update(event.block_hashes)

    # ------------------------------------------------------------------ at the stop

    def contents(self) -> dict[bytes, list[list[int]]]:
        """What each offloaded block must hold: per device block, the numbers of its slots."""
        found: dict[bytes, list[list[int]]] = {}
        k = self.engine.per_block
        for request in self.requests:
            tokens = request.all_token_ids
            for at, (spec, manager) in enumerate(zip(self.engine.specs, self.engine.manager.managers, strict=True)):
                blocks, size = GroupBlocks(manager, at, request, k), spec.block_size
                for index in range(blocks.count(len(tokens))):
                    begins = range(index * k * size, (index + 1) * k * size, size)
                    found[blocks.key(index)] = [slots(spec, at, tokens, begin) for begin in begins]
                for end in range(0, len(tokens) + 1, self.engine.unit or size):
                    if end % size:
                        found[blocks.key_to(end)] = [part(spec, at, tokens, end)]
        return found

    def verify(self) -> None:
        """Compare every block that a tier has with its key, and the tiers' indices with the events."""
        contents, engine = self.contents(), self.engine
        host, disk = engine.chain.tiers[0], engine.chain.tiers[1]
        assert isinstance(host, LRUOffloadingManager)
        assert isinstance(disk, LRUOffloadingManager)
        assert set(host.recency()) == self.index["CPU"]
        assert set(disk.recency()) == self.index["DISK"]
        for key in host.recency():
            places = host.places_of([key])
            assert isinstance(places, BlockIDsLoadStoreSpec)
            self.compare(engine.pool.block_view(places.block_ids[0]), key, contents)
        buffer = memoryview(bytearray(engine.pool.bytes_per_block))
        for key in disk.recency():
            places = disk.places_of([key])
            assert isinstance(places, BlockIDsLoadStoreSpec)
            assert self.media.disk.get(key, places.block_ids[0], [buffer])
            self.compare(buffer, key, contents)
        for key in self.index["STORE"]:
            assert self.media.shared.get(key, None, [buffer])
            self.compare(buffer, key, contents)

    def compare(self, view: memoryview, key: bytes, contents: dict[bytes, list[list[int]]]) -> None:
        rows = torch.frombuffer(bytearray(view), dtype=torch.int64).view(-1, WIDTH).tolist()
        wanted = contents.get(key)
        if wanted is not None:  # else of a life before
            assert [row[: len(slot)] for row, slot in zip(rows, wanted, strict=True)] == wanted


def slots(spec: KVCacheSpec, group: int, tokens: list[int], begin: int) -> list[int]:
    """The numbers in the slots of one device block."""
    end = begin + spec.block_size
    return [number(group, tokens[: end if isinstance(spec, MambaSpec) else at + 1]) for at in range(begin, end)]


def part(spec: KVCacheSpec, group: int, tokens: list[int], end: int) -> list[int]:
    """The numbers in the slots of a block up to an end inside it."""
    if isinstance(spec, MambaSpec):
        return [number(group, tokens[:end])] * spec.block_size
    return [number(group, tokens[:at]) for at in range(end - end % spec.block_size + 1, end + 1)]


@pytest.fixture(params=["memory", "server", "mooncake"])
def space(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Space]:
    if request.param == "mooncake":  # real processes, where they can be had
        cluster = FakeCluster() if missing() else RealCluster(tmp_path)
        with closing(cluster), closing(MooncakeSpace(cluster)) as stores:
            yield stores
        return
    url = request.getfixturevalue("server").url if request.param == "server" else ""
    space = space_of(request.param, url, tmp_path)
    yield space
    space.close()


CASES = {
    "full": ([full(4)], "publish", {}),
    "full, evict, freed by loads": ([full(4)], "evict", {"on_load": "free"}),
    "sliding, of two": ([full(4), sliding(2, 5)], "publish", {"per_block": 2}),
    "chunked, through": ([chunked(4, 8), full(2)], "publish", {"write": "through"}),
    "mamba": ([full(4), mamba(4)], "evict", {}),
    "steps in flight": ([full(4), sliding(2, 5)], "evict", {"overlap": True}),
    "at the threads' own pace": ([full(4)], "publish", {"races": True}),
    "hits inside blocks": ([full(4), sliding(2, 5)], "publish", {"unit": 1}),
    "hits inside blocks, states": ([full(4), mamba(4)], "publish", {"unit": 1}),
    "hits inside blocks, steps in flight": ([full(4)], "publish", {"unit": 2, "overlap": True}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_lives_of_an_engine(
    case: tuple[list[KVCacheSpec], str, dict[str, object]], tmp_path: Path, space: Space
) -> None:
    specs, store_on, options = case
    readable: set[bytes] = set()
    lower = loaded = 0
    for life in range(20 if "races" in options else 6):
        media = Media(tmp_path / "disk", space, timeout=0.01 if "races" in options else None)
        engine = Engine(
            specs,
            store_on,
            seed=life,
            host_blocks=12,
            rate=0.06,
            lower=media,
            **options,  # type: ignore[arg-type]
        )
        history = History(engine, media, readable)
        history.run(50)
        history.verify()
        readable = history.index["STORE"]
        loaded += engine.num_loaded
        stats = engine.worker.stats()
        lower += sum(counts.succeeded for pair, counts in stats.items() if pair[1] == "STORE")
        media.close()
        if life and loaded and lower:
            break
    assert loaded > 0
    assert lower > 0
