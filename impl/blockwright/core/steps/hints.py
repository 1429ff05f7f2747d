"""An engine's hints on blocks to keep. They decide one free choice, which candidate is evicted first, and nothing else.

A wish is noted with the request, and counts when that lets go of its blocks (see `retained`). law: HINT-1.
"""

from __future__ import annotations

from typing import Final

from blockwright.core.keys.request import Request, count_of
from blockwright.core.pool.order.order import BlockHint, Wish
from blockwright.core.steps.preconditions import tables_running
from blockwright.core.steps.state import State
from blockwright.errors import InvalidArgumentError

MAX_PRIORITY: Final = 100


def retain(state: State, request: Request, num_tokens: int, priority: int, until: float) -> None:
    """Note that the first tokens of a running request are worth keeping: ``retain``."""
    tables = tables_running(state, request)
    tokens = count_of("num_tokens", num_tokens)
    level = count_of("priority", priority)
    if not 1 <= level <= MAX_PRIORITY:
        raise InvalidArgumentError(f"priority: must be within 1..{MAX_PRIORITY}, not {priority!r}")
    # Without caching no block outlives its request; an engine need not know that.
    if not state.config.caching:
        return
    order = state.pool._enable_hints()
    if not until > order.now:
        raise InvalidArgumentError(f"until: must be later than now, which is {order.now}, not {until!r}")
    said = tables.wish
    tables.wish = Wish(tokens, level, until, -1 if said is None else said.first)


def release_prefix(state: State, request: Request, first_token: int) -> None:
    """Note that a running request's blocks from a token on are evicted first: ``release_prefix``."""
    tables = tables_running(state, request)
    first = count_of("first_token", first_token)
    if not state.config.caching:
        return
    state.pool._enable_hints()
    said = tables.wish
    if said is None:
        tables.wish = Wish(0, 0, 0.0, first)
    else:
        tables.wish = Wish(said.tokens, said.priority, said.until, first)


def advance_time(state: State, now: float) -> None:
    """Note what time it is: ``advance_time``. law: HINT-2."""
    state.pool.require_whole()
    if not state.config.caching:
        return
    order = state.pool._enable_hints()
    # Written so that a NaN is refused as well.
    if not now >= order.now:
        raise InvalidArgumentError(f"now: must be at least {order.now}, the last time given, not {now!r}")
    try:
        order.pass_time(now)
    except BaseException:
        state.tear()
        raise


def hint_of(state: State, request: Request, first_token: int) -> BlockHint | None:
    """Return the hint for a running request's block that begins at a token, or None: ``hint_of``."""
    wish = tables_running(state, request).wish
    salt = request.cache_salt
    if wish is not None and count_of("first_token", first_token) < wish.tokens and wish.until > state.pool.now:
        return BlockHint(salt, int(wish.priority), wish.until)
    return None if salt is None else BlockHint(salt)
