"""Property: a wrong argument of an operator raises a typed error that names it, before a single byte has changed.

How: each change below of a right call must raise the error with the words, and leave caches and `out` as they were; the
right call itself passes.
Not covered: values on a GPU without `check` (nobody looks at them).
"""

import math
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install torch")

import torch

from blockwright.device import causal_conv, gather_kv, paged_attention, selective_scan, write_kv
from blockwright.errors import BlockError, InvalidArgumentError
from blockwright.kinds import CrossAttentionSpec, FullAttentionSpec, MambaSpec, SlidingWindowSpec

Refusal = tuple[dict[str, Any], type[Exception], str]

DECLARED: dict[str, Any] = {"block_size": 2, "num_kv_heads": 2, "head_size": 3, "dtype": torch.float32}
META = torch.device("meta")


def ints(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def refused(call: Callable[..., Any], right: dict[str, Any], changes: Refusal) -> None:
    changed, error, words = changes
    arguments = {**right, **changed}
    kept = {name: value.clone() for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    with pytest.raises(error, match=words):
        call(**arguments)
    for name, before in kept.items():
        if before.device != META:
            assert torch.equal(arguments[name], before), name


def written() -> dict[str, Any]:
    cache, rows = torch.zeros(4, 2, 2, 2, 3), torch.ones(3, 2, 3)
    return {"cache": cache, "keys": rows, "values": rows.clone(), "slot_mapping": ints(2, -1, 7)}


@pytest.mark.parametrize(
    "changes",
    [
        ({"cache": torch.zeros(4, 3, 2, 2, 3)}, InvalidArgumentError, "cache has shape"),
        ({"cache": torch.zeros(4, 2, 2, 2, 3, dtype=torch.int8)}, InvalidArgumentError, "cache is torch.int8"),
        ({"cache": torch.zeros(4, 1, 2, 2, 3).expand(4, 2, 2, 2, 3)}, InvalidArgumentError, "cache has elements that"),
        ({"cache": torch.zeros(99).as_strided((4, 2, 2, 2, 3), (24, 12, 6, 2, 1))}, InvalidArgumentError, "strides"),
        ({"keys": torch.ones(3, 2, 4)}, InvalidArgumentError, r"keys has shape .*; pass \(tokens, 2, 3\)"),
        ({"keys": torch.ones(3, 2, 3, device=META)}, InvalidArgumentError, "keys is on meta, the cache on cpu"),
        ({"values": torch.ones(2, 2, 3)}, InvalidArgumentError, r"values has shape .*; pass \(3, 2, 3\)"),
        ({"slot_mapping": ints(2, 3)}, InvalidArgumentError, r"slot_mapping has shape \(2,\); pass \(3,\)"),
        ({"slot_mapping": torch.ones(3)}, InvalidArgumentError, "slot_mapping is torch.float32"),
        ({"slot_mapping": ints(2, 8, 3)}, BlockError, "slot 8 is not within the cache's 8"),
        ({"slot_mapping": ints(2, 1, -1)}, BlockError, "slot 1 lies in the null block"),
        ({"slot_mapping": ints(5, 2, 5)}, BlockError, "slot 5 is written by two tokens"),
    ],
)
def test_writing(changes: Refusal) -> None:
    write_kv(**written())
    write_kv(**{**written(), "slot_mapping": ints(-1, -1, -1)})
    refused(write_kv, written(), changes)


@pytest.mark.parametrize(
    "changes",
    [
        ({"block_ids": [2, 0, 1]}, BlockError, "entry 1 of request 0 is the null block, and positions from 2"),
        ({"block_ids": [2, 4, 1]}, BlockError, "entry 1 of request 0 is block 4, and the cache has 4"),
        ({"block_ids": ["2"]}, InvalidArgumentError, r"block_ids\[0\]: must be an integer"),
        ({"block_ids": torch.ones(1, 3)}, InvalidArgumentError, "block_ids has shape"),
        ({"start": -1}, InvalidArgumentError, "start=-1, stop=4"),
        ({"stop": 7}, InvalidArgumentError, "3 entries of 2 positions"),
    ],
)
def test_gathering(changes: Refusal) -> None:
    right: dict[str, Any] = {"cache": torch.zeros(4, 2, 2, 2, 3), "block_ids": [0, 3, 0], "start": 2, "stop": 4}
    gather_kv(**right)
    refused(gather_kv, right, changes)


def attended(kind: str = "full") -> dict[str, Any]:
    spec = {
        "full": FullAttentionSpec(**DECLARED),
        "sliding": SlidingWindowSpec(**DECLARED, sliding_window=2),
        "cross": CrossAttentionSpec(**DECLARED),
    }[kind]
    return {
        "query": torch.ones(3, 4, 3),
        "cache": torch.zeros(4, 2, 2, 2, 3),
        "spec": spec,
        "block_table": torch.tensor([[1, 2], [3, 0], [9, 9]]),
        "query_start_loc": ints(0, 2, 3),
        "seq_lens": ints(4, 1),
        "out": torch.full((3, 4, 3), 5.0),
        "encoder_lens": ints(4, 2),
    }


@pytest.mark.parametrize(
    "changes",
    [
        ({"query": torch.ones(3, 3, 3)}, InvalidArgumentError, "query has 3 heads and the cache 2"),
        ({"query": torch.ones(3, 4, 2)}, InvalidArgumentError, "query has shape"),
        ({"query": torch.ones(3, 4, 3).to(torch.float8_e5m2)}, InvalidArgumentError, "query is torch.float8_e5m2"),
        ({"spec": MambaSpec(2, ((1,),), ("float32",))}, InvalidArgumentError, "spec is a MambaSpec; pass a full"),
        ({"cache": torch.zeros(4, 2, 3, 2, 3)}, InvalidArgumentError, r"blocks of \(3, 2, 3, 3\) and spec declares"),
        ({"cache": torch.zeros(4, 2, 2, 2, 3).double()}, InvalidArgumentError, "cache is torch.float64 and spec"),
        ({"block_table": ints(1, 2)}, InvalidArgumentError, "block_table has shape"),
        ({"block_table": torch.tensor([[1, 2]])}, InvalidArgumentError, "block_table has 1 rows for 2 requests"),
        ({"block_table": torch.tensor([[1], [3]])}, InvalidArgumentError, "request 0 has 4 positions, and block_table"),
        ({"block_table": torch.tensor([[1, 2], [0, 0]])}, BlockError, "entry 0 of request 1 is the null block"),
        ({"block_table": torch.tensor([[1, 4], [3, 0]])}, BlockError, "entry 1 of request 0 is block 4"),
        ({"query_start_loc": ints()}, InvalidArgumentError, "query_start_loc is empty"),
        ({"query_start_loc": ints(0, 3)}, InvalidArgumentError, r"seq_lens has shape \(2,\); pass \(1,\)"),
        ({"query_start_loc": ints(0, 2, 4)}, InvalidArgumentError, "query_start_loc must rise from 0"),
        ({"query_start_loc": ints(1, 2, 3)}, InvalidArgumentError, "query_start_loc must rise"),
        ({"seq_lens": ints(1, 1)}, InvalidArgumentError, "request 0 has 2 tokens in the step and 1 in all"),
        ({"seq_lens": ints(4, -1)}, InvalidArgumentError, "request 1 has 1 tokens in the step and -1"),
        ({"seq_lens": ints(5, 1)}, InvalidArgumentError, "request 0 has 5 positions, and block_table has room for 4"),
        ({"out": torch.ones(3, 4, 2)}, InvalidArgumentError, "out has shape"),
        ({"out": torch.ones(1, 4, 3).expand(3, 4, 3)}, InvalidArgumentError, "out has elements that share memory"),
        ({"out": torch.ones(3, 4, 3).double()}, InvalidArgumentError, "out is torch.float64"),
        ({"max_query_len": 1}, InvalidArgumentError, "max_query_len=1, and a request has 2"),
        ({"max_query_len": 2, "max_seq_len": 3}, InvalidArgumentError, "max_seq_len=3, and a request has 4"),
        ({"scale": "x"}, InvalidArgumentError, "scale: must be a number or None, not 'x'"),
        ({"scale": math.nan}, InvalidArgumentError, "scale=nan"),
    ],
)
def test_attending(changes: Refusal) -> None:
    paged_attention(**attended())
    refused(paged_attention, attended(), changes)


@pytest.mark.parametrize(
    "changes",
    [
        ({"encoder_lens": None}, InvalidArgumentError, "encoder_lens is a NoneType"),
        ({"encoder_lens": ints(4)}, InvalidArgumentError, "encoder_lens has shape"),
        ({"encoder_lens": ints(4, -1)}, InvalidArgumentError, "encoder_lens holds a negative length"),
        ({"encoder_lens": ints(5, 1)}, InvalidArgumentError, "encoder_lens: request 0 has 5 positions"),
        ({"encoder_lens": ints(4, 3)}, BlockError, "entry 1 of request 1 is the null block"),
    ],
)
def test_attending_to_an_encoder(changes: Refusal) -> None:
    paged_attention(**attended("cross"))
    refused(paged_attention, attended("cross"), changes)


def test_what_no_token_reads_may_be_null_or_foreign() -> None:
    right = attended("sliding")
    right["block_table"] = torch.tensor([[9, 2], [3, -7]])
    right["query_start_loc"] = ints(0, 1, 2)
    paged_attention(**right)


def test_the_result_has_memory_of_its_own() -> None:
    right = attended()
    memory = torch.zeros(100)
    query = memory[:36].reshape(3, 4, 3)
    for out in (query, memory[35:71].reshape(3, 4, 3)):
        with pytest.raises(InvalidArgumentError, match="out and query share memory"):
            paged_attention(**{**right, "query": query, "out": out})
    paged_attention(**{**right, "query": query, "out": memory[36:72].reshape(3, 4, 3)})
    with pytest.raises(InvalidArgumentError, match="out and cache share memory"):
        paged_attention(**{**right, "out": right["cache"].flatten()[:36].reshape(3, 4, 3)})


def test_the_rows_of_a_result_may_lie_apart() -> None:
    rows = torch.zeros(4, 3, 6)[:, :, :3].transpose(0, 1)
    assert paged_attention(**{**attended(), "out": rows}) is rows
    assert torch.equal(rows, paged_attention(**attended()))


def test_names_of_dtypes() -> None:
    for name, dtype in (("float", torch.float32), ("half", torch.float16), ("fp8", torch.float8_e4m3fn)):
        spec = FullAttentionSpec(**{**DECLARED, "dtype": name})
        paged_attention(**{**attended(), "spec": spec, "cache": torch.zeros(4, 2, 2, 2, 3).to(dtype)})


def recurred() -> dict[str, Any]:
    return {
        "x": torch.ones(5, 2),
        "dt": torch.ones(5, 2),
        "a": torch.ones(2, 3),
        "b": torch.ones(5, 3),
        "c": torch.ones(5, 3),
        "state_cache": torch.zeros(6, 2, 3),
        "d": torch.ones(2),
        **where(),
    }


def convolved() -> dict[str, Any]:
    return {
        "x": torch.ones(5, 2),
        "weight": torch.ones(2, 4),
        "bias": torch.ones(2),
        "conv_cache": torch.zeros(6, 2, 3),
        **where(),
    }


def where() -> dict[str, Any]:
    return {
        "state_reads": ints(1, 0),
        "state_writes": torch.tensor([[1, 2], [3, 0]]),
        "query_start_loc": ints(0, 3, 4),
        "num_draft_tokens": None,
    }


EITHER: list[Refusal] = [
    ({"x": torch.ones(5, 3)}, InvalidArgumentError, "x has shape"),
    ({"state_reads": ints(1)}, InvalidArgumentError, "state_reads has shape"),
    ({"state_reads": ints(6, 0)}, BlockError, "block 6 of request 0 is not within the cache's 6"),
    ({"state_writes": ints(1, 2)}, InvalidArgumentError, "state_writes has shape"),
    ({"state_writes": torch.ones(2, 0, dtype=torch.int32)}, InvalidArgumentError, "state_writes has no columns"),
    ({"state_writes": torch.tensor([[1, 2], [0, 0]])}, BlockError, "request 1 would go to the null block"),
    ({"state_writes": torch.tensor([[1, 6], [3, 0]])}, BlockError, "request 0 would go to 6, none of"),
    ({"state_writes": torch.tensor([[1, 2], [2, 0]])}, BlockError, "block 2 is written twice"),
    ({"state_writes": torch.tensor([[1, 2], [3, 4]])}, InvalidArgumentError, "request 1 has 1 of 1 tokens"),
    ({"query_start_loc": ints()}, InvalidArgumentError, "query_start_loc is empty"),
    ({"query_start_loc": ints(0, 3, 6)}, InvalidArgumentError, "query_start_loc must rise from 0"),
    ({"num_draft_tokens": ints(2, 0)}, InvalidArgumentError, "request 0 has 2 of 3 tokens and 2 columns"),
    ({"num_draft_tokens": ints(-1, 0)}, InvalidArgumentError, "request 0 has -1 of 3 tokens"),
]


@pytest.mark.parametrize(
    "changes",
    [
        *EITHER,
        ({"dt": torch.ones(4, 2)}, InvalidArgumentError, "dt has shape"),
        ({"a": torch.ones(2)}, InvalidArgumentError, "a has shape"),
        ({"b": torch.ones(5, 2)}, InvalidArgumentError, "b has shape"),
        ({"d": torch.ones(3)}, InvalidArgumentError, "d has shape"),
        ({"state_cache": torch.zeros(6, 2)}, InvalidArgumentError, "state_cache has shape"),
        ({"state_cache": torch.zeros(1, 2, 3).expand(6, 2, 3)}, InvalidArgumentError, "state_cache has elements that"),
        ({"max_query_len": 2}, InvalidArgumentError, "max_query_len=2, and a request has 3"),
    ],
)
def test_recurring(changes: Refusal) -> None:
    selective_scan(**recurred())
    refused(selective_scan, recurred(), changes)


@pytest.mark.parametrize(
    "changes",
    [
        *EITHER,
        ({"weight": torch.ones(2, 3)}, InvalidArgumentError, "weight has shape"),
        ({"bias": torch.ones(1)}, InvalidArgumentError, "bias has shape"),
        ({"conv_cache": torch.zeros(6, 1, 3).expand(6, 2, 3)}, InvalidArgumentError, "conv_cache has elements that"),
    ],
)
def test_convolving(changes: Refusal) -> None:
    causal_conv(**convolved())
    refused(causal_conv, convolved(), changes)
