"""Following a manager of another make: each step is judged from where that manager is.

`explore` demands that a manager's state equals the specification's, and stops at the first difference. A manager of
another make may differ where it is free to, so here the state of the specification is taken, after each step, from
what the manager shows; ghosts (what was written to each block, which tokens are settled) go along. So each step is
compared with what the specification makes of the very state the manager was in, every law is judged of the manager's
own state, and one difference does not hide the next.
"""

import traceback
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from blockwright_conformance.checker.world import Action
from blockwright_conformance.kv_cache import actions
from blockwright_conformance.kv_cache.abstraction import compared, expected
from blockwright_conformance.kv_cache.adapter import Observation
from blockwright_conformance.kv_cache.calls import KINDS, Call
from blockwright_conformance.kv_cache.lockstep import choice_of
from blockwright_conformance.kv_cache.outcome import ManagerOutcome
from blockwright_conformance.kv_cache.parts import OTHER, Reply, names_of, sent, settled, step_of
from blockwright_conformance.kv_cache.requests import Admit
from blockwright_conformance.kv_cache.scopes import Scope
from blockwright_spec.manager import transitions
from blockwright_spec.manager.choices import Choice
from blockwright_spec.manager.effects import write_tokens
from blockwright_spec.manager.hits import found, sound
from blockwright_spec.manager.in_time.in_flight import begin
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Reason, When
from blockwright_spec.manager.preconditions import trim_tables
from blockwright_spec.manager.state import NULL, Content, Hit, Running, State, Waiting
from blockwright_spec.reads import Full, Prefix

from .loading import SyncLoad, mean_sync_load, perform_sync_load


class LawError(AssertionError):
    """A law that a manager breaks by its own account, as that of its own fields which contradict one another."""

    def __init__(self, law: str, detail: str) -> None:
        super().__init__(detail)
        self.law = law


class Fault(NamedTuple):
    """One difference: a law, and what differs, which begins with a word for its kind."""

    law: str
    kind: str
    detail: str


class Followed(NamedTuple):
    """What an action came to: the manager's state after it (None: not to be gone on from), and what differs."""

    outcome: ManagerOutcome
    state: State | None
    faults: list[Fault]


def enabled(scope: Scope, state: State, adapter: Any) -> Iterator[Action | SyncLoad]:
    hits: dict[Prefix, Hit] = {}

    def hit_of(prefix: Prefix) -> Hit:
        if prefix not in hits:
            hits[prefix] = asked(adapter, prefix) if state.config.caching else Hit()
        return hits[prefix]

    is_absent_seen = False
    for slot, request in enumerate(state.requests):
        if isinstance(request, Running):
            for each in actions.RUNNING:
                yield from each.allowed(scope, state, slot, request.prefix)
        elif isinstance(request, Waiting):
            yield from newcomers(scope, state, slot, request.prefix, hit_of(request.prefix))
            yield Call("Release", (slot,))
        elif not is_absent_seen:
            is_absent_seen = True
            for prefix in scope.prompts:
                yield from newcomers(scope, state, slot, prefix, hit_of(prefix))
    for name in ("Reset", "FinishLoad"):
        yield from KINDS[name].allowed(scope, state)


def newcomers(scope: Scope, state: State, slot: int, prefix: Prefix, hit: Hit) -> Iterator[Action | SyncLoad]:
    """Return the ways to admit a request, those with a load within the step among them.

    A load of its own, before the step, is left out where layers recycle blocks: a manager may leave out at once what
    the specification gives back when the load has ended.
    """
    recycles = any(not isinstance(group.kind, Full) for group in state.config.groups)
    for action in Admit.with_hit(scope, state, slot, prefix, hit):
        if not (action.step.external and recycles):
            yield action
    if "load" in scope.calls:
        left = len(prefix[1]) - hit.length
        for external in range(1, left):
            yield SyncLoad(slot, prefix, step_of(left - external, external=external))


