"""Part one, chapter 34: duplicates that are folded: one block where requests have computed the same.

Samples of one prompt, retries and agents compute the same tokens side by side, each in blocks of its own; a lookup
comes too late for them. An engine that wants the memory back asks, once a step has run, which of a request's full
blocks another one has too. Its table then has the block that was published first, and its own comes free. Nothing is
written to either any more, so that the worker need only be told of the entries; nothing is copied.

That is asked once of each block, when it is full and has been computed. Recurrent layers give a state back with the
next step. Where hits may end inside blocks nothing is folded: a part is found once the step of the request that wrote
it has run (UNIT-5), and of that step the other request does not know.
"""

from dataclasses import replace

from ...hints import Mark
from ...reads import Cross, Mamba
from ..choices import Choice, legal_order
from ..effects import requeued
from ..hits import holding
from ..lease import heard
from ..outcomes import Done, Outcome, Reason, Refusal
from ..retention import undoubled
from ..state import NULL, Fence, Running, State, holders, in_flight, keys_of, sharers
from ..transitions import believed

Fold = tuple[int, int, int, int]
"""A group, an entry of its table, the block that was there, and the block that is."""


def fold(state: State, slot: int, count: int, choice: Choice) -> Outcome:
    """Point a request of which `count` tokens are computed at blocks that others published first: `fold_duplicates`.

    What a step in flight still touches returns once that is settled.
    """
    # REFUSE
    state = heard(state, slot, count)
    request = state.requests[slot]
    if not isinstance(request, Running):
        return Refusal(Reason.NOT_RUNNING)
    if not 0 <= count <= min(request.written, len(request.prefix[1])):
        return Refusal(Reason.NEGATIVE if count < 0 else Reason.UNWRITTEN)
    # CHOOSE
    overlaps, steps = state.config.added.overlaps, in_flight(state, slot)
    settled = request.settled if overlaps else max(request.settled, count)
    folds = twins(state, request, min(count, settled))
    groups = range(len(request.tables))
    batch = tuple(tuple(own for at, _, own, _ in folds if at == group) for group in groups)
    order = choice.order(batch)
    if not legal_order(sum(batch, ()), order):
        return Refusal(Reason.ILLEGAL_CHOICE)
    # EFFECT
    alone = tuple(own for *_, own, _ in folds if holders(state, own) == 1)
    left = believed(state, slot, pointed(replace(request, settled=settled), folds, min(count, settled)))
    bare = given_back(left, alone)
    fence = Fence(steps[-1] if steps else None, slot, batch, request.prefix[0])
    fenced = replace(bare, fences=(*bare.fences, fence) if any(batch) else bare.fences)
    return Done(fenced if steps else requeued(bare, order), folded=folds)
    # SAME: what can be found, and what the request reads.


def twins(state: State, request: Running, count: int) -> tuple[Fold, ...]:
    """Return the full blocks within some tokens that were not asked about yet, with those that others hold too."""
    sizes = tuple(group.block_size for group in state.config.groups)
    return tuple(
        (at, entry, own, first)
        for at, (group, table) in enumerate(zip(state.config.groups, request.tables, strict=True))
        if not isinstance(group.kind, Mamba | Cross) and not state.config.added.unit
        for entry in range(request.added.folded // sizes[at], min(count // sizes[at], len(table)))
        for own in (table[entry],)
        if own != NULL
        for first in (first_held(state, own),)
        if first != own
    )


def first_held(state: State, own: int) -> int:
    """Return the first published of the blocks with a block's content that requests hold: most often the block."""
    same = (block for content in keys_of(state, own) for block in holding(state, content))
    return next((block for block in same if block == own or sharers(state, block) > 0), own)


def pointed(request: Running, folds: tuple[Fold, ...], count: int) -> Running:
    """Return a request with other blocks in some entries, asked about so many tokens."""
    blocks = {(at, entry): first for at, entry, _, first in folds}
    tables = tuple(
        tuple(blocks.get((at, entry), block) for entry, block in enumerate(table))
        for at, table in enumerate(request.tables)
    )
    return replace(request, tables=tables, added=replace(request.added, folded=max(request.added.folded, count)))


def given_back(state: State, alone: tuple[int, ...]) -> State:
    """Forget what blocks hold that nobody else holds: what they are found as is found in the others."""
    if state.config.added.retains:
        return undoubled(state, alone)
    contents = tuple(None if block in alone else content for block, content in enumerate(state.contents))
    keys = tuple(each for each in state.keys if each[0] not in alone)
    marks = tuple(Mark() if block in alone else mark for block, mark in enumerate(state.marks))
    return replace(state, contents=contents, keys=keys, marks=marks)


def law_fold_loses_nothing(before: State, done: Done) -> bool:
    """FOLD-1: to fold blocks changes nothing that can be found, and no entry but to a block of the same content."""
    found = [frozenset(content for _, content in state.keys) for state in (before, done.state)]
    pairs = ((keys_of(before, own), keys_of(before, first)) for *_, own, first in done.folded)
    return not done.folded or (found[0] == found[1] and all(own == first for own, first in pairs))


def law_folded_is_first(before: State, done: Done) -> bool:
    """FOLD-2: the entries that were asked about have the block that was published first of those that requests hold."""
    pairs = zip(before.requests, done.state.requests, strict=True)
    return all(
        first_held(done.state, table[entry]) == table[entry]
        for old, new in pairs
        if isinstance(old, Running) and isinstance(new, Running) and new.added.folded > old.added.folded
        for group, table in zip(before.config.groups, new.tables, strict=True)
        if not isinstance(group.kind, Mamba | Cross) and not before.config.added.unit
        for entry in range(old.added.folded // group.block_size, min(new.added.folded // group.block_size, len(table)))
        if table[entry] != NULL
    )
