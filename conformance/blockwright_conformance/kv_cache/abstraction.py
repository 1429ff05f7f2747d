"""The observation of a manager that a state of the specification demands.

This is trusted code: it decides what "the same state" means. It is short, it is tested on states altered by hand, and
the mutants of the kit include it.
"""

from typing import Any

from blockwright_spec.manager.facts import held_tables, keys_of
from blockwright_spec.manager.keeping import keeping_of, spares_of
from blockwright_spec.manager.keys import stride
from blockwright_spec.manager.marks import memory_of
from blockwright_spec.manager.retention import in_order, retention_of
from blockwright_spec.manager.state import NULL, Content, Running, State

from ..checker.lockstep import differing
from .adapter import Observation


def expected(state: State) -> Observation:
    blocks = len(state.contents)
    references = [0] * blocks
    keys: list[Content | None] = [None] * blocks
    running = [each if isinstance(each, Running) else None for each in state.requests]
    tables = tuple([each.tables if each else None for each in running])
    published = tuple([each.published if each else None for each in running])
    states = tuple([each.states if each else None for each in running])
    for table in held_tables(state):
        for block in table:
            references[block] += block != NULL
    for block, content in state.keys:
        keys[block] = max(keys[block] or content, content, key=length)
    tails = tuple([tuple(sorted(map(length, keys_of(state, block)))[:-1]) for block in range(blocks)])
    queue, overlaps = state.queue, state.config.overlaps
    if keeping_of(state.config) and not retention_of(
        state.config
    ):  # as they will be taken; with hints, who goes depends on the taker
        queue = in_order(state, None, len(queue))
    settled = tuple([each.settled if each and overlaps else None for each in running])
    shown = tuple(references), tuple(keys), published, len(queue), states, settled, state.copies
    passing = tuple([block for block, mark in enumerate(memory_of(state).marks) if mark.passing])
    tips = tuple([(at, int(mark.tip)) for at, mark in enumerate(memory_of(state).marks) if mark.tip and at in queue])
    outside = tuple(sorted(state.pins))
    spares, parts = spares_of(state), tails if stride(state.config) else None
    return Observation(tables, queue, *shown, outside=outside, passing=passing, tips=tips, spares=spares, tails=parts)


def length(content: Content) -> int:
    return len(content[1][1])


def differences(wanted: Observation, shown: Observation, ordered: bool = True) -> list[str]:
    if wanted == shown:
        return []
    return differing(compared(wanted, ordered), compared(shown, ordered))


def compared(observation: Observation, ordered: bool) -> Observation:
    """Return the compared part of an observation: no count for the null block, and the queue in order if that counts.

    What listeners know, what is counted and what an order is told have laws of their own (`lockstep.misheard`,
    `lockstep.miscounted`, `lockstep.mistold`).
    """
    queue, references = observation.queue, observation.references
    apart: dict[str, Any] = dict.fromkeys(("listeners", "counted", "told", "kept"))
    queue = queue if ordered or queue is None else tuple(sorted(queue))
    return observation._replace(queue=queue, references=references and references[1:], **apart)
