"""Lock-step: one action on a model and on the specification, and everything compared."""

from typing import Any, NamedTuple

from .world import M, Outcome, S, World


class LawError(AssertionError):
    """A fault that shows the broken law by itself, whatever is compared."""

    def __init__(self, law: str, detail: str) -> None:
        super().__init__(f"{law}: {detail}")
        self.law, self.detail = law, detail


class Compared(NamedTuple):
    outcome: Outcome[Any]
    faults: list[str]
    """What differs, in words; `law: ...` first where an error names a law."""
    law: str = "REF-0"
    """The law that the faults break: REF-0, the model differs, unless an error of the model's own names another."""
    reply: Any = None
    shown: Any = None


def act(world: World[S, M], model: M, state: S, action: Any) -> Compared:
    """Perform an action on both sides and compare; the model moves on.

    One of the choices that the specification leaves open must lead to the model's answer and observation. A model that
    fails in any other way has a fault.
    """
    reply = shown = None
    try:
        reply = world.perform(model, action, state)
        if (error := getattr(reply, "error", None)) is not None:
            error.__traceback__ = None  # whose frames hold the error, and so the model, until the collector comes
        shown = world.observe(model, state)
        first: Compared | None = None
        for choice in world.choices(model, state, action, reply, shown):
            outcome = world.meaning(state, action, choice)
            faults = world.differences(model, action, outcome, reply, shown)
            if not faults:
                return Compared(outcome, [], reply=reply, shown=shown)
            first = first or Compared(outcome, faults, reply=reply, shown=shown)
            if outcome.refusal is not None:
                break  # no choice makes a refusal of an acceptance
        if first is not None:
            return first
        return Compared(world.meaning(state, action), ["no legal choice leads there"], reply=reply, shown=shown)
    except Exception as error:
        law, text = named(error)
        return Compared(world.meaning(state, action), [text], law, reply, shown)


def named(error: Exception) -> tuple[str, str]:
    return getattr(error, "law", "") or "REF-0", f"{type(error).__name__}: {error}"


def differing(wanted: Any, shown: Any) -> list[str]:
    """Name the fields in which two records differ; a field that is None in the observation is not compared."""
    if wanted == shown:
        return []
    return [
        f"{name}: expected {want}, found {show}"
        for name, want, show in zip(wanted._fields, wanted, shown, strict=True)
        if show is not None and want != show
    ]
