"""Part one, chapter 21: what the steps of a transition tell: what it evicted, adopted, copied, saved and gave up.

All of it follows from the steps on the page and from the state before. No transition reads it.
"""

from itertools import takewhile

from .keys import stride
from .outcomes import Done
from .page import Act, Acts
from .state import NULL, Content, Copy, Running, State, Table

Change = tuple[int, int, int, int]
"""A group, an entry of its table, the block that was there, and the block that is."""


def of(done: Done, *verbs: str) -> Acts:
    """Return the steps with some verbs."""
    return tuple(act for act in done.steps if act.verb in verbs)


def is_entry(act: Act) -> bool:
    """Return whether a step is about an entry of a request's table."""
    return isinstance(act.place[0], tuple) and len(act.place[0]) == 2


def joins(before: State, done: Done) -> bool:
    """Return whether a request was given slots that had no table."""
    pairs = zip(before.requests, done.state.requests, strict=True)
    return bool(done.new) and any(isinstance(new, Running) and not isinstance(old, Running) for old, new in pairs)


def evicted(before: State, done: Done) -> tuple[tuple[int, Content], ...]:
    """Return the blocks with which the last copy of a content was lost, as they were taken (STEP-4).

    Before them come those that a newcomer writes over.
    """
    cut = of(done, "forget") if joins(before, done) and stride(before.config) else ()
    left, lost = before.keys, tuple[tuple[int, Content], ...]()
    for act in (*cut, *(each for each in of(done, "take", "forget") if each not in cut)):
        gone = tuple(each for each in left if each[0] == act.block and act.content in (None, each[1]))
        left = tuple(each for each in left if each not in gone)
        if act.verb == "take" or act in cut:
            lost = (*lost, *(each for each in gone if all(each[1] != other for _, other in left)))
    return lost


def cut_off(before: State, done: Done) -> Table:
    """Return the blocks of its hit that a newcomer writes over though more of them was found (UNIT-8)."""
    return written_over_blocks(before, done) if joins(before, done) else ()


def outgrown(before: State, done: Done) -> Table:
    """Return the blocks with a published state that a running request writes over (UNIT-7)."""
    return () if joins(before, done) else written_over_blocks(before, done)


def written_over_blocks(before: State, done: Done) -> Table:
    """Return the blocks that a step writes over though they were found, as they can be with units."""
    is_step = done.new and stride(before.config)
    return tuple(dict.fromkeys(act.block for act in of(done, "forget"))) if is_step else ()


def hits(done: Done) -> Table:
    """Return the blocks of its lookup that a newcomer adopts, group by group."""
    return tuple(act.block for act in of(done, "hold") if is_entry(act)) if done.new else ()


def num_saved(done: Done) -> int:
    """Count the states that were copied before they are written over."""
    return sum(act.place[0] == "copies" for act in of(done, "take"))


def copies(done: Done) -> tuple[Copy, ...]:
    """Return the copies that a step asked for: the last ones, of each entry that it copied and each state it saved."""
    if not done.state.copies:
        return ()
    count = sum(entry is not None for entry in done.copied) + num_saved(done)
    return done.state.copies[len(done.state.copies) - count :]


def saving(done: Done) -> tuple[Copy, ...]:
    """Return those of the copies that were made of states which the step writes over (UNIT-7)."""
    return copies(done)[len(copies(done)) - num_saved(done) :]


def folded(done: Done) -> tuple[Change, ...]:
    """Return the entries that have another block of the same content."""
    return tuple(each for each in exchanged(done) if each[2] != NULL) if not done.new else ()


def exchanged(done: Done) -> tuple[Change, ...]:
    """Return the entries where one block went and another is held."""
    gone = {act.place: act.block for act in of(done, "drop")}
    held = (act for act in of(done, "hold") if is_entry(act) and act.place in gone)
    return tuple((act.place[0][1], act.place[1], gone[act.place], act.block) for act in held)  # type: ignore[index]


def dropped(done: Done, at: int) -> frozenset[int]:
    """Return the entries of a group's table that are no more."""
    last = {act.place: act.verb for act in done.steps if is_entry(act) and act.place[0][1] == at}  # type: ignore[index]
    return frozenset(entry for (_, entry), verb in last.items() if verb == "drop")


def given_up(done: Done) -> frozenset[tuple[int, Content]]:
    """Return what was found until its step was given up, each with its block."""
    acts = takewhile(lambda act: act.verb == "forget", (act for act in done.steps if act.verb != "advance"))
    return frozenset((act.block, act.content) for act in acts) if done.kept is not None else frozenset()  # type: ignore[misc]
