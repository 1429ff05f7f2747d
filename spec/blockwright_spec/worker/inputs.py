"""Part four, chapter 2: the inputs of a step's kernels, by rows and by the positions that a token reads and writes.

A kernel knows no requests, only numbers: the slot in which the key and value of each token are kept, the block with the
state that a recurrent layer goes on from, and the row through which all earlier positions are found.
"""

from dataclasses import dataclass, replace

from ..manager.facts import span
from ..manager.state import NULL, Config, Copy, Table
from ..reads import Cross, Kind, Mamba, entries, reads, writes
from .rows import Row, RowRefusal, Rows, row_of


@dataclass(frozen=True, slots=True)
class Work:
    """The part of a step for one request: `new` tokens from `begin` on, the last `drafts` of them drafts."""

    slot: int
    begin: int
    new: int
    drafts: int = 0


@dataclass(frozen=True, slots=True)
class GroupInputs:
    """The inputs of one group's layers: the `tables` of the step's requests, in order, and where to write.

    `slots` has one for each token of the step, None where the group keeps none; `states_read` one block for each
    request, null where there is no state; `states_written` the blocks for the state after a request's last certain
    token and after each of its drafts. `copies` are made before the step.
    """

    tables: tuple[Table, ...]
    slots: tuple[int | None, ...]
    states_read: Table
    states_written: tuple[Table, ...]
    copies: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a step's kernels: the tokens of all its requests in one line.

    Those of request i are the tokens starts[i] .. starts[i + 1] - 1; `computed` positions are before them, and
    `lengths` up to their end. `encoder` tokens are read by cross-attention.
    """

    groups: tuple[GroupInputs, ...]
    positions: tuple[int, ...]
    starts: tuple[int, ...]
    computed: tuple[int, ...]
    lengths: tuple[int, ...]
    encoder: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PageList:
    """The pages of a step's requests in one line: those of request i are pages[starts[i]] .. pages[starts[i + 1] - 1].

    `last` tokens are in the last page of each, and none where a request has no tokens.
    """

    starts: tuple[int, ...]
    pages: Table
    last: tuple[int, ...]


def page_list(size: int, tables: tuple[Table, ...], lengths: tuple[int, ...]) -> PageList:
    """Return the pages of `size` tokens with the first `lengths` positions of each request."""
    counts = tuple(entries(size, length) for length in lengths)
    return PageList(
        tuple(sum(counts[:row]) for row in range(len(counts) + 1)),
        tuple(block for table, count in zip(tables, counts, strict=True) for block in table[:count]),
        tuple(length - max(count - 1, 0) * size for length, count in zip(lengths, counts, strict=True)),
    )


def end(work: Work) -> int:
    """Return the end of the tokens that are computed."""
    return work.begin + work.new


def sure(work: Work) -> int:
    """Return the end of those of them that are certain."""
    return end(work) - work.drafts


def keeps_slots(kind: Kind) -> bool:
    """Return whether a layer keeps a slot for each token: a state is kept whole, an encoder writes its own tokens."""
    return not isinstance(kind, Mamba | Cross)


def block_at(size: int, table: Table, position: int) -> int:
    """Return the block of a position, `size` of them to an entry: null where the table has none."""
    return next(iter(table[position // size : position // size + 1]), NULL)


def slot_at(size: int, table: Table, position: int) -> int | None:
    """Return the slot of a position: its place in the block that its entry names, if there is one (SLOT-1)."""
    block = block_at(size, table, position)
    return block * size + position % size if block != NULL else None


def states_of_drafts(row: Row, at: int, first: int, count: int) -> Table:
    """Return the blocks with the states of some drafts, the first of all having number 0; null where there is none."""
    return tuple(block_at(1, row.states[at], draft) for draft in range(first, first + count))


def state_read(kind: Kind, size: int, row: Row, at: int, begin: int) -> int:
    """Return the block with the state that is read at `begin`, null at the start (STATE-1).

    It is in the entry of the last token before, and that of an accepted draft in the draft's own block (MAMBA-3).
    """
    accepted = 0 if row.certain is None else begin - row.certain
    if accepted > 0:
        return states_of_drafts(row, at, accepted - 1, 1)[0]
    return next((block_at(size, row.tables[at], position) for position in reads(kind, begin)), NULL)


def states_written(kind: Kind, size: int, row: Row, at: int, work: Work) -> Table:
    """Return the blocks for the states that a step leaves: after its certain tokens, and after each draft (STATE-2)."""
    own = tuple(block_at(size, row.tables[at], position) for position in writes(kind, work.begin, sure(work)))
    return own + states_of_drafts(row, at, 0, work.drafts)


def share(config: Config, at: int, row: Row, work: Work) -> GroupInputs:
    """Return the inputs of a group's layers for one request."""
    group, table = config.groups[at], row.tables[at]
    kind, size, tokens = group.kind, span(config, group), range(work.begin, end(work))
    slots = tuple(slot_at(size, table, position) if keeps_slots(kind) else None for position in tokens)
    if not isinstance(kind, Mamba):
        return GroupInputs((table,), slots, (NULL,), ((),), ())
    read = state_read(kind, size, row, at, work.begin)
    return GroupInputs((table,), slots, (read,), (states_written(kind, size, row, at, work),), ())


