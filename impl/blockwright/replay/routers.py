"""What chooses an engine for each request, from what routers know: requests under way, and events with their delay.

A router is a function of what is known of one engine; the engine for which it returns the least is taken. Of those with
equal values the next one in turn is, so that a router to which all are the same deals requests out in a round.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from blockwright.events import KVCacheEvent
from blockwright.observe.prefix_index import PrefixIndex
from blockwright.policies import found_by


@dataclass(frozen=True, slots=True)
class Seen:
    """What a router knows of one engine as a request arrives.

    Attributes:
        prompt: tokens of the request's prompt. hit: how many of them the engine can find, by the events that came.
        requests: requests that were sent to the engine and have not ended. tokens: tokens of their prompts.
    """

    prompt: int
    hit: int
    requests: int
    tokens: int


Router = Callable[[Seen], Any]

ROUTERS: Final[dict[str, Router]] = {
    "round": lambda seen: 0,
    "load": lambda seen: seen.requests,
    "prefix": lambda seen: (-seen.hit, seen.requests),
    "cost": lambda seen: seen.prompt - seen.hit + seen.tokens,
}
MAX_ENGINES: Final = 10_000
_BLIND: Final = ("round", "load")
"""Those that ask for no hits, so that engines need not say what they cache."""


def is_told(router: str) -> bool:
    """Return whether a router asks what the engines have cached."""
    return router not in _BLIND


def router_named(name: str) -> Router:
    """Return one of `ROUTERS`, or ``module:function`` of the user's own.

    Raises:
        InvalidArgumentError: there is none of that name.
    """
    return found_by("--router", name, ROUTERS)


class Routing:
    """A router before some engines, and what it knows of each."""

    def __init__(
        self, router: str, num_engines: int, event_delay: float, prompt_of: Callable[[int], array[int]]
    ) -> None:
        self._cost = router_named(router)
        self._delay, self._prompt_of = event_delay, prompt_of
        self._indices = [PrefixIndex() for _ in range(num_engines if num_engines > 1 and is_told(router) else 0)]
        self._coming = [deque[tuple[float, list[KVCacheEvent]]]() for _ in range(num_engines)]
        self._requests, self._tokens = [0] * num_engines, [0] * num_engines

    def choose(self, number: int, num_tokens: int, salt: str | None, at: float) -> int:
        """Return the number of the engine for a request, which counts as sent there."""
        engines = range(len(self._requests))
        hits: Sequence[int] = bytes(len(engines))
        if self._indices:
            asked = self._prompt_of(number)
            hits = [self._index(each, at).match(asked, cache_salt=salt) for each in engines]
        costs = [self._cost(Seen(num_tokens, hits[each], self._requests[each], self._tokens[each])) for each in engines]
        chosen = min(engines, key=lambda each: (costs[each], (each - number) % len(engines)))
        self._requests[chosen] += 1
        self._tokens[chosen] += num_tokens
        return chosen

    def ended(self, engine: int, num_tokens: int) -> None:
        self._requests[engine] -= 1
        self._tokens[engine] -= num_tokens

    def told(self, engine: int, events: list[KVCacheEvent], at: float) -> None:
        if events:
            self._coming[engine].append((at + self._delay, events))

    def _index(self, engine: int, at: float) -> PrefixIndex:
        coming = self._coming[engine]
        while coming and coming[0][0] <= at:
            self._indices[engine].apply(coming.popleft()[1])
        return self._indices[engine]
