"""vLLM's own connectors over both managers: the schedulers' sides are real, the workers move contents as they say."""

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from blockwright.errors import UnsupportedError

STEPS = int(os.environ.get("BLOCKWRIGHT_HAND_OVERS") or 270) * 10 // 9
"""Of both ends, in each of which a request comes with a chance of 0.3; for so many requests with each connector."""

CONNECTOR = """
from tests.engines.connector import Connector as Base


class Connector(Base):
    def bind_gpu_block_pool(self, gpu_block_pool):
        self._gpu_block_pool = gpu_block_pool

    def take_events(self):
        pool = self._gpu_block_pool
        for number, block in enumerate(pool.free_block_queue.iter_blocks_after(None)):
            if number == 3:
                return [block.prev_free_block, pool.get_new_blocks(1)]
        return ()
"""


@pytest.mark.without_vllm
def test_the_table_of_the_guide_is_the_scan_s() -> None:
    from benchmarks.vllm_surface import guide_table

    guide = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "vllm.md").read_text()
    assert guide_table() in guide


def test_what_is_served_is_there(models_folder: Path) -> None:
    from tests.engines import stub
    from tests.engines.connector import draw

    from blockwright.engines.vllm.connectors import SERVED

    scheduler = stub.scheduler(models_folder, True, [stub.full()], 20, loads={})
    manager = scheduler.kv_cache_manager
    name = next(f"r{number}" for number in range(99) if draw(f"r{number}", "offer", 4) == 0)  # nothing is loaded for it
    request = stub.request(name, list(range(3, 40)), 16, 5)
    scheduler.add_request(request)
    scheduler.schedule()
    pool = manager.block_pool
    holders = {
        "manager": manager,
        "coordinator": manager.coordinator,
        "group": manager.coordinator.single_type_managers[0],
        "pool": pool,
        "queue": pool.free_block_queue,
        "hashes": pool.cached_block_hash_to_block,
        "block": pool.blocks[1],
    }
    own = manager.get_blocks(name)
    for blocks in (own, manager.empty_kv_cache_blocks):
        for served in SERVED:
            kind, attribute = served.split("(")[0].split(".")
            assert hasattr((holders | {"blocks": blocks})[kind], attribute), served
    ids = manager.get_block_ids(name)[0]
    assert own.get_block_ids(group_ids=[0, 0]) == (ids, ids)
    assert own.get_unhashed_block_ids_all_groups() == [ids[2:]]
    assert [pool.blocks[block].block_hash for block in ids] == [
        *(each + b"\0\0\0\0" for each in request.block_hashes),
        None,
    ]
    found = manager.coordinator.single_type_managers[0].block_pool.get_cached_block(request.block_hashes[1], [0])
    assert found == [pool.blocks[ids[1]]]
    assert pool.get_cached_block(b"\0" * 32, [0]) is None
    key = request.block_hashes[0] + b"\0\0\0\0"
    index = pool.cached_block_hash_to_block
    assert (index.get_one_block(key), index.get_one_block(b"\0" * 36), len(index)) == (pool.blocks[ids[0]], None, 2)
    assert (index.contain(key, ids[0]), index.contain(key, ids[1])) == (True, False)
    assert own.blocks[0][0].block_hash == key
    group = manager.coordinator.single_type_managers[0]
    assert dict(group.req_to_blocks) == {name: own.blocks[0]}
    assert (dict(group.num_cached_block), group.req_to_blocks.get("none")) == ({name: 2}, None)
    pool.evict_blocks({ids[2]})
    with pytest.raises(UnsupportedError, match=rf"evict_blocks\({ids[0]}\): a block that can be found"):
        pool.evict_blocks({ids[0]})
    for owner in (pool, pool.blocks[1], pool.free_block_queue, index, manager.coordinator, group, own):
        assert (hasattr(owner, "no_such_name"), getattr(owner, "no_such_name", 5)) == (False, 5)
        with pytest.raises(UnsupportedError, match=r"\.no_such_name is not supported under Blockwright"):
            _ = owner.no_such_name
    queue = pool.free_block_queue
    block, free = queue.fake_free_list_head.next_free_block, []
    while block is not queue.fake_free_list_tail:
        free.append(block)
        block = block.next_free_block
    assert free == queue.get_all_free_blocks()
    assert (block.next_free_block, len(free)) == (None, queue.num_free_blocks)
    walk = pool.free_block_queue.iter_blocks_after(None)
    first = [next(walk), next(walk)]
    assert [block.block_id for block in first] == manager.core.block_pool.free_block_ids()[:2]
    rest = pool.free_block_queue.iter_blocks_after(first[0])
    assert [first[0], *rest] == [pool.blocks[block] for block in manager.core.block_pool.free_block_ids()]


