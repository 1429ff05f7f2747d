"""Forks: a request that goes on from where another is, on the same blocks.

A fork shares every block of its parent, a partial one included. Whichever of them writes to that first has it copied
(`effects.unshare`): a new block, and a copy that the engine runs before its step. Or the child has its own at once.
"""

from __future__ import annotations

from mypy_extensions import i64

from blockwright.core.keys.request import Request
from blockwright.core.pool.blocks import KVCacheBlocks
from blockwright.core.steps.effects import undo
from blockwright.core.steps.preconditions import check_keys, reach, refuse_lost, tables_of, tables_running
from blockwright.core.steps.publication import publish_due
from blockwright.core.steps.state import State
from blockwright.core.steps.units import reserve_tails
from blockwright.core.tables.table import GroupTable, RequestTables, held_blocks
from blockwright.errors import DuplicateRequestError, InvalidArgumentError, UnknownStepError, UnsupportedError


def fork(state: State, parent: Request, child: Request) -> KVCacheBlocks | None:
    """Start `child` on the blocks of `parent`, or return None. See `KVCacheManager.fork`. law: WRITE-1, REF-1."""
    return start_fork(state, parent, child, None)


def fork_with_copies(state: State, parent: Request, child: Request) -> list[list[tuple[int, int]]] | None:
    """Do the same, and return the copies for `child`. See `KVCacheManager.fork_with_copies`. law: FORK-1."""
    copies: list[list[tuple[int, int]]] = [[] for _ in state.groups]
    return None if start_fork(state, parent, child, copies) is None else copies


def start_fork(
    state: State, parent: Request, child: Request, copies: list[list[tuple[int, int]]] | None
) -> KVCacheBlocks | None:
    """Start a fork; with `copies`, on blocks of its own where it goes on to write, which are noted there."""
    tables = tables_running(state, parent)
    computed: i64 = check_fork(state, parent, tables, child)
    own: list[int] = []  # per group, the entry that is copied now, or -1
    demand: i64 = 0
    for group in state.groups:
        entry: i64 = -1
        if copies is not None and computed < state.config.max_len:
            entry = group.written_at(computed)
        own.append(int(entry))
        demand += group.num_states + (1 if entry >= 0 else 0)
    if demand > state.pool._num_free:
        return None
    has_begun = False
    reserve_tails(state, tables)
    state.listeners.begins()
    try:
        by_group: list[GroupTable] = []
        for group, table in zip(state.groups, tables.by_group):
            twin = group.fork_table(table, computed)
            group.open(child._request_id, twin)
            by_group.append(twin)
        new = RequestTables(child, state.owner, by_group)
        new.tenant = tables.tenant
        new.wants = tables.wants
        new.wants_end = tables.wants_end
        new.wants_output = tables.wants_output
        new.tails = tables.tails
        new.end_tails = tables.end_tails
        new.is_delayed = tables.is_delayed
        new.num_folded = tables.num_folded
        new.checkpoint = tables.checkpoint
        state.running[child._request_id] = new
        given = KVCacheBlocks(state.pool, [table.blocks[:] for table in by_group])
        for at, mine in enumerate(own):
            if mine >= 0:
                by_group[at].blocks[mine] = 0  # not to be held with the others
        has_begun = True
        state.pool._serve(tables.tenant)
        state.listeners.goes_on(new, tables.num_settled)
        for group, table in zip(state.groups, by_group):
            group.share(table.blocks)
        for at, mine in enumerate(own):
            if copies is not None and mine >= 0:
                state.pool._fill(by_group[at].blocks, mine, mine + 1)
                copies[at].append((int(given.ids[at][mine]), int(by_group[at].blocks[mine])))
                given.ids[at][mine] = by_group[at].blocks[mine]
        for group, table in zip(state.groups, by_group):
            group.fill_states(table)
        # The step that left the state has run, because a parent in a step in flight cannot be forked.
        publish_due(state, tables, parent)
        for table, twin in zip(tables.by_group, by_group):
            # Copied after the due state was published, or the child would publish it again.
            twin.num_published = table.num_published
        new.num_tails = tables.num_tails
        state.num_forks += 1
        tables.num_written = computed
        tables.num_certain = computed
        if not state.config.overlaps:
            tables.num_settled = computed
            tables.num_given = computed
        tables.num_drafts = 0
        tables.is_forked = True
        # The parent's next step may write to a block that is shared now, so it must take the careful way.
        tables.in_place = 0
        parent._lease = child._lease = 0
        new.num_written = computed
        new.num_certain = computed
        new.num_settled = tables.num_settled
        new.num_given = computed
        new.trim_at = tables.trim_at
        new.is_forked = True
        child._held = new
        child._was_admitted = True
        state.listeners.forked(child, new)
    except BaseException:
        undo(state, child, None, state.changes, has_begun)
        raise
    return given


