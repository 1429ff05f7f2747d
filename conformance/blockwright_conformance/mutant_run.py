"""The long run: every mutant, one after another, each fate written as it comes, so that a run may be interrupted.

    python -m blockwright_conformance.mutant_run --scope core/store.py --fates fates.jsonl [--most SECONDS]
    python -m blockwright_conformance.mutant_run --fates fates.jsonl --write docs/data/mutants.json

A fate is a line of JSON. Mutants that have one are not tried again while their source is the same; with ``--again``
those that lived are, and what counts is the last one. What no place executes is said to be unreached.
"""

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from blockwright._terminal import progress

from .gates import Profile
from .mutant_fate import Fate, fate_of, limited_memory
from .mutant_reach import Reach, able, imported, reach
from .mutant_realm import Realm, title_of
from .mutant_score import digest_of, write_hints, write_scores
from .mutants import chosen
from .mutation import Mutation
from .realms import REALMS, excuse, parsed

Told = dict[str, Any]


def told(fate: Fate) -> Told:
    """Give a fate as data."""
    mutation = fate.mutation
    return {
        "key": mutation.key,
        "line": mutation.line,
        "source": digest_of(mutation.file),
        "killer": fate.killer,
        "how": fate.how[:200],
        "visited": fate.visited,
        "seconds": round(fate.seconds, 3),
        "whole": fate.whole,
        "unreached": fate.unreached,
    }


def known(path: Path) -> dict[str, Told]:
    """Give the last fate of each mutant whose source is still the same."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    digests = {file: digest_of(file) for realm in REALMS for file in realm.files}
    return {line["key"]: line for line in lines if digests.get(line["key"].split(" ")[0]) == line["source"]}


def wanted(scope: str, before: dict[str, Told], again: bool) -> list[Mutation]:
    """Give the mutants that are still to be tried, those not listed as equivalent first."""
    keys = {key for key, fate in before.items() if fate["killer"] or not again}
    everything = [mutation for realm in REALMS for file in realm.files for mutation in parsed(file).mutations]
    todo = [mutation for mutation in everything if scope in mutation.key and mutation.key not in keys]
    return sorted(todo, key=lambda mutation: bool(excuse(mutation)))


def reached(realm: Realm, path: Path) -> tuple[list[Reach], dict[str, list[int]]]:
    """Give what each place of a realm executes, and by source the places of which it is not known.

    What an earlier run has written of sources that are still the same is not measured again.
    """
    now = {file: digest_of(file) for file in realm.files}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    before = {line["place"]: line for line in map(json.loads, lines)}
    found, unknown = [], dict[str, list[int]]()
    with path.open("a", encoding="utf-8") as out:
        for number, where in enumerate(realm.places):
            title = f"{title_of(where)} {getattr(where, 'scope', '')}"
            line = before.get(title)
            if line is None:
                each = reach(realm.name, number)
                if each.fault:
                    raise SystemExit(f"{title_of(where)}: the unchanged implementation fails: {each.fault}")
                line = {
                    "place": title,
                    "title": title_of(where),
                    "digests": now,
                    "seconds": each.seconds,
                    "lines": each.lines,
                }
                out.write(json.dumps(line, default=sorted) + "\n")
                out.flush()
            same = [file for file in realm.files if line["digests"].get(file) == now[file]]
            files = {file: frozenset(line["lines"].get(file, ())) for file in same}
            found.append(Reach(number, files, line["seconds"], ""))
            for file in now.keys() - set(same):
                unknown.setdefault(file, []).append(number)
    return found, unknown


def measured(path: Path) -> list[Told]:
    """Give what was written of places: the title, what is executed, and the seconds of a visit."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def main() -> None:
    """Try mutants and write their fates."""
    parser = argparse.ArgumentParser(
        prog="mutant_run", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--scope", default="", help="only mutants whose names contain this")
    parser.add_argument("--fates", type=Path, required=True, help="a file of one JSON line per mutant, appended to")
    parser.add_argument("--most", type=float, default=float("inf"), help="processor seconds per mutant")
    parser.add_argument("--again", action="store_true", help="try those that lived once more")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the scores of the sources tried, and hints")
    args = parser.parse_args()
    if args.write:
        write_scores(args.write, known(args.fates))
        write_hints(known(args.fates), measured(args.fates.with_suffix(".reach")), chosen(Profile("pr")))
        return
    todo = wanted(args.scope, known(args.fates), args.again)
    counts: Counter[str] = Counter()
    with progress("mutants", len(todo)) as advance, args.fates.open("a", encoding="utf-8") as out, limited_memory():
        for realm in REALMS:
            mine = [mutation for mutation in todo if mutation.file in realm.files]
            if not mine:
                continue
            reaches, unknown = reached(realm, args.fates.with_suffix(".reach"))
            places, cost = able(realm, reaches), {each.place: each.seconds for each in reaches}
            for file, lines in imported(realm.name).items():
                places[file].update({line: sorted(cost, key=cost.__getitem__) for line in lines})
            for mutation in mine:
                numbers = [*places[mutation.file].get(mutation.line, ()), *unknown.get(mutation.file, ())]
                numbers = sorted(dict.fromkeys(numbers), key=cost.__getitem__)
                fate = fate_of(mutation, numbers, args.most)
                counts["killed" if fate.killer else "unreached" if fate.unreached else "lives"] += 1
                out.write(json.dumps(told(fate)) + "\n")
                out.flush()
                advance(1, mutation.function)
    print(dict(counts))


if __name__ == "__main__":
    main()
