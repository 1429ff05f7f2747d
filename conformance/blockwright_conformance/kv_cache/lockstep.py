"""Lock-step: one action on a manager and on the specification, and everything compared."""

from collections.abc import Callable
from typing import Any, NamedTuple

from blockwright_spec.manager.choices import Choice, recorded
from blockwright_spec.manager.hits import found, holding
from blockwright_spec.manager.in_time.explain import explained
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Done, Fits, Plan, Reason, Step, When
from blockwright_spec.manager.plans import plan_admission, plan_growth
from blockwright_spec.manager.state import NULL, Absent, Content, Hit, Running, State, held_tables
from blockwright_spec.manager.step_laws import copies
from blockwright_spec.manager.table_laws import common_prefix_blocks
from blockwright_spec.reads import Prefix

from .abstraction import differences, expected
from .actions import (
    Action,
    Admit,
    AdmitHeld,
    Append,
    Find,
    FinishLoad,
    Fork,
    Grow,
    GrowEach,
    LateHit,
    Preempt,
    Publish,
    Release,
    Reset,
    Settle,
    Start,
    TakeCopies,
    Told,
    Trim,
    WrongHit,
    WrongStep,
    computed_of,
    meaning,
    sent,
    step_of,
)
from .adapter import Explained, Found, ManagerAdapter, Planned, Served

OTHER = "other"
"""The name of a request made only for its lookup."""


class Reply(NamedTuple):
    """What a manager answered to an action."""

    refused: bool = False
    """It said "not now": None, or False for a reset."""
    error: Exception | None = None
    """It said that the call was wrong."""
    hit: Found | None = None
    served: tuple[Served, ...] = ()


def name_of(slot: int) -> str:
    """Give the id of the request in a slot."""
    return f"r{slot}"


def perform(adapter: ManagerAdapter, action: Action, state: State) -> Reply:
    """Perform an action on a manager whose abstract state is `state`."""
    try:
        return PERFORMANCES[type(action)](adapter, action, state)
    except adapter.errors as error:
        return Reply(error=error)


def allocate(
    adapter: ManagerAdapter,
    name: str,
    computed: int,
    step: Step,
    hit: Found | None = None,
    hit_of: str | None = None,
    plan: Plan | None = None,
) -> Reply:
    """Give one request slots; where the specification's own plan is given, by planning first and committing."""
    length = hit.length if hit else 0
    try:
        if plan is not None:
            return committed(adapter, name, adapter.plan(name, computed, step, length, hit_of), plan, hit)
        given = adapter.allocate(name, computed, step, length, hit_of)
    except adapter.errors as error:
        return Reply(error=error, hit=hit)
    return Reply(given is None, None, hit, () if given is None else (Served(given),))


def committed(adapter: ManagerAdapter, name: str, planned: Planned, plan: Plan, hit: Found | None) -> Reply:
    """Compare a manager's plan with the specification's, and commit it if it fits (PLAN-1).

    Raises:
        AssertionError: the plans differ.
    """
    if isinstance(plan, Fits):
        wanted = Planned(plan.demand)
    else:
        wanted = Planned(missing=plan.missing if plan.reason is Reason.NO_FREE_BLOCKS else None)
    if planned != wanted:
        raise AssertionError(f"PLAN-1: expected {wanted}, found {planned}")
    if planned.demand is None:
        return Reply(True, None, hit)
    return Reply(False, None, hit, (Served(adapter.commit(name)),))


def perform_admit(adapter: ManagerAdapter, action: Admit, state: State) -> Reply:
    """Send the request if it is not there, look it up, admit it; drop it again if it was refused."""
    name, absent = name_of(action.slot), isinstance(state.requests[action.slot], Absent)
    if absent:
        adapter.send(name, action.prefix)
    hit = adapter.find(name) if action.asked else None
    plan = None
    if action.planned:
        spec_hit = Hit(*hit) if hit else Hit()
        plan = plan_admission(sent(state, action.slot, action.prefix), action.slot, spec_hit, step_of(action))
    reply = allocate(adapter, name, 0, step_of(action), hit, name if hit else None, plan)
    if absent and not reply.served:
        adapter.forget(name)
    return reply


def perform_find(adapter: ManagerAdapter, action: Find, state: State) -> Reply:
    """Send the request if it is not there, and look it up."""
    name = name_of(action.slot)
    if isinstance(state.requests[action.slot], Absent):
        adapter.send(name, action.prefix)
    return Reply(hit=adapter.find(name))


