"""Property: below a host tier, a shared store brings back what it was given, and what it loses is a miss, no more.

How: a chain of a small host tier and a manager of a store, with every transfer carried out on real bytes: blocks go
down as the host fills, and come up again; in between the store forgets some, is spoiled, or goes away. Every load that
succeeds is compared, and at the end nothing is under way anywhere.
Not covered: transfers in any other order than that in which they may start (the gates of the chain).
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("fsspec", reason="needs fsspec: pip install fsspec")

from tests.offload.stores.shared_spaces import Space, space_of

from blockwright.errors import NoFreeBlocksError, UnsupportedError
from blockwright.offload.media import KeyedLoadStoreSpec
from blockwright.offload.shared.manager import SharedStoreManager
from blockwright.offload.tiers.backend import CPUBackend
from blockwright.offload.tiers.chain import OffloadChain
from blockwright.offload.tiers.interfaces import BlockIDsLoadStoreSpec, LoadStoreSpec
from blockwright.offload.tiers.lru import LRUOffloadingManager
from blockwright.offload.tiers.transfers import Transfer

SIZE, HOST = 4000, 4


class Engine:
    """A device, a host and a store of bytes, and a chain that says what goes where."""

    def __init__(self, space: Space) -> None:
        self.store = space.open(failures=2, backoff=0.001, longest_backoff=0.01)
        self.shared = SharedStoreManager(self.store, 16)
        self.chain = OffloadChain([LRUOffloadingManager(CPUBackend(16, HOST)), self.shared], reserve=2)
        self.device = [bytearray(SIZE) for _ in range(8)]
        self.host = [bytearray(SIZE) for _ in range(HOST)]

    def run(self) -> None:
        """Carry out transfers until none is left."""
        while transfers := self.chain.take_transfers():
            for each in transfers:
                self.chain.finish(each.job_id, self.carried_out(each))

    def carried_out(self, transfer: Transfer) -> bool:
        if isinstance(transfer.destination, KeyedLoadStoreSpec):
            views = self.views(transfer.source)
            items = [(key, None, [view]) for key, view in zip(transfer.block_hashes, views, strict=True)]
            return all(self.store.put_many(items))
        views = self.views(transfer.destination)
        if isinstance(transfer.source, KeyedLoadStoreSpec):
            items = [(key, None, [view]) for key, view in zip(transfer.block_hashes, views, strict=True)]
            return all(self.store.get_many(items))
        for source, destination in zip(self.views(transfer.source), views, strict=True):
            destination[:] = source
        return True

    def views(self, spec: LoadStoreSpec) -> list[memoryview]:
        assert isinstance(spec, BlockIDsLoadStoreSpec)
        pool = self.device if spec.medium() == "GPU" else self.host
        return [memoryview(pool[block]) for block in spec.block_ids]

    def save(self, key: bytes) -> None:
        self.device[0][:] = content(key)
        assert self.chain.store([key], [0]) is not None
        self.run()

    def load(self, keys: list[bytes]) -> bool:
        """Bring blocks to the device, if all are found; what comes must be right."""
        if self.chain.lookup(keys) < len(keys):
            return False
        blocks = list(range(1, 1 + len(keys)))
        try:
            self.chain.load(keys, blocks)
        except NoFreeBlocksError:
            return False
        self.run()
        (finished,) = [each for each in self.chain.take_finished() if each.kind == "load"]
        if finished.success:
            assert [bytes(self.device[block]) for block in blocks] == [content(key) for key in keys]
        return finished.success


def content(key: bytes) -> bytes:
    return Random(key).randbytes(SIZE)


@pytest.fixture(params=["server", "memory"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Space, Engine]]:
    url = request.getfixturevalue("server").url if request.param == "server" else ""
    space = space_of(request.param, url, tmp_path)
    yield space, Engine(space)
    space.close()


def test_blocks_go_down_and_come_up(engine: tuple[Space, Engine]) -> None:
    _, ours = engine
    keys = [bytes([at + 1]) * 8 for at in range(10)]
    for key in keys:
        ours.save(key)
    assert ours.chain.lookup(keys) == 10
    assert [ours.load([key]) for key in keys] == [True] * 10
    assert ours.store.stats().found >= 6
    assert ours.load(keys[:2])


def test_what_vanishes_is_a_miss_and_is_stored_anew(engine: tuple[Space, Engine]) -> None:
    space, ours = engine
    keys = [bytes([at + 1]) * 8 for at in range(6)]
    for key in keys:
        ours.save(key)
    space.replace(ours.store, keys[0], b"spoiled")  # the store still says that it has it
    assert ours.chain.lookup(keys[:1]) == 1
    assert not ours.load(keys[:1])
    assert ours.chain.lookup(keys[:1]) == 0
    ours.save(keys[0])
    for key in keys[1:]:
        ours.save(key)  # it goes down again, over what is there
    assert ours.load(keys[:1])


@pytest.mark.parametrize("seed", range(3))
def test_histories(engine: tuple[Space, Engine], seed: int) -> None:
    space, ours = engine
    random, loaded = Random(seed), 0
    keys = [bytes([at + 1]) * 8 for at in range(12)]
    for _ in range(150):
        key = random.choice(keys)
        what = random.choices(("save", "load", "forget", "spoil"), (6, 6, 1, 1))[0]
        if what == "save":
            ours.save(key)
        elif what == "load":
            loaded += ours.load([key])
        elif what == "forget":
            ours.store.remove([key])
        else:
            space.replace(ours.store, key, content(key)) if ours.store.contains([key]) == [True] else None
        ours.chain.check()
        ours.shared.check()
    assert loaded > 10
    assert [ours.shared.status_of(key) for key in keys] == [None] * 12
    assert ours.chain.pins() == {}


def test_a_store_is_no_nearest_tier(engine: tuple[Space, Engine]) -> None:
    _, ours = engine
    with pytest.raises(UnsupportedError, match="SharedStoreManager cannot be the tier nearest to the device"):
        OffloadChain([ours.shared])
