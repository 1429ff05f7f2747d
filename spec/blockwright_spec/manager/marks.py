"""Part one, chapter 22: what is remembered of each block and noted of each request, to tell candidates apart.

A duplicate costs its tenant nothing: where candidates are told apart, no candidate has the content of another published
block. As soon as it would, the older one of two candidates, or the one that is free, is forgotten and free without
content, and the block that stays keeps what was said of both (SHARE-4). With units, one part of a block may be there
twice and another not: there doubles stay, and each costs its tenant a block.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from ..hints import UNSAID, Mark, Wish, merged
from ..reads import Prefix
from .facts import key
from .keys import stride
from .page import Act
from .seam import forget_keys
from .state import Running, State, Table


@dataclass(frozen=True, slots=True)
class Wants:
    """What a request wants kept (chapter `keeping`): hits of these lengths.

    From the `proven` ones other requests have gone on as well. With `output`, as it ends, it also wants all that it has
    published; with `every`, hits of all multiples of that within its prompt.
    """

    lengths: tuple[int, ...] = ()
    proven: tuple[int, ...] = ()
    output: bool = True
    every: int = 0


NO_WANTS = Wants()
"""Where nothing is kept so."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered: a mark of each block, the time, and the learned worth of passing blocks, the last prompts."""

    marks: tuple[Mark, ...] = ()
    now: int = 0
    share: int = 0
    prompts: tuple[Prefix, ...] = ()


@dataclass(frozen=True, slots=True)
class Notes:
    """What is noted of a request: what was said of its blocks, and what it wants kept (chapter `keeping`).

    `tails` are the lengths inside a block that are still to be published, `end_tails` those of them where recurrent
    layers publish the state (chapter `units`).
    """

    wish: Wish = UNSAID
    wants: Wants = NO_WANTS
    tails: tuple[int, ...] = ()
    end_tails: tuple[int, ...] = ()


NO_MEMORY = Memory()
NO_NOTES = Notes()
"""Where no chapter remembers or notes anything."""


def memory_of(state: State) -> Memory:
    """Return what is remembered."""
    return state.memory or NO_MEMORY


def notes_of(request: Running) -> Notes:
    """Return what is noted of a request."""
    return request.notes or NO_NOTES


def put(state: State, marks: Mapping[int, Mark]) -> State:
    """Replace the marks of some blocks."""
    known = memory_of(state)
    new = tuple(marks.get(block, mark) for block, mark in enumerate(known.marks))
    return replace(state, memory=replace(known, marks=new))


def mark_of_held(state: State, act: Act) -> Mark:
    """Return the mark of a candidate that is held again: nothing that was said of when it goes counts any more.

    To a hold from outside it stays passing.
    """
    old = memory_of(state).marks[act.block]
    passing = old.passing and act.place[0] == "outside"
    return Mark(old.priority, old.until, passing=passing, asked=old.asked, nexts=old.nexts)


def duplicates(state: State, block: int) -> Table:
    """Return the other blocks with the content of a published one."""
    return tuple(other for other, content in state.keys if other != block and content == key(state, block))


def doubles_of(state: State, blocks: Table, stay: Collection[int]) -> Table:
    """Return those of some blocks that have the content of one that stays, or of a later one of them (SHARE-4)."""
    pairs = ((block, {*duplicates(state, block)} & {*stay, *blocks[at + 1 :]}) for at, block in enumerate(blocks))
    return () if stride(state.config) else tuple(block for block, others in pairs if others)


def drop_doubles(state: State, doubles: Table) -> State:
    """Forget what some blocks hold that others hold too; those keep what was said of both."""
    for block in doubles:
        known, others = memory_of(state), duplicates(state, block)
        said = {other: merged(known.marks[other], known.marks[block], known.now) for other in others}
        contents = tuple(None if at == block else content for at, content in enumerate(state.contents))
        lost = tuple(each for each in state.keys if each[0] == block)
        state = put(replace(forget_keys(state, lost), contents=contents), said)
    return state


def drop_doubles_of(state: State, block: int) -> State:
    """Forget the content of a candidate that a block has just been published as: it is free and empty (SHARE-4)."""
    doubles = doubles_of(state, state.queue, (block,))
    left = tuple(other for other in state.queue if other not in doubles)
    return replace(drop_doubles(state, doubles), queue=(*doubles, *left)) if doubles else state
