"""Long walks of SGLang's own scheduler (0.5.23, no model) over Blockwright's cache, beside its default tree in Rust.

``make bench-sglang`` prints a line per page size and kind of load, and a total. Both caches serve the same requests in
the same process, one after the other, in alternating order. The time is of the processor, inside the cache and its
allocator, each moment once: the outermost call counts.
"""

import argparse
import gc
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.engines import sglang_bed as bed

from blockwright.engines import sglang as engine

CALLS = (
    "match_prefix touch_prefix lock unlock checkpoint free_kv_row on_release evict evict_for_alloc evictable_size "
    "prefix_device_indices path_device_indices dfs_weight_order evict_sliding_windows available_size alloc "
    "alloc_extend alloc_decode free free_segment free_segments free_group_begin free_group_end check_decode_capacity "
    "evict_to_free_tokens full_available_size swa_available_size full_evictable_size swa_evictable_size "
    "mamba_evictable_size schedulable_available_size alloc_group_begin alloc_group_end"
)
STEPS = 2_000
LOADS = {
    "roomy": bed.Case(requests=600),
    "tight": bed.Case(tokens=960, answer=120, aborts=0.1, requests=270),
    "chunks": bed.Case(tokens=1280, chunk=24, longest=300, aborts=0.3, requests=330),
    "longest prefix first": bed.Case(tokens=1280, policy="lpm", salts=True, aborts=0.1, requests=480),
    "most wanted first": bed.Case(tokens=1280, policy="dfs-weight", requests=480),
    "retracted": bed.Case(tokens=960, answer=200, longest=100, conservativeness=0.05, aborts=0.1, requests=170),
    "mixed": bed.Case(tokens=1024, mixes=True, chunk=48, answer=100, aborts=0.1, requests=300),
    "overlapping": bed.Case(tokens=960, overlaps=True, answer=120, aborts=0.2, conservativeness=0.05, requests=270),
    "images": bed.Case(tokens=1280, images=True, requests=480),
    "overlapping, longest prefix first": bed.Case(
        tokens=1280, overlaps=True, policy="lpm", mixes=True, chunk=48, requests=420
    ),
}
WINDOWS = {
    "windows, tight": bed.Case(tokens=1600, window=40, window_tokens=800, requests=300),
    "windows, longest prefix first": bed.Case(
        window=100, window_tokens=2048, policy="lpm", chunk=48, aborts=0.1, requests=400
    ),
    "windows, roomy": bed.Case(window=40, window_tokens=2048, requests=400),
    "windows, overlapping": bed.Case(
        tokens=1280, window=60, window_tokens=960, overlaps=True, answer=100, conservativeness=0.05, requests=300
    ),
    "windows, mixed": bed.Case(tokens=1280, window=40, window_tokens=800, mixes=True, chunk=48, requests=300),
}
STATES = {
    "states, one token a page": bed.Case(tokens=1280, states=60, policy="lpm", chunk=48, aborts=0.1, requests=400),
    "states, buffers": bed.Case(tokens=1280, states=80, buffers=True, overlaps=True, aborts=0.1, requests=400),
    "states, buffers, tight": bed.Case(
        tokens=960, states=64, buffers=True, overlaps=True, answer=120, conservativeness=0.05, aborts=0.1, requests=270
    ),
    "states, lazy buffers": bed.Case(
        tokens=1280, states=64, buffers=True, lazy=True, overlaps=True, policy="lpm", chunk=48, requests=400
    ),
}
DRAFTS = {
    "drafts": bed.Case(tokens=1280, answer=120, drafts=5, conservativeness=0.05, aborts=0.1, requests=500),
    "EAGLE": bed.Case(tokens=1280, answer=120, drafts=5, eagle=True, conservativeness=0.05, aborts=0.1, requests=500),
    "drafts in windows": bed.Case(
        tokens=1280, window=40, window_tokens=640, answer=100, drafts=4, overlaps=True, requests=500
    ),
    "EAGLE in windows": bed.Case(
        tokens=1280, window=40, window_tokens=640, answer=100, drafts=4, eagle=True, overlaps=True, requests=500
    ),
}
OF = {"full": LOADS, "windows": WINDOWS, "states": STATES, "drafts": DRAFTS}


