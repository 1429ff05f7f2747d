"""Where a mutant of the specification makes a difference at all.

Functions of the specification are pure: a mutant that gives the same for everything it is asked in a place changes
nothing there, and need not be looked for. So what each function is asked in a place is recorded, a sample of it.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from random import Random
from types import CodeType, FrameType, FunctionType
from typing import Any

from .spec_mutation import CHAPTERS, Exchange, chapter, function_of, functions, put_in
from .spec_places import SpecPlace

SAMPLE = 40
"""How many calls of a function are kept from a place."""
FAR = 700
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
    known, kept, counts = codes(), defaultdict[FunctionType, list[tuple[Any, ...]]](list), defaultdict[Any, int](int)
    draw = Random(0).randrange

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or (function := known.get(frame.f_code)) is None:
            return
        counts[function] += 1
        held, count = kept[function], counts[function]
        at = count - 1 if count <= SAMPLE else draw(count)
        if at >= SAMPLE:
            return
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
        given = tuple(frame.f_locals[name] for name in names)
        if at < len(held):
            held[at] = given
        else:
            held.append(given)

    sys.setprofile(note)
    try:
        place.alone(lambda _: True, FAR)
    finally:
        sys.setprofile(None)
    return dict(kept)


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
