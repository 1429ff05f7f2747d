"""Where a mutant of the specification makes a difference at all.

Functions of the specification are pure: a mutant that gives the same for everything it is asked in a place changes
nothing there, and need not be looked for. So what each function is asked in a place is recorded, a sample of it, by
laws and by what stands beside the implementation.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from enum import Enum
from functools import cache
from random import Random
from types import CodeType, FrameType, FunctionType
from typing import Any

from .mutation import functions
from .spec_mutation import CHAPTERS, Exchange, chapter, function_of, put_in
from .spec_places import SpecPlace

SAMPLE = 12
"""How many calls of a function with answers that look alike are kept from a place."""
LOOKS = 16
"""How many sorts of answers are told apart."""
FAR = 400
"""How many transitions of a place are recorded."""


@cache
def codes() -> dict[CodeType, FunctionType]:
    """Give the functions of the chapters by their code."""
    found = (
        function_of(f"{name}.py", function)
        for name in CHAPTERS
        for function, _ in functions(chapter(f"{name}.py").tree, "")
        if "." not in function
    )
    return {function.__code__: function for function in found}


@cache
def asked(place: SpecPlace) -> dict[FunctionType, list[tuple[Any, ...]]]:
    """Give what each function is asked in a place, a sample of it."""
    known = codes()
    kept: dict[FunctionType, dict[str, list[tuple[Any, ...]]]] = defaultdict(dict)
    counts = Counter[tuple[FunctionType, str]]()
    open_calls: dict[FrameType, tuple[Any, ...]] = {}
    draw = Random(0).randrange

    def note(frame: FrameType, event: str, said: object) -> None:
        if (function := known.get(frame.f_code)) is None:
            return
        if event == "call":
            names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
            open_calls[frame] = tuple(frame.f_locals[name] for name in names)
        elif event == "return" and (given := open_calls.pop(frame, None)) is not None:
            looks, look = kept[function], look_of(said)
            look = look if look in looks or len(looks) < LOOKS else "other"
            held = looks.setdefault(look, [])
            counts[function, look] += 1
            at = draw(counts[function, look])
            if len(held) < SAMPLE:
                held.append(given)
            elif at < SAMPLE:
                held[at] = given

    sys.setprofile(note)
    try:
        place.alone(lambda _: True, FAR)
        place.differs(FAR)
    finally:
        sys.setprofile(None)
    return {function: [each for held in looks.values() for each in held] for function, looks in kept.items()}


def look_of(said: object) -> str:
    """Say of which sort an answer is, so that rare ones are kept too: refusals by their reason."""
    if isinstance(said, bool | int | Enum | None):
        return repr(said)
    return str(getattr(said, "reason", type(said).__name__))


def answers(function: FunctionType, questions: list[tuple[Any, ...]]) -> Iterator[Any]:
    """Give what a function says to some questions; an error is an answer too."""
    for question in questions:
        try:
            said = function(*question)
        except Exception as error:
            yield type(error)
        else:
            yield tuple(said) if hasattr(said, "__next__") else said


def is_reached(place: SpecPlace, exchange: Exchange) -> bool:
    """Tell whether a function is asked anything in a place."""
    return exchange.function in asked(place)


def matters(place: SpecPlace, exchange: Exchange) -> bool:
    """Tell whether a mutant answers differently to something that is asked in a place."""
    questions = asked(place).get(exchange.function, [])
    before = list(answers(exchange.function, questions))
    with put_in(exchange):
        return any(new != old for new, old in zip(answers(exchange.function, questions), before, strict=True))
