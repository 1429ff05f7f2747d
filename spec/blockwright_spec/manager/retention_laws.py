"""Part one, chapter 31: what retention promises: to those who hint, to tenants, and whatever the policy.

Laws of policies are judged where candidates are told apart, and of any policy that takes free blocks: they are about a
choice that every other law leaves open. Two promises are about hits, and so about whole histories: `SHARE-2`, a
tenant's hits are at least those that it would have alone in a pool of its floor, whatever others do and hint, as long
as the floors can be left (`leaves_floors`); and `HINT-3`, hits are at least those of plain LRU in a pool of as many
blocks as are guarded, whatever is hinted. They are explored as pairs of histories, of which one is served `alone`.

Both rest on this: each request uses all blocks of its prompt, hit or not, so that what was used last is the same in
both histories. With windows and recurrent layers a longer hit uses fewer blocks, and leaves the others to be evicted
sooner; there more blocks may mean fewer hits, shares or not, and only SHARE-3 is promised.
"""

from dataclasses import replace

from ..hints import PLAIN, Mark, Wish, rank
from ..reads import Full, Prefix, cut
from .facts import key, sharers
from .hits import found
from .keeping import keeping_of, lacks_passing, serve_passing, spares_of
from .keys import stride
from .lru import LRU
from .marks import memory_of, notes_of
from .outcomes import Done, Step
from .plans import plan_growth
from .retention import Retention, counted, floors_of, guard_last, in_order, is_over, retention_of, tenant_of
from .state import Config, Running, State, Waiting, initial
from .step_laws import taken


def unhinted(state: State) -> State:
    """Return a state as if nothing had ever been said in it."""
    requests = tuple(
        replace(each, notes=replace(notes_of(each), wish=Wish())) if isinstance(each, Running) else each
        for each in state.requests
    )
    known = memory_of(state)
    return replace(state, requests=requests, memory=replace(known, marks=(Mark(),) * len(known.marks)))


def law_hints_change_no_answer(state: State) -> bool:
    """HINT-1: hints change no hit, no plan and no table: they only choose among free blocks."""
    bare, caches = unhinted(state), state.config.caching
    return all(
        (not caches or found(state, each.prefix, LRU) == found(bare, each.prefix, LRU))
        and (isinstance(each, Waiting) or answer(state, slot, each) == answer(bare, slot, each))
        for slot, each in enumerate(state.requests)
        if isinstance(each, Running | Waiting)
    )


def answer(state: State, slot: int, request: Running) -> object:
    """Return the plan of a request's next token."""
    return plan_growth(state, slot, request.written if state.config.overlaps else request.computed, Step(1))


def lapsed(state: State) -> State:
    """Return a state as if what is over had never been said."""
    known = memory_of(state)
    marks = (replace(mark, priority=0, until=0) if mark.until <= known.now else mark for mark in known.marks)
    return replace(state, memory=replace(known, marks=tuple(marks)))


def law_hints_end(before: State, done: Done) -> bool:
    """HINT-2: blocks go by what counts of them now: after its time, and of what was there before, nothing does."""
    blocks, option = taken(done), retention_of(before.config)
    if option is None or option.floors or not set(blocks) <= set(before.queue):
        return True
    own = frozenset(before.queue) & {*done.state.queue, *blocks}  # no hit has adopted them
    now = unguarded(lapsed(before), done)
    return blocks == tuple(block for block in in_order(now, 0, len(now.queue)) if block in own)[: len(blocks)]


def unguarded(before: State, done: Done) -> State:
    """Return a state with the candidates that a step lets go of: they push others out of the guard (HINT-3)."""
    after, free = done.state, frozenset(done.state.queue) - frozenset(before.queue)
    fresh = tuple({block for block, _ in after.keys if block in free and not memory_of(after).marks[block].passing})
    return guard_last(replace(before, queue=before.queue + fresh), fresh)


def law_floors_fit(state: State) -> bool:
    """SHARE-1: floors sum to no more than the pool."""
    return sum(floors_of(state.config).values()) <= state.config.num_blocks - 1


def law_share_is_left(before: State, done: Done) -> bool:
    """SHARE-3: a candidate of a tenant with no more than its floor goes only where there is no other candidate."""
    counts, floors = counted(done.state), floors_of(before.config)
    gone = tuple(block for block in taken(done) if block in before.queue and key(before, block) is not None)
    robbed = any(counts.get(whose, 0) < floors.get(whose, 0) for whose in (tenant_of(before, block) for block in gone))
    return not robbed or not any(
        key(done.state, block) is not None and is_over(counts, floors, tenant_of(done.state, block))
        for block in done.state.queue
    )


