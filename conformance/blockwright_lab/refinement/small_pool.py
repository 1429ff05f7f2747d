"""The block machine by itself: every state of a small pool, its invariants there, and the moves that it allows."""

import time
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

from blockwright_spec import block_machine
from blockwright_spec.block_machine import Machine, Place, Table
from blockwright_spec.manager.laws import BLOCK_LAWS
from blockwright_spec.reads import Full, Sliding

from .steps import Call, Move, move

PLACES: tuple[Place, ...] = (("window", 0), ("full", 0), ("pin", 0))
TABLES: dict[Hashable, Table] = {"window": Table(Sliding(2), 1), "full": Table(Full(), 1)}
COUNTS = ((0, 0), (0, 2), (1, 2), (2, 2), (2, 0))
"""Tokens of the first table that are done, and under way; a pair that never is among them."""
NUM_BLOCKS = 3
CONTENTS = ("x",)


class Explored(NamedTuple):
    """All states of the small pool: how many, the steps made in them, the moves, and the first fault."""

    states: int
    transitions: int
    moves: frozenset[Move]
    seconds: float
    fault: str = ""


def every_call() -> Iterator[Call]:
    blocks = range(NUM_BLOCKS)
    for place in PLACES:
        yield from ((name, (place, block)) for name in ("take", "hold") for block in blocks)
        yield from ((name, (place,)) for name in ("drop", "null"))
    for block in blocks:
        yield from (("write", (block, content)) for content in CONTENTS)
        yield from ((name, (block,)) for name in ("publish", "forget"))
    yield from (("advance", ("window", done, stop)) for done, stop in COUNTS)


def explored() -> Explored:
    """Visit every state; stop at the first that breaks an invariant."""
    start, started = block_machine.pool(NUM_BLOCKS, TABLES), time.perf_counter()
    seen, frontier, moves, transitions = {name_of(start)}, [start], set[Move](), 0
    every = [(call, getattr(block_machine, call[0])) for call in every_call()]
    fault = ""
    while frontier and not fault:
        now = frontier.pop()
        fault = next((f"{law.id} does not hold of {now}" for law in BLOCK_LAWS if not law.holds(now)), "")
        for (name, arguments), step in every:
            after = step(now, *arguments)
            if after is None:
                continue
            transitions += 1
            moves.add(move(name, now, after, arguments))
            if name_of(after) not in seen:
                seen.add(name_of(after))
                frontier.append(after)
    return Explored(len(seen), transitions, frozenset(moves), time.perf_counter() - started, fault)


def name_of(now: Machine) -> Any:
    held = tuple(now.held.get(place) for place in PLACES)
    return now.blocks, now.free, now.tables["window"].done, now.tables["window"].stop, held
