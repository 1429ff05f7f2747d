"""Part one, chapter 47: a pool that grows and shrinks while it serves.

The blocks of a pool are those below its *end*. It may have memory for more: up to `most` blocks. Whoever resizes it
moves the end, at once and whatever runs. What stays keeps its place in the queue, its content and its hits. Of the ids
that go, candidates are evicted. Blocks that are held stay with those that hold them, and nothing is moved: so
no copy is needed, no step in flight writes to a wrong place, and no table that a worker has grows old. No lookup finds
them any more, so that nobody else comes to hold them but a fork; and once they are let go of, they are gone. A request
that holds one of them publishes nothing more, because what it would publish comes behind a block that is not found. An
engine that cannot wait preempts those that hold them (`waits_for`).
"""

from dataclasses import dataclass, replace

from .chapters import Chapter
from .facts import held_tables, holders, key, owned, running
from .keeping import spare_fewer
from .marks import memory_of
from .outcomes import Done, Outcome, Reason, Refusal, transition
from .page import pins
from .publication import put_request
from .retention import Retention, floors_of, guard_last, ranked, retention_of
from .seam import forget_keys, note
from .state import Config, Running, State
from .tails import make_private


@dataclass(frozen=True, slots=True)
class Resizable(Chapter):
    """A pool with memory for `most` blocks, the null block included. It comes before chapters that remember blocks.

    Watermark and guard are the same parts of the pool as in the `first` configuration.
    """

    most: int = 0
    first: Config | None = None

    def begin(self, state: State) -> State:
        config = state.config
        own = replace(self, first=config)
        chapters = tuple(own if each is self else each for each in config.chapters)
        beyond = (None,) * (self.most - config.num_blocks)
        return replace(state, config=replace(config, chapters=chapters), contents=state.contents + beyond)


@transition
def resize(state: State, num_blocks: int) -> Outcome:
    """Let the pool end before a block: ``resize``. Blocks that come are taken first, the lowest id before."""
    # REFUSE
    if not max(1, sum(floors_of(state.config).values())) < num_blocks <= len(state.contents):
        return Refusal(Reason.NO_SIZE)
    # EFFECT
    end, old = num_blocks, state.config.num_blocks
    stays = tuple(block for block in state.queue if block < end)
    comes = tuple(block for block in range(old, end) if holders(state, block) == 0)
    gone = tuple(block for block in state.queue if block >= end)
    candidates = ranked(state) if memory_of(state).marks else state.queue
    evicted = tuple(block for block in candidates if block in gone and key(state, block) is not None)
    contents = tuple(None if block in gone else content for block, content in enumerate(state.contents))
    keys = tuple(each for each in state.keys if each[0] not in gone)
    steps = tuple(act for block in evicted for verb in ("take", "drop") for act in pins(verb, "beyond", (block,)))
    after = note(state, steps, queue=(*comes, *stays), contents=contents, keys=keys)
    after = forget_keys(after, tuple(each for each in keys if each[0] >= end))
    config = of_size(state.config, end)
    after = replace(after, config=config)
    for slot, request in enumerate(after.requests):
        if isinstance(request, Running) and max((0, *sum(owned(request), ()))) >= end:
            after = put_request(after, slot, make_private(config, request))
    return Done(guard_last(spare_fewer(after), ()))
    # SAME: tables, copies to come, keys of blocks that stay and the order in which they are taken.


def of_size(config: Config, end: int) -> Config:
    """Return the configuration of a pool that ends before a block."""
    first = next(each.first for each in config.chapters if isinstance(each, Resizable)) or config
    kept = retention_of(first)
    guard = kept.guard * (end - 1) // (first.num_blocks - 1) if kept else 0
    chapters = tuple(replace(each, guard=guard) if isinstance(each, Retention) else each for each in config.chapters)
    watermark = first.watermark * end // first.num_blocks
    return replace(config, num_blocks=end, chapters=chapters, watermark=watermark)


def waits_for(state: State) -> dict[int, tuple[int, ...]]:
    """Return the blocks beyond the end that are held, each with the slots that run and hold it."""
    above = frozenset(block for table in held_tables(state) for block in table if block >= state.config.num_blocks)
    slots = tuple((slot, sum(owned(each), ())) for slot, each in enumerate(state.requests) if isinstance(each, Running))
    return {block: tuple(slot for slot, blocks in slots if block in blocks) for block in sorted(above)}


def law_end_is_the_end(state: State) -> bool:
    """RESIZE-1: no block beyond the end of the pool is free to be taken, and none is found."""
    return all(block < state.config.num_blocks for block in (*state.queue, *(block for block, _ in state.keys)))


def law_nothing_beyond_is_given(before: State, done: Done) -> bool:
    """RESIZE-2: nobody comes to hold a block beyond the end, but by a fork, and who waits for it is told who does."""
    end = done.state.config.num_blocks
    return before.config.num_blocks != end or waits_for(done.state).keys() <= waits_for(before).keys()


def law_what_stays_is_found(before: State, done: Done) -> bool:
    """RESIZE-3: a pool that is resized moves no held block, and what stays is found and taken as before."""
    after, end = done.state, done.state.config.num_blocks
    if before.config.num_blocks == end:
        return True
    tables = [[owned(each) for each in running(at)] for at in (before, after)]
    stays = tuple(block for block in before.queue if block < end)
    return (
        tables[0] == tables[1]
        and (before.copies, before.batches, before.pins) == (after.copies, after.batches, after.pins)
        and after.keys == tuple(each for each in before.keys if each[0] < end)
        and tuple(block for block in after.queue if block in stays) == stays
    )
