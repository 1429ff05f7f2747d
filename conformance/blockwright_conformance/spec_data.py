"""Writes the data of gate `spec`: which laws notice which mutants of the specification, and where.

``python -m blockwright_conformance.spec_data`` looks for every mutant (a quarter of an hour on two quiet cores), keeps
what it has found in ``build/spec_fates.jsonl``, from which it goes on if it is interrupted, and then writes
``spec_sample.json`` and ``spec_hints.json`` beside this module, which the gate goes by, and
``docs/data/spec_mutants.json`` for documents.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import Any

from blockwright._terminal import progress

from .mutation import Mutation
from .parallel import in_parallel
from .spec_excused import IMPLIED
from .spec_fates import HINTS, NEAR, NEAR_PLACES, Fate, Memory, fate_of, noticed_in
from .spec_mutants import ALL_LAWS, BESIDE, FAR, by_key, counted, sample
from .spec_mutation import CHAPTERS, all_guards, all_mutations, chapter, of_mutation
from .spec_places import BY_NAME
from .spec_search import UNDEFINED, Noticed
from .spec_weakened import WEAKENED
from .spec_workers import PLANS

SAMPLE = 60
"""How many mutants beside witnesses and refusals are looked for each time."""


def drawn(key: str) -> bytes:
    """Give the lot of a mutant."""
    return blake2b(key.encode(), digest_size=8).digest()


def in_order() -> list[Mutation]:
    """Give every mutant: refusals left out first, then by lot, so that what is there early is a fair sample."""
    guards = {guard.key for guard in all_guards()}
    return sorted(all_mutations(), key=lambda mutation: (mutation.key not in guards, drawn(mutation.key)))


def fates_of(keys: list[str]) -> list[dict[str, Any]]:
    """Look for some mutants."""
    return [record(fate_of(by_key()[key])) for key in keys]


def record(fate: Fate) -> dict[str, Any]:
    """Give a fate as data."""
    held = asdict(fate)
    del held["mutation"]
    return {"key": fate.mutation.key, **held, "seconds": round(fate.seconds, 3)}


def fate(held: dict[str, Any]) -> Fate:
    """Give the fate that some data tell of."""
    return Fate(by_key()[held["key"]], **{name: value for name, value in held.items() if name != "key"})


def kept(path: Path) -> Iterator[Fate]:
    """Give the fates found before, of mutants that there are."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        held = json.loads(line)
        if held["key"] in by_key():
            yield fate(held)


def with_witnesses(fates: list[Fate]) -> list[Fate]:
    """Look again for the witnesses, known before or written by hand, of laws that were not found broken alone."""
    by_mutant, alone = {each.mutation.key: each for each in fates}, {law for each in fates for law in each.alone}
    known: list[tuple[str, str, tuple[str, ...]]]
    known = [(entry.by, entry.mutant, (entry.place,)) for entry in sample()["laws"] if entry.mutant in by_key()]
    known += [
        (each.law, mutation.key, tuple(place.name for place in Memory().order(mutation)))
        for each in WEAKENED
        for mutation in chapter(each.file).mutations
        if (mutation.before, mutation.after) == (each.before, each.after)
    ]
    for law, mutant, places in known:
        for name in places if law not in alone | IMPLIED.keys() and mutant in by_mutant else ():
            noticed = noticed_in(BY_NAME[name], of_mutation(by_key()[mutant]), law, FAR, alone=True)
            if frozenset((law,)) in noticed.together:
                by_mutant[mutant] = added(by_mutant[mutant], noticed, name)
                alone.add(law)
                break
    return list(by_mutant.values())


def added(fate: Fate, noticed: Noticed, place: str) -> Fate:
    """Add what was noticed in another place."""
    laws = dict.fromkeys(noticed.lengths, place) | fate.laws
    alone = {law for laws in noticed.together if len(laws) == 1 for law in laws}
    for law in alone - {*fate.alone}:
        laws[law] = place
    together = {tuple(sorted(each)) for each in noticed.together} | {tuple(each) for each in fate.together}
    return replace(
        fate, laws=laws, alone=sorted(alone | {*fate.alone}), together=sorted(map(list, together)), beside=""
    )


# --- the data of the gate


def sample_of(fates: list[Fate]) -> dict[str, list[list[str]]]:
    """Give what the gate goes by: for each law a witness, each refusal left out, and some others."""
    guards = {guard.key for guard in all_guards()}
    others = [each for each in fates if each.mutation.key not in guards and each.is_noticed]
    laws = (witness(law.id, fates) for law in ALL_LAWS if law.id not in PLANS)
    return {
        "laws": [each for each in laws if each],
        "guards": [noticed(each) for each in fates if each.mutation.key in guards and each.is_noticed],
        "others": [noticed(each) for each in sorted(others, key=lambda each: drawn(each.mutation.key))[:SAMPLE]],
    }


