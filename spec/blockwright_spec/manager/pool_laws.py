"""Part one, chapter 14: the laws of blocks: who holds them, what they are published under, and what a lookup finds."""

from math import lcm

from ..reads import Prefix, cut, margin, needed, shows
from .added import continues, keyed
from .hits import found
from .lru import LRU
from .state import NULL, Running, State, Waiting, heads, holders, key


def law_queue_holds_the_unheld(state: State) -> bool:
    """REF-1: a block is in the free queue exactly when no table, fence, due copy or hold from outside holds it."""
    return all((block in state.queue) == (holders(state, block) == 0) for block in range(1, state.config.num_blocks))


def law_queue_is_ordered(state: State) -> bool:
    """QUEUE-1: the free queue holds no block twice, and blocks without content stand before candidates."""
    candidates = tuple(key(state, block) is not None for block in state.queue)
    return len(set(state.queue)) == len(state.queue) and candidates == tuple(sorted(candidates))


def law_null_is_nothing(state: State) -> bool:
    """NULL-1: the null block is never queued, never published and never written."""
    return NULL not in state.queue and key(state, NULL) is None and state.contents[NULL] is None


def law_key_is_single(state: State) -> bool:
    """KEY-1: a block is published as one thing at most, and as nothing where nothing is cached."""
    blocks = tuple(block for block, _ in state.keys)
    return len(set(blocks)) == len(blocks) and (state.config.caching or not blocks)


def law_key_is_content(state: State) -> bool:
    """PUB-1: a published block holds exactly what it is published as: a prefix that ends where the block ends."""
    groups, lookahead = state.config.groups, state.config.added.key_lookahead
    return all(
        state.contents[block] == (at, cut(prefix, end)) and end % groups[at].block_size == 0 < end
        for block, (at, prefix) in state.keys
        for end in (len(prefix[1]) - lookahead,)
    )


def law_free_is_findable_or_empty(state: State) -> bool:
    """GHOST-1: a free block that is not published holds nothing readable."""
    return all(state.contents[block] is None or key(state, block) is not None for block in state.queue)


def asked(state: State) -> frozenset[Prefix]:
    """Return the prefixes a lookup may be asked for here: those of requests, and published ones and a token more."""
    known = (request.prefix for request in state.requests if isinstance(request, Running | Waiting))
    return frozenset((*known, *((extra, (*tokens, 0)) for _, (_, (extra, tokens)) in state.keys)))


def readable(state: State, at: int, prefix: Prefix, position: int) -> bool:
    """Return whether the content of some published block, whatever its key, serves a group's read of a position."""
    group, keys = state.config.groups[at], state.keys
    blocks = (block for block, (_, content) in keys if continues(state.config.added, prefix, content))
    return any(shows(group, at, state.contents[block], prefix, position) for block in blocks)


def law_hit_is_sound(state: State) -> bool:
    """HIT-1: a hit gives, for every position that a later token reads, a block with exactly that prefix."""
    return all(
        shows(group, at, state.contents[heads(state.config, hit)[at][position // group.block_size]], prefix, position)
        for prefix, hit in ((prefix, found(state, prefix, LRU)) for prefix in asked(state))
        for at, group in enumerate(state.config.groups)
        for position in needed(group.kind, hit.length)
    )


def suits(state: State, prefix: Prefix, length: int) -> bool:
    """Return whether every group could read what the token at `length` reads, and its margin, and keys are known."""
    extra = tuple(margin(group, state.config.eagle) for group in state.config.groups)
    return max(extra) + length <= keyed(state.config.added, prefix) and all(
        readable(state, at, prefix, position)
        for at, group in enumerate(state.config.groups)
        for position in (*needed(group.kind, length), *range(length, length + extra[at]))
    )


def law_hit_is_longest(state: State) -> bool:
    """HIT-2: no longer length, aligned in every group, could be read, with its draft margin and a token left."""
    step = lcm(*(group.block_size for group in state.config.groups))
    return not any(
        suits(state, prefix, length)
        for prefix in asked(state)
        for length in range(found(state, prefix, LRU).length + step, len(prefix[1]), step)
    )


def law_hit_leaves_a_token(state: State) -> bool:
    """HIT-3: a hit is aligned in every group, and leaves a token to compute and its draft margin."""
    margins = (margin(group, state.config.eagle) for group in state.config.groups)
    extra = max(1, state.config.added.key_lookahead, *margins)
    lengths = ((len(prefix[1]), found(state, prefix, LRU).length) for prefix in asked(state))
    return all(
        length <= max(0, known - extra) and not any(length % group.block_size for group in state.config.groups)
        for known, length in lengths
    )
