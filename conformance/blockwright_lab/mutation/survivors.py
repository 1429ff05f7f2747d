"""What is known of mutants: survivors, each with the reason.

Survivors are data (``docs/data/survivors.json``): by function the digest of each mutant that nothing can tell from the
original, with the reason in words. A digest names no file and no line, so that moving a function changes nothing; an
edit of a statement makes new mutants, which are killed, listed, or count against the floor, which is a rate.

``python -m blockwright_lab.mutation.survivors --drop`` drops what the sources do not have any more; ``--list DIGEST
--reason TEXT`` adds a mutant.
"""

import argparse
import json
from collections.abc import Iterable
from functools import cache

from ..known_bugs.changes import ROOT
from .mutator import Mutation

TREE = ROOT.parents[1]
SURVIVORS = TREE / "docs" / "data" / "survivors.json"

Listed = dict[str, dict[str, str]]


@cache
def survivors() -> dict[str, Listed]:
    found: dict[str, Listed] = json.loads(SURVIVORS.read_text(encoding="utf-8"))
    return found


def reason_for(mutation: Mutation) -> str:
    return survivors().get(mutation.of, {}).get(mutation.function, {}).get(mutation.digest, "")


# --- changing the list


def changed(listed: dict[str, Listed], drop: bool, digests: Iterable[str], reason: str) -> dict[str, Listed]:
    from .targets import all_mutations

    there = {(each.of, each.function, each.digest) for each in all_mutations()}
    known = {(of, name, tag): why for of in listed for name, own in listed[of].items() for tag, why in own.items()}
    kept = {each: why for each, why in known.items() if not drop or each in there}
    kept |= {each: reason for each in there if each[2] in digests}
    found: dict[str, Listed] = {of: {} for of in listed}
    for (of, name, digest), why in sorted(kept.items()):
        found.setdefault(of, {}).setdefault(name, {})[digest] = why
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