def perform_admit_held(adapter: ManagerAdapter, action: AdmitHeld, state: State) -> Reply:
    """Admit a request with the hit it was told before."""
    request: Any = state.requests[action.slot]
    name, hit = name_of(action.slot), Found(request.hit.length, request.hit.tables)
    reply = allocate(adapter, name, 0, step_of(action), hit, name if hit.length else None)
    return reply._replace(hit=None)


def perform_grow(adapter: ManagerAdapter, action: Grow, state: State) -> Reply:
    """Give a running request slots."""
    computed = computed_of(state, action.slot)
    plan = plan_growth(state, action.slot, computed, step_of(action)) if action.planned else None
    return allocate(adapter, name_of(action.slot), computed, step_of(action), plan=plan)


def perform_grow_each(adapter: ManagerAdapter, action: GrowEach, state: State) -> Reply:
    """Give several requests slots in one call."""
    asks = tuple((name_of(slot), computed_of(state, slot), new) for slot, new in action.asks)
    served, whole = adapter.allocate_each(asks, action.lookahead)
    return Reply(not whole, None, None, served)


def perform_reset(adapter: ManagerAdapter, action: Reset, state: State) -> Reply:
    """Reset the prefix cache."""
    return Reply(refused=not adapter.reset())


def perform_release(adapter: ManagerAdapter, action: Release, state: State) -> Reply:
    """Free a request; one that was never sent is made, so that there is something to name."""
    name = name_of(action.slot)
    if isinstance(state.requests[action.slot], Absent):
        adapter.send(name, (0, (0,)))
    adapter.free(name)
    adapter.forget(name)
    return Reply()


def perform_fork(adapter: ManagerAdapter, action: Fork, state: State) -> Reply:
    """Fork a request; one that was never sent is made, so that there is something to name."""
    name, child, one = name_of(action.slot), name_of(action.child), state.requests[action.slot]
    if isinstance(one, Absent):
        adapter.send(name, (0, (0,)))
    absent = isinstance(state.requests[action.child], Absent)
    reply = forked(
        adapter, name, child, action.prefix, computed_of(state, action.slot) if isinstance(one, Running) else 0
    )
    if absent and (reply.refused or reply.error):
        adapter.forget(child)
    if isinstance(one, Absent):
        adapter.forget(name)
    return reply


def forked(adapter: ManagerAdapter, name: str, child: str, prefix: Prefix, computed: int) -> Reply:
    """Fork a request that is there."""
    try:
        return Reply(refused=not adapter.fork(name, child, prefix, computed))
    except adapter.errors as error:
        return Reply(error=error)


def perform_take_copies(adapter: ManagerAdapter, action: TakeCopies, state: State) -> Reply:
    """Take the copies to come, and compare them with the specification's (COPY-1).

    Raises:
        AssertionError: they differ.
    """
    groups = range(len(state.config.groups))
    wanted = tuple([tuple([copy[1:] for copy in state.copies if copy[0] == group]) for group in groups])
    copies = adapter.take_copies()
    if copies != wanted:
        raise AssertionError(f"COPY-1: expected the copies {wanted}, found {copies}")
    return Reply()


def perform_wrong_step(adapter: ManagerAdapter, action: WrongStep, state: State) -> Reply:
    """Ask slots with wrong counts."""
    name, there = name_of(action.slot), isinstance(state.requests[action.slot], Running)
    if not there:
        adapter.send(name, action.prefix)
    reply = allocate(adapter, name, action.computed, step_of(action))
    if not there:
        adapter.forget(name)
    return reply


def perform_wrong_hit(adapter: ManagerAdapter, action: WrongHit, state: State) -> Reply:
    """Admit a request with the hit of another, or of another length."""
    name = name_of(action.slot)
    adapter.send(OTHER, action.other)
    tables = adapter.find(OTHER).tables
    adapter.send(name, action.prefix)
    hit = Found(action.claimed, tables)
    reply = allocate(adapter, name, 0, Step(len(action.prefix[1]) - action.claimed), hit, OTHER)
    adapter.forget(OTHER)
    adapter.forget(name)
    return reply._replace(hit=None)