def witness(law: str, fates: list[Fate]) -> list[str]:
    """Give a mutant that a law notices, if it can be one that no other does, and one that is found soon."""

    def rank(each: Fate) -> tuple[bool, bool, int]:
        return law not in each.alone, len(each.laws) > 1, each.transitions

    found = min((each for each in fates if law in each.laws), key=rank, default=None)
    return [found.mutation.key, law, found.laws[law]] if found else []


def noticed(fate: Fate) -> list[str]:
    """Give by what a mutant is noticed and where: by a law if there is one."""
    laws = sorted(fate.laws, key=lambda law: (law == UNDEFINED, law not in fate.alone))
    by = next(iter(laws), BESIDE)
    return [fate.mutation.key, by, fate.laws.get(by, fate.beside)]


def hinted(fates: list[Fate]) -> dict[str, str]:
    """Give the places of what the laws do not notice nearby: of what is noticed far, or beside the implementation."""
    places = {each.mutation.key: next(iter(each.laws.values()), each.beside) for each in fates if is_far(each)}
    return dict(sorted(places.items()))


def is_far(fate: Fate) -> bool:
    """Tell whether a mutant is noticed, and not by laws in the places where one looks first."""
    first = [near.name for near in Memory().order(fate.mutation)[:NEAR_PLACES]]
    return fate.is_noticed and not (fate.transitions < NEAR and {*fate.laws.values()} & {*first})


# --- the data of documents


def matrix(fates: list[Fate]) -> dict[str, Any]:
    """Give what documents show: the score, the laws with the mutants that only they notice, and the whole matrix."""
    own = counted(fates)
    by = Counter(each.noticed_by for each in own if each.is_noticed)
    return {
        "mutants": len(all_mutations()),
        "looked_for": len(fates),
        "noticed": sum(by.values()),
        "noticed_by": dict(by.most_common()),
        "equivalent": len(fates) - len(own),
        "lives": sorted(each.mutation.key for each in own if not each.is_noticed),
        "laws": {law.id: of_law(law.id, fates) for law in ALL_LAWS},
        "chapters": {f"{name}.py": of_chapter(name, fates) for name in CHAPTERS},
    }


def of_law(law: str, fates: list[Fate]) -> dict[str, Any]:
    """Give how many mutants a law notices, those that only it does, and in how many it is broken alone in some step."""
    if law in PLANS:
        return {"mutants": 1, "alone": ["a right plan, altered"], "in_a_step": 1}
    notices = [each for each in fates if law in each.laws]
    premises, why = IMPLIED.get(law, ((), ""))
    return {
        "mutants": len(notices),
        "alone": [each.mutation.key for each in notices if each.seen_by == {law}],
        "in_a_step": sum(law in each.alone for each in notices),
        "witness": next(iter(witness(law, fates)), ""),
        "implied_by": premises,
        "implication": why,
    }


def of_chapter(name: str, fates: list[Fate]) -> dict[str, Any]:
    """Give the matrix of a chapter: each mutant with the laws that notice it, and whether lock-step does."""
    own = sorted((each for each in fates if each.mutation.file == f"{name}.py"), key=lambda each: each.mutation.key)
    return {
        "digest": digest(name),
        "mutants": {
            each.mutation.key.partition(" ")[2]: [*sorted(each.laws), *([BESIDE] * bool(each.beside))] for each in own
        },
    }


def digest(name: str) -> str:
    """Give the digest of a chapter's mutants: it changes with their names, and so not with comments."""
    keys = "\n".join(mutation.key for mutation in chapter(f"{name}.py").mutations)
    return blake2b(keys.encode(), digest_size=8).hexdigest()


def main() -> int:
    """Look for what was not looked for, and write the data."""
    parser = argparse.ArgumentParser(prog="python -m blockwright_conformance.spec_data", description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes to use")
    parser.add_argument("--most", type=int, default=10**6, metavar="N", help="look for so many mutants at most")
    parser.add_argument("--kept", type=Path, default=Path("build/spec_fates.jsonl"), metavar="FILE")
    parser.add_argument("--out", type=Path, default=Path("docs/data/spec_mutants.json"), metavar="FILE")
    args = parser.parse_args()
    args.kept.parent.mkdir(parents=True, exist_ok=True)
    known = {each.mutation.key for each in kept(args.kept)}
    keys = [mutation.key for mutation in in_order() if mutation.key not in known][: args.most]
    parcels = [(keys[at : at + 10],) for at in range(0, len(keys), 10)]
    with progress("mutants of the specification", len(keys)) as advance, args.kept.open("a", encoding="utf-8") as file:
        for _, held in in_parallel(fates_of, parcels, args.jobs):
            file.writelines(json.dumps(each) + "\n" for each in held)
            file.flush()
            advance(len(held))
    written(list(kept(args.kept)), args.out)
    return 0


def written(fates: list[Fate], out: Path) -> None:
    """Write all files."""
    fates = with_witnesses(fates)
    for name, data in (("spec_sample.json", sample_of(fates)), (HINTS, hinted(fates))):
        beside = Path(str(files(__package__) / name))
        beside.write_text(json.dumps(data, indent=0) + "\n", encoding="utf-8")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(matrix(fates), indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
