"""Part one, chapter 3: the state of a manager, with ghosts.

Two fields no manager has: `contents`, the exact prefix that was written to each block, and `settled`, the tokens that
are done. They are ghosts: laws are stated with them, and no transition decides by them what a manager could not know.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from ..reads import Group, Prefix
from .chapters import Chapter
from .page import Acts

NULL = 0
"""The null block: stands in a table for "nothing here that anyone will read"; never counted, queued or published."""

Table = tuple[int, ...]
"""The blocks of one request in one group of layers, in order of positions."""

Content = tuple[int, Prefix]
"""What a block holds: the data of one group of layers for a prefix. Another group's data would be of no use."""


@dataclass(frozen=True, slots=True)
class Config:
    """The constants of a manager: groups of layers over `num_blocks` blocks, the null block included.

    `watermark` blocks stay free when a request is admitted beside others. `chapters` are its options. With `overlaps`,
    steps are in flight until they are settled; without, each call says that all before it is done. With `settles`,
    blocks are published when their data is settled, without when a step that writes them is scheduled.
    """

    groups: tuple[Group, ...]
    num_blocks: int
    max_model_len: int
    caching: bool = True
    eagle: bool = False
    watermark: int = 0
    chapters: tuple[Chapter, ...] = ()
    overlaps: bool = False
    settles: bool = False


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
    `computed` are known and given slots, those up to `written` are given slots, known or not. `published` is, per
    group, the number of leading entries that have been looked at for publication.

    `states` are, per group, the blocks for states beside its table; `uncertain` counts its last slots that may not
    hold, all unknown ones unless steps are in flight. Of recurrent layers that run ahead, `saved` is the first token
    count of the last steps without a gap: from there on each step leaves the state at the last block end that it
    passes. At `inside` tokens, if not 0, a step left states of recurrent layers besides those at its end. `beside`
    counts what is read by layers that read no token; `coming` tokens after the written ones come from elsewhere. The
    last step put publication off if `is_delayed`; a request that `is_lost` holds what was given up before it was
    written; if `is_inside`, it was trimmed where no recurrent state stands. Duplicates in `folded` tokens were folded.
    """

    prefix: Prefix
    settled: int
    computed: int
    written: int
    tables: tuple[Table, ...]
    published: tuple[int, ...]
    trimmed: int = 0
    notes: Any = None
    states: tuple[Table, ...] = ()
    uncertain: int = 0
    saved: int = 0
    inside: int = 0
    beside: int = 0
    coming: int = 0
    is_delayed: bool = False
    is_lost: bool = False
    is_inside: bool = False
    folded: int = 0


Request = Absent | Waiting | Running


@dataclass(frozen=True, slots=True)
class Flight:
    """What a step in flight does for one request: it computes the tokens start..stop-1 on these tables.

    `slot` is None once the request has ended or was preempted; `uncertain` of the tokens may still be rejected.
    """

    slot: int | None
    start: int
    stop: int
    tables: tuple[Table, ...]
    uncertain: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """Blocks that the request in `slot` let go of at once, given per group; they are still to be released.

    `extra` are its extra keys, `said` what chapters say; one may keep it `until` then, or while something `is_coming`.
    """

    slot: int
    tables: tuple[Table, ...]
    extra: Hashable = 0
    said: tuple[Any, ...] = ()
    until: Any = None
    is_coming: bool = False


Copy = tuple[int, int, int]
"""A copy that the engine has not been told of: the group, the block it is copied from, and the block it goes to."""


@dataclass(frozen=True, slots=True)
class State:
    """Everything a manager knows, and the ghosts.

    `queue` holds the free blocks, first to be taken first; `contents` what was written to each, or None; `keys` the
    published blocks with what they are published as, oldest publication first; `requests` one entry for each of their
    names; `flights` the steps in flight, oldest first; `batches` what is still to be released; `copies` what the engine
    must copy before its next step, oldest first; `due` the slots of requests with a recurrent state to be published
    once their last step has run, oldest first; `pins` the blocks that no table holds, as often as they are held;
    `memory` what chapters remember; `steps` those of a transition that is under way.
    """

    config: Config
    queue: tuple[int, ...]
    contents: tuple[Content | None, ...]
    keys: tuple[tuple[int, Content], ...]
    requests: tuple[Request, ...]
    flights: tuple[tuple[Flight, ...], ...] = ()
    batches: tuple[Batch, ...] = ()
    copies: tuple[Copy, ...] = ()
    due: tuple[int, ...] = ()
    pins: tuple[int, ...] = ()
    memory: Any = None
    steps: Acts = ()


def initial(config: Config, num_requests: int) -> State:
    """Return the state of a new manager: every block but the null block free, in order, without content."""
    blocks = config.num_blocks
    state = State(config, tuple(range(1, blocks)), (None,) * blocks, (), (Absent(),) * num_requests)
    for chapter in config.chapters:
        state = chapter.begin(state)
    return state
