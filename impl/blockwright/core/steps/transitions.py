"""The transitions of the first reading, one for each call that an engine makes; its arguments are taken by the manager.

Each checks, counts and acts in the order of the specification's chapter of the same name (see `effects`). Steps in
flight, loads and forks are in `in_flight` and `forks`.
"""

from __future__ import annotations

import operator

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright.core.keys.request import Answer, Request
from blockwright.core.pool.blocks import KVCacheBlocks
from blockwright.core.steps.effects import serve, trim_group
from blockwright.core.steps.outcomes import Fits, Plan
from blockwright.core.steps.plans import request_version
from blockwright.core.steps.preconditions import (
    check_hit,
    check_keys,
    reach,
    tables_of,
    tables_of_each,
    tables_running,
)
from blockwright.core.steps.publication import (
    NOT_RUN,
    declare,
    kept_inside,
    leaves_due,
    make_keys,
    make_private,
    publish_filled,
    publishes_now,
    trim_end,
)
from blockwright.core.steps.state import State
from blockwright.core.steps.units import (
    check_unit,
    has_room,
    may_end_inside,
    num_certain,
    publish_tails,
    reserve_tails,
)
from blockwright.core.tables.ask import StepRequest
from blockwright.core.tables.inside import longest_inside, with_part
from blockwright.core.tables.table import RequestTables
from blockwright.core.tables.window import common_hit, longest_of_all
from blockwright.errors import InvalidArgumentError, StalePlanError


def find(state: State, request: Request, longest: i64) -> tuple[KVCacheBlocks, int]:
    """Return the longest hit of a request up to a length: ``get_computed_blocks``. law: HIT-1, HIT-2, HIT-4.

    A request that waits is looked up again and again: as long as no key came or went, and it has no new token, the last
    answer is given again. O(1) then.
    """
    config = state.config
    if not config.caching or request.prompt_logprobs or request._block_size == 0:
        return state.nothing, 0
    state.pool.require_whole()
    if config.unit > 0:
        check_unit(state, request)
    # law: HIT-3
    max_length: i64 = min(request.num_tokens - 1, request.num_keyed())
    # Read before the lookup: what changes meanwhile makes its answer an old one.
    edition = state.pool._index.edition()
    answer = request._answer
    if answer is None or not answer.is_still(request.num_tokens, longest, edition):
        found, alone, entries = look_up(state, request, max_length, longest)
        answer = request._answer = Answer(request.num_tokens, longest, edition, found, alone, entries)
    num_computed, junction = answer.length, answer.junction
    if state.keeps_prompts:
        junction = parting(state, request, max_length)
    if junction > num_computed and not has_room(state, request.num_tokens, junction):
        junction = 0
    state.listeners.looked_up(request, num_computed)
    request._junction = junction if junction > num_computed else 0
    if num_computed == 0:
        return state.nothing, 0
    ids = answer.ids[:]
    hit = KVCacheBlocks(state.pool, ids)
    # An admission right after the lookup then need not compare the blocks with their keys again.
    hit.stamp(request)
    return hit, num_computed


def look_up(state: State, request: Request, max_length: i64, longest: i64) -> tuple[i64, i64, list[vec[i32]]]:
    """Return the longest hit of a request, the longest of layers with full attention alone, and its entries per group.

    law: HIT-1, HIT-2.
    """
    config = state.config
    probes = [
        group.probe(request.keys(state.pool._units_for(request, group._block_size)), max_length, config.eagle)
        for group in state.groups
    ]
    rules = [group.rule for group in state.groups]
    num_computed = common_hit(rules, probes, config.whole_alignment, min(max_length, longest))
    junction = longest_of_all(rules, probes, config.whole_alignment, max_length)
    if config.unit > 0:
        most, ends_inside = max_length, may_end_inside(state)
        full = [group for group in state.groups if group.keeps_all]
        # Without any part of a block, layers that read everything may still part inside a larger block of others.
        is_smaller = any([group._block_size < state.config.most_size for group in full])
        if 0 < len(full) < len(state.groups) and (ends_inside or is_smaller):
            those = [probe for probe, group in zip(probes, state.groups) if group.keeps_all]
            junction = longest_inside(request, full, those, config.unit, junction, max_length)
            most = junction  # no hit is longer than that of some of its groups
        if ends_inside:
            most = min(most, longest)
            num_computed = longest_inside(request, state.groups, probes, config.unit, num_computed, most)
    if not has_room(state, request.num_tokens, num_computed):
        num_computed = 0
    ids: list[vec[i32]] = []
    if num_computed > 0:
        ids = [
            probe.entries(num_computed, group.rule, group.first_kept(num_computed))
            for probe, group in zip(probes, state.groups)
        ]
    if num_computed % config.whole_alignment != 0:
        ids = [with_part(request, group, each, num_computed) for each, group in zip(ids, state.groups)]
    return num_computed, junction, ids


