"""What decides which blocks a replay keeps: a policy, or the trace itself as a client that knows its future.

The policies are those of `blockwright.policies`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from blockwright import KVCacheManager, Request
from blockwright.errors import InvalidArgumentError
from blockwright.policies import Policy
from blockwright.replay.foresight import References, mistaken, references_of
from blockwright.replay.records import Trace


class Told:
    """A client that reports of each request whether its conversation goes on."""

    def __init__(self, goes_on: Sequence[bool]) -> None:
        self.goes_on = goes_on

    def ending(self, manager: KVCacheManager, request: Request, num_hit: int, now: float) -> None:
        """Let a conversation go that has ended."""
        if not self.goes_on[int(request.request_id.rpartition(" ")[2]) - 1]:
            manager.release_prefix(request)


MAX_TENANTS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Keeping:
    """The policy or hints that decide which blocks a replay keeps.

    Attributes:
        name: for people: the policy, or the hints.
        make: makes the policy of one pool.
        shares: part of the pool reserved for each tenant, by name.
        tenant: returns the tenant of a request, by its number from 0 on, or None.
        guard: part of the pool that hints do not affect.
    """

    name: str
    make: Callable[[], Policy]
    shares: tuple[tuple[str, float], ...] = ()
    tenant: Callable[[int], str | None] | None = None
    guard: float = 0.0


def told_by(hints: str, references: References) -> Callable[[], Policy]:
    """Return the factory of a client: ``oracle``, or ``oracle:ERROR`` with that part of its bits wrong.

    ``oracle:ERROR:SEED`` draws other errors.

    Raises: InvalidArgumentError: neither of these.
    """
    name, _, text = hints.partition(":")
    part, _, seed = text.partition(":")
    try:
        error = float(part or 0)
    except ValueError:
        error = -1.0
    if name != "oracle" or not 0.0 <= error <= 1.0 or not (seed or "0").isdecimal() or hints.endswith(":"):
        raise InvalidArgumentError(f"--hints: expected none, oracle or oracle:ERROR within 0..1, not {hints!r}")
    bits = mistaken(references.going_on(), error, int(seed or 0))
    return lambda: Told(bits)


def shares_of(text: str, tenants: set[str | None]) -> tuple[tuple[str, float], ...]:
    """Return the parts of the pool that are tenants' own: ``NAME=PART,...``, or one part for each.

    Raises:
        InvalidArgumentError: no part within 0..1, or a tenant that the trace does not name.
    """
    names = sorted(name for name in tenants if name is not None)
    said = [part.rpartition("=")[::2] for part in text.split(",")] if "=" in text else [(name, text) for name in names]
    found = []
    for name, part in said:
        try:
            found.append((name, float(part)))
        except ValueError:
            raise InvalidArgumentError(f"--shares: {part!r} is no part of the pool; write NAME=0.25") from None
        if not 0.0 <= found[-1][1] <= 1.0 or name not in tenants:
            raise InvalidArgumentError(f"--shares: no part within 0..1, or no tenant of that name: {name}={part}")
    return tuple(found)


def dealt(trace: Trace, count: int, block_size: int) -> Callable[[int], str | None]:
    """Return the tenants of requests where conversations are dealt out to `count` tenants, by their second block."""
    blocks = references_of(trace, block_size).blocks
    return lambda at: f"tenant {(blocks[at][1] if len(blocks[at]) > 1 else at) % count}"
