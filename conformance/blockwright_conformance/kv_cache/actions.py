"""What an engine does: actions, and their meaning in the specification.

Each action is one public call, or a short sequence that an engine makes in one go (make a request, look it up, admit
it). It names requests by slot, and blocks not at all.
"""

from collections.abc import Callable
from typing import NamedTuple

from blockwright_spec.manager import transitions
from blockwright_spec.manager.choices import Choice
from blockwright_spec.manager.hits import found
from blockwright_spec.manager.in_time import forks
from blockwright_spec.manager.in_time import in_flight as flights
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Done, Outcome, Publication, Refusal, Step
from blockwright_spec.manager.state import Absent, Hit, Running, State, Waiting
from blockwright_spec.reads import Prefix


class Admit(NamedTuple):
    """Send a request if it is not there, look it up, and give it slots; an absent one is dropped again if refused.

    `external` tokens are loaded from elsewhere instead of computing any; `encoder` tokens are read by cross-attention;
    `whole`: all of the request must fit; `reserve` blocks are left to others. If `planned`, it is planned, and the plan
    committed.
    """

    slot: int
    prefix: Prefix
    new: int
    lookahead: int = 0
    later: bool = False
    asked: bool = True
    external: int = 0
    encoder: int = 0
    whole: bool = False
    reserve: int = 0
    planned: bool = False


class Find(NamedTuple):
    """Send a request if it is not there, look it up, and keep the hit for later."""

    slot: int
    prefix: Prefix


class AdmitHeld(NamedTuple):
    """Give a waiting request slots with the hit that was looked up before."""

    slot: int
    new: int


class Grow(NamedTuple):
    """Give a running request slots; the last `drafts` of its new tokens are said to be drafts."""

    slot: int
    new: int
    lookahead: int = 0
    later: bool = False
    drafts: int = 0
    planned: bool = False


class GrowEach(NamedTuple):
    """Give several running requests slots in one call: pairs of slot and new tokens, in order."""

    asks: tuple[tuple[int, int], ...]
    lookahead: int = 0


class Append(NamedTuple):
    """Append output tokens; the first `accepted` of them were drafts that the last step computed."""

    slot: int
    tokens: tuple[int, ...]
    accepted: int = 0


class Publish(NamedTuple):
    """Publish the blocks filled up to `end` tokens."""

    slot: int
    end: int


class Trim(NamedTuple):
    """Null the entries dead at `end` tokens."""

    slot: int
    end: int


class Release(NamedTuple):
    """End a request; nothing happens to one that is not there."""

    slot: int


class Preempt(NamedTuple):
    """Take a running request's blocks and have it wait."""

    slot: int


class Reset(NamedTuple):
    """Reset the prefix cache."""


class Start(NamedTuple):
    """Start a step."""


class Settle(NamedTuple):
    """Settle the oldest step in flight; pairs of slot and rejected drafts."""

    rejected: tuple[tuple[int, int], ...] = ()


class FinishLoad(NamedTuple):
    """End a load, of which `came` tokens came."""

    slot: int
    came: int


class Fork(NamedTuple):
    """Fork a running request to another, which is sent with a prefix if it is not there, and dropped if refused."""

    slot: int
    child: int
    prefix: Prefix


class TakeCopies(NamedTuple):
    """Ask what is to be copied."""


class WrongStep(NamedTuple):
    """Ask slots, for a running request or a new one, with counts that are wrong, `computed` among them."""

    slot: int
    prefix: Prefix
    computed: int
    new: int
    lookahead: int = 0
    drafts: int = 0
    external: int = 0
    encoder: int = 0


class WrongHit(NamedTuple):
    """Admit an absent request with the hit of another prefix, or of another length: `claimed` tokens."""

    slot: int
    prefix: Prefix
    other: Prefix
    claimed: int


class LateHit(NamedTuple):
    """Give a running request a hit."""

    slot: int
    prefix: Prefix


Action = (
    Admit
    | Find
    | AdmitHeld
    | Grow
    | GrowEach
    | Append
    | Publish
    | Trim
    | Release
    | Preempt
    | Reset
    | Start
    | Settle
    | FinishLoad
    | Fork
    | TakeCopies
    | WrongStep
    | WrongHit
    | LateHit
)


class Told(NamedTuple):
    """What the specification says comes of an action; a refused one leaves the state as it was."""

    state: State
    refusal: Refusal | None = None
    hit: Hit | None = None
    """What the lookup found, where the action makes one."""
    steps: tuple[Done, ...] = ()
    """The steps that gave slots; several where one call serves several requests."""


def meaning(state: State, action: Action, choice: Choice = LRU) -> Told:
    """Tell what comes of an action in a state."""
    return MEANINGS[type(action)](state, action, choice)


def settled(state: State, outcome: Outcome, hit: Hit | None = None) -> Told:
    """Tell of one transition, which takes no blocks or is refused as a whole."""
    if isinstance(outcome, Refusal):
        return Told(state, outcome, hit)
    return Told(outcome.state, None, hit, (outcome,))


