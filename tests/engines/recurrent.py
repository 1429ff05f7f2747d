"""What vLLM's worker asks of a GPU for recurrent layers with drafts, in torch, on a CPU.

vLLM's own worker, tables and schedulers run on it. The recurrence goes token by token in float32, so no token depends
on how a prompt is cut into chunks, or on which drafts were right.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention
from vllm.triton_utils.dispatcher import KernelOverride
from vllm.utils.torch_utils import _resolve_layer_name
from vllm.v1.worker import mamba_utils
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

COPIES = {"before": 0, "after": 0}
"""States copied before a step, to its running entry, and after it, to the entry of a block's end."""

Answers = dict[tuple[int, ...], list[int]]


def _copy(row: int, source: int, target: int, bias: int, layout: Sequence[Any]) -> None:
    """Copy the states of a request that has accepted `bias` drafts from entry to entry."""
    tables, table_stride, bases, strides, sizes, inners, widths, groups = layout[:8]
    for state, group in enumerate(groups.tolist()):
        width, size = int(widths[state]), int(inners[state]) * int(sizes[state])
        # a convolution's window is in one entry, and is moved on; a state is in an entry for each draft
        ahead, shift = (0, bias * size) if width else (bias, 0)
        table = int(tables[group]) + row * table_stride * 4
        to, start = (
            int(bases[state]) + int(strides[state]) * ctypes.c_int32.from_address(table + 4 * entry).value
            for entry in (target, source + ahead)
        )
        ctypes.memmove(to, start + shift, (width - bias) * size if width else size)


def _before_a_step(running: Any, sources: Any, biases: Any, *rest: Any, **_: Any) -> None:
    """Stand in for `precopy_mamba_align_fused_kernel`."""
    for row in range(rest[-1]):
        if 0 <= int(sources[row]) != int(running[row]):
            COPIES["before"] += 1
            _copy(row, int(sources[row]), int(running[row]), int(biases[row]), rest)


def _after_a_step(
    accepted: Any, running: Any, scheduled: Any, computed: Any, drafts: Any, *rest: Any, block_size: int, **_: Any
) -> None:
    """Stand in for `postprocess_mamba_fused_kernel`."""
    for row in range(rest[-1]):
        first = int(computed[row]) + int(scheduled[row]) - int(drafts[row])
        end = (first + int(accepted[row]) - 1) // block_size * block_size
        source, target = int(running[row]), end // block_size - 1
        if end < first:
            continue
        if source == target:
            rest[-3][row] = 1
        if source != target or end > first:
            COPIES["after"] += 1
            _copy(row, source, target, end - first, rest)


def _sequences(batch: Any) -> list[tuple[list[int], list[int], int, bool]]:
    """Return each sequence's tokens, the entries that it writes, the tokens accepted last, and whether it goes on."""
    found: list[tuple[list[int], list[int], int, bool]] = []

    def without_drafts(starts: Any, entries: Any, tokens: Any) -> None:
        goes_on = batch.has_initial_state
        for at, entry in enumerate(entries.tolist()):
            own = tokens[int(starts[at]) : int(starts[at + 1])].tolist()
            if own:
                found.append((own, [entry], 1, goes_on is None or bool(goes_on[at])))

    if batch.spec_sequence_masks is None:
        entries = batch.non_spec_state_indices_tensor[: batch.num_decodes + batch.num_prefills]
        without_drafts(batch.non_spec_query_start_loc, entries, torch.arange(batch.num_actual_tokens))
        return found
    starts = batch.spec_query_start_loc
    for at in range(batch.num_spec_decodes):
        own = batch.spec_token_indx[int(starts[at]) : int(starts[at + 1])].tolist()
        found.append((own, batch.spec_state_indices_tensor[at].tolist(), int(batch.num_accepted_tokens[at]), True))
    if batch.num_prefills:
        without_drafts(batch.prefill_query_start_loc, batch.prefill_state_indices, batch.non_spec_token_indx)
    return found


def _gated_delta_rule(mixed: Any, b: Any, a: Any, out: Any, name: Any) -> None:
    """Stand in for `cpu_gdn_attention_core`, which only computes in bfloat16."""
    context = get_forward_context()
    if context.attn_metadata is None:
        return
    layer = context.no_compile_layers[_resolve_layer_name(name)]
    weight = getattr(layer.conv1d, "_cpu_unpacked_conv_weight", layer.conv1d.weight).flatten(1)
    windows, states = layer.kv_cache[:2]
    decay = torch.exp(-torch.exp(layer.A_log) * functional.softplus(a + layer.dt_bias))[..., None, None]
    beta = torch.sigmoid(b)[..., None]
    width = weight.size(1)
    for tokens, entries, accepted, goes_on in _sequences(context.attn_metadata[layer.prefix]):
        window, has_drafts = windows[entries[0]], len(entries) > 1
        past = window[accepted - 1 : accepted + width - 2]
        seen = torch.cat([past if goes_on else torch.zeros_like(past), mixed[tokens]])
        kept = seen[1:] if has_drafts else seen[1 - width :]
        window[: len(kept)] = kept
        mixture = sum(seen[at : at + len(tokens)] * weight[:, at] for at in range(width))
        q, k, v = (part.squeeze(0) for part in layer.rearrange_mixed_qkv(functional.silu(mixture)))
        q, k = (functional.normalize(part, dim=-1).repeat_interleave(v.size(1) // q.size(1), 1) for part in (q, k))
        state = states[entries[accepted - 1]] if goes_on else torch.zeros_like(states[0])
        for at, token in enumerate(tokens):
            state = state * decay[token]
            change = (v[at] - (state @ k[at, :, :, None]).squeeze(-1)) * beta[token]
            state = state + change[:, :, None] * k[at, :, None, :]
            out[token] = (state @ q[at, :, :, None]).squeeze(-1) * q.size(-1) ** -0.5
            if has_drafts:
                states[entries[at]] = state
        if not has_drafts:
            states[entries[0]] = state


def install(patch: pytest.MonkeyPatch, answers: Answers) -> None:
    """Let vLLM run recurrent layers here; of the drafts, some are of the known answers to prompts, others are wrong."""
    kernels = {"postprocess_mamba_fused_kernel": _after_a_step, "precopy_mamba_align_fused_kernel": _before_a_step}
    for name, kernel in kernels.items():
        patch.setattr(mamba_utils, name, KernelOverride(getattr(mamba_utils, name), kernel))
    patch.setattr(gdn_attention, "_CPU_GDN_ATTENTION_OPS_REGISTERED", True)
    patch.setattr(torch.ops.vllm, "cpu_gdn_attention_core", _gated_delta_rule, raising=False)
    propose = GPUModelRunner.propose_draft_token_ids

    def drafts(runner: Any, output: Any, sampled: Any, *rest: Any) -> Any:
        found, said = propose(runner, output, sampled, *rest), vars(runner).setdefault("said", {})
        for row, name in enumerate(runner.input_batch.req_ids):
            if not runner.discard_request_mask.np[row]:
                said[name] = said.get(name, 0) + int((sampled[row] >= 0).sum())
            at = said.get(name, 0)
            known = answers.get(tuple(runner.requests[name].prompt_token_ids), [])[at : at + found.shape[1]]
            for place, token in enumerate(known, at):
                found[row, place - at] = token if (7 * place + at) % 5 else 0
        return found

    patch.setattr(GPUModelRunner, "propose_draft_token_ids", drafts)