def law_extension_goes_first(before: State, done: Done) -> bool:
    """POLICY-1: no block of a layer that reads all earlier tokens goes before its cached extension.

    An extension that was let go of later may stay: a copy or a connector may hold it longer than the block before it.
    So may one that was there before that: it stayed when the pool was resized.
    """
    queue, groups, since = before.queue, before.config.groups, {each: at for at, each in enumerate(before.keys)}
    gone = {block: queue.index(block) for block in taken(done) if block in queue}
    lost = {content: (gone[block], since[block, content]) for block, content in before.keys if block in gone}
    stay = frozenset(content for _, content in done.state.keys)
    extensions = (
        (block, (at, cut(prefix, (len(prefix[1]) - 1) // groups[at].block_size * groups[at].block_size)), began)
        for block, (at, prefix) in done.state.keys
        for began in (since.get((block, (at, prefix)), len(since)),)
        if isinstance(groups[at].kind, Full)
    )
    return not any(
        block in queue[: lost[content][0]] or sharers(before, block) > 0
        for block, content, began in extensions
        if content in lost and content not in stay and began > lost[content][1]
    )


def law_contentless_go_first(before: State, done: Done) -> bool:
    """POLICY-2: no candidate goes while a block without content is free."""
    bare = frozenset(block for block in before.queue if key(before, block) is None)
    gone = any(block in before.queue and key(before, block) is not None for block in taken(done))
    return not gone or not bare & frozenset(done.state.queue)


def law_free_block_can_be_taken(state: State) -> bool:
    """POLICY-3: whatever is said and whose shares there are, every free block can be taken."""
    count = len(state.queue)
    return sorted(LRU.take(in_order(state, None, count), count)) == sorted(state.queue)


def law_passing_go_first(before: State, done: Done) -> bool:
    """POLICY-4: an ordinary candidate goes only if few passing ones are free, and all of them were let go of later."""
    after = done.state
    if keeping_of(before.config) is None or floors_of(before.config):
        return True
    now, left = unguarded(before, done), frozenset(block for block in after.queue if is_free_to_pass(after, block))
    gone = tuple(at for at, block in enumerate(before.queue) if block in taken(done) and is_ordinary(now, block))
    is_oldest = not any(is_free_to_pass(now, block) and block in left for block in before.queue[: max(gone, default=0)])
    return not gone or (is_oldest and len(left) <= spares_of(after))


def law_spares_are_learned(before: State, done: Done) -> bool:
    """POLICY-6: more is spared only after an admission whose hit passing blocks serve, or would have made longer.

    They would have if there is a junction that no earlier request has asked for. At most a quarter of the pool is
    spared, and no more passing blocks than that.
    """
    after, begun = done.state, zip(before.requests, done.state.requests, strict=True)
    option, (old_share, new_share) = keeping_of(after.config), (memory_of(each).share for each in (before, after))
    if option is None or option.parts is None:
        return new_share == old_share
    admitted = tuple((old, new) for old, new in begun if isinstance(new, Running) and not isinstance(old, Running))
    waited = tuple(
        each
        for old, new in admitted  # it may have been looked up before, and again just now
        for each in (old, Waiting(new.prefix, found(before, new.prefix, LRU)))
        if isinstance(each, Waiting)
    )
    shows = any(lacks_passing(before, each) or serve_passing(before, each.hit.tables) for each in waited)
    is_small = sum(mark.spared for mark in memory_of(after).marks) <= spares_of(after) <= after.config.num_blocks // 4
    return is_small and (shows or new_share == old_share or (bool(waited) and new_share < old_share))


def is_ordinary(state: State, block: int) -> bool:
    """Return whether a free block is a candidate that is not passing, and that no hint sends first."""
    known = memory_of(state)
    mark = known.marks[block] if known.marks else Mark()
    return key(state, block) is not None and not mark.passing and rank(mark, known.now) >= PLAIN


def is_free_to_pass(state: State, block: int) -> bool:
    """Return whether a free block is passing and has no hint to keep it."""
    known = memory_of(state)
    return known.marks[block].passing and rank(known.marks[block], known.now) <= PLAIN


def law_full_is_ordinary(state: State) -> bool:
    """POLICY-5: only published blocks are passing, and none of a layer that reads all earlier tokens."""
    may = {block for block, (at, _) in state.keys if not isinstance(state.config.groups[at].kind, Full)}
    return may.issuperset(block for block, mark in enumerate(memory_of(state).marks) if mark.passing)


def law_candidate_is_single(state: State) -> bool:
    """SHARE-4: where candidates are told apart, and hits end with blocks, no candidate has another block's content."""
    contents = tuple(content for _, content in state.keys)
    kept = (content for block, content in state.keys if block in state.queue)
    is_single = retention_of(state.config) is not None and not stride(state.config)
    return not is_single or all(contents.count(content) == 1 for content in kept)


def alone(config: Config, num_blocks: int) -> State:
    """Return a new manager of plain LRU over a pool of that many blocks, to compare the hits of a history with."""
    plain = tuple(each for each in config.chapters if not isinstance(each, Retention))
    return initial(replace(config, num_blocks=num_blocks + 1, chapters=plain), 1)


def law_share_is_as_if_alone(shared: State, single: State, prefix: Prefix) -> bool:
    """SHARE-2: with full attention a tenant hits what it would alone in a pool of its floor, if floors can be left."""
    return found(shared, prefix, LRU).length >= found(single, prefix, LRU).length


def law_wrong_hints_are_bounded(hinted: State, plain: State, prefix: Prefix) -> bool:
    """HINT-3: hits under any hints are at least those of plain LRU in a pool of as many blocks as are guarded."""
    return found(hinted, prefix, LRU).length >= found(plain, prefix, LRU).length


def law_next_turn_hits(state: State, prefix: Prefix, length: int, most: int) -> bool:
    """KEEP-1: a next turn hits what its last one left, while all that is held, spared or wanted since fits the pool.

    `most` is the sum of what was held at most since then, the spared blocks, and the blocks that this turn and all
    requests since have let go of as ordinary ones.
    """
    return most > state.config.num_blocks - 1 or found(state, prefix, LRU).length >= length
