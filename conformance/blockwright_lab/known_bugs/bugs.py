"""The known bugs, read from the files beside this module (`data`): as `known_bug` and `changes` explain it.

A place is the name of one in `places.toml`, or of a trial of one of the modules in `TRIALS`.
"""

from pathlib import Path
from typing import Any, NamedTuple

from .. import scopes
from . import offload_trials, paged_trials, part_trials, pool_trials, worlds
from .changes import Change, How
from .known_bug import KnownBug, Place, TrialPlace

FOLDER = Path(__file__).parent / "data"

TRIALS: dict[str, Any] = {
    each.__name__.rpartition(".")[2]: each for each in (paged_trials, offload_trials, part_trials, pool_trials)
}

ROWS: dict[str, dict[str, Any]] = scopes.rows_of(f"{FOLDER.parent}/places")
ADAPTERS = ROWS.pop("adapters")

PLACES = {
    name: Place(scopes.scope(part, row), getattr(worlds, ADAPTERS.get(name, "VariantAdapter")))
    for part, rows in ROWS.items()
    for name, row in rows.items()
}

HOW: dict[str, How] = {"replace": "replace", "remove": "replace", "before": "before", "after": "after"}


class Chapter(NamedTuple):
    """Known bugs of one kind."""

    name: str
    title: str
    bugs: tuple[KnownBug, ...]


def chapter(name: str) -> Chapter:
    found = scopes.rows_of(f"{FOLDER}/{name}")
    return Chapter(name, found["title"], tuple(map(bug_of, found["bug"])))


def bug_of(row: dict[str, Any]) -> KnownBug:
    """Return a known bug; long texts are broken into lines in the file."""
    changes = tuple(change_of(row["id"], **each) for each in row["changes"])
    story = " ".join(row["story"].split())
    return KnownBug(**{**row, "story": story, "place": place_of(row["place"]), "changes": changes})


def change_of(bug: str, **said: str) -> Change:
    ((how, anchor),) = ((name, said[name]) for name in HOW if name in said)
    return Change(said["in"], anchor, said.get("by") or said.get("add") or "", HOW[how], bug=bug)


def place_of(name: str) -> Place | TrialPlace:
    module, _, trial = name.rpartition(".")
    return TrialPlace(getattr(TRIALS[module], trial)) if module else PLACES[name]


NAMES = "blocks demand tables prefixes retention metrics time forks units paged tiers offload forgotten".split()
CHAPTERS = tuple(map(chapter, NAMES))
BUGS: tuple[KnownBug, ...] = tuple(bug for each in CHAPTERS for bug in each.bugs)
BY_ID = {bug.id: bug for bug in BUGS}

NOT_POSSIBLE: dict[str, str] = scopes.rows_of(f"{FOLDER}/not_possible")
"""Bugs of the corpus that have no place here, each with the reason: what they broke does not exist."""

CORPUS = tuple(f"B{number:02}" for number in range(1, 67))
"""Real bugs of other managers, by number; some came in several faces, known bugs with a letter."""