def lacks(config: Config, at: int, row: Row, work: Work) -> bool:
    """Return whether something that a step writes, or a state that it goes on from, has no block."""
    kind, own = config.groups[at].kind, share(config, at, row, work)
    if isinstance(kind, Mamba) and work.new > 0:
        return NULL in own.states_written[0] or (work.begin > 0 and NULL in own.states_read)
    return keeps_slots(kind) and None in own.slots


def unfit(config: Config, rows: Rows, works: tuple[Work, ...]) -> RowRefusal | None:
    """Refuse a step without defined inputs."""
    mine = tuple((row_of(rows, work.slot), work) for work in works)
    if len({work.slot for work in works}) < len(works):
        return RowRefusal.REPEATED
    if any(row is None for row, _ in mine):
        return RowRefusal.NO_ROW
    if any(min(work.begin, work.new, work.drafts) < 0 or work.drafts >= max(work.new, 1) for work in works):
        return RowRefusal.WRONG_COUNT
    groups = range(len(config.groups))
    is_short = any(lacks(config, at, row, work) for row, work in mine if row for at in groups)
    return RowRefusal.NO_BLOCK if is_short else None


def inputs(config: Config, rows: Rows, works: tuple[Work, ...], copies: tuple[Copy, ...]) -> Inputs | RowRefusal:
    """Return the inputs of a step's kernels, with the manager's copies: ``step``."""
    # REFUSE
    if refusal := unfit(config, rows, works):
        return refusal
    # EFFECT
    mine = tuple((row, work) for work in works for row in rows if row and row.slot == work.slot)
    return Inputs(
        groups=tuple(joined(config, at, mine, copies) for at in range(len(config.groups))),
        positions=tuple(position for work in works for position in range(work.begin, end(work))),
        starts=tuple(sum(work.new for work in works[:count]) for count in range(len(works) + 1)),
        computed=tuple(work.begin for work in works),
        lengths=tuple(end(work) for work in works),
        encoder=tuple(row.encoder for row, _ in mine),
    )
    # SAME: the rows, but for what the next step must know of this one (`stepped`).


def joined(config: Config, at: int, mine: tuple[tuple[Row, Work], ...], copies: tuple[Copy, ...]) -> GroupInputs:
    """Return the inputs of a group's layers for all requests of a step, one after another."""
    shares = tuple(share(config, at, row, work) for row, work in mine)
    return GroupInputs(
        tables=tuple(table for each in shares for table in each.tables),
        slots=tuple(slot for each in shares for slot in each.slots),
        states_read=tuple(block for each in shares for block in each.states_read),
        states_written=tuple(blocks for each in shares for blocks in each.states_written),
        copies=tuple(copy[1:] for copy in copies if copy[0] == at),
    )


def stepped(rows: Rows, works: tuple[Work, ...]) -> Rows:
    """Return the rows after a step: they know where its certain tokens stopped."""
    stops = {work.slot: sure(work) for work in works if work.new > 0}
    return tuple(replace(row, certain=stops.get(row.slot, row.certain)) if row else None for row in rows)
