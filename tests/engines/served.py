"""One workload through a whole vLLM, served by vLLM's own manager or by Blockwright's; what came out."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import models
import vllm.triton_utils.dispatcher as dispatcher
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
            prompt_token_ids=shared[: draw.randrange(20, longest)] + [draw.randrange(3, 500) for _ in range(draw.randrange(1, 40))]
        )
        for _ in range(count)
    ]


def generate(
    count: int = 12, rounds: int = 2, max_tokens: int = 40, longest: int = 300, **sampling: Any
) -> Workload:
    """Return the workload that generates for prompts with shared beginnings, the same ones in each round."""

    def run(llm: LLM, served: Served) -> None:
        wanted = SamplingParams(**{"temperature": 0.0, "ignore_eos": True, "max_tokens": max_tokens} | sampling)
        for _ in range(rounds):
            done = llm.generate(prompts(3, count, longest), wanted, use_tqdm=False)
            served.tokens.append([[list(each.token_ids) for each in request.outputs] for request in done])

    return run


def manager_of(llm: LLM) -> Any:
    """Return the manager of an engine in this process."""
    return scheduler_of(llm).kv_cache_manager


def scheduler_of(llm: LLM) -> Any:
    """Return the scheduler of an engine in this process."""
    return llm.llm_engine.engine_core.engine_core.scheduler


def serve(folder: Path, model: str, workload: Workload, ours: bool, options: dict[str, Any]) -> Served:
    """Run a workload on one side."""
    used = PLAIN | options | ({"scheduler_cls": OURS} if ours else {})
    llm = LLM(model=str(models.make(model, folder)), **used)
    dispatcher._rebind_kernels = lambda *_: None  # once per process: it trips over modules that n-gram drafts bring
    served = Served()
    try:
        workload(llm, served)
        values = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
        served.queries = values["vllm:prefix_cache_queries"]
        served.hits = values["vllm:prefix_cache_hits"]
        served.external = values["vllm:external_prefix_cache_hits"]
        served.preemptions = values["vllm:num_preemptions"]
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
    requests = sum(len(round_) for round_ in theirs.tokens)
    counts = [(side.queries, side.hits, side.external, side.preemptions) for side in (theirs, ours)]
    return f"{name}: {requests} requests, tokens {'equal' if theirs.tokens == ours.tokens else 'DIFFER'}; (queries, hits, external, preemptions) {counts[0]} / {counts[1]}"


def names(items: Sequence[str]) -> str:
    """Join names."""
    return ", ".join(items)
