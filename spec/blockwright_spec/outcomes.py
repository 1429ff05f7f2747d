"""Chapter 6: what a step asks for and how it ends.

Refusal is total: a step that cannot happen says when it could (not now, never, or that the call is wrong) and why, and
there is no new state. Demand is counted as if the dead entries were already trimmed.
"""

from dataclasses import dataclass
from enum import Enum

from .state import State, Table


class When(Enum):
    """When a refused step could happen."""

    NOT_NOW = "once others have released blocks"
    NEVER = "not with this pool, however many blocks are free"
    INVALID = "not at all: the call is wrong"


class Reason(Enum):
    """Why a step is refused; each reason says when the step could happen."""

    NO_FREE_BLOCKS = (When.NOT_NOW, "the demand exceeds the free blocks")
    BLOCKS_HELD = (When.NOT_NOW, "a request holds blocks, so the cache cannot be reset")
    POOL_TOO_SMALL = (When.NEVER, "the request alone would hold more blocks than there are")
    NO_TOKENS = (When.INVALID, "no token to compute and no hit to adopt")
    NEGATIVE = (When.INVALID, "a count is negative")
    TOO_LONG = (When.INVALID, "the tokens exceed the model's maximum length")
    STATE_DRAFTED = (When.INVALID, "a recurrent layer is given slots beyond the tokens that are known")
    UNWRITTEN = (When.INVALID, "more tokens are said to be computed than slots were given")
    NOT_WAITING = (When.INVALID, "the request holds a block table or does not exist")
    REPEATED = (When.INVALID, "the request stands twice in one batch")
    NOT_RUNNING = (When.INVALID, "the request holds no block table")
    HIT_LENGTH = (When.INVALID, "the length of the hit is not that of its blocks")
    HIT_STALE = (When.INVALID, "a block of the hit does not carry the request's prefix")
    ILLEGAL_CHOICE = (When.INVALID, "the choice is not one of those left open")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A step that did not happen."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class Done:
    """A step that happened: the new state and, per group, the entries appended and the entries that became null."""

    state: State
    new: tuple[Table, ...] = ()
    nulled: tuple[tuple[int, ...], ...] = ()


Outcome = Done | Refusal


class Publication(Enum):
    """When the blocks a step fills become findable."""

    NOW = "with the step"
    LATER = "by a call of their own"


@dataclass(frozen=True, slots=True)
class Step:
    """What a step asks for: slots for `new` tokens, drafts among them, and `lookahead` more that are not published."""

    new: int
    lookahead: int = 0
    publication: Publication = Publication.NOW
