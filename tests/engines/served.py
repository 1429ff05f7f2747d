"""One workload through a whole vLLM, served by vLLM's own manager or by Blockwright's; what came out."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import vllm.triton_utils.dispatcher as dispatcher
from tests.engines import models
from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt

OURS = "blockwright.engines.vllm.Scheduler"
PLAIN = {
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "max_model_len": 1024,
    "num_gpu_blocks_override": 400,
    "block_size": 32,
    "async_scheduling": False,
    "dtype": "float32",
    "disable_log_stats": False,
    "seed": 0,
}


@dataclass
class Served:
    """What a workload came to.

    Attributes:
        tokens: of each request in the order of submission, per round.
        queries, hits, preemptions: as the engine's metrics count them.
        notes: what a workload wrote down besides.
    """

    tokens: list[Any] = field(default_factory=list)
    queries: int = 0
    hits: int = 0
    external: int = 0
    preemptions: int = 0
    notes: dict[str, Any] = field(default_factory=dict)


Workload = Callable[[LLM, Served], None]


def prompts(seed: int, count: int, longest: int = 300) -> list[TokensPrompt]:
    """Return prompts that begin alike, for different lengths, and end differently."""
    draw = random.Random(seed)
    shared = [draw.randrange(3, 500) for _ in range(longest)]
    return [
        TokensPrompt(
            prompt_token_ids=shared[: draw.randrange(20, longest)]
            + [draw.randrange(3, 500) for _ in range(draw.randrange(1, 40))]
        )
        for _ in range(count)
    ]


def generate(count: int = 12, rounds: int = 2, max_tokens: int = 40, longest: int = 300, **sampling: Any) -> Workload:
    """Return the workload that generates for prompts with shared beginnings, the same ones in each round."""

    def run(llm: LLM, served: Served) -> None:
        for _ in range(rounds):
            done = llm.generate(prompts(3, count, longest), _params(max_tokens, sampling), use_tqdm=False)
            served.tokens.append([[list(each.token_ids) for each in request.outputs] for request in done])

    return run


def _params(max_tokens: int, sampling: dict[str, Any]) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "ignore_eos": True, "max_tokens": max_tokens} | sampling)


def stepped(
    count: int = 12,
    rounds: int = 2,
    max_tokens: int = 40,
    priorities: bool = False,
    aborts: bool = False,
    reset: bool = False,
    sleep: int | None = None,
    sizes: tuple[int, ...] = (),
) -> Workload:
    """Return a workload that goes step by step, and does things in the middle."""

    def run(llm: LLM, served: Served) -> None:
        engine = llm.llm_engine
        for turn in range(rounds):
            found: dict[str, list[int]] = {}
            waiting = [(f"{turn}-{at}", prompt) for at, prompt in enumerate(prompts(3, count))]
            gone: set[str] = set()
            step = 0
            while waiting or engine.has_unfinished_requests():
                if waiting and step % 2 == 0:
                    name, prompt = waiting.pop(0)
                    priority = (7 * len(waiting)) % 3 if priorities else 0
                    engine.add_request(name, prompt, _params(max_tokens, {}), priority=priority)
                if aborts and step % 9 == 8 and found:
                    name = sorted(found)[step % len(found)]
                    gone.add(name)
                    engine.abort_request([name])
                if reset and step == 20:
                    assert engine.reset_prefix_cache(reset_running_requests=True)
                if sleep is not None and step == 25:
                    slept(llm, sleep)
                if sizes and step % 10 == 9 and hasattr(manager_of(llm), "resize"):
                    resizing = manager_of(llm).resize(sizes[step // 10 % len(sizes)])
                    served.notes["waited"] = served.notes.get("waited", 0) + (resizing.held > 0)
                for output in engine.step():
                    found[output.request_id] = list(output.outputs[0].token_ids)
                step += 1
            served.tokens.append({name: tokens for name, tokens in found.items() if name not in gone})

    return run


def slept(llm: LLM, level: int) -> None:
    """Let an engine sleep and wake up. On a CPU vLLM's workers cannot; what is discarded there is overwritten here."""
    executor = llm.llm_engine.engine_core.engine_core.model_executor
    caches: list[Any] = list(executor.driver_worker.worker.model_runner.kv_caches)

    def discard(_: int = 1) -> None:
        for cache in caches:
            cache.fill_(float("nan"))

    def bring_back(_: Any = None) -> None:
        for cache in caches:
            cache.zero_()

    if level:
        executor.sleep, executor.wake_up = discard, bring_back
    llm.llm_engine.sleep(level=level, mode="keep")
    assert not llm.llm_engine.step()
    llm.llm_engine.wake_up()


