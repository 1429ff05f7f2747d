"""What may be asked for: every argument of a step, checked before anything is counted.

Each check raises one typed error that names the argument and the remedy, and leaves everything as it was.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import cast

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright.core.keys.request import Request, no_request
from blockwright.core.pool.blocks import KVCacheBlocks
from blockwright.core.steps.publication import publishes_now
from blockwright.core.steps.state import State
from blockwright.core.steps.units import check_unit, next_tail
from blockwright.core.tables.ask import StepRequest
from blockwright.core.tables.table import GroupTable, RequestTables
from blockwright.errors import (
    DuplicateRequestError,
    InvalidArgumentError,
    StaleHitError,
    UnknownRequestError,
    UnknownStepError,
)
from blockwright.ids import id_kept

# ---------------------------------------------------------------------- who runs


def tables_of(state: State, request: Request) -> RequestTables | None:
    """Return a request's tables here, or None."""
    if not isinstance(request, Request):
        raise no_request(request)
    # A request remembers its tables, which spares decoding a dictionary lookup by its id.
    held = request._held
    if held is not None and held.owner == state.owner and isinstance(held, RequestTables):
        return held
    return looked_up(state, request)


def looked_up(state: State, request: Request) -> RequestTables | None:
    """Find a request's tables by its id; the request then remembers them."""
    state.pool.require_whole()
    tables = state.running.get(request._request_id)
    if tables is None:
        return None
    # Two requests of one id would write to the same blocks; a copy of the request is the same request.
    if tables.uid != request._uid:
        raise DuplicateRequestError(f"request: another request runs under the id {request.request_id!r}; free it first")
    request._held = tables
    tables.request = request
    return tables


def give_keys(state: State, request: Request) -> None:
    """Hash a request that was made without a block size, if prefixes are cached."""
    if not isinstance(request, Request):
        raise no_request(request)
    if state.config.caching and request._block_size < 0:
        request.hash_by(state.config.hash_size)


def tables_named(state: State, request_id: Hashable) -> RequestTables:
    state.pool.require_whole()
    tables = state.running.get(request_id if type(request_id) is str else id_kept(request_id))
    if tables is None:
        raise UnknownRequestError(f"request_id: {request_id!r} holds no blocks here")
    return tables


def tables_running(state: State, request: Request) -> RequestTables:
    state.pool.require_whole()
    tables = tables_of(state, request)
    if tables is None:
        raise UnknownRequestError(f"request: {request.request_id!r} holds no blocks here")
    return tables


def tables_of_each(state: State, batch: list[Request]) -> list[RequestTables]:
    """Return the tables of requests that run, each of them once."""
    state.num_batches += 1  # a number per batch finds repetitions without a set of all requests
    found: list[RequestTables] = []
    for asked in cast("list[object]", batch):
        if not isinstance(asked, Request):
            raise no_request(asked)
        tables = tables_running(state, asked)
        if tables.batch == state.num_batches:
            raise DuplicateRequestError(f"requests: {asked.request_id!r} is twice in the batch")
        tables.batch = state.num_batches
        found.append(tables)
    return found


def check_keys(state: State, request: Request) -> None:
    """Check that the keys of a request will do for every group, after giving it some if it has no block size yet."""
    give_keys(state, request)
    if state.config.caching and request._block_size > 0:
        for group in state.groups:
            state.pool._units_for(request, group._block_size)
        if state.config.unit > 0:
            check_unit(state, request)


# ---------------------------------------------------------------------- what a step asks for


def is_in_place(state: State, request: Request, tables: RequestTables, new: i64, ahead: i64) -> bool:
    """Return whether a step without drafts is right and changes only counts; False where that takes a closer look.

    This is the fast path of decoding: such a step is served in place, by `count_step` alone.
    """
    # Each comparison refuses what the careful way would look at; whatever is left cannot be wrong.
    begin = request._num_computed
    if begin < tables.num_certain or new == 0 or begin + new + ahead > tables.in_place:
        return False
    if begin > tables.num_written and begin > leased(state, tables):
        return False
    if state.config.most_drafts >= 0 and not keeps_up(state, request, begin + new, ahead):
        return False
    return not state.config.overlaps or (len(state.steps) > 0 and tables.last_step != state.num_steps)


