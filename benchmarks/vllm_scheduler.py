"""Time vLLM's scheduler with its own manager, with Blockwright's, and with one that does nothing.

Run inside an environment with vLLM (``make bench-engines``). All sides run the same requests, step by step in turn, so
that what else the machine does meets all of them, and in every order equally often, since a step finds the processor's
caches as the side before it left them. Each side has a process of its own, as in an engine: in one interpreter, CPython
specializes the scheduler's code for the classes of two sides, and the third, a subclass, pays for that. What is printed
are medians per step of each order, their mean, and ratios of those. A manager that does nothing is the bound: what
vLLM's scheduler takes by itself.
"""

import argparse
import gc
import itertools
import multiprocessing
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.engines import stub
from vllm.v1.core.sched import scheduler as home
from vllm.v1.metrics.stats import PrefixCacheStats
from vllm.v1.outputs import ModelRunnerOutput


class _NoBlocks:
    """An answer without blocks, which costs the scheduler as little as one can."""

    def __init__(self, groups: int) -> None:
        self.blocks: tuple[list[Any], ...] = tuple([] for _ in range(groups))

    def get_block_ids(self, allow_none: bool = False) -> Any:
        return None if allow_none else self.blocks


class _Nothing:
    """A manager without blocks: what it returns is made once."""

    def __init__(self, kv_cache_config: Any, **options: Any) -> None:
        groups = len(kv_cache_config.kv_cache_groups)
        self.empty_kv_cache_blocks = _NoBlocks(groups)
        self.coordinator = type("Coordinator", (), {"single_type_managers": (), "enable_partial_hash_hits": False})
        self.usage = 0.0

    def get_computed_blocks(self, request: Any) -> Any:
        return self.empty_kv_cache_blocks, 0, 0

    def allocate_slots(self, request: Any, num_new_tokens: int, num_lookahead_tokens: int = 0, **options: Any) -> Any:
        return self.empty_kv_cache_blocks

    def cache_blocks(self, request: Any, num_computed_tokens: int) -> None:
        return None

    def get_blocks(self, request_id: str) -> Any:
        return self.empty_kv_cache_blocks

    def make_prefix_cache_stats(self) -> Any:
        return PrefixCacheStats()

    def estimate_cached_tokens(self, request: Any) -> int:
        return 0

    def take_kv_cache_block_copies(self) -> Any:
        return [], []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing


def _nothing(*args: Any, **options: Any) -> None:
    """Do nothing."""


class Side:
    """One scheduler, and the times of its steps; asynchronous, it plans a step before it hears of the one before."""

    def __init__(self, name: str, folder: Path, kinds: list[Any], num_blocks: int, is_async: bool) -> None:
        self.name = name
        self.times: list[float] = []
        self.running: list[tuple[Any, Any]] = []
        self.depth = int(is_async)
        own = home.KVCacheManager
        if name == "nothing":
            home.KVCacheManager = _Nothing
        try:
            self.scheduler = stub.scheduler(
                folder,
                name == "blockwright",
                kinds,
                num_blocks,
                is_async=is_async,
                max_num_seqs=512,
                max_num_batched_tokens=1 << 15,
                max_model_len=16384,
                scheduler_reserve_full_isl=False,
            )
        finally:
            home.KVCacheManager = own

    def step(self) -> None:
        start = time.thread_time_ns()
        output = self.scheduler.schedule()
        spent = time.thread_time_ns() - start
        names = list(output.num_scheduled_tokens)
        requests = self.scheduler.requests
        sampled = [[] if requests[name].is_prefill_chunk else [7] for name in names]
        result = ModelRunnerOutput(names, {name: at for at, name in enumerate(names)}, sampled)
        self.running.append((output, result))
        start = time.thread_time_ns()
        if len(self.running) > self.depth:
            self.scheduler.update_from_output(*self.running.pop(0))
        self.times.append((spent + time.thread_time_ns() - start) / 1000)

    def admit(self, request: Any) -> None:
        self.scheduler.add_request(request)
        self.step()