def told(inner: Workload) -> Workload:
    """Return a workload that also keeps the events: which prefixes could be found at the end, by their hashes."""

    def run(llm: LLM, served: Served) -> None:
        stored: dict[Any, Any] = {}

        def publish(batch: Any) -> None:
            for event in batch.events:
                kind = type(event).__name__
                if kind == "BlockStored":
                    parent = event.parent_block_hash
                    for at, block_hash in enumerate(event.block_hashes):
                        tokens = tuple(event.token_ids[at * event.block_size : (at + 1) * event.block_size])
                        stored[block_hash, event.group_idx] = (parent, tokens, event.kv_cache_spec_kind)
                        parent = block_hash
                elif kind == "BlockRemoved":
                    for block_hash in event.block_hashes:
                        stored.pop((block_hash, event.group_idx), None)
                else:
                    stored.clear()

        scheduler_of(llm).kv_event_publisher.publish = publish
        inner(llm, served)
        served.notes["stored"] = stored

    return run


def manager_of(llm: LLM) -> Any:
    """Return the manager of an engine in this process."""
    return scheduler_of(llm).kv_cache_manager


def scheduler_of(llm: LLM) -> Any:
    """Return the scheduler of an engine in this process."""
    return llm.llm_engine.engine_core.engine_core.scheduler


def started(folder: Path, model: str, ours: bool, options: dict[str, Any]) -> LLM:
    """Start an engine."""
    used: dict[str, Any] = PLAIN | options | ({"scheduler_cls": OURS} if ours else {})
    drafts: dict[str, Any] = used.get("speculative_config", {})
    if "model" in drafts:
        used["speculative_config"] = drafts | {"model": str(models.eagle(folder))}
    llm = LLM(model=str(models.make(model, folder)), **used)
    dispatcher._rebind_kernels = lambda *_: None  # once per process: it trips over modules that n-gram drafts bring
    return llm


def counted(llm: LLM) -> dict[str, Any]:
    """Return an engine's metrics by name."""
    return {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}


def serve(folder: Path, model: str, workload: Workload, ours: bool, options: dict[str, Any]) -> Served:
    """Run a workload on one side."""
    llm = started(folder, model, ours, options)
    served = Served()
    try:
        workload(llm, served)
        values = counted(llm)
        served.queries = values["vllm:prefix_cache_queries"]
        served.hits = values["vllm:prefix_cache_hits"]
        served.external = values["vllm:external_prefix_cache_hits"]
        served.preemptions = values["vllm:num_preemptions"]
        served.notes["accepted"] = values.get("vllm:spec_decode_num_accepted_tokens", 0)
        if ours:
            manager = manager_of(llm)
            manager.core.check({})
            served.notes["held"] = manager.core.request_ids()
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
    return served


def both(folder: Path, model: str, workload: Workload, **options: Any) -> tuple[Served, Served]:
    """Run a workload on both sides; vLLM's first."""
    return serve(folder, model, workload, False, options), serve(folder, model, workload, True, options)


def show(name: str, theirs: Served, ours: Served) -> str:
    """Describe both sides in a line."""
    counts = [(side.queries, side.hits, side.external, side.preemptions) for side in (theirs, ours)]
    word = "equal" if theirs.tokens == ours.tokens else "DIFFER"
    return f"{name}: tokens {word}; (queries, hits, external, preemptions) {counts[0]} / {counts[1]}"
