"""Part one, chapter 8: retention: in which order candidates go, by what was said of them and by whose they are.

For a second reading: without hints and shares, candidates go as they were released. Which free block is taken is open
(chapter `choices`), so all of this is about one free choice: the queue stands as blocks were released, and a policy is
shown it in the order of this chapter. Blocks without content go first; of candidates the lowest rank, and of equal ones
the least recently used.

A *tenant* is what has the same extra keys (a cache salt): what is one's is never found by another. A block counts for
the tenant whose request holds it or whose content it keeps, so what a tenant holds is part of his share. Whoever takes
counts the block that he takes, and a candidate goes only while its tenant has more than its floor; where there is no
such candidate, because running requests hold what is left, the first one goes all the same: shares refuse nobody.

A duplicate costs its tenant nothing: where candidates are told apart, no candidate has the content of another published
block. As soon as it would, the older one of two candidates, or the one that is free, is forgotten and free without
content, and the block that stays keeps what was said of both (SHARE-4). With units, one part of a block may be there
twice and another not: there doubles stay, and each costs its tenant a block.
"""

from collections.abc import Collection, Hashable, Mapping
from dataclasses import replace

from ..hints import Mark, Wish, kept, merged, rank
from .added import end_of
from .hits import holding
from .outcomes import Done, Outcome, Reason, Refusal
from .state import NULL, Config, Content, Fence, Running, State, Table, holders, key, owned, running

Counts = Mapping[Hashable, int]
"""How many blocks each tenant has."""


def tenant_of(state: State, block: int) -> Hashable:
    """Return the tenant whose content a published block keeps."""
    content = key(state, block)
    return content[1][0] if content is not None else None


def counted(state: State) -> Counts:
    """Count the blocks of each tenant: those that its requests hold or held until a fence, and its candidates."""
    return totals(held_by_tenants(state) | {(content[1][0], block) for block, content in state.keys})


def held_by_tenants(state: State) -> frozenset[tuple[Hashable, int]]:
    """Return each block that requests hold, or held until a fence, with its tenant."""
    own = tuple((request.prefix[0], owned(request)) for request in running(state))
    held = own + tuple((fence.extra, fence.tables) for fence in state.fences)
    return frozenset((tenant, block) for tenant, tables in held for table in tables for block in table if block != NULL)


def totals(blocks: Collection[tuple[Hashable, int]]) -> Counts:
    """Count the blocks of each tenant."""
    tenants = tuple(tenant for tenant, _ in blocks)
    return {tenant: tenants.count(tenant) for tenant in tenants}


def ranked(state: State) -> tuple[int, ...]:
    """Return the candidates by rank; of equal rank, as they were released."""
    candidates = (block for block in state.queue if key(state, block) is not None)
    return tuple(sorted(candidates, key=lambda block: rank(state.marks[block], state.now)))


def in_order(state: State, taker: Hashable, count: int) -> tuple[int, ...]:
    """Return the queue with the blocks in front that are taken for a tenant, `count` of them, in their order."""
    if not state.marks:
        return state.queue
    bare = tuple(block for block in state.queue if key(state, block) is None)
    counts = counted(state)
    more = {**counts, taker: counts.get(taker, 0) + min(count, len(bare))}
    taken = bare[:count] + victims(state, ranked(state), more, taker, count - len(bare))
    return taken + tuple(block for block in state.queue if block not in taken)


def victims(state: State, candidates: Table, counts: Counts, taker: Hashable, count: int) -> tuple[int, ...]:
    """Return the candidates that go for a tenant, one after another (SHARE-3)."""
    if count <= 0 or not candidates:
        return ()
    more, floors = {**counts, taker: counts.get(taker, 0) + 1}, floors_of(state.config)
    open_to = (block for block in candidates if is_over(more, floors, tenant_of(state, block)))
    block = next(open_to, candidates[0])
    rest = tuple(other for other in candidates if other != block)
    owner = tenant_of(state, block)
    return (block, *victims(state, rest, {**more, owner: more[owner] - 1}, taker, count - 1))


def floors_of(config: Config) -> Counts:
    """Return the floors of the tenants that have one."""
    return dict(config.added.floors)


def is_over(counts: Counts, floors: Counts, tenant: Hashable) -> bool:
    """Return whether a tenant has more than its floor; one that was not named has none."""
    return counts[tenant] > floors.get(tenant, 0)


def put(state: State, marks: Mapping[int, Mark]) -> State:
    """Replace the marks of some blocks."""
    return replace(state, marks=tuple(marks.get(block, mark) for block, mark in enumerate(state.marks)))