def leased(state: State, tables: RequestTables) -> i64:
    """Return the tokens up to which no step of a request needs a call; 0 if each does. O(groups). law: LEASE-1."""
    if state.config.overlaps or tables.num_loading > 0 or tables.is_due or tables.is_lost:
        return 0
    quiet = state.config.max_len
    if state.config.unit > 0:
        quiet = 0 if tables.is_delayed else min(quiet, next_tail(tables) - 1)
    for group, table in zip(state.groups, tables.by_group):
        if tables.is_forked and group.shares_from(table, tables.num_certain):
            return 0
        if state.config.unit > 0 and not group.is_row() and has_found(state, table):
            return 0
        slots = group.in_place_slots(table, state.config.caching, tables.num_certain)
        quiet = min(quiet, slots, group.next_death(table))
    return quiet


def has_found(state: State, table: GroupTable) -> bool:
    """Return whether a state is found inside its block, where the next step may write. O(1). law: UNIT-7."""
    count: i64 = len(table.blocks)
    return count > 0 and state.pool.has_tail(i64(table.blocks[count - 1]))


def reach(state: State, tables: RequestTables, count: int) -> int:
    """Return the tokens that a running request may be said to have computed: written ones, or those of its lease."""
    written = int(tables.num_written)
    return written if count <= written else max(written, int(leased(state, tables)))


def keeps_up(state: State, request: Request, stop: i64, ahead: i64) -> bool:
    """Return whether a step without drafts, in place, is right for recurrent layers too (`check_drafts`)."""
    may_run = state.config.runs_ahead and state.config.unit == 0
    return ahead == 0 and (may_run or stop <= request._num_prompt + i64(len(request._output)))


def check_ask(state: State, request: Request, tables: RequestTables | None, ask: StepRequest) -> None:
    """Check a step against the request's state, and fill in where the step begins and ends."""
    written: i64 = 0 if tables is None else tables.num_written
    computed = request._num_computed
    if computed > written and tables is not None:
        written = max(written, leased(state, tables))
    if computed < 0 or computed > written:
        raise InvalidArgumentError(
            f"num_computed_tokens: request {request.request_id!r} has {computed} computed tokens, but slots "
            f"written for only {written} tokens; a request that was freed starts again at 0"
        )
    if ask.external > 0 and ask.hit_length % state.config.whole_alignment != 0:
        cut_for_load(state, request, ask)
    ask.begin = computed + ask.hit_length
    ask.known = request._num_prompt + i64(len(request._output))
    ask.stop = ask.begin + ask.external + ask.new
    ask.certain = ask.stop - ask.drafts
    if ask.stop == computed:
        raise InvalidArgumentError("num_new_tokens: must be at least 1 (or 0 together with a hit or a load)")
    if ask.new == 0 and ask.hit_length % state.config.whole_alignment != 0:
        raise InvalidArgumentError(
            f"num_new_tokens: a hit of {ask.hit_length} tokens ends inside a block, so it needs a token to compute, or "
            "tokens to load (num_external_computed_tokens)"
        )
    if ask.external > 0 or ask.encoder > 0:
        check_admission(state, request, tables, ask)
    # A plan answers this by `Never`, since the question was whether the step can happen.
    if ask.stop > state.config.max_len:
        if ask.is_planned:
            ask.is_too_long = True
            return
        raise InvalidArgumentError(
            f"num_new_tokens: request {request.request_id!r} would have {ask.stop} tokens, "
            f"max_model_len is {state.config.max_len}"
        )
    if ask.drafts > 0 or state.config.most_drafts >= 0:
        check_drafts(state, request, ask)
    if ask.checkpoint > 0:
        check_checkpoint(state, tables, ask)
    if tables is None:
        if state.config.overlaps and ask.new > 0 and len(state.steps) == 0:
            raise UnknownStepError("allocate_slots: no step has been started; call start_step first")
        check_keys(state, request)
    else:
        check_growth(state, request, tables, computed)
    if not ask.is_planned and publishes_now(state, ask):
        # Hashing may fail and takes memory: once it is done here, no later part of the step has a key to make.
        request.hash_filled(ask.stop)


def refuse_lost(tables: RequestTables) -> None:
    """Raise `StaleHitError` if a request holds blocks of a step that was given up. law: GIVEN-1."""
    if tables.is_lost:
        raise StaleHitError(
            f"request: {tables.request_id!r} began on blocks of a step that was given up, which nobody has written; "
            "free it, set num_computed_tokens = 0, and look it up again"
        )


def check_growth(state: State, request: Request, tables: RequestTables, computed: i64) -> None:
    """Check that a running request can go on from `computed` tokens."""
    refuse_lost(tables)
    if computed < tables.num_certain:
        raise InvalidArgumentError(
            f"num_computed_tokens: request {request.request_id!r} went back from {tables.num_written} to {computed}, "
            f"but {tables.num_certain} tokens are certain; raise the count after each step by the tokens that it has "
            "computed. Only drafts can be taken back, else free the request and start again at 0"
        )
    if tables.num_loading > 0:
        raise InvalidArgumentError(
            f"request: {tables.num_loading} tokens of {request.request_id!r} are being loaded; call finish_load first"
        )
    if state.config.overlaps:
        check_overlap(state, request, tables)


