"""Mutants of the abstraction: of what decides that a manager and the specification are in the same state.

What shows the implementation's state, what the specification expects of it, and what compares the two is trusted code.
A mutant of it sees a difference where there is none, so that the lock-step fails on the unchanged implementation, or it
sees less: then it names wrongly what is altered by hand (`abstraction_trials`), or a known bug of the museum is not
noticed any more. One that does neither lives, and is listed.
"""

import gc
import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from blockwright_spec.reads import Full

from . import abstraction_trials, offload_places, paged_places, places
from .equivalents_abstraction import EQUIVALENT
from .exhibit import Exhibit, OffloadPlace, Place, TablesPlace, Where
from .gates import GateResult
from .museum import EXHIBITS
from .mutant_places import difference
from .mutant_realm import title_of
from .mutation import Mutation, Source
from .offload_scopes import chain_scope
from .paged_scopes import paged_scope
from .scopes import scope, strings
from .variants import KIT, load, variant

KIT_CODE = "abstraction of the kit"
KIND = "abstraction"
MUSEUM = "museum"
FLOOR = 100
"""Per cent of the mutants that must be noticed, listed ones aside."""
ONE = strings(1, 1, 1)


@dataclass(frozen=True, slots=True)
class Trusted:
    """Functions of the kit that are trusted, where the unchanged implementation must pass, and what bugs show."""

    name: str
    functions: tuple[tuple[str, str], ...]
    """Module and qualified name."""
    places: tuple[Where, ...]
    bugs: tuple[str, ...] = ()
    """Known bugs, beside those shown in these places, that only the comparison of states notices."""


def functions_of(module: str, *names: str) -> tuple[tuple[str, str], ...]:
    """Give functions of one module."""
    return tuple((module, name) for name in names)


TRUSTED = (
    Trusted(
        "manager",
        (
            *functions_of("abstraction", "expected", "differences", "compared"),
            *functions_of("blockwright_adapter", "BlockwrightAdapter.observe", "BlockwrightAdapter.evicted"),
            *functions_of("lockstep", "refusals", "compare", "misreported", "replaced"),
        ),
        (
            abstraction_trials.managers_by_hand,
            places.TIGHT,
            places.FULL,
            places.TOLD,
            places.FLYING_FAR,
            places.SETTLING,
            places.PLANNED_DRAFTS,
            places.LOADING,
            places.BOTH_BATCH,
            places.MAMBA,
            Place(scope(Full(), 2, "abstraction, forked", 5, 3, "fork batch", prompts=((0, (0,)),))),
        ),
        ("B09", "D01"),
    ),
    Trusted(
        "tables",
        (
            *functions_of("paged_lockstep", "paged_expected", "refusal_faults", "paged_differences", "faults_of"),
            *functions_of("paged_blockwright", "BlockwrightTables.observe", "BlockwrightTables.shown"),
        ),
        (
            abstraction_trials.tables_by_hand,
            paged_places.RETURNS,
            paged_places.ACCESS,
            paged_places.EVICTIONS,
            paged_places.SWAPS,
            paged_places.NAIVE,
            paged_places.FORKS,
            TablesPlace(paged_scope("abstraction, window", 1, 3, 0, 4, "late", window=1, prompts=ONE, slots=1)),
            TablesPlace(paged_scope("abstraction, reset", 1, 3, 0, 2, "delay mark reset", prompts=ONE)),
        ),
    ),
    Trusted(
        "tiers",
        (
            *functions_of("offload_tiers", "in_order", "shown_by", "expected_of", "status_in", "events_of"),
            *functions_of("offload_chains", "ChainUnderTest.shown", "handed_of", "ended_of", "chain_expected"),
            *functions_of("offload_chains", "is_own", "handing", "ending"),
        ),
        (
            abstraction_trials.tiers_by_hand,
            offload_places.NEAR,
            offload_places.BELOW,
            offload_places.SHARED,
            offload_places.OVER,
            offload_places.BACK,
            offload_places.TIER,
            OffloadPlace(chain_scope("abstraction, no room", (2, 0), reserve=(1,), under_way=1)),
        ),
    ),
)


@cache
def kit_source(module: str) -> Source:
    """Give a parsed source of the kit."""
    path = Path(__file__).with_name(f"{module}.py")
    return Source(f"{module}.py", (), path.read_text(encoding="utf-8"))


def mutations_of(trusted: Trusted) -> list[Mutation]:
    """Give the mutants of trusted functions."""
    names = {(f"{module}.py", name) for module, name in trusted.functions}
    modules = dict.fromkeys(module for module, _ in trusted.functions)
    everything = (mutation for module in modules for mutation in kit_source(module).mutations)
    return [mutation for mutation in everything if (mutation.file, mutation.function) in names]


@contextmanager
def put_in(mutation: Mutation) -> Iterator[None]:
    """Let a function of the kit, as it is imported everywhere, do something else."""
    module = mutation.file.removesuffix(".py")
    found: Any = importlib.import_module(f"{KIT}.{module}")
    for name in mutation.function.split("."):
        found = getattr(found, name)
    assert isinstance(found, FunctionType)
    code = found.__code__
    found.__code__ = code_of(kit_source(module).compiled(mutation.key), mutation.function)
    try:
        yield
    finally:
        found.__code__ = code


