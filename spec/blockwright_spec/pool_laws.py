"""Chapter 9: the laws of blocks: who holds them, what they are published under, and what a lookup finds."""

from .hits import found, margin
from .lru import LRU
from .reads import Prefix, needed, shows
from .state import NULL, Running, State, Waiting, holders, key


def law_queue_holds_the_unheld(state: State) -> bool:
    """REF-1: a block is in the free queue exactly when no table holds it."""
    return all((block in state.queue) == (holders(state, block) == 0) for block in range(1, state.config.num_blocks))


def law_queue_is_ordered(state: State) -> bool:
    """QUEUE-1: the free queue holds no block twice, and blocks without content stand before candidates."""
    candidates = tuple(key(state, block) is not None for block in state.queue)
    return len(set(state.queue)) == len(state.queue) and candidates == tuple(sorted(candidates))


def law_null_is_nothing(state: State) -> bool:
    """NULL-1: the null block is never queued, never published and never written."""
    return NULL not in state.queue and key(state, NULL) is None and state.contents[NULL] is None


def law_key_is_single(state: State) -> bool:
    """KEY-1: a block is published under one prefix at most, and under none where nothing is cached."""
    blocks = tuple(block for block, _ in state.keys)
    return len(set(blocks)) == len(blocks) and (state.config.caching or not blocks)


def law_key_is_content(state: State) -> bool:
    """PUB-1: a published block holds exactly the prefix it is published under, which ends where the block ends."""
    size = state.config.block_size
    return all(
        state.contents[block] == prefix and len(prefix[1]) % size == 0 < len(prefix[1]) for block, prefix in state.keys
    )


def law_free_is_findable_or_empty(state: State) -> bool:
    """GHOST-1: a free block that is not published holds nothing readable."""
    return all(state.contents[block] is None or key(state, block) is not None for block in state.queue)


def asked(state: State) -> frozenset[Prefix]:
    """Give the prefixes a lookup may be asked for here: those of requests, and the published ones and a token more."""
    known = (request.prefix for request in state.requests if isinstance(request, Running | Waiting))
    return frozenset((*known, *((extra, (*tokens, 0)) for _, (extra, tokens) in state.keys)))


def readable(state: State, prefix: Prefix, position: int) -> bool:
    """Tell whether the content of some published block, whatever its key, serves a read of a position."""
    kind, size = state.config.kind, state.config.block_size
    return any(shows(kind, size, state.contents[block], prefix, position) for block, _ in state.keys)


def law_hit_is_sound(state: State) -> bool:
    """HIT-1: a hit gives, for every position that a later token reads, a block with exactly that prefix."""
    kind, size = state.config.kind, state.config.block_size
    return all(
        shows(kind, size, state.contents[hit.blocks[position // size]], prefix, position)
        for prefix, hit in ((prefix, found(state, prefix, LRU)) for prefix in asked(state))
        for position in needed(kind, hit.length)
    )


def law_hit_is_longest(state: State) -> bool:
    """HIT-2: no longer aligned length, with its draft margin and a token left to compute, could be read."""
    kind, size, extra = state.config.kind, state.config.block_size, margin(state.config)
    return not any(
        all(readable(state, prefix, at) for at in (*needed(kind, length), *range(length, length + extra)))
        for prefix in asked(state)
        for length in range(found(state, prefix, LRU).length + size, len(prefix[1]) - extra, size)
    )


def law_hit_leaves_a_token(state: State) -> bool:
    """HIT-3: a hit leaves a token to compute, and after the hit its draft margin."""
    longest = ((len(prefix[1]) - 1, found(state, prefix, LRU).length) for prefix in asked(state))
    return all(length <= max(0, most - margin(state.config)) for most, length in longest)
