"""Mutants listed as equivalent: none may be caught. They are tried a few at a time, and one by one if that fails.

Several are put into a source together, at most one per statement, so that each is really there; what nothing can tell
from the original, nothing can tell together. (Two that are no equivalents might make up for each other; they were
looked at one by one when they were listed.)
"""

from types import CodeType

from .mutant_fate import Fate, fate_of
from .mutant_places import difference
from .mutation import Mutation, Swap
from .realms import parsed, realm_of
from .variants import load

SIZE = 12
"""How many are put in together."""


def groups(
    listed: list[Mutation], places: dict[str, dict[int, list[int]]]
) -> list[tuple[str, tuple[str, ...], list[int]]]:
    """Divide listed mutants into groups: the source, the keys, and the places that execute any of them."""
    made: list[tuple[str, list[Mutation]]] = []
    for mutation in listed:
        fits = (
            group
            for file, group in made
            if file == mutation.file and len(group) < SIZE and all(each.line != mutation.line for each in group)
        )
        group = next(fits, None)
        if group is None:
            made.append((mutation.file, [mutation]))
        else:
            group.append(mutation)
    return [
        (
            file,
            tuple(mutation.key for mutation in group),
            sorted({number for mutation in group for number in places[file].get(mutation.line, ())}),
        )
        for file, group in made
    ]


def together(file: str, keys: tuple[str, ...]) -> CodeType:
    """Give the code of a source with several mutations at different statements."""
    source, undo = parsed(file), list[Swap]()
    try:
        undo += [source.swaps[key]() for key in keys[:-1]]
        return source.compiled(keys[-1])
    finally:
        for swap in reversed(undo):
            swap()


def listed_fates(file: str, keys: tuple[str, ...], numbers: list[int]) -> list[Fate]:
    """Try a group of listed mutants: each lives, if all of them together do."""
    mutations = {mutation.key: mutation for mutation in parsed(file).mutations}
    if not numbers:
        return [Fate(mutations[key], "", "", None, 0, 0, 0.0) for key in keys]
    package, places = load({file: together(file, keys)}), realm_of(file).places
    steps = 0
    for number in numbers:
        how, more = difference(places[number], package)
        steps += more
        if how:
            return [fate_of(mutations[key], numbers) for key in keys]
    return [Fate(mutations[key], "", "", None, len(numbers), steps, 0.0) for key in keys]
