"""Part four, chapter 3: the laws of a worker's rows and of the inputs of a step's kernels.

They are stated from the manager's side: from its tables, from what its steps write, and from the ghosts. So they hold
no less of inputs that were made in another way than chapter `inputs` defines them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ..law import listed
from ..manager.effects import target
from ..manager.facts import span
from ..manager.state import NULL, Content, Running, State, Table
from ..reads import Cross, Mamba, cut, entries, reads, shows, writes
from .inputs import Inputs, Work, end, keeps_slots, sure
from .rows import Rows, place_of, row_of


@dataclass(frozen=True, slots=True)
class Handed:
    """A step as it is handed to the kernels: the manager's state by then, the worker's rows, the work, the inputs.

    `found` is a ghost: for each request of the step, what every block held just before the request was given its slots.
    """

    state: State
    rows: Rows
    works: tuple[Work, ...]
    inputs: Inputs
    found: tuple[tuple[Content | None, ...], ...]


@dataclass(frozen=True, slots=True)
class RowCall:
    """A call on a worker's rows that happened, and the slots of the requests that it names."""

    before: Rows
    after: Rows
    named: frozenset[int]


Part = tuple[int, int, Work, Running]
"""One request of a step in one group: the number of the group, that of the request in the step, and its work."""


def parts(handed: Handed) -> Iterator[Part]:
    """Yield every request of a step, in every group."""
    return (
        (at, i, work, request)
        for i, work in enumerate(handed.works)
        for request in (handed.state.requests[work.slot],)
        if isinstance(request, Running)
        for at in range(len(handed.state.config.groups))
    )


def slots_of(handed: Handed, at: int, i: int) -> tuple[int | None, ...]:
    """Return the slots of the tokens of one request."""
    first = sum(work.new for work in handed.works[:i])
    return handed.inputs.groups[at].slots[first : first + handed.works[i].new]


def law_row_is_the_table(handed: Handed) -> bool:
    """ROW-1: the row of a request of the step is the manager's table in each group; every request with inputs runs."""
    return all(isinstance(handed.state.requests[work.slot], Running) for work in handed.works) and all(
        handed.inputs.groups[at].tables[i] == request.tables[at] for at, i, _, request in parts(handed)
    )


def law_row_is_the_requests(handed: Handed) -> bool:
    """ROW-2: row i is that of request i of the step, and no request has two rows."""
    slots = tuple(row.slot for row in handed.rows if row)
    return len(set(slots)) == len(slots) and all(
        place_of(handed.rows, work.slot) == place for place, work in enumerate(handed.works)
    )


def law_other_rows_stay(call: RowCall) -> bool:
    """ROW-3: a call changes the rows of the requests that it names; all others stay as they were, wherever they lie."""
    slots = {row.slot for rows in (call.before, call.after) for row in rows if row}
    return len(call.before) == len(call.after) and all(
        row_of(call.before, slot) == row_of(call.after, slot) for slot in slots - call.named
    )


def law_slot_is_in_its_block(handed: Handed) -> bool:
    """SLOT-1: the slot of a token is its position's place in the block that the manager's step writes, never null."""
    config = handed.state.config
    return all(
        slot == (block * size + position % size if keeps_slots(group.kind) else None)
        and (block != NULL or not keeps_slots(group.kind))
        for at, i, work, request in parts(handed)
        for group in (config.groups[at],)
        for size in (span(config, group),)
        for position, slot in zip(range(work.begin, end(work)), slots_of(handed, at, i), strict=False)
        for block in (target(request, at, group, size, position) if keeps_slots(group.kind) else NULL,)
    )