def parting(state: State, request: Request, max_length: i64) -> i64:
    """Return the longest hit up to which the prompt is that of one of the last. law: UNIT-9."""
    size, alignment = request._block_size, state.config.alignment
    count = max_length // size
    request.hash_until(count)
    return state.last_prompts.num_alike(request._words, count) * size // alignment * alignment


def lock(state: State, request: Request, num_computed_tokens: int, hit: KVCacheBlocks) -> None:
    """Hold the blocks of a hit from outside: ``lock``. law: OUTSIDE-1."""
    ask = StepRequest()
    check_hit(state, request, tables_of(state, request), ask, num_computed_tokens, hit)
    if ask.hit_length > 0 and not hit.is_fresh(request):
        check_keys(state, request)
        for group, ids in zip(state.groups, hit.ids):
            units = state.pool._units_for(request, group._block_size)
            group.check_hit(ids, request.keys(units), ask.hit_length)
    state.pool.touch([block for ids in hit.ids for block in ids])


def commit(state: State, plan: Plan) -> KVCacheBlocks:
    """Carry out a plan and return the new blocks: ``commit``."""
    if not isinstance(plan, Fits):
        raise InvalidArgumentError(f"plan: {plan!r} cannot be committed, only one that fits")
    request = plan._request
    # A copy of a manager has the same versions as the original, but blocks of its own.
    if plan._owner != state.owner:
        raise StalePlanError(f"plan: {plan!r} is another manager's, or of this one before it was copied")
    tables = tables_of(state, request)
    if plan._version != state.pool._version or plan._request_version != request_version(state, request, tables):
        raise StalePlanError(f"plan: the pool or the request has changed since {plan!r}; plan again")
    if publishes_now(state, plan._ask):
        make_keys(state, request, plan._ask.stop)
    return serve(state, request, tables, plan._ask)


def publish(state: State, request: Request, num_computed_tokens: int, has_run: bool) -> None:
    """Publish the blocks filled up to some tokens, after publication was put off: ``cache_blocks``."""
    count: i64 = check_publication(state, request, operator.index(num_computed_tokens))
    publish_checked(state, request, count, has_run)


def publish_each(state: State, batch: list[Request], counts: vec[i64], has_run: bool) -> None:
    """Publish, for one request after another, the blocks filled up to some tokens; for none if one is wrong."""
    tables_of_each(state, batch)
    for at, request in enumerate(batch):
        check_publication(state, request, int(counts[i64(at)]) if len(counts) > 0 else 0)
    for at, request in enumerate(batch):
        publish_checked(state, request, counts[i64(at)] if len(counts) > 0 else 0, has_run)


def check_publication(state: State, request: Request, count: int) -> i64:
    """Check that the blocks which some tokens fill may be published, and make their keys; return the tokens."""
    config = state.config
    tables = tables_running(state, request)
    # law: PUB-3
    done, what = (int(tables.num_settled), "settled") if config.settles else (reach(state, tables, count), "written")
    known = min(done, request.num_tokens)
    if not 0 <= count <= known:
        raise InvalidArgumentError(
            f"num_computed_tokens: must be within 0..{known}, the known and {what} tokens of "
            f"{request.request_id!r}, not {count}"
            + ("; settle_step publishes those of later steps" if config.settles else "")
        )
    make_keys(state, request, count)
    return count


