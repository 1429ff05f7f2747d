"""Part one, chapter 28: retention: in which order candidates go, by what was said of them and by whose they are.

Without hints and shares, candidates go as they were released. Which free block is taken is open
(chapter `choices`), so all of this is about one free choice: the queue stands as blocks were released, and a policy is
shown it in the order of this chapter. Blocks without content go first; of candidates the lowest rank, and of equal ones
the least recently used.

A *tenant* is what has the same extra keys (a cache salt): what is one's is never found by another. A block counts for
the tenant whose request holds it or whose content it keeps, so what a tenant holds is part of his share. Whoever takes
counts the block that he takes, and a candidate goes only while its tenant has more than its floor; where there is no
such candidate, because running requests hold what is left, the first one goes all the same: shares refuse nobody.
"""

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, replace

from ..hints import UNSAID, Mark, Wish, kept, rank
from .chapters import Chapter
from .facts import held_tables, holders, key, owned, running
from .hits import holding
from .keys import end_of
from .marks import Memory, doubles_of, drop_doubles, drop_doubles_of, mark_of_held, memory_of, notes_of, put
from .outcomes import Done, Outcome, Reason, Refusal, transition
from .page import Acts
from .state import NULL, Config, Content, Running, State, Table


@dataclass(frozen=True, slots=True)
class Marking(Chapter):
    """What tells candidates apart by their marks."""

    def begin(self, state: State) -> State:
        return replace(state, memory=Memory((Mark(),) * len(state.contents)))

    def hear(self, state: State, steps: Acts) -> State:
        """Forget the marks of blocks that are taken or found no more; nothing is left of when held ones go.

        A copy or a batch holds what somebody has let go of, or holds as well: that says nothing.
        """
        marks = {act.block: Mark() for act in steps if act.verb in ("take", "forget")}
        hold = (act for act in steps if act.verb == "hold" and act.place[0] not in ("copies", "batches"))
        held = {act.block: mark_of_held(state, act) for act in hold}
        return put(state, marks | held) if marks or held else state

    def order(self, state: State, queue: Table, taker: Hashable, count: int) -> Table:
        return in_order(state, taker, count)


@dataclass(frozen=True, slots=True)
class Retention(Marking):
    """Candidates are told apart by hints and tenants.

    Each of `floors` is a tenant's extra keys and its own blocks; no hint reaches the last `guard` candidates.
    """

    floors: tuple[tuple[Hashable, int], ...] = ()
    guard: int = 0

    def hear(self, state: State, steps: Acts) -> State:
        """Forget the candidates with the content that a block has just been published as, too (SHARE-4)."""
        state = Marking.hear(self, state, steps)
        for act in steps:
            state = drop_doubles_of(state, act.block) if act.verb == "publish" else state
        return state

    def end(self, config: Config, request: Running, resumes: bool, count: int) -> Wish:
        return notes_of(request).wish

    def release(self, state: State, batch: tuple[Table, ...], order: Table, said: Wish | None) -> State:
        """Mark the blocks of a request that ends; forget doubles, and guard the last candidates."""
        state = state if said is None else mark_hints(state, batch, said)
        held = frozenset(block for table in held_tables(state) for block in table)
        freed = tuple(block for block in order if block not in held)
        state = drop_doubles(state, doubles_of(state, freed, held))
        return guard_last(state, tuple(block for block in freed if key(state, block) is not None))

    def fork(self, request: Running) -> Running:
        return replace(request, notes=replace(notes_of(request), wish=UNSAID))


def retention_of(config: Config) -> Retention | None:
    """Return the option of a configuration, if it has it."""
    return next((each for each in config.chapters if isinstance(each, Retention)), None)


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
    held = own + tuple((fence.extra, fence.tables) for fence in state.batches)
    return frozenset((tenant, block) for tenant, tables in held for table in tables for block in table if block != NULL)


def totals(blocks: Collection[tuple[Hashable, int]]) -> Counts:
    """Count the blocks of each tenant."""
    tenants = tuple(tenant for tenant, _ in blocks)
    return {tenant: tenants.count(tenant) for tenant in tenants}


def ranked(state: State) -> tuple[int, ...]:
    """Return the candidates by rank; of equal rank, as they were released."""
    candidates, known = (block for block in state.queue if key(state, block) is not None), memory_of(state)
    return tuple(sorted(candidates, key=lambda block: rank(known.marks[block], known.now)))