def code_of(code: CodeType, name: str) -> CodeType:
    """Give the code of a function within that of its module."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    found = next((each for each in inner if each.co_qualname == name), None)
    if found is not None:
        return found
    return next(code_of(each, name) for each in inner if name.startswith(f"{each.co_qualname}."))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What noticed a mutant of the abstraction (empty: nothing), and how."""

    mutation: Mutation
    noticed_by: str
    how: str
    seconds: float


def verdict_on(mutation: Mutation, trusted: Trusted) -> Verdict:
    """Try a mutant of the abstraction: on the unchanged implementation, and then on known bugs."""
    started = time.perf_counter()

    def verdict(noticed_by: str, how: str) -> Verdict:
        gc.collect()
        return Verdict(mutation, noticed_by, how, time.perf_counter() - started)

    package = unchanged()
    with put_in(mutation):
        for where in trusted.places:
            if how := difference(where, package)[0]:
                return verdict(title_of(where), how)
    for exhibit in bugs_of(trusted):
        if hidden(mutation, exhibit):
            return verdict(MUSEUM, f"{exhibit.id} is not noticed any more")
    return verdict("", "")


def hidden(mutation: Mutation, exhibit: Exhibit) -> bool:
    """Tell whether a known bug that lock-step notices is not noticed with a mutant of the abstraction."""
    if not is_shown(exhibit):  # asked with the abstraction as it is
        return False
    with put_in(mutation):
        return not difference(exhibit.where, wrong(exhibit))[0]


@cache
def unchanged() -> ModuleType:
    """Give a copy of the unchanged implementation."""
    return load()


@cache
def wrong(exhibit: Exhibit) -> ModuleType:
    """Give the implementation with a known bug."""
    return variant(*exhibit.patches)


def bugs_of(trusted: Trusted) -> list[Exhibit]:
    """Give the exhibits of the museum that are named, and those in the places of what is trusted."""
    named = [exhibit for exhibit in EXHIBITS if exhibit.id in trusted.bugs]
    return [*named, *(exhibit for exhibit in EXHIBITS if exhibit.where in trusted.places and exhibit not in named)]


@cache
def is_shown(exhibit: Exhibit) -> bool:
    """Tell whether lock-step notices an exhibit of the museum."""
    return bool(difference(exhibit.where, wrong(exhibit))[0])


def all_mutants() -> list[tuple[Mutation, Trusted]]:
    """Give every mutant of the abstraction, each with what it belongs to."""
    return [(mutation, trusted) for trusted in TRUSTED for mutation in mutations_of(trusted)]


def verdicts(keys: tuple[str, ...]) -> list[Verdict]:
    """Try some mutants, by key."""
    return [verdict_on(mutation, trusted) for mutation, trusted in all_mutants() if mutation.key in keys]


def drawn_keys(size: int | None, drawn: Callable[[str], bytes], scope: str) -> list[str]:
    """Give the keys of a fixed sample of the mutants that are not listed, or of all."""
    keys = [mutation.key for mutation, _ in all_mutants() if scope in mutation.key]
    if size is None:
        return keys
    picked = sorted((key for key in keys if key not in EQUIVALENT), key=drawn)[:size]
    return [key for key in keys if key in picked]


def rows_of(found: list[Verdict]) -> Iterator[GateResult]:
    """Give a row per module, one of all, and one for each mutant that lives, or is listed and noticed."""
    for module in dict.fromkeys(each.mutation.file for each in found):
        mine = [each for each in found if each.mutation.file == module]
        able = [each for each in mine if each.mutation.key not in EQUIVALENT]
        noticed = [each for each in able if each.noticed_by]
        seen = sum(each.noticed_by == MUSEUM for each in noticed)
        detail = f"abstraction: {len(noticed)} of {len(able)} noticed, {seen} of them by the museum"
        seconds = sum(each.seconds for each in mine)
        name = f"abstraction: {module}"
        yield GateResult(KIND, name, KIT_CODE, 0, 0, 0, seconds, detail=detail, tried=len(able), passed=len(noticed))
    able = [each for each in found if each.mutation.key not in EQUIVALENT]
    count = sum(bool(each.noticed_by) for each in able)
    low = 100 * count < FLOOR * len(able)
    detail = f"abstraction: {count} of {len(able)} noticed, at least {FLOOR} % must be"
    yield GateResult(KIND, detail, KIT_CODE, 0, 0, int(low), 0.0, "MUTANT-3" if low else "", detail)
    for each in found:
        listed = each.mutation.key in EQUIVALENT
        if bool(each.noticed_by) == listed:
            told = f"listed, and noticed by {each.noticed_by}: {each.how}" if listed else "lives"
            detail, law = f"abstraction: {each.mutation.key}: {told}", "MUTANT-3" if listed else ""
            yield GateResult(KIND, detail, KIT_CODE, 0, 0, int(listed), 0.0, law, detail)


def stale_keys() -> list[str]:
    """Give the listed keys that the sources do not have any more."""
    return sorted(set(EQUIVALENT) - {mutation.key for mutation, _ in all_mutants()})
