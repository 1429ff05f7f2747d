"""Compare what a replay predicts of a fleet with what vLLM's real scheduler does, step by step, on the same clock.

Run inside an environment with vLLM: ``python -m benchmarks.planner``. The same traces, pools and options go to
`blockwright.replay` and to vLLM's scheduler, which nothing computes for: after each step the clock goes on by the step
time that both are given, and the tokens of the answers are those of the trace. Printed are, for each workload, the time
in the queue, preemptions and the share of prompt tokens that hit, of vLLM and of the replay. The exit code is 1 if one
of them differs by more than 2 %, or by more than half a millisecond where there is no queue.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.engines import stub
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

from blockwright.replay import Overlap, Trace, WorkloadOptions, generate_workload, replay
from blockwright.replay.groups import layer_spec
from blockwright.replay.pools import percentiles
from blockwright.replay.step_time import Linear, Step

BLOCK = 16
STEP_TIME = Linear(base=0.012, tokens=1 / 20_000, requests=50e-6, context=20e-9)


class Figures(NamedTuple):
    """What both sides say of a workload; the queue in seconds."""

    queued_p50: float
    queued_p95: float
    preemptions: int
    hits: float
    first_token_p95: float
    seconds: float


@dataclass(frozen=True)
class Workload:
    """A trace, the usable blocks of a pool, and how requests overlap."""

    blocks: int
    overlap: Overlap
    options: WorkloadOptions
    is_closed: bool = False

    def trace(self, scale: float) -> Trace:
        """Return the trace; in the open loop, requests come at their times."""
        count = max(8, round(self.options.conversations * scale))
        made = generate_workload(replace(self.options, conversations=count))
        if self.is_closed:
            return made
        return replace(made, requests=tuple(replace(each, after=-1) for each in made.requests))


def _workloads() -> dict[str, Workload]:
    def overlap(concurrency: int, arrivals: float | None, budget: int = 2048) -> Overlap:
        return Overlap(concurrency, arrivals=arrivals, max_num_batched_tokens=budget, step_time=STEP_TIME)

    chats = WorkloadOptions(conversations=120, turns=4, user_tokens=400, seed=7)
    return {
        "under-loaded": Workload(12_000, overlap(64, 3.0), chats),
        "at the limit": Workload(12_000, overlap(64, 10.0), chats),
        "beyond it": Workload(12_000, overlap(64, 20.0), chats),
        "tight pool": Workload(2_800, overlap(64, 5.0), chats),
        "three drafts, accepted": Workload(
            1_200,
            replace(overlap(32, 20.0), drafts=3, acceptance=1.0),
            replace(chats, conversations=90, max_tokens=6000),
        ),
        "many turns, closed loop": Workload(
            3_000, overlap(12, None), WorkloadOptions(conversations=80, turns=6, think=4, seed=8), True
        ),
    }


WORKLOADS = _workloads()


def predicted(workload: Workload, trace: Trace) -> Figures:
    """Return what the replay says."""
    (pool,) = replay(trace, layer_spec("full", BLOCK), [workload.blocks], overlap=workload.overlap).pools
    timed = pool.timed
    if timed is None or pool.refused:
        raise SystemExit("the pool is too small for a request")
    hits = pool.token_hit_rate
    return Figures(timed.queued[0], timed.queued[2], timed.preemptions, hits, timed.first_token[2], timed.seconds)


def _answer(recorded: Any, number: int) -> Iterator[int]:
    yield from recorded.answer_ids
    while True:
        yield recorded.answer if recorded.answer >= 0 else (1 << 31) - 1 - number


def scheduled(workload: Workload, trace: Trace, folder: Path, ours: bool) -> Figures:
    """Return what vLLM's scheduler does, with its own manager or with Blockwright's."""
    options, requests = workload.overlap, trace.requests
    longest = max(each.num_tokens + options.answer(each) for each in requests)
    scheduler = stub.scheduler(
        folder,
        ours,
        [stub.full(BLOCK)],
        workload.blocks + 1,
        max_num_seqs=options.concurrency,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_model_len=longest + 1 + options.drafts,
        drafts=options.drafts,
    )
    coming, followers, arrived = list[tuple[float, int]](), dict[int, list[int]](), dict[int, float]()
    for number, each in enumerate(requests):
        if each.after >= 0:
            followers.setdefault(each.after, []).append(number)
        else:
            first = sum(other.after < 0 for other in requests[:number])
            heappush(coming, (options.arrival(each, first), number))
    begin = now = coming[0][0]
    answers = {number: _answer(each, number) for number, each in enumerate(requests)}
    queued, first_token = dict[int, float](), dict[int, float]()
    preemptions = hits = queries = ended = 0
    while ended < len(requests):
        while coming and coming[0][0] <= now:
            at, number = heappop(coming)
            arrived[number] = at
            tokens = list(requests[number].token_ids())
            most = max(1, options.answer(requests[number]))
            scheduler.add_request(stub.request(str(number), tokens, BLOCK, most))
        if not scheduler.requests:
            now = coming[0][0]
            continue
        output = scheduler.schedule()
        preemptions += len(output.preempted_req_ids or ())
        names = list(output.num_scheduled_tokens)
        if not names:
            raise SystemExit("a step without tokens: the pool is too small for a request")
        step = Step(0, 0, 0, 0)
        for name, count in output.num_scheduled_tokens.items():
            queued.setdefault(int(name), now - arrived[int(name)])
            end = scheduler.requests[name].num_computed_tokens
            pairs = count * (2 * end - count + 1) // 2
            step = Step(step.tokens + count, step.requests + 1, step.context + end, step.pairs + pairs)
        now += options.step_time(step)
        sampled = list[list[int]]()
        for name in names:  # drafts are all accepted, or none is
            drafted = len(output.scheduled_spec_decode_tokens.get(name, ())) if options.acceptance == 1 else 0
            more = 0 if scheduler.requests[name].is_prefill_chunk else 1 + drafted
            sampled.append(list(islice(answers[int(name)], more)))
        result = ModelRunnerOutput(names, {name: at for at, name in enumerate(names)}, sampled)
        told = scheduler.update_from_output(output, result).values()
        if options.drafts:
            alive = [each for each in names if each in scheduler.requests]
            alive = [each for each in alive if not scheduler.requests[each].is_prefill_chunk]
            scheduler.update_draft_token_ids(DraftTokenIds(alive, [[0] * options.drafts for _ in alive]))
        for outputs in told:
            for each in outputs.outputs:
                number = int(each.request_id)
                first_token.setdefault(number, now - arrived[number])
                if each.finish_reason is not None:
                    ended += 1
                    for other in followers.get(number, ()):
                        recorded = requests[other]
                        due = recorded.arrival if options.arrivals is None else 0.0
                        heappush(coming, (max(due, now + recorded.delay), other))
            if outputs.scheduler_stats is not None and outputs.scheduler_stats.prefix_cache_stats is not None:
                hits += outputs.scheduler_stats.prefix_cache_stats.hits
                queries += outputs.scheduler_stats.prefix_cache_stats.queries
    waits, times = percentiles(list(queued.values())), percentiles(list(first_token.values()))
    return Figures(waits[0], waits[2], preemptions, hits / queries, times[2], now - begin)


def differs(one: float, other: float) -> float:
    """Return by which part of the larger one two figures differ; times below half a millisecond are none."""
    most = max(abs(one), abs(other))
    return 0.0 if abs(one - other) <= 0.0005 else abs(one - other) / most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", type=Path, default=Path("build/models"))
    parser.add_argument("--scale", type=float, default=1.0, help="part of the conversations")
    parser.add_argument("--manager", choices=("vllm", "blockwright"), default="vllm", help="under vLLM's scheduler")
    args = parser.parse_args()
    args.models.mkdir(parents=True, exist_ok=True)
    print("| workload | requests | queue P50, s | queue P95, s | preemptions | tokens hit | largest difference |")
    print("|---|---|---|---|---|---|---|")
    worst = 0.0
    for name, workload in WORKLOADS.items():
        trace = workload.trace(args.scale)
        theirs = scheduled(workload, trace, args.models, args.manager == "blockwright")
        ours = predicted(workload, trace)
        most = max(map(differs, theirs, ours))
        worst = max(worst, most)
        cells = [
            f"{theirs.queued_p50:.3f} / {ours.queued_p50:.3f}",
            f"{theirs.queued_p95:.3f} / {ours.queued_p95:.3f}",
            f"{theirs.preemptions:,} / {ours.preemptions:,}",
            f"{theirs.hits:.2%} / {ours.hits:.2%}",
        ]
        print(f"| {name} | {len(trace.requests):,} | {' | '.join(cells)} | {most:.2%} |", flush=True)
    if worst > 0.02:
        raise SystemExit(f"vLLM / replay differ by {worst:.2%}, more than 2 %")


if __name__ == "__main__":
    main()
