"""SGLang's own scheduler without a model: a worker in its place knows what each slot must hold, and checks all reads.

What runs is SGLang's: the scheduler's choice of batches, policies, budgets, retraction, aborts, the processing of
results, its pools and allocators. A worker answers each step by tokens that depend on the history alone, so that all
caches must give the same answers.
"""

import importlib.machinery
import logging
import os
import random
import sys
import types
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

os.environ.setdefault("SGLANG_IS_IN_CI", "1")


class _Absent(types.ModuleType):
    """In the place of torchvision, whose wheel wants a CUDA torch: any name is a class of nothing."""

    __path__: list[str] = []  # noqa: RUF012
    __version__ = "0.28.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        modes = "NEAREST LANCZOS BILINEAR BICUBIC BOX HAMMING NEAREST_EXACT".split()
        return type(name, (), {each: number for number, each in enumerate(modes)})


class _Finder:
    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        is_vision = name.split(".")[0] == "torchvision"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_vision else None  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> Any:
        return _Absent(spec.name)

    def exec_module(self, module: Any) -> None:
        pass


sys.meta_path.insert(0, _Finder())


def configure(**options: Any) -> None:
    """Publish options as SGLang's own configuration of this process."""
    from sglang.srt.runtime_context import get_context, get_parallel

    fixed = {"device": "cpu", "attention_backend": "torch_native"}
    get_context().override_server_args(**fixed | options).install()
    get_parallel().override_permanently(pp_max_micro_batch_size=ROWS)


ROWS = 12
GRID = 16  # tokens between the states that a kernel can write as it passes them
CONTEXT = 512
VOCABULARY = 50


@dataclass(frozen=True)
class Case:
    """A pool, a workload and how it is scheduled."""

    cache: str = "blockwright"  # or "rust", "unified"
    page: int = 16
    tokens: int = 2048
    chunk: int = 64
    policy: str = "fcfs"
    conservativeness: float = 1.0
    mixes: bool = False
    overlaps: bool = False
    salts: bool = False
    aborts: float = 0.05
    requests: int = 60
    longest: int = 200
    answer: int = 60
    gap: int = 3
    seed: int = 0
    logprobs: bool = False
    images: bool = False
    events: bool = False
    window: int = 0  # tokens that some layers read before each, which have `window_tokens` slots of their own
    window_tokens: int = 0
    eagle: bool = False  # a draft writes, for each token, what depends on the next one too
    drafts: int = 0  # tokens that a step verifies, the last one included
    states: int = 0  # slots for the states of recurrent layers
    buffers: bool = False  # SGLang's "extra buffers": kernels write states as they pass them
    lazy: bool = False  # of which each request has the second one only for a step
    checked_every: int = 1


@dataclass
class Seen:
    """What a run came to."""

    answers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    wrong: list[tuple[Any, ...]] = field(default_factory=list)
    steps: int = 0
    reads: int = 0
    hits: int = 0
    prompts: int = 0
    retracted: int = 0
    aborted: list[str] = field(default_factory=list)
    left: int = 0
    rows_left: int = 0
    events: list[Any] = field(default_factory=list)


