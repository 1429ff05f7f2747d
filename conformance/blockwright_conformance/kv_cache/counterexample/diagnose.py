"""The laws that a manager's fault breaks: `symptoms` of its last action, and of its answers to questions.

Beside the laws of states and steps, asked of what the manager *shows* (its tables, queue and keys; the ghost contents
follow its own tables), these are laws of the kit (`checker/laws.toml` has their sentences); HIT-1 to HIT-3 are asked of
the hit that the manager itself finds.

Steps in flight and fences are the specification's: no manager shows them. They are judged only on blocks that they may
touch. A call that ended in an error that no manager may raise has shown nothing: of it, only the laws are judged that
let nothing change.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from blockwright_spec.law import Law
from blockwright_spec.manager.effects import target
from blockwright_spec.manager.facts import heads, holders, span
from blockwright_spec.manager.hits import found
from blockwright_spec.manager.keys import aligned, stride, upto
from blockwright_spec.manager.laws import LAWS, POLICY_LAWS, POLICY_STEP_LAWS, STEP_LAWS
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.marks import memory_of
from blockwright_spec.manager.outcomes import Done
from blockwright_spec.manager.state import NULL, Content, Hit, Request, Running, State, Waiting
from blockwright_spec.manager.step_laws import table_after
from blockwright_spec.manager.told import num_saved
from blockwright_spec.reads import Cross, Mamba, Prefix, cut, margin, needed, shows, writes

from ...checker.diagnose import Broken
from ...checker.lockstep import Compared
from ...checker.world import kind_of
from ..abstraction import differences, expected
from ..adapter import Found, ManagerAdapter, Observation
from ..outcome import ManagerOutcome
from ..parts import OTHER, Reply, names_of
from ..requests import Admit, Find, GrowEach

HINTS = ("Retain", "ReleasePrefix", "Tick")


def symptoms(adapter: ManagerAdapter, before: State, action: Any, compared: Compared) -> Broken:
    outcome: Any = compared.outcome
    reply, shown = compared.reply or Reply(), compared.shown
    if compared.reply is not None:
        yield from admission(before, action, reply, outcome)
    with suppress(Exception):
        shown = shown or adapter.observe(names_of(before))
    if shown is not None:
        yield from effects(before, action, reply, outcome, shown)
    if shown is not None and compared.reply is not None:
        yield from fences(before, outcome, shown)
        state = shown_state(before, action, reply, outcome, shown)
        yield from of_state(state, shown)
        yield from of_step(before, action, reply, outcome, state)
    if reply.hit is not None:
        yield from of_hit(before, prefix_of(before, action), reply.hit)


def misanswered(adapter: ManagerAdapter, state: State, prompts: tuple[Prefix, ...]) -> Broken:
    before = adapter.observe(names_of(state))
    for prefix in prompts if state.config.caching else ():
        adapter.send(OTHER, prefix)
        yield from of_hit(state, prefix, adapter.find(OTHER))
    adapter.forget(OTHER)
    if differences(before, adapter.observe(names_of(state))):
        yield "LOOKUP-1"


def of_hit(state: State, prefix: Prefix, hit: Found) -> Broken:
    groups, wants = state.config.groups, found(state, prefix, LRU)
    tables = heads(state.config, Hit(hit.length, hit.tables))
    end = hit.length if stride(state.config) else state.config.max_model_len

    def content_at(at: int, entry: int) -> Content | None:
        return state.contents[tables[at][entry]] if entry < len(tables[at]) else None

    if len(tables) != len(groups) or not all(
        shows(group, at, upto(content_at(at, position // group.block_size), end), prefix, position)
        for at, group in enumerate(groups)
        for position in needed(group.kind, hit.length)
    ):
        yield "HIT-1"
    if hit.length < wants.length:
        yield "HIT-2"
    extra = max(margin(group, state.config.eagle) for group in groups)
    if hit.length > max(0, len(prefix[1]) - 1 - extra) or hit.length % aligned(state.config):
        yield "HIT-3"


def effects(before: State, action: Any, reply: Reply, outcome: ManagerOutcome, shown: Observation) -> Broken:
    """Yield the laws that let nothing change: in a call that is refused, in a lookup, in a hint."""
    if not differences(expected(before), shown):
        return
    if not (outcome.steps or reply.served):
        if outcome.refusal is not None or reply.refused or reply.error is not None:
            yield "REFUSE-1"
        if isinstance(action, Find):
            yield "LOOKUP-1"
    if kind_of(action) in HINTS:
        yield "HINT-1"


def admission(before: State, action: Any, reply: Reply, outcome: ManagerOutcome) -> Broken:
    refused = reply.refused or reply.error is not None
    if not isinstance(action, Admit) or refused == (outcome.refusal is not None):
        return
    if action.step.whole or action.step.reserve or before.config.watermark:
        yield "PLAN-2"
    if refused and len(before.queue) == before.config.num_blocks - 1:
        yield "LIVE-1"


def fences(before: State, outcome: ManagerOutcome, shown: Observation) -> Broken:
    """Yield FENCE-1 where blocks are back too early, or are still not back."""
    if shown.queue is None:
        return
    waiting = {block for fence in outcome.state.batches for table in fence.tables for block in table}
    due = {block for fence in before.batches for table in fence.tables for block in table} - waiting
    tables = [*shown.tables, *(shown.states or ())]
    held = {block for groups in tables for table in groups or () for block in table}
    early, late = waiting & set(shown.queue), due - held - set(shown.queue)
    if early or late:
        yield "FENCE-1"


def prefix_of(before: State, action: Any) -> Prefix:
    request = before.requests[getattr(action, "slot", None) or 0]
    if isinstance(request, Running | Waiting):
        return request.prefix
    prefix: Prefix = getattr(action, "prefix", (0, ()))
    return prefix


def shown_state(before: State, action: Any, reply: Reply, outcome: ManagerOutcome, shown: Observation) -> State:
    """Make a state from a manager's observation after an action; contents follow the observed tables."""
    happened = outcome.state if reply.served or not (reply.refused or reply.error) else before
    keys = outcome.state.keys
    if shown.keys is not None:
        seen = tuple(shown_keys(shown.keys, shown.tails))
        kept = tuple(key for key in before.keys if key in seen)
        keys = (*kept, *(key for key in seen if key not in kept))
    contents = list(before.contents)
    for block in (block for served in reply.served for table in served.new for block in table):
        contents[block] = None
    copies = happened.copies if shown.copies is None else shown.copies
    for _, source, destination in copies[len(before.copies) :]:
        contents[destination] = before.contents[source]
    slots = range(len(before.requests))
    requests = tuple(shown_request(before, happened, action, reply, shown, slot) for slot in slots)
    for was, request in zip(before.requests, requests, strict=True):
        if isinstance(request, Running):
            for block, content in writing(before, was, request):
                contents[block] = content
    queue = happened.queue if shown.queue is None else shown.queue
    published_blocks = {block for block, _ in keys}
    for block in set(queue) - published_blocks - {NULL}:
        contents[block] = None
    return replace(happened, queue=queue, contents=tuple(contents), keys=keys, requests=requests, copies=copies)


