"""vLLM's real schedulers with a worker that computes nothing, and knows what every slot should hold.

The worker keeps the block tables from what the scheduler sends, as vLLM's does, and writes a digest of the whole prefix
into each slot. States of recurrent layers are in the entries where vLLM's worker has them (`v1/worker/mamba_utils.py`).
What a step reads must be the digest of what the request says: a block given away too early, published too early, or
found by the wrong request shows at once, whatever the manager believes.
"""

import copy
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.engines import models
from tests.engines.connector import draw
from vllm import SamplingParams
from vllm.config.aux_output import AuxOutputConfig
from vllm.distributed.aux_output_connector import routed_experts, store
from vllm.distributed.aux_output_connector import worker as aux_worker
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.mamba.checkpoint import compute_mamba_prefill_checkpoints
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.engine import FinishReason
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    MambaSpec,
    RSWASpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from blockwright.engines.vllm import schedulers

_CONFIGS: dict[str, Any] = {}


def layer() -> dict[str, Any]:
    """Return the sizes of an attention layer, which matter to nobody here."""
    return {"num_kv_heads": 1, "head_size": 16, "dtype": torch.float32}


def full(size: int = 16) -> Any:
    return FullAttentionSpec(block_size=size, **layer())


def sliding(window: int, size: int = 16) -> Any:
    return SlidingWindowSpec(block_size=size, sliding_window=window, **layer())


def chunked(chunk: int, size: int = 16) -> Any:
    return ChunkedLocalAttentionSpec(block_size=size, attention_chunk_size=chunk, **layer())


def state(size: int = 16, checkpoint: int | None = None) -> Any:
    """Return a recurrent layer, perhaps with a checkpoint inside a prefill chunk at such an alignment."""
    return MambaSpec(
        block_size=size,
        shapes=((16,),),
        dtypes=(torch.float32,),
        mamba_cache_mode="align",
        num_prefill_checkpoint_blocks=int(checkpoint is not None),
        prefill_checkpoint_alignment=checkpoint,
    )


KINDS: dict[str, Callable[[], list[Any]]] = {
    "full": lambda: [full()],
    "sliding": lambda: [sliding(40)],
    "five": lambda: [sliding(32)] * 5,
    "chunked": lambda: [chunked(48)],
    "reference": lambda: [RSWASpec(block_size=16, rswa_window=24, **layer())],
    "state": lambda: [state()],
    "states": lambda: [state()] * 3,
    "large-state": lambda: [state(32)],
    "whole-state": lambda: [state(2048)],  # as without prefix caching: one block for the longest request
    "checkpoint-state": lambda: [state(checkpoint=1)],
    "small": lambda: [full(4)],
    "small-state": lambda: [state(4)],
}


def drafting(kinds: Sequence[Any], drafts: int) -> list[Any]:
    """Return kinds of layers for a model that drafts so many tokens."""
    return [replace(kind, num_speculative_blocks=drafts) if isinstance(kind, MambaSpec) else kind for kind in kinds]


