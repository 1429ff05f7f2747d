"""Many requests in one call: the slots of a step, ``allocate_slots_batch``, and the tokens that it brought.

Slots take two passes over the requests, so that a step that changes only counts, as most do in decoding, costs little:

    count each     check every request; one whose step only counts on (see `is_in_place`) is counted at once
    serve each     the others, in order, each as a single call does it (`effects.give`)

Where a request is wrong, or the batch ends early, the counts are taken back. A batch has the same effect as calls of
single requests, one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, final

from librt.strings import read_i32_le
from librt.vecs import append, vec
from mypy_extensions import i32, i64

from blockwright.core.keys.block_hash import HashChain
from blockwright.core.keys.packed import cut_to, with_room, zeros32, zeros64
from blockwright.core.keys.request import MAX_LENGTH, Request, no_request, pack_tokens
from blockwright.core.steps.effects import Answer, give, serve_in_place
from blockwright.core.steps.outcomes import BatchAllocation
from blockwright.core.steps.plans import fits, refuse_never
from blockwright.core.steps.preconditions import check_ask, is_in_place, keeps_up, tables_of
from blockwright.core.steps.publication import publishes_now
from blockwright.core.steps.state import State
from blockwright.core.tables.ask import StepRequest, all_or_each, counts_of
from blockwright.core.tables.table import RequestTables
from blockwright.core.tables.window import FOR_EVER
from blockwright.errors import DuplicateRequestError, InvalidArgumentError


def grow_each(
    state: State, batch: list[Request], each: i64, news: vec[i64], aheads: vec[i64], drafts: vec[i64], is_delayed: bool
) -> BatchAllocation:
    """Grow requests in order until one does not fit; those before it keep their slots: ``allocate_slots_batch``.

    Empty counts mean the same for all: `each` new tokens, no lookahead, no drafts.
    """
    state.changes.ask.is_delayed = is_delayed
    size: i64 = len(batch)
    changes = state.changes
    changes.clear()
    changes.start_batch(size)
    state.listeners.begins()
    nothing = vec[i32]()
    done = BatchAllocation(0, None, nothing, nothing, nothing, nothing, nothing, int(state.num_batches) + 1)
    try:
        state.pool.require_whole()
        count_each(state, batch, each, news, aheads, drafts)
        serve_each(state, batch, each, news, aheads, drafts, done)
        note_batch(state, batch, each, news, done)
    except BaseException:
        if changes.has_begun:
            state.tear()
        else:
            take_back(state, batch, 0)
        raise
    return done


def note_batch(state: State, batch: list[Request], each: i64, news: vec[i64], done: BatchAllocation) -> None:
    """Tell of all requests that a batch has served, and of the one that ended it."""
    served: i64 = done.num_served
    tokens = each * served
    at: i64 = 0
    while at < min(served, i64(len(news))):
        tokens += news[at]
        at += 1
    state.listeners.served_batch(tokens, served)
    if served < i64(len(batch)):
        state.listeners.refused(batch[served], count_at(news, served, each))


def count_each(
    state: State,
    batch: list[Request],
    each: i64,
    news: vec[i64],
    aheads: vec[i64],
    drafts: vec[i64],
) -> None:
    """Check every request of a batch, and count in place those that only append to their written tokens."""
    state.num_batches += 1
    number, owner = state.num_batches, state.owner
    config = state.config
    is_plain = not config.overlaps and len(drafts) == 0 and not notes_delay(state)
    most: i64 = 0  # tokens up to which a plain step that goes on from what is written cannot be wrong
    if config.most_drafts < 0:
        most = config.max_len
    differs = len(news) > 0 or len(aheads) > 0
    changes = state.changes
    pending = changes.pending
    quiet: i64 = FOR_EVER
    fresh: set[str] = set()
    new = each
    ahead: i64 = 0
    size: i64 = len(pending)
    i: i64 = 0
    while i < size:
        changes.num_seen = i + 1
        asked = cast("list[object]", batch)[i]
        if not isinstance(asked, Request):
            raise no_request(asked)
        request = asked
        if differs:
            new = count_at(news, i, each)
            ahead = count_at(aheads, i, 0)
        held = request._held
        # The loop over a decoding batch is the hottest of all: what is checked by a call elsewhere is written out here.
        if is_plain and isinstance(held, RequestTables) and held.owner == owner:
            own: RequestTables = held
            begin = request._num_computed
            stop = begin + new
            # Behind what is written it goes on within its lease alone, as in `check_ask`.
            goes_on = begin == own.num_written or own.num_written < begin <= request._lease
            if goes_on and new > 0 and own.batch != number and own.num_drafts == 0:
                if stop + ahead <= own.in_place and (most > 0 or keeps_up(state, request, stop, ahead)):
                    # Kept to be put back: a request later in the batch may be wrong, and then none is served.
                    own.was_certain = own.num_certain
                    own.batch = number
                    # law: LEN-1. As `count_step`: what was there before is certain, and what is known by now.
                    own.num_written = stop
                    own.num_certain = max(begin, min(stop, request._num_prompt + i64(len(request._output))))
                    quiet = min(quiet, request._lease - stop)
                    i += 1
                    continue
                if stop <= most and own.num_loading == 0 and not own.is_lost:
                    pending[changes.num_pending] = i32(i)
                    changes.num_pending += 1
                    own.batch = number
                    i += 1
                    continue
        pending[changes.num_pending] = i32(i)
        changes.num_pending += 1
        check_one(state, request, new, ahead, count_at(drafts, i, 0), changes.ask, fresh)
        i += 1
    changes.quiet = quiet


def check_one(
    state: State, request: Request, new: i64, ahead: i64, drafts: i64, ask: StepRequest, fresh: set[str]
) -> None:
    """Check a request of a batch that is served later."""
    tables = tables_of(state, request)
    is_new = tables is None
    if tables is None:
        if request._request_id in fresh:
            raise DuplicateRequestError(f"requests: {request.request_id!r} is twice in the batch")
        fresh.add(request._request_id)
    else:
        # A number per batch finds repetitions without a set of all requests.
        if tables.batch == state.num_batches:
            raise DuplicateRequestError(f"requests: {request.request_id!r} is twice in the batch")
        tables.batch = state.num_batches
        if drafts == 0 and not notes_delay(state) and is_in_place(state, request, tables, new, ahead):
            state.changes.any_in_place = True
            return
    ask.new = new
    ask.ahead = ahead
    ask.drafts = drafts
    check_ask(state, request, tables, ask)
    if is_new:  # before anything changes, so that the error of one request leaves the others as they were
        fits(state, request, None, ask)
        refuse_never(state, request, None, ask)


def notes_delay(state: State) -> bool:
    """Return whether each step of a batch notes that it puts publication off, as a part of a block may be due then."""
    return state.changes.ask.is_delayed and state.config.unit > 0


def take_back(state: State, batch: list[Request], start: i64) -> None:
    """Take back the counts of the requests from index `start` on."""
    try:
        pending = state.changes.pending
        turn: i64 = 0
        i: i64 = 0
        while i < state.changes.num_seen:
            # Requests with a turn were not counted: what they changed, if anything, was undone where it failed.
            if turn < state.changes.num_pending and i64(pending[turn]) == i:
                turn += 1
            elif i >= start:
                request = cast("list[object]", batch)[i]
                held = request._held if isinstance(request, Request) else None
                if isinstance(held, RequestTables) and held.owner == state.owner and held.batch == state.num_batches:
                    held.num_written = batch[i]._num_computed
                    held.num_certain = held.was_certain
            i += 1
    except BaseException:
        state.tear()
        raise


def serve_each(
    state: State,
    batch: list[Request],
    each: i64,
    news: vec[i64],
    aheads: vec[i64],
    drafts: vec[i64],
    done: BatchAllocation,
) -> None:
    """Serve the requests of a checked batch that are not counted yet, and write down what changed."""
    changes = state.changes
    size: i64 = len(batch)
    served = size
    pending, ask = changes.pending, changes.ask
    publishes = publishes_now(state, ask)
    names = [""] * int(changes.num_pending)
    answer = Changed(state.config.num_groups, changes.num_pending)
    turn: i64 = 0
    while turn < changes.num_pending:
        served = i64(pending[turn])
        request = batch[served]
        tables = tables_of(state, request)
        ask.new = count_at(news, served, each)
        ask.ahead = count_at(aheads, served, 0)
        ask.drafts = count_at(drafts, served, 0)
        ask.begin = request._num_computed
        ask.known = request._num_prompt + i64(len(request._output))
        ask.stop = ask.begin + ask.new
        ask.certain = ask.stop - ask.drafts
        # Copies are reported with the index of their request in the batch.
        changes.request = i32(served)
        if (
            changes.any_in_place
            and ask.drafts == 0
            and tables is not None
            and is_in_place(state, request, tables, ask.new, ask.ahead)
        ):
            serve_in_place(state, request, tables, ask.new)
            changes.has_begun = True
        else:
            if not fits(state, request, tables, ask):
                break
            if publishes:
                request.hash_filled(ask.stop)
            give(state, request, tables, ask, answer)
            names[turn] = request._request_id
        changes.quiet = min(changes.quiet, request._lease - ask.stop)
        turn += 1
        answer.num_left -= 1
    if turn < changes.num_pending:
        done.refused = int(served)
        take_back(state, batch, served)
    else:
        served = size
    done.num_served = int(served)
    if not state.config.overlaps and size > 0 and served == size:
        done.lease = int(max(0, changes.quiet))
    done.name(names, pending, size)
    done.tell(size * state.config.num_groups, answer.changed, answer.num_changed)
    done.new_block_ids = answer.new_ids
    done.nulled_entries = changes.nulled
    done.replaced_entries = changes.replaced


@final
class Changed(Answer):
    """What the steps of a batch have changed in the tables.

    Attributes:
        new_ids: of the blocks that were appended to tables.
        room: how many more there is room for.
        changed, num_changed: three numbers for each table that changed (`BatchAllocation.changed_tables`), and zeros.
        num_left: requests that are still to be served.
    """

    def __init__(self, num_groups: i64, num_left: i64) -> None:
        self.new_ids: vec[i32] = vec[i32]()
        self.room: i64 = 0
        self.changed: vec[i32] = zeros32(3 * num_groups * num_left)
        self.num_changed: i64 = 0
        self.num_left: i64 = num_left

    def make_room(self, state: State, ready: RequestTables, ask: StepRequest) -> None:
        if state.changes.grown > self.room:  # one for each table, as most batches take at most
            self.room = max(state.changes.grown, self.num_left * state.config.num_groups)
            self.new_ids = with_room(self.new_ids, self.room)

    def write(self, state: State, ready: RequestTables) -> None:
        changes, num_groups = state.changes, state.config.num_groups
        nulls = i64(len(changes.nulled)) > changes.num_nulled
        # Only tables that changed are written down, so that a worker's replica costs nothing for the others.
        if changes.grown == 0 and not nulls:
            return
        self.room -= changes.grown
        new_ids, changed, put = self.new_ids, self.changed, self.num_changed
        num_nulled = i32(changes.num_nulled)
        first = i64(changes.request) * num_groups
        group: i64 = 0
        while group < num_groups:
            stop: i64 = i64(changes.runs[group])
            held = changes.held_in(group)
            count: i32 = changes.nulled_each[group] if nulls else 0
            if held == i64(len(ready.by_group[group].blocks)) and count == 0:
                group = stop
            while group < stop:
                blocks = ready.by_group[group].blocks
                entry = held
                while entry < i64(len(blocks)):
                    new_ids = append(new_ids, blocks[entry])
                    entry += 1
                num_nulled += count
                changed[put] = i32(first + group)
                changed[put + 1] = i32(len(new_ids))
                changed[put + 2] = num_nulled
                put += 3
                group += 1
        self.new_ids, self.num_changed = new_ids, put


def count_at(counts: vec[i64], at: i64, each: i64) -> i64:
    if len(counts) == 0:
        return each
    return counts[at]


def append_output_token_ids_batch(
    requests: Sequence[Request],
    token_ids: object,
    num_computed_tokens: int | Sequence[int] = 0,
    num_tokens: int | Sequence[int] = 1,
) -> None:
    """Count the computed tokens of each request of a step, and append its new tokens, in one call.

    Does what ``num_computed_tokens += ...`` and `Request.append_output_token_ids` do for one request after another; for
    all of them, or none. Complexity: O(requests + tokens), compiled about 10 ns each.

    Args:
        requests: the requests of the step, in order.
        token_ids: the tokens of the first request, of the second, ...: a list, ``array``, numpy array or CPU tensor.
        num_computed_tokens: tokens to count as computed, one count for all or one per request.
        num_tokens: how many of the tokens belong to each request, in the same way; 0 for one within its prompt.

    Raises:
        InvalidArgumentError: a count or a token is out of range, or there are more or fewer tokens than counted.
    """
    batch = list(requests)  # a hasher of the caller's own may do what it likes with the other
    size: i64 = len(batch)
    packed = pack_tokens("token_ids", token_ids)
    computed = counts_of("num_computed_tokens", num_computed_tokens, size)
    each, counts = all_or_each("num_tokens", num_tokens, size)
    before = zeros64(2 * size)  # per request, its output tokens and computed tokens
    keys: list[tuple[Request, HashChain | None, vec[i64]]] = []  # of those whose hasher is asked at once
    given: i64 = i64(len(packed)) // 4
    total: i64 = 0
    i: i64 = 0  # requests that may have changed
    try:
        for asked in cast("list[object]", batch):
            if not isinstance(asked, Request):
                raise no_request(asked)
            request = asked
            output = request._output
            count = count_at(counts, i, each)
            if request._num_prompt + i64(len(output)) + count > MAX_LENGTH:
                raise InvalidArgumentError(
                    f"token_ids: {request.request_id!r} would have more than {MAX_LENGTH} tokens"
                )
            if total + count > given:
                break
            before[2 * i] = i64(len(output))
            before[2 * i + 1] = request._num_computed
            i += 1
            if request._is_eager:
                keys.append((request, request._chain, request._words))
                request.append_packed(packed, total, count)
                total += count
            elif count > 0:
                stop = total + count
                while total < stop:
                    output = append(output, read_i32_le(packed, total * 4))
                    total += 1
                request._output = output
            if len(computed) > 0:
                request._num_computed += computed[i - 1]
        if i < size or total < given:
            counted = sum(counts) if len(counts) > 0 else int(each) * len(batch)
            raise InvalidArgumentError(f"token_ids: {given} tokens, num_tokens counts {counted}; give equal numbers")
    except BaseException:
        while i > 0:
            i -= 1
            batch[i]._output = cut_to(batch[i]._output, before[2 * i])
            batch[i]._num_computed = before[2 * i + 1]
        for request, chain, words in reversed(keys):
            request._chain = chain
            request._words = words
        raise
