"""Part one, chapter 19: the laws of block tables: what they must hold for the next token, and what they must not."""

from collections.abc import Iterator

from ..reads import Ahead, Cross, Full, Group, Mamba, cut, dead, positions, reads, shows, states_beside, states_within
from .facts import covers, key, keys_of, owned, resumed, running, sharers, span
from .hits import useful
from .keys import end_of, is_longer, named, upto
from .outcomes import given
from .publication import is_private
from .state import NULL, Running, State, Table


def tables(state: State) -> Iterator[tuple[Running, int, Group, Table]]:
    """Return each block table, with its request and its group."""
    return (
        (request, at, group, request.tables[at])
        for request in running(state)
        for at, group in enumerate(state.config.groups)
    )


def held(state: State) -> Iterator[tuple[Running, int, int, int]]:
    """Return each block that a table holds, with its request, the number of its group, and its entry."""
    return (
        (request, at, entry, block)
        for request, at, _, table in tables(state)
        for entry, block in enumerate(table)
        if block != NULL
    )


def spans(state: State) -> tuple[int, ...]:
    """Return, per group, the positions that a table entry covers."""
    return tuple(span(state.config, group) for group in state.config.groups)


def law_reads_are_there(state: State) -> bool:
    """READ-1: every known position that the next token reads lies in a block whose content is exactly that prefix."""
    return all(
        any(
            shows(Group(group.kind, span(state.config, group)), at, state.contents[block], request.prefix, position)
            for block in serving(state, request, at, position)
        )
        for request, at, group, _ in tables(state)
        if not request.is_lost
        for position in reads(group.kind, following(state, request))
        if position < request.computed
    )


def following(state: State, request: Running) -> int:
    """Return the next token of a request: it goes on from what was said to be done or is being loaded, known or not."""
    if request.coming:
        return resumed(request.prefix, request.written + request.coming)
    return request.written if state.config.overlaps else max(request.computed, request.settled)


def serving(state: State, request: Running, at: int, position: int) -> Table:
    """Return the blocks where a position may be read: its entry's, and those for states of drafts (MAMBA-3)."""
    entry = position // span(state.config, state.config.groups[at])
    states = request.states
    return request.tables[at][entry : entry + 1] + (states[at] if states else ())


def law_dead_is_null(state: State) -> bool:
    """TRIM-1: an entry that was dead when the table was last trimmed is null."""
    groups, size = state.config.groups, spans(state)
    return not any(dead(groups[at].kind, size[at], request.trimmed, entry) for request, at, entry, _ in held(state))


def law_null_is_dead(state: State) -> bool:
    """TRIM-2: an entry is null only if it was dead at the last trim or a state was carried across it."""
    return all(
        dead(group.kind, span(state.config, group), request.trimmed, entry) or jumped(state, request, group, entry)
        for request, _, group, table in tables(state)
        for entry, block in enumerate(table)
        if block == NULL
    )


def jumped(state: State, request: Running, group: Group, entry: int) -> bool:
    """Return whether neither the state last read nor the last one that is certain stops in an entry before the end.

    Where drafts were accepted, the state last read is one of theirs, in a block of its own (MAMBA-3).
    """
    if not isinstance(group.kind, Mamba):
        return False
    end = given(request, group)
    stops = {end - 1} if states_beside(group.kind) or request.is_inside else {end - 1, request.trimmed - 1}
    covered = covers(state.config, group, end)
    return not stops & set(positions(span(state.config, group), entry)) and entry < covered


def law_written_is_unshared(state: State) -> bool:
    """WRITE-1: a block with slots still to be written is unpublished; if others hold it, it is just as it is for them.

    A fork shares a partial block with its parent: it holds exactly what both have written, until one of them goes on.
    With units such a block may be published as a part that is written.
    """
    size = spans(state)
    own = tuple(not isinstance(group.kind, Cross) for group in state.config.groups)
    unwritten = (each for each in held(state) if own[each[1]] and (each[2] + 1) * size[each[1]] > each[0].computed)
    states = (block for request in running(state) for blocks in request.states for block in blocks)
    return all(sharers(state, block) == 1 and key(state, block) is None for block in states) and all(
        all(end_of(state.config, content) <= request.computed for content in keys_of(state, block))
        and (sharers(state, block) == 1 or state.contents[block] == (at, cut(request.prefix, request.computed)))
        for request, at, _, block in unwritten
    )


def law_full_is_published(state: State) -> bool:
    """PUB-2: of the entries looked at, exactly those that a hit can need are published: full blocks, the last state."""
    # Forks that part behind a block share it under the key of the one that went on first (PUB-4).
    config, size = state.config, tuple(group.block_size for group in state.config.groups)
    recurrent = tuple(isinstance(group.kind, Mamba) for group in config.groups)
    return all(
        tuple(upto(each, end) for each in keys_of(state, block) if end_of(config, each) == end)
        == ((upto(named(config, at, request.prefix, end), end),) if useful(config, at, entry) else ())
        for request, at, entry, block in held(state)
        for end in ((entry + 1) * size[at],)
        if not is_private(config, request)
        if entry < request.published[at] and (not recurrent[at] or end == request.computed)
    )