def scheduler(
    folder: Path,
    ours: bool,
    kinds: Sequence[Any],
    num_blocks: int,
    *,
    is_async: bool = False,
    drafts: int = 0,
    eagle: bool = False,
    modules: bool = False,
    rows: bool = False,
    flagged: bool = True,
    unit: int | None = None,
    interval: int | None = None,
    shared_prefix: bool = False,
    caching: bool = True,
    events: bool = False,
    loads: dict[str, Any] | None = None,
    connector: dict[str, Any] | None = None,
    scheduling: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Return one of vLLM's schedulers over a pool of these groups, with its own manager or ours."""
    # `loads` configures the connector beside this file, `connector` one of vLLM's own. Drafts are of an EAGLE head or
    # of n-grams, and with `modules` each draft is of a module of its own; `flagged` marks full attention as the head's.
    # With `rows` the worker returns an auxiliary output of each token. `unit` is the tokens of a hash, `interval` is
    # vLLM's ``--prefix-cache-retention-interval`` (0 by default there), and `shared_prefix` lets states inside blocks
    # be published. `scheduling` has fields of the scheduler's own configuration, which are quick to change.
    settings = {
        "model": str(models.make("llama", folder)),
        "skip_tokenizer_init": True,
        "max_model_len": 2048,
        "enable_prefix_caching": caching,
        "block_size": 32,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 64,
        "async_scheduling": False,
    } | options
    if drafts:
        head: dict[str, Any] = {"method": "eagle", "model": str(models.eagle(folder))}
        ngram = {"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 1}
        settings["speculative_config"] = {"num_speculative_tokens": drafts} | (head if eagle else ngram)
    name = repr(sorted(settings.items(), key=str))
    if name not in _CONFIGS:
        _CONFIGS[name] = EngineArgs(**settings).create_engine_config()
        register_all_kvcache_specs(_CONFIGS[name])
    config = copy.copy(_CONFIGS[name])
    config.cache_config = copy.copy(config.cache_config)
    config.scheduler_config = copy.copy(config.scheduler_config)
    config.scheduler_config.async_scheduling = is_async
    for name, value in (scheduling or {}).items():
        setattr(config.scheduler_config, name, value)
    if modules:
        own: Any = copy.deepcopy(config.speculative_config)
        own.draft_model_config.hf_config.num_nextn_predict_layers, own.method = drafts, "mtp"
        config.speculative_config = own
        extra = config.num_prefill_lookahead_tokens - 1
        kinds = [
            replace(kind, extra_retained_tokens=extra) if isinstance(kind, SlidingWindowSpec) else kind
            for kind in kinds
        ]
    sizes = [kind.block_size for kind in kinds]
    config.cache_config.block_size = max(sizes)
    config.cache_config.num_gpu_blocks = num_blocks
    if any(isinstance(kind, MambaSpec) for kind in kinds):
        config.cache_config.mamba_cache_mode = "align" if caching else "none"
        config.cache_config.mamba_block_size = max(sizes)
        config.cache_config.enable_mamba_shared_prefix_checkpoint = shared_prefix
    if rows:
        config.aux_output_config = AuxOutputConfig(enable_return_routed_experts=True)
    if loads is not None:
        connector = {
            "kv_connector": "Connector",
            "kv_role": "kv_both",
            "kv_connector_module_path": "tests.engines.connector",
            "kv_connector_extra_config": {"is_async": False, "leaves_last": False} | loads,
            "kv_load_failure_policy": loads.get("policy", "recompute"),
        }
    if connector is not None:
        from vllm.config import KVTransferConfig

        config.kv_transfer_config = KVTransferConfig(**{"kv_load_failure_policy": "recompute"} | connector)
    if events:
        from vllm.config import KVEventsConfig

        config.kv_events_config = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
    groups = [
        KVCacheGroupSpec(
            [f"layers.{number}"], kind, is_eagle_group=eagle and flagged and isinstance(kind, FullAttentionSpec)
        )
        for number, kind in enumerate(kinds)
    ]
    names = [name for group in groups for name in group.layer_names]
    size = kinds[0].page_size_bytes if kinds else 0
    tensors = [KVCacheTensor(size=size * num_blocks, layers=names, layer_stride=0, block_stride=size)] if kinds else []
    config.cache_config.prefix_cache_retention_interval = interval
    config.cache_config.prefix_match_unit = unit
    memory = KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=tensors,
        kv_cache_groups=groups,
        prefix_cache_retention_interval=interval,
    )
    return started(config, memory, ours, max(sizes), unit or min(sizes))


def started(config: Any, memory: Any, ours: bool, block_size: int, unit: int) -> Any:
    """Return the scheduler that a configuration asks for, with vLLM's manager or ours; `unit`: tokens of a hash."""
    is_async = config.scheduler_config.async_scheduling
    theirs = AsyncScheduler if is_async else Scheduler
    own = schedulers.AsyncScheduler if is_async else schedulers.Scheduler
    return (own if ours else theirs)(
        vllm_config=config,
        kv_cache_config=memory,
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
        hash_block_size=unit,
        log_stats=True,
    )


def request(
    name: str,
    tokens: list[int],
    hash_block_size: int,
    max_tokens: int,
    lookahead: int = 0,
    stops: Sequence[int] = (),
    **options: Any,
) -> Request:
    """Return a request as the engine makes it; its block hashes cover `lookahead` tokens behind their block (0.33)."""
    kv_cache_utils.init_none_hash(sha256)
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, stop_token_ids=list(stops))
    sampling.update_from_generation_config({}, None)
    hasher = kv_cache_utils.get_request_block_hasher(hash_block_size, sha256, *([lookahead] if lookahead else []))
    return Request(name, tokens, sampling, None, block_hasher=hasher, **options)


class WrongContentError(AssertionError):
    """A step would read what is not the prefix of its request."""


def recorder(scheduler: Any) -> Any:
    """Return what vLLM's worker keeps auxiliary outputs in, without a model to take them from."""
    made = aux_worker.AuxOutputWorkerConnector.__new__(aux_worker.AuxOutputWorkerConnector)
    unit, settings = scheduler.hash_block_size, scheduler.scheduler_config
    held = store.BlockObjectStore(max_bytes=8 * unit * scheduler.kv_cache_config.num_blocks, object_nbytes=8 * unit)
    sizes = settings.max_num_seqs, settings.max_num_batched_tokens, 2
    vars(made).update(
        _store=store.BackgroundBlockObjectStore(held, max_pending_batches=64),
        _buffer=routed_experts.RoutedExpertsBuffer(np.dtype("int64"), (), unit, *sizes),
        _requests={},
        _generation=0,
        _step_metadata=None,
        _pending_outputs=[],
        _lock=threading.Lock(),
        _max_concurrent_batches=2,
    )
    return made


