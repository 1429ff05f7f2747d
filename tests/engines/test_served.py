"""A whole vLLM with tiny models: with Blockwright's manager the same tokens come out as with vLLM's own."""

from pathlib import Path
from typing import Any

import pytest

_TIGHT = {"num_gpu_blocks_override": 24, "max_model_len": 512}
_NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
_EAGLE = {"method": "eagle", "model": "eagle", "num_speculative_tokens": 3}
_RECURRENT = {"dtype": "bfloat16", "enable_prefix_caching": True, "mamba_cache_mode": "align"}
_OFFLOAD: dict[str, Any] = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "spec_name": "OffloadingSpec",
        "spec_module_path": "blockwright.engines.vllm.offload",
        "cpu_bytes_to_use": 1 << 24,
    },
}
_EVENTS = {"enable_kv_cache_events": True, "publisher": "null"}

# name: model, kind of workload, what of it, options, whether hits and preemptions are equal, not only as good
SCENARIOS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any], bool]] = {
    "plain": ("llama", "generate", {}, {}, True),
    "chunked prefill": ("llama", "generate", {}, {"max_num_batched_tokens": 96, "max_num_seqs": 8}, True),
    "four of each": ("llama", "generate", {"n": 4, "temperature": 1.0, "seed": 5}, {}, True),
    "preemption": ("llama", "generate", {"count": 20}, _TIGHT, True),
    "four of each, preemption": (
        "llama",
        "generate",
        {"count": 8, "n": 4, "temperature": 1.0, "seed": 5},
        _TIGHT | {"num_gpu_blocks_override": 40},
        True,
    ),
    "priorities": ("llama", "stepped", {"priorities": True}, _TIGHT | {"scheduling_policy": "priority"}, True),
    "no caching": ("llama", "generate", {}, {"enable_prefix_caching": False}, True),
    "n-gram drafts": ("llama", "generate", {}, {"speculative_config": _NGRAM}, True),
    "EAGLE drafts": ("llama", "generate", {}, {"speculative_config": _EAGLE}, False),
    "events": ("llama", "told", {"count": 20}, _TIGHT | {"kv_events_config": _EVENTS}, True),
    "reset while running": ("llama", "stepped", {"reset": True}, {}, True),
    "aborts": ("llama", "stepped", {"aborts": True}, {}, True),
    "sleep": ("llama", "stepped", {"sleep": True}, {}, True),
    "gemma 2": ("gemma2", "generate", {}, {}, False),
    "gemma 2, preemption": ("gemma2", "generate", {"count": 20}, _TIGHT | {"num_gpu_blocks_override": 50}, False),
    "gemma 3": ("gemma3", "generate", {}, {}, False),
    "gemma 3, preemption": ("gemma3", "generate", {"count": 20}, _TIGHT | {"num_gpu_blocks_override": 120}, False),
    "latent attention": ("deepseek", "generate", {}, {"enable_prefix_caching": True}, True),
    "chunked local": ("llama4", "generate", {}, {}, False),
    "chunked local, preemption": (
        "llama4",
        "generate",
        {"count": 20},
        _TIGHT | {"num_gpu_blocks_override": 120},
        False,
    ),
    "recurrent": ("qwen3_next", "generate", {"longest": 6000, "count": 8}, _RECURRENT | {"max_model_len": 8192}, False),
    "offload to the host": ("llama", "generate", {"count": 20}, _TIGHT | {"kv_transfer_config": _OFFLOAD}, False),
    "windows, offload to the host": (
        "gemma3",
        "generate",
        {"count": 20},
        _TIGHT | {"num_gpu_blocks_override": 120, "kv_transfer_config": _OFFLOAD},
        False,
    ),
    "recurrent, no caching": (
        "qwen3_next",
        "generate",
        {},
        {"dtype": "bfloat16", "enable_prefix_caching": False},
        True,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_same_tokens_come_out(name: str, models_folder: Path) -> None:
    from tests.engines import served

    model, kind, what, options, is_exact = SCENARIOS[name]
    workload = served.told(served.generate(**what)) if kind == "told" else getattr(served, kind)(**what)
    theirs, ours = served.both(models_folder, model, workload, **options)
    print(served.show(name, theirs, ours))
    assert ours.tokens == theirs.tokens
    assert ours.notes.pop("held") == []
    assert bool(ours.external) == ("kv_transfer_config" in options)
    if is_exact:
        assert (ours.queries, ours.hits, ours.preemptions) == (theirs.queries, theirs.hits, theirs.preemptions)
        assert ours.notes == theirs.notes
    else:
        assert ours.hits + ours.external >= theirs.hits + theirs.external
        assert ours.preemptions <= theirs.preemptions * 3 // 2  # more are admitted at once


@pytest.mark.slow
def test_a_disk_serves_a_restarted_engine(models_folder: Path, tmp_path: Path) -> None:
    from tests.engines import served

    extra = {**_OFFLOAD["kv_connector_extra_config"], "disk_path": str(tmp_path / "kv"), "disk_bytes_to_use": 1 << 24}
    options = {"kv_transfer_config": _OFFLOAD | {"kv_connector_extra_config": extra}}
    workload = served.generate(rounds=1)
    plain = served.serve(models_folder, "llama", workload, True, {"enable_prefix_caching": False})
    first = served.serve(models_folder, "llama", workload, True, options)
    again = served.serve(models_folder, "llama", workload, True, options)
    print((first.external, again.external))
    assert first.tokens == again.tokens == plain.tokens
    assert first.external == 0 < again.external
