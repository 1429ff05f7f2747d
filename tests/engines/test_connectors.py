"""vLLM's own connectors over both managers: the schedulers' sides are real, the workers move contents as they say."""

from pathlib import Path
from typing import Any

import pytest


def _kinds(groups: str) -> list[Any]:
    from tests.engines import stub

    return [kind for word in groups.split() for kind in stub.KINDS[word]()]


@pytest.mark.parametrize("groups", ["full", "full sliding"])
@pytest.mark.parametrize("connector", ["NixlConnector", "NixlPushConnector", "MooncakeConnector"])
def test_requests_are_handed_over(connector: str, groups: str, models_folder: Path) -> None:
    from tests.engines import transfers

    kinds, free, ends = _kinds(groups), [], []
    for ours in (False, True):
        both = transfers.pair(models_folder, ours, kinds, 60 * len(kinds), connector)
        free.append(transfers.hand_over(both, connector, 3, 300, window=40 * (len(kinds) - 1)))
        ends.append(both[1])
    theirs, ours = ends
    print(connector, groups, [(side.loads, side.failed, side.hits) for side in ends])
    assert ours.loads > 20
    assert ours.failed > 5
    assert free[0][-1] == free[1][-1] == (60 * len(kinds) - 1,) * 2
    if groups == "full":
        assert free[0] == free[1]
    for name, tokens in theirs.tokens.items():
        own = ours.tokens.get(name, [])
        assert own[: len(tokens)] == tokens[: len(own)]
    assert set(theirs.finished) == set(ours.finished)


def test_the_last_token_of_a_prompt_finds_its_window(models_folder: Path) -> None:
    from tests.engines import transfers

    kinds = _kinds("full sliding")
    ends = transfers.pair(models_folder, True, kinds, 120, "NixlConnector")
    assert transfers.hand_over(ends, "NixlConnector", 4, 300)[-1] == (119, 119)
    assert ends[1].loads > 20


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("groups", ["full", "full sliding"])
def test_the_host_holds_what_it_says(groups: str, lazy: bool, models_folder: Path) -> None:
    from tests.engines import stub, transfers

    kinds = _kinds(groups)
    config = {
        "kv_connector": "SimpleCPUOffloadConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 200 * kinds[0].page_size_bytes, "lazy_offload": lazy},
    }
    blocks = 30 * len(kinds)
    sides = [
        transfers.Host(stub.scheduler(models_folder, ours, kinds, blocks, connector=config), kinds)
        for ours in (False, True)
    ]
    stub.walk(sides, 1, 300, 16, exact=False)
    print(groups, lazy, [(side.stored, side.loaded, side.hits) for side in sides])
    for side in sides:
        for _ in range(10):
            side.step()
        assert side.num_free == blocks - 1
    theirs, ours = sides
    assert ours.stored >= theirs.stored * 2 // 3 > 0
    assert ours.loaded >= theirs.loaded * 2 // 3 > 0


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