def shown_keys(
    keys: tuple[Content | None, ...], tails: tuple[tuple[int, ...], ...] | None
) -> Iterator[tuple[int, Content]]:
    """Yield all that blocks are published as: the longest content of each, and the other lengths of it."""
    for block, content in enumerate(keys):
        if content is not None:
            yield from ((block, (content[0], cut(content[1], end))) for end in (tails[block] if tails else ()))
            yield block, content


def shown_request(before: State, happened: State, action: Any, reply: Reply, shown: Observation, slot: int) -> Request:
    """Make one request from its observation; fields that are not observed are the specification's."""
    was, now, tables = before.requests[slot], happened.requests[slot], shown.tables[slot]
    if tables is None:
        return Waiting(now.prefix) if isinstance(now, Running) else now
    request = now if isinstance(now, Running) else was if isinstance(was, Running) else assumed(before, action, reply)
    settled = shown.settled[slot] if shown.settled else None
    return replace(
        request,
        tables=tables,
        published=(shown.published and shown.published[slot]) or request.published,
        states=(shown.states and shown.states[slot]) or request.states,
        settled=request.settled if settled is None else settled,
    )


def writing(state: State, was: Request, request: Running) -> Iterator[tuple[int, Content | None]]:
    start = was.computed if isinstance(was, Running) else request.settled
    before = was.written if isinstance(was, Running) else request.settled
    if request.written > before:
        yield from ((block, None) for blocks in request.states for block in blocks)
    for at, group in enumerate(state.config.groups):
        for position in writes(group.kind, start, request.computed):
            with suppress(IndexError):
                block = target(request, at, group, span(state.config, group), position)
                yield block, (at, cut(request.prefix, position + 1))


