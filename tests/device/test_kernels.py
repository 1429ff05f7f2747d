"""Property: what docs/how-to/device.md names for a kernel is what that kernel's own documents ask for, in every step.

How: the rows of the page's table, evaluated on the steps of an engine (prefill, decode, requests that end, padding, on
plain memory and staged), go to references that are written from each kernel's documented contract: shapes, types, and
what a number means. They write and read caches through nothing else, and must find each request's own keys. Pages in
one line are also compared with the specification.
Not covered: the kernels themselves, which need a GPU (test_step_cuda.py captures one of ours); where memory lies, and
that later steps take none (test_inputs_staged.py).
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install torch")

import torch
from tests.device.batches import batch_of, config_of, full

from blockwright import CrossAttentionSpec, FullAttentionSpec, KVCacheManager, Request
from blockwright.device import InputBatch, KVCacheStorage, StepInputs, plan_kv_cache
from blockwright_spec.worker.inputs import page_list

PAGE = (Path(__file__).resolve().parents[2] / "docs/how-to/device.md").read_text(encoding="utf-8")
HEADS, SIZE, RANK, ROPE, SCALE = 2, 4, 6, 2, 0.4
ROWS = {
    name: dict(field.split("=", 1) for field in re.findall(r"`(\w+=[^`]+)`", fields))
    for name, fields in re.findall(r"^\| [^|]*`([\w.]+)`[^|]*\| (`\w+=.*) \|$", PAGE, re.MULTILINE)
}


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal, the last query at the last key; (tokens, heads, size), query heads in equal runs."""
    k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], 1) for each in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * SCALE
    ahead = torch.arange(k.shape[0]) > torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0]
    weights = scores.masked_fill(ahead, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights.nan_to_num(), v)


