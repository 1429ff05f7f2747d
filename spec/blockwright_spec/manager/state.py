"""Part one, chapter 2: the state of a manager, with ghosts.

Two fields no manager has: `contents`, the exact prefix that was written to each block, and `settled`, the tokens that
are done. They are ghosts: laws are stated with them, and no transition decides by them what a manager could not know.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from operator import add

from ..hints import NOTHING_LEFT, UNSAID, Leaving, Mark, Wish
from ..reads import Ahead, Cross, Group, Mamba, Prefix, entries, entries_ahead
from .added import PLAIN_CONFIG, PLAIN_REQUEST, ConfigAdded, RunningAdded

NULL = 0
"""The null block: stands in a table for "nothing here that anyone will read"; never counted, queued or published."""

Table = tuple[int, ...]
"""The blocks of one request in one group of layers, in order of positions."""

Content = tuple[int, Prefix]
"""What a block holds: the data of one group of layers for a prefix. Another group's data would be of no use."""


@dataclass(frozen=True, slots=True)
class Config:
    """The constants of a manager: groups of layers over `num_blocks` blocks, the null block included.

    `watermark` blocks stay free when a request is admitted beside others. `added` is for a second reading: steps in
    flight, events, hints and shares.
    """

    groups: tuple[Group, ...]
    num_blocks: int
    max_model_len: int
    caching: bool = True
    eagle: bool = False
    watermark: int = 0
    added: ConfigAdded = PLAIN_CONFIG


@dataclass(frozen=True, slots=True)
class Hit:
    """Cached blocks that a request may adopt as the heads of its tables; entries that no later token reads are null.

    `junction` is the length that layers which read everything have cached, where other layers made the hit shorter.
    """

    length: int = 0
    tables: tuple[Table, ...] = ()
    """One per group; none at all where nothing was found."""
    junction: int = 0


@dataclass(frozen=True, slots=True)
class Absent:
    """A request that the engine has not sent, or that has ended."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that holds no block: not admitted yet, or preempted. `hit` is what its last lookup found, if any."""

    prefix: Prefix
    hit: Hit = Hit()


@dataclass(frozen=True, slots=True)
class Running:
    """A request with a block table in each group.

    Its tables were last trimmed for what comes after `trimmed` tokens; those up to `settled` are done, those up to
    `computed` are known and given slots, those up to `written` are given slots, drafts and tokens still unknown among
    them. `published` is, per group, the number of leading entries that have been looked at for publication. `added` is
    for a second reading: drafts and their states, encoder tokens, what is being loaded, and hints.
    """

    prefix: Prefix
    settled: int
    computed: int
    written: int
    tables: tuple[Table, ...]
    published: tuple[int, ...]
    trimmed: int = 0
    added: RunningAdded = PLAIN_REQUEST


Request = Absent | Waiting | Running


@dataclass(frozen=True, slots=True)
class Flight:
    """What a step in flight does for one request: it computes the tokens start..stop-1 on these tables.

    `slot` is None once the request has ended or was preempted; `drafts` of the tokens may still be rejected.
    """

    slot: int | None
    start: int
    stop: int
    tables: tuple[Table, ...]
    drafts: int = 0


@dataclass(frozen=True, slots=True)
class Fence:
    """Blocks that their request gave up while something still touches them, given per group.

    They return when the step in flight numbered `step`, oldest 0, is settled, or, without one, when the load of the
    request in `slot` has ended; `extra` are the request's extra keys, and `leaving` tells which of the blocks are
    passing.
    """

    step: int | None
    slot: int
    tables: tuple[Table, ...]
    extra: Hashable = 0
    wish: Wish = UNSAID
    leaving: Leaving = NOTHING_LEFT


Copy = tuple[int, int, int]
"""A copy that the engine has not been told of: the group, the block it is copied from, and the block it goes to."""


@dataclass(frozen=True, slots=True)
class State:
    """Everything a manager knows, and the ghosts.

    `queue` holds the free blocks, first to be taken first; `contents` what was written to each, or None where nothing
    readable is; `keys` the published blocks with what they are published as, oldest publication first; `requests` one
    entry for each of their names; `flights` the steps in flight, oldest first; `fences` what waits for them; `copies`
    what the engine must copy before its next step, oldest first; `due` the slots of requests with a recurrent state to
    be published once their last step has run, oldest first; `marks` what is remembered of each block, and `now` the
    time; `outside` the holds from outside, ascending; `share` the learned worth of passing blocks, `prompts` the last.
    """

    config: Config
    queue: tuple[int, ...]
    contents: tuple[Content | None, ...]
    keys: tuple[tuple[int, Content], ...]
    requests: tuple[Request, ...]
    flights: tuple[tuple[Flight, ...], ...] = ()
    fences: tuple[Fence, ...] = ()
    copies: tuple[Copy, ...] = ()
    due: tuple[int, ...] = ()
    marks: tuple[Mark, ...] = ()
    now: int = 0
    outside: tuple[int, ...] = ()
    share: int = 0
    prompts: tuple[Prefix, ...] = ()