def in_order(state: State, taker: Hashable, count: int) -> tuple[int, ...]:
    """Return the queue with the blocks in front that are taken for a tenant, `count` of them, in their order."""
    if not memory_of(state).marks:
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
    option = retention_of(config)
    return dict(option.floors) if option else {}


def is_over(counts: Counts, floors: Counts, tenant: Hashable) -> bool:
    """Return whether a tenant has more than its floor; one that was not named has none."""
    return counts[tenant] > floors.get(tenant, 0)


def mark_hints(state: State, tables: tuple[Table, ...], wish: Wish) -> State:
    """Mark the blocks that a request lets go of, by what was said of it; nothing that is still held goes first.

    Entry by entry from the last one: a block goes first only if the one behind it does and has no duplicate, and if
    nothing else has ever followed it, so that no block goes before its cached extension (POLICY-1).
    """
    now = memory_of(state).now
    for at, table in enumerate(tables):
        size, behind, goes = state.config.groups[at].block_size, None, True
        for block in reversed(table):
            content = key(state, block)
            if content is None:
                continue
            start, mark = (end_of(state.config, content) - 1) // size * size, memory_of(state).marks[block]
            nexts = following(content, behind, size)
            seen, is_free = mark.nexts | nexts, holders(state, block) == 0
            goes = (goes or not nexts) and wish.first is not None and start >= wish.first and is_free and seen == nexts
            state = put(state, {block: replace(kept(mark, start, wish, now), first=goes, nexts=seen)})
            behind, goes = content, goes and holding(state, content) == (block,)
    return state


def following(content: Content, behind: Content | None, size: int) -> frozenset[Content]:
    """Return the content behind a block in its table, if it is the next block's."""
    return frozenset({behind} if behind and 0 < len(behind[1][1]) - len(content[1][1]) <= size else ())


def guard_last(state: State, released: Table) -> State:
    """Have the last candidates out of the reach of hints: the last `guard` of those released (HINT-3)."""
    option, marks = retention_of(state.config), memory_of(state).marks
    if option is None:
        return state
    fresh = tuple(block for block in released if not marks[block].passing)
    recent = tuple(block for block in state.queue if marks[block].recent and block not in fresh) + fresh
    last = recent[-option.guard :] if option.guard else ()
    return put(state, {block: replace(marks[block], recent=block in last) for block in recent})


@transition
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
    if until <= memory_of(state).now:
        return Refusal(Reason.PAST)
    # EFFECT
    wish = replace(notes_of(request).wish, tokens=tokens, priority=priority, until=until)
    return put_wish(state, slot, request, wish)
    # SAME: all but what was said of this request (HINT-1).


@transition
def release_prefix(state: State, slot: int, first: int) -> Outcome:
    """Ask that a running request's blocks from a token on go first, once it lets go of them: ``release_prefix``."""
    # REFUSE
    request = state.requests[slot]
    if not isinstance(request, Running):
        return Refusal(Reason.NOT_RUNNING)
    if first < 0:
        return Refusal(Reason.NEGATIVE)
    # EFFECT
    return put_wish(state, slot, request, replace(notes_of(request).wish, first=first))
    # SAME: all but what was said of this request (HINT-1).


def put_wish(state: State, slot: int, request: Running, wish: Wish) -> Outcome:
    """Note what was said of a request."""
    said = replace(request, notes=replace(notes_of(request), wish=wish))
    return Done(replace(state, requests=(*state.requests[:slot], said, *state.requests[slot + 1 :])))


@transition
def advance(state: State, now: int) -> Outcome:
    """Report what time it is: ``advance_time`` (HINT-2)."""
    # REFUSE
    if now < memory_of(state).now:
        return Refusal(Reason.PAST)
    # EFFECT
    return Done(replace(state, memory=replace(memory_of(state), now=now)))
    # SAME: everything else.


def leaves_floors(state: State) -> bool:
    """Return whether the pool has the larger of each tenant's floor and what its running requests hold.

    What is held from outside is no tenant's, and is not there to be had.
    """
    floors, held = floors_of(state.config), totals(held_by_tenants(state))
    needed = sum(max(floors.get(tenant, 0), held.get(tenant, 0)) for tenant in {*floors, *held})
    return needed + len(frozenset(state.pins)) <= state.config.num_blocks - 1
