"""What vLLM declares and passes to its manager: each is served or refused by name, and nothing is ignored."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from blockwright.errors import UnsupportedError


def _manager(kinds: list[Any], blocks: int = 60, config: dict[str, Any] | None = None, **options: Any) -> Any:
    from vllm.v1 import kv_cache_interface as interface

    from blockwright.engines.vllm.manager import KVCacheManager

    groups = [interface.KVCacheGroupSpec([f"layers.{number}"], kind) for number, kind in enumerate(kinds)]
    memory = interface.KVCacheConfig(
        num_blocks=blocks,
        kv_cache_tensors=[],
        kv_cache_groups=groups,
        **{"prefix_cache_retention_interval": 0} | (config or {}),
    )
    return KVCacheManager(memory, max_model_len=1000, hash_block_size=16, **options)


def _admitted(manager: Any, name: str, tokens: list[int], **options: Any) -> Any:
    """Return a request of which a step computes all tokens."""
    from tests.engines import stub

    request = stub.request(name, list(tokens), 16, 100)
    hit, length, _ = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, len(tokens) - length, length, hit, **options) is not None
    request.num_computed_tokens = len(tokens)
    return request


def _hit(manager: Any, tokens: list[int], most: int | None = None) -> int:
    from tests.engines import stub

    length: int = manager.get_computed_blocks(stub.request("asks", list(tokens), 16, 1), most)[1]
    return length


TOKENS = list(range(10, 110))


@pytest.mark.parametrize("kinds", ["full", "full sliding"])
def test_what_never_ran_is_not_found(kinds: str) -> None:
    from tests.engines import stub

    manager = _manager([kind for word in kinds.split() for kind in stub.KINDS[word]()])
    request = _admitted(manager, "r", TOKENS[:40])
    for token in TOKENS[40:47]:
        request.append_output_token_ids(token)
        assert manager.allocate_slots(request, 1) is not None
        request.num_computed_tokens += 1
    request.append_output_token_ids(TOKENS[47])
    assert manager.allocate_slots(request, 1) is not None  # it fills the third block, and is preempted in its own step
    manager.free(request)
    assert _hit(manager, TOKENS) == 32
    manager.core.check({})


def test_a_delayed_step_is_found_when_it_is_said_to_be_computed() -> None:
    from tests.engines import stub

    manager = _manager([stub.full()])
    request = _admitted(manager, "r", TOKENS[:40], delay_cache_blocks=True)
    assert _hit(manager, TOKENS) == 0
    manager.cache_blocks(request, 40)
    assert _hit(manager, TOKENS) == 32
    for token in TOKENS[40:64]:
        request.append_output_token_ids(token)
    assert manager.allocate_slots(request, 24, delay_cache_blocks=True) is not None
    request.num_computed_tokens = 64
    assert _hit(manager, TOKENS) == 32
    request.append_output_token_ids(TOKENS[64])
    assert manager.allocate_slots(request, 1) is not None
    assert _hit(manager, TOKENS) == 64
    manager.core.check({})


@pytest.mark.parametrize("kinds", ["full", "full sliding"])
def test_a_hit_is_no_longer_than_asked(kinds: str) -> None:
    from tests.engines import stub

    manager = _manager([kind for word in kinds.split() for kind in stub.KINDS[word]()])
    _admitted(manager, "r", TOKENS)
    assert [_hit(manager, TOKENS, most) for most in (None, 99, 80, 64, 63, 16, 15, 0)] == [96, 96, 80, 64, 48, 16, 0, 0]
    request = stub.request("s", list(TOKENS), 16, 10)
    hit, length, _ = manager.get_computed_blocks(request, 50)
    assert manager.allocate_slots(request, 100 - length, length, hit) is not None
    assert manager.truncate_computed_blocks(hit, 48) is hit
    with pytest.raises(UnsupportedError, match="48 tokens cannot be cut to 32"):
        manager.truncate_computed_blocks(hit, 32)
    manager.core.check({})


def test_each_group_s_own_hit_is_as_vllm_s_coordinator_counts_it() -> None:
    from tests.engines import stub
    from vllm.v1.core.kv_cache_coordinator import HybridKVCacheCoordinator

    manager = _manager([stub.full(), stub.sliding(40)], 56)
    request = _admitted(manager, "r", TOKENS)
    manager.free(request)
    assert isinstance(manager.coordinator, HybridKVCacheCoordinator)
    hits = manager.coordinator.find_longest_cache_hit_per_group
    assert [hits(request.block_hashes, most)[1] for most in (99, 70, 5)] == [(96, 96), (64, 64), (0, 0)]
    other = _admitted(manager, "s", [7] * 400)  # takes some of the blocks, from the ends of the tables
    assert hits(request.block_hashes, 99)[1] != (96, 96)
    manager.free(other)
    manager.core.check({})


@pytest.mark.parametrize(
    "options",
    [{"num_new_computed_tokens": 16}, {"num_external_computed_tokens": 16}, {"num_encoder_tokens": 3}],
)
def test_a_running_request_brings_no_more(options: dict[str, int]) -> None:
    from tests.engines import stub

    manager = _manager([stub.full()])
    request = _admitted(manager, "r", TOKENS[:40])
    with pytest.raises(UnsupportedError, match="runs already: " + next(iter(options))):
        manager.allocate_slots(request, 30, **options)
    with pytest.raises(UnsupportedError, match="delay_cache_blocks=False"):
        manager.allocate_slots(stub.request("s", TOKENS[:40], 16, 9), 0, num_external_computed_tokens=32)
    manager.core.check({})


def test_a_request_that_has_loaded_its_prompt_in_part_must_still_fit() -> None:
    from tests.engines import stub

    manager = _manager([stub.full()], 8)
    request = stub.request("r", TOKENS, 16, 10)
    assert manager.allocate_slots(request, 0, num_external_computed_tokens=32, delay_cache_blocks=True) is not None
    manager.cache_blocks(request, 32)
    request.num_computed_tokens = 32
    other = _admitted(manager, "s", [5] * 32)
    assert manager.allocate_slots(request, 16, full_sequence_must_fit=True) is None
    manager.free(other)
    assert manager.allocate_slots(request, 16, full_sequence_must_fit=True) is not None
    manager.core.check({})


def test_ranks_share_the_tokens_of_a_block_where_vllm_shards_it() -> None:
    from tests.engines import stub

    draft = dataclasses.replace(stub.full(), dcp_sharded=False)
    manager = _manager([stub.full(), draft], dcp_world_size=2)
    assert [group.block_size for group in manager.coordinator.single_type_managers] == [32, 16]
    _admitted(manager, "r", TOKENS)
    assert [len(ids) for ids in manager.get_block_ids("r")] == [4, 7]
    assert _hit(manager, TOKENS) == 96
    recurrent = _manager([stub.full(), stub.state(32)], dcp_world_size=2)
    _admitted(recurrent, "r", TOKENS[:96])
    recurrent.new_step_starts()
    assert (_hit(recurrent, TOKENS), [len(ids) for ids in recurrent.get_block_ids("r")]) == (96, [3, 3])
    with pytest.raises(UnsupportedError, match="SlidingWindowSpec under decode context parallelism"):
        _manager([stub.full(), stub.sliding(40)], dcp_world_size=2)


def test_drafts_of_several_modules_are_refused_beside_states() -> None:
    from tests.engines import stub

    with pytest.raises(UnsupportedError, match=r"several modules beside recurrent .* num_speculative_tokens=1"):
        _manager([stub.full(), stub.state()], num_prefill_lookahead=3)
    _manager([stub.full(), stub.state(2048)], num_prefill_lookahead=3, enable_caching=False)


def test_a_block_that_was_never_cached_is_not_counted_as_evicted() -> None:
    from tests.engines import stub
    from vllm.v1.core.kv_cache_metrics import KVCacheMetricsCollector

    collector = KVCacheMetricsCollector(sample_rate=1.0)
    manager = _manager([stub.full()], 5, metrics_collector=collector)
    manager.free(_admitted(manager, "short", TOKENS[:5]))
    manager.free(_admitted(manager, "whole", TOKENS[:64]))
    assert collector.drain_events() == []
    for _ in range(2):  # two hits on three blocks each, and a block that the rest was computed in
        manager.free(_admitted(manager, "again", TOKENS[:49]))
    collector.drain_events()
    manager.free(_admitted(manager, "other", TOKENS[36:]))
    assert sorted(len(each.reuse_gaps_seconds) for each in collector.drain_events()) == [1, 1, 1]
    assert manager.reset_prefix_cache()
    assert collector.block_metrics == {}


@pytest.mark.parametrize("caching", [True, False])
def test_a_model_without_a_cache_needs_no_block(caching: bool) -> None:
    from tests.engines import stub

    manager = _manager([], 1, enable_caching=caching, enable_kv_cache_events=caching)
    request = stub.request("r", TOKENS, 16, 1)
    hit, length, boundary = manager.get_computed_blocks(request)
    assert (hit.get_block_ids(), length, boundary) == ((), 0, 0)
    assert manager.allocate_slots(request, 100, full_sequence_must_fit=True).get_block_ids() == ()
    assert (manager.get_block_ids("r"), manager.get_blocks("r").blocks, manager.usage) == ((), (), 0.0)
    manager.cache_blocks(request, 100)
    manager.free(request)
    assert manager.reset_prefix_cache()
    assert manager.take_events() == manager.take_new_block_ids() == []


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"prefix_cache_retention_interval": 64}, "prefix_cache_retention_interval=64: .* start vLLM without"),
        ({"hisparse_host_num_blocks": 8}, r"hisparse_host_num_blocks=8 \(blocks on the host"),
    ],
)
def test_settings_are_refused_by_name(config: dict[str, Any], message: str) -> None:
    from tests.engines import stub

    with pytest.raises(UnsupportedError, match=message):
        _manager([stub.full()], config=config)


@pytest.mark.parametrize(("interval", "hits"), [(0, 0), (32, 32), (None, 32)])
def test_an_interval_keeps_more(interval: int | None, hits: int) -> None:
    """Under pressure a window at each multiple stays, where another prompt parts."""
    from tests.engines import stub

    config = {"prefix_cache_retention_interval": interval}
    manager = _manager([stub.full(), stub.sliding(17)], 57 if interval is not None else 60, config)
    manager.free(_admitted(manager, "first", TOKENS))
    manager.free(_admitted(manager, "second", list(range(500, 900))))
    assert _hit(manager, [*TOKENS[:40], 7, 8, 9]) == hits


def test_what_a_request_has_found_stays_while_it_waits_for_room() -> None:
    """Others come and go meanwhile, and each would take the blocks that were used least recently."""
    from tests.engines import stub

    manager = _manager([stub.full(), stub.state()], 30)

    def served(name: str, tokens: list[int]) -> Any:
        request = _admitted(manager, name, tokens)
        request.append_output_token_ids(7)
        assert manager.allocate_slots(request, 1) is not None
        return request

    manager.free(served("first", TOKENS[:48]))
    served("holds the room", list(range(2000, 2160)))
    waits = stub.request("waits", [*TOKENS[:48], *range(3000, 3220)], 16, 1)
    for number in range(8):
        hit, length, _ = manager.get_computed_blocks(waits)
        assert length == 48
        assert manager.allocate_slots(waits, 220, length, hit) is None
        begin = 5000 + 100 * number
        manager.free(served(f"passes {number}", list(range(begin, begin + 32))))
    manager.core.check({})


def test_fields_that_are_newer_than_the_adapter_are_refused_by_name() -> None:
    from blockwright.engines.vllm.kinds import require_known

    newer = dataclasses.make_dataclass("FullAttentionSpec", [("block_size", int), ("something_new", int, 0)])
    require_known("group 0", newer(16))
    with pytest.raises(UnsupportedError, match=r"group 0: something_new=1 .* newer than the adapter"):
        require_known("group 0", newer(16, 1))


def test_every_field_of_this_release_is_known() -> None:
    from vllm.v1 import kv_cache_interface as interface

    from blockwright.engines.vllm import kinds

    declared = [interface.KVCacheConfig, interface.KVCacheGroupSpec, interface.UniformTypeKVCacheSpecs]
    declared += [getattr(interface, name) for name in kinds.KINDS]
    known = kinds.WORKERS_OWN | kinds._READ | set(kinds._ONLY)
    assert [each.name for kind in declared for each in dataclasses.fields(kind) if each.name not in known] == []


def test_a_match_unit_below_a_state_s_block_is_refused_by_name() -> None:
    from tests.engines import stub

    manager = _manager([stub.full(), stub.state(32)], dcp_world_size=2)
    settings = type("CacheConfig", (), {"prefix_match_unit": 16})
    with pytest.raises(UnsupportedError, match=r"prefix_match_unit=16: hits that end inside a block .* beside DCP"):
        manager.bind(type("Scheduler", (), {"cache_config": settings, "connector": None}))


_SAID = "BLOCKWRIGHT_VLLM is set, and Blockwright cannot be imported"


@pytest.mark.without_vllm
@pytest.mark.parametrize("broken", ["blockwright", "blockwright.core.manager", "blockwright.engines.vllm.surface"])
def test_a_plug_in_that_cannot_be_imported_is_an_error(broken: str) -> None:
    code = f"import sys; sys.modules[{broken!r}] = None; import blockwright_vllm; blockwright_vllm.register()"
    for switch in ("1", "0", "false"):
        env = os.environ | {"BLOCKWRIGHT_VLLM": switch}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, _SAID in done.stderr) == ((1, True) if switch == "1" else (0, False))


def test_vllm_does_not_go_on_without_the_plug_in(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    declared = (root / "pyproject.toml").read_text().split('"vllm.general_plugins"]\n')[1].split("\n")[0]
    known = tmp_path / "blockwright-0.dist-info"
    known.mkdir()
    (known / "METADATA").write_text("Metadata-Version: 2.1\nName: blockwright\nVersion: 0\n")
    (known / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{declared.replace(chr(34), '')}\n")
    code = (
        "import sys; sys.modules['blockwright'] = None; from vllm.plugins import load_general_plugins as load; load()"
    )
    paths = os.pathsep.join([str(tmp_path), str(root / "impl")])
    env = os.environ | {"PYTHONPATH": paths, "BLOCKWRIGHT_VLLM": "1", "VLLM_PLUGINS": "blockwright"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert _SAID in done.stderr
