"""The committed scores of mutants: per source, what became of its mutants, and the digest of the source measured."""

import ast
import json
from collections import Counter, defaultdict
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from . import mutation as mutation_rules
from .mutant_hints import FILE as HINTS
from .mutant_hints import hints, killer_of
from .mutant_realm import title_of
from .mutation import Mutation
from .realms import REALMS, all_mutations, excuse, parsed
from .variants import source_of

KINDS = ("killed", "equivalent", "unreached", "lives", "untried")
MOST_HINTS = 8
"""Places that are remembered of a function."""


@cache
def digest_of(file: str) -> str:
    """Give the digest of a source, comments aside, and of the rules by which it is mutated."""
    texts = (source_of(file), Path(mutation_rules.__file__).read_text(encoding="utf-8"))
    trees = "".join(ast.dump(ast.parse(text)) for text in texts)
    return blake2b(trees.encode(), digest_size=8).hexdigest()


def kind_of(mutation: Mutation, fate: dict[str, Any] | None) -> str:
    """Say what became of a mutant: one of `KINDS`."""
    if fate is not None and fate["killer"]:
        return "killed"
    if excuse(mutation):
        return "equivalent"
    if fate is None:
        return "untried"
    return "unreached" if fate["unreached"] else "lives"


def score_of(file: str, fates: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Give the score of a source."""
    mutations = parsed(file).mutations
    counts = Counter(kind_of(mutation, fates.get(mutation.key)) for mutation in mutations)
    left = [each.key for each in mutations if kind_of(each, fates.get(each.key)) in ("unreached", "lives")]
    digest, counted = digest_of(file), {kind: counts[kind] for kind in KINDS}
    return {"digest": digest, "mutants": len(mutations), **counted, "alive": left}


def write_scores(path: Path, fates: dict[str, dict[str, Any]]) -> None:
    """Write the scores of all sources of which any mutant was tried; the others stay as they were."""
    told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"files": {}}
    tried = {key.split(" ")[0] for key in fates}
    files = [file for realm in REALMS for file in realm.files]
    told["files"] = {
        file: score_of(file, fates) if file in tried else told["files"][file]
        for file in files
        if file in tried or file in told["files"]
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def write_hints(fates: dict[str, dict[str, Any]], reaches: list[dict[str, Any]], sample: list[Mutation]) -> None:
    """Write, by function, which places killed most mutants and which execute most of it, and how long a visit takes.

    And of each mutant of a sample what killed it.
    """
    killers: dict[str, Counter[str]] = defaultdict(Counter)
    titles = {title_of(where) for realm in REALMS for where in realm.places}
    for key, fate in fates.items():
        if fate["killer"] in titles:
            killers[key.split(":")[0]][fate["killer"]] += 1
    able = [each for each in reaches if each["title"] in titles]
    found = {}
    for name, lines in lines_of_functions().items():
        first = [title for title, _ in killers[name].most_common(MOST_HINTS)]
        reached = sorted(
            (
                (-len(lines & set(each["lines"].get(name.split(" ")[0], ()))), each["seconds"], each["title"])
                for each in able
            ),
        )
        found[name] = [*first, *(title for covered, _, title in reached if covered and title not in first)][:MOST_HINTS]
    rounded = {each["title"]: round(each["seconds"], 2) for each in able}
    before = {mutation.key: killer_of(mutation.key) for mutation in sample}
    own = {key: fates[key]["killer"] if key in fates else killer for key, killer in before.items()}
    told = hints() | {
        "seconds": hints()["seconds"] | rounded,
        "killers": hints()["killers"] | {name: places for name, places in found.items() if places},
        "sample": {key: killer for key, killer in own.items() if killer},
    }
    HINTS.write_text(json.dumps(told, indent=0, sort_keys=True) + "\n", encoding="utf-8")


def lines_of_functions() -> dict[str, set[int]]:
    """Give the lines of the mutants of each function."""
    found: dict[str, set[int]] = defaultdict(set)
    for mutation in all_mutations():
        found[f"{mutation.file} {mutation.function}"].add(mutation.line)
    return found
