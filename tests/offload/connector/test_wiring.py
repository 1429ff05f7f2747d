"""Property: a connector whose parts do not fit one another is refused when it is made, a request whose blocks nobody
would find again when it comes; what `OffloadingConnector.build` puts together fits, and is found after a restart.

How: each part left out or made too small in turn; a directory that two connectors use one after the other.
Not covered: what connectors do with right parts (test_connector*.py).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install torch")

import torch

from blockwright import (
    BlockHasher,
    FullAttentionSpec,
    FunctionHasher,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    Request,
    Sha256Hasher,
    SipHasher,
)
from blockwright.errors import InvalidArgumentError, StoreDirectoryError
from blockwright.offload import (
    CacheIdentity,
    CPUBackend,
    CPULoadStoreSpec,
    DiskBackend,
    DiskLoadStoreSpec,
    DiskStore,
    GPULoadStoreSpec,
    HostHandler,
    HostPool,
    LRUOffloadingManager,
    OffloadChain,
    OffloadingConnector,
    OffloadingWorker,
    RelayHandler,
    StoreHandler,
)

BLOCKS = 8
IDENTITY = CacheIdentity("tiny", "2 tokens, 4", "float32", 2, b"seed")


def manager_of(**options: Any) -> KVCacheManager:
    spec = FullAttentionSpec(block_size=2, num_kv_heads=1, head_size=2, dtype="float32")
    config = KVCacheConfig(num_blocks=BLOCKS, kv_cache_groups=[KVCacheGroupSpec(["layers.0"], spec)])
    return KVCacheManager(config, max_model_len=32, **options)


def tensors(blocks: int = BLOCKS) -> list[torch.Tensor]:
    return [torch.arange(blocks * 8, dtype=torch.float32).reshape(blocks, 2, 4)]


def wired(
    folder: Path, *, device: int = BLOCKS, host: int = 4, pool: int = 4, lacking: tuple[str, str] | None = None
) -> OffloadingConnector:
    """A connector over the host and a disk, with parts of these sizes, and one pair of media without a handler."""
    made = HostPool(tensors(), pool)
    near, store = HostHandler(tensors(device), made), DiskStore(folder / "blocks", IDENTITY, made.bytes_per_block, 6)
    worker, below = OffloadingWorker(), StoreHandler(made, store)
    pairs: list[tuple[type[Any], type[Any], Any]] = [
        (GPULoadStoreSpec, CPULoadStoreSpec, near),
        (CPULoadStoreSpec, GPULoadStoreSpec, near),
        (CPULoadStoreSpec, DiskLoadStoreSpec, below),
        (DiskLoadStoreSpec, CPULoadStoreSpec, below),
    ]
    for source, destination, handler in pairs:
        if (source.medium(), destination.medium()) != lacking:
            worker.register_handler(source, destination, handler)
    chain = OffloadChain([LRUOffloadingManager(CPUBackend(2, host)), LRUOffloadingManager(DiskBackend(2, store))])
    try:
        return OffloadingConnector(manager_of(), chain, worker, media=[store])
    except BaseException:
        worker.close()
        store.close()
        raise


@pytest.mark.parametrize("lacking", [("GPU", "CPU"), ("CPU", "GPU"), ("CPU", "DISK"), ("DISK", "CPU")])
def test_each_pair_of_media_needs_a_handler(tmp_path: Path, lacking: tuple[str, str]) -> None:
    with pytest.raises(InvalidArgumentError, match=f"no handler serves {lacking[0]} to {lacking[1]}; register one"):
        wired(tmp_path, lacking=lacking)
    wired(tmp_path).close()


def test_a_handler_derives_from_the_base() -> None:
    class Half:
        def transfer_async(self, job_id: int, spec: object) -> bool:
            return False

    with pytest.raises(InvalidArgumentError, match="handler: must be an OffloadingHandler"):
        OffloadingWorker().register_handler(GPULoadStoreSpec, CPULoadStoreSpec, Half())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "kinds", "fits"),
    [
        ("bfloat16", ["float16"], False),
        ("torch.half", ["float16"], True),
        ("float32", ["float16", "float32"], True),  # states beside keys and values
        ("fp8", ["float8_e5m2"], True),
        ("fp8", ["float16"], False),
        ("float16", ["uint8"], True),  # bytes say nothing of the elements
        ("our own", ["float16"], True),
    ],
)
def test_an_identity_names_the_type_of_the_tensors(name: str, kinds: list[str], fits: bool, tmp_path: Path) -> None:
    tensors = [torch.zeros(8, 2, 2, dtype=getattr(torch, kind)) for kind in kinds]
    identity = CacheIdentity("tiny", "2 tokens", name, 2, b"seed")
    disk = tmp_path / "disk"

    def refused() -> AbstractContextManager[object]:
        return nullcontext() if fits else pytest.raises(InvalidArgumentError, match=f"identity: its dtype is {name}")

    with refused():
        build = OffloadingConnector.build
        build(manager_of(), tensors, host_blocks=4, disk=disk, disk_blocks=4, identity=identity).close()
    assert disk.exists() == fits
    host = HostPool(tensors, 4)
    with DiskStore(tmp_path / "by hand", identity, host.bytes_per_block, 4) as store, refused():
        StoreHandler(host, store).close()


def test_no_more_is_given_out_than_there_is(tmp_path: Path) -> None:
    for sizes, said in (
        ({"host": 5}, "tier 0 gives out 5 blocks of CPU, the handler of GPU to CPU reaches 4"),
        ({"device": 7}, "the manager's pool gives out 8 blocks of GPU, the handler of GPU to CPU reaches 7"),
    ):
        with pytest.raises(InvalidArgumentError, match=said):
            wired(tmp_path, **sizes)  # type: ignore[arg-type]
    wired(tmp_path, pool=9, device=9).close()


def test_blocks_that_leave_the_process_are_hashed_for_others(tmp_path: Path) -> None:
    connector = wired(tmp_path)
    wrong: list[BlockHasher | None] = [None, SipHasher(bytes(16)), Sha256Hasher(b"another")]
    right: list[BlockHasher | None] = [Sha256Hasher(b"seed"), connector.hasher]
    for hasher in wrong:
        request = Request("r", list(range(9)), hasher=hasher)
        with pytest.raises(InvalidArgumentError, match=r"'r' is hashed under .*=Sha256Hasher\(identity.hash_seed\)"):
            connector.get_num_new_matched_tokens(request, 0)
        with pytest.raises(InvalidArgumentError, match="is hashed under"):
            connector.finish_step([request])
    own = FunctionHasher(lambda parent, data: bytes(32), is_collision_resistant=True)
    for hasher in (own, *right):
        assert connector.get_num_new_matched_tokens(Request("r", list(range(9)), hasher=hasher), 0) == (0, False)
    assert connector.get_num_new_matched_tokens(Request("r", [1, 2, 3], None), 0) == (0, False)
    connector.close()


def test_stores_below_each_other_are_of_one_identity(tmp_path: Path) -> None:
    other = CacheIdentity("tiny", "2 tokens, 4", "float32", 2, b"other")
    worker = OffloadingWorker()
    with DiskStore(tmp_path / "a", IDENTITY, 64, 2) as one, DiskStore(tmp_path / "b", other, 64, 2) as two:
        pool = HostPool(tensors(), 4)
        near = HostHandler(tensors(), pool)
        worker.register_handler(GPULoadStoreSpec, CPULoadStoreSpec, near)
        worker.register_handler(CPULoadStoreSpec, GPULoadStoreSpec, near)
        worker.register_handler(DiskLoadStoreSpec, DiskLoadStoreSpec, RelayHandler(one, two, 64))
        with pytest.raises(InvalidArgumentError, match="different identities"):
            OffloadingConnector(manager_of(), OffloadChain([LRUOffloadingManager(CPUBackend(2, 4))]), worker)
        worker.close()


# ---------------------------------------------------------------------- build


def served(connector: OffloadingConnector, manager: KVCacheManager, device: torch.Tensor, tokens: list[int]) -> int:
    """Serve a prompt, loading what can be loaded, and return how many tokens that was; check what was loaded."""
    request = Request(f"r{tokens[0]}", tokens, hasher=connector.hasher)
    hit, local = manager.get_computed_blocks(request)
    external, _ = connector.get_num_new_matched_tokens(request, local)
    if external:
        given = manager.allocate_slots(request, 0, local, hit, num_external_computed_tokens=external)
        assert given is not None
        connector.update_state_after_alloc(request, external)
        connector.start_step()
        assert [each.num_tokens for each in connector.drain()] == [external]
        request.num_computed_tokens = local + external
        for entry, block in enumerate(manager.get_block_ids(request.request_id)[0]):
            assert device[block, :, 0].tolist() == tokens[2 * entry : 2 * entry + 2]
        hit, local = manager.create_empty_block_list(), 0
    computed = request.num_computed_tokens
    given = manager.allocate_slots(request, len(tokens) - computed - local, local, hit)
    assert given is not None
    connector.start_step()
    table = manager.get_block_ids(request.request_id)[0]
    for position in range(computed + local, len(tokens)):
        device[table[position // 2], position % 2] = tokens[position]
    request.num_computed_tokens = len(tokens)
    connector.finish_step([request])
    manager.free(request)
    connector.request_finished(request)
    connector.drain()
    return external


@pytest.mark.parametrize(
    ("store_on", "write"), [("publish", "through"), ("evict", "through"), ("publish", "back"), ("evict", "back")]
)
def test_a_built_connector_finds_its_blocks_after_a_restart(tmp_path: Path, store_on: str, write: str) -> None:
    prompts = [list(range(start, start + 9)) for start in range(0, 50, 10)]
    for run in range(2):
        manager, device = manager_of(track_evictions=store_on == "evict"), tensors()
        connector = OffloadingConnector.build(
            manager,
            device,
            host_blocks=16,
            disk=tmp_path / "blocks",
            disk_blocks=40,
            identity=IDENTITY,
            store_on=store_on,
            write=write,
        )
        found = [served(connector, manager, device[0], prompt) for prompt in prompts + prompts]
        connector.check()
        connector.close()
        assert max(found) == 8
        assert run == 0 or found[0] == 8 or write == "back"  # what the host still had is gone


def test_a_built_connector_of_the_host_alone() -> None:
    manager, device = manager_of(), tensors()
    connector = OffloadingConnector.build(manager, device, host_blocks=16)
    assert connector.hasher is None
    prompts = [list(range(start, start + 9)) for start in (0, 10, 20, 0)]
    assert [served(connector, manager, device[0], prompt) for prompt in prompts][-1] > 0
    connector.close()


def test_what_is_built_is_checked(tmp_path: Path) -> None:
    place: dict[str, Any] = {"disk": tmp_path / "blocks", "disk_blocks": 8, "identity": IDENTITY}
    wide = CacheIdentity("tiny", "4 tokens", "float32", 4, b"seed")
    for options, said in (
        *(({name: place[name]}, "disk: give it together") for name in place),
        (place | {"identity": wide}, "identity: its blocks hold 4 tokens, the manager's 2"),
        (place | {"store_on": "evict"}, "track_evictions"),
        (place | {"write": "never"}, "write"),
    ):
        with pytest.raises(InvalidArgumentError, match=said):
            OffloadingConnector.build(manager_of(), tensors(), host_blocks=4, **options)
    with pytest.raises(InvalidArgumentError, match="the manager's pool gives out 8 blocks of GPU"):
        OffloadingConnector.build(manager_of(), tensors(5), host_blocks=4, **place)
    OffloadingConnector.build(manager_of(), tensors(), host_blocks=4, **place).close()  # nothing was left open
    other = CacheIdentity("other", "2 tokens", "float32", 2, b"seed")
    with pytest.raises(StoreDirectoryError):
        OffloadingConnector.build(manager_of(), tensors(), host_blocks=4, **place | {"identity": other})
