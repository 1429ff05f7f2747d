"""Part one, chapter 11: the demand of a step and how it ends.

Refusal is total: a step that cannot happen says when it could (not now, never, or that the call is wrong) and why, and
there is no new state. Demand is counted as if the dead entries were already trimmed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import wraps
from typing import Any, TypeVar, cast

from .. import block_machine
from ..reads import Ahead, Group, Mamba, states_beside
from .facts import span
from .page import Act, Acts
from .state import Config, Content, Request, Running, State, Table


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
    NO_SIZE = (
        When.INVALID,
        "fewer blocks than one beside null or than are shared out, or more than there is memory for",
    )
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
    """Per group, the entry that is written over though its block is found and nobody else holds it."""
    saves: bool = False
    """Whether these are copied first."""

    @property
    def demand(self) -> int:
        return sum(self.by_group)


Plan = Fits | Refusal


@dataclass(frozen=True, slots=True)
class Done:
    """A step that happened: the new state and, per group, the entries appended and the entries that became null.

    `steps` is what it did on the page, in order (chapter `page`); `demand` the count of its plan; `copied` are the
    entries whose block others held, per group; `forgot` the contents that were forgotten, which are all if
    `forgot_all`; `kept` the tokens that had run, where a step is given up that had not.
    """

    state: State
    new: tuple[Table, ...] = ()
    nulled: tuple[tuple[int, ...], ...] = ()
    demand: int = 0
    copied: tuple[int | None, ...] = ()
    forgot: frozenset[Content] = frozenset()
    forgot_all: bool = False
    kept: int | None = None
    steps: Acts = ()


Outcome = Done | Refusal
Transition = TypeVar("Transition", bound=Callable[..., Outcome])


def transition(call: Transition) -> Transition:
    """Have a transition's outcome carry its steps: first its tables go on, and last those go that are empty."""

    @wraps(call)
    def whole(state: State, /, *args: Any, **named: Any) -> Outcome:
        outcome = call(state, *args, **named)
        if isinstance(outcome, Refusal):
            return outcome
        runs, ends = advances(state, outcome.state)
        steps = runs + outcome.state.steps + ends
        return replace(outcome, state=replace(outcome.state, steps=()), steps=steps) if steps else outcome

    return cast(Transition, whole)


def advances(before: State, after: State) -> tuple[Acts, Acts]:
    """Return the steps by which the tables of requests that run go on, and those of others begin anew."""
    goes = tuple(
        Act("advance", place=((slot, at), 0), counts=(table.done, table.stop))
        for slot, new in enumerate(after.requests)
        if new is not before.requests[slot]
        for at, group in enumerate(after.config.groups)
        for table in (table_of(after, new, at, group),)
        if table != table_of(before, before.requests[slot], at, group)
    )
    runs = tuple(act for act in goes if isinstance(after.requests[act.place[0][0]], Running))  # type: ignore[index]
    return runs, tuple(act for act in goes if act not in runs)


def table_of(state: State, request: Request, at: int, group: Group) -> block_machine.Table:
    """Return what the page has of a request's table.

    Of attention, all slots of the table are under way; of a recurrent layer, the state after the last token that is no
    draft. Where it has blocks for their states, its table keeps that state alone: what was accepted is read there.
    """
    size = span(state.config, group)
    if not isinstance(request, Running):
        return block_machine.Table(group.kind, size)
    if not isinstance(group.kind, Mamba):
        return block_machine.Table(group.kind, size, request.trimmed, len(request.tables[at]) * size)
    stop = max(request.trimmed, given(request, group))
    is_read = not (states_beside(group.kind) or request.is_inside)
    return block_machine.Table(group.kind, size, request.trimmed if is_read else stop, stop)


def given(request: Running, group: Group) -> int:
    """Count the slots that a table covers: what is uncertain has states of its own (MAMBA-3)."""
    is_beside = isinstance(group.kind, Mamba) and not isinstance(group.kind, Ahead)
    return request.written + request.coming - (request.uncertain if is_beside else 0)


class Publication(Enum):
    """When the blocks a step fills become findable."""

    NOW = "with the step"
    LATER = "by a call of their own"


@dataclass(frozen=True, slots=True)
class Step:
    """The demand of a step: slots for `new` tokens. Steps of chapter `demand` ask for more.

    For a request that is admitted also: whether the `whole` of it must fit; and a `reserve` of blocks left to others.
    """

    new: int
    publication: Publication = Publication.NOW
    whole: bool = False
    reserve: int = 0

    def uncertain(self) -> int:
        """Count the last of its tokens that may not hold."""
        return 0

    def coming(self) -> int:
        """Count the slots before those of its tokens for what comes from elsewhere."""
        return 0

    def ahead(self) -> int:
        """Count the slots that it takes behind those of its tokens."""
        return 0

    def beside(self) -> int:
        """Count the slots that it takes in layers that read no token of the request."""
        return 0

    def inside(self) -> int:
        """Return the tokens after which recurrent layers keep a state besides that at its end, or 0 (MAMBA-7)."""
        return 0

    def mismatch(self, config: Config, known: int, begin: int) -> Reason | None:
        """Return the reason if parts of the step exclude each other, from a token on of a prompt of `known`."""
        return None

    def refusal(self, config: Config, known: int, begin: int) -> Reason | None:
        """Return why it, from a token on of a prompt of `known` tokens, cannot compute what it asks for; or None."""
        return None