def check_fork(state: State, parent: Request, tables: RequestTables, child: Request) -> i64:
    """Check that a request can start where another is; return the tokens it starts with."""
    name = parent.request_id
    if tables_of(state, child) is not None:
        raise DuplicateRequestError(f"child: {child.request_id!r} runs already; fork to a request of another id")
    if tables.num_loading > 0:
        raise InvalidArgumentError(f"parent: tokens of {name!r} are being loaded; call finish_load first")
    refuse_lost(tables)
    computed = parent._num_computed
    known = min(reach(state, tables, int(computed)), parent.num_tokens)
    if state.config.overlaps:
        if state.is_in_flight(tables):
            raise UnknownStepError(f"parent: a step in flight computes tokens of {name!r}; settle it first")
        if known < int(tables.num_written):
            raise InvalidArgumentError(f"parent: append the settled tokens of {name!r} first")
    if not int(tables.num_certain) <= computed <= known:
        raise InvalidArgumentError(
            f"num_computed_tokens: {name!r} has {tables.num_certain} to {known} computed tokens, not {computed}"
        )
    if state.config.runs_ahead:
        raise UnsupportedError(f"parent: the recurrent states of {name!r} run ahead (runs_ahead=True): it has no fork")
    is_elsewhere = computed <= tables.num_written and computed != tables.num_written - tables.num_drafts
    if state.config.most_drafts >= 0 and is_elsewhere:
        raise UnsupportedError(
            f"parent: the recurrent state after {computed} tokens of {name!r} is an accepted draft's, which is not "
            "shared; compute its next step before forking it"
        )
    # A block whose copy has not been run holds other data than its table says.
    if state.pool.has_copies():
        check_copied(state, name, tables)
    if child._num_computed != computed or not parent.shares_prefix(child, computed):
        raise InvalidArgumentError(
            f"child: {child.request_id!r} must have the {computed} computed tokens of {name!r}, its extra keys and "
            f"its num_computed_tokens; make it with {name}.fork(...)"
        )
    check_keys(state, child)
    return computed


def check_copied(state: State, name: str, tables: RequestTables) -> None:
    """Check that no copy to a block of a request is still to come."""
    pool = state.pool
    if any([pool.is_destination(i64(block)) for table in tables.by_group for block in table.blocks]):
        raise InvalidArgumentError(f"parent: the last step of {name!r} needs copies; run those of take_copies first")


def take_copies(state: State) -> list[list[tuple[int, int]]]:
    """Return the copies since the last call, and let go of their ends: ``take_copies``. law: COPY-1, COPY-2."""
    pool = state.pool
    pool.require_whole()
    copies: list[list[tuple[int, int]]] = [[] for _ in state.groups]
    for group, source, destination in pool.pending_copies():
        copies[group].append((source, destination))
    try:
        pool._end_copies()
    except BaseException:
        if pool._is_torn:
            state.tear()
        raise
    return copies


def num_held_alone(state: State, tables: RequestTables) -> int:
    """Return how many blocks a request alone holds: ``num_blocks_held_alone``. O(blocks). law: ALONE-1."""
    pool = state.pool
    pool.require_whole()
    count: i64 = 0
    for table in tables.by_group:
        for block in held_blocks(table):
            if block != 0 and pool.num_holds(i64(block)) == 1:
                count += 1
    return count
