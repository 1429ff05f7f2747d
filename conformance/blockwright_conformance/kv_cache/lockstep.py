"""A manager's answer and observation beside the specification's: every difference, in words.

A difference begins with the law that it breaks, or with the field that differs and a colon.
"""

from typing import Any

from blockwright_spec.manager.choices import Choice
from blockwright_spec.manager.events import Listener, Routed, num_own
from blockwright_spec.manager.facts import held_tables
from blockwright_spec.manager.hits import found, holding
from blockwright_spec.manager.in_time.explain import explained
from blockwright_spec.manager.in_time.forks import held_alone
from blockwright_spec.manager.laws import EVENT_LAWS, METRIC_LAWS, ORDER_LAWS, ROUTER_LAWS
from blockwright_spec.manager.lease import lease
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.marks import memory_of
from blockwright_spec.manager.metrics import Call, Counts, added, counted
from blockwright_spec.manager.orders import Told
from blockwright_spec.manager.outcomes import Done, Reason, When
from blockwright_spec.manager.state import NULL, Content, Hit, Running, State, Waiting
from blockwright_spec.manager.table_laws import common_prefix_blocks
from blockwright_spec.manager.told import copies, evicted, folded
from blockwright_spec.reads import Prefix

from .abstraction import differences, expected
from .adapter import Explained, Found, ManagerAdapter, Observation, Tables
from .outcome import ManagerOutcome
from .parts import OTHER, Reply, name_of, names_of, waits_told
from .scopes import option

Slots = tuple[int, ...]


def choice_of(adapter: ManagerAdapter, state: State, reply: Reply, shown: Observation, order: Slots) -> Choice:
    """Return the choice that the specification makes: the policy's, or the manager's observed one.

    Of the blocks that an action took, in the order of the requests that it served, each question is answered with the
    first that are still free.
    """
    if adapter.follows_policy:
        return LRU
    hit = reply.hit.tables if reply.hit else ()
    taken = [block for given in reply.served for table in given.new for block in table]  # `Take` names no request
    taken = [block for slot in order for block in taken_for(state, slot, reply.hit, shown)] or taken
    served = frozenset(block for table in hit for block in table)

    def take(queue: tuple[int, ...], count: int) -> tuple[int, ...]:
        return tuple([block for block in dict.fromkeys(taken) if block in queue][:count])

    def serve(holders: tuple[int, ...]) -> int:
        return next((each for each in holders if each in served), holders[0])

    return Choice(LRU.take if reply.refused and not taken else take, LRU.order, serve)


