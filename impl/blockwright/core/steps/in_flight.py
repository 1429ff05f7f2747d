"""Steps that are in flight until they are settled, and tokens that are loaded from elsewhere.

A step is started, requests are given slots in it, and it runs while the next is prepared. It is settled when it is
known to be done and its rejected drafts are known: later steps then move back by their number. Blocks that a step in
flight or a load still touches are never free (law: FLIGHT-1). If their request ends meanwhile, they wait behind a
fence.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from librt.vecs import vec
from mypy_extensions import i64

from blockwright.core.keys.request import Request, count_of
from blockwright.core.steps.ending import let_go, vacate
from blockwright.core.steps.preconditions import tables_of
from blockwright.core.steps.publication import NOT_RUN, make_keys, publish_all_due, publish_due, publish_filled
from blockwright.core.steps.state import State, StepInFlight
from blockwright.core.steps.units import publish_tails, reserve_all_tails, reserve_tails
from blockwright.core.tables.table import RequestTables
from blockwright.errors import InvalidArgumentError, UnknownStepError, UnsupportedError
from blockwright.ids import id_kept


def start_step(state: State) -> int:
    """Start a step and return its number; the one before it runs first: ``start_step``. law: SETTLE-1, MAMBA-5."""
    if not state.config.overlaps:
        raise UnsupportedError("start_step: requires overlap_steps=True; otherwise each call settles the last step")
    state.pool.require_whole()
    if state.config.unit > 0:
        reserve_all_tails(state, state.due.in_order())
    steps = [*state.steps, StepInFlight(state.num_steps + 1)]
    state.listeners.begins()
    with state:
        state.steps = steps
        publish_all_due(state)
        state.num_steps += 1
        state.listeners.started(state.num_steps)
    return state.num_steps


def new_step_starts(state: State) -> None:
    """Say that a step starts, where none overlap: ``new_step_starts``. law: MAMBA-5."""
    if state.config.overlaps:
        raise UnsupportedError("new_step_starts: with overlap_steps=True a step is started by start_step")
    state.pool.require_whole()
    if state.config.unit > 0:
        reserve_all_tails(state, state.due.in_order())
    with state:
        publish_all_due(state)


def settle_step(state: State, step: int, num_rejected_tokens: Mapping[Any, int] | None) -> None:
    """Say that the oldest step in flight is done: ``settle_step``. law: SETTLE-1, FENCE-1, PUB-3."""
    if len(state.steps) == 0 or step != int(state.steps[0].number):
        none = "no step is in flight; start_step starts one, with overlap_steps=True"
        oldest = f"the oldest is {state.steps[0].number}" if state.steps else none
        raise UnknownStepError(f"step: {step} is not the oldest step in flight; {oldest}")
    state.pool.require_whole()
    done = state.steps[0]
    # Everything is checked, and every key made, before the first request changes.
    rejected = rejections(state, done, num_rejected_tokens)
    if state.config.settles:
        for tables, new in zip(done.tables, done.news):  # of requests that are gone too: it does no harm
            make_keys(state, tables.request, tables.num_settled + new)
    reserve_all_tails(state, done.tables)
    state.listeners.begins()
    with state:
        del state.steps[0]
        i: i64 = 0
        while i < i64(len(done.tables)):
            tables = done.tables[i]
            # A request that was released meanwhile has no owner: its blocks wait in the batches below.
            if tables.owner == state.owner:
                back: i64 = 0 if rejected is None else rejected[i]
                settle_request(state, tables, done.news[i], done.drafts[i], back)
            i += 1
        for left in done.fenced:
            let_go(state, left)
        state.listeners.settled(done.number)


def rejections(state: State, done: StepInFlight, given: Mapping[Any, int] | None) -> vec[i64] | None:
    """Return the rejected drafts by place in the step, checked; None if there are none."""
    if not given:
        return None
    rejected = vec[i64]([0] * len(done.tables))
    left = {id_kept(name): count for name, count in given.items()}
    i: i64 = 0
    while i < i64(len(done.tables)):
        tables = done.tables[i]
        count = operator.index(left.pop(tables.request_id, 0)) if tables.owner == state.owner else 0
        if not 0 <= count <= int(done.drafts[i]):
            raise InvalidArgumentError(
                f"num_rejected_tokens: {count} of {tables.request_id!r}, which had {done.drafts[i]} drafts in step "
                f"{done.number} (num_draft_tokens)"
            )
        rejected[i] = count
        i += 1
    if left:
        raise InvalidArgumentError(f"num_rejected_tokens: {sorted(left)} computed nothing in step {done.number}")
    return rejected


def settle_request(state: State, tables: RequestTables, new: i64, drafts: i64, back: i64) -> None:
    """Count one request's tokens of a step as settled, and publish them if that waits for it."""
    stopped = tables.num_settled + new - drafts
    tables.num_settled += new - back
    # Later steps in flight began behind the rejected drafts, so they move back by as much.
    tables.num_written -= back
    tables.num_certain = tables.num_written
    if back > 0 and not state.is_in_flight(tables):
        tables.num_drafts -= back
    if state.config.settles and state.config.caching:
        request = tables.request
        count = min(tables.num_settled, request._num_prompt + i64(len(request._output)))
        publish_filled(state, tables, request, count, stopped)
        if state.config.unit > 0 and request._block_size > 0:
            publish_tails(state, tables, request, count)
    elif not state.is_in_flight(tables):
        publish_due(state, tables, tables.request)


def finish_load(state: State, request: Request, num_loaded_tokens: int) -> bool:
    """Report that a load has ended and how many of its tokens came: ``finish_load``. law: LOAD-1, READ-1."""
    count = count_of("num_loaded_tokens", num_loaded_tokens)
    state.pool.require_whole()
    state.listeners.begins()
    left = state.loads.get(request._request_id)
    if left is not None:  # whoever runs under the id now is not loading: that is refused until this has ended
        with state:
            del state.loads[request._request_id]
            let_go(state, left)
            state.listeners.loaded(request, None, 0, count)
        return False
    tables = tables_of(state, request)
    if tables is None or tables.num_loading == 0:
        raise UnknownStepError(f"request: nothing is being loaded for {request.request_id!r}")
    if count > tables.num_loading:
        raise InvalidArgumentError(
            f"num_loaded_tokens: {count} of {tables.num_loading} that {request.request_id!r} was to load"
        )
    is_whole = count == tables.num_loading
    # The block for the state at the end of a load that came in part was given no state. law: PUB-1
    has_state = is_whole or state.config.most_drafts < 0
    # One token is left to compute: a model gives no logits for tokens that were loaded.
    stop = min(tables.num_written + count, i64(request.num_tokens) - 1)
    reserve_tails(state, tables, stop)
    make_keys(state, request, stop)
    hit = tables.num_written
    with state:
        tables.num_loading = 0
        tables.num_written = stop
        tables.num_certain = stop
        tables.num_settled = stop
        tables.num_given = stop
        if state.config.caching:
            publish_filled(state, tables, request, stop, stop if has_state else NOT_RUN)
            if has_state and state.config.unit > 0 and request._block_size > 0:
                publish_tails(state, tables, request, stop)
        # Layers may lack what the next token reads. Starting again finds the longest prefix that all have.
        if not is_whole:
            vacate(state, tables, stop if has_state else NOT_RUN, True)
            request._held = None
        state.listeners.loaded(request, tables, hit, count)
    return is_whole
