"""A world: the actions of one scope, their meaning in the specification, and their calls on an implementation.

The checker is written once, for any world: exhaustive lock-step (`explore`), long histories (`history`), diagnosis and
counterexamples. The four parts of the specification are four worlds. Three words recur:

- a *state* is the specification's, an immutable value;
- a *model* is an implementation under test with the adapter around it; it changes, and can be copied;
- an *action* is one public call, or a short sequence that an engine makes in one go.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

from blockwright_spec.law import Law


class Copied(Protocol):
    """A model can be copied, so that each action is tried on a separate model."""

    def copy(self) -> Self:
        """Return an independent copy of everything."""


S = TypeVar("S")
T = TypeVar("T")
M = TypeVar("M", bound=Copied)


def twin_of(model: T, **changed: Any) -> T:
    twin = object.__new__(type(model))
    twin.__dict__.update(vars(model) | changed)
    return twin


@dataclass(frozen=True, slots=True)
class Outcome(Generic[S]):
    """The specification's outcome of an action: its calls in order, and the state they lead to."""

    state: S
    """The state after it; the very same object where the action was refused."""
    steps: tuple[tuple[S, Any], ...]
    """Each call that was served: the state before it and what it came to, for the laws of steps."""
    refusal: Any = None
    """Why the last call was refused, if it was: `refusal.reason` is a member of an enumeration."""


class Reply(NamedTuple):
    """A model's answer to one call, or the error by which it refused."""

    answer: Any = None
    error: Exception | None = None


Arguments = Iterator[tuple[Any, ...]]
"""The arguments of calls that a scope allows in a state."""

Action = Any
"""One thing that users do, with types of its world's own: ``meaning(state, choice)`` returns the `Outcome`, by a choice
where the specification leaves one open; ``perform(model, state)`` returns what a model in that state answers."""


def kind_of(action: Action) -> str:
    """Return the kind of an action: its own name for it, or its class."""
    return getattr(action, "kind", None) or type(action).__name__


class World(ABC, Generic[S, M]):
    """One scope of one part of the specification; subclasses define states, models and actions."""

    table: ClassVar[Mapping[str, tuple[str, Callable[[Any, Any], Iterable[tuple[Any, ...]]]]]]
    """The kinds of actions in the order in which they are tried: the call, and with which arguments a scope allows it
    in a state."""
    action: ClassVar[type[Any]]
    """The class of actions, made of a kind and arguments."""
    laws: tuple[Any, ...] = ()
    step_laws: tuple[Any, ...] = ()
    weights: ClassVar[dict[str, int]] = {}
    examined_every: ClassVar[int] = 1
    """Actions of a long history between two examinations of the model."""
    copied_every: ClassVar[int] = 7
    """Actions of a long history between two copies of the model; 0: it is not copied."""

    def __init__(self, scope: Any) -> None:
        self.scope = scope

    # ---- the specification's side

    @abstractmethod
    def initial(self) -> S:
        """Return the state in which everything begins."""

    def enabled(self, state: S) -> Iterator[Any]:
        for kind, (_, guard) in self.table.items():
            for arguments in guard(self.scope, state):
                yield self.action(kind, arguments)

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self.table)

    def kind(self, action: Any) -> str:
        return kind_of(action)

    def meaning(self, state: S, action: Any, choice: Any = None) -> Outcome[S]:
        """Return what comes of an action in a state; without a choice, by the specification's own policy."""
        found: Outcome[S] = action.meaning(state) if choice is None else action.meaning(state, choice)
        return found

    @abstractmethod
    def digest(self, state: S) -> bytes:
        """Return a name that is equal for states of which only one need be visited."""

    def broken(self, state: S) -> list[Law]:
        return [law for law in self.laws if not law.holds(state)]

    def broken_by(self, outcome: Outcome[S]) -> list[Law]:
        return [law for before, done in outcome.steps for law in self.step_laws if not law.holds(before, done)]

    def happened(self, state: S, action: Any, outcome: Outcome[S]) -> Iterator[str]:
        """Yield the names of what happened, for coverage: the action, and the refusal if there was one."""
        if outcome.steps or outcome.refusal is None:
            yield self.kind(action)
        if outcome.refusal is not None:
            yield outcome.refusal.reason.name

    # ---- the implementation's side

    @abstractmethod
    def made(self) -> tuple[Any, ...]:
        """Return what makes a model, and its arguments."""

    def model(self) -> M:
        factory, *arguments = self.made()
        model: M = factory(*arguments)
        return model

    def perform(self, model: M, action: Any, state: S) -> Any:
        return action.perform(model, state)

    def choices(self, model: M, state: S, action: Any, reply: Any, shown: Any) -> Iterable[Any]:
        """Yield the choices under which the specification may have done the same as the model, likely ones first."""
        return (None,)

    @abstractmethod
    def observe(self, model: M, state: S) -> Any:
        """Return the observation of a model, in the specification's terms."""

    @abstractmethod
    def differences(self, model: M, action: Any, outcome: Outcome[S], reply: Any, shown: Any) -> list[str]:
        """Name the differences between the specification's outcome and a model's answer and observation."""

    @abstractmethod
    def examine(self, model: M, state: S) -> list[str]:
        """Run a model's self-check, ask it questions that change nothing, and name the wrong answers."""

    def misanswered(self, model: M, state: S) -> Iterator[str]:
        """Yield the laws that a model's answers to questions break, for diagnosis."""
        return iter(())

    # ---- for readers

    def script(self, actions: Sequence[Any], fault: str = "") -> str:
        """Return a history as Python: a test that makes its calls on a new model and fails on the fault."""
        from .recorded import Written  # which performs it in lock-step, and so imports this module

        return Written(self).way(actions, fault)

    def symptoms(self, model: M, state: S, action: Any, compared: Any) -> Iterator[str]:
        """Yield the laws that an action breaks, for diagnosis.

        A world makes a state of the model's observation (ghost contents follow the model's own tables) and asks every
        law about it; `compared` is a `lockstep.Compared`.
        """
        return iter(())