def taken_for(state: State, slot: int, hit: Found | Hit | None, shown: Observation) -> list[int]:
    """Return the blocks that a request may have been given since a state: for copies, entries, states of drafts.

    Without a hit of the action's own, the one that the request waits with was adopted. A load takes the entry that its
    hit ends inside anew, and may be given the very block that was found there.
    """
    request, groups = state.requests[slot], ((),) * len(state.config.groups)
    tables: Tables = shown.tables[slot] or groups
    hit = request.hit if isinstance(request, Waiting) and hit is None else hit
    heads: Tables = (request.tables if isinstance(request, Running) else hit.tables if hit else ()) or groups
    pairs = list(zip(heads, tables, strict=True))
    replaced = [[new for old, new in zip(head, table, strict=False) if new != old] for head, table in pairs]
    copied = [block for each in replaced for block in each]
    if shown.copies is not None:
        near = frozenset(copied).union(*heads)
        copied = [target for _, *both in shown.copies[len(state.copies) :] for target in both[1:] if near & {*both}]
    if hit and not isinstance(request, Running):
        sizes = [group.block_size for group in state.config.groups]
        heads = tuple([head[: hit.length // size] for head, size in zip(heads, sizes, strict=True)])
    rows = zip(heads, tables, replaced, strict=True)
    new = [block for head, table, each in rows for block in (*each, *table[len(head) :])]
    states = (shown.states or ())[slot : slot + 1]
    return [*copied, *new, *(block for each in states for group in each or () for block in group)]


def refusals(outcome: ManagerOutcome, reply: Reply, adapter: ManagerAdapter) -> list[str]:
    refusal, error = outcome.refusal, reply.error
    when, why = refusal.reason.value if refusal else (None, "success")
    wanted = f"{why} ({refusal.reason.name})" if refusal else why
    wrong = when is When.INVALID or (refusal and refusal.reason is Reason.TOO_LONG and error is not None)
    if wrong and error is None:
        return [f"refusal: accepted, or refused for now; expected an error: {wanted}"]
    if error is not None and not wrong:
        return [f"refusal: called wrong ({type(error).__name__}: {error}); expected {wanted}"]
    if refusal and refusal.reason is Reason.HIT_STALE and not isinstance(error, adapter.stale):
        return [f"refusal: wrong error for a stale hit: {type(error).__name__}: {error}"]
    if reply.refused != (when in (When.NOT_NOW, When.NEVER) and not wrong):
        return [f"refusal: {'refused' if reply.refused else 'not refused'}; expected {wanted}"]
    return []


def compare(outcome: ManagerOutcome, reply: Reply, adapter: ManagerAdapter, shown: Observation) -> list[str]:
    faults, hit = refusals(outcome, reply, adapter), outcome.hit
    if hit is not None and reply.hit is not None and (hit.length, hit.tables) != bare(reply.hit):
        faults.append(f"hit: expected {hit.length} tokens in {hit.tables}, found {reply.hit}")
    for (_, step), served in zip(outcome.steps, reply.served, strict=False):
        if (step.new or served.new) != served.new:
            faults.append(f"new blocks: expected {step.new}, found {served.new}")
        if served.nulled is not None and step.nulled != served.nulled:
            faults.append(f"nulled entries: expected {step.nulled}, found {served.nulled}")
        if served.replaced is not None and replaced(step) != served.replaced:
            faults.append(f"replaced entries: expected {replaced(step)}, found {served.replaced}")
    if shown.evicted is not None:
        faults += misreported(outcome, shown.evicted)
        shown = shown._replace(evicted=None)
    if shown.listeners is not None:
        faults += misheard(outcome.state, shown.listeners)
    return faults + differences(expected(outcome.state), shown, adapter.follows_policy)


def bare(hit: Found) -> Found:
    return hit if hit.length or any(hit.tables) else Found(0, ())


def unlike_deltas(
    outcome: ManagerOutcome, asks: tuple[tuple[int, int], ...], reply: Reply, shown: Observation
) -> list[str]:
    """Name the differences between the tables after a batch and those before it with its report (REPLICA-1)."""
    if not reply.served:
        return []
    before = outcome.steps[0][0] if outcome.steps else outcome.state
    rows = [[list(table) for table in each.tables] if isinstance(each, Running) else None for each in before.requests]
    for (slot, _), served in zip(asks, reply.served, strict=False):
        tables = rows[slot] or []
        for row, new, nulled in zip(tables, served.new, served.nulled or ((),) * len(tables), strict=True):
            row += new
            for entry in nulled:
                row[entry] = NULL
        for group, entry, block in served.replaced or ():
            tables[group][entry] = block
    kept = tuple(None if tables is None else tuple(map(tuple, tables)) for tables in rows)
    return [] if kept == shown.tables else [f"REPLICA-1: tables {shown.tables}, kept from deltas {kept}"]


def misreported(outcome: ManagerOutcome, told: tuple[tuple[int, Content, bool], ...]) -> list[str]:
    """Name evictions that were reported and were none, losses that were not reported (STEP-4), and wrong classes.

    A prefix that the same step publishes again in another block need not be reported: the manager may have published it
    before it takes the last old block. The class of a block that the same step let go of is not known before it. A part
    of a block is not reported.
    """
    lost: list[tuple[int, Content]] = []
    wanted: list[tuple[int, Content]] = []
    reported = [(block, content) for block, content, _ in told]
    classes: dict[int, bool] = {}
    for before, step in outcome.steps:
        sizes = [group.block_size for group in before.config.groups]
        for block, content in [each for each in evicted(before, step) if num_own(before, each[1]) == sizes[each[1][0]]]:
            lost.append((block, content))
            if block in before.queue:
                marks = memory_of(before).marks
                classes[block] = bool(marks) and marks[block].passing
            if (block, content) in reported or not {*holding(step.state, content)} - {block}:
                wanted.append((block, content))
    faults = [] if wanted == reported else [f"evicted: expected {lost}, found {reported}"]
    wrong = [block for block, _, is_passing in told if classes.get(block, is_passing) != is_passing]
    return faults + [f"POLICY-4: told a wrong class of the evicted blocks {wrong}"] * bool(wrong)


def misheard(state: State, listeners: tuple[Listener, ...]) -> list[str]:
    """Name the laws of events (EV-1 to EV-5) that the events to some listener break, with one who shows it."""
    shown = ((law, [each for each in listeners if not law.holds(state, each)]) for law in EVENT_LAWS)
    return [f"{law.id}: {law.statement}: was told {each[-1]}" for law, each in shown if each]


def miscounted(outcome: ManagerOutcome, call: Call | None, shown: Observation) -> list[str]:
    if shown.counted is None:
        return []
    happened = Counts()
    for state, step in outcome.steps:
        happened = added(happened, counted(state, step, call, shown.counted.life))
    before, after, read, _ = shown.counted
    if not (broken := [law for law in METRIC_LAWS if not law.holds(before, after, read, happened)]):
        return []
    wrong = [
        f"{name}: expected {due} more, grew by {new - old}, read as {told}"
        for name, old, new, told, due in zip(Counts._fields, before, after, read, happened, strict=True)
        if not new - old == told == due
    ]
    return [f"{law.id}: {law.statement}: {'; '.join(wrong)}" for law in broken]


def mistold(outcome: ManagerOutcome, told: Told | None) -> list[str]:
    """Name the laws that an order of eviction shows broken by what it was told (ORDER-1, ORDER-2)."""
    happened = zip(ORDER_LAWS, (outcome.state, outcome.done), strict=True)
    broken = [law for law, of in happened if told is not None and not law.holds(of, told)]
    return [f"{law.id}: {law.statement}: was told {told}" for law in broken]


def replaced(step: Done) -> tuple[tuple[int, int, int], ...]:
    targets = {group: target for group, _, target in copies(step)}
    copied = [(at, entry, targets[at]) for at, entry in enumerate(step.copied) if entry is not None]
    return (*copied, *[(at, entry, first) for at, entry, _, first in folded(step)])


def unexplained(adapter: ManagerAdapter, state: State, prompts: tuple[Prefix, ...]) -> list[str]:
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
    """Name the differences in a manager's answers to questions that change nothing: lookups, common prefixes.

    With "explain" in `asked`, it also asks why hits are no longer, with "lease" how far each request may go on without
    a call; with "pin" it asks everything again under pins.
    """
    faults = unexplained(adapter, state, prompts) if "explain" in asked else []
    faults += mislet(adapter, state) if "lease" in asked else []
    for prefix in prompts if state.config.caching else ():
        adapter.send(OTHER, prefix)
        hit, wanted = bare(adapter.find(OTHER)), found(state, prefix, LRU)
        tables = wanted.tables if adapter.follows_policy else hit.tables
        if (wanted.length, tables) != hit:
            faults.append(f"lookup: of {prefix} expected {wanted.length} tokens in {wanted.tables}, found {hit}")
    if state.config.caching:
        adapter.forget(OTHER)
    faults += uncommon(adapter, state) + miscounted_alone(adapter, state) + misrouted(adapter, state, prompts)
    faults += miswaited(adapter, state)
    return faults + (pinned(adapter, state) if "pin" in asked else [])


def mislet(adapter: ManagerAdapter, state: State) -> list[str]:
    leases = [
        (name_of(slot), lease(state, slot), adapter.lease(name_of(slot)))
        for slot, request in enumerate(state.requests)
        if isinstance(request, Running)
    ]
    return [f"LEASE-1: of {name}: expected {wanted}, found {told}" for name, wanted, told in leases if wanted != told]


def misrouted(adapter: ManagerAdapter, state: State, prompts: tuple[Prefix, ...]) -> list[str]:
    """Name the laws that the answers of a router break, where a manager that tells of events has one."""
    ask: Any = getattr(adapter, "routed", None)
    answers = ask(prompts) if ask is not None and option(state.config, "tells") else ()
    pairs = [(law, Routed(*each)) for law in ROUTER_LAWS for each in zip(prompts, answers, strict=False)]
    return [f"{law.id}: {law.statement}: was told {each}" for law, each in pairs if not law.holds(state, each)]


def uncommon(adapter: ManagerAdapter, state: State) -> list[str]:
    faults, groups = [], range(len(state.config.groups))
    for slot, request in enumerate(state.requests):
        for count in range(1, len(state.requests) + 1) if isinstance(request, Running) else ():
            shared = adapter.common_prefix(name_of(slot), count)
            wants = tuple(common_prefix_blocks(state, slot, group, count) for group in groups)
            if shared is not None and shared != wants:
                found = f"expected {wants}, found {shared}"
                faults.append(f"COMMON-1: blocks of {name_of(slot)} shared by {count}: {found}")
    return faults


def miswaited(adapter: ManagerAdapter, state: State) -> list[str]:
    """Name what a manager that says it gets wrong of what is held beyond the end of its pool (RESIZE-2)."""
    ask: Any = getattr(adapter, "resizing", None)
    wanted, told = waits_told(state), ask() if ask is not None else None
    return [f"RESIZE-2: expected blocks and requests {wanted}, found {told}"] * (told not in (None, wanted))


def miscounted_alone(adapter: ManagerAdapter, state: State) -> list[str]:
    """Name the requests of which a manager that counts it says wrongly how many blocks they hold alone."""
    ask: Any = getattr(adapter, "held_alone", None)
    slots = [slot for slot, each in enumerate(state.requests) if ask is not None and isinstance(each, Running)]
    pairs = [(name_of(slot), len(held_alone(state, slot)), ask(name_of(slot))) for slot in slots]
    wrong = [f"{name} holds {wanted} blocks alone, said to be {said}" for name, wanted, said in pairs if wanted != said]
    if not wrong or differences(expected(state), adapter.observe(names_of(state))):
        return []  # of other tables, another count is right
    return [f"ALONE-1: {each}" for each in wrong]


def pinned(adapter: ManagerAdapter, state: State) -> list[str]:
    """Name what goes wrong on a copy of a manager where the engine holds every held block once more, as a store does.

    The self-check must know of it, and it must not pass for a request.
    """
    twin = adapter.copy()
    held = {block for table in held_tables(state) for block in table if block != NULL}
    twin.pin(tuple(sorted(held)))
    twin.check()
    return [f"{fault}, with all of them pinned" for fault in uncommon(twin, state)]
