"""Part one, chapter 9: keeping: which blocks the next turn will need, and which go before them.

For a second reading, and only where layers forget: windows and recurrent states. A request of 20,000 tokens fills
1,250 blocks of 16 tokens in each window of 1,024, and its next turn needs the last 64 of them. The others stay
findable, and if all candidates went by age, they would push out the blocks that the next turns of other requests need.

So a request has *wanted lengths*, of hits that are likely to be asked for again: its prompt, and its prompt less one
token, which the same prompt would hit; the hit that it began with; its *junction*, up to which the layers that read
everything had its prompt cached though others did not; and, when it lets go of its blocks, all that it has published.
Each is cut to a length that a hit can have.

A block is *passing* if its last request has let go of it and none of the hits that this request wanted needs it. A copy
or a connector that holds it longer changes nothing. All other blocks are *ordinary*, and those of layers that read
everything always are. Passing blocks go first, in the order in which they were let go of, except the last `spares` of
them: they go as ordinary ones do (POLICY-4). Prompts also part at points that no request could foresee, and the spared
blocks may serve those.

What follows for a user (KEEP-1): a request's next turn hits all that this one has left (`left`) if the blocks that are
held meanwhile, the spared ones, and the ordinary ones of this request and of all that end until then fit the pool. The
ordinary ones are a request's blocks of layers that read everything, and of each other group the windows of at most five
lengths, however many windows it has trimmed.
"""

from collections.abc import Iterable
from dataclasses import replace

from ..reads import Cross, Full, Prefix, hit_ends, margin
from .retention import put
from .state import NULL, Config, Running, State, Table, key, sharers
from .units import aligned


def within(config: Config, length: int) -> int:
    """Return the longest hit whose blocks, its draft margin among them, lie within so many tokens."""
    extra = max(margin(group, config.eagle) for group in config.groups)
    return max(0, length - extra) // aligned(config) * aligned(config)


def wanted_lengths(config: Config, prefix: Prefix, hit: int, junction: int) -> tuple[int, ...]:
    """Return the lengths of hits that a request wants kept from its admission on."""
    step, known = aligned(config), len(prefix[1])
    lengths = {within(config, known), within(config, known - 1), hit // step * step, junction}
    return tuple(sorted(lengths - {0})) if config.added.keeps else ()


def all_published(config: Config, request: Running) -> int:
    """Return the longest hit that a request has published, as far as publication has come in every group.

    With units that is also the part of a last block, which it publishes as it lets go of that.
    """
    counts = zip(config.groups, request.published, strict=True)
    ends = tuple(
        request.computed if config.added.unit and count == request.computed // group.block_size else size * count
        for group, count in counts
        if not isinstance(group.kind, Cross)
        for size in (group.block_size,)
    )
    return within(config, min(ends))


def is_wanted(config: Config, at: int, entry: int, lengths: Iterable[int]) -> bool:
    """Return whether a hit of one of some lengths needs an entry of a group's table."""
    group = config.groups[at]
    ends = (end for length in lengths for end in hit_ends(group, length, config.eagle))
    return isinstance(group.kind, Full) or entry in {(end - 1) // group.block_size for end in ends}


def passing(
    config: Config, tables: tuple[Table, ...], entries: tuple[Iterable[int], ...], lengths: tuple[int, ...]
) -> frozenset[int]:
    """Return the blocks at some entries of a request's tables that no hit of the wanted lengths needs."""
    if not config.added.keeps:
        return frozenset()
    return frozenset(
        table[entry]
        for at, (table, some) in enumerate(zip(tables, entries, strict=True))
        for entry in some
        if table[entry] != NULL and not is_wanted(config, at, entry, lengths)
    )


def passing_at_end(config: Config, request: Running) -> frozenset[int]:
    """Return the blocks that a request holds and that, as it ends, none of its wanted hits needs."""
    lengths = (*request.added.wants, *{all_published(config, request)} - {0})
    return passing(config, request.tables, tuple(range(len(table)) for table in request.tables), lengths)


def left(config: Config, request: Running) -> int:
    """Return the longest wanted hit of which a request, as it ends, has published and still holds every block."""
    lengths = {*request.added.wants, all_published(config, request)}
    return max(length for length in (0, *lengths) if holds_hit(config, request, length))


def holds_hit(config: Config, request: Running, length: int) -> bool:
    """Return whether a request holds, published, all blocks that a hit of a length needs."""
    return all(
        entry < min(len(table), done) and table[entry] != NULL
        for group, table, done in zip(config.groups, request.tables, request.published, strict=True)
        for entry in (end // group.block_size - 1 for end in (hit_ends(group, length, config.eagle) if length else ()))
    )


def passed(state: State, released: Table, ending: frozenset[int] | None) -> State:
    """Mark blocks that were let go of as passing or not; the last `spares` go as ordinary ones do (POLICY-4).

    The last request that held a block decides: a copy or a connector that holds it longer does not (`ending` is None).
    """
    added = state.config.added
    if not added.keeps:
        return state
    left_by_requests = tuple(block for block in released if ending is not None and sharers(state, block) == 0)
    now = {block: key(state, block) is not None and block in (ending or ()) for block in left_by_requests}
    state = put(state, {block: replace(state.marks[block], passing=is_passing) for block, is_passing in now.items()})
    fresh = tuple(block for block in released if block in state.queue and state.marks[block].passing)
    spared = tuple(block for block in state.queue if state.marks[block].spared or block in fresh)
    last = spared[-added.spares :] if added.spares and not added.retains else ()
    return put(state, {block: replace(state.marks[block], spared=block in last) for block in spared})