def _decode(pipe: Any, name: str, folder: Path, kinds: list[Any], is_async: bool, requests: int, steps: int) -> None:
    """Run one side: a decode step for each message."""
    draw = random.Random(1)
    prompts = [[draw.randrange(3, 400) for _ in range(draw.randrange(200, 280))] for _ in range(requests)]
    side = Side(name, folder, kinds, 60000, is_async)
    for number, prompt in enumerate(prompts):
        side.scheduler.add_request(stub.request(f"r{number}", prompt, side.scheduler.hash_block_size, 4 * steps))
    while side.scheduler.waiting or any(request.is_prefill_chunk for request in side.scheduler.running):
        side.step()
    side.times.clear()
    gc.collect()
    gc.freeze()
    pipe.send(0.0)
    for _ in range(steps):
        pipe.recv()
        side.step()
        pipe.send(side.times[-1])


def decode(folder: Path, kinds: list[Any], is_async: bool, requests: int, steps: int) -> dict[str, float]:
    """Return the median time of a decode step of each side, in microseconds."""
    context = multiprocessing.get_context("fork")
    pipes: dict[str, Any] = {}
    for name in ("vllm", "blockwright", "nothing"):
        pipes[name], far = context.Pipe()
        context.Process(target=_decode, args=(far, name, folder, kinds, is_async, requests, steps), daemon=True).start()
        far.close()  # so that a side that fails ends this process too
        pipes[name].recv()
    times: dict[str, list[float]] = {name: [] for name in pipes}
    orders = list(itertools.permutations(pipes))
    for number in range(steps):
        for name in orders[number % len(orders)]:
            pipes[name].send(None)
            times[name].append(pipes[name].recv())
    return {
        name: statistics.fmean(statistics.median(each[at :: len(orders)]) for at in range(len(orders)))
        for name, each in times.items()
    }


def admission(folder: Path, kinds: list[Any], length: int, repetitions: int) -> dict[str, float]:
    """Return the median time of the manager's calls for a prompt of so many tokens that nobody sent before."""
    times: dict[str, list[float]] = {"vllm": [], "blockwright": []}
    draw = random.Random(2)
    sides = [Side(name, folder, kinds, 60000, False) for name in times]
    for number in range(repetitions):
        tokens = [draw.randrange(3, 400) for _ in range(length)]
        for side in sides:
            manager = side.scheduler.kv_cache_manager
            request = stub.request(f"a{number}", list(tokens), side.scheduler.hash_block_size, 8)
            start = time.thread_time_ns()
            manager.new_step_starts()
            blocks, hit, _ = manager.get_computed_blocks(request)
            given = manager.allocate_slots(
                request, length - hit, num_new_computed_tokens=hit, new_computed_blocks=blocks
            )
            manager.get_blocks(request.request_id).get_block_ids()
            times[side.name].append((time.thread_time_ns() - start) / 1000)
            if given is None:
                raise SystemExit("the pool is too small")
            request.num_computed_tokens = length
            manager.free(request)
    return {name: statistics.median(each) for name, each in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", type=Path, default=Path("build/models"))
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--layout", default="", help="only layouts whose names contain this")
    args = parser.parse_args()
    layouts = {
        "one full": [stub.full()],
        "one full and five sliding": [stub.full(), *[stub.sliding(128)] * 5],
        "one full and three recurrent, blocks of 16": [stub.full(), *[stub.state()] * 3],
        # As vLLM makes them: a block of attention is as large as a state.
        "one full and three recurrent": [stub.full(640), *[stub.state(640)] * 3],
    }
    layouts = {name: kinds for name, kinds in layouts.items() if args.layout in name}
    for is_async in (False, True):
        for name, kinds in layouts.items():
            found = decode(args.models, kinds, is_async, args.requests, args.steps)
            theirs, ours, bound = found["vllm"], found["blockwright"], found["nothing"]
            print(
                f"decode, {args.requests} requests, {name}{', async' if is_async else ''}: vLLM {theirs:,.0f} us, "
                f"Blockwright {ours:,.0f}, nothing {bound:,.0f}: {theirs / ours:.2f}x (bound {theirs / bound:.2f}x), "
                f"{ours / bound - 1:+.1%} of the bound",
                flush=True,
            )
    for name, kinds in layouts.items():
        found = admission(args.models, kinds, 8192, 40)
        theirs, ours = found["vllm"], found["blockwright"]
        print(f"admission of 8k, {name}: vLLM {theirs:,.0f} us, Blockwright {ours:,.0f}: {theirs / ours:.2f}x")


if __name__ == "__main__":
    main()