def perform_late_hit(adapter: ManagerAdapter, action: LateHit, state: State) -> Reply:
    """Give a running request a hit."""
    adapter.send(OTHER, action.prefix)
    hit = adapter.find(OTHER)
    reply = allocate(adapter, name_of(action.slot), computed_of(state, action.slot), Step(1), hit, OTHER)
    adapter.forget(OTHER)
    return reply._replace(hit=None)


def done(call: Callable[[ManagerAdapter, Any], None]) -> Callable[[ManagerAdapter, Any, State], Reply]:
    """Make a performance of a call that returns nothing."""

    def performed(adapter: ManagerAdapter, action: Any, state: State) -> Reply:
        call(adapter, action)
        return Reply()

    return performed


PERFORMANCES: dict[type, Callable[..., Reply]] = {
    Admit: perform_admit,
    Find: perform_find,
    AdmitHeld: perform_admit_held,
    Grow: perform_grow,
    GrowEach: perform_grow_each,
    Append: done(lambda adapter, action: adapter.append(name_of(action.slot), action.tokens)),
    Publish: done(lambda adapter, action: adapter.publish(name_of(action.slot), action.end)),
    Trim: done(lambda adapter, action: adapter.trim(name_of(action.slot), action.end)),
    Release: perform_release,
    Preempt: done(lambda adapter, action: adapter.free(name_of(action.slot))),
    Reset: perform_reset,
    Start: done(lambda adapter, action: adapter.start()),
    Settle: done(
        lambda adapter, action: adapter.settle(tuple([(name_of(slot), count) for slot, count in action.rejected]))
    ),
    FinishLoad: done(lambda adapter, action: adapter.finish_load(name_of(action.slot), action.came)),
    Fork: perform_fork,
    TakeCopies: perform_take_copies,
    WrongStep: perform_wrong_step,
    WrongHit: perform_wrong_hit,
    LateHit: perform_late_hit,
}
"""How each action is performed on a manager."""


def choice_of(adapter: ManagerAdapter, reply: Reply) -> Choice:
    """Give the choice by which the specification goes: the policy's, or what the manager was seen to choose."""
    if adapter.follows_policy:
        return LRU
    taken = tuple(block for given in reply.served for table in given.new for block in table if block != NULL)
    served = tuple(block for table in reply.hit.tables for block in table) if reply.hit else ()
    return recorded(taken, served, LRU)


def refusals(told: Told, reply: Reply, adapter: ManagerAdapter) -> list[str]:
    """Name the differences in acceptance: not now, wrong, or done."""
    when = told.refusal.reason.value[0] if told.refusal else None
    error = reply.error
    wrong = when is When.INVALID or (told.refusal and told.refusal.reason is Reason.TOO_LONG and error is not None)
    if wrong and error is None:
        return [f"accepted, or refused for now; the call is wrong: {told.refusal}"]
    if error is not None and not wrong:
        return [f"called wrong ({type(error).__name__}: {error}); expected {told.refusal or 'success'}"]
    if told.refusal and told.refusal.reason is Reason.HIT_STALE and not isinstance(error, adapter.stale):
        return [f"wrong error for a stale hit: {type(error).__name__}: {error}"]
    if reply.refused != (when in (When.NOT_NOW, When.NEVER) and not wrong):
        return [f"refused: expected {told.refusal}, found {'a refusal' if reply.refused else 'none'}"]
    return []


def compare(told: Told, reply: Reply, adapter: ManagerAdapter, names: tuple[str, ...]) -> list[str]:
    """Name what differs between what the specification tells and what the manager answered and shows."""
    faults = refusals(told, reply, adapter)
    if told.hit is not None and reply.hit is not None and (told.hit.length, told.hit.tables) != reply.hit:
        faults.append(f"hit: expected {told.hit.length} tokens in {told.hit.tables}, found {reply.hit}")
    for step, served in zip(told.steps, reply.served, strict=False):
        if step.new != served.new:
            faults.append(f"new blocks: expected {step.new}, found {served.new}")
        if served.nulled is not None and step.nulled != served.nulled:
            faults.append(f"nulled entries: expected {step.nulled}, found {served.nulled}")
        if served.replaced is not None and replaced(step) != served.replaced:
            faults.append(f"replaced entries: expected {replaced(step)}, found {served.replaced}")
    shown = adapter.observe(names)
    if shown.evicted is not None:
        faults += misreported(told, shown.evicted)
    return faults + differences(expected(told.state), shown._replace(evicted=None), adapter.follows_policy)


