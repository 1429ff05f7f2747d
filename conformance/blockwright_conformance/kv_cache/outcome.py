"""The outcome of an action, in a module that is not compiled, since a compiled class has no slots."""

from dataclasses import dataclass

from blockwright_spec.manager.outcomes import Done, Refusal
from blockwright_spec.manager.state import Hit, State

from ..checker.world import Outcome


@dataclass(frozen=True, slots=True)
class ManagerOutcome(Outcome[State]):
    hit: Hit | None = None

    @property
    def done(self) -> tuple[Done, ...]:
        """The steps without the states before them; several where one call serves several requests."""
        return tuple([done for _, done in self.steps])


def outcome_of(
    before: State, done: tuple[Done, ...], refusal: Refusal | None = None, hit: Hit | None = None
) -> ManagerOutcome:
    states = (before, *[each.state for each in done])
    return ManagerOutcome(states[-1], tuple(zip(states, done, strict=False)), refusal, hit)
