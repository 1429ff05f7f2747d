"""What is refused when an engine starts, and how the plug-in is switched on."""

import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import blockwright
from benchmarks.vllm_surface import whole_surface_of
from blockwright.engines.vllm import surface
from blockwright.errors import UnsupportedError


@pytest.mark.without_vllm
def test_importing_blockwright_or_the_switch_imports_nothing_of_vllm() -> None:
    code = (
        "import sys, blockwright, blockwright.engines.vllm.plugin as plugin; plugin.register();"
        "sys.exit(any(name.split('.')[0] in ('vllm', 'torch') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.without_vllm
def test_what_changed_is_said_in_words() -> None:
    before = {"methods": {"free": ["request"], "gone": []}, "reads": ["free", "usage"]}
    after = {"methods": {"free": ["request", "when", "why"]}, "reads": ["free", "usage", "coordinator.new"]}
    assert surface.changes(before, after) == [
        "the scheduler reads coordinator.new",
        "free() has the new arguments when, why",
    ]
    assert surface.changes(before, before) == []
    before |= {"settings": ["block_size"], "connectors": {"Old": ["pool.touch"]}}
    after = before | {
        "settings": ["block_size", "unit"],
        "connectors": {"Old": ["pool.touch", "pool.evict"], "New": []},
    }
    assert surface.changes(before, after) == ["cache_config.unit is read", "the connector Old reads pool.evict"]


@pytest.mark.without_vllm
def test_an_unknown_release_is_compared_and_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"vLLM 0\.11\.0 is not supported .*its files are not where they were"):
        surface.require_supported(tmp_path, "0.11.0")
    for release in surface.known():
        surface.require_supported(tmp_path, release)


def test_the_installed_release_is_as_recorded() -> None:
    package, version = surface.installed()
    recorded = surface.known()
    found = whole_surface_of(package)
    if version in recorded:
        assert found == recorded[version]
    else:
        assert surface.changes(recorded[list(recorded)[-1]], found) == []


def test_everything_that_a_release_asks_is_there(models_folder: Path) -> None:
    import inspect

    from tests.engines import stub

    manager = stub.scheduler(models_folder, True, [stub.full()], 20).kv_cache_manager
    for release, asked in surface.known().items():
        for name in asked["reads"]:
            holder: Any = manager
            for part in name.split("."):
                assert hasattr(holder, part), f"{release}: {name}"
                holder = getattr(holder, part)
            arguments = asked["methods"].get(name)
            if arguments is not None and name != "usage":
                taken = inspect.signature(getattr(type(manager), name)).parameters
                assert set(arguments) <= set(taken), f"{release}: {name}"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "MambaSpec", "mamba_cache_mode": "all"}, "--mamba-cache-mode align"),
        ({"kind": "SinkFullAttentionSpec", "sink_len": 16}, "SinkFullAttentionSpec, which Blockwright does not manage"),
        ({"kind": "SlidingWindowMLASpec", "sliding_window": 32, "bounded_replay": True}, "--no-swa-bounded-replay"),
    ],
)
def test_kinds_that_are_not_served_are_refused_by_name(spec: dict[str, Any], message: str) -> None:
    import torch
    from tests.engines import stub
    from vllm.v1 import kv_cache_interface as interface

    from blockwright.engines.vllm.manager import KVCacheManager

    kind = spec.pop("kind")
    layer = {"shapes": ((16,),), "dtypes": (torch.float32,)} if kind == "MambaSpec" else stub.layer()
    declared = getattr(interface, kind)(block_size=16, **layer, **spec)
    groups = [interface.KVCacheGroupSpec(["layers.0"], stub.full()), interface.KVCacheGroupSpec(["layers.1"], declared)]
    config = interface.KVCacheConfig(num_blocks=20, kv_cache_tensors=[], kv_cache_groups=groups)
    with pytest.raises(UnsupportedError, match=message):
        KVCacheManager(config, max_model_len=100, hash_block_size=16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pcp_world_size": 2}, "--prefill-context-parallel-size 1"),
        ({"something_new": 1}, "something_new=1 is not supported .* Unset BLOCKWRIGHT_VLLM"),
    ],
)
def test_options_that_are_not_served_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    from tests.engines import stub
    from vllm.v1 import kv_cache_interface as interface

    from blockwright.engines.vllm.manager import KVCacheManager

    groups = [interface.KVCacheGroupSpec(["layers.0"], stub.full())]
    config = interface.KVCacheConfig(num_blocks=20, kv_cache_tensors=[], kv_cache_groups=groups)
    with pytest.raises(UnsupportedError, match=message):
        KVCacheManager(config, max_model_len=100, hash_block_size=16, **options)


