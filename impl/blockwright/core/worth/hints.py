"""An engine's hints on blocks to keep. They decide one free choice, which candidate is evicted first, and nothing else.

A wish is noted with the request, and counts when that lets go of its blocks (see `retained`). law: HINT-1.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from blockwright.core.keys.request import count_of
from blockwright.core.pool.order import BlockHint, Wish
from blockwright.core.pool.pool import BlockPool
from blockwright.core.pool.queue import join
from blockwright.core.tables.table import RequestTables
from blockwright.core.worth.passing import PassingOrder
from blockwright.core.worth.retained import RetentionOrder
from blockwright.errors import InvalidArgumentError
from blockwright.exclusions import HINTS, ORDER, refuse_exclusions

MAX_PRIORITY: Final = 100


def hinted(pool: BlockPool) -> RetentionOrder:
    """Return the pool's order of candidates by hints, made now if there is none. O(num_blocks) once.

    It is not made with the pool: it takes 60 bytes for each block, and time for each candidate, and most engines give
    no hint.

    Raises:
        ExcludedOptionsError: candidates go by another order, which knows no hints.
    """
    order = pool._order
    if isinstance(order, RetentionOrder):
        order.hear()
        return order
    classes = None
    if isinstance(order, PassingOrder):
        classes = order.classes
    elif order is not None:
        refuse_exclusions({ORDER: True, HINTS: True})
    pool.require_whole()
    made = RetentionOrder(pool._count, {}, pool._guard, pool._index.has_parts, classes)
    blocks = pool.free_block_ids()
    bare: i64 = 0
    while bare < i64(len(blocks)) and not pool._index.has_key(i64(blocks[int(bare)])):
        bare += 1
    last: i64 = i64(blocks[int(bare) - 1]) if bare > 0 else 0
    join(pool._rows, last, 0)
    pool._go_by(made)
    made.start(pool, pool._size - 1 - pool._num_free + len(pool.held_beyond()), blocks[int(bare) :])
    made.resize(pool._size)
    return made


def retain(pool: BlockPool, tables: RequestTables, num_tokens: int, priority: int, until: float) -> None:
    """Note that the first tokens of a running request are worth keeping: ``retain``."""
    tokens = count_of("num_tokens", num_tokens)
    level = count_of("priority", priority)
    if not 1 <= level <= MAX_PRIORITY:
        raise InvalidArgumentError(f"priority: must be within 1..{MAX_PRIORITY}, not {priority!r}")
    # Without caching no block outlives its request; an engine need not know that.
    if not pool.enable_caching:
        return
    order = hinted(pool)
    if not until > order.now:
        raise InvalidArgumentError(f"until: must be later than now, which is {order.now}, not {until!r}")
    said = tables.wish
    tables.wish = Wish(tokens, level, until, -1 if said is None else said.first)


def release_prefix(pool: BlockPool, tables: RequestTables, first_token: int) -> None:
    """Note that a running request's blocks from a token on are evicted first: ``release_prefix``."""
    first = count_of("first_token", first_token)
    if not pool.enable_caching:
        return
    hinted(pool)
    said = tables.wish
    if said is None:
        tables.wish = Wish(0, 0, 0.0, first)
    else:
        tables.wish = Wish(said.tokens, said.priority, said.until, first)


def advance_time(pool: BlockPool, now: float) -> None:
    """Note what time it is: ``advance_time``. law: HINT-2."""
    pool.require_whole()
    if not pool.enable_caching:
        return
    order = hinted(pool)
    # Written so that a NaN is refused as well.
    if not now >= order.now:
        raise InvalidArgumentError(f"now: must be at least {order.now}, the last time given, not {now!r}")
    try:
        order.pass_time(now)
    except BaseException:
        pool._tear()
        raise


def hint_of(pool: BlockPool, tables: RequestTables, first_token: int) -> BlockHint | None:
    """Return the hint for a running request's block that begins at a token, or None: ``hint_of``."""
    wish, salt = tables.wish, tables.request.cache_salt
    if wish is not None and count_of("first_token", first_token) < wish.tokens and wish.until > pool.now:
        return BlockHint(salt, int(wish.priority), wish.until)
    return None if salt is None else BlockHint(salt)
