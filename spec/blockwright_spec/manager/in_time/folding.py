"""Part one, chapter 41: duplicates that are folded: one block where requests have computed the same.

Samples of one prompt, retries and agents compute the same tokens side by side, each in blocks of its own; a lookup
comes too late for them. An engine that wants the memory back asks, once a step has run, which of a request's full
blocks another one has too. Its table then has the block that was published first, and its own comes free. Nothing is
written to either any more, so that the worker need only be told of the entries; nothing is copied.

That is asked once of each block, when it is full and has been computed. Recurrent layers give a state back with the
next step. Where hits may end inside blocks nothing is folded: a part is found once the step of the request that wrote
it has run (UNIT-5), and of that step the other request does not know.
"""

from dataclasses import replace

from ...reads import Cross, Mamba
from ..chapters import caught_up
from ..choices import Choice, legal_order
from ..effects import enqueue
from ..facts import holders, in_flight, keys_of, sharers
from ..hits import holding
from ..keys import stride
from ..marks import drop_doubles
from ..outcomes import Done, Outcome, Reason, Refusal, transition
from ..page import exchanges, pins
from ..retention import retention_of
from ..seam import forget_keys, note
from ..state import NULL, Batch, Running, State
from ..told import Change, folded
from ..transitions import with_settled


@transition
def fold(state: State, slot: int, count: int, choice: Choice) -> Outcome:
    """Point a request of which `count` tokens are computed at blocks that others published first: `fold_duplicates`."""
    # REFUSE
    state = caught_up(state, slot, count)
    request = state.requests[slot]
    if not isinstance(request, Running):
        return Refusal(Reason.NOT_RUNNING)
    if not 0 <= count <= min(request.written, len(request.prefix[1])):
        return Refusal(Reason.NEGATIVE if count < 0 else Reason.UNWRITTEN)
    # CHOOSE
    overlaps, steps = state.config.overlaps, in_flight(state, slot)
    settled = request.settled if overlaps else max(request.settled, count)
    folds = twins(state, request, min(count, settled))
    batch = tuple(tuple(own for at, _, own, _ in folds if at == group) for group in range(len(request.tables)))
    order = choice.order(batch)
    if not legal_order(sum(batch, ()), order):
        return Refusal(Reason.ILLEGAL_CHOICE)
    # EFFECT
    alone = tuple(own for *_, own, _ in folds if holders(state, own) == 1)
    now = point_to(replace(request, settled=settled), folds, min(count, settled))
    waits = pins("hold", "batches", sum(batch, ())) if steps else ()
    left = note(with_settled(state, slot, now), waits + exchanges(slot, request.tables, now.tables))
    bare = drop_contents(left, alone)
    fence = Batch(slot, batch, request.prefix[0], until=steps[-1] if steps else None)
    fenced = replace(bare, batches=(*bare.batches, fence) if any(batch) else bare.batches)
    return Done(fenced if steps else enqueue(bare, order))
    # SAME: what can be found, and what the request reads.


def twins(state: State, request: Running, count: int) -> tuple[Change, ...]:
    """Return the full blocks within some tokens that were not asked about yet, with those that others hold too."""
    sizes = tuple(group.block_size for group in state.config.groups)
    return tuple(
        (at, entry, own, first)
        for at, (group, table) in enumerate(zip(state.config.groups, request.tables, strict=True))
        if not isinstance(group.kind, Mamba | Cross) and not stride(state.config)
        for entry in range(request.folded // sizes[at], min(count // sizes[at], len(table)))
        for own in (table[entry],)
        if own != NULL
        for first in (first_held(state, own),)
        if first != own
    )


def first_held(state: State, own: int) -> int:
    """Return the first published of the blocks with a block's content that requests hold: most often the block."""
    same = (block for content in keys_of(state, own) for block in holding(state, content))
    return next((block for block in same if block == own or sharers(state, block) > 0), own)


def point_to(request: Running, folds: tuple[Change, ...], count: int) -> Running:
    """Return a request with other blocks in some entries, asked about so many tokens."""
    blocks = {(at, entry): first for at, entry, _, first in folds}
    tables = tuple(
        tuple(blocks.get((at, entry), block) for entry, block in enumerate(table))
        for at, table in enumerate(request.tables)
    )
    return replace(request, tables=tables, folded=max(request.folded, count))


def drop_contents(state: State, alone: tuple[int, ...]) -> State:
    """Forget what blocks hold that nobody else holds: what they are found as is found in the others."""
    if retention_of(state.config):
        return drop_doubles(state, alone)
    contents = tuple(None if block in alone else content for block, content in enumerate(state.contents))
    gone = tuple(each for each in state.keys if each[0] in alone)
    return replace(forget_keys(state, gone), contents=contents)


def law_fold_loses_nothing(before: State, done: Done) -> bool:
    """FOLD-1: to fold blocks changes nothing that can be found, and no entry but to a block of the same content."""
    found = [frozenset(content for _, content in state.keys) for state in (before, done.state)]
    pairs = tuple((keys_of(before, own), keys_of(before, first)) for *_, own, first in folded(done))
    return not pairs or (found[0] == found[1] and all(own == first for own, first in pairs))


def law_folded_is_first(before: State, done: Done) -> bool:
    """FOLD-2: the entries that were asked about have the block that was published first of those that requests hold."""
    return all(
        first_held(done.state, table[entry]) == table[entry]
        for old, new in zip(before.requests, done.state.requests, strict=True)
        if isinstance(old, Running) and isinstance(new, Running) and new.folded > old.folded
        for group, table in zip(before.config.groups, new.tables, strict=True)
        if not isinstance(group.kind, Mamba | Cross) and not stride(before.config)
        for entry in range(old.folded // group.block_size, min(new.folded // group.block_size, len(table)))
        if table[entry] != NULL
    )