def check_admission(state: State, request: Request, tables: RequestTables | None, ask: StepRequest) -> None:
    """Check tokens that come from elsewhere: loaded ones, and the encoder's."""
    name = request.request_id
    if ask.external > 0:
        if tables is not None:
            raise InvalidArgumentError(f"num_external_computed_tokens: {name!r} runs already; only a new request loads")
        if ask.new > 0:
            raise InvalidArgumentError(
                "num_external_computed_tokens: tokens are computed after the load has ended; pass num_new_tokens=0 "
                "here, call finish_load, and allocate then"
            )
        if ask.stop > request.num_tokens:
            raise InvalidArgumentError(
                f"num_external_computed_tokens: up to {ask.stop} tokens would be loaded, {name!r} has "
                f"{request.num_tokens}"
            )
        if ask.stop == request.num_tokens and state.config.most_drafts >= 0:
            raise InvalidArgumentError(
                f"num_external_computed_tokens: the last token of {name!r} is computed again, which the state of a "
                "recurrent layer after it is too late for; load one token less"
            )
        if name in state.loads:
            raise DuplicateRequestError(
                f"request: an earlier load of {name!r} is still on its way; call finish_load for it first"
            )
    if ask.encoder > 0:
        if not any([group.is_encoder for group in state.groups]):
            raise InvalidArgumentError("num_encoder_tokens: no group of layers is cross attention")
        if tables is not None:
            raise InvalidArgumentError(f"num_encoder_tokens: {name!r} runs already; it was given them when it started")


def check_drafts(state: State, request: Request, ask: StepRequest) -> None:
    """Check that drafts are drafts, and that recurrent states can be taken back from them. law: MAMBA-3."""
    known: i64 = request._num_prompt + i64(len(request._output))
    if ask.drafts > 0 and (ask.drafts >= ask.new or ask.certain < known):
        raise InvalidArgumentError(
            f"num_draft_tokens: {ask.drafts} of {ask.new} new tokens cannot be drafts: {request.request_id!r} "
            f"knows {known} tokens, and a step computes at least one token that is no draft"
        )
    most = state.config.most_drafts
    if most < 0:
        return
    if ask.drafts > most or ask.ahead > most:
        name = "num_draft_tokens" if ask.drafts > most else "num_lookahead_tokens"
        raise InvalidArgumentError(
            f"{name}: a recurrent layer keeps the states of {most} drafts (num_speculative_blocks), "
            f"not of {max(ask.drafts, ask.ahead)}"
        )
    if (
        ask.certain > known
        and not state.config.runs_ahead
        and not (state.config.overlaps and ask.new - ask.drafts == 1)
    ):
        raise InvalidArgumentError(
            f"num_new_tokens: a recurrent state must not run ahead of the {known} known tokens of "
            f"{request.request_id!r}; pass the number of drafts as num_draft_tokens"
        )