def misreported(told: Told, evicted: tuple[tuple[int, Content], ...]) -> list[str]:
    """Name what was told of evictions and was none, and what was lost and is not told (STEP-4).

    What the same step publishes again, in another block, need not be told: a manager may have published it by the time
    it takes the last block that was there.
    """
    lost: list[tuple[int, Content]] = []
    wanted: list[tuple[int, Content]] = []
    for step in told.steps:
        lost += step.evicted
        for block, content in step.evicted:
            if (block, content) in evicted or not {*holding(step.state, content)} - {block}:
                wanted.append((block, content))
    return [] if tuple(wanted) == evicted else [f"evicted: expected {lost}, found {list(evicted)}"]


def replaced(step: Done) -> tuple[tuple[int, int, int], ...]:
    """Give the entries that a step copied: group, entry, and the block that stands there now."""
    targets = {group: target for group, _, target in copies(step)}
    return tuple([(at, entry, targets[at]) for at, entry in enumerate(step.copied) if entry is not None])


def names_of(state: State) -> tuple[str, ...]:
    """Give the ids of all requests of a state."""
    return tuple([name_of(slot) for slot in range(len(state.requests))])


def act(adapter: ManagerAdapter, state: State, action: Action) -> tuple[Told, list[str]]:
    """Perform an action on a manager and on the specification, and name all differences; the manager moves on."""
    reply = perform(adapter, action, state)
    told = meaning(state, action, choice_of(adapter, reply))
    return told, compare(told, reply, adapter, names_of(state))


def unexplained(adapter: ManagerAdapter, state: State, prompts: tuple[Prefix, ...]) -> list[str]:
    """Name the differences in how a manager explains the hits of prompts (EXPLAIN-1)."""
    faults = []
    for prefix in prompts:
        adapter.send(OTHER, prefix)
        said, wanted = adapter.explain(OTHER), explained(state, prefix)
        parts = tuple([(part.length, (*part.missing, None)[0], part.limit.name) for part in wanted.parts])
        if said != Explained(wanted.length, wanted.candidate, parts):
            faults.append(f"EXPLAIN-1: hit of {prefix}: expected {wanted}, found {said}")
    adapter.forget(OTHER)
    return faults


def examine(
    adapter: ManagerAdapter, state: State, prompts: tuple[Prefix, ...], asked: frozenset[str] = frozenset()
) -> list[str]:
    """Name the differences in what a manager answers to questions that change nothing: lookups, common prefixes.

    With "explain" among what is `asked`, also why hits are no longer; with "pin" all that holds while pins do, too.
    """
    faults = unexplained(adapter, state, prompts) if "explain" in asked else []
    for prefix in prompts if state.config.caching else ():
        adapter.send(OTHER, prefix)
        hit, wanted = adapter.find(OTHER), found(state, prefix, LRU)
        tables = wanted.tables if adapter.follows_policy else hit.tables
        if (wanted.length, tables) != hit:
            faults.append(f"lookup of {prefix}: expected {wanted.length} tokens in {wanted.tables}, found {hit}")
    adapter.forget(OTHER)
    return faults + uncommon(adapter, state) + (pinned(adapter, state) if "pin" in asked else [])


def uncommon(adapter: ManagerAdapter, state: State) -> list[str]:
    """Name the differences in the common prefixes that a manager counts (COMMON-1)."""
    faults, groups = [], range(len(state.config.groups))
    for slot, request in enumerate(state.requests):
        for count in range(1, len(state.requests) + 1) if isinstance(request, Running) else ():
            shared = adapter.common_prefix(name_of(slot), count)
            wants = tuple(common_prefix_blocks(state, slot, group, count) for group in groups)
            if shared != wants:
                faults.append(
                    f"COMMON-1: blocks of {name_of(slot)} shared by {count}: expected {wants}, found {shared}"
                )
    return faults


def pinned(adapter: ManagerAdapter, state: State) -> list[str]:
    """Name what goes wrong on a copy of a manager where the engine holds every held block once more, as a store does.

    The self-check must know of it, and it must not pass for a request.
    """
    twin = adapter.copy()
    held = {block for table in held_tables(state) for block in table if block != NULL}
    twin.pin(tuple(sorted(held)))
    twin.check()
    return [f"{fault}, with all of them pinned" for fault in uncommon(twin, state)]
