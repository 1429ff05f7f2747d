"""Wrong specifications written by hand: each breaks one law where it breaks no other, as no small change does.

A law that is never broken alone may follow from the others, and then is only another name for them. Those that follow
are listed with the implication (`spec_excused.IMPLIED`); for each of the rest one of these shows that it does not.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Weakening:
    """A change of a function's text, and the law that must notice it alone, in some step."""

    law: str
    file: str
    function: str
    before: str
    """What stands in the function, once."""
    after: str


WEAKENED: tuple[Weakening, ...] = (
    Weakening(
        "QUEUE-1",
        "effects.py",
        "requeued",
        "queue = (*bare[::-1], *state.queue, *candidates)",
        "queue = (*state.queue, *candidates, *bare[::-1])",
    ),
    Weakening(
        "GHOST-1",
        "effects.py",
        "requeued",
        "return State(state.config, queue, contents, state.keys, state.requests, *later(state))",
        "return State(state.config, queue, state.contents, state.keys, state.requests, *later(state))",
    ),
    Weakening(
        "STEP-2",
        "effects.py",
        "emptied",
        "queue = tuple(block for block in state.queue if block not in taken)",
        "queue = tuple(block for block in state.queue if block not in taken)\n    taken = (*taken, *queue[:1])",
    ),
    Weakening(
        "NULL-1",
        "effects.py",
        "requeued",
        "queue = (*bare[::-1], *state.queue, *candidates)",
        "queue = (NULL, *bare[::-1], *state.queue, *candidates)",
    ),
    Weakening(
        "HIT-2", "hits.py", "found", "if length else Hit()", "if length > config.groups[0].block_size else Hit()"
    ),
    Weakening(
        "STEP-3",
        "effects.py",
        "serve",
        "    new = placed(taken",
        "    others = [one for one in freed.requests if isinstance(one, Running) and one.encoder and one.tables[-1]]\n"
        "    taken = (*taken[:-1], others[0].tables[-1][0]) if others and taken else taken\n"
        "    new = placed(taken",
    ),
    Weakening(
        "PAGE-11",
        "paged_effects.py",
        "took",
        "block = min(may_go(state, device), key=choice)",
        "ending = (source for source, _ in state.copies if not entries_of(state, source))\n"
        "    block = next(ending, min(may_go(state, device), key=choice))",
    ),
    Weakening(
        "TIER-8",
        "tier_calls.py",
        "announcing",
        "(Event(keys, removed),) if keys else ()",
        "(Event(keys, removed),) if keys and removed else ()",
    ),
    Weakening(
        "STATE-3",
        "inputs.py",
        "joined",
        "for each in shares for block in each.states_read",
        "for each in shares for block in shares[0].states_read",
    ),
    Weakening(
        "ROW-1",
        "inputs.py",
        "joined",
        "table for each in shares for table in each.tables",
        "(*table, NULL) for each in shares for table in each.tables",
    ),
    Weakening("CROSS-2", "inputs.py", "inputs", "encoder=tuple(row.encoder", "encoder=tuple(row.encoder - 1"),
)
"""All of them."""