def check_checkpoint(state: State, tables: RequestTables | None, ask: StepRequest) -> None:
    """Check that a step over known tokens jumps over the entries that end at its checkpoint. law: MAMBA-7."""
    config, place = state.config, ask.checkpoint
    if not config.caching or config.overlaps or config.unit > 0 or config.most_drafts < 0:
        raise InvalidArgumentError(
            "num_checkpoint_tokens: requires recurrent layers and enable_caching=True; not together with overlap_steps "
            "or prefix_match_unit"
        )
    at: i64 = 0
    while at < config.num_groups:
        group = state.groups[at]
        size = group._block_size
        if not group.is_row() and (
            ask.stop > ask.known
            or ask.external > 0
            or ask.begin + size > place
            or place != (ask.stop - 1) // size * size
            or (tables is not None and i64(len(tables.by_group[at].blocks)) >= place // size)
        ):
            raise InvalidArgumentError(
                f"num_checkpoint_tokens: {place} in a step over the tokens {ask.begin}..{ask.stop - 1}, of which "
                f"{ask.known} are known: it must be the last multiple of {size} before the last token, a whole block "
                "after the first, and in no entry that the request has already"
            )
        at += 1


def check_overlap(state: State, request: Request, tables: RequestTables) -> None:
    """Check that the open step can compute more tokens of a running request."""
    if len(state.steps) == 0:
        raise UnknownStepError("allocate_slots: no step has been started; call start_step first")
    if tables.last_step == state.num_steps:
        raise DuplicateRequestError(
            f"request: {request.request_id!r} has its slots in step {state.num_steps} already; start the next step"
        )
    if state.config.most_drafts < 0 or tables.num_drafts == 0:
        return
    known: i64 = request._num_prompt + i64(len(request._output))
    if state.is_in_flight(tables) or known < tables.num_written:
        raise InvalidArgumentError(
            f"request: a recurrent layer of {request.request_id!r} must know which of {tables.num_drafts} drafts "
            "hold; settle their step and append the accepted tokens first"
        )


def length_of_hit(state: State, num_new_computed_tokens: int, blocks: KVCacheBlocks) -> i64:
    """Return the length of a hit that may end inside a block, whose blocks show it only up to a unit."""
    if not 0 <= num_new_computed_tokens <= int(state.config.max_len):
        raise StaleHitError(f"num_new_computed_tokens: no hit has {num_new_computed_tokens} tokens")
    length: i64 = num_new_computed_tokens
    counts = [int(group.num_adopted(length)) for group in state.groups]
    if length % state.config.unit != 0 or counts != [len(ids) for ids in blocks.ids]:
        raise StaleHitError(
            f"num_new_computed_tokens: the hit's blocks are not those of {num_new_computed_tokens} tokens; "
            "pass both as get_computed_blocks returned them"
        )
    return length


def check_hit(
    state: State,
    request: Request,
    tables: RequestTables | None,
    ask: StepRequest,
    num_new_computed_tokens: int,
    blocks: KVCacheBlocks | None,
) -> None:
    """Check a hit's shape, and put it into an ask."""
    expected: i64 = 0
    if blocks is not None:
        if not blocks.pool_is(state.pool):
            # An empty hit is the same for all managers, so engines may keep one.
            if any([len(ids) for ids in blocks.ids]):
                raise StaleHitError("new_computed_blocks: the hit is another manager's")
        elif len(blocks.ids) != len(state.groups):
            raise StaleHitError(f"new_computed_blocks: {len(blocks.ids)} groups, the group has {len(state.groups)}")
        elif state.config.unit > 0:
            expected = length_of_hit(state, num_new_computed_tokens, blocks)
        elif len(blocks.ids) > 0:
            expected = i64(len(blocks.ids[0])) * state.groups[0]._block_size
            for group, ids in zip(state.groups, blocks.ids):
                if i64(len(ids)) * group._block_size != expected:
                    raise StaleHitError("new_computed_blocks: the groups' hits differ in length")
    if num_new_computed_tokens != int(expected):
        raise StaleHitError(
            f"num_new_computed_tokens: the hit holds {expected} tokens, not {num_new_computed_tokens}; "
            "pass both as get_computed_blocks returned them"
        )
    if expected == 0:
        return
    if tables is not None:
        raise InvalidArgumentError(
            f"new_computed_blocks: request {request.request_id!r} runs already; only a new request adopts a hit"
        )
    if request._block_size == 0:
        raise InvalidArgumentError(
            f"request: {request.request_id!r} was made with block_size=None, so it has no keys and adopts no hit"
        )
    if not state.config.caching:
        raise InvalidArgumentError("new_computed_blocks: the manager was made without enable_caching")
    if request._num_computed != 0:
        raise InvalidArgumentError(
            f"num_computed_tokens: must be 0 before a hit is adopted, not {request._num_computed}"
        )
    # The last token must be computed, because its logits give the next one.
    if expected >= request.num_tokens:
        raise StaleHitError(
            f"num_new_computed_tokens: a hit of {expected} leaves no token to compute of {request.num_tokens}"
        )
    ask.hit = blocks
    ask.hit_length = expected


def cut_for_load(state: State, request: Request, ask: StepRequest) -> None:
    """Cut a hit that ends inside a block to its whole blocks, and load the part again with what follows it.

    The load writes whole blocks, so that it needs its own, and the part of the hit might be copied only later. law:
    LOAD-2.
    """
    hit = ask.hit
    length: i64 = ask.hit_length // state.config.whole_alignment * state.config.whole_alignment
    if hit is not None:
        ids: list[vec[i32]] = []
        for group, blocks in zip(state.groups, hit.ids):
            if not hit.is_fresh(request):
                keys = request.keys(group._block_size // request._block_size)
                group.check_hit(blocks, keys, ask.hit_length)
            ids.append(blocks[: length // group._block_size])
        whole = KVCacheBlocks(state.pool, ids)
        whole.stamp(request)
        ask.hit = whole if length > 0 else None
    ask.external += ask.hit_length - length
    ask.hit_length = length