def initial(config: Config, num_requests: int) -> State:
    """Return the state of a new manager: every block but the null block free, in order, without content."""
    blocks, added = config.num_blocks, config.added
    queue, marks = tuple(range(1, blocks)), (Mark(),) * (blocks if added.retains or added.keeps else 0)
    return State(config, queue, (None,) * blocks, (), (Absent(),) * num_requests, marks=marks)


def heads(config: Config, hit: Hit) -> tuple[Table, ...]:
    """Return the heads of a request's tables, one per group, for a hit; empty ones if nothing was found."""
    return hit.tables or ((),) * len(config.groups)


def span(config: Config, group: Group) -> int:
    """Return the positions a table entry covers: all of them for a recurrent layer that caches nothing (MAMBA-2)."""
    return config.max_model_len if isinstance(group.kind, Mamba) and not config.caching else group.block_size


def recurrent(config: Config) -> bool:
    """Return whether some group keeps a recurrent state, which cannot run ahead of the known tokens nor go back."""
    return draft_states(config) is not None


def draft_states(config: Config) -> int | None:
    """Return the drafts that every recurrent layer can take back, or None where there is no recurrent layer."""
    return min((group.kind.drafts for group in config.groups if isinstance(group.kind, Mamba)), default=None)


def runs_ahead(config: Config) -> bool:
    """Return whether recurrent layers keep every state that any number of accepted tokens may need (MAMBA-6)."""
    return any(isinstance(group.kind, Ahead) for group in config.groups)


def entries_of_states(config: Config, group: Group, known: int, stop: int) -> range:
    """Return the entries that a step of a layer that runs ahead may write to (MAMBA-6)."""
    return entries_ahead(group.kind, span(config, group), known, stop, stop > known or not config.caching)


def running(state: State) -> tuple[Running, ...]:
    """Return the requests that have block tables."""
    return tuple(request for request in state.requests if isinstance(request, Running))


def owned(request: Running) -> tuple[Table, ...]:
    """Return, per group, the blocks of a request: its table, and the blocks for states of drafts after it."""
    states = request.added.states
    return tuple(map(add, request.tables, states)) if states else request.tables


def shared_tables(state: State) -> tuple[Table, ...]:
    """Return what requests own, and what waits behind fences."""
    own = (table for request in running(state) for table in owned(request))
    return (*own, *(table for fence in state.fences for table in fence.tables))


def held_tables(state: State) -> tuple[Table, ...]:
    """Return all that hold blocks: requests, what waits behind fences, both ends of copies, and whoever is outside."""
    ends = tuple((source, target) for _, source, target in state.copies)
    return (*shared_tables(state), *ends, state.outside)


def holders(state: State, block: int) -> int:
    """Count the entries of tables, fences, copies, states of drafts and holds from outside with a block (REF-1)."""
    return sum(table.count(block) for table in held_tables(state))


def sharers(state: State, block: int) -> int:
    """Count the entries of tables and fences that hold a block: a writer must be the only one (WRITE-2)."""
    return sum(table.count(block) for table in shared_tables(state))


def resumed(prefix: Prefix, end: int) -> int:
    """Return the tokens that count as done once all up to `end` are loaded: the last known one is computed again."""
    return min(end, len(prefix[1]) - 1)


def certain(request: Running) -> int:
    """Return the end of the tokens with slots that are no drafts: where a recurrent state stopped (MAMBA-3)."""
    return request.written - request.added.drafts


def in_flight(state: State, slot: int) -> tuple[int, ...]:
    """Return the numbers of the steps in flight that compute tokens of a request."""
    return tuple(at for at, step in enumerate(state.flights) if any(flight.slot == slot for flight in step))


def is_loading(state: State, slot: int) -> bool:
    """Return whether a load of a request is on its way, though the request may have ended since."""
    request = state.requests[slot]
    own = isinstance(request, Running) and request.added.loading > 0
    return own or any(fence.step is None and fence.slot == slot for fence in state.fences)


def key(state: State, block: int) -> Content | None:
    """Return the content that a block is published as, or None (PUB-1); of several lengths, the longest."""
    return max(keys_of(state, block), key=lambda content: len(content[1][1]), default=None)


def keys_of(state: State, block: int) -> tuple[Content, ...]:
    """Return all that a block is published as: one thing, unless hits may end inside blocks (KEY-1)."""
    return tuple(content for other, content in state.keys if other == block)


def covers(config: Config, group: Group, slots: int) -> int:
    """Count the table entries that `slots` slots take (TABLE-1); encoder tokens are not among them."""
    if isinstance(group.kind, Cross):
        return 0
    return entries(span(config, group), slots)