def step_of(action: Admit | AdmitHeld | Grow | WrongStep) -> Step:
    """Give the step that an action asks for."""
    match action:
        case Admit(_, _, new, ahead, later, _, external, encoder, whole, reserve):
            return Step(new, ahead, when(later), 0, external, encoder, whole, reserve)
        case Grow(_, new, ahead, later, drafts):
            return Step(new, ahead, when(later), drafts)
        case WrongStep(_, _, _, new, ahead, drafts, external, encoder):
            return Step(new, ahead, Publication.NOW, drafts, external, encoder)
        case AdmitHeld(_, new):
            return Step(new)


def when(later: bool) -> Publication:
    """Say when a step's blocks are published."""
    return Publication.LATER if later else Publication.NOW


def sent(state: State, slot: int, prefix: Prefix) -> State:
    """Give the state in which a request is there."""
    if not isinstance(state.requests[slot], Absent):
        return state
    outcome = transitions.arrive(state, slot, prefix)
    assert isinstance(outcome, Done)
    return outcome.state


def looked_up(state: State, slot: int, choice: Choice) -> tuple[State, Hit]:
    """Give the state after the lookup of a waiting request, and its hit."""
    outcome = transitions.find(state, slot, choice)
    assert isinstance(outcome, Done), outcome
    request = outcome.state.requests[slot]
    assert isinstance(request, Waiting)
    return outcome.state, request.hit


def admit(state: State, action: Admit, choice: Choice) -> Told:
    """Tell of `Admit`."""
    slot = action.slot
    ready, hit = sent(state, slot, action.prefix), None
    if action.asked:
        ready, hit = looked_up(ready, slot, choice)
    return settled(state, transitions.admit(ready, slot, hit or Hit(), step_of(action), choice), hit)


def find(state: State, action: Find, choice: Choice) -> Told:
    """Tell of `Find`."""
    after, hit = looked_up(sent(state, action.slot, action.prefix), action.slot, choice)
    return Told(after, None, hit)


def admit_held(state: State, action: AdmitHeld, choice: Choice) -> Told:
    """Tell of `AdmitHeld`."""
    request = state.requests[action.slot]
    assert isinstance(request, Waiting)
    return settled(state, transitions.admit(state, action.slot, request.hit, step_of(action), choice))


def computed_of(state: State, slot: int) -> int:
    """Give the engine's count of a running request: with steps in flight it goes ahead, what they compute included."""
    request = state.requests[slot]
    assert isinstance(request, Running)
    return request.written if state.config.overlaps else request.computed


def grow(state: State, action: Grow, choice: Choice) -> Told:
    """Tell of `Grow`."""
    computed = computed_of(state, action.slot)
    return settled(state, transitions.grow(state, action.slot, computed, step_of(action), choice))


def grow_each(state: State, action: GrowEach, choice: Choice) -> Told:
    """Tell of `GrowEach`: what was served stays, and the refusal of the next is told beside it."""
    asks = tuple((slot, computed_of(state, slot), Step(new, action.lookahead)) for slot, new in action.asks)
    steps, refusal = transitions.grow_each(state, asks, choice)
    return Told(steps[-1].state if steps else state, refusal, None, steps)


def fork(state: State, action: Fork, choice: Choice) -> Told:
    """Tell of `Fork`."""
    return settled(state, forks.fork(sent(state, action.child, action.prefix), action.slot, action.child, choice))


def wrong_step(state: State, action: WrongStep, choice: Choice) -> Told:
    """Tell of `WrongStep`."""
    return settled(state, transitions.grow(state, action.slot, action.computed, step_of(action), choice))


def wrong_hit(state: State, action: WrongHit, choice: Choice) -> Told:
    """Tell of `WrongHit`."""
    slot = action.slot
    _, hit = looked_up(sent(state, slot, action.other), slot, choice)
    step = Step(len(action.prefix[1]) - action.claimed)
    ready = sent(state, slot, action.prefix)
    return settled(state, transitions.admit(ready, slot, Hit(action.claimed, hit.tables), step, choice))


def late_hit(state: State, action: LateHit, choice: Choice) -> Told:
    """Tell of `LateHit`."""
    return settled(state, transitions.admit(state, action.slot, found(state, action.prefix, choice), Step(1), choice))


MEANINGS: dict[type, Callable[..., Told]] = {
    Admit: admit,
    Find: find,
    AdmitHeld: admit_held,
    Grow: grow,
    GrowEach: grow_each,
    Append: lambda state, action, _: settled(
        state, transitions.append_output(state, action.slot, action.tokens, action.accepted)
    ),
    Publish: lambda state, action, _: settled(state, transitions.publish(state, action.slot, action.end)),
    Trim: lambda state, action, choice: settled(state, transitions.trim(state, action.slot, action.end, choice)),
    Release: lambda state, action, choice: settled(state, transitions.release(state, action.slot, choice)),
    Preempt: lambda state, action, choice: settled(state, transitions.preempt(state, action.slot, choice)),
    Reset: lambda state, _action, _choice: settled(state, transitions.reset(state)),
    Start: lambda state, _action, _choice: settled(state, flights.begin(state)),
    Settle: lambda state, action, choice: settled(state, flights.settle(state, action.rejected, choice)),
    FinishLoad: lambda state, action, choice: settled(
        state, flights.finish_load(state, action.slot, action.came, choice)
    ),
    Fork: fork,
    TakeCopies: lambda state, _action, choice: settled(state, forks.take_copies(state, choice)),
    WrongStep: wrong_step,
    WrongHit: wrong_hit,
    LateHit: late_hit,
}
"""What each action means."""
