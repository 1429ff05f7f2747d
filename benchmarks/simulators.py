"""Compare what a replay says of hits, routers and engines with simulators that others wrote, on the same trace.

``pip install kvcache-simulator ai-dynamo-runtime``, then ``python -m benchmarks.simulators TRACE``: a trace in
Mooncake's form with ids of 512 tokens. Each row has a bound, and the exit code is 1 if one is exceeded.

- KVCache.AI's simulator says the hits of LRU behind a warm-up of half of the trace, and of the best order behind one of
  a fiftieth, in which the pool fills. It also keeps the last part of a prompt, and hits all of a prompt: it is given
  whole blocks, and the replay a token more. Its best order leaves out what is not used again soon, where a pool must
  hold all of a prompt that runs: up to two points more.
- Dynamo's offline replay says the hits of its mocked engines behind its routers, and the P95 of latencies if each step
  takes 20 ms. Where one engine does both, its prompts take no time: it adds that to the time of decoding. Its router
  weighs hits and load by another formula than `cost`: up to one point apart.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("DYN_LOG", "error")

from dynamo._core import run_mocker_trace_replay
from kvcache_sim.plan import build_execution_plan
from kvcache_sim.policies import simulate_trie_policy
from kvcache_sim.trace import parse_trace_lines

from blockwright.policies import Lru
from blockwright.replay import Overlap, Trace, load_trace
from blockwright.replay.foresight import most_hits, references_of
from blockwright.replay.groups import layer_spec
from blockwright.replay.keeping import Keeping
from blockwright.replay.pools import Way
from blockwright.replay.simulate import replay_ways
from blockwright.replay.step_time import Linear

BLOCK, STEP = 512, 0.02
LRU = Keeping("lru", Lru)
MOST_LATENCY = 0.01


class Row(NamedTuple):
    """What both say: the share of prompt tokens that hit, and the P95 of latencies in seconds, 0 where none is."""

    name: str
    hits: float
    our_hits: float
    latency: float = 0.0
    our_latency: float = 0.0
    most: float = 0.005

    @property
    def agrees(self) -> bool:
        apart = abs(self.latency - self.our_latency)
        return abs(self.hits - self.our_hits) <= self.most and apart <= MOST_LATENCY * self.latency


def _whole_blocks(path: Path, to: Path, more: int = 0) -> None:
    """Write a trace of prompts that are whole blocks and `more` tokens of their own."""
    with path.open(encoding="utf-8") as lines, to.open("w", encoding="utf-8") as whole:
        for line in lines:
            each = json.loads(line)
            each["hash_ids"] = each["hash_ids"][: each["input_length"] // BLOCK]
            each["input_length"] = len(each["hash_ids"]) * BLOCK + more
            if each["hash_ids"]:
                whole.write(json.dumps(each) + "\n")


def _kvcache_simulator(path: Path, sizes: list[int]) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        # A hit leaves a token to compute: with one behind them, all whole blocks may hit, as theirs do.
        whole, longer = (Path(folder) / name for name in ("whole.jsonl", "longer.jsonl"))
        _whole_blocks(path, whole)
        _whole_blocks(path, longer, 1)
        trace = load_trace(longer, "mooncake")
        with whole.open(encoding="utf-8") as lines:
            read = parse_trace_lines(lines, block_size=BLOCK)
    plan = build_execution_plan(read, warmup_fraction=0.5)
    ways = [Way(size, LRU) for size in sizes]
    pools = replay_ways(trace, [layer_spec("full", BLOCK)], ways, skip=plan.warmup_requests).pools
    for size, pool in zip(sizes, pools, strict=True):
        theirs = simulate_trie_policy(plan, size, optimal=False)
        yield Row(
            f"kvcache-simulator, LRU, {size:,} blocks", theirs.hitRate, pool.hit_blocks * BLOCK / theirs.totalTokens
        )
    plan, references = build_execution_plan(read, warmup_fraction=0.02), references_of(trace, BLOCK)
    for size in sizes[:2]:
        theirs, ours = simulate_trie_policy(plan, size, optimal=True), most_hits(references, size)
        our_hits = ours * BLOCK / read.total_input_tokens
        yield Row(f"kvcache-simulator, best order, {size:,} blocks", theirs.hitRate, our_hits, most=0.02)


def _engine(blocks: int, kind: str) -> dict[str, Any]:
    prompts = 0.0 if kind == "aggregated" else STEP * 1000
    timing = {"type": "fixed", "prefill_ms": prompts, "decode_ms": STEP * 1000}
    sizes = {"num_gpu_blocks": blocks, "block_size": BLOCK, "max_num_seqs": 64, "max_num_batched_tokens": 8192}
    return {"engine": sizes | {"worker_type": kind, "timing_model": timing}}


def _dynamo(path: Path, trace: Trace, blocks: int) -> Iterator[Row]:
    rows = [(1, 0, "round"), (4, 0, "round"), (4, 0, "cost"), (2, 1, "round"), (4, 2, "round"), (4, 2, "cost")]
    for engines, prefill, router in rows:
        if prefill:
            shape = {
                "prefill_engine_args": _engine(blocks, "prefill"),
                "decode_engine_args": _engine(blocks, "decode"),
                "num_prefill_workers": prefill,
                "num_decode_workers": engines - prefill,
            }
        else:
            shape = {"extra_engine_args": _engine(blocks, "aggregated"), "num_workers": engines}
        mode = "round_robin" if router == "round" else "kv_router"
        result = run_mocker_trace_replay(
            [str(path)], router_mode=mode, trace_block_size=BLOCK, capture_per_request=True, **shape
        )
        asked = sum(each["input_length"] for each in result.per_request)
        hits = sum(each["reused_input_tokens"] or 0 for each in result.per_request) / asked
        ends = statistics.quantiles((each["e2e_latency_ms"] / 1000 for each in result.per_request), n=20)
        way = Way(blocks, LRU, engines=engines, router=router, prefill=prefill)
        overlap = Overlap(64, Linear(base=STEP))
        (pool,) = replay_ways(trace, [layer_spec("full", BLOCK)], [way], overlap=overlap).pools
        assert pool.timed is not None
        named = f"{engines - prefill}+{prefill}" if prefill else f"{engines}"
        name = f"Dynamo, {named} engines of {blocks:,}, {'kv' if router == 'cost' else 'round'} / {router}"
        yield Row(name, hits, pool.token_hit_rate, ends[-1], pool.timed.latency[2], 0.01 if router == "cost" else 0.005)


def main() -> int:
    """Print the table; return 1 if a row differs by more than its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, metavar="TRACE")
    parser.add_argument("--sizes", default="1000,5000,20000", help="blocks of a pool (default: %(default)s)")
    args = parser.parse_args()
    sizes = [int(size) for size in args.sizes.split(",")]
    trace = load_trace(args.trace, "mooncake")
    print("| theirs / ours | tokens hit | P95 latency, s |\n|---|---|---|")
    bad = 0
    for row in (*_kvcache_simulator(args.trace, sizes), *_dynamo(args.trace, trace, sizes[len(sizes) // 2])):
        latency = f"{row.latency:.2f} / {row.our_latency:.2f}" if row.latency else ""
        print(f"| {row.name} | {row.hits:.2%} / {row.our_hits:.2%} | {latency} |", flush=True)
        bad += not row.agrees
    if bad:
        print(f"{bad} of these differ by more than their bound")
    return bad > 0


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
