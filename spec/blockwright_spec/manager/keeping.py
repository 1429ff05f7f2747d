"""Part one, chapter 9: keeping: which blocks the next turn will need, and which go before them.

For a second reading, and only where layers forget: windows and recurrent states. A request of 20,000 tokens fills
1,250 blocks of 16 tokens in each window of 1,024, and its next turn needs the last 64 of them. The others stay
findable, and if all candidates went by age, they would push out the blocks that the next turns of other requests need.

So a request has *wanted lengths*, of hits that are likely to be asked for again: its prompt, and its prompt less one
token, which the same prompt would hit; its *junction*, up to which the layers that read everything had its prompt
cached though others did not, or an earlier prompt began alike; and, when it lets go of its blocks, all that it has
published. Each is cut to a length that a hit can have. It also wants the hit that it began with, unless that was a
*tip*: the end of an earlier prompt or of its output, from which no request has gone on since. Then this is the next
turn, and the one after it goes on from here. If the tip was the end of a prompt and there is no junction behind it, the
engine has left the last output out (as with reasoning), and may again: then a request that ends does not want its own.

An engine may ask that hits of every multiple of some number of tokens of its prompt be wanted as well, for prompts that
part anywhere; of its output only the end is. Layers of chunked local attention are left out of that, as in vLLM.

A block is *passing* if its last request has let go of it and none of the hits that this request wanted needs it. A copy
or a connector that holds it longer changes nothing. All other blocks are *ordinary*, and those of layers that read
everything always are. Passing blocks go first, in the order in which they were let go of, except the last `spares` of
them: they go as ordinary ones do (POLICY-4). Prompts also part at points that no request could foresee, and the spared
blocks may serve those. How many are of use depends on the prompts: none where sessions take turns, and much of the pool
where prompts part anywhere. So an engine may leave the number to be learned (POLICY-6). The share of the pool that is
spared follows the part of requests that passing blocks have served. A request counts whole if its hit would be shorter
by some part (a sixth) without them, and in part if by less: a few tokens behind the end of an earlier prompt, which
would have been hit in any case, are worth little. A junction says that passing blocks would have served a longer hit,
had they been there, and counts half, unless an earlier request *asked* for a hit that ends there: then ordinary blocks
are gone, because memory is short, and sparing passing ones would have more of them go. Blocks of layers that read
everything remember where such hits end. At most a quarter of the pool is spared.

What follows for a user (KEEP-1): a request's next turn hits all that this one has left (`left`) if no other request has
gone on from there, and if the blocks that are held meanwhile, the spared ones, and the ordinary ones of this request
and of all that end until then fit the pool. The ordinary ones are a request's blocks of layers that read everything,
and of each other group the windows of at most five lengths, however many windows it has trimmed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import lcm

from ..hints import Leaving, Tip
from ..reads import Chunked, Cross, Full, Group, Prefix, hit_ends, margin
from .added import Wants, longest, named
from .retention import put
from .state import NULL, Config, Hit, Running, State, Table, Waiting, key, sharers
from .units import aligned, held


def within(config: Config, length: int) -> int:
    """Return the longest hit whose blocks, its draft margin among them, lie within so many tokens."""
    extra, step = max(margin(group, config.eagle) for group in config.groups), aligned(config)
    return max(0, length - extra) // step * step


def wants_of(state: State, request: Waiting, tables: tuple[Table, ...], length: int, external: int) -> Wants:
    """Return what a request wants kept from its admission on: with a hit of a length and tokens to be loaded."""
    config, prefix = state.config, request.prefix
    if not config.added.keeps:
        return Wants()
    step, known = aligned(config), len(prefix[1])
    hit = (length + external) // step * step
    own = {within(config, known), within(config, known - 1)} - {0}
    tip = Tip.NONE if external or hit in own else tip_of(state, tables)
    proven = {request.hit.junction, hit if tip == Tip.NONE else 0} - {0}
    return Wants(tuple(sorted(own | proven)), tuple(sorted(proven)), tip != Tip.PROMPT or request.hit.junction > 0)


def tip_of(state: State, tables: tuple[Table, ...]) -> Tip:
    """Return the tip that a hit of some blocks ends with, of the first group that has one."""
    last = (table[-1] for table in tables if table)
    return next((state.marks[block].tip for block in last if state.marks[block].tip != Tip.NONE), Tip.NONE)


def all_published(config: Config, request: Running, last: int) -> int:
    """Return the longest hit that a request has published, as far as publication has come in every group.

    With units, it may have published `last` tokens as it let go of them.
    """
    counts = zip(config.groups, request.published, strict=True)
    ends = tuple(count * group.block_size for group, count in counts if not isinstance(group.kind, Cross))
    return within(config, max(last, min(ends)))


def is_wanted(config: Config, at: int, entry: int, lengths: Iterable[int], wants: Wants) -> bool:
    """Return whether a hit of one of some lengths, or of a multiple that is wanted, needs an entry of a table."""
    group = config.groups[at]
    start, end = entry * group.block_size, (entry + 1) * group.block_size
    wanted = (*lengths, *multiples(config, group, wants))
    needed = ((length, hit_ends(group, length, config.eagle)) for length in wanted)
    return isinstance(group.kind, Full) or any(
        end in ends or (start < length < end and length in ends) for length, ends in needed
    )


def multiples(config: Config, group: Group, wants: Wants) -> Iterable[int]:
    """Return the lengths of which a hit is wanted in a group whatever the request, up to the end of its prompt."""
    every = 0 if isinstance(group.kind, Chunked) else config.added.every
    return range(every, max(wants.lengths, default=0) + 1, every) if every else ()


def leaving(
    config: Config, tables: Sequence[Table], entries: Sequence[Table], wants: Wants, published: int = 0, last: int = 0
) -> Leaving:
    """Sort the blocks at some entries of a request's tables: those of no wanted hit, and those where something ended.

    As it ends, a hit of the `published` tokens is wanted as well. With units, `last` is where it has left a state.
    """
    if not config.added.keeps:
        return Leaving()
    places = tuple((at, entry) for at, some in enumerate(entries) for entry in some if tables[at][entry] != NULL)
    lengths = (*wants.lengths, *{published} - {0})
    output = frozenset({published}) - {*wants.proven, 0}
    prompt = frozenset(wants.lengths) - {*wants.proven, *output}
    kept = {place for place in places if is_wanted(config, *place, held(config, place[0], lengths, last), wants)}
    ends = {place for place in kept if forgets(config, place[0])}
    return Leaving(
        frozenset(tables[at][entry] for at, entry in places if (at, entry) not in kept),
        frozenset(tables[at][entry] for at, entry in ends if ends_at(config, at, entry, prompt, last)),
        frozenset(tables[at][entry] for at, entry in ends if ends_at(config, at, entry, output, last)),
        frozenset(tables[at][entry] for at, entry in kept - ends if asks_at(config, at, entry, lengths)),
    )


def ends_at(config: Config, at: int, entry: int, lengths: Iterable[int], last: int) -> bool:
    """Return whether some length ends at an entry of a group's table, or with units inside it."""
    size = config.groups[at].block_size
    before = entry * size if config.added.unit else (entry + 1) * size - 1
    return any(before < length <= (entry + 1) * size for length in held(config, at, lengths, last))


