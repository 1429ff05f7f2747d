"""The steps of the block machine that lie between two of its states.

A manager's transition carries them (`made`). Of the other parts they are found, without a search: what has changed
determines them (`refined`). Steps on different blocks do not disturb each other, so one order serves all: tables
go on; blocks that are kept are written, published and held by more; places let go; blocks are forgotten; and free ones
are taken, written, published and held.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from blockwright_spec import block_machine
from blockwright_spec.block_machine import NULL, Machine
from blockwright_spec.manager.page import Act, Acts

from .maps import AT_ONCE

Call = tuple[str, tuple[Any, ...]]


class Move(NamedTuple):
    """An arrow of the machine's diagram: a step, and how its block stands before it and after it."""

    step: str
    before: str
    after: str
    users: int = 0
    """Of a block that is written: how many entries of tables hold it."""


class Refined(NamedTuple):
    """A transition that is a sequence of steps: the moves it makes; or the fault, if it is none."""

    moves: tuple[Move, ...]
    fault: str = ""


class Change:
    """The differences between two states of the machine."""

    def __init__(self, before: Machine, after: Machine) -> None:
        self.before, self.after = before, after
        old, new = before.held, after.held
        self.left = [place for place, block in old.items() if new.get(place) != block]
        self.joined = [place for place, block in new.items() if block != NULL and old.get(place) != block]
        self.nulled = [place for place, block in new.items() if block == NULL and old.get(place) != NULL]
        self.taken = {new[place] for place in self.joined if not self.is_kept(new[place])}
        self.changed = [
            block for block, each in enumerate(after.blocks) if block != NULL and each != before.blocks[block]
        ]

    def is_kept(self, block: int) -> bool:
        was, now = self.before.blocks[block], self.after.blocks[block]
        if was.key is not None:
            return now.key == was.key
        stays = any(held == block and self.after.held.get(place) == block for place, held in self.before.held.items())
        return was.count > 0 and (stays or was.content == now.content)


def calls(change: Change) -> Iterator[Call]:
    before, after, taken = change.before, change.after, change.taken
    for name, table in after.tables.items():
        was = before.tables[name]
        if was != table and was.done <= table.done and was.stop <= table.stop:
            yield "advance", (name, table.done, table.stop)
    for block in change.changed:
        if block not in taken:
            yield from filled(change, block)
    joining = [place for place in change.joined if after.held[place] not in taken]
    yield from (("hold", (place, after.held[place])) for place in joining if place not in before.held)
    yield from (("drop", (place,)) for place in change.left if place not in change.nulled)
    yield from (("null", (place,)) for place in change.nulled)
    for block in change.changed:
        if block not in taken and before.blocks[block].key is not None and after.blocks[block].key is None:
            yield "forget", (block,)
    yield from (("hold", (place, after.held[place])) for place in joining if place in before.held)
    for block in taken:
        places = sorted((place for place in change.joined if after.held[place] == block), key=by_use(after))
        yield "take", (places[0], block)
        yield from filled(change, block)
        yield from (("hold", (place, block)) for place in places[1:])
    for name, table in after.tables.items():
        was = before.tables[name]
        if table.done < was.done or table.stop < was.stop:
            yield "advance", (name, table.done, table.stop)


def by_use(after: Machine) -> Any:
    return lambda place: place[0] not in after.tables


def filled(change: Change, block: int) -> Iterator[Call]:
    is_new, now = block in change.taken, change.after.blocks[block]
    content, key = (None, None) if is_new else (change.before.blocks[block].content, change.before.blocks[block].key)
    if now.content != content and (now.count > 0 or now.key is not None):
        yield "write", (block, now.content)
    if now.key is not None and now.key != key:
        yield "publish", (block,)


def refined(before: Machine, after: Machine) -> Refined:
    """Go from one state to the other by the steps that are found; tell the first that may not happen."""
    return followed(before, after, (partial(given, call) for call in calls(Change(before, after))))


def made(before: Machine, after: Machine, acts: Acts) -> Refined:
    """Go from one state to the other by the steps that a transition carries; tell the first that may not happen."""
    return followed(before, after, (partial(call_of, act) for act in acts))


def given(call: Call, _: Machine) -> Call:
    return call


def followed(before: Machine, after: Machine, steps: Iterable[Callable[[Machine], Call]]) -> Refined:
    now = before
    moves: list[Move] = []
    for step in steps:
        name, arguments = step(now)
        reached = getattr(block_machine, name)(now, *arguments)
        if reached is None:
            return Refined(tuple(moves), f"{name}{arguments} may not happen")
        moves.append(move(name, now, reached, arguments))
        now = reached
    return Refined(tuple(moves), "" if now == after else difference(now, after))


def call_of(act: Act, now: Machine) -> Call:
    """Return a step of a transition as the page has it: places of holders without a table are numbered by block."""
    name, number = act.place
    if act.verb == "advance":
        return act.verb, (name, *act.counts)
    if isinstance(name, str) and name:
        number *= AT_ONCE
        while (name, number + (act.verb == "drop")) in now.held:
            number += 1
    match act.verb:
        case "take" | "hold":
            return act.verb, ((name, number), act.block)
        case "write":
            return act.verb, (act.block, act.content)
        case "publish" | "forget":
            return act.verb, (act.block,)
        case _:
            return act.verb, ((name, number),)


def move(name: str, now: Machine, reached: Machine, arguments: tuple[Any, ...]) -> Move:
    """Return the move that a step makes: of the block that it names, or of the one in the place that it names."""
    if name == "advance":
        return Move(name, "", "")
    block = arguments[-1] if name in ("take", "hold") else arguments[0]
    if name in ("drop", "null"):
        block = now.held.get(arguments[0], NULL)
    users = sum(held == block and each in now.tables for (each, _), held in now.held.items()) if name == "write" else 0
    return Move(name, block_machine.standing(now, block), block_machine.standing(reached, block), users)


def difference(now: Machine, after: Machine) -> str:
    for name in ("blocks", "free", "tables", "held"):
        if getattr(now, name) != getattr(after, name):
            return f"{name}: the steps lead to {getattr(now, name)}, the transition to {getattr(after, name)}"
    return ""
