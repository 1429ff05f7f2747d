"""Part one, chapter 29: what a request wants kept: the blocks that its next turn will need, and the others.

This matters only where layers forget: windows and recurrent states. A request of 20,000 tokens fills 1,250 blocks of 16
tokens in each window of 1,024, and its next turn needs the last 64 of them. If all candidates went by age, the others
would push out the blocks that the next turns of other requests need.

So a request has *wanted lengths*, of hits that are likely to be asked for again: its prompt, and its prompt less one
token; its *junction*, up to which the layers that read everything had its prompt cached though others did not, or an
earlier prompt began alike; and, when it lets go of its blocks, all that it has published. It also wants the hit that it
began with, unless that was a *tip*: the end of an earlier prompt or of its output, from which no request has gone on
since. Then this is the next turn, and the one after it goes on from here. If the tip was the end of a prompt and there
is no junction behind it, the engine has left the last output out (as with reasoning), and may again: then a request
that ends does not want its own. An engine may ask for hits of every multiple of some number of tokens of its prompt as
well; layers of chunked local attention are left out of that, as in vLLM.

A block is *passing* if its last request has let go of it and none of the hits that this request wanted needs it. All
others are *ordinary*, as are those of layers that read everything. Passing blocks go first, except the last `spares` of
them (POLICY-4), which may serve prompts that part where no request could foresee it. How many are of use depends on the
prompts, so the number can be learned (POLICY-6): the share of the pool that is spared follows the part of requests that
passing blocks have served. A request counts whole if its hit would be shorter by a sixth without them, and in part if
by less. A junction says that passing blocks would have served a longer hit, and counts half, unless an earlier request
*asked* for a hit that ends there: then ordinary blocks are gone, because memory is short.

What follows for a user (KEEP-1): a next turn hits all that the last one has left (`left`) if no other request has gone
on from there, and if the blocks that are held meanwhile, the spared ones, and the ordinary ones of this request and of
all that end until then fit the pool.
"""

from collections.abc import Iterable, Sequence

from ..hints import Leaving, Tip
from ..reads import Chunked, Cross, Full, Group, hit_ends, margin
from .keys import aligned, stride
from .marks import Wants, memory_of, notes_of
from .state import NULL, Config, Running, State, Table, Waiting
from .tails import held


def within(config: Config, length: int) -> int:
    """Return the longest hit whose blocks, its draft margin among them, lie within so many tokens."""
    extra, step = max(margin(group, config.eagle) for group in config.groups), aligned(config)
    return max(0, length - extra) // step * step


def tip_of(state: State, tables: tuple[Table, ...]) -> Tip:
    """Return the tip that a hit of some blocks ends with, of the first group that has one."""
    last = (table[-1] for table in tables if table)
    return next((tip for tip in (memory_of(state).marks[block].tip for block in last) if tip != Tip.NONE), Tip.NONE)


def all_published(config: Config, request: Running, last: int) -> int:
    """Return the longest hit that a request has published, as far as publication has come in every group.

    With units, it may have published `last` tokens as it let go of them. Of a request that publishes nothing more, and
    has passed more entries than there are, nothing is known to end.
    """
    counts, none = zip(config.groups, request.published, strict=True), config.max_model_len + 1
    ends = tuple(count % none * group.block_size for group, count in counts if not isinstance(group.kind, Cross))
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
    every = 0 if isinstance(group.kind, Chunked) else wants.every
    return range(every, max(wants.lengths, default=0) + 1, every) if every else ()


def leaving(
    config: Config, tables: Sequence[Table], entries: Sequence[Table], wants: Wants, published: int = 0, last: int = 0
) -> Leaving:
    """Sort the blocks at some entries of a request's tables: those of no wanted hit, and those where something ended.

    As it ends, a hit of the `published` tokens is wanted as well. With units, `last` is where it has left a state.
    """
    places = tuple((at, entry) for at, some in enumerate(entries) for entry in some if tables[at][entry] != NULL)
    lengths, sizes = (*wants.lengths, *{published} - {0}), tuple(group.block_size for group in config.groups)
    output = frozenset({published}) - {*wants.proven, 0}
    prompt = frozenset(wants.lengths) - {*wants.proven, *output}
    kept = {place for place in places if is_wanted(config, *place, held(config, place[0], lengths, last), wants)}
    ends = {place for place in kept if forgets(config, place[0])}
    return Leaving(
        frozenset(tables[at][entry] for at, entry in places if (at, entry) not in kept),
        frozenset(tables[at][entry] for at, entry in ends if ends_at(config, at, entry, prompt, last)),
        frozenset(tables[at][entry] for at, entry in ends if ends_at(config, at, entry, output, last)),
        frozenset(tables[at][entry] for at, entry in kept - ends if any(n // sizes[at] == entry + 1 for n in lengths)),
    )


def ends_at(config: Config, at: int, entry: int, lengths: Iterable[int], last: int) -> bool:
    """Return whether some length ends at an entry of a group's table, or with units inside it."""
    size = config.groups[at].block_size
    before = entry * size if stride(config) else (entry + 1) * size - 1
    return any(before < length <= (entry + 1) * size for length in held(config, at, lengths, last))


def forgets(config: Config, at: int) -> bool:
    """Return whether a group of layers does not read everything."""
    return not isinstance(config.groups[at].kind, Full)


def output_end(config: Config, request: Running, resumes: bool, last: int = 0) -> int:
    """Return the end of all that a request has published if it wants that kept, 0 if not.

    It does where it `resumes`, or has not published its prompt.
    """
    end, wants = all_published(config, request, last), notes_of(request).wants
    return end if resumes or wants.output or end < max(wants.lengths, default=0) else 0


def leaving_at_end(config: Config, request: Running, resumes: bool = False, last: int = 0) -> Leaving:
    """Sort the blocks that a request holds as it ends, or as it is preempted and `resumes` later."""
    entries = tuple(tuple(range(len(table))) for table in request.tables)
    end = output_end(config, request, resumes, last)
    return leaving(config, request.tables, entries, notes_of(request).wants, end, last)


def left(config: Config, request: Running) -> int:
    """Return the longest wanted hit of which a request, as it ends, has published and still holds every block."""
    lengths = {*notes_of(request).wants.lengths, output_end(config, request, resumes=False)}
    return max(length for length in (0, *lengths) if holds_hit(config, request, length))


def holds_hit(config: Config, request: Running, length: int) -> bool:
    """Return whether a request holds, published, all blocks that a hit of a length needs."""
    tails = notes_of(request).tails
    return all(
        entry < len(table) and table[entry] != NULL and (entry < done or (end % group.block_size and end not in tails))
        for group, table, done in zip(config.groups, request.tables, request.published, strict=True)
        for end in (hit_ends(group, length, config.eagle) if length else ())
        for entry in ((end - 1) // group.block_size,)
    )


def wants_of(state: State, request: Waiting, length: int, coming: int) -> Wants:
    """Return what a request wants kept from its admission on: with a hit of a length and tokens to be loaded."""
    config, prefix = state.config, request.prefix
    step, known = aligned(config), len(prefix[1])
    hit = (length + coming) // step * step
    own = {within(config, known), within(config, known - 1)} - {0}
    tip = Tip.NONE if coming or hit in own else tip_of(state, request.hit.tables)
    proven = {request.hit.junction, hit if tip == Tip.NONE else 0} - {0}
    return Wants(tuple(sorted(own | proven)), tuple(sorted(proven)), tip != Tip.PROMPT or request.hit.junction > 0)