def test_a_synchronous_load_into_windows_alone_is_refused_before_it_can_fail(models_folder: Path) -> None:
    from tests.engines import stub

    kinds = [stub.sliding(40)]
    side = stub.Side(stub.scheduler(models_folder, True, kinds, 60, loads={}), kinds)
    with pytest.raises(UnsupportedError, match="use a connector that loads asynchronously"):
        stub.walk([side], 1, 100, 16, exact=False)


@pytest.mark.parametrize(
    ("options", "kinds", "words"),
    [
        ({}, "full", "1 x FullAttention of 16; hits end with blocks; publishes every block and evicts by age, as vLLM"),
        ({"interval": 0}, "full five", "5 x SlidingWindow(32) of 16; hits end with blocks; publishes every block that"),
        ({}, "full five", "evicts by age, as vLLM does with prefix_cache_retention_interval=None"),
        ({"unit": 4, "interval": 0}, "full state", "hits end at multiples of 4 tokens (prefix_match_unit); publishes"),
        ({"caching": False}, "full chunked", "1 x ChunkedLocalAttention(48) of 16; no prefix caching"),
    ],
)
def test_a_line_says_that_it_is_on(
    options: dict[str, Any], kinds: str, words: str, models_folder: Path, said: list[logging.LogRecord]
) -> None:
    from tests.engines import stub

    layers = [kind for word in kinds.split() for kind in stub.KINDS[word]()]
    scheduler = stub.scheduler(models_folder, True, layers, 60, **options)
    scheduler.shutdown()
    stub.scheduler(models_folder, False, layers, 60, **options).shutdown()
    start, end = [each.getMessage() for each in said]
    assert start.startswith(
        f"Blockwright {blockwright.__version__} ({blockwright.build_info().kind} core) manages 60 blo"
    )
    assert words in start
    assert (
        "Blockwright ends: 59 of 59 blocks are free, requests that hold some: 0; not checked (BLOCKWRIGHT_VLLM_CHECK=1"
        in end
    )


def test_the_check_at_the_end_is_asked_for(
    models_folder: Path, said: list[logging.LogRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.engines import stub

    from blockwright.errors import InvariantError

    monkeypatch.setenv("BLOCKWRIGHT_VLLM_CHECK", "yes")
    scheduler = stub.scheduler(models_folder, True, [stub.full()], 60)
    scheduler.add_request(stub.request("r", list(range(3, 40)), 16, 5))
    scheduler.schedule()
    scheduler.shutdown()

    def broken() -> None:
        raise InvariantError("REF-1", "block 1", 1, 2)

    manager = scheduler.kv_cache_manager
    scheduler.kv_cache_manager = SimpleNamespace(bind=manager.bind, core=manager.core, check=broken)
    scheduler.shutdown()
    held = "Blockwright ends: 56 of 59 blocks are free, requests that hold some: 1; check()"
    assert [(each.levelname, each.getMessage()) for each in said[1:]] == [
        ("INFO", f"{held} found every law kept"),
        ("ERROR", f"{held} failed: REF-1: block 1: expected 1, found 2"),
    ]
    monkeypatch.setenv("BLOCKWRIGHT_VLLM_CHECK", "perhaps")
    with pytest.raises(ValueError, match="BLOCKWRIGHT_VLLM_CHECK='perhaps': takes 1, true"):
        stub.scheduler(models_folder, True, [stub.full()], 60)


def test_the_switch_and_a_second_plug_in(models_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.engines import stub
    from vllm.v1.core import kv_cache_manager as own
    from vllm.v1.core.sched import scheduler as home

    from blockwright.engines.vllm import plugin
    from blockwright.engines.vllm.manager import KVCacheManager

    monkeypatch.setattr(home, "KVCacheManager", own.KVCacheManager)
    monkeypatch.delenv("BLOCKWRIGHT_VLLM", raising=False)
    plugin.register()
    monkeypatch.setenv("BLOCKWRIGHT_VLLM", "False")
    plugin.register()
    assert home.KVCacheManager is own.KVCacheManager
    monkeypatch.setenv("BLOCKWRIGHT_VLLM", "1")
    plugin.register()
    plugin.register()
    assert home.KVCacheManager is KVCacheManager
    later = type("Later", (own.KVCacheManager,), {})
    monkeypatch.setattr(home, "KVCacheManager", later)
    for start in (plugin.register, lambda: stub.scheduler(models_folder, False, [stub.full()], 20)):
        with pytest.raises(UnsupportedError, match=r"Later: two plug-ins cannot both"):
            start()


def test_a_scheduler_of_ours_beside_another_plug_in_is_refused(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.engines import stub
    from vllm.v1.core.sched import scheduler as home

    other = type("Other", (), {})
    monkeypatch.setattr(home, "KVCacheManager", other)
    with pytest.raises(UnsupportedError, match=r"by .*Other: two plug-ins cannot both"):
        stub.scheduler(models_folder, True, [stub.full()], 20)
    assert home.KVCacheManager is other