def asks_at(config: Config, at: int, entry: int, lengths: Iterable[int]) -> bool:
    """Return whether an entry of a group's table is the last whole block of one of some lengths."""
    return any(length // config.groups[at].block_size == entry + 1 for length in lengths)


def forgets(config: Config, at: int) -> bool:
    """Return whether a group of layers does not read everything."""
    return not isinstance(config.groups[at].kind, Full)


def output_end(config: Config, request: Running, resumes: bool, last: int = 0) -> int:
    """Return the end of all that a request has published if it wants that kept, 0 if not.

    It does where it `resumes`, or has not published its prompt.
    """
    end, wants = all_published(config, request, last), request.added.wants
    return end if resumes or wants.output or end < max(wants.lengths, default=0) else 0


def leaving_at_end(config: Config, request: Running, resumes: bool = False, last: int = 0) -> Leaving:
    """Sort the blocks that a request holds as it ends, or as it is preempted and `resumes` later."""
    entries = tuple(tuple(range(len(table))) for table in request.tables)
    end = output_end(config, request, resumes, last)
    return leaving(config, request.tables, entries, request.added.wants, end, last)


def left(config: Config, request: Running) -> int:
    """Return the longest wanted hit of which a request, as it ends, has published and still holds every block."""
    lengths = {*request.added.wants.lengths, output_end(config, request, resumes=False)}
    return max(length for length in (0, *lengths) if holds_hit(config, request, length))


def holds_hit(config: Config, request: Running, length: int) -> bool:
    """Return whether a request holds, published, all blocks that a hit of a length needs."""
    tails = request.added.tails
    return all(
        entry < len(table) and table[entry] != NULL and (entry < done or (end % group.block_size and end not in tails))
        for group, table, done in zip(config.groups, request.tables, request.published, strict=True)
        for end in (hit_ends(group, length, config.eagle) if length else ())
        for entry in ((end - 1) // group.block_size,)
    )


def spares_of(state: State) -> int:
    """Return how many of the last passing blocks go as ordinary ones do now (POLICY-4, POLICY-6)."""
    added, blocks = state.config.added, state.config.num_blocks
    if added.retains:
        return 0
    if added.learns is None:
        return added.spares
    whole = added.learns[0]
    return blocks * min(state.share, whole // 4) // whole


def learned(state: State, slot: int, hit: Hit) -> State:
    """Learn from an admission how many passing blocks to spare (POLICY-6)."""
    added, request = state.config.added, state.requests[slot]
    if added.learns is None or added.retains or not isinstance(request, Waiting):
        return state
    (whole, slow, parts), old, tokens = added.learns, state.share, hit.length or 1
    more, lacks = min(hit.length, parts * served_by_passing(state, request.prefix, hit)), lacks_passing(state, request)
    up, down = (whole - old) * more // tokens >> slow, old * (tokens - more) // tokens >> slow
    used = old + up - down if hit.length or not lacks else old
    share = used + (whole - used >> slow + 1) if lacks else used
    spared = tuple(block for block in state.queue if state.marks[block].spared)
    return sparing(replace(state, share=share), spared)


def served_by_passing(state: State, prefix: Prefix, hit: Hit) -> int:
    """Return by how many tokens a hit that ends with a passing candidate is longer than without such candidates."""
    if not serve_passing(state, hit.tables):
        return 0
    config = state.config
    held = frozenset(content for block, content in state.keys if not is_passing_candidate(state, block))
    lengths = range(0, hit.length + 1, lcm(*(group.block_size for group in config.groups)))
    return hit.length - longest(config.added, enumerate(config.groups), held, prefix, config.eagle, lengths)


def lacks_passing(state: State, request: Waiting) -> bool:
    """Return whether a hit falls short of a junction that no earlier request has asked for."""
    config, junction = state.config, request.hit.junction
    at = next((at for at in range(len(config.groups)) if not forgets(config, at)), 0)
    size = config.groups[at].block_size
    content = named(config.added, at, request.prefix, junction // size * size)
    return junction > 0 and not any(state.marks[block].asked for block, other in state.keys if other == content)


def serve_passing(state: State, tables: tuple[Table, ...]) -> bool:
    """Return whether a hit ends with a passing candidate in some group."""
    return any(is_passing_candidate(state, table[-1]) for table in tables if table)


def is_passing_candidate(state: State, block: int) -> bool:
    """Return whether a block is free and passing."""
    return block in state.queue and state.marks[block].passing


def sparing(state: State, blocks: Table) -> State:
    """Spare the last of some passing blocks, first to be let go of first, as many as are spared now."""
    count = spares_of(state)
    last = blocks[-count:] if count else ()
    return put(state, {block: replace(state.marks[block], spared=block in last) for block in blocks})


def passed(state: State, released: Table, ending: Leaving | None) -> State:
    """Mark blocks that were let go of as passing or not; the last `spares` go as ordinary ones do (POLICY-4).

    The last request that held a block decides: a copy or a connector that holds it longer does not (`ending` is None).
    Only free blocks are tips.
    """
    added, said = state.config.added, Leaving() if ending is None else ending
    if not added.keeps:
        return state
    left_by_requests = tuple(block for block in released if ending is not None and sharers(state, block) == 0)
    now = {block: key(state, block) is not None and block in said.passing for block in left_by_requests}
    candidates = {block for block in state.queue if key(state, block) is not None}
    tips = {block: tip_at(said, block) if block in candidates else Tip.NONE for block in now}
    state = put(state, {block: replace(state.marks[block], passing=now[block], tip=tips[block]) for block in now})
    asked = said.asked if added.learns is not None and not added.retains else ()
    kept = {block for block in asked if key(state, block) is not None}
    state = put(state, {block: replace(state.marks[block], asked=True) for block in kept})
    fresh = tuple(block for block in released if block in state.queue and state.marks[block].passing)
    return sparing(state, tuple(block for block in state.queue if state.marks[block].spared or block in fresh))


def tip_at(said: Leaving, block: int) -> Tip:
    """Return what of a request ended with a block that it lets go of."""
    if block in said.output:
        return Tip.OUTPUT
    return Tip.PROMPT if block in said.prompt else Tip.NONE
