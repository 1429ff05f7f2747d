"""Scopes: small worlds that the explorer visits whole.

A scope fixes a manager's configuration, the prompts and tokens an engine may send, and which calls it makes. One symbol
suffices for laws of resources; laws of prefixes need two, or extra keys.
"""

from dataclasses import dataclass, field
from itertools import product

from blockwright_spec.reads import Prefix
from blockwright_spec.state import Config


@dataclass(frozen=True, slots=True)
class Scope:
    """A manager's configuration and everything an engine may do to it."""

    name: str
    config: Config
    slots: int
    """Requests that may run at once; each is an id that the engine uses again after the request has ended."""
    prompts: tuple[Prefix, ...]
    outputs: tuple[int, ...] = (0,)
    """Tokens that the model may put out."""
    max_tokens: int = 0
    """Tokens at which a request stops; never above `config.max_model_len`."""
    lookaheads: tuple[int, ...] = (0,)
    drafts: int = 0
    """Draft tokens that a step may carry beyond the known ones."""
    calls: frozenset[str] = field(default_factory=frozenset)
    """What else the engine does: see `CALLS`."""


CALLS = {
    "chunks": "prefill in chunks of every size, not only whole",
    "later": "put publication off and publish by a call of its own",
    "trim": "trim by a call of its own",
    "preempt": "take a running request's blocks and have it wait",
    "reset": "reset the prefix cache",
    "hold": "look up first and admit later, when the hit may have gone stale",
    "unasked": "admit without a lookup (prompt log-probabilities)",
    "adopt": "adopt a hit without computing a token",
    "batch": "grow all running requests in one call",
    "misuse": "make calls that are wrong",
}


def strings(symbols: int, shortest: int, longest: int, extras: tuple[int, ...] = (0,)) -> tuple[Prefix, ...]:
    """Give all prompts of these lengths over an alphabet, with each of the extra keys (0: none)."""
    return tuple(
        (extra, tokens)
        for extra in extras
        for length in range(shortest, longest + 1)
        for tokens in product(range(symbols), repeat=length)
    )


def calls(words: str) -> frozenset[str]:
    """Give a set of calls from their names."""
    names = frozenset(words.split())
    if unknown := names - CALLS.keys():
        raise ValueError(f"unknown calls {sorted(unknown)}; known: {', '.join(CALLS)}")
    return names
