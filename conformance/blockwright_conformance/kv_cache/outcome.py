"""What comes of an action on a manager, by the specification and by the manager itself."""

from dataclasses import dataclass
from typing import NamedTuple

from blockwright_spec.manager.outcomes import Done, Refusal
from blockwright_spec.manager.state import Hit, State

from ..checker.world import Outcome
from .adapter import Found, Served


@dataclass(frozen=True, slots=True)
class ManagerOutcome(Outcome[State]):
    """What the specification says comes of an action."""

    hit: Hit | None = None
    """What the lookup found, where the action makes one."""

    @property
    def done(self) -> tuple[Done, ...]:
        """The steps without the states before them; several where one call serves several requests."""
        return tuple([done for _, done in self.steps])


def outcome_of(
    before: State, done: tuple[Done, ...], refusal: Refusal | None = None, hit: Hit | None = None
) -> ManagerOutcome:
    """Return the outcome of steps that were taken one after the other from a state."""
    states = (before, *[each.state for each in done])
    return ManagerOutcome(states[-1], tuple(zip(states, done, strict=False)), refusal, hit)


class Reply(NamedTuple):
    """What a manager answered to an action."""

    refused: bool = False
    """It said "not now": None, or False for a reset."""
    error: Exception | None = None
    """It said that the call was wrong."""
    hit: Found | None = None
    served: tuple[Served, ...] = ()