class Nothing:
    """Takes every call, and has every attribute."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __call__(self, *_: Any, **__: Any) -> None:
        return None

    def __bool__(self) -> bool:
        return False

    def __iadd__(self, _: object) -> "Nothing":
        return self

    def __mod__(self, _: object) -> "Nothing":
        return self


class Lacking(SimpleNamespace):
    """A record whose other fields are None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Worker:
    """Writes into each slot a hash of the history up to its token, and reads what a step of attention would read."""

    def __init__(self, case: Case, allocator: Any, seen: Seen) -> None:
        self.held = [0] * (case.tokens + case.page)
        self.window, self.allocator, self.seen = case.window, allocator, seen
        self.window_held = [0] * (case.window_tokens + case.page)
        self.tokens: dict[str, list[int]] = {}
        self.hashes: dict[str, list[int]] = {}
        self.eagle, self.draft_held = case.eagle, [0] * (case.tokens + case.page)
        self.accepted = torch.ones(0, dtype=torch.int64)
        self.states, self.grid = [-1] * (case.states + 1), GRID

    def copy(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copy states, in the place of SGLang's pool."""
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            self.states[target] = self.states[source]

    def recur(self, batch: Any, rows: Any) -> None:
        """Read the state of each request of a batch, then write it where SGLang says: in place, and for later ones."""
        extends = batch.forward_mode.is_extend()
        if extends and batch.mamba_clear_indices is not None:
            for slot in batch.mamba_clear_indices.tolist():
                self.states[slot] = 0
        if extends and batch.mamba_cow_src_indices is not None:
            self.copy(batch.mamba_cow_src_indices, batch.mamba_cow_dst_indices)
        slots = rows.get_mamba_indices(batch.req_pool_indices).tolist()
        kept = [] if batch.mamba_track_indices is None else batch.mamba_track_indices.tolist()
        masks = (batch.mamba_prefill_track_mask_cpu if extends else batch.mamba_track_mask_cpu) or []
        lengths = batch.mamba_track_seqlens_cpu or []
        if len({*slots}) < len(slots) or 0 in slots:
            self.seen.wrong.append(("states shared", slots))
        for place, (req, slot) in enumerate(zip(batch.reqs, slots, strict=True)):
            end = int(batch.seq_lens_cpu[place])
            begin = batch.prefix_lens[place] if extends else end - 1
            hashes = self.history(req, end)
            self.seen.reads += 1
            if self.states[slot] != (hashes[begin - 1] if begin else 0):
                self.seen.wrong.append(("read a state", req.rid, begin, end))
            self.states[slot] = hashes[end - 1]
            if place < len(masks) and masks[place]:
                stop = begin + (lengths[place] - begin) // self.grid * self.grid if extends else end
                if kept[place] in (0, *slots):
                    self.seen.wrong.append(("kept in a slot in use", req.rid, stop))
                self.states[kept[place]] = hashes[stop - 1]

    def history(self, req: Any, end: int) -> list[int]:
        """Return the hashes of a request's tokens up to one; its own answers count as soon as they are sampled."""
        tokens = self.tokens.setdefault(req.rid, list(req.origin_input_ids))
        hashes = self.hashes.setdefault(req.rid, [])
        while len(hashes) < end:
            before = hashes[-1] if hashes else hash((req.extra_key, req.cache_salt))
            hashes.append(hash((before, tokens[len(hashes)])))
        return hashes

    def run(self, batch: Any, rows: Any) -> list[int]:
        """Write the slots of a batch, then read all that it reads; return a token for each request."""
        extends = batch.forward_mode.is_extend()
        if len(self.states) > 1:
            self.recur(batch, rows)
        if not extends and batch.spec_info is not None:
            return self.verify(batch, rows, batch.spec_info.draft_token_num)
        slots, at, told = batch.out_cache_loc.tolist(), 0, []
        reading = []
        for place, req in enumerate(batch.reqs):
            end = int(batch.seq_lens_cpu[place])
            begin = batch.prefix_lens[place] if extends else end - 1
            hashes = self.history(req, end)
            row = rows.req_to_token[req.kv.req_pool_idx, :end].tolist()
            mine = slots[at : at + end - begin]
            at += end - begin
            if row[begin:] != mine or len(set(mine)) < len(mine) or min(mine) < batch.tree_cache.page_size:
                self.seen.wrong.append(("written", req.rid, begin, end))
            if extends and 0 <= req.most_found < begin and req.extend_batch_idx == 1:
                self.seen.wrong.append(("found too much", req.rid, begin, req.most_found))
            for slot, value in zip(mine, hashes[begin:end], strict=True):
                self.held[slot] = value
            peers, first = [], max(0, begin - self.window)
            if self.window:
                peers = self.allocator.translate_loc_from_full_to_swa(torch.tensor(row[first:])).tolist()
                mine = peers[begin - first :]
                if len(set(mine)) < len(mine) or min(mine) < batch.tree_cache.page_size:
                    self.seen.wrong.append(("written in a window", req.rid, begin, end))
                for slot, value in zip(mine, hashes[begin:end], strict=True):
                    self.window_held[slot] = value
            reading.append((req, row, peers, first, hashes[:end]))
        for req, row, peers, first, hashes in reading:
            self.seen.reads += len(row) + len(peers)
            if [self.held[slot] for slot in row] != hashes:
                self.seen.wrong.append(("read", req.rid, len(row)))
            if self.window and [self.window_held[slot] for slot in peers] != hashes[first:]:
                self.seen.wrong.append(("read in a window", req.rid, len(row)))
            token = hashes[-1] % VOCABULARY
            told.append(token)
            if len(self.tokens[req.rid]) == len(row):
                self.tokens[req.rid].append(token)
            if self.eagle:
                self.draft(req, row, batch.prefix_lens[batch.reqs.index(req)], len(row))
        return told

    def draft(self, req: Any, row: list[int], begin: int, end: int) -> None:
        """Write what a draft keeps of tokens, and read all before: of each, its history and the next token."""
        tokens, hashes = self.tokens[req.rid], self.hashes[req.rid]
        values = [hash((hashes[at], tokens[at + 1])) for at in range(end)]
        for slot, value in zip(row[begin:end], values[begin:], strict=True):
            self.draft_held[slot] = value
        if [self.draft_held[slot] for slot in row[:end]] != values:
            self.seen.wrong.append(("read by a draft", req.rid, begin, end))

    def verify(self, batch: Any, rows: Any, drafts: int) -> list[int]:
        """Write the slots of drafts, of which the first few are right, and read those; return the accepted tokens."""
        told, accepted = [], []
        for place, req in enumerate(batch.reqs):
            begin = int(batch.seq_lens_cpu[place])
            row = rows.req_to_token[req.kv.req_pool_idx, : begin + drafts].tolist()
            count = 1 + self.history(req, begin + 1)[-1] // 7 % drafts
            if begin + drafts > req.kv.kv_allocated_len or len(set(row)) < len(row):
                self.seen.wrong.append(("not reserved", req.rid, begin, req.kv.kv_allocated_len))
            peers, first = row, max(0, begin - self.window)
            if self.window:
                peers = self.allocator.translate_loc_from_full_to_swa(torch.tensor(row)).tolist()
            for slot, peer in zip(row[begin:], peers[begin:], strict=True):
                self.held[slot] = -1
                self.window_held[peer if self.window else 0] = -1
            for end in range(begin + 1, begin + count + 1):
                token = self.history(req, end)[end - 1]
                self.held[row[end - 1]] = self.window_held[peers[end - 1] if self.window else 0] = token
                if len(self.tokens[req.rid]) == end:
                    self.tokens[req.rid].append(token % VOCABULARY)
            self.seen.reads += begin + count
            if [self.held[slot] for slot in row[: begin + count]] != self.hashes[req.rid][: begin + count]:
                self.seen.wrong.append(("read by drafts", req.rid, begin))
            inside = [self.window_held[slot] for slot in peers[first : begin + count]] if self.window else []
            if self.window and inside != self.hashes[req.rid][first : begin + count]:
                self.seen.wrong.append(("read by drafts in a window", req.rid, begin))
            if self.eagle:
                self.draft(req, row, begin, begin + count)
            told += self.tokens[req.rid][begin + 1 : begin + count + 1] + [0] * (drafts - count)
            accepted.append(count)
        self.accepted = torch.tensor(accepted)
        return told


def write_rows(rows: Any, into: Any, starts: Any, stops: Any, slots: Any, count: int) -> None:
    """Write slots ahead into rows, in the place of SGLang's kernel for a GPU."""
    at = 0
    for row, start, stop in zip(rows.tolist(), starts.tolist(), stops.tolist(), strict=True):
        into[row, start:stop] = slots[at : at + stop - start]
        at += stop - start


def speculate(batch: Any, told: torch.Tensor, worker: Worker, drafts: int) -> None:
    """Tell a batch what its next step verifies, as SGLang's n-gram worker does."""
    from sglang.srt.speculative.ngram_info import NgramVerifyInput

    if batch.forward_mode.is_extend():
        worker.accepted = torch.ones(len(batch.reqs), dtype=torch.int64)
        told = torch.zeros(len(batch.reqs) * drafts, dtype=torch.int64)
    else:
        batch.seq_lens = batch.seq_lens + worker.accepted
        batch.seq_lens_cpu = batch.seq_lens.clone()
    batch.spec_info = NgramVerifyInput(
        draft_token_num=drafts, new_seq_lens=batch.seq_lens, accept_tokens=told, accept_lens=worker.accepted
    )


def scheduler(case: Case, seen: Seen) -> Any:
    """Make SGLang's scheduler over its own pools, without its processes, sockets and model."""
    backend = "blockwright" if case.cache == "blockwright" else None
    configure(
        page_size=case.page,
        chunked_prefill_size=case.chunk,
        schedule_conservativeness=case.conservativeness,
        schedule_policy=case.policy,
        enable_mixed_chunk=case.mixes,
        radix_cache_backend=backend,
        speculative_algorithm=("EAGLE" if case.eagle else "NGRAM") if case.drafts else None,
        speculative_eagle_topk=1 if case.eagle else None,
        speculative_num_steps=case.drafts - 1 if case.eagle else None,
        speculative_num_draft_tokens=case.drafts or None,
        mamba_radix_cache_strategy=("extra_buffer_lazy" if case.lazy else "extra_buffer")
        if case.buffers
        else "no_buffer",
        mamba_track_interval=2 * GRID,
        _mamba_cache_chunk_size=max(GRID, case.page) if case.buffers else 1,
    )
    logging.disable(logging.WARNING)
    from sglang.srt.disaggregation.utils import DisaggregationMode
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.managers.scheduler_components.batch_result_processor import SchedulerBatchResultProcessor
    from sglang.srt.mem_cache import allocation
    from sglang.srt.mem_cache.registry import create_tree_cache
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    allocation.assign_req_to_token_pool_func = write_rows
    context = context_of(case)
    rows, allocator = context.params.req_to_token_pool, context.params.token_to_kv_pool_allocator
    tree = create_tree_cache(context)
    model = Lacking(vocab_size=VOCABULARY, is_encoder_decoder=False, is_multimodal=False)
    metrics = SimpleNamespace(
        num_retracted_reqs=0,
        enable_metrics=False,
        num_generated_tokens=0,
        forward_ct_decode=0,
        report_decode_stats=Nothing(),
        report_prefill_stats=Nothing(),
        snapshot_spec_decode_metrics=Nothing(),
        update_spec_metrics=Nothing(),
    )
    beams = SimpleNamespace(
        pending_member_rows=lambda batch: 0, commit_decode=lambda batch: set(), retire_group=lambda req: None
    )
    made = object.__new__(Scheduler)
    model.hf_text_config = SimpleNamespace(mamba_chunk_size=GRID)
    off = (
        "enable_overlap_mlx enable_hierarchical_cache enable_priority_scheduling schedule_low_priority_values_first "
        "enable_hisparse enable_lora enable_hicache_storage enable_lmcache enable_unified_cache_external_linker "
        "require_mlp_sync enable_continuous_input_polling"
    )
    none = (
        "dllm_config truncation_align_size min_free_slots_delayer decode_offload_manager hisparse_coordinator "
        "dynamic_chunk_sizer mm_receiver last_batch chunked_req _pending_chunked_abort_req max_queued_requests "
        "scheduler_stage_metrics cur_batch_for_debug"
    )
    zero = (
        "processed_tokens_counter prefill_decode_interval _prefill_decode_interval_remaining "
        "prefill_decode_interval_min_bs forward_ct priority_scheduling_preemption_threshold"
    )
    made.__dict__.update(
        dict.fromkeys(off.split(), False),
        **dict.fromkeys(none.split()),
        **dict.fromkeys(zero.split(), 0),
        tree_cache=tree,
        req_to_token_pool=rows,
        token_to_kv_pool_allocator=allocator,
        page_size=case.page,
        is_hybrid_swa=case.window > 0,
        is_hybrid_ssm=case.states > 0,
        model_config=model,
        enable_overlap=case.overlaps,
        enable_skip_finishing_decode=case.overlaps,
        spec_algorithm=SpeculativeAlgorithm.from_string(("EAGLE" if case.eagle else "NGRAM") if case.drafts else None),
        device="cpu",
        schedule_policy=case.policy,
        disaggregation_mode=DisaggregationMode.NULL,
        max_prefill_tokens=16384,
        max_running_requests=ROWS,
        grammar_manager=SimpleNamespace(has_waiting_grammars=lambda: False, abort_requests=Nothing()),
        tp_worker=SimpleNamespace(model_runner=SimpleNamespace(attn_backend=None, prefill_aware_swa=False)),
        dp_attn_adapter=SimpleNamespace(
            maybe_prepare_mlp_sync_batch=lambda batch, need_sync=False: batch,
            maybe_convert_decode_to_extend=lambda batch: batch,
        ),
        ngram_embedding_manager=SimpleNamespace(prepare_for_forward=lambda batch, chunked_req=None: batch),
        beam_coordinator=beams,
        load_inquirer=SimpleNamespace(_get_num_pending_tokens=lambda chunk_deduct=0: 0),
        metrics_reporter=metrics,
        metrics_collector=Nothing(),
        waiting_queue=[],
        running_batch=ScheduleBatch(reqs=[], batch_is_full=False),
        chunked_prefill_size=case.chunk,
        is_mixed_chunk=case.mixes,
        result_queue=deque(),
        send_abort_output=lambda message, req: seen.aborted.append(req.rid),
        _release_aborted_request=Nothing(),
        _prefetch_kvcache=Nothing(),
        _abort_on_queued_limit=lambda req: False,
    )
    made.init_schedule_policy()
    made.batch_result_processor = SchedulerBatchResultProcessor(
        is_generation=True,
        disaggregation_mode=DisaggregationMode.NULL,
        enable_overlap=case.overlaps,
        enable_overlap_mlx=False,
        model_config=model,
        token_to_kv_pool_allocator=allocator,
        tree_cache=tree,
        hisparse_coordinator=None,
        req_to_token_pool=rows,
        decode_offload_manager=None,
        metrics_collector=Nothing(),
        metrics_reporter=metrics,
        draft_worker=None,
        model_worker=Nothing(),
        logprob_result_processor=Nothing(),
        output_streamer=SimpleNamespace(stream_output=Nothing()),
        beam_coordinator=beams,
        abort_request=made.abort_request,
    )
    return made


def context_of(case: Case, **fields: Any) -> Any:
    """Return what SGLang gives to the factories of its caches, with its pools; `fields` are other than usual."""
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    rows = rows_of(case) if case.states else ReqToTokenPool(ROWS, CONTEXT, "cpu", False)
    memory = SimpleNamespace(device="cpu", mem_usage=0)
    if case.window:
        layers = {"swa_attention_layer_ids": [0], "full_attention_layer_ids": [1], "enable_memory_saver": False}
        kinds = {"page_size": case.page, "dtype": torch.float16, "device": "cpu"}
        slots = SWAKVPool(case.tokens, case.window_tokens, head_num=1, head_dim=1, **kinds, **layers)
        allocator = SWATokenToKVPoolAllocator(case.tokens, case.window_tokens, kvcache=slots, need_sort=False, **kinds)
    elif case.page == 1:
        allocator = TokenToKVPoolAllocator(case.tokens, torch.float16, "cpu", memory, False)
    else:
        allocator = PagedTokenToKVPoolAllocator(case.tokens, case.page, torch.float16, "cpu", memory, False)
    params = CacheInitParams(
        disable=False,
        req_to_token_pool=rows,
        token_to_kv_pool_allocator=allocator,
        page_size=case.page,
        tree_core_backend="rust" if case.cache == "rust" else "python",
        chunked_prefill_size=case.chunk,
        enable_kv_cache_events=case.events,
        sliding_window_size=case.window or None,
        is_eagle=case.eagle,
        enable_mamba_extra_buffer=case.buffers,
        enable_mamba_extra_buffer_lazy=case.lazy,
    )
    for name in fields.keys() & vars(params).keys():
        setattr(params, name, fields.pop(name))
    usual = {
        "server_args": None,
        "params": params,
        "is_hybrid_swa": case.window > 0,
        "is_hybrid_ssm": case.states > 0,
        "enable_hierarchical_cache": False,
        "disable_radix_cache": False,
        "tp_worker": Nothing(),
        "model_config": None,
        "tp_size": 1,
        "tp_rank": 0,
        "tp_group": None,
    }
    return TreeCacheBuildContext(**usual | fields)


def rows_of(case: Case) -> Any:
    """Make SGLang's rows for a model with recurrent layers, with a pool of states."""
    from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateDType, Mamba2StateShape
    from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool

    torch.Tensor.pin_memory = torch.Tensor.contiguous  # type: ignore[assignment]  # there is no device to copy to
    sizes = dict.fromkeys("intermediate_size conv_dim ssm_state_size num_heads head_dim state_size".split(), 1)
    shape = Mamba2StateShape(conv=[(1, 1)], temporal=(1, 1, 1), conv_kernel=2, **sizes)
    return HybridReqToTokenPool(
        size=ROWS,
        mamba_size=case.states,
        mamba_spec_state_size=ROWS,
        max_context_len=CONTEXT,
        device="cpu",
        enable_memory_saver=False,
        cache_params=Mamba2CacheParams(
            shape=shape, layers=[0], dtype=Mamba2StateDType(conv=torch.float32, temporal=torch.float32)
        ),
        mamba_layer_ids=[0],
        enable_mamba_extra_buffer=case.buffers,
        enable_mamba_extra_buffer_lazy=case.lazy,
        enable_overlap_schedule=case.overlaps,
    )


def request(rid: str, prompt: list[int], most: int, salt: str | None = None, logprobs_from: int = -1) -> Any:
    """Make a request of SGLang's."""
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    sampling = SamplingParams(max_new_tokens=most)
    sampling.normalize(None)
    req = Req(rid, "", array("q", prompt), sampling, vocab_size=VOCABULARY, cache_salt=salt, eos_token_ids=set())
    req.tokenizer, req.return_logprob, req.logprob_start_len, req.most_found = None, False, -1, logprobs_from
    if logprobs_from >= 0:
        # What a request for log-probabilities of its prompt limits is the match; there are none to hand out here.
        most_of = req._compute_max_prefix_len
        req._compute_max_prefix_len = lambda length: min(most_of(length), logprobs_from)
    return req


def arrivals(case: Case) -> list[tuple[int, Any, int | None]]:
    """Return the requests, each with the step at which it comes, and the step at which it is aborted, or None.

    Prompts go on from some stems, from parts of them, and from prompts before; `next_turn` adds more.
    """
    dice = random.Random(case.seed)

    def drawn(least: int, most: int) -> list[int]:
        return [dice.randrange(VOCABULARY) for _ in range(dice.randrange(least, most))]

    stems = [drawn(8, case.longest) for _ in range(6)]
    images = [2**61 + dice.randrange(2**60) for _ in range(3)]
    found, step = [], 0
    for number in range(case.requests):
        stem = dice.choice(stems)
        prompt = stem[: dice.choice([len(stem), len(stem), dice.randrange(1, len(stem) + 1)])] + drawn(1, 40)
        if case.images and dice.random() < 0.6:
            prompt[4:20] = [dice.choice(images)] * 16  # of one image all tokens are alike
        if dice.random() < 0.3 and len(prompt) < CONTEXT // 2:
            stems[dice.randrange(len(stems))] = prompt
        step += dice.choice([0, 0, 0, 1, 2, dice.randrange(case.gap + 1)])
        most = dice.randrange(1, case.answer)
        salt = dice.choice([None, None, None, "x"]) if case.salts else None
        aborts = step + dice.randrange(1, 40) if dice.random() < case.aborts else None
        start = dice.randrange(len(prompt)) if case.logprobs and dice.random() < 0.4 else -1
        found.append((step, request(f"r{number}#", prompt[: CONTEXT - 80], most, salt, start), aborts))
    return found


def next_turn(case: Case, req: Any, step: int) -> list[tuple[int, Any, int | None]]:
    """Return what follows a request that was answered in full: in three of ten, one that goes on from its answer."""
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    dice = random.Random(f"{case.seed} {req.rid}")
    prompt = [
        *req.origin_input_ids,
        *req.output_ids_through_stop,
        *(dice.randrange(VOCABULARY) for _ in range(dice.randrange(1, 20))),
    ]
    if dice.random() > 0.3 or len(prompt) > CONTEXT - 80 or isinstance(req.finished_reason, FINISH_ABORT):
        return []
    return [(step + dice.randrange(1, 6), request(f"{req.rid}+", prompt, 20, req.cache_salt), None)]


def run(
    case: Case,
    spoil: Callable[[Any], None] = lambda made: None,
    coming: list[tuple[int, Any, int | None]] | None = None,
) -> Seen:
    """Serve a case, or the requests that are given, to the end; `spoil` may break something in the scheduler before.

    Raises:
        AssertionError: pages were lost, or are held by nobody; the error of a law that `check` found broken.
    """
    from sglang.srt.managers.io_struct import AbortReq
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    seen = Seen()
    made = scheduler(case, seen)
    allocator, tree, rows = made.token_to_kv_pool_allocator, made.tree_cache, made.req_to_token_pool
    worker = Worker(case, allocator, seen)
    if case.states:
        rows.mamba_pool.copy_from = worker.copy
    spoil(made)
    waiting = arrivals(case) if coming is None else list(coming)
    requests: list[Any] = []
    step, is_idle = 0, False
    aborts: dict[int, list[Any]] = {}
    counted: set[str] = set()
    ended: set[str] = set()
    while not is_idle or waiting:
        while waiting and waiting[0][0] <= step:
            _, req, end = waiting.pop(0)
            requests.append(req)
            aborts.setdefault(-1 if end is None else end, []).append(req)
            made._add_request_to_queue(req)
        for req in aborts.pop(step, []):
            if not req.finished():
                made.abort_request(AbortReq(rid=req.rid))
        plan = made.get_next_batch_to_run(running_batch=made.running_batch, last_batch=made.last_batch)
        made.running_batch, batch = plan.running_batch, plan.batch_to_run
        if batch:
            told = torch.tensor(worker.run(batch, rows))
            if batch.forward_mode.is_extend():
                for place, req in enumerate(batch.reqs):
                    if req.rid not in counted:
                        counted.add(req.rid)
                        seen.hits += batch.prefix_lens[place]
                        seen.prompts += len(req.full_untruncated_fill_ids)
            if case.drafts:
                speculate(batch, told, worker, case.drafts)
            else:
                batch.input_ids = told
            made.result_queue.append((batch.copy() if case.overlaps else batch, told, worker.accepted))
        if made.result_queue and (not case.overlaps or made.last_batch):
            process(made, *made.result_queue.popleft())
        is_idle = not (batch or made.waiting_queue or made.chunked_req or made.result_queue or made.last_batch)
        for req in [req for req in requests if req.finished() and req.rid not in ended] if coming is None else ():
            ended.add(req.rid)
            waiting = sorted([*waiting, *next_turn(case, req, step)], key=lambda each: each[0])
        made.last_batch = batch
        made.forward_ct += 1
        step += 1
        if step % case.checked_every == 0:
            census(made, case)
        if seen.wrong:
            break
        seen.events += tree.take_events() if case.events else []
        assert step < 20_000, "the scheduler makes no progress"
    seen.steps, seen.retracted = step, sum(req.retraction_count for req in requests)
    seen.left = sum(pool[0] - pool[1] for pool in pools(made, case))
    seen.rows_left = ROWS - rows.available_size()
    gone = {req.rid for req in requests if isinstance(req.finished_reason, FINISH_ABORT)} | {*seen.aborted}
    seen.answers = {req.rid: tuple(req.output_ids_through_stop) for req in requests if req.rid not in gone}
    return seen


def slots_of(kv: Any) -> list[int]:
    """Return the slots of states that a request holds."""
    buffers = [] if kv.mamba_ping_pong_track_buffer is None else kv.mamba_ping_pong_track_buffer.tolist()
    return [int(kv.mamba_pool_idx), *(slot for slot in buffers if slot > 0)]


def process(made: Any, batch: Any, told: torch.Tensor, accepted: torch.Tensor) -> None:
    """Hand the tokens of a batch to SGLang."""
    result = Lacking(
        next_token_ids=told,
        can_run_cuda_graph=False,
        grammar_advanced=False,
        num_correct_drafts=0,
        num_non_draft_tokens_per_req=1,
        accept_lens=accepted,
        speculative_num_draft_tokens=getattr(batch.spec_info, "draft_token_num", None),
        get_num_generated_tokens=lambda count: count,
    )
    processor = made.batch_result_processor
    if batch.forward_mode.is_extend():
        processor.process_batch_result_prefill(batch, result)
    else:
        processor.process_batch_result_decode(batch, result)


def pools(made: Any, case: Case) -> list[tuple[int, int, int]]:
    """Return of each pool how many slots it has, how many of them nobody holds, and how many are held by the tree."""
    allocator, tree = made.token_to_kv_pool_allocator, made.tree_cache
    if case.states:
        states = made.req_to_token_pool.mamba_allocator.available_size() + tree.mamba_evictable_size()
        full = allocator.available_size() + tree.full_evictable_size()
        return [(case.tokens, full, tree.full_protected_size()), (case.states, states, tree.mamba_protected_size())]
    if not case.window:
        return [(case.tokens, allocator.available_size() + tree.evictable_size(), tree.protected_size())]
    full = allocator.full_available_size() + tree.full_evictable_size()
    window = allocator.swa_available_size() + tree.swa_evictable_size()
    return [
        (case.tokens, full, tree.full_protected_size()),
        (case.window_tokens, window, tree.swa_protected_size()),
    ]


def census(made: Any, case: Case) -> None:
    """Check that every page is free, cached, or of a request that runs: SGLang's sums, and the manager's laws."""
    from sglang.srt.managers.scheduler_components.pool_stats_observer import (
        kv_mamba_slots,
        kv_private_swa_tokens,
        kv_private_tokens,
    )

    tree, rows = made.tree_cache, made.req_to_token_pool.req_to_token
    batches = [made.running_batch, made.last_batch, *(each[0] for each in made.result_queue)]
    reqs = [req for batch in batches if batch for req in batch.reqs] + [made.chunked_req]
    live = {id(req): req for req in reqs if req is not None and req.kv.holds_kv}
    others = (lambda kv, page: kv_mamba_slots(kv)) if case.states else kv_private_swa_tokens
    for (size, free, protected), private in zip(pools(made, case), (kv_private_tokens, others), strict=False):
        sums = free + protected + sum(private(req.kv, case.page) for req in live.values())
        assert sums == size, ("lost", size - sums)
    if case.cache != "blockwright":
        return
    of_rows = {
        slot // case.page
        for req in live.values()
        for slot in rows[req.kv.req_pool_idx, : req.kv.kv_allocated_len].tolist()
    }
    if case.states:
        tree.states.manager.check()
        assert not {*tree.states.allocator.free_slots.tolist()} & {
            slot for req in live.values() for slot in slots_of(req.kv)
        }
    for layers, (size, free, _) in zip(tree.layers, pools(made, case), strict=False):
        layers.manager.check()
        tables = [layers.manager.get_block_ids(name)[0] for name in layers.manager.request_ids()]
        of_tables = {page for table in tables for page in table} - {0}
        assert layers.number or of_tables == of_rows
        assert len(of_tables) * case.page == size - free, "pages are held by no row"
    assert len(tree.running) == len(live)
