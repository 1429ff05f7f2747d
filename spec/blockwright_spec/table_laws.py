"""Chapter 10: the laws of block tables: what they must hold for the next token, and what they must not."""

from collections.abc import Iterator

from .reads import Mamba, cut, dead, positions, reads, shows
from .state import NULL, Running, State, covers, holders, key, running, span


def held(state: State) -> Iterator[tuple[Running, int, int]]:
    """Give each block that a table holds, with its request and entry."""
    return (
        (request, entry, block)
        for request in running(state)
        for entry, block in enumerate(request.table)
        if block != NULL
    )


def law_reads_are_there(state: State) -> bool:
    """READ-1: every position that the next token reads lies in a block whose content is exactly that prefix."""
    kind, size = state.config.kind, span(state.config)
    return all(
        shows(kind, size, state.contents[request.table[position // size]], request.prefix, position)
        for request in running(state)
        for position in reads(kind, request.computed)
    )


def law_dead_is_null(state: State) -> bool:
    """TRIM-1: an entry that was dead when the table was last trimmed is null."""
    kind, size = state.config.kind, span(state.config)
    return not any(dead(kind, size, request.settled, entry) for request, entry, _ in held(state))


def law_null_is_dead(state: State) -> bool:
    """TRIM-2: an entry is null only if it was dead at the last trim or a state was carried across it."""
    kind, size = state.config.kind, span(state.config)
    return all(
        dead(kind, size, request.settled, entry) or jumped(state, request, entry)
        for request in running(state)
        for entry, block in enumerate(request.table)
        if block == NULL
    )


def jumped(state: State, request: Running, entry: int) -> bool:
    """Tell whether neither the state last read nor the one last written stops in an entry before the computed ones."""
    if not isinstance(state.config.kind, Mamba):
        return False
    stops = {request.settled - 1, request.computed - 1}
    return not stops & set(positions(span(state.config), entry)) and entry < covers(state.config, request.computed)


def law_written_is_unshared(state: State) -> bool:
    """WRITE-1: a block with slots still to be written has one holder and is not published."""
    size = span(state.config)
    return all(
        holders(state, block) == 1 and key(state, block) is None
        for request, entry, block in held(state)
        if (entry + 1) * size > request.computed
    )


def law_full_is_published(state: State) -> bool:
    """PUB-2: of the entries looked at for publication, every full block, and a state that ends there, is published."""
    size, recurrent = state.config.block_size, isinstance(state.config.kind, Mamba)
    return all(
        key(state, block) == cut(request.prefix, (entry + 1) * size)
        for request, entry, block in held(state)
        if entry < request.published and (not recurrent or (entry + 1) * size == request.computed)
    )


def law_table_covers(state: State) -> bool:
    """TABLE-1: a table covers the slots given to its request, and no slot beyond the model's maximum length."""
    longest = covers(state.config, state.config.max_model_len)
    return all(covers(state.config, request.written) <= len(request.table) <= longest for request in running(state))


def law_table_is_distinct(state: State) -> bool:
    """TABLE-2: a table holds no block twice."""
    tables = (tuple(block for block in request.table if block != NULL) for request in running(state))
    return all(len(set(table)) == len(table) for table in tables)


def law_states_are_two(state: State) -> bool:
    """MAMBA-1: of a recurrent layer a request holds at most the state last read and the state last written."""
    tables = (request.table for request in running(state))
    return not isinstance(state.config.kind, Mamba) or all(len(table) - table.count(NULL) <= 2 for table in tables)


def law_state_is_single(state: State) -> bool:
    """MAMBA-2: a recurrent layer that caches nothing holds one block per request, whatever its length."""
    single = isinstance(state.config.kind, Mamba) and not state.config.caching
    return not single or all(len(request.table) == 1 and NULL not in request.table for request in running(state))


def law_counts_are_ordered(state: State) -> bool:
    """LEN-1: settled, computed and written counts are in order, and within the tokens and the maximum length."""
    return all(
        0 <= request.settled <= request.computed <= min(request.written, len(request.prefix[1]))
        and request.published * state.config.block_size <= request.computed
        and request.written <= state.config.max_model_len
        for request in running(state)
    )
