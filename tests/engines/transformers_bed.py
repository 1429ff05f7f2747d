"""transformers' own continuous batching over tiny models with random weights, step by step, with any cache.

What runs is transformers': its model, scheduler, inputs, preemption, sampling. Only its thread is left out, so that
requests come, and are cancelled, at the same step under every cache, and the bookkeeping is checked after each step.
"""

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.generation import ContinuousBatchingConfig

from blockwright.engines import transformers as engine

VOCABULARY, WINDOW = 97, 16
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": 0,
}
near, far = "sliding_attention", "full_attention"
KINDS: dict[str, Callable[[], Any]] = {
    "Llama": lambda: LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **SHAPE)),
    "Qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(num_hidden_layers=2, **SHAPE)),
    "Gemma 3, 1:1": lambda: gemma([near, far, near, far]),
    "Gemma 3, 3:1": lambda: gemma([near, near, near, far]),
    "Gemma 3, 5:2": lambda: gemma([near, near, near, far, near, near, far]),
    "Mistral, all windows": lambda: MistralForCausalLM(
        MistralConfig(num_hidden_layers=2, sliding_window=WINDOW, **SHAPE)
    ),
}


def gemma(layers: list[str]) -> Any:
    config = Gemma3TextConfig(num_hidden_layers=len(layers), layer_types=layers, sliding_window=WINDOW, **SHAPE)
    return Gemma3ForCausalLM(config)


@functools.cache
def model(kind: str) -> Any:
    """Return a model whose answers depend much on all that it reads."""
    torch.manual_seed(0)
    made = KINDS[kind]()
    for weights in made.parameters():
        if weights.dim() > 1:
            torch.nn.init.normal_(weights, std=0.3)
    return made.eval()


@dataclass(frozen=True)
class Case:
    """What is served, in what pool."""

    kind: str = "Llama"
    blocks: int = 300
    page: int = 8
    forks: int = 1
    requests: int = 16
    longest: int = 30
    answer: int = 30
    budget: int = 64
    cancels: float = 0.0
    gap: int = 0
    shares: bool = True
    margin: float = 0.0
    scheduler: str = "fifo"
    samples: bool = False
    seed: int = 0


@dataclass
class Seen:
    """What a run came to."""

    answers: dict[str, list[int]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    steps: int = 0
    hits: int = 0
    left: str = ""
    wrong: list[str] = field(default_factory=list)
    cache: Any = None


@dataclass
class Coming:
    """A request: when it comes, what it asks, and when it is cancelled, if it is."""

    name: str
    step: int
    prompt: list[int]
    answer: int
    cancelled: int | None


def coming(case: Case) -> list[Coming]:
    """Return requests behind three system prompts."""
    draw = random.Random(case.seed)
    systems = [[draw.randrange(VOCABULARY) for _ in range(draw.choice([8, 24, 37]))] for _ in range(3)]
    made = []
    for number in range(case.requests):
        prompt = draw.choice(systems) + [draw.randrange(VOCABULARY) for _ in range(draw.randrange(1, case.longest))]
        step = number * case.gap
        cancelled = step + draw.randrange(12) if draw.random() < case.cancels else None
        made.append(Coming(f"r{number}", step, prompt, draw.randrange(1, case.answer), cancelled))
    return made


def settings(case: Case, **more: Any) -> tuple[GenerationConfig, ContinuousBatchingConfig]:
    """Return a greedy generation, by sampling from one token where a prompt is answered several times; or from all."""
    sampling: dict[str, Any] = {"do_sample": True, "top_k": 1} if case.forks > 1 else {"do_sample": False}
    if case.samples:
        sampling = {"do_sample": True, "top_k": 0, "top_p": 1.0, "temperature": 1.0}
    return (
        GenerationConfig(max_new_tokens=case.answer, eos_token_id=-1, num_return_sequences=case.forks, **sampling),
        ContinuousBatchingConfig(
            num_blocks=case.blocks,
            page_size=case.page,
            max_batch_tokens=case.budget,
            max_requests_per_batch=32,
            allow_block_sharing=case.shares,
            safety_margin=case.margin,
            scheduler_type=case.scheduler,
            return_logprobs=case.samples,
            **more,
        ),
    )


def run(case: Case, ours: bool = True, spoil: Callable[[Any], None] = lambda cache: None) -> Seen:
    """Serve a case to its end, under Blockwright's cache or transformers' own; `spoil` breaks the cache before."""
    engine.register() if ours else engine.unregister()
    generation, batching = settings(case)
    seen, requests = Seen(), coming(case)
    with torch.no_grad():
        manager = model(case.kind).init_continuous_batching(generation, batching)
        processor = manager.batch_processor = manager._create_batch_processor()
        manager.current_batch = 0
        seen.cache = processor.cache
        count_hits(seen)
        spoil(seen.cache)
        while requests or processor.has_pending_requests() or not manager.input_queue.empty():
            for each in [one for one in requests if one.step <= seen.steps]:
                manager.add_request(each.prompt, request_id=each.name, max_new_tokens=each.answer)
            for each in coming(case) if case.cancels else ():
                if each.cancelled == seen.steps:
                    manager.cancel_request(each.name)
            requests = [one for one in requests if one.step > seen.steps]
            if processor.prepare_next_batch():
                manager._generation_step()
                processor.update_batch()
            if ours:
                seen.cache.manager.check()
            seen.steps += 1
            assert seen.steps < 3000, "it comes to no end"
    while not manager.output_router.output_queue.empty():
        output = manager.output_router.output_queue.get()
        seen.answers[output.request_id] = output.generated_tokens
        if output.error:
            seen.errors[output.request_id] = output.error
        if case.samples and not is_dense(model(case.kind), output):
            seen.wrong.append(output.request_id)
    if ours:
        seen.left = left(seen.cache)
    manager.stop(block=True)
    return seen


@torch.no_grad()
def is_dense(served: Any, output: Any) -> bool:
    """Whether the log-probabilities of an answer are those of a computation without any cache."""
    prompt, answer = output.prompt_ids, output.generated_tokens
    logits = served(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
    expected = logits.float().log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0]
    return bool(torch.allclose(expected, torch.tensor(output.logprobs), atol=1e-3))


def count_hits(seen: Seen) -> None:
    search = seen.cache.search_prefix_match

    def counted(request_id: str, prompt: list[int]) -> int:
        length: int = search(request_id, prompt)
        seen.hits += length
        return length

    seen.cache.search_prefix_match = counted


def left(cache: Any) -> str:
    """Return what is still held once nothing runs: nothing."""
    pool = cache.manager.block_pool
    held = pool.num_blocks - 1 - pool.get_num_free_blocks()
    tables = sum(len(tables.block_table) for tables in cache.groups)
    return f"{held} blocks, {tables} tables, {len(cache.requests)} requests" if held or tables or cache.requests else ""
