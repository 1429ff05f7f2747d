"""Diagnosis of block tables: which laws a fault breaks.

As `diagnosis`: the actions of a counterexample are performed again; after the last one a state of the specification is
made of what the allocator *shows*, its ghosts following its own tables, copies and swaps, and every law is asked. To
these are added what the self-check names, and

    REF-0 <field>  lock-step: the allocator differs from the specification in this field of an answer or of its state
    REFUSE-1       a call that is refused changes nothing
    PAGE-13        of the counting questions: what they answer is what the specification counts
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from blockwright_spec.block_tables.effects import content_at
from blockwright_spec.block_tables.outcomes import PagedDone
from blockwright_spec.block_tables.state import Device, Paged, blocks_of, paged
from blockwright_spec.block_tables.step_laws import PAGED_LAWS, PAGED_STEP_LAWS
from blockwright_spec.reads import Prefix

from ..checker.diagnose import Broken, Diagnosis, of_error
from .actions import MarkComputed, MarkTable, PagedAction, PagedTold, paged_meaning
from .adapter import PagedAdapter, PagedObservation
from .lockstep import PagedReply, faults_of, paged_act, paged_examine, paged_expected, paged_perform, refusal_faults
from .scopes import PagedScope

PagedFactory = Callable[..., PagedAdapter]


def diagnose_tables(scope: PagedScope, factory: PagedFactory, actions: tuple[PagedAction, ...]) -> Diagnosis:
    """Perform the actions of a counterexample again and name the laws broken at its end."""
    state, adapter = paged(scope.config, scope.slots), factory(scope.config)
    for action in actions[:-1]:
        state = paged_act(adapter, state, action)[0].state
    broken = list(last(scope, adapter, state, actions[-1])) if actions else []
    return Diagnosis(*(tuple(dict.fromkeys(pair[at] for pair in broken)) for at in (0, 1)))


def last(scope: PagedScope, adapter: PagedAdapter, before: Paged, action: PagedAction) -> Broken:
    """Perform the last action and give what it breaks."""
    told, reply, shown = paged_meaning(before, action), PagedReply(), None
    try:
        reply = paged_perform(adapter, action, before)
        shown = adapter.observe(len(before.tables))
        for fault in refusal_faults(told, reply, adapter) or faults_of(told, reply, shown):
            yield f"REF-0 {fault.partition(':')[0]}" if ":" in fault else "REF-0 refusal", fault
    except Exception as error:
        yield of_error(error)
    if shown is not None:
        if (reply.error or reply.refused) and shown != paged_expected(before):
            yield "REFUSE-1", "the call was refused, and something has changed"
        yield from of_state(before, action, told, reply, shown)
    yield from questions(scope, adapter, told.state)


def of_state(before: Paged, action: PagedAction, told: PagedTold, reply: PagedReply, shown: PagedObservation) -> Broken:
    """Give the laws that the state breaks which an allocator shows, and those of the step to it."""
    state = shown_state(before, action, told, reply, shown)
    for law in PAGED_LAWS:
        with suppress(IndexError, KeyError):
            if not law.holds(state):
                yield law.id, law.statement
    first = told.outcomes[0]
    done = replace(first, state=state, pairs=reply.pairs) if isinstance(first, PagedDone) else first
    for step_law in PAGED_STEP_LAWS:
        with suppress(IndexError, KeyError):
            if not step_law.holds(before, done):
                yield step_law.id, step_law.statement


def shown_state(
    before: Paged, action: PagedAction, told: PagedTold, reply: PagedReply, shown: PagedObservation
) -> Paged:
    """Make a state of what an allocator shows after an action; contents follow its own tables, copies and swaps."""
    tables = tuple(
        replace(table, entries=seen.entries) if table is not None and seen is not None else table
        for table, seen in zip(told.state.tables, shown.tables, strict=True)
    )
    contents = list(before.contents)
    done = list(before.done)
    for source, target in dict.fromkeys((*reply.pairs, *shown.copies)):
        if (source, target) not in before.copies:
            contents[target], done[target] = before.contents[source], before.done[source]
    state = replace(
        told.state,
        tables=tables,
        free=shown.free,
        keys=shown.keys,
        null=shown.null,
        copies=shown.copies,
        fresh=shown.fresh,
    )
    for block, content in written(before, state):
        contents[block] = content
    for block, count in computed(action, state):
        done[block] = max(done[block], count)
    gone = (block for block in shown.free if shown.keys[block] is None)
    for block in gone:
        contents[block], done[block] = None, 0
    return replace(state, contents=tuple(contents), done=tuple(done))


def computed(action: PagedAction, state: Paged) -> Iterator[tuple[int, int]]:
    """Give what a call told was computed: how many slots of each block."""
    size = state.config.block_size
    if isinstance(action, MarkComputed):
        yield from ((block, size) for block in blocks_of(state.config, Device.GPU) if state.keys[block] is not None)
    if isinstance(action, MarkTable) and (table := state.tables[action.slot]) is not None:
        for entry, block in enumerate(table.entries):
            yield block, max(0, min(size, table.ready - entry * size))


def written(before: Paged, state: Paged) -> Iterator[tuple[int, Prefix | None]]:
    """Give what tables wrote that have grown, by the blocks that they show."""
    for old, new in zip(before.tables, state.tables, strict=True):
        if new is None or (old is not None and old.prefix == new.prefix):
            continue
        start = 0 if old is None else len(old.prefix[1]) // state.config.block_size
        for entry, block in enumerate(new.entries):
            if entry >= start and block != state.null and (content := content_at(state.config, new, entry)) is not None:
                yield block, content


def questions(scope: PagedScope, adapter: PagedAdapter, state: Paged) -> Broken:
    """Give what the self-check names, and which counts are wrong."""
    try:
        adapter.check()
        for fault in paged_examine(adapter, state, scope.prompts):
            yield ("PAGE-13" if re.match("touched|full", fault) else "REF-0 cached tokens"), fault
    except Exception as error:
        yield of_error(error)
