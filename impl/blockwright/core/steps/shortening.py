"""Slots that are given back before their step has run, while the request goes on."""

from __future__ import annotations

from mypy_extensions import i64

from blockwright.core.keys.packed import cut_to
from blockwright.core.keys.request import Request
from blockwright.core.steps.giving_up import give_up
from blockwright.core.steps.preconditions import reach
from blockwright.core.steps.publication import hear, leaves_due
from blockwright.core.steps.state import State
from blockwright.core.tables.table import RequestTables
from blockwright.errors import InvalidArgumentError, UnknownStepError, UnsupportedError


def shorten(state: State, request: Request, tables: RequestTables, count: i64) -> None:
    """Give back the slots behind `count` tokens of a request's last step, which has not run: ``shorten``.

    O(entries given back), and as `give_up` for what was published there. law: GIVEN-1, GIVEN-3.
    """
    check_shorter(state, request, tables, count)
    hear(state, request, tables, request._num_computed)
    known: i64 = request._num_prompt + i64(len(request._output))
    state.listeners.goes_on(tables, tables.num_settled)
    is_whole = count == max(tables.num_settled, request._num_computed)
    with state:
        # Whoever began on its last block meanwhile keeps that, and the next step has it copied.
        if state.config.caching and give_up(state, tables, count):
            tables.is_forked = True
        was_due = state.due.remove(tables)
        for group, table in zip(state.groups, tables.by_group):
            stop: i64 = i64(len(table.blocks)) if group.is_encoder else group.entries_for(count)
            size: i64 = len(table.blocks)
            if stop < size and not group.is_row() and stop > 0 and table.blocks[stop - 1] == 0:
                # The block of the state to come stands where the step ends now.
                table.blocks[stop - 1] = table.blocks[size - 1]
                table.blocks[size - 1] = 0
            if stop < size:
                state.pool._release(table.blocks, stop, size)
                table.blocks = cut_to(table.blocks, stop)
            if not group.is_encoder:
                table.num_covered = min(table.num_covered, count)
            table.in_place = 0
        tables.num_written = count
        tables.num_certain = min(tables.num_certain, count)
        tables.num_given = count
        tables.num_folded = min(tables.num_folded, count)
        tables.num_drafts = min(tables.num_drafts, max(0, count - known))
        tables.in_place = request._lease = 0
        publishes = state.config.caching and not (tables.is_delayed or state.config.settles)
        if publishes and (was_due or not is_whole) and leaves_due(state, tables, request):
            state.due.add(tables)


def check_shorter(state: State, request: Request, tables: RequestTables, count: i64) -> None:
    """Check that a request's last step may end at `count` tokens."""
    name = request.request_id
    begin = max(tables.num_settled, request._num_computed)
    # Steps within a lease are heard of by the count alone.
    end = max(tables.num_written, min(request._num_computed, reach(state, tables, int(request._num_computed))))
    if tables.num_loading > 0:
        raise UnknownStepError(f"request: tokens of {name!r} are being loaded; call finish_load first")
    if state.config.overlaps:
        raise UnsupportedError(
            f"request: a step of {name!r} in flight is with the worker; settle it, or free the request"
        )
    if not begin <= count <= end:
        raise InvalidArgumentError(
            f"num_tokens: must be within {begin}..{end}, from where the last step of {name!r} began to "
            f"where it ends, not {count}"
        )
    if state.config.runs_ahead or (count == begin and state.config.most_drafts > 0):
        raise UnsupportedError(
            f"request: the state that the last step of {name!r} read may be a draft's, so the step is not given up: "
            "run it, or free the request"
        )
    if tables.checkpoint > begin:
        raise UnsupportedError(f"request: the last step of {name!r} leaves a checkpoint; run it, or free the request")
