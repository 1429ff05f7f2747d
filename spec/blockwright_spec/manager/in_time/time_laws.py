"""Part one, chapter 36: laws of time: of steps in flight, loads and waiting, drafts, encoders, and copies."""

from ...reads import Ahead, Cross, Mamba, cut, dead, entries, writes
from ...reads import states_beside as beside
from ..facts import certain, entries_of_states, heads, key, keys_of, running, sharers, span
from ..hits import found
from ..keys import end_of, num_ahead, stride, upto
from ..lru import LRU
from ..outcomes import Done, given
from ..pool_laws import asked
from ..preconditions import awaited
from ..publication import is_private
from ..state import NULL, Running, State
from ..table_laws import tables
from ..told import copies, saving


def law_flight_is_held(state: State) -> bool:
    """FLIGHT-1: no block that a step in flight may read or write is free."""
    return not any(
        block in state.queue
        for step in state.flights
        for flight in step
        for group, table in zip(state.config.groups, flight.tables, strict=True)
        for entry, block in enumerate(table)
        if not dead(group.kind, span(state.config, group), flight.start, entry)
    )


def law_flights_follow(state: State) -> bool:
    """SETTLE-1: what is settled, and then the steps in flight one after another, come to what was given slots."""
    return not state.config.overlaps or all(
        (request.settled, *(flight.stop for flight in own)) == (*(flight.start for flight in own), request.written)
        for slot, request in enumerate(state.requests)
        if isinstance(request, Running)
        for own in (tuple(flight for step in state.flights for flight in step if flight.slot == slot),)
    )


def law_fence_has_its_step(state: State) -> bool:
    """FENCE-1: what waits behind a fence waits for a step in flight, or for a load that has not ended."""
    return all(fence.is_coming or 0 <= fence.until < len(state.flights) for fence in state.batches) and (
        len({fence.slot for fence in state.batches if fence.is_coming})
        == sum(fence.is_coming for fence in state.batches)
    )


def law_found_is_settled(state: State) -> bool:
    """PUB-3: where publication waits for settlement, nothing that a step in flight still writes can be found.

    With units, the part of a block before what the step writes may be.
    """
    inside = stride(state.config)
    return not state.config.settles or not any(
        end_of(state.config, content) > (flight.start if inside and not isinstance(group.kind, Mamba) else 0)
        for step in state.flights
        for flight in step
        for group, table in zip(state.config.groups, flight.tables, strict=True)
        for place in writes(group.kind, flight.start, flight.stop - flight.uncertain * isinstance(group.kind, Mamba))
        for block in (table[place // span(state.config, group)],)
        if block != NULL
        for content in keys_of(state, block)
    )


def law_load_is_hidden(state: State) -> bool:
    """LOAD-1: nothing that is still being loaded can be found, and no step computes beyond it."""
    return all(
        (is_private(state.config, request) or request.published[at] * group.block_size <= request.written)
        and not any(flight.slot == slot for step in state.flights for flight in step)
        for slot, request in enumerate(state.requests)
        if isinstance(request, Running) and request.coming > 0
        for at, group in enumerate(state.config.groups)
    )


def law_load_has_own_blocks(state: State) -> bool:
    """LOAD-2: a load writes to blocks that no other request has and that nobody finds, from its first token on."""
    return all(
        sharers(state, block) == 1 and not keys_of(state, block)
        for request in running(state)
        if request.coming > 0
        for at, group in enumerate(state.config.groups)
        for block in request.tables[at][request.written // span(state.config, group) :]
        if block != NULL
    )


def law_drafts_have_states(state: State) -> bool:
    """MAMBA-3: a request has the states of its recurrent layers' drafts from its start, and drafts no further."""
    return all(
        len(request.states[at]) == beside(group.kind)
        and (not beside(group.kind) or request.uncertain <= beside(group.kind))
        for request, at, group, _ in tables(state)
    )


def law_states_ahead_are_there(state: State) -> bool:
    """MAMBA-6: a layer that runs ahead has a block for each state that any number of accepted tokens may need.

    These are the entries from that of the last settled token, or of the last prefill, to that of the last draft.
    """
    return all(
        ahead.stop <= len(table) and NULL not in table[max(kept - 1, 0) // span(state.config, group) : ahead.stop]
        for request, _, group, table in tables(state)
        if isinstance(group.kind, Ahead)
        for kept in (max(request.saved, request.trimmed),)
        for ahead in (entries_of_states(state.config, group, len(request.prefix[1]), given(request, group)),)
    )


def law_checkpoint_is_kept(state: State) -> bool:
    """MAMBA-7: the state at a checkpoint is in the entry that ends there, and stays until it is published or given up.

    It is given up when the request leaves the block behind it, so that states do not pile up (MAMBA-1).
    """
    return all(
        state.contents[request.tables[at][inside // group.block_size - 1]] == (at, cut(request.prefix, inside))
        for request, at, group, _ in tables(state)
        for inside in (awaited(state.config, request),)
        if isinstance(group.kind, Mamba) and inside
    )


def law_draft_state_is_its_own(state: State) -> bool:
    """MAMBA-4: the block for a draft's state holds the state after exactly that draft of its request, or nothing."""
    return all(
        state.contents[block] in (None, (at, cut(request.prefix, certain(request) + place + 1)))
        for request in running(state)
        for at, blocks in enumerate(request.states)
        for place, block in enumerate(blocks)
    )


def law_encoder_is_kept(state: State) -> bool:
    """CROSS-1: a cross-attention table holds a block for each block of encoder tokens, and nothing else, ever."""
    return all(
        len(table) == entries(group.block_size, request.beside) and NULL not in table
        for request, _, group, table in tables(state)
        if isinstance(group.kind, Cross)
    )


def law_copies_commute(state: State) -> bool:
    """COPY-1: of the copies to come, no destination is another's, and none is a source: their order does not matter."""
    sources, targets = {source for _, source, _ in state.copies}, [target for _, _, target in state.copies]
    return len(set(targets)) == len(targets) and not {NULL, *sources} & set(targets) and NULL not in sources


def law_copy_is_of_its_entry(before: State, done: Done) -> bool:
    """COPY-2: a copy is made from a block that another request keeps, or that is published, and leaves it as it was.

    Or from one of which a copy is to come. A state that is to be written over is copied for its key alone (UNIT-7).
    """
    saved, sources = saving(done), {source for _, source, _ in before.copies}
    return all(
        (sharers(done.state, source) > 0 or key(done.state, source) is not None or source in sources)
        and done.state.contents[source] == before.contents[source]
        for _, source, _ in copies(done)[: len(copies(done)) - len(saved)]
    ) and all(
        upto(content, end_of(before.config, content)) == before.contents[source]
        for _, source, target in saved
        for content in keys_of(done.state, target)
    )


def law_key_looks_ahead(state: State) -> bool:
    """PUB-4: a key covers the tokens behind its block that its data depends on: no hit is continued by other tokens."""
    lookahead = num_ahead(state.config)
    return all(
        (at, cut(prefix, min((entry + 1) * group.block_size, hit.length) + lookahead)) in keys_of(state, block)
        for prefix in asked(state)
        for hit in (found(state, prefix, LRU),)
        for at, group in enumerate(state.config.groups)
        for entry, block in enumerate(heads(state.config, hit)[at])
        if block != NULL
    )