def assumed(before: State, action: Any, reply: Reply) -> Running:
    """Make the request that a manager holds against the specification: it was admitted, as far as the call shows."""
    prefix, length = prefix_of(before, action), reply.hit.length if reply.hit is not None else 0
    written = length + (action.step.new if hasattr(action, "step") else 0)
    none = tuple(0 for _ in before.config.groups)
    return Running(prefix, length, min(written, len(prefix[1])), written, (), none)


def applies(law: Law, config: Any) -> bool:
    """Return whether a law is about a configuration at all: laws of recurrent layers, where there are some."""
    word = law.id.partition("-")[0]
    kind = {"MAMBA": Mamba, "CROSS": Cross}.get(word)
    if kind is not None:
        return any(isinstance(group.kind, kind) for group in config.groups)
    return word != "UNIT" or bool(stride(config))


def holds(law: Law, config: Any, *facts: object) -> bool:
    """Return whether a law holds; one that is about it and cannot even be asked (a table is too short) does not."""
    try:
        return not applies(law, config) or law.holds(*facts)
    except (AssertionError, LookupError, ValueError):
        return False


def of_state(state: State, shown: Observation) -> Broken:
    for law in (*LAWS, *POLICY_LAWS) if memory_of(state).marks else LAWS:
        if not holds(law, state.config, state):
            yield law.id
    if any(count != holders(state, block) for block, count in enumerate(shown.references or ()) if block != NULL):
        yield "REF-1"
    if shown.queue is not None and shown.free not in (None, len(shown.queue)):
        yield "QUEUE-1"


def of_step(before: State, action: Any, reply: Reply, outcome: ManagerOutcome, state: State) -> Broken:
    """Yield the laws of steps that a shown step breaks; its report on each table must rebuild that table."""
    new = tuple(table for served in reply.served for table in served.new)
    demand = sum(step.demand for step, _ in zip(outcome.done, reply.served, strict=False))
    saved = sum(num_saved(step) for step in outcome.done)
    copied = (0,) * max(0, len(state.copies) - len(before.copies) - saved)  # which entries does not matter here
    forgot = frozenset(content for step in outcome.done for content in step.forgot)
    kept, forgot_all = next((each.kept for each in outcome.done), None), any(each.forgot_all for each in outcome.done)
    steps = tuple(act for step in outcome.done for act in step.steps)
    done = Done(state, new, (), demand, copied, forgot, forgot_all, kept, steps)
    for law in (*STEP_LAWS, *POLICY_STEP_LAWS) if memory_of(state).marks else STEP_LAWS:
        if law.id not in ("STEP-1", "STEP-4") and not holds(law, state.config, before, done):
            yield law.id
    slots = [slot for slot, _ in action.asks] if isinstance(action, GrowEach) else []
    slots += [action.slot] if getattr(action, "slot", None) is not None else []
    for slot, step, served in zip(slots, outcome.done, reply.served, strict=False):
        after, was = state.requests[slot], before.requests[slot]
        nulled = step.nulled if served.nulled is None else served.nulled
        if isinstance(after, Running) and isinstance(was, Running):
            for at, table in enumerate(after.tables):
                if table_after(was.tables[at], replace(step, state=state, new=served.new, nulled=nulled), at) != table:
                    yield "STEP-1"