def test_a_connector_that_reads_more_is_refused_by_name(
    models_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.engines import stub

    (tmp_path / "reads_more.py").write_text(CONNECTOR)
    monkeypatch.syspath_prepend(tmp_path)
    config = {"kv_connector": "Connector", "kv_role": "kv_both", "kv_connector_module_path": "reads_more"}
    config["kv_connector_extra_config"] = {"is_async": False, "leaves_last": False}  # type: ignore[assignment]
    stub.scheduler(models_folder, False, [stub.full()], 20, connector=config)
    message = r"the connector Connector reads block\.prev_free_block, pool\.get_new_blocks, which is not supported"
    with pytest.raises(UnsupportedError, match=message):
        stub.scheduler(models_folder, True, [stub.full()], 20, connector=config)


WAYS = {
    "ByProperty": "runs",
    "ByPartial": "runs",
    "ByHelper": "runs",
    "ByKeeper": "runs",
    "ByCoordinator": "runs",
    "OfItsOwn": "runs",
    "ByIsinstance": "runs",
    "ByAsking": "told",
    "ByName": "told",
    "ByThread": "told",
    "ByGlobal": "told",
    "ByStar": "told",
    "ByDictionary": "told",
    "ByDecorator": "told",
    "ByEvicting": "told",
    "Deeper": "refused",
    "DeeperByPartial": "refused",
}
"""Connectors of `readers.py`, and whether they are served, with a line that says what was not checked, or refused."""


@pytest.mark.parametrize("name", WAYS)
def test_a_foreign_connector_runs_or_is_told(name: str, models_folder: Path, said: list[logging.LogRecord]) -> None:
    from tests.engines import readers, stub

    config = {"kv_connector": name, "kv_role": "kv_both", "kv_connector_module_path": "tests.engines.readers"}
    seen = []
    for ours in (False, True):
        if ours and WAYS[name] == "refused":
            with pytest.raises(UnsupportedError, match=rf"the connector {name} reads block\.prev_free_block, which"):
                stub.scheduler(models_folder, ours, [stub.full()], 60, connector=config)
            return
        scheduler = stub.scheduler(models_folder, ours, [stub.full()], 60, connector=config)
        readers.SEEN.clear()
        for number in range(3):
            scheduler.add_request(stub.request(f"r{number}", list(range(3, 60 + number)), 16, 4))
            scheduler.schedule()
        seen.append(list(readers.SEEN))
    assert seen[0] == seen[1] != []
    told = [each.getMessage() for each in said if each.levelno == logging.WARNING]
    assert [f"the connector {name} does with vLLM's blocks" in each for each in told] == [True] * (WAYS[name] == "told")


def _kinds(groups: str) -> list[Any]:
    from tests.engines import stub

    return [kind for word in groups.split() for kind in stub.KINDS[word]()]


GROUPS = [("full", None), ("full sliding", None), ("full state", None), ("full state", 4)]
"""Layers, and the tokens of a hash where they are fewer than a block's: hits end inside blocks."""


@pytest.mark.parametrize(("groups", "unit"), GROUPS)
@pytest.mark.parametrize("connector", ["NixlConnector", "NixlPushConnector", "MooncakeConnector"])
def test_requests_are_handed_over(
    connector: str, groups: str, unit: int | None, models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.engines import transfers

    kinds, free, ends = _kinds(groups), [], []
    for has_ours in (False, True):
        both = transfers.pair(models_folder, has_ours, kinds, 60 * len(kinds), connector, unit)
        with monkeypatch.context() as patch:
            if not has_ours:  # with NIXL, vLLM counts a hit of full attention though the state for it is yet to come
                patch.setattr(type(both[1].scheduler.connector), "supports_divergent_local_hybrid_hits", False)
            free.append(transfers.hand_over(both, connector, 3, STEPS, window=40 * (len(kinds) - 1)))
        ends.append(both[1])
    theirs, ours = ends
    print(connector, groups, len(ours.finished), [(side.loads, side.failed, side.hits) for side in ends])
    assert ours.loads > 20
    assert ours.failed > 5
    assert free[0][-1] == free[1][-1] == (60 * len(kinds) - 1,) * 2
    if groups == "full":
        assert free[0] == free[1]
    for name, tokens in theirs.tokens.items():
        own = ours.tokens.get(name, [])
        assert own[: len(tokens)] == tokens[: len(own)]
    assert set(theirs.finished) == set(ours.finished)
    if unit is None:  # else vLLM cuts a hit to whole blocks without the state there, which the load brings
        assert ours.hits >= theirs.hits


def test_the_last_token_of_a_prompt_finds_its_window(models_folder: Path) -> None:
    from tests.engines import transfers

    kinds = _kinds("full sliding")
    ends = transfers.pair(models_folder, True, kinds, 120, "NixlConnector")
    assert transfers.hand_over(ends, "NixlConnector", 4, 300)[-1] == (119, 119)
    assert ends[1].loads > 20


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(("groups", "unit"), GROUPS)
def test_the_host_holds_what_it_says(groups: str, unit: int | None, lazy: bool, models_folder: Path) -> None:
    from tests.engines import stub, transfers

    kinds = _kinds(groups)
    config = {
        "kv_connector": "SimpleCPUOffloadConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 200 * kinds[0].page_size_bytes, "lazy_offload": lazy},
    }
    blocks = 30 * len(kinds)
    sides = [
        transfers.Host(stub.scheduler(models_folder, ours, kinds, blocks, connector=config, unit=unit), kinds)
        for ours in (False, True)
    ]
    stub.walk(sides, 1, 300, unit or 16, exact=False)
    print(groups, lazy, [(side.stored, side.loaded, side.hits, side.computed) for side in sides])
    for side in sides:
        for _ in range(10):
            side.step()
        assert side.num_free == blocks - 1
    theirs, ours = sides
    # What is still on the device is neither stored again nor loaded: of all that counts in tokens computed.
    assert ours.stored >= theirs.stored // 2 > 0
    assert ours.loaded >= theirs.loaded // 2 > 0
    assert ours.computed <= theirs.computed * 1.05


@pytest.mark.parametrize("groups", ["full", "full sliding"])
def test_a_store_holds_what_it_saves(groups: str, models_folder: Path) -> None:
    from tests.engines import stub, transfers

    kinds = _kinds(groups)
    config = {
        "kv_connector": "MooncakeStoreConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"enable_lookup": False, "save_decode_cache": True},
    }
    blocks = 40 * len(kinds)
    sides = [
        transfers.Store(stub.scheduler(models_folder, ours, kinds, blocks, connector=config), kinds)
        for ours in (False, True)
    ]
    stub.walk(sides, 1, 300, 16, exact=False)
    print(groups, [(side.saved, side.hits) for side in sides])
    for side in sides:
        for _ in range(10):
            side.step()
        assert side.num_free == blocks - 1
    assert sides[1].saved >= sides[0].saved * 2 // 3 > 0