def marked(state: State, fence: Fence) -> State:
    """Mark the blocks that a request lets go of, by what was said of it; nothing that is still held goes first.

    Entry by entry from the last one: a block goes first only if the one behind it does and has no duplicate, and if
    nothing else has ever followed it, so that no block goes before its cached extension (POLICY-1).
    """
    wish = fence.wish
    for at, table in enumerate(fence.tables if state.config.added.retains else ()):
        size, behind, goes = state.config.groups[at].block_size, None, True
        for block in reversed(table):
            content = key(state, block)
            if content is None:
                continue
            start, mark = (end_of(state.config.added, content) - 1) // size * size, state.marks[block]
            nexts = following(content, behind, size)
            seen, is_free = mark.nexts | nexts, holders(state, block) == 0
            goes = (goes or not nexts) and wish.first is not None and start >= wish.first and is_free and seen == nexts
            state = put(state, {block: replace(kept(mark, start, wish, state.now), first=goes, nexts=seen)})
            behind, goes = content, goes and holding(state, content) == (block,)
    return state


def duplicates(state: State, block: int) -> Table:
    """Return the other blocks with the content of a published one."""
    return tuple(other for other, content in state.keys if other != block and content == key(state, block))


def doubled(state: State, blocks: Table, stay: Collection[int]) -> Table:
    """Return those of some blocks that have the content of one that stays, or of a later one of them (SHARE-4)."""
    keeps = not state.config.added.retains or state.config.added.unit
    pairs = ((block, {*duplicates(state, block)} & {*stay, *blocks[at + 1 :]}) for at, block in enumerate(blocks))
    return () if keeps else tuple(block for block, others in pairs if others)


def undoubled(state: State, doubles: Table) -> State:
    """Forget what some blocks hold that others hold too; those keep what was said of both."""
    for block in doubles:
        mark, marks = state.marks[block], {other: state.marks[other] for other in duplicates(state, block)}
        said = {other: merged(own, mark, state.now) for other, own in marks.items()}
        keys = tuple(each for each in state.keys if each[0] != block)
        contents = tuple(None if at == block else content for at, content in enumerate(state.contents))
        state = put(replace(state, keys=keys, contents=contents), {**said, block: Mark()})
    return state


def following(content: Content, behind: Content | None, size: int) -> frozenset[Content]:
    """Return the content behind a block in its table, if it is the next block's."""
    return frozenset({behind} if behind and 0 < len(behind[1][1]) - len(content[1][1]) <= size else ())


def guarded(state: State, released: Table) -> State:
    """Have the last candidates out of the reach of hints: the last `guard` of those released (HINT-3)."""
    if not state.config.added.retains:
        return state
    fresh = tuple(block for block in released if not state.marks[block].passing)
    recent = tuple(block for block in state.queue if state.marks[block].recent or block in fresh)
    last = recent[-state.config.added.guard :] if state.config.added.guard else ()
    changed = {block: replace(state.marks[block], recent=block in last) for block in recent}
    return put(state, changed)


def held_again(state: State, blocks: frozenset[int]) -> State:
    """Note that candidates are held again: nothing that was said of when they go counts any more."""
    marks = ((block, state.marks[block]) for block in blocks if state.marks)
    return put(state, {at: Mark(old.priority, old.until, asked=old.asked, nexts=old.nexts) for at, old in marks})


def retain(state: State, slot: int, tokens: int, priority: int, until: int) -> Outcome:
    """Ask that the first tokens of a running request be kept with a priority until a time: ``retain``.

    What was said so before is taken back. It counts from when the request lets go of its blocks.
    """
    # REFUSE
    request = state.requests[slot]
    if not isinstance(request, Running):
        return Refusal(Reason.NOT_RUNNING)
    if tokens < 0 or priority < 1:
        return Refusal(Reason.NEGATIVE)
    if until <= state.now:
        return Refusal(Reason.PAST)
    # EFFECT
    return wished(state, slot, request, replace(request.added.wish, tokens=tokens, priority=priority, until=until))
    # SAME: all but what was said of this request (HINT-1).


def release_prefix(state: State, slot: int, first: int) -> Outcome:
    """Ask that a running request's blocks from a token on go first, once it lets go of them: ``release_prefix``."""
    # REFUSE
    request = state.requests[slot]
    if not isinstance(request, Running):
        return Refusal(Reason.NOT_RUNNING)
    if first < 0:
        return Refusal(Reason.NEGATIVE)
    # EFFECT
    return wished(state, slot, request, replace(request.added.wish, first=first))
    # SAME: all but what was said of this request (HINT-1).


def wished(state: State, slot: int, request: Running, wish: Wish) -> Outcome:
    """Note what was said of a request."""
    said = replace(request, added=replace(request.added, wish=wish))
    return Done(replace(state, requests=(*state.requests[:slot], said, *state.requests[slot + 1 :])))


def advance(state: State, now: int) -> Outcome:
    """Report what time it is: ``advance_time`` (HINT-2)."""
    # REFUSE
    if now < state.now:
        return Refusal(Reason.PAST)
    # EFFECT
    return Done(replace(state, now=now))
    # SAME: everything else.
