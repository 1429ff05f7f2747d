"""Part one, chapter 18: the laws of blocks: who holds them, what they are published under, and what a lookup finds."""

from ..reads import Mamba, Prefix, cut, margin, needed, shows
from .facts import heads, holders, key
from .hits import found
from .keys import aligned, continues, hit_lengths, keyed, num_ahead, stride, upto
from .lru import LRU
from .room import has_room
from .state import NULL, Running, State, Waiting


def law_queue_holds_the_unheld(state: State) -> bool:
    """REF-1: a block is in the free queue exactly when no table, batch, due copy or hold from outside holds it."""
    return all((block in state.queue) == (holders(state, block) == 0) for block in range(1, state.config.num_blocks))


def law_queue_is_ordered(state: State) -> bool:
    """QUEUE-1: the free queue holds no block twice, and blocks without content stand before candidates."""
    candidates = tuple(key(state, block) is not None for block in state.queue)
    return len(set(state.queue)) == len(state.queue) and candidates == tuple(sorted(candidates))


def law_null_is_nothing(state: State) -> bool:
    """NULL-1: the null block is never queued, never published and never written."""
    return NULL not in state.queue and key(state, NULL) is None and state.contents[NULL] is None


def law_key_is_single(state: State) -> bool:
    """KEY-1: a block is published as one thing at most, with units as each length once, without caching as nothing."""
    has_parts = stride(state.config) > 0
    as_what = tuple((block, len(prefix[1]) if has_parts else 0) for block, (_, prefix) in state.keys)
    return len(set(as_what)) == len(as_what) and (state.config.caching or not as_what)


def law_key_is_content(state: State) -> bool:
    """PUB-1: a published block holds exactly what it is published as: a prefix that ends where the block ends.

    With units the prefix may end at one of them, and the block may hold more behind that, except in recurrent layers.
    """
    inside, groups = stride(state.config), state.config.groups
    return all(
        upto(state.contents[block], part(state, at, end)) == (at, cut(prefix, end))
        and end % (inside or groups[at].block_size) == 0 < end
        and (end - 1) // groups[at].block_size == (length_in(state, block) - 1) // groups[at].block_size
        for block, (at, prefix) in state.keys
        for end in (len(prefix[1]) - num_ahead(state.config),)
    )


def length_in(state: State, block: int) -> int:
    """Count the tokens of the prefix that a block holds the end of."""
    content = state.contents[block]
    return len(content[1][1]) if content else 0


def part(state: State, at: int, length: int) -> int:
    """Return how much of what a block of a group holds is read where it serves `length` tokens: a state is whole."""
    is_state = isinstance(state.config.groups[at].kind, Mamba)
    return state.config.max_model_len if is_state or not stride(state.config) else length


def law_free_is_findable_or_empty(state: State) -> bool:
    """GHOST-1: a free block that is not published holds nothing readable."""
    return all(state.contents[block] is None or key(state, block) is not None for block in state.queue)


def asked(state: State) -> frozenset[Prefix]:
    """Return the prefixes a lookup may be asked for here: those of requests, and published ones and a token more."""
    known = (each.prefix for each in state.requests if state.config.caching and isinstance(each, Running | Waiting))
    return frozenset((*known, *((extra, (*tokens, 0)) for _, (_, (extra, tokens)) in state.keys)))


def readable(state: State, at: int, prefix: Prefix, position: int, length: int) -> bool:
    """Return whether some block, as it is published, serves a group's read of a position for a hit of some length.

    That is a whole block, or one that is published as exactly that length.
    """
    group = state.config.groups[at]
    whole = (position // group.block_size + 1) * group.block_size
    end = min(whole, length) if position < length else whole
    blocks = (
        block
        for block, (_, content) in state.keys
        if len(content[1]) - num_ahead(state.config) == end and continues(state.config, prefix, content)
    )
    return any(shows(group, at, upto(state.contents[each], part(state, at, end)), prefix, position) for each in blocks)


def law_hit_is_sound(state: State) -> bool:
    """HIT-1: a hit gives, for every position that a later token reads, a block with exactly that prefix.

    Of a block in which the hit ends, that is the part before its end.
    """
    return all(
        shows(group, at, upto(state.contents[block], part(state, at, hit.length)), prefix, position)
        for prefix, hit in ((prefix, found(state, prefix, LRU)) for prefix in asked(state))
        for at, group in enumerate(state.config.groups)
        for position in needed(group.kind, hit.length)
        for block in (heads(state.config, hit)[at][position // group.block_size],)
    )


def suits(state: State, prefix: Prefix, length: int) -> bool:
    """Return whether every group could read what the token at `length` reads, and its margin, and keys are known."""
    extra = tuple(margin(group, state.config.eagle) for group in state.config.groups)
    return max(extra) + length <= keyed(state.config, prefix) and all(
        readable(state, at, prefix, position, length)
        for at, group in enumerate(state.config.groups)
        for position in (*needed(group.kind, length), *range(length, length + extra[at]))
    )


def law_hit_is_longest(state: State) -> bool:
    """HIT-2: no longer length, aligned in every group or to a unit, could be read, with its margin and a token left.

    That is, none that has room (LIVE-1).
    """
    return not any(
        suits(state, prefix, length)
        for prefix in asked(state)
        for hit in (found(state, prefix, LRU).length,)
        for length in hit_lengths(state.config, len(prefix[1]))
        if length > hit and has_room(state.config, len(prefix[1]), length)
    )


def law_hit_is_cut(state: State) -> bool:
    """HIT-4: a hit of at most so many tokens is the longest of no more that could be read, if that has room."""
    return all(
        found(state, prefix, LRU, most).length == (longest if has_room(state.config, len(prefix[1]), longest) else 0)
        for prefix in asked(state)
        for lengths in (hit_lengths(state.config, len(prefix[1])),)
        for most in lengths[1:-1]
        for longest in (max(end for end in lengths if end <= most and (end == 0 or suits(state, prefix, end))),)
    )


def law_hit_leaves_a_token(state: State) -> bool:
    """HIT-3: a hit is aligned in every group or to a unit, and leaves a token to compute and its draft margin."""
    margins = (margin(group, state.config.eagle) for group in state.config.groups)
    extra = max(1, num_ahead(state.config), *margins)
    lengths = ((len(prefix[1]), found(state, prefix, LRU).length) for prefix in asked(state))
    return all(length <= max(0, known - extra) and length % aligned(state.config) == 0 for known, length in lengths)