def blocks_written(handed: Handed, at: int, i: int) -> frozenset[int]:
    """Return the blocks of a group that a step writes for one request."""
    size, group = handed.state.config.groups[at].block_size, handed.inputs.groups[at]
    slots = (slot // size for slot in slots_of(handed, at, i) if slot is not None)
    return frozenset((*slots, *group.states_written[i]))


def law_slot_is_of_one_token(handed: Handed) -> bool:
    """SLOT-2: no two tokens of a step share a slot, and no two requests, nor two groups, write to one block."""
    own = tuple(tuple(slot for slot in slots_of(handed, at, i) if slot is not None) for at, i, _, _ in parts(handed))
    blocks = tuple(block for at, i, _, _ in parts(handed) for block in blocks_written(handed, at, i))
    return all(len(set(slots)) == len(slots) for slots in own) and len(set(blocks)) == len(blocks)


def law_reads_have_slots(handed: Handed) -> bool:
    """READ-2: every position that a token of a step reads lies, through the row, in a block with exactly that prefix.

    This holds once the step has written, for the token itself and for the step's other tokens, as a layer writes first.
    """
    config, contents = handed.state.config, handed.state.contents
    return all(
        entry < len(table) and table[entry] != NULL and shows(group, at, contents[table[entry]], request.prefix, place)
        for at, i, work, request in parts(handed)
        for group, table in ((config.groups[at], handed.inputs.groups[at].tables[i]),)
        if keeps_slots(group.kind)
        for position in range(work.begin, min(end(work), request.computed))
        for place in (*reads(group.kind, position), position)
        for entry in (place // group.block_size,)
    )


def law_state_is_of_the_tokens_before(handed: Handed) -> bool:
    """STATE-1: the state that is read is that after exactly the tokens before the step; at the start there is none."""
    return all(
        before(handed, at, i, work, request)
        if isinstance(handed.state.config.groups[at].kind, Mamba) and work.begin > 0
        else handed.inputs.groups[at].states_read[i] == NULL
        for at, i, work, request in parts(handed)
    )


def before(handed: Handed, at: int, i: int, work: Work, request: Running) -> bool:
    """Return whether the state that is read was there before the step: in its block, or in that it is copied from.

    A state after tokens that are not known yet cannot be distinguished from another.
    """
    copied_from = {copy: source for source, copy in handed.inputs.groups[at].copies}
    block = handed.inputs.groups[at].states_read[i]
    content = handed.found[i][copied_from.get(block, block)]
    return block != NULL and (work.begin > request.computed or content == (at, cut(request.prefix, work.begin)))


def law_states_have_own_blocks(handed: Handed) -> bool:
    """STATE-2: a step writes the state after its certain tokens, and after each draft, to the manager's blocks."""
    config = handed.state.config
    return all(
        handed.inputs.groups[at].states_written[i]
        == tuple(target(request, at, group, span(config, group), place) for place in places)
        and NULL not in handed.inputs.groups[at].states_written[i]
        for at, i, work, request in parts(handed)
        for group in (config.groups[at],)
        for last in (writes(group.kind, work.begin, sure(work)),)
        for places in ((*last, *range(sure(work), end(work))) if isinstance(group.kind, Mamba) else (),)
    )


def law_state_is_not_written_by_another(handed: Handed) -> bool:
    """STATE-3: no request reads a state that another one of the step writes: states are read and written at once."""
    return not any(
        handed.inputs.groups[at].states_read[i] in blocks_written(handed, other, j)
        for at, i, _, _ in parts(handed)
        for other, j, _, _ in parts(handed)
        if i != j
    )


def law_tokens_are_in_line(handed: Handed) -> bool:
    """LEN-2: tokens follow one another, request after request, from the computed tokens up to the lengths."""
    inputs, works = handed.inputs, handed.works
    ends = zip(inputs.starts, inputs.starts[1:], strict=False)
    tokens = tuple(inputs.positions[first:last] for first, last in ends)
    return (
        inputs.starts[0] == 0
        and {len(inputs.positions), *(len(group.slots) for group in inputs.groups)} == {inputs.starts[-1]}
        and tokens == tuple(tuple(range(work.begin, end(work))) for work in works)
        and inputs.computed == tuple(work.begin for work in works)
        and inputs.lengths == tuple(end(work) for work in works)
    )


def law_copies_come_first(handed: Handed) -> bool:
    """COPY-3: every copy that the manager reports is made before the step, in its group."""
    return all(
        group.copies == tuple(copy[1:] for copy in handed.state.copies if copy[0] == at)
        for at, group in enumerate(handed.inputs.groups)
    )


def law_encoder_has_slots(handed: Handed) -> bool:
    """CROSS-2: all that an encoder left for a request has slots, through its row in each cross-attention group."""
    config = handed.state.config
    return all(
        handed.inputs.encoder[i] == request.beside
        and (not isinstance(group.kind, Cross) or covering(table, entries(group.block_size, request.beside)))
        for at, i, _, request in parts(handed)
        for group, table in ((config.groups[at], handed.inputs.groups[at].tables[i]),)
    )


def covering(table: Table, count: int) -> bool:
    """Return whether a table has at least this number of entries, and no null among them."""
    return len(table) >= count and NULL not in table[:count]


INPUT_LAWS = (
    listed(law_row_is_the_table, "vLLM GPUModelRunner._update_states; known bug B33"),
    listed(law_row_is_the_requests, "vLLM InputBatch.req_id_to_index, swap_states"),
    listed(law_slot_is_in_its_block, "vLLM BlockTable.compute_slot_mapping"),
    listed(law_slot_is_of_one_token, "PagedAttention (Kwon et al., 2023), section 4.4"),
    listed(law_reads_have_slots, "the central law, READ-1, for every token of a step"),
    listed(law_state_is_of_the_tokens_before, "vLLM MambaManager; mamba state indices"),
    listed(law_states_have_own_blocks, "vLLM MambaSpec.num_speculative_blocks"),
    listed(law_state_is_not_written_by_another, "chapter `reads`: a state is read and written at once"),
    listed(law_tokens_are_in_line, "vLLM query_start_loc, seq_lens"),
    listed(law_copies_come_first, "PagedAttention (Kwon et al., 2023), section 4.4; known bug B51"),
    listed(law_encoder_has_slots, "vLLM CrossAttentionManager"),
)
"""Every law of what a step hands to the kernels."""

ROW_LAWS = (listed(law_other_rows_stay, "vLLM InputBatch.condense, swap_states"),)
"""Every law of calls on a worker's rows."""
