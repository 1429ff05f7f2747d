"""Generate a workload: multi-turn conversations with shared system prompts, the same for the same seed everywhere.

Each conversation opens with one of a few system prompts (the k-th most popular is chosen with weight 1/k). Every turn
sends the whole conversation so far and a new user message; the model's answer then joins the conversation:

    turn 1   system  user 1
    turn 2   system  user 1  answer 1  user 2
    turn 3   system  user 1  answer 1  user 2  answer 2  user 3

Conversations start at random times and pause between turns, so that the turns of many of them interleave. A pause
begins when the answer has come; where requests do not overlap, an answer takes no time.
"""

from __future__ import annotations

import math
import time
from array import array
from dataclasses import dataclass, fields, replace
from random import Random

from blockwright.errors import InvalidArgumentError
from blockwright.replay.records import MAX_PROMPT_TOKENS, ContentNumbers, Trace, TraceRequest

_MOST = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """Say what to generate; lengths in tokens, times in seconds.

    Each of the `conversations` begins with one of the `system_prompts`.
    `turns`, `user_tokens`, `output_tokens` and `think` are means: the number of turns is distributed geometrically,
    lengths and pauses exponentially. A system prompt is from half to one and a half times `system_tokens` long. A
    conversation ends early where its prompt would pass `max_tokens`.

    Raises:
        InvalidArgumentError: a value outside 1 .. 1,000,000 (`seed`: any integer; `max_tokens`: up to 2**24).
    """

    conversations: int = 200
    turns: int = 5
    system_prompts: int = 8
    system_tokens: int = 800
    user_tokens: int = 100
    output_tokens: int = 250
    think: int = 30
    max_tokens: int = 32_768
    seed: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            most = MAX_PROMPT_TOKENS if field.name == "max_tokens" else _MOST
            if field.name != "seed" and not 1 <= value <= most:
                raise InvalidArgumentError(f"{field.name}: must be from 1 to {most}, not {value}")


def generate_workload(options: WorkloadOptions | None = None, *, limit: int | None = None) -> Trace:
    """Generate conversations as a trace, ordered by arrival; `limit` keeps its first requests.

    Complexity: O(turns of each conversation, squared).
    """
    start, options = time.perf_counter(), options or WorkloadOptions()
    draw, numbers = _Draw(options.seed), ContentNumbers(0)
    systems = [(numbers.fresh(), draw.around(options.system_tokens)) for _ in range(options.system_prompts)]
    weights = [1 / (rank + 1) for rank in range(options.system_prompts)]
    requests: list[TraceRequest] = []
    begin = 0.0
    for _ in range(options.conversations):
        begin += draw.exponential(options.think / options.turns)
        requests += _conversation(options, draw, numbers, systems[draw.weighted(weights)], begin, len(requests))
    order = sorted(range(len(requests)), key=lambda at: requests[at].arrival)
    places = {at: place for place, at in enumerate(order)} | {-1: -1}
    made = tuple(replace(requests[at], after=places[requests[at].after]) for at in order[:limit])
    return Trace(f"generated (seed {options.seed})", "generated", made, time.perf_counter() - start)


def _conversation(
    options: WorkloadOptions, draw: _Draw, numbers: ContentNumbers, system: tuple[int, int], begin: float, first: int
) -> list[TraceRequest]:
    contents, lengths = array("i", system[:1]), array("i", system[1:])
    requests: list[TraceRequest] = []
    arrival, pause, num_tokens = begin, 0.0, system[1]
    for _ in range(draw.geometric(options.turns)):
        user, answer = draw.length(options.user_tokens), draw.length(options.output_tokens)
        num_tokens += user
        if num_tokens > options.max_tokens:
            break
        contents.append(numbers.fresh())
        lengths.append(user)
        said = numbers.fresh()
        after = first + len(requests) - 1 if requests else -1
        # Copies: the lists grow with the turns to come.
        requests.append(TraceRequest(contents[:], lengths[:], arrival, answer, said, after=after, delay=pause))
        contents.append(said)
        lengths.append(answer)
        num_tokens += answer
        pause = draw.exponential(options.think)
        arrival += pause
    return requests


class _Draw:
    """Draw numbers from a seed through `Random.random` alone, because Python promises to keep its sequence."""

    def __init__(self, seed: int) -> None:
        self._uniform = Random(seed).random

    def exponential(self, mean: float) -> float:
        return -mean * math.log(1.0 - self._uniform())

    def length(self, mean: int) -> int:
        return max(1, round(self.exponential(mean)))

    def around(self, mean: int) -> int:
        return max(1, round(mean * (0.5 + self._uniform())))

    def geometric(self, mean: int) -> int:
        return 1 if mean == 1 else 1 + int(math.log(1.0 - self._uniform()) / math.log(1.0 - 1.0 / mean))

    def weighted(self, weights: list[float]) -> int:
        left = self._uniform() * sum(weights)
        for index, weight in enumerate(weights):
            left -= weight
            if left < 0:
                return index
        return len(weights) - 1