Turn = tuple[list[int], int, Sequence[int]]
"""Tokens, how many are sampled after them at most, and those that end it sooner."""


class Worker:
    """The worker's side of one scheduler: tokens, block tables, and what every slot holds."""

    def __init__(self, kinds: Sequence[Any], drafts: int, seed: int, scheduler: Any) -> None:
        self.kinds, self.drafts, self.seed = kinds, drafts, seed
        unit = scheduler.hash_block_size
        is_fine = any(isinstance(kind, MambaSpec) and kind.block_size > unit for kind in kinds) and all(
            isinstance(kind, FullAttentionSpec | MambaSpec) or kind.block_size == unit for kind in kinds
        )
        self.checkpoints = {  # the worker has a rule of its own, and asks no manager, where a prefill step saves one
            "hash_block_size": unit,
            "drop_eagle_block": scheduler.use_eagle_block_drop,
            "cache_hit_alignment_tokens": unit if is_fine else max([kind.block_size for kind in kinds], default=unit),
        }
        if ahead := getattr(scheduler, "num_hash_lookahead_tokens", 0):
            self.checkpoints["num_hash_lookahead_tokens"] = ahead
        self.tokens: dict[str, list[int]] = {}
        self.digests: dict[str, list[int]] = {}
        self.tables: dict[str, list[list[int]]] = {}
        self.slots: dict[int, tuple[int, dict[Any, Any]]] = {}  # per block: whose group's, and what its slots hold
        self.states = [at for at, kind in enumerate(kinds) if isinstance(kind, MambaSpec)]
        self.running: dict[tuple[str, int], tuple[int, int]] = {}  # of a state: its entry, and the tokens accepted last
        self.proposed: dict[str, list[int]] = {}
        self.again = max(0, getattr(scheduler, "num_prefill_lookahead", 0) - 1)  # a head writes so many once more
        self.heads: dict[str, tuple[int, int]] = {}  # where the head of a request began, and where it ended last
        self.prompts: dict[str, int] = {}
        self.rows: Any = recorder(scheduler) if scheduler.aux_output_connector is not None else None

    def _digest(self, name: str, count: int, extra: Sequence[int] = ()) -> list[int]:
        """Return the digests of the prefixes of a request's tokens, drafts behind them."""
        kept = self.digests[name]
        tokens = self.tokens[name]
        while len(kept) < count:
            kept.append(hash((kept[-1] if kept else self.seed, tokens[len(kept)])))
        found = kept[:count]
        for token in extra:
            found.append(hash((found[-1], token)))
        return found

    def digests_of(self, tokens: Sequence[int]) -> list[int]:
        """Return the digests of the prefixes of some tokens."""
        digest, found = self.seed, list[int]()
        for token in tokens:
            found.append(digest := hash((digest, token)))
        return found

    @staticmethod
    def _next(digest: int) -> int:
        """Return the token that a model would sample after a prefix."""
        return 3 + digest % 97

    def answer(self, turns: Sequence[Turn]) -> list[int]:
        """Return the tokens that the model samples after each turn; the next one drops the last of them."""
        digest, found = self.seed, list[int]()
        for tokens, count, stops in turns:
            for token in tokens:
                digest = hash((digest, token))
            for left in range(count, 0, -1):
                found.append(self._next(digest))
                if left == 1 or found[-1] in stops:
                    break
                digest = hash((digest, found[-1]))
        return found

    def _know(self, name: str, tokens: list[int], tables: Sequence[Sequence[int]], computed: int) -> None:
        self.tokens[name], self.digests[name] = list(tokens), []
        self.tables[name] = [list(table) for table in tables]
        self.heads[name] = computed, computed
        for group in self.states:
            self.running[name, group] = (computed - 1) // self.kinds[group].block_size, 1

    def run(self, output: Any, lost: Collection[int] = ()) -> ModelRunnerOutput:
        """Compute a step: all its writes, then its reads, then samples; requests with `lost` blocks are not read."""
        # What such a request samples is dropped by the scheduler, so it learns nothing.
        for name in output.finished_req_ids:
            for each in (self.tokens, self.digests, self.tables, self.proposed, self.heads):
                each.pop(name, None)
        starts: dict[str, int] = {}
        for new in output.scheduled_new_reqs:
            tokens = new.prefill_token_ids if new.prefill_token_ids is not None else new.prompt_token_ids
            self._know(new.req_id, tokens, new.block_ids, new.num_computed_tokens)
            self.prompts[new.req_id] = len(new.prompt_token_ids)
            starts[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for at, name in enumerate(cached.req_ids):
            starts[name] = cached.num_computed_tokens[at]
            given = cached.new_block_ids[at]
            if name in cached.resumed_req_ids:
                self._know(name, cached.all_token_ids[name], given, starts[name])
            elif given is not None:
                for table, more in zip(self.tables[name], given, strict=True):
                    table.extend(more)
        for each in getattr(output, "kv_cache_block_copies", None) or ():
            if each.src_block_id in self.slots:
                self.slots[each.dst_block_id] = copy.deepcopy(self.slots[each.src_block_id])
        steps = []
        for name, count in output.num_scheduled_tokens.items():
            known = len(self.tokens[name])
            spec = output.scheduled_spec_decode_tokens.get(name, ())
            start = starts[name]
            if spec and len(spec) + known > start + count:
                start = start + count - len(spec) - 1
            start = min(start, known - 1)
            extra = list(self.proposed.get(name, [])[: len(spec)]) if spec and -1 in spec else list(spec)
            extra += [-1] * (len(spec) - len(extra))
            if start + count < known:
                extra = []
            digests = self._digest(name, min(known, start + count), extra)
            stop = start + count
            if len(digests) < stop:
                raise WrongContentError(f"{name}: {count} tokens from {start}, but only {len(digests)} are known")
            steps.append((name, start, stop, digests, extra))
        states = self._begin_states(steps)
        for name, start, stop, digests, extra in steps:
            self._write(name, start, stop, digests, extra)
        for name, start, stop, digests, _ in steps:
            if set(lost).isdisjoint(self.tables[name][0]):
                self._read(name, start, stop, digests, states)
            self.heads[name] = self.heads[name][0], stop
        result = self._sample(steps, lost)
        if self.rows is not None:
            self.rows.begin_step(output.aux_output_connector_metadata)
        if self.rows is not None and steps:
            result.aux_output_connector_output = self._record(steps, result.sampled_token_ids)
        return result

    def _record(self, steps: list[Any], sampled: list[list[int]]) -> Any:
        """Return the auxiliary outputs of a step: of each token its digest."""
        lengths = [stop - start for _, start, stop, _, _ in steps]
        pending = aux_worker.PendingAuxOutput(
            self.rows,
            [name for name, *_ in steps],
            np.array([start for _, start, *_ in steps]),
            np.cumsum([0, *lengths]),
            torch.empty(0),
            np.array(
                [digest for _, start, stop, digests, _ in steps for digest in digests[start:stop]], dtype=np.int64
            ),
            np.array([len(tokens) for tokens in sampled]),
            np.array(
                [
                    len(extra) + 1 - len(tokens) if tokens else 0
                    for (_, _, _, _, extra), tokens in zip(steps, sampled, strict=True)
                ]
            ),
        )
        self.rows._pending_outputs.append(pending)
        for name in pending.request_ids:
            self.rows._requests[name].pending_outputs += 1
        return self.rows.process_output(pending)

    def load(self, tokens: Sequence[int], start: int, stop: int, tables: Sequence[Sequence[int]]) -> None:
        """Write what comes from elsewhere: the contents of tokens `start` to `stop`, where there is a block."""
        digests: list[int] = []
        for token in tokens[:stop]:
            digests.append(hash((digests[-1] if digests else self.seed, token)))
        for group, (kind, table) in enumerate(zip(self.kinds, tables, strict=True)):
            if isinstance(kind, MambaSpec):
                block = table[-(-stop // kind.block_size) - 1]
                if block:  # the state after all that is loaded is the only one
                    self._held(group, block).update(state=digests[-1], window=[digests[-1]])
                continue
            for at in range(start, stop):
                block = table[at // kind.block_size]
                if block:
                    self._held(group, block)[at % kind.block_size] = digests[at]

    def _state(self, name: str, group: int, entry: int) -> dict[Any, Any]:
        """Return what an entry of a recurrent layer holds: a state, and a window for each number of accepted drafts."""
        table = self.tables[name][group]
        if not 0 <= entry < len(table) or table[entry] == 0:
            raise WrongContentError(f"{name}: group {group} needs entry {entry} of {table}")
        return self._held(group, table[entry])

    def _move_state(self, name: str, group: int, entry: int, drafts: int, to: int) -> None:
        """Copy the state after so many accepted drafts, which is as many entries behind; the window is in the first."""
        found, window = self._state(name, group, entry + drafts).get("state"), self._state(name, group, entry)
        self._state(name, group, to).update(state=found, window=window.get("window", [])[drafts:])

    def _begin_states(self, steps: list[Any]) -> dict[tuple[str, int], Any]:
        """Move the states to the entries of the steps' last tokens, for all steps at once; return what each reads."""
        for name, _, stop, _, _ in steps:
            for group in self.states:
                entry, accepted = self.running[name, group]
                now = -(-stop // self.kinds[group].block_size) - 1
                if entry >= 0 and entry != now:
                    self._move_state(name, group, entry, accepted - 1, now)
                    accepted = 1
                self.running[name, group] = now, accepted
        found = {}
        for name, start, _, _, _ in steps:
            for group in self.states if start else ():
                entry, accepted = self.running[name, group]
                window = self._state(name, group, entry).get("window", [])[accepted - 1 :]
                found[name, group] = self._state(name, group, entry + accepted - 1).get("state"), *window[:1]
        return found

    def _end_states(self, name: str, stop: int, extra: list[int], accepted: int) -> None:
        """Copy the state at the last block end among the tokens that hold to its own entry."""
        first = stop - len(extra)
        for group in self.states:
            size, (entry, _) = self.kinds[group].block_size, self.running[name, group]
            end = (first + accepted - 1) // size * size
            if end >= first:
                self._move_state(name, group, entry, end - first, end // size - 1)
            self.running[name, group] = entry, 1 if end >= first and end // size - 1 == entry else accepted

    def _held(self, group: int, block: int) -> dict[Any, Any]:
        """Return what a block's slots hold for a group that writes it: nothing of others, as all share one memory."""
        if block not in self.slots or self.slots[block][0] != group:
            self.slots[block] = group, {}
        return self.slots[block][1]

    def _write(self, name: str, start: int, stop: int, digests: list[int], extra: list[int]) -> None:
        for group, kind in enumerate(self.kinds):
            table, size = self.tables[name][group], kind.block_size
            if isinstance(kind, MambaSpec):
                first, entry = stop - len(extra), self.running[name, group][0]
                for count in range(first, stop + 1):
                    self._state(name, group, entry + count - first)["state"] = digests[count - 1]
                self._state(name, group, entry)["window"] = digests[first - 1 : stop]
                if kind.num_prefill_checkpoint_blocks and not extra:
                    (offset,), (column,) = compute_mamba_prefill_checkpoints(
                        [stop],
                        [stop - start],
                        mamba_block_size=size,
                        checkpoint_alignment=kind.prefill_checkpoint_alignment,
                        **self.checkpoints,
                    )
                    if offset and table[column]:
                        left = digests[start + offset - 1]
                        self._state(name, group, column).update(state=left, window=[left])
                continue
            for at in range(start, stop):
                block = table[at // size]
                if block == 0:
                    raise WrongContentError(f"{name}: group {group} writes position {at} to the null block")
                self._held(group, block)[at % size] = digests[at]

    def _read(self, name: str, start: int, stop: int, digests: list[int], states: dict[Any, Any]) -> None:
        for group, kind in enumerate(self.kinds):
            table, size = self.tables[name][group], kind.block_size
            if isinstance(kind, MambaSpec):
                if start and states[name, group] != (digests[start - 1],) * 2:
                    raise WrongContentError(f"{name}: group {group} reads another state than after {start} tokens")
                continue
            first, begin = 0, max(self.heads[name][0], start - self.again) if self.again else start
            if isinstance(kind, SlidingWindowSpec):
                first = max(0, begin - kind.sliding_window + 1)
            elif isinstance(kind, ChunkedLocalAttentionSpec):
                first = begin // kind.attention_chunk_size * kind.attention_chunk_size
            read: Sequence[int] = range(first, stop)
            if isinstance(kind, RSWASpec):
                prompt = self.prompts[name]
                read = [at for at in read if at < prompt or at >= start - kind.rswa_window]
            for at in read:
                owner, held = self.slots.get(table[at // size], (group, {}))
                if owner != group or held.get(at % size) != digests[at]:
                    raise WrongContentError(
                        f"{name}: group {group}, block {table[at // size]}: position {at} is not what was computed; "
                        f"the step is {start}..{stop}"
                    )

    def _sample(self, steps: list[Any], lost: Collection[int]) -> ModelRunnerOutput:
        sampled: list[list[int]] = []
        for name, _, stop, digests, extra in steps:
            tokens: list[int] = []
            known = len(self.tokens[name])
            if stop >= known and set(lost).isdisjoint(self.tables[name][0]):
                digest = digests[known - 1]
                for draft in [*extra, None]:
                    token = self._next(digest)
                    tokens.append(token)
                    if token != draft:
                        break
                    digest = hash((digest, token))
                self.tokens[name] += tokens
                if self.drafts:
                    self.proposed[name] = self._propose(name)
            self._end_states(name, stop, extra, max(1, len(tokens)))
            sampled.append(tokens)
        names = [step[0] for step in steps]
        return ModelRunnerOutput(names, {name: at for at, name in enumerate(names)}, sampled)

    def _propose(self, name: str) -> list[int]:
        """Return drafts, of which some are right."""
        digest = self._digest(name, len(self.tokens[name]))[-1]
        drafts = []
        for _ in range(self.drafts):
            token = self._next(digest)
            drafts.append(token if digest % 4 else token + 1)
            digest = hash((digest, drafts[-1]))
        return drafts


class Side:
    """One scheduler with its worker, and what came out."""

    def __init__(self, scheduler: Any, kinds: Sequence[Any], *, depth: int = 0, drafts: int = 0) -> None:
        self.scheduler, self.depth, self.drafts = scheduler, depth, drafts
        self.worker = Worker(kinds, drafts, 12345, scheduler)
        self.queue: deque[Any] = deque()
        self.prefixes: dict[bytes, tuple[int, int]] = {}  # by key, its tokens and their digest
        self.tokens: dict[str, list[int]] = {}
        self.hits = self.queries = self.preemptions = self.external = self.failed = 0
        self.under_way: list[tuple[int, Any, int, int, Any]] = []
        self.tried: set[str] = set()
        self.errors: set[str] = set()
        self.finished: dict[str, Any] = {}
        self.rows: dict[str, list[int]] = {}
        self.steps = self.audited = 0
        self.sizes = [kind.block_size for kind in kinds]

    @property
    def num_free(self) -> int:
        """Blocks that can be taken."""
        count: int = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return count

    def _transfer(self, output: Any) -> KVConnectorOutput | None:
        """Run the connector's loads: at once, or, asynchronously, some steps later; some fail, once for a request."""
        connector = self.scheduler.connector
        if connector is None:
            return None
        extra = self.scheduler.vllm_config.kv_transfer_config.kv_connector_extra_config
        self.steps += 1
        for request, start, stop, tables in connector.loads:
            wait = draw(request.request_id, "time", 4) if extra["is_async"] else 0
            self.under_way.append((self.steps + wait, request, start, stop, tables))
        connector.loads.clear()
        ended = [each for each in self.under_way if each[0] <= self.steps]
        self.under_way = [each for each in self.under_way if each[0] > self.steps]
        output = KVConnectorOutput(finished_recving=set() if extra["is_async"] else None)
        for _, request, start, stop, tables in ended:
            name, came = request.request_id, stop
            if name not in self.tried and draw(name, "fails", 3) == 0:
                self.failed += 1
                if len(tables) > 1:
                    came = start
                    output.failed_recving.add(name)
                else:
                    size = self.worker.kinds[0].block_size
                    lost = start // size + draw(name, "from", -(-stop // size) - start // size)
                    blocks = tables[0][lost : -(-stop // size)]
                    # Of a window, or of states, most entries are null: the first block that is there is lost.
                    came = (lost + next(at for at, block in enumerate(blocks) if block)) * size
                    output.invalid_block_ids.update(block for block in blocks if block)
            self.tried.add(name)
            self.external += came - start
            if came > start:
                self.worker.load(request.all_token_ids, start, came, tables)
            if output.finished_recving is not None:
                output.finished_recving.add(name)
        return output

    def step(self) -> Any:
        """Schedule and run a step; take the output of the oldest one in flight."""
        output = self.scheduler.schedule()
        self.preemptions += len(output.preempted_req_ids or ())
        loaded = self._transfer(output)
        lost = set() if loaded is None or loaded.finished_recving is not None else loaded.invalid_block_ids
        try:
            result = self.worker.run(output, lost)
        except WrongContentError as wrong:
            raise WrongContentError(f"{type(self.scheduler.kv_cache_manager).__module__}: {wrong}") from None
        result.kv_connector_output = loaded
        self.queue.append((output, result))
        if len(self.queue) > self.depth or not output.total_num_scheduled_tokens:
            self.settle()
        return output

    def holds_waiting(self) -> bool:
        """Return whether blocks stay held when running requests are reset: of a load, a turn, or a step in flight."""
        others = [each for each in self.scheduler.requests.values() if each.status != RequestStatus.RUNNING]
        held = any(each.is_finished() or self.scheduler._holds_kv_blocks(each) for each in others)
        return held or bool(self.scheduler.defer_block_free and self.queue)

    def check(self) -> None:
        """Check the manager's state, if it is ours, and that each key names a block that holds exactly that prefix."""
        core = getattr(self.scheduler.kv_cache_manager, "core", None)
        if core is None:
            return
        later = self.scheduler.deferred_frees  # a step in flight may still write to them
        self.scheduler.kv_cache_manager.check(Counter(block.block_id for _, blocks in later for block in blocks))
        if self.scheduler.connector is not None:  # what a load brings is not known here
            return
        unit = self.scheduler.hash_block_size
        for request in self.scheduler.requests.values():
            name, keys = request.request_id, request.block_hashes
            self._check_published(core, request)
            if name in self.worker.tokens:
                if request.resumable:  # the worker hears of a new turn when it is first scheduled
                    digests = self.worker.digests_of(request.all_token_ids[: len(keys) * unit])
                else:
                    digests = self.worker._digest(name, min(len(keys) * unit, len(self.worker.tokens[name])))
                first = self.scheduler.kv_cache_manager.settings.first
                ends = zip(keys[first:], range(unit, len(digests) + 1, unit), strict=False)
                self.prefixes |= {key[:16]: (end, digests[end - 1]) for key, end in ends}
        pool = core.block_pool
        for name in [each.request_id for each in self.scheduler.running if self.worker.again]:
            begin, stop = self.worker.heads[name]
            known = min(stop, len(self.worker.tokens[name]))
            for kind, table in zip(self.worker.kinds, self.worker.tables[name], strict=True):
                entries = {at // kind.block_size for at in range(max(begin, known - self.worker.again), known)}
                if not isinstance(kind, MambaSpec) and any(pool.is_published(table[entry]) for entry in entries):
                    raise WrongContentError(f"{name}: a block that its draft head writes once more can be found")
        keyed = zip(pool.block_groups(), pool.block_keys(), pool.tail_keys(), strict=True)
        for block, (group, whole, parts) in enumerate(keyed):
            owner, held = self.worker.slots.get(block, (group, {}))
            for key in {whole, *parts} & self.prefixes.keys():
                self.audited += 1
                end, digest = self.prefixes[key]
                last = "state" if group in self.worker.states else (end - 1) % self.worker.kinds[group].block_size
                if owner != group or held.get(last) != digest:
                    raise WrongContentError(f"block {block} of group {group} does not hold the prefix of its key")

    def _check_published(self, core: Any, request: Any) -> None:
        """Check that what is published of a request is at most what was scheduled for it."""
        name, scheduled = request.request_id, request.num_computed_tokens
        if name not in core.request_ids() or request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
            return
        counts = zip(self.sizes, core.num_published(name), strict=True)
        # Of a request that publishes nothing any more, since all was forgotten, publication has passed every block.
        ends = [size * count for size, count in counts if count <= self.scheduler.max_model_len]
        twin = request._blockwright
        is_due = request.status == RequestStatus.RUNNING and twin.due > scheduled
        if max([*ends, twin.published], default=0) > scheduled or is_due:
            raise WrongContentError(
                f"{name}: {ends} tokens are published, {twin.published} noted, {twin.due} due, {scheduled} scheduled"
            )

    def settle(self) -> None:
        """Take the output of the oldest step in flight."""
        output, result = self.queue.popleft()
        for outputs in self.scheduler.update_from_output(output, result).values():
            for each in outputs.outputs:
                if each.finish_reason is not None:
                    self.finished[each.request_id] = each
                self.tokens.setdefault(each.request_id, []).extend(each.new_token_ids)
                if each.routed_experts is not None:
                    self.rows.setdefault(each.request_id, []).extend(each.routed_experts.tolist())
                if each.finish_reason == FinishReason.ERROR:
                    self.errors.add(each.request_id)
            stats = outputs.scheduler_stats
            if stats is not None and stats.prefix_cache_stats is not None:
                self.hits += stats.prefix_cache_stats.hits
                self.queries += stats.prefix_cache_stats.queries
        if self.drafts and not self.depth:
            names = [name for name in result.req_ids if name in self.worker.proposed]
            self.scheduler.update_draft_token_ids(DraftTokenIds(names, [self.worker.proposed[name] for name in names]))

    def abort(self, name: str) -> None:
        """Abort a request."""
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)


class Sessions:
    """Streaming sessions of a walk: turns come while one runs, waits or has ended, several at a time, or never."""

    def __init__(self, sides: Sequence[Side], draw: random.Random, add: Callable[..., None]) -> None:
        self.sides, self.draw, self.add = sides, draw, add
        self.to_come: dict[str, list[Turn]] = {}

    def begin(self, name: str, turns: list[Turn], **extra: Any) -> None:
        """Begin a session with the first of its turns."""
        self.add(name, turns[0], resumable=True, **extra)
        self.to_come[name] = turns[1:]

    def go_on(self, often: float) -> None:
        """Send turns of some sessions, and the ends of some that have no more."""
        for name in [each for each in self.to_come if self.draw.random() < often]:
            if not any(name in side.scheduler.requests for side in self.sides):  # it was aborted
                del self.to_come[name]
            elif self.to_come[name]:
                self.add(name, self.to_come[name].pop(0), resumable=True)
            else:
                self.add(name, ([3], 1, ()))
                del self.to_come[name]


def walk(
    sides: Sequence[Side],
    seed: int,
    steps: int,
    hash_block_size: int,
    *,
    longest: int = 150,
    exact: bool,
    sessions: float = 0,
    stops: Sequence[int] = (),
    resets: float = 0.003,
) -> None:
    """Drive both sides through the same random arrivals and aborts, and compare all along."""
    # `exact`: the schedules are equal step by step, not only the tokens. `sessions`: the share of requests to which
    # turns are added (vLLM's resumable requests). `stops`: tokens that end a request, or a turn, before its time.
    draw = random.Random(seed)
    roots = [[draw.randrange(3, 100) for _ in range(longest)] for _ in range(3)]
    alive: list[str] = []
    aborted: set[str] = set()
    given: dict[str, list[Turn]] = {}
    lookahead = getattr(sides[0].scheduler, "num_hash_lookahead_tokens", 0)

    def add(name: str, turn: Turn, **extra: Any) -> None:
        for side in sides:
            tokens, most, ends = turn
            side.scheduler.add_request(request(name, list(tokens), hash_block_size, most, lookahead, ends, **extra))

    # Without steps in flight vLLM counts drafts beyond the end of a turn as computed: it keeps the turn's last token,
    # and ends if the next turn is shorter than they are.
    side = sides[0]
    goes_beyond = side.drafts if not side.depth else 0
    added = Sessions(sides, draw, add)
    for number in range(steps):
        if len(alive) < 14 and draw.random() < 0.25:
            name = f"r{number}"
            root = draw.choice(roots)
            tokens = root[: draw.randrange(1, longest)] + [draw.randrange(3, 100) for _ in range(draw.randrange(0, 20))]
            extra: dict[str, Any] = {"priority": draw.randrange(3), "arrival_time": float(number)}
            if draw.random() < 0.1:
                extra["cache_salt"] = "tenant"
            given[name] = [(tokens, draw.randrange(1, 80), stops)]
            if sessions and draw.random() < sessions:
                for _ in range(draw.randrange(4)):
                    begin = draw.randrange(longest // 3)
                    more = draw.choice(roots)[begin : begin + goes_beyond + draw.choice([1, 2, 5, 30, 60])]
                    given[name].append((more, draw.choice([1, 2, 9, 30]), stops))
                added.begin(name, given[name], **extra)
            else:
                if sessions and draw.random() < 0.5:  # what a session has said so far, and perhaps a little more
                    known = [each for each in sides[0].scheduler.requests.values() if each.resumable]
                    tokens = list(draw.choice(known).all_token_ids) if known else tokens
                    tokens = tokens[: draw.randrange(1, 300)] + tokens[: draw.randrange(5)]
                    given[name] = [(tokens, given[name][0][1], stops)]
                add(name, given[name][0], **extra)
            alive.append(name)
        if sessions:
            added.go_on(0.1)
        if alive and draw.random() < 0.02:
            name = draw.choice(alive)
            aborted.add(name)
            for side in sides:
                side.abort(name)
        # vLLM raises where a request holds blocks and does not run, instead of answering that nothing was reset.
        if draw.random() < resets and not any(side.holds_waiting() for side in sides):
            running = bool(draw.randrange(2)) or exact  # while requests run, ours forgets and vLLM's refuses
            for side in sides:
                side.scheduler.reset_prefix_cache(reset_running_requests=running)
        outputs = [side.step() for side in sides]
        if exact and any(each.num_scheduled_tokens != outputs[0].num_scheduled_tokens for each in outputs):
            raise AssertionError(f"step {number}: {[each.num_scheduled_tokens for each in outputs]}")
        for side in sides:
            side.check()
        alive = [name for name in alive if any(name in side.scheduler.requests for side in sides)]
    while added.to_come:
        added.go_on(1)
    for side in sides:
        idle = 0
        while (side.scheduler.requests or side.queue) and idle < 100:
            idle = 0 if side.step().total_num_scheduled_tokens else idle + 1
        # vLLM takes a session out of its queues if a step in flight ends a turn after the request was preempted.
        lost = [each for each in side.scheduler.requests.values() if each.resumable and each.num_preemptions]
        aborted |= {each.request_id for each in lost if side.depth}
    for side in sides:
        for name, turns in given.items():
            found, right = side.tokens.get(name, []), side.worker.answer(turns[:1] if goes_beyond else turns)
            if goes_beyond and len(turns) > 1:
                found = found[: len(right)]
            if found != right[: len(found)] or (len(found) < len(right) and name not in aborted | side.errors):
                raise AssertionError(f"{name}: {found} instead of {right}")
            if side.worker.rows is not None and found:
                ((tokens, *_),) = turns
                if side.rows[name] != side.worker.digests_of([*tokens, *found[:-1]]):
                    raise AssertionError(f"{name}: the auxiliary outputs of other tokens")