def law_table_covers(state: State) -> bool:
    """TABLE-1: a table covers the slots given to its request, and no slot beyond the model's maximum length."""
    config = state.config
    return all(
        covers(config, group, given(request, group))
        <= len(table)
        <= covers(config, group, config.max_model_len) + states_within(group.kind)
        for request, _, group, table in tables(state)
        if not isinstance(group.kind, Cross)
    )


def law_table_is_distinct(state: State) -> bool:
    """TABLE-2: a request holds no block twice, in whichever groups."""
    blocks = (tuple(block for table in owned(each) for block in table if block != NULL) for each in running(state))
    return all(len(set(own)) == len(own) for own in blocks)


def computing(state: State) -> tuple[Running, ...]:
    """Return the requests that run and do not wait for a load."""
    return tuple(request for request in running(state) if request.coming == 0)


def common_prefix_blocks(state: State, slot: int, group: int, num_running: int) -> int:
    """Count the leading blocks of a group that are in the tables of exactly `num_running` requests that compute.

    None unless all is read. Whatever else holds a block (a load, a batch, a copy, the engine itself) reads no prefix.
    """
    request, others = state.requests[slot], computing(state)
    is_full = isinstance(state.config.groups[group].kind, Full)
    if not isinstance(request, Running) or request.coming or not is_full:
        return 0
    same = (sum(block in other.tables[group] for other in others) == num_running for block in request.tables[group])
    return (*same, False).index(False)


def law_common_is_shared(state: State) -> bool:
    """COMMON-1: where all is read, the blocks common to all requests that compute are the head their tables share."""
    others = computing(state)
    return all(
        common_prefix_blocks(state, slot, at, len(others))
        == (*(len(set(row)) == 1 for row in rows), False).index(False)
        for slot, request in enumerate(state.requests)
        for at, group in enumerate(state.config.groups)
        if request in others and isinstance(group.kind, Full)
        for rows in (zip(*(other.tables[at] for other in others), strict=False),)
    )


def law_states_are_two(state: State) -> bool:
    """MAMBA-1: of a recurrent layer a request holds at most the state last read and the state last written.

    With steps in flight there are more, until they are settled, and in a layer that runs ahead (MAMBA-6). One inside is
    one more, until it is published or given up and the next step has begun (MAMBA-7): so beside a new one there may
    be that of the step before.
    """
    return state.config.overlaps or all(
        len(table) - table.count(NULL) <= (4 if request.inside else 2)
        for request, _, group, table in tables(state)
        if isinstance(group.kind, Mamba) and not isinstance(group.kind, Ahead)
    )


def law_state_is_single(state: State) -> bool:
    """MAMBA-2: a recurrent layer that caches nothing holds one block per request and one per draft within its table."""
    return state.config.caching or all(
        (len(table) == 1 + states_within(group.kind) and NULL not in table) or (not table and not request.written)
        for request, _, group, table in tables(state)
        if isinstance(group.kind, Mamba)
    )


def law_counts_are_ordered(state: State) -> bool:
    """LEN-1: trimmed, settled, computed and written counts are in order, within the tokens and the maximum length.

    Tokens may be said to be done before they are known; once they are, they count as computed.
    """
    return all(
        0 <= request.trimmed <= request.settled + request.coming
        and request.settled <= request.written
        and min(request.settled, len(request.prefix[1])) <= request.computed
        and request.computed <= min(request.written, len(request.prefix[1]))
        and (is_private(state.config, request) or request.published[at] * group.block_size <= request.computed)
        and request.written + request.coming <= state.config.max_model_len
        for request, at, group, _ in tables(state)
    )


def law_state_found_has_run(state: State) -> bool:
    """MAMBA-5: a recurrent state is not found while the step that writes it has still to run, or is the open one."""
    groups, size = state.config.groups, spans(state)
    return not any(
        isinstance(groups[at].kind, Mamba) and (entry + 1) * size[at] > run and is_longer(state, block, run)
        for slot, request in enumerate(state.requests)
        if isinstance(request, Running)
        for run in (has_run(state, slot, request),)
        for at, table in enumerate(request.tables)
        for entry, block in enumerate(table)
        if block != NULL
    )


def has_run(state: State, slot: int, request: Running) -> int:
    """Count the tokens of a request that are computed before the step that slots are given in now."""
    if not state.config.overlaps:
        return request.settled
    opened = (flight.start for step in state.flights[-1:] for flight in step if flight.slot == slot)
    return next(opened, request.written)
