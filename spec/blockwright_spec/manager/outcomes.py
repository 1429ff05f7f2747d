"""Part one, chapter 7: the demand of a step and how it ends.

Refusal is total: a step that cannot happen says when it could (not now, never, or that the call is wrong) and why, and
there is no new state. Demand is counted as if the dead entries were already trimmed.
"""

from dataclasses import dataclass
from enum import Enum

from .added import PLAIN_STEP, StepAdded
from .state import Content, State, Table


class When(Enum):
    """When a refused step could happen."""

    NOT_NOW = "once others have released blocks"
    NEVER = "not with this pool, however many blocks are free"
    INVALID = "not at all: the call is wrong"


class Reason(Enum):
    """Why a step is refused; each reason says when the step could happen."""

    NO_FREE_BLOCKS = (When.NOT_NOW, "the demand exceeds the free blocks")
    BLOCKS_HELD = (When.NOT_NOW, "some block is held, so the cache cannot be reset")
    POOL_TOO_SMALL = (When.NEVER, "the request alone would hold more blocks than there are")
    NO_TOKENS = (When.INVALID, "no token to compute, and no hit to adopt or one that ends inside a block")
    NEGATIVE = (When.INVALID, "a count is negative")
    TOO_LONG = (When.NEVER, "the tokens exceed the model's maximum length")
    STATE_DRAFTED = (When.INVALID, "a recurrent layer is given more drafts than it has states to go back to")
    DRAFTS_IN_FLIGHT = (When.INVALID, "a recurrent layer must know which drafts of the step before hold")
    NO_CHECKPOINT = (
        When.INVALID,
        "a checkpoint where the step does not pass over a whole block, or that cannot be kept",
    )
    TOO_MANY_DRAFTS = (When.INVALID, "no token of the step is certain, or a known token is called a draft")
    LOAD_ALONE = (When.INVALID, "a load comes with tokens to compute, or is of more tokens than are known")
    LOADING = (When.INVALID, "tokens of the request are still being loaded")
    NO_LOAD = (When.INVALID, "nothing of the request is being loaded, or less than is said to have come")
    NO_ENCODER = (When.INVALID, "encoder tokens without a cross-attention layer")
    RUNS = (When.INVALID, "a request that runs is given a load or encoder tokens: they come with its admission")
    WENT_BACK = (When.INVALID, "fewer tokens are said to be computed than are certain")
    NO_STEP = (When.INVALID, "no step has been started, or none is in flight")
    NOT_REJECTED = (When.INVALID, "tokens are rejected that the step settled has not drafted")
    IN_FLIGHT = (When.INVALID, "a step in flight is with the worker, so that it is not made shorter")
    UNSETTLED = (When.INVALID, "tokens are said to be done that a step in flight computes")
    NOT_A_FORK = (When.INVALID, "the tokens or extra keys of a fork are not those that its parent has computed")
    STATE_ELSEWHERE = (When.INVALID, "the state after the computed tokens is an accepted draft's, which is not shared")
    UNCOPIED = (
        When.INVALID,
        "a step has run before a copy that it needs: one to a block of the request, or of its hit",
    )
    GIVEN_UP = (When.INVALID, "the request began on blocks of a step that was given up, which nobody has written")
    UNWRITTEN = (When.INVALID, "more tokens are said to be computed than slots were given")
    NOT_WAITING = (When.INVALID, "the request holds a block table or does not exist")
    REPEATED = (When.INVALID, "the request stands twice in one batch or step")
    NOT_RUNNING = (When.INVALID, "the request holds no block table")
    HIT_LENGTH = (When.INVALID, "the length of the hit is not that of its blocks")
    HIT_STALE = (When.INVALID, "a block of the hit does not carry the request's prefix")
    PAST = (When.INVALID, "a time that has passed")
    NOTHING_TO_HOLD = (When.INVALID, "a block to be held from outside is free and has no content")
    NOT_OUTSIDE = (When.INVALID, "more is let go of than is held from outside")
    ILLEGAL_CHOICE = (When.INVALID, "the choice is not one of those left open")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A step that did not happen; `missing` blocks would have to become free first.

    `waiting` blocks are on their way: they become free once steps in flight are settled and loads have ended (LIVE-2).
    `by_group` is what the step would take in each group of layers.
    """

    reason: Reason
    missing: int = 0
    waiting: int = 0
    by_group: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Fits:
    """The plan of a step that can happen: trimmed tables, the entries that die, those that take a block (PLAN-1).

    `demand` is what leaves the free queue, per group: the new blocks, and the hits that are free now.
    """

    by_group: tuple[int, ...]
    tables: tuple[Table, ...]
    gone: tuple[tuple[int, ...], ...]
    wants: tuple[tuple[bool, ...], ...]
    states: tuple[int, ...]
    copied: tuple[int | None, ...] = ()
    """Per group, the entry that is written to though others hold its block, and so is copied."""
    outgrown: tuple[int | None, ...] = ()
    """Per group, the entry with a part that is published and written over though nobody else holds it (UNIT-7)."""
    saves: bool = False
    """Whether these are copied first."""

    @property
    def demand(self) -> int:
        """All that leaves the free queue."""
        return sum(self.by_group)


Plan = Fits | Refusal


@dataclass(frozen=True, slots=True)
class Done:
    """A step that happened: the new state and, per group, the entries appended and the entries that became null.

    `demand` is the count of its plan; `copied` are the entries whose block others held, per group; `evicted` are the
    blocks taken with which the last copy of a content was lost, in the order of taking; `forgot` are the contents that
    were forgotten, which are all if `forgot_all`; `outgrown` are the blocks with a published state that is written
    over, of which `saved` were copied; `cut_off` are those of its hit that a newcomer writes over though more of them
    was found; `kept` are the tokens that had run of a request that ended before its last step had, and `given_up` what
    was found of the others until then, each with its block; `hits` are the entries of its lookup that a newcomer
    adopts, group by group; where slots are given back, `left` is the entries that each table has left; `folded`
    are the entries that have another block of the same content: group, entry, the block before, and after.
    """

    state: State
    new: tuple[Table, ...] = ()
    nulled: tuple[tuple[int, ...], ...] = ()
    demand: int = 0
    copied: tuple[int | None, ...] = ()
    evicted: tuple[tuple[int, Content], ...] = ()
    forgot: frozenset[Content] = frozenset()
    outgrown: tuple[int, ...] = ()
    saved: int = 0
    kept: int | None = None
    given_up: frozenset[tuple[int, Content]] = frozenset()
    forgot_all: bool = False
    cut_off: tuple[int, ...] = ()
    hits: Table = ()
    left: tuple[int, ...] = ()
    folded: tuple[tuple[int, int, int, int], ...] = ()


Outcome = Done | Refusal


class Publication(Enum):
    """When the blocks a step fills become findable."""

    NOW = "with the step"
    LATER = "by a call of their own"


@dataclass(frozen=True, slots=True)
class Step:
    """The demand of a step: slots for `new` tokens, and `lookahead` more.

    For a request that is admitted, also: whether the `whole` of it must fit, not just this step; and a `reserve` of
    blocks to leave to others. `added` is for a second reading: drafts, loads and encoders.
    """

    new: int
    lookahead: int = 0
    publication: Publication = Publication.NOW
    whole: bool = False
    reserve: int = 0
    added: StepAdded = PLAIN_STEP
