"""What is mutated, and what must notice it: each target has sources and tests, those of lock-step among them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from blockwright_conformance.kv_cache.scopes import rows_of

from .mutator import Mutation, Source


@dataclass(frozen=True, slots=True)
class Target:
    """A part of the implementation whose mutants are looked for by the same tests."""

    name: str
    files: tuple[str, ...]
    tests: tuple[str, ...]
    left_out: Mapping[str, str]
    """What is not mutated: a function, a class, or ``guards of`` a function, with the reason."""
    floor: int = 0
    """Per cent of its mutants that must be killed, where it is run alone: the gate leaves it out then."""
    loads: tuple[str, ...] = ()  # imported once, before processes are forked: vLLM takes longer than a test may


ROWS = rows_of(__file__)

TARGETS = tuple([Target(**row | {name: tuple(row[name]) for name in ("files", "tests")}) for row in ROWS["target"]])
MEDIA: dict[str, str] = ROWS["media"]


def target(name: str) -> Target:
    return next(each for each in TARGETS if each.name == name)


@cache
def target_of(file: str) -> Target:
    return next(each for each in TARGETS if file in each.files)


@cache
def parsed(file: str) -> Source:
    return Source(file, target_of(file).left_out)


def all_mutations() -> list[Mutation]:
    return [mutation for each in TARGETS for file in each.files for mutation in parsed(file).mutations]