def publish_checked(state: State, request: Request, count: i64, has_run: bool) -> None:
    config = state.config
    tables = tables_running(state, request)
    tables.request = request
    reserve_tails(state, tables)
    # What is being loaded is not certain yet.
    is_delayed = tables.is_delayed and count < min(num_certain(tables, request), tables.num_written)
    state.listeners.begins()
    with state:
        declare(state, request, tables, count)
        tables.is_delayed = is_delayed
        if config.caching:
            stopped = tables.num_written - tables.num_drafts
            is_open = config.overlaps and len(state.steps) > 0 and tables.last_step == state.num_steps
            if is_open or not has_run:
                if count == stopped and leaves_due(state, tables, request):
                    state.due.add(tables)
                # The step is still to run: its state is due with the next step, and its blocks are published now.
                stopped = NOT_RUN
            publish_filled(state, tables, request, count, stopped)
            if config.unit > 0 and stopped != NOT_RUN and request._block_size > 0:
                publish_tails(state, tables, request, count)
            state.listeners.published(tables, count)


def trim(state: State, request: Request, num_computed_tokens: int) -> None:
    """Null the entries that are dead at some tokens and release their blocks: ``remove_skipped_blocks``."""
    tables = tables_running(state, request)
    count = operator.index(num_computed_tokens)
    done, what = int(tables.num_settled), "settled"
    if not state.config.overlaps:
        done, what = reach(state, tables, count), "written"
    if not 0 <= count <= done:
        raise InvalidArgumentError(
            f"num_computed_tokens: must be within 0..{done}, the {what} tokens of {request.request_id!r}, "
            f"not {num_computed_tokens}"
        )
    with state:
        declare(state, request, tables, count)
        at: i64 = 0
        end = trim_end(state, tables, count)
        tables.checkpoint = kept_inside(state, tables, count)
        state.listeners.goes_on(tables, end)
        while at < state.config.num_groups:
            kept = state.groups[at].first_kept(end)
            trim_group(state, tables, at, min(kept, i64(len(tables.by_group[at].blocks))))
            at += 1
        state.listeners.filled(tables, None)


def forget(state: State, request: Request | None, salt: i64, adapter: i64) -> int:
    """Forget the contents of a request, or of the salt and the adapter with these marks; return the number of blocks.

    With neither, everything is forgotten. Requests that hold one of the blocks, or are meant themselves, publish
    nothing more: ``forget``. law: FORGET-1, FORGET-5.
    """
    pool = state.pool
    pool.require_whole()
    name = ""
    found: list[int] = []
    is_all = request is None and salt == 0 and adapter == 0
    if is_all:
        found = [block for block, is_published in enumerate(pool.published()) if is_published]
    elif request is None:
        found = pool.blocks_of(salt, adapter)
    elif state.config.caching and request._block_size != 0:
        name = request._request_id
        for number, group in enumerate(state.groups):
            keys = request.keys(pool._units_for(request, group._block_size))
            for entry in range(int(keys.num_blocks())):
                found.extend(pool.blocks_with(keys, entry, number, group._block_size))
    gone = set(found)
    blocks = vec[i32]([i32(block) for block in sorted(gone)])
    private = [tables for tables in state.running.values() if is_meant(tables, request, salt, adapter, gone)]
    state.listeners.begins()
    with state:
        pool._forget(blocks, is_all)
        state.last_prompts.clear()
        for tables in private:
            make_private(state, tables)
        state.num_forgets += 1
        state.listeners.forgot(name, is_all)
    return len(gone)


def is_meant(tables: RequestTables, request: Request | None, salt: i64, adapter: i64, gone: set[int]) -> bool:
    """Return whether a running request is one that is forgotten, or holds a block that is. O(its blocks)."""
    if request is not None:
        if tables.uid == request._uid:
            return True
    elif (salt == 0 or tables.request._salt_mark == salt) and (adapter == 0 or tables.request._adapter_mark == adapter):
        return True
    return any([int(block) in gone for table in tables.by_group for block in table.blocks])


def reset(state: State) -> bool:
    """Forget everything published; False, and nothing happens, while any block is held: ``reset_prefix_cache``."""
    state.listeners.begins()
    try:
        if not state.pool.reset_prefix_cache():
            return False
        state.last_prompts.clear()
        state.listeners.forgot("", True)
    except BaseException:
        if state.pool._is_torn:
            state.tear()
        raise
    return True