def asked(adapter: Any, prefix: Prefix) -> Hit:
    names = tuple(adapter.requests)
    before, log, adapter.log = adapter.observe(names), adapter.log, None
    adapter.send(OTHER, prefix)
    found = adapter.find(OTHER)
    adapter.forget(OTHER)
    adapter.log = log
    if adapter.observe(names) != before:
        raise LawError("REF-0", f"a lookup of {prefix} changed the manager")
    return Hit(*found)


def follow(adapter: Any, state: State, action: Action | SyncLoad) -> Followed:
    try:
        call = perform_sync_load if isinstance(action, SyncLoad) else actions.perform
        reply = call(adapter, action, state)
    except Exception as error:
        outcome = tell(state, action, Reply())
        wanted = outcome.refusal or "success"
        law = getattr(error, "law", None) or adapter.law_of(error)
        return Followed(outcome, None, [Fault(law, "error", f"{where(error)}; expected {wanted}")])
    shown = adapter.observe(names_of(state))
    choice = choice_of(adapter, state, reply, shown, tuple(range(len(state.requests))))
    outcome = tell(state, action, reply, choice)
    outcome = replace(outcome, state=begin(outcome.state).state)  # type: ignore[union-attr]  # each call is a step of its own
    if isinstance(action, Call) and action.kind == "FinishLoad":
        outcome = replace(outcome, state=replace(outcome.state, contents=arrived(state, outcome, *action.arguments)))
    faults = misfound(state, action, reply) + misjudged(state, action, outcome, reply)
    is_agreed = reply.refused == (outcome.refusal is not None)
    if outcome.refusal is not None and not reply.refused:
        return Followed(outcome, None, faults)  # nothing is known of what the manager has done
    base = outcome.state if is_agreed else state
    changed = unlike(base, shown)
    if reply.refused and changed:
        kind = "trimmed" if is_trimmed(base, shown) else "changed"
        details = "; ".join(f"{name}: {detail}" for name, detail in changed)
        faults.append(Fault("REF-0", f"{kind} by a refusal", details))
    elif changed:
        faults += [Fault("REF-0", name, detail) for name, detail in changed]
    # A step that was not made breaks no law of steps.
    return Followed(outcome if is_agreed else replace(outcome, steps=()), rejoined(state, base, shown), faults)


def arrived(state: State, outcome: ManagerOutcome, slot: int, count: int) -> tuple[Content | None, ...]:
    request = state.requests[slot]
    if outcome.refusal or not count or not isinstance(request, Running):
        return outcome.state.contents
    came = replace(request, computed=request.written + count)
    return write_tokens(state, slot, came, request.written).contents


