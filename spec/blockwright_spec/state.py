"""Chapter 2: the state of a manager, with ghosts.

Two fields no manager has: `contents`, the exact prefix that was written to each block, and `settled`, the count of the
last trim. They are ghosts: no transition decides by them what a manager could not know, and laws are stated with them.
Reference counts are not stored: the count of a block is the number of table entries that hold it (`holders`).
"""

from dataclasses import dataclass

from .reads import Full, Group, Mamba, Prefix, entries

NULL = 0
"""The null block: stands in a table for "nothing here that anyone will read"; never counted, queued or published."""


Table = tuple[int, ...]
"""The blocks of one request in one group of layers, in order of positions."""

Content = tuple[int, Prefix]
"""What a block holds: the data of one group of layers for a prefix. Another group's data would be of no use."""


@dataclass(frozen=True, slots=True)
class Config:
    """What is fixed while a manager lives: groups of layers over `num_blocks` blocks, the null block included."""

    groups: tuple[Group, ...]
    num_blocks: int
    max_model_len: int
    caching: bool = True
    eagle: bool = False


@dataclass(frozen=True, slots=True)
class Hit:
    """Cached blocks that a request may adopt as the heads of its tables; entries that no later token reads are null."""

    length: int = 0
    tables: tuple[Table, ...] = ()
    """One per group; none at all where nothing was found."""


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

    ``0 <= settled <= computed <= written``: tokens up to `settled` were done when its tables were last trimmed, those
    up to `computed` are computed, those up to `written` were given slots to be written, drafts among them. `published`
    is, per group, the number of leading entries that have been looked at for publication.
    """

    prefix: Prefix
    settled: int
    computed: int
    written: int
    tables: tuple[Table, ...]
    published: tuple[int, ...]


Request = Absent | Waiting | Running


@dataclass(frozen=True, slots=True)
class State:
    """Everything a manager knows, and the ghosts.

    `queue` holds the free blocks, first to be taken first; `contents` what was written to each block, or None where
    nothing readable is; `keys` the published blocks with what they are published as, oldest publication first;
    `requests` one entry for each name that the engine uses.
    """

    config: Config
    queue: tuple[int, ...]
    contents: tuple[Content | None, ...]
    keys: tuple[tuple[int, Content], ...]
    requests: tuple[Request, ...]


def initial(config: Config, num_requests: int) -> State:
    """Give the state of a new manager: every block but the null block free, in order, without content."""
    blocks = config.num_blocks
    return State(config, tuple(range(1, blocks)), (None,) * blocks, (), (Absent(),) * num_requests)


def heads(config: Config, hit: Hit) -> tuple[Table, ...]:
    """Give the heads of a request's tables, one per group, that a hit comes to; empty ones if nothing was found."""
    return hit.tables or ((),) * len(config.groups)


def span(config: Config, group: Group) -> int:
    """Give the positions a table entry covers: all of them for a recurrent layer that caches nothing (MAMBA-2)."""
    return config.max_model_len if isinstance(group.kind, Mamba) and not config.caching else group.block_size


def recurrent(config: Config) -> bool:
    """Tell whether some group keeps a recurrent state, which cannot run ahead of the known tokens nor go back."""
    return any(isinstance(group.kind, Mamba) for group in config.groups)


def running(state: State) -> tuple[Running, ...]:
    """Give the requests that have block tables."""
    return tuple(request for request in state.requests if isinstance(request, Running))


def holders(state: State, block: int) -> int:
    """Count the table entries that hold a block: its reference count (REF-1)."""
    return sum(table.count(block) for request in running(state) for table in request.tables)


def key(state: State, block: int) -> Content | None:
    """Give what a block is published as, or None (PUB-1)."""
    return next((content for other, content in state.keys if other == block), None)


def common_prefix_blocks(state: State, slot: int, group: int, num_running: int) -> int:
    """Count the leading blocks of a group that exactly `num_running` entries hold; none unless all is read (REF-1)."""
    request = state.requests[slot]
    if not isinstance(request, Running) or not isinstance(state.config.groups[group].kind, Full):
        return 0
    same = tuple(block != NULL and holders(state, block) == num_running for block in request.tables[group])
    return (*same, False).index(False)


def covers(config: Config, group: Group, slots: int) -> int:
    """Count the table entries that `slots` slots take (TABLE-1)."""
    return entries(span(config, group), slots)
