"""The longest single calls: what a scheduler's loop waits for at worst, kind by kind.

    python -m benchmarks.tails

256 requests decode over one group of full attention, in a pool full of what others have left; in each step two of them
end and two begin, with prompts whose first half is cached. Steps take slots in one call for all, or in one for each, by
turns. Each call is timed alone, in CPU time of the thread. Every round makes the same calls in the same order, and the
shortest time of a call counts: what the machine interrupts hits another call in each round, what the call itself takes
is there in all of them.
"""

import argparse
import gc
import random
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.measure import now, require, since
from benchmarks.sides import BLOCK_SIZE, MAX_MODEL_LEN, Ours, Tokens, as_array
from blockwright._terminal import print_table

PROMPTS = (1_024, 8_192)
"""Tokens of prompts."""
RUNNING, ARRIVALS, STEMS = 256, 2, 64
"""Requests that run, those that come and go in each step, and different first halves of prompts."""

Times = dict[str, "array[int]"]


class Loop:
    """An engine's loop over one manager, whose calls are timed one by one.

    Attributes:
        times: of each kind of call, in order, in ns.
    """

    def __init__(self, num_blocks: int) -> None:
        """Run until every block has been taken."""
        self.times: defaultdict[str, array[int]] = defaultdict(lambda: array("q"))
        self._side = Ours()
        self._manager = self._side.manager(num_blocks, MAX_MODEL_LEN)
        tokens = Tokens()
        self._random = random.Random(1)
        self._stems = {size: [as_array(tokens.draw(size // 2)) for _ in range(STEMS)] for size in PROMPTS}
        self._own = as_array(tokens.draw(max(PROMPTS)))
        self._outputs = tokens.draw(RUNNING)
        self._serial = self._steps = taken = 0
        self._running: list[Any] = []
        while taken < num_blocks:
            if len(self._running) == RUNNING:
                self._end()
            taken += self._begin() // BLOCK_SIZE

    def step(self) -> None:
        """Let requests end and begin, and all of them decode a token."""
        for _ in range(ARRIVALS):
            self._end()
            self._begin()
        requests, manager = self._running, self._manager
        if self._steps % 2:
            step = self._timed("slots for 256 requests, one token each", manager.allocate_slots_batch, requests, 1)
            require(step.num_served == RUNNING)
        else:
            for request in requests:
                require(self._timed("slots for one request, one token", manager.allocate_slots, request, 1) is not None)
        self._timed("256 tokens counted and appended", self._side.advance, requests, self._outputs)
        self._steps += 1

    def _begin(self) -> int:
        self._serial += 1
        size = self._random.choice(PROMPTS)
        stem = self._random.choice(self._stems[size])
        prompt = stem + as_array([self._serial]) + self._own[: size - len(stem) - 1]
        kind = f"prompt of {size:,} tokens"
        request = self._timed(f"{kind}: made", self._side.arriving, f"r{self._serial}", prompt)
        hit, length = self._timed(f"{kind}: hashed and looked up", self._manager.get_computed_blocks, request)
        new = self._timed(f"{kind}: admitted", self._manager.allocate_slots, request, size - 1 - length, length, hit)
        require(new is not None)
        request.num_computed_tokens = size - 1  # the last one is computed in the next step
        self._running.append(request)
        num_new: int = size - length
        return num_new

    def _end(self) -> None:
        at = self._random.randrange(len(self._running))
        request = self._running[at]
        self._running[at] = self._running[-1]
        self._running.pop()
        self._timed(f"prompt of {request.num_prompt_tokens:,} tokens: freed", self._manager.free, request)

    def _timed(self, kind: str, call: Callable[..., Any], *args: Any) -> Any:
        """Make a call and note its time."""
        begin = now()
        answer = call(*args)
        self.times[kind].append(since(begin))
        return answer


def measure(num_blocks: int, num_calls: int, rounds: int) -> Times:
    """Return the times of so many calls at least, of each kind in order, each the shortest of all rounds."""
    best: Times = {}
    for _ in range(rounds):
        gc.collect()
        gc.disable()
        try:
            loop = Loop(num_blocks)
            loop.times.clear()
            for _ in range(-(-num_calls // (4 * ARRIVALS + 1 + (RUNNING + 1) // 2))):
                loop.step()
        finally:
            gc.enable()
        best = {kind: array("q", map(min, times, best.get(kind, times))) for kind, times in loop.times.items()}
    return best


def rows(times: Times) -> Iterable[list[str]]:
    for kind, taken in sorted(times.items()):
        ordered = sorted(taken)
        points = (ordered[len(ordered) // 2], ordered[len(ordered) * 999 // 1000], ordered[-1])
        yield [kind, f"{len(ordered):,}", *(f"{time / 1e3:,.1f}" for time in points)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tails", description="Time the longest calls.")
    parser.add_argument("--blocks", type=int, default=1_000_000, help="blocks of the pool (default %(default)s)")
    parser.add_argument("--calls", type=int, default=10_000_000, help="calls of a round (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=6, help="rounds (default %(default)s)")
    args = parser.parse_args(argv)
    least = 2 * RUNNING * max(PROMPTS) // BLOCK_SIZE
    if args.blocks < least or args.calls < 1 or args.rounds < 1:
        parser.error(f"--blocks must be {least} at least, --calls and --rounds 1")
    times = measure(args.blocks, args.calls, args.rounds)
    caption = f"{args.blocks:,} blocks; us of CPU time, the shortest of {args.rounds} equal rounds for each call"
    print_table("Single calls", ["call", "calls", "median", "99.9 %", "longest"], list(rows(times)), caption)


if __name__ == "__main__":
    main()
