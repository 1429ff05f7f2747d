"""The public Mooncake trace hits as often as the reference figures that came with it.

How: the whole trace is replayed through the manager on five pool sizes in one pass; each share must be within 0.3
percentage points of its reference. The compiled core only: the uncompiled one is compared with a model, request by
request, on the beginning of the trace (test_simulate.py).

Not covered: how the reference figures were made; other traces.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from blockwright import FullAttentionSpec, build_info
from blockwright.replay.simulate import replay
from blockwright.replay.traces import load_trace

REFERENCE = {1_000: 0.0450, 5_000: 0.1185, 10_000: 0.2149, 20_000: 0.2935, 50_000: 0.3561}


def test_shares_of_the_mooncake_trace(traces: Path) -> None:
    if build_info().kind != "compiled":
        pytest.skip("the whole trace takes long uncompiled; the compiled build replays it")
    trace = load_trace(traces / "mooncake_conversation_trace.jsonl")
    assert (len(trace.requests), trace.num_references(512)) == (12_031, 288_500)
    spec = FullAttentionSpec(block_size=512, num_kv_heads=8, head_size=128, dtype="bfloat16")
    result = replay(trace, spec, list(REFERENCE), check_every=4_000)
    for pool in result.pools:
        assert pool.hit_rate == pytest.approx(REFERENCE[pool.blocks], abs=0.003), f"{pool.blocks} blocks"
        assert pool.refused == 0


@pytest.mark.parametrize(
    ("name", "requests"), [("AzureLLMInferenceTrace_conv.csv", 19_366), ("AzureLLMInferenceTrace_code.csv", 8_819)]
)
def test_the_azure_traces_hit_nothing(traces: Path, name: str, requests: int) -> None:
    trace = load_trace(traces / name)
    assert len(trace.requests) == requests
    spec = FullAttentionSpec(block_size=512, num_kv_heads=8, head_size=128, dtype="bfloat16")
    pool = replay(load_trace(traces / name, limit=300), spec, [2_000]).pools[0]
    assert (pool.hit_blocks, pool.refused) == (0, 0)
