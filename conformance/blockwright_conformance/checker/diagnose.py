"""Diagnosis: which laws a fault breaks.

The actions of a counterexample are performed again; after the last one a state of the specification is made from the
model's *observation* (ghost contents follow its own tables), and every law is asked about that state and the step to
it. To these are added what the self-check names, what a world adds of its own (`World.symptoms`), and ``REF-0 FIELD``:
the model differs from the specification in this field of an answer or of its state.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from .explore import Violation
from .lockstep import act, named
from .world import M, S, World

NAMED = re.compile(r"\b[A-Z]+-\d+\b")
FIELD = re.compile(r"([A-Za-z]+(?: (?!of )[a-z]+)*)(?:: |[^:;]*: expected )")

Broken = Iterator[str]
"""The ids of laws that are broken."""


def diagnose(world: World[S, M], actions: tuple[Any, ...]) -> tuple[str, ...]:
    """Return the laws that a counterexample breaks, each once."""
    state, model = world.initial(), world.model()
    for action in actions[:-1]:
        answers(world, model, state)
        state = act(world, model, state, action).outcome.state
    broken = answers(world, model, state) if not actions else of_last(world, model, state, actions[-1])
    return tuple(dict.fromkeys(broken))


def diagnosed(world: World[S, M], found: Violation) -> Violation:
    """Return a violation with all other laws that it breaks in its detail, as far as they can be told."""
    broken = list[str]()
    with suppress(Exception):
        broken = [each for each in diagnose(world, found.actions) if each != found.law and not each.startswith("REF-0")]
    return replace(found, detail=found.detail + f" (breaks {', '.join(broken)})" * bool(broken))


def of_last(world: World[S, M], model: M, before: S, action: Any) -> Iterator[str]:
    compared = act(world, model, before, action)
    for fault in compared.faults:
        yield law_of(fault, compared.law)
    yield from answers(world, model, compared.outcome.state)  # first: what a question changes is to be seen, too
    yield from world.symptoms(model, before, action, compared)


def answers(world: World[S, M], model: M, state: S) -> list[str]:
    broken: list[str] = []
    asks: Any = (world.examine, law_of), (world.misanswered, str)
    for ask, law_from in asks:
        try:
            broken += map(law_from, ask(model, state))
        except Exception as error:
            law, text = named(error)
            broken.append(law_of(text, law))
    return broken


def law_of(fault: str, law: str = "REF-0") -> str:
    """Return the law of a fault: the one it names, or REF-0 with the field that differs, of acceptance `refusal`."""
    if law != "REF-0":
        return law
    if found := NAMED.search(fault):
        return found.group()
    field = FIELD.match(fault)
    return f"REF-0 {field[1] if field else 'refusal'}"
