"""What is known of mutants: survivors with a reason, and what killed each mutant when it was last tried.

Survivors are data (``docs/data/survivors.json``): by function the digest of each mutant that nothing can tell from the
original, with the reason in words. A digest names no file and no line, so that moving a function changes nothing; an
edit of a statement makes new mutants, which are killed, listed, or count against the floor, which is a rate.

``python -m blockwright_lab.mutation.survivors --drop`` drops what the sources do not have any more; ``--list DIGEST
--reason TEXT`` adds a mutant. What killed a mutant lies in ``build/``: only the order of looking follows from it.
"""

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache

from ..known_bugs.changes import ROOT
from .mutator import Mutation

TREE = ROOT.parents[1]
"""The folder of the project, where the lab runs."""
SURVIVORS = TREE / "docs" / "data" / "survivors.json"
KILLERS = TREE / "build" / "mutation" / "killers.json"

Listed = dict[str, dict[str, str]]
"""By function, by digest, the reason."""


@cache
def survivors() -> dict[str, Listed]:
    found: dict[str, Listed] = json.loads(SURVIVORS.read_text(encoding="utf-8"))
    return found


def reason_for(mutation: Mutation) -> str:
    return survivors()[mutation.of].get(mutation.function, {}).get(mutation.digest, "")


# --- what killed


@cache
def killers() -> dict[str, dict[str, str]]:
    """Return by function, by digest of a mutant, the test that killed it last."""
    found: dict[str, dict[str, str]] = json.loads(KILLERS.read_text(encoding="utf-8")) if KILLERS.exists() else {}
    return found


def known_killers(mutation: Mutation) -> list[str]:
    """Return what killed a mutant last, and then what killed others of its function, most often first."""
    of_function = killers().get(mutation.function, {})
    own = of_function.get(mutation.digest)
    return [*([own] if own else []), *(each for each, _ in Counter(of_function.values()).most_common() if each != own)]


def remember(killed: Iterable[tuple[Mutation, str]]) -> None:
    found: dict[str, dict[str, str]] = defaultdict(dict, killers())
    for mutation, killer in killed:
        found[mutation.function] = found[mutation.function] | {mutation.digest: killer}
    KILLERS.parent.mkdir(parents=True, exist_ok=True)
    KILLERS.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    killers.cache_clear()


# --- changing the list


def changed(listed: dict[str, Listed], drop: bool, digests: Iterable[str], reason: str) -> dict[str, Listed]:
    from .targets import all_mutations

    found: dict[str, Listed] = {}
    for of in listed:
        there = {(each.function, each.digest) for each in all_mutations() if each.of == of}
        known = {(function, digest): why for function, held in listed[of].items() for digest, why in held.items()}
        known = {each: why for each, why in known.items() if not drop or each in there}
        by_function: Listed = {}
        for (function, digest), why in sorted((known | {each: reason for each in there if each[1] in digests}).items()):
            by_function.setdefault(function, {})[digest] = why
        found[of] = by_function
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m blockwright_lab.mutation.survivors", description=__doc__)
    parser.add_argument("--drop", action="store_true", help="drop mutants that the sources do not have any more")
    parser.add_argument("--list", nargs="+", default=[], metavar="DIGEST", help="mutants to list")
    parser.add_argument("--reason", default="", metavar="TEXT", help="why nothing can tell them from the original")
    args = parser.parse_args()
    if args.list and len(args.reason.split()) < 4:
        raise SystemExit("--reason: say in words why nothing can tell these mutants from the original")
    listed = changed(survivors(), args.drop, args.list, args.reason)
    SURVIVORS.write_text(json.dumps(listed, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