def where(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {frame.name}: {str(error) or frame.line}"


def tell(state: State, action: Any, reply: Reply, choice: Choice = LRU) -> ManagerOutcome:
    hit = Hit(*reply.hit) if reply.hit and reply.hit.length else Hit()
    if isinstance(action, SyncLoad):
        return mean_sync_load(state, action, hit, reply)
    if isinstance(action, Admit) and action.asked:
        ready = sent(state, action.slot, action.prefix)
        return settled(state, transitions.admit(ready, action.slot, hit, action.step, choice), hit)
    return action.meaning(state, choice)  # type: ignore[no-any-return]


def misfound(state: State, action: Any, reply: Reply) -> list[Fault]:
    return misheld(state, action.prefix, Hit(*reply.hit)) if reply.hit and state.config.caching else []


def misheld(state: State, prefix: Prefix, hit: Hit) -> list[Fault]:
    best = found(state, prefix, LRU)
    faults = []
    if hit.length and not sound(state, prefix, hit):
        faults.append(Fault("HIT-1", "hit", f"a hit of {hit.length} tokens in {hit.tables} is not that of {prefix}"))
    if hit.length < best.length:
        faults.append(Fault("HIT-2", "hit", f"a hit of {hit.length} tokens of {prefix}, {best.length} could be read"))
    if hit.length > best.length:
        faults.append(Fault("HIT-3", "hit", f"a hit of {hit.length} tokens of {prefix}, {best.length} may be"))
    return faults


def misjudged(state: State, action: Any, outcome: ManagerOutcome, reply: Reply) -> list[Fault]:
    free = len(state.queue)
    if outcome.refusal is None:
        if not reply.refused:
            return []
        return [Fault("PLAN-1", "refused", f"refused, though {free} free blocks are enough")]
    if reply.refused:
        return []
    reason = outcome.refusal.reason
    if reason is Reason.ILLEGAL_CHOICE:
        wants = tell(state, action, reply._replace(served=()))
        new = wants.done[-1].new if wants.steps else wants.refusal
        return [Fault("PLAN-1", "taken", f"took {reply.served[0].new}, where the step wants the like of {new}")]
    kind = "wrong call" if reason.value[0] is When.INVALID else "served"
    return [Fault("PLAN-1", kind, f"served with {free} free blocks, expected {outcome.refusal}")]


def is_trimmed(base: State, shown: Observation) -> bool:
    if shown.keys != expected(base).keys:
        return False
    for request, now in zip(base.requests, shown.tables, strict=True):
        if not isinstance(request, Running) or now is None:
            if isinstance(request, Running) or now is not None:
                return False
            continue
        least = trim_tables(base.config, request.tables, request.computed)
        triples = zip(sum(request.tables, ()), sum(least, ()), sum(now, ()), strict=True)
        if any(block not in (was, dead_or_not) for was, dead_or_not, block in triples):
            return False
    return True


OWN = frozenset({"settled", "published", "states"})
"""Fields that are a manager's own account; the laws judge what comes of them."""


def unlike(base: State, shown: Observation) -> list[tuple[str, str]]:
    """Name the fields in which a manager differs from a state; in what order its queue stands is its own."""
    wanted = expected(base)
    pairs = zip(Observation._fields, compared(wanted, False), compared(shown, False), strict=True)
    return [
        (name, f"expected {want}, found {show}")
        for name, want, show in pairs
        if name not in OWN and show is not None and want != show
    ]


def rejoined(before: State, base: State, shown: Observation) -> State | None:
    """Return the state that a manager shows, with the ghosts of `base`, what the specification says of the step.

    None where a request holds a table on one side only: then nothing is known of its tokens.
    """
    assert shown.queue is not None
    assert shown.keys is not None
    assert shown.published is not None
    requests = []
    for request, table, looked in zip(base.requests, shown.tables, shown.published, strict=True):
        if isinstance(request, Running) != (table is not None):
            return None
        if isinstance(request, Running) and table is not None and looked is not None:
            done = request.computed if nulls(table) > nulls(request.tables) else 0
            sizes = (group.block_size for group in base.config.groups)
            own = tuple(min(count, request.computed // size) for count, size in zip(looked, sizes, strict=True))
            trimmed, sure = max(done, request.trimmed), max(done, request.settled)
            now = replace(request, tables=table, published=own, trimmed=trimmed, settled=sure)
            request = request if now == request else now  # a step makes anew what it serves, and nothing else (WRITE-2)
        requests.append(request)
    listed = dict(enumerate(shown.keys))
    kept = tuple((block, content) for block, content in base.keys if listed[block] == content)
    known = {block for block, _ in kept}
    keys = kept + tuple((block, each) for block, each in listed.items() if each is not None and block not in known)
    contents = tuple(
        None
        if block == NULL or (block in shown.queue and listed[block] is None)
        else content or (before.contents[block] if block not in before.queue else None)
        for block, content in enumerate(base.contents)
    )
    return replace(base, queue=shown.queue, contents=contents, keys=keys, requests=tuple(requests))


def nulls(tables: tuple[tuple[int, ...], ...]) -> int:
    return sum(table.count(NULL) for table in tables)


def misanswered(adapter: Any, state: State, prompts: tuple[Prefix, ...]) -> list[Fault]:
    if not state.config.caching:
        return []
    return [fault for prefix in prompts for fault in misheld(state, prefix, asked(adapter, prefix))]