def by_pages(q: Any, starts: Any, pages: Any, lengths: Any, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Each request's queries over the first tokens of its pages."""
    assert len(starts) - 1 == len(pages) == len(lengths)
    out = []
    for row, (ids, length) in enumerate(zip(pages, lengths, strict=True)):
        assert len(ids) == -(-length // k.shape[1])
        rows = q[starts[row] : starts[row + 1]]
        out.append(dense(rows, k[ids].flatten(0, 1)[:length], v[ids].flatten(0, 1)[:length]))
    return torch.cat(out)


def tabled(table: torch.Tensor, lengths: Any, size: int) -> list[list[int]]:
    assert table.dtype == torch.int32
    assert table.is_contiguous()
    return [row[: -(-length // size)] for row, length in zip(table.tolist(), lengths, strict=True)]


def numbers(*tensors: torch.Tensor) -> Iterator[list[int]]:
    for each in tensors:
        assert (each.dtype, each.is_contiguous()) == (torch.int32, True)
        yield each.tolist()


def flash_attn_varlen_func(q: Any, k: Any, v: Any, *, cu_seqlens_q: Any, max_seqlen_q: int, max_seqlen_k: int, block_table: Any, cu_seqlens_k: Any = None, seqused_k: Any = None) -> Any:  # fmt: skip # noqa: E501
    (starts,) = numbers(cu_seqlens_q)
    (lens,) = numbers(cu_seqlens_k.diff() if seqused_k is None else seqused_k)
    assert max(cu_seqlens_q.diff().tolist()) <= max_seqlen_q
    assert max(lens) <= max_seqlen_k
    return by_pages(q, starts, tabled(block_table, lens, k.shape[1]), lens, k, v)


def flash_attn_with_kvcache(q: Any, k: Any, v: Any, *, cache_seqlens: Any, block_table: Any) -> Any:
    (lens,) = numbers(cache_seqlens)
    return by_pages(q, range(len(lens) + 1), tabled(block_table, lens, k.shape[1]), lens, k, v)


def trtllm_batch_decode_with_kv_cache(q: Any, k: Any, v: Any, *, block_tables: Any, seq_lens: Any, max_seq_len: int) -> Any:  # fmt: skip # noqa: E501
    assert int(seq_lens.max()) <= max_seq_len
    return flash_attn_with_kvcache(q, k, v, cache_seqlens=seq_lens, block_table=block_tables)


def csr(q: Any, starts: Any, indptr: Any, indices: Any, lens: list[int], k: Any, v: Any) -> Any:
    cuts, ids = numbers(indptr, indices)
    assert (cuts[0], cuts[-1]) == (0, len(ids))
    pages = [ids[first:last] for first, last in pairwise(cuts)]
    return by_pages(q, starts, pages, lens, k, v)


def ends(indptr: Any, last_page_len: Any, size: int) -> list[int]:
    pages, last = numbers(indptr.diff(), last_page_len)
    return [(count - 1) * size + tokens if count else 0 for count, tokens in zip(pages, last, strict=True)]


def BatchDecodeWithPagedKVCacheWrapper(q: Any, k: Any, v: Any, *, indptr: Any, indices: Any, last_page_len: Any) -> Any:
    lens = ends(indptr, last_page_len, k.shape[1])
    return csr(q, range(len(lens) + 1), indptr, indices, lens, k, v)


def BatchPrefillWithPagedKVCacheWrapper(q: Any, k: Any, v: Any, *, qo_indptr: Any, paged_kv_indptr: Any, paged_kv_indices: Any, paged_kv_last_page_len: Any) -> Any:  # fmt: skip # noqa: E501
    (starts,) = numbers(qo_indptr)
    lens = ends(paged_kv_indptr, paged_kv_last_page_len, k.shape[1])
    return csr(q, starts, paged_kv_indptr, paged_kv_indices, lens, k, v)


def BatchMLAPagedAttentionWrapper(q: Any, k: Any, v: Any, *, qo_indptr: Any, kv_indptr: Any, kv_indices: Any, kv_len_arr: Any) -> Any:  # fmt: skip # noqa: E501
    starts, lens = numbers(qo_indptr, kv_len_arr)
    return csr(q, starts, kv_indptr, kv_indices, lens, k, v)


def reshape_and_cache_flash(new: Any, cache: Any, *, slot_mapping: Any) -> None:
    """Also for `concat_and_cache_mla`: token i goes to block slot // size, place slot % size; -1 is skipped."""
    assert slot_mapping.dtype == torch.int64
    for vector, slot in zip(new, slot_mapping.tolist(), strict=True):
        if slot >= 0:
            cache[slot // cache.shape[1], slot % cache.shape[1]] = vector


concat_and_cache_mla, flash_mla_with_kvcache = reshape_and_cache_flash, flash_attn_with_kvcache  # alike in these


def arguments(name: str, inputs: StepInputs, g: int) -> dict[str, Any]:
    return {key: eval(value, {"inputs": inputs, "g": g, "pages": inputs.paged_kv(g)}) for key, value in ROWS[name].items()}  # fmt: skip # noqa: E501


@pytest.mark.parametrize("staged", [False, True])
def test_each_row_of_the_table(staged: bool) -> None:
    assert len(ROWS) == 10
    kv = FullAttentionSpec(4, HEADS, SIZE, "float64")
    mla = FullAttentionSpec.latent(8, RANK, ROPE, "float64")
    plan = plan_kv_cache({"kv": kv, "mla": mla}, 1 << 16, 64, max_padding=1.0)
    storage, manager = KVCacheStorage(plan), KVCacheManager(plan.config, 64)
    batch = InputBatch.for_plan(plan, max_num_requests=6, max_num_tokens=40, staged=staged)
    requests = [Request(f"r{length}", list(range(100 * length, 100 * length + length)), 4) for length in (7, 4, 9, 1)]
    kept: dict[str, dict[str, torch.Tensor]] = {"kv": {}, "mla": {}}
    torch.manual_seed(0)
    for step in range(8):
        if step == 4:
            gone = requests.pop(1)
            manager.free(gone)
            batch.remove_request(gone.request_id)
        news = [request.num_tokens - request.num_computed_tokens for request in requests]
        for request in requests if step == 0 else ():
            batch.add_request(request.request_id, manager.allocate_slots(request, request.num_tokens) or ())
        allocation = manager.allocate_slots_batch(requests, news) if step else None
        made = batch.step(requests, news, allocation)
        for inputs in (made, made.padded(6, made.num_tokens)):
            for layer, cache in (("kv", storage.kv("kv")), ("mla", storage.kv("mla"))):
                g, mine = plan.config.group_of(layer), kept[layer]
                if inputs is made:
                    new = torch.randn(sum(news), *((2, HEADS, SIZE) if layer == "kv" else (RANK + ROPE,))).double()
                    writer = "reshape_and_cache_flash" if layer == "kv" else "concat_and_cache_mla"
                    slots, view = arguments(writer, inputs, g), cache.transpose(1, 2) if layer == "kv" else cache
                    globals()[writer](new, view, **slots)
                    for request, part in zip(requests, new.split(news), strict=True):
                        old = mine.get(request.request_id, part[:0])
                        mine[request.request_id] = torch.cat([old, part])
                check(inputs, g, layer, cache, [mine[request.request_id] for request in requests], news)
        for request in requests:
            request.num_computed_tokens = request.num_tokens
            request.append_output_token_ids([step] * (2 if step == 5 else 1))


def check(
    inputs: StepInputs, g: int, layer: str, cache: torch.Tensor, kept: list[torch.Tensor], news: list[int]
) -> None:
    size = SIZE if layer == "kv" else RANK + ROPE
    q = torch.randn(sum(news), 4, size).double()
    parts = [(one[:, 0], one[:, 1]) if layer == "kv" else (one[:, None], one[:, None, :RANK]) for one in kept]
    expected = torch.cat([dense(rows, *part) for rows, part in zip(q.split(news), parts, strict=True)])
    k, v = (cache[:, 0], cache[:, 1]) if layer == "kv" else (cache[:, :, None], cache[:, :, None, :RANK])
    for name in ROWS:
        if name in ("reshape_and_cache_flash", "concat_and_cache_mla") or ("MLA" in name.upper()) != (layer == "mla"):
            continue
        decodes = any(word in name for word in ("Decode", "decode", "with_kvcache"))
        if decodes and set(news) != {1}:
            continue
        rows = torch.cat([q, *[q[:1]] * (inputs.num_requests - len(news))]) if decodes else q
        actual = globals()[name.split(".")[0]](rows, k, v, **arguments(name, inputs, g))[: sum(news)]
        assert float((actual - expected).abs().max()) < 1e-12, name
    assert inputs.host.seq_lens.tolist() == inputs.seq_lens.tolist()
    assert inputs.host.slot_mapping[g].tolist() == inputs.slot_mapping[g].tolist()
    tables, lens = inputs.block_table(g).tolist(), inputs.seq_lens.tolist()
    listed = page_list(8 if layer == "mla" else 4, tuple(map(tuple, tables)), tuple(lens))
    found = inputs.paged_kv(g)
    assert [tuple(each.tolist()) for each in found[:3]] == [listed.starts, listed.pages, listed.last]


def test_cross_attention_has_the_encoders_pages() -> None:
    config = config_of([full(4), CrossAttentionSpec(4, 1, 2, "float32")])
    batch = batch_of(config, caching=False)
    batch.add_request("r", [[1], [2, 3]], num_encoder_tokens=5)
    request = Request("r", [1, 2], 4)
    found = batch.step([request], 2).paged_kv(1)
    assert [each.tolist() for each in found[:3]] == [[0, 2], [2, 3], [1]]
