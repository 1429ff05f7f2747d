"""Where to look first: which places killed the mutants of a function when all were last tried.

Of the mutants that a sample draws it is known which place, or unit test, killed this very one. Only the order follows
from it, so that a hint may be old. `mutant_run` writes the hints.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from .mutant_realm import title_of
from .mutation import Mutation
from .realms import REALMS, realm_of

FILE = Path(__file__).with_name("mutant_hints.json")


@cache
def hints() -> dict[str, Any]:
    """Read the hints: by function the titles of places, by title the seconds of a visit, by mutant its last killer."""
    told: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return told


@cache
def numbers_of(name: str) -> dict[str, int]:
    """Give the places of a realm by title."""
    return {
        title_of(where): number for owner in REALMS if owner.name == name for number, where in enumerate(owner.places)
    }


@cache
def by_cost(name: str) -> tuple[int, ...]:
    """Give the places of a realm, those first that take least time; those of which nothing is known last."""
    numbers, seconds = numbers_of(name), hints()["seconds"]
    return tuple(sorted(numbers.values(), key=lambda number: cost(name, number, seconds)))


def cost(name: str, number: int, seconds: dict[str, float]) -> float:
    """Give the seconds of a visit, as far as known."""
    titles = {at: title for title, at in numbers_of(name).items()}
    return seconds.get(titles[number], 1000.0)


def killer_of(key: str) -> str:
    """Give the place or unit test that killed a mutant of a sample when it was last tried; empty: not known."""
    killer: str = hints().get("sample", {}).get(key, "")
    return killer


def is_test(killer: str) -> bool:
    """Tell whether a killer is a unit test."""
    return "::" in killer


def first_places(mutation: Mutation) -> list[int]:
    """Give all places of a mutant's realm: those that killed it or others of its function first, then the cheapest."""
    name = realm_of(mutation.file).name
    titles = (killer_of(mutation.key), *hints()["killers"].get(f"{mutation.file} {mutation.function}", ()))
    known = dict.fromkeys(numbers_of(name)[title] for title in titles if title in numbers_of(name))
    return [*known, *(number for number in by_cost(name) if number not in known)]