def walk(case: Any) -> tuple[Any, float]:
    """Return what a case came to, and the seconds inside the cache and its allocator."""
    spent, inside, clock = [0.0], [False], time.process_time

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*arguments: Any, **more: Any) -> Any:
            if inside[0]:
                return call(*arguments, **more)
            inside[0], begin = True, clock()
            try:
                return call(*arguments, **more)
            finally:
                spent[0] += clock() - begin
                inside[0] = False

        return measured

    def metered(made: Any) -> None:
        states = getattr(made.req_to_token_pool, "mamba_allocator", None)
        for part in (made.tree_cache, made.token_to_kv_pool_allocator, states):
            for name in CALLS.split():
                if (call := getattr(part, name, None)) is not None:
                    setattr(part, name, timed(call))

    gc.collect()
    return bed.run(case, metered), spent[0]


def main() -> int:
    """Walk, and print the table; return 1 if something was wrong, left over, or answered otherwise than by SGLang."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--pages", type=int, nargs="*", default=[16, 1])
    parser.add_argument("--of", choices=OF, default="full", help="full attention alone, or what is beside it")
    args = parser.parse_args()
    engine.register()
    bad, loads = 0, OF[args.of]
    print(f"{'page  load':40} seeds   steps     hits SGLang's   of prompts    wrong  left  us/step  Rust's ratio")
    for page in args.pages:
        sums: dict[str, Counter[str]] = {}
        for seed in range(args.seeds):
            name = [*loads][seed % len(loads)]
            # Without buffers SGLang keeps states with pages of one token only.
            is_one = loads[name].states and not loads[name].buffers
            case = replace(loads[name], page=1 if is_one else page, seed=seed, checked_every=10)
            case = replace(case, gap=round(12 * STEPS / case.requests) - 6)
            got = {}
            for cache in ("rust", "blockwright")[:: 1 if seed % 2 else -1]:
                got[cache] = walk(replace(case, cache=cache))
            each = compare(got["blockwright"], got["rust"])
            for key in (name, "all"):
                sums.setdefault(key, Counter()).update(each)
            print(line(page, name, each), flush=True)
        for name, each in sums.items():
            if each["seeds"] > 1:
                print(line(page, name, each), flush=True)
        bad += sums["all"]["wrong"] + sums["all"]["left"]
    return int(bad > 0)


def compare(ours: tuple[Any, float], own: tuple[Any, float]) -> Counter[str]:
    """Return the numbers of a walk; answers of requests that either cache's run has aborted are not compared."""
    (seen, seconds), (other, other_seconds) = ours, own
    wrong = sum(seen.answers[rid] != other.answers[rid] for rid in seen.answers.keys() & other.answers.keys())
    return Counter(
        seeds=1,
        steps=seen.steps,
        own_steps=other.steps,
        hits=seen.hits,
        own_hits=other.hits,
        prompts=seen.prompts,
        own_prompts=other.prompts,
        wrong=wrong + len(seen.wrong),
        left=seen.left + seen.rows_left,
        nanoseconds=round(seconds * 1e9),
        own_nanoseconds=round(other_seconds * 1e9),
        reads=seen.reads,
        retracted=seen.retracted,
    )


def line(page: int, name: str, sums: Counter[str]) -> str:
    """Return a line of the table."""
    time_ours, time_own = sums["nanoseconds"] / sums["steps"] / 1e3, sums["own_nanoseconds"] / sums["own_steps"] / 1e3
    hits, own = sums["hits"] / sums["prompts"], sums["own_hits"] / sums["own_prompts"]
    return (
        f"{page:4}  {name:34} {sums['seeds']:5} {sums['steps']:7,}  {sums['hits']:7,} {sums['own_hits']:7,} "
        f"{hits:7.2%} {own:7.2%} {sums['wrong']:5} {sums['left']:5} {time_ours:8.1f} {time_own:8.1f} "
        f"{time_ours / time_own:5.2f}  retracted {sums['retracted']} reads {sums['reads']:,}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
