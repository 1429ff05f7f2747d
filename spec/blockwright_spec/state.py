"""Chapter 2: the state of a manager, with ghosts.

Two fields no manager has: `contents`, the exact prefix that was written to each block, and `settled`, the count of the
last trim. They are ghosts: no transition decides by them what a manager could not know, and laws are stated with them.
Reference counts are not stored: the count of a block is the number of table entries that hold it (`holders`).
"""

from dataclasses import dataclass

from .reads import Full, Kind, Mamba, Prefix, entries

NULL = 0
"""The null block: stands in a table for "nothing here that anyone will read"; never counted, queued or published."""


@dataclass(frozen=True, slots=True)
class Config:
    """What is fixed while a manager lives: one group of layers over `num_blocks` blocks, the null block included."""

    kind: Kind
    block_size: int
    num_blocks: int
    max_model_len: int
    caching: bool = True
    eagle: bool = False


@dataclass(frozen=True, slots=True)
class Hit:
    """Cached blocks that a request may adopt as the head of its table; entries that no later token reads are null."""

    length: int = 0
    blocks: tuple[int, ...] = ()


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
    """A request with a block table.

    ``0 <= settled <= computed <= written``: tokens up to `settled` were done when its table was last trimmed, those up
    to `computed` are computed, those up to `written` were given slots to be written, drafts among them. `published` is
    the number of leading entries that have been looked at for publication.
    """

    prefix: Prefix
    settled: int
    computed: int
    written: int
    table: tuple[int, ...]
    published: int


Request = Absent | Waiting | Running


@dataclass(frozen=True, slots=True)
class State:
    """Everything a manager knows, and the ghosts.

    `queue` holds the free blocks, first to be taken first; `contents` the prefix written to each block, or None where
    nothing readable is; `keys` the published blocks with their prefixes, oldest publication first; `requests` one entry
    for each name that the engine uses.
    """

    config: Config
    queue: tuple[int, ...]
    contents: tuple[Prefix | None, ...]
    keys: tuple[tuple[int, Prefix], ...]
    requests: tuple[Request, ...]


def initial(config: Config, num_requests: int) -> State:
    """Give the state of a new manager: every block but the null block free, in order, without content."""
    blocks = config.num_blocks
    return State(config, tuple(range(1, blocks)), (None,) * blocks, (), (Absent(),) * num_requests)


def span(config: Config) -> int:
    """Give the positions a table entry covers: all of them for a recurrent layer that caches nothing (MAMBA-2)."""
    return config.max_model_len if isinstance(config.kind, Mamba) and not config.caching else config.block_size


def running(state: State) -> tuple[Running, ...]:
    """Give the requests that have a block table."""
    return tuple(request for request in state.requests if isinstance(request, Running))


def holders(state: State, block: int) -> int:
    """Count the table entries that hold a block: its reference count (REF-1)."""
    return sum(request.table.count(block) for request in running(state))


def key(state: State, block: int) -> Prefix | None:
    """Give the prefix under which a block is published, or None (PUB-1)."""
    return next((prefix for other, prefix in state.keys if other == block), None)


def common_prefix_blocks(state: State, slot: int, num_running: int) -> int:
    """Count the leading blocks that exactly `num_running` table entries hold; none unless all is read (REF-1)."""
    request = state.requests[slot]
    if not isinstance(request, Running) or not isinstance(state.config.kind, Full):
        return 0
    same = tuple(block != NULL and holders(state, block) == num_running for block in request.table)
    return (*same, False).index(False)


def covers(config: Config, slots: int) -> int:
    """Count the table entries that `slots` slots take (TABLE-1)."""
    return entries(span(config), slots)
