"""What chooses an engine for each request, from what routers know: requests under way, and events with their delay.

A router is a function of what is known of one engine; the engine for which it returns the least is taken. Of those with
equal values the next one in turn is, so that a router to which all are the same deals requests out in a round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from math import inf
from operator import neg, sub
from typing import Any, Final, NamedTuple

from blockwright import Request
from blockwright.errors import InvalidArgumentError
from blockwright.events import AllBlocksCleared, BlockHash, BlockStored, KVCacheEvent
from blockwright.observe.prefix_index import PrefixIndex
from blockwright.policies import found_by


class Seen(NamedTuple):
    """What a router knows of one engine as a request arrives.

    Attributes:
        prompt: tokens of the request's prompt. hit: how many of them the engine can find, by the events that came.
        requests: requests that were sent to the engine and have not ended. tokens: tokens of their prompts.
    """

    prompt: int
    hit: int
    requests: int
    tokens: int


Router = Callable[[int, Sequence[int], Sequence[int], Sequence[int]], Sequence[Any]]
"""A router, of all engines at once: the prompt's tokens, and hits, requests and tokens of each engine."""

ROUTERS: Final[dict[str, Router]] = {
    "round": lambda prompt, hits, requests, tokens: bytes(len(requests)),
    "load": lambda prompt, hits, requests, tokens: requests,
    "prefix": lambda prompt, hits, requests, tokens: [*zip(map(neg, hits), requests, strict=True)],
    "cost": lambda prompt, hits, requests, tokens: [*map(sub, tokens, hits)],
}
MAX_ENGINES: Final = 10_000
# Those that ask for no hits, so that engines need not say what they cache.
_BLIND: Final = ("round", "load")


def is_told(router: str) -> bool:
    """Return whether a router asks what the engines have cached."""
    return router not in _BLIND


def router_named(name: str) -> Router:
    """Return one of `ROUTERS`, or a ``module:function`` of the user's; raise an `InvalidArgumentError` for neither."""
    found = found_by("--router", name, ROUTERS)
    return found if name in ROUTERS else _of_each(found)


def _of_each(cost: Callable[[Seen], Any]) -> Router:
    return lambda prompt, *known: [*map(cost, map(Seen, repeat(prompt), *known))]


class Fleet:
    """Finds by one walk over a prompt what an index of each engine would, if a hit needs all blocks before it."""

    def __init__(self, num_engines: int) -> None:
        self._count = num_engines
        self._holders: dict[BlockHash, int] = {}  # a bit for each engine

    def apply(self, engine: int, events: Sequence[KVCacheEvent]) -> None:
        holders, bit = self._holders, 1 << engine
        for event in events:
            if isinstance(event, BlockStored):
                holders[event.block_hash] = holders.get(event.block_hash, 0) | bit
            elif isinstance(event, AllBlocksCleared):
                self._holders = holders = {name: left for name, each in holders.items() if (left := each & ~bit)}
            elif left := holders.get(event.block_hash, 0) & ~bit:
                holders[event.block_hash] = left
            else:
                holders.pop(event.block_hash, None)

    def matches(self, request: Request, block_size: int) -> list[int]:
        """Return how many leading tokens of a prompt each engine would hit."""
        hits, alive, last = [0] * self._count, (1 << self._count) - 1, request.num_tokens // block_size
        # All engines at once, a bit for each: most of them drop out within the first blocks.
        for at in range(last + 1):
            found = alive & self._holders.get(request.block_digest(at), 0) if at < last else 0
            lost, alive = alive & ~found, found
            while lost and at:
                hits[lost.bit_length() - 1] = at * block_size
                lost ^= 1 << lost.bit_length() - 1
            if not alive:
                break
        return hits


class Indices:
    """An index of each engine, for layers that a hit does not need all blocks of."""

    def __init__(self, num_engines: int) -> None:
        self._each = [PrefixIndex() for _ in range(num_engines)]

    def apply(self, engine: int, events: Sequence[KVCacheEvent]) -> None:
        self._each[engine].apply(events)

    def matches(self, request: Request, _: int) -> list[int]:
        return [each.match(request.all_token_ids, cache_salt=request.cache_salt) for each in self._each]


class Routing:
    """A router before some engines, and what it knows of each."""

    def __init__(
        self, router: str, num_engines: int, delay: float, make: Callable[[int], Request], size: int, is_plain: bool
    ) -> None:
        """Take how to make a request, and a block's `size`; `is_plain` says that a hit needs all blocks before it."""
        self._costs, self.is_told = router_named(router), num_engines > 1 and is_told(router)
        self._delay, self._make, self._size, self._new = delay, make, size, Fleet if is_plain else Indices
        self._coming = deque[tuple[float, int, list[KVCacheEvent]]]()
        self._requests, self._tokens = [0] * num_engines, [0] * num_engines
        self.down = set[int]()
        self._whole: Fleet | Indices | None = None  # what engines have, until a router that forgot it is sent that
        self._known = self._new(num_engines)

    def restart(self, is_restored: bool) -> None:
        """Forget what engines have, as a router does that starts again and is sent events alone, until `restore`."""
        if self._whole is None:
            self._learn(inf)  # a snapshot of an engine is without the delay of its events
            self._whole = self._known
        self._whole, self._known = self._whole if is_restored else None, self._new(len(self._requests))
        self._coming.clear()

    def restore(self) -> None:
        """Take over a snapshot of all that engines have by now; events go on from there."""
        if self._whole is not None:
            self._known, self._whole = self._whole, None
            self._coming.clear()

    def choose(self, number: int, num_tokens: int, at: float) -> int:
        """Return the number of the engine for a request, which counts as sent there."""
        count = len(self._requests)
        hits: Sequence[int] = bytes(count)
        if self.is_told:
            self._learn(at)
            hits = self._known.matches(self._make(number), self._size)
        costs = self._costs(num_tokens, hits, self._requests, self._tokens)
        # Of equal ones the next in turn, or the first would get all requests of a trace without hits.
        turn = [*range(number % count, count), *range(number % count)]
        if self.down:
            turn = [at for at in turn if at not in self.down]
        if not turn:
            raise InvalidArgumentError("fails: no engine is left for a request; let one of them come back")
        try:
            chosen: int = min(turn, key=costs.__getitem__)
        except TypeError:
            raise InvalidArgumentError(f"--router: must return numbers, or tuples of them, not {costs}") from None
        self._requests[chosen] += 1
        self._tokens[chosen] += num_tokens
        return chosen

    def ended(self, engine: int, num_tokens: int) -> None:
        self._requests[engine] -= 1
        self._tokens[engine] -= num_tokens

    def told(self, engine: int, events: list[KVCacheEvent], at: float) -> None:
        if events:
            self._coming.append((at + self._delay, engine, events))
            if self._whole is not None:
                self._whole.apply(engine, events)

    def _learn(self, at: float) -> None:
        coming = self._coming
        while coming and coming[0][0] <= at:
            _, engine, events = coming.popleft()
            self._known.apply(engine, events)
