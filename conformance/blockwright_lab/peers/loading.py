"""A load within a step: tokens that come from elsewhere while the same step computes more.

The specification has a load stand alone, before the step. Managers of other makes are asked for both at once, so what
it comes to is told here, from the parts of the specification's transitions.
"""

from dataclasses import replace
from typing import NamedTuple

from blockwright_conformance.kv_cache.adapter import ManagerAdapter
from blockwright_conformance.kv_cache.outcome import ManagerOutcome
from blockwright_conformance.kv_cache.parts import Reply, allocate, named, sent
from blockwright_spec.manager.choices import legal_taking
from blockwright_spec.manager.demand import Step
from blockwright_spec.manager.effects import adopt, new_entries, take_blocks, write_tokens
from blockwright_spec.manager.facts import heads, span
from blockwright_spec.manager.hits import sound
from blockwright_spec.manager.outcomes import Reason, Refusal
from blockwright_spec.manager.preconditions import trim_tables
from blockwright_spec.manager.publication import publish_count
from blockwright_spec.manager.state import NULL, Absent, Hit, Running, State
from blockwright_spec.reads import Group, Mamba, Prefix, dead, entries, filled


class SyncLoad(NamedTuple):
    """Admit a request with a step that loads some of its tokens, and computes more."""

    slot: int
    prefix: Prefix
    step: Step


def perform_sync_load(adapter: ManagerAdapter, action: SyncLoad, state: State) -> Reply:
    is_absent, name = isinstance(state.requests[action.slot], Absent), named(adapter, state, action.slot, action.prefix)
    hit = adapter.find(name)
    reply = allocate(adapter, name, 0, action.step, hit, name)
    if is_absent and not reply.served:
        adapter.forget(name)
    return reply


def mean_sync_load(state: State, action: SyncLoad, hit: Hit, reply: Reply) -> ManagerOutcome:
    """Return the outcome of a load within a step: blocks for what later tokens read of hit and load, and the step.

    What the load makes dead is neither adopted nor taken: nobody waits for it.
    """
    config, slot = state.config, action.slot
    loaded = hit.length + action.step.external
    stop = loaded + action.step.new
    tables = trim_tables(config, heads(config, hit), loaded)
    sized = tuple(zip(config.groups, tables, strict=True))
    wants = tuple(wants_of(group, span(config, group), len(table), loaded, stop) for group, table in sized)
    kept = adopt(sent(state, slot, action.prefix), tables)
    count = sum(sum(wanted) for wanted in wants)
    if not sound(state, action.prefix, hit):
        return ManagerOutcome(state, (), Refusal(Reason.HIT_STALE), hit)
    if count > len(kept.queue):
        return ManagerOutcome(state, (), Refusal(Reason.NO_FREE_BLOCKS, count - len(kept.queue)), hit)
    new = reply.served[0].new if reply.served else new_entries(kept.queue[:count], wants)
    taken = tuple(block for table in new for block in table if block != NULL)
    if not legal_taking(kept.queue, count, taken) or new != new_entries(taken, wants):
        return ManagerOutcome(state, (), Refusal(Reason.ILLEGAL_CHOICE), hit)
    grown = tuple(table + more for table, more in zip(tables, new, strict=True))
    looked = tuple(len(table) for table in tables)
    here = Running(action.prefix, loaded, loaded, loaded, grown, looked, loaded, states=((),) * len(grown))
    after = write_tokens(take_blocks(kept, taken), slot, here, hit.length)
    after = write_tokens(publish_count(after, slot, loaded, loaded), slot, here, loaded)
    there = after.requests[slot]
    assert isinstance(there, Running)
    after = write_tokens(after, slot, replace(there, computed=stop, written=stop), loaded)
    return ManagerOutcome(publish_count(replace(after, due=(*after.due, slot)), slot, stop, None), (), None, hit)


def wants_of(group: Group, size: int, held: int, loaded: int, stop: int) -> tuple[bool, ...]:
    """Return, for each entry after the first `held`, whether it takes a block when tokens up to `loaded` are loaded."""
    states = {(loaded - 1) // size} | filled(group.kind, size, loaded, stop)
    return tuple(
        not dead(group.kind, size, loaded, entry) and (not isinstance(group.kind, Mamba) or entry in states)
        for entry in range(held, entries(size, stop))
    )
