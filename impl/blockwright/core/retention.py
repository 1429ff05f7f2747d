"""What an engine says of blocks to keep; it answers one free choice, which candidate goes first, and nothing else.

A wish is noted with the request, and counts when that lets go of its blocks (see `candidates.retained`). law: HINT-1.
"""

from __future__ import annotations

from typing import Final

from blockwright.core.candidates.order import Wish
from blockwright.core.preconditions import tables_running
from blockwright.core.request import MAX_LENGTH, Request
from blockwright.core.state import State
from blockwright.errors import InvalidArgumentError

MAX_PRIORITY: Final = 100


def retain(state: State, request: Request, num_tokens: int, priority: int, until: float) -> None:
    """Note that the first tokens of a running request are worth keeping: ``retain``."""
    tables = tables_running(state, request)
    if isinstance(num_tokens, bool) or not 0 <= num_tokens <= MAX_LENGTH:
        raise InvalidArgumentError(f"num_tokens: must be within 0..{MAX_LENGTH}, not {num_tokens!r}")
    if isinstance(priority, bool) or not 1 <= priority <= MAX_PRIORITY:
        raise InvalidArgumentError(f"priority: must be within 1..{MAX_PRIORITY}, not {priority!r}")
    if not state.config.caching:
        return
    order = state.pool.keep_by_hints()
    if not until > order.now:
        raise InvalidArgumentError(f"until: must be later than now, which is {order.now}, not {until!r}")
    said = tables.wish
    tables.wish = Wish(num_tokens, priority, until, -1 if said is None else said.first)


def release_prefix(state: State, request: Request, first_token: int) -> None:
    """Note that a running request's blocks from a token on are to go first: ``release_prefix``."""
    tables = tables_running(state, request)
    if isinstance(first_token, bool) or not 0 <= first_token <= MAX_LENGTH:
        raise InvalidArgumentError(f"first_token: must be within 0..{MAX_LENGTH}, not {first_token!r}")
    if not state.config.caching:
        return
    state.pool.keep_by_hints()
    said = tables.wish
    if said is None:
        tables.wish = Wish(0, 0, 0.0, first_token)
    else:
        tables.wish = Wish(said.tokens, said.priority, said.until, first_token)


def advance_time(state: State, now: float) -> None:
    """Note what time it is: ``advance_time``. law: HINT-2."""
    state.pool.require_whole()
    if not state.config.caching:
        return
    order = state.pool.keep_by_hints()
    if not now >= order.now:
        raise InvalidArgumentError(f"now: time has come to {order.now} and does not go back to {now!r}")
    try:
        order.pass_time(now)
    except BaseException:
        state.tear()
        raise
