"""Property: states that differ only in names are explored once, and nothing else is lost by it.

How: the smallest scopes are explored with and without relabelling of blocks, requests in their slots; the count must
fall by exactly (N-1)!, since every block stands in the queue or a table. The successors of a state and of that state
under other names must be the same up to names, for every state of those scopes. A state and its mirror have one form.
Not covered: symmetry of larger scopes, which is the same code.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from math import factorial

import pytest

from blockwright_conformance.checker.explore import Explorer, Node
from blockwright_conformance.kv_cache.actions import enabled
from blockwright_conformance.kv_cache.adapter import ManagerAdapter
from blockwright_conformance.kv_cache.scopes import Scope, of_groups, of_row
from blockwright_conformance.kv_cache.symmetry import Form, Names, form, slot_form
from blockwright_conformance.kv_cache.world import KVCacheWorld
from blockwright_spec.manager.state import Config, Hit, Request, Running, State, Table, Waiting
from blockwright_spec.reads import Full, Group, Kind, Sliding

BOTH = replace(
    of_row("full, block 1", "smallest", 5, 2, "trim"),
    name="full and sliding 1, block 1: smallest",
    config=Config((Group(Full(), 1), Group(Sliding(1), 1)), 5, 2),
)
SMALLEST = [
    of_row("full, block 1", "smallest", 4, 3, "trim", {"strings": [2, 1, 2]}),
    of_row("sliding 2, block 1", "smallest", 4, 3, "chunks preempt"),
    of_row("chunked 1, block 1", "smallest", 4, 2, "trim hold reset"),
    of_row("mamba, block 1", "smallest", 4, 3, "trim"),
    BOTH,
]


def renamed(state: State, names: tuple[int, ...]) -> State:
    """The state with block b called names[b]."""

    def blocks(table: Table) -> Table:
        return tuple(names[block] for block in table)

    def request(old: Request) -> Request:
        match old:
            case Running():
                return replace(old, tables=tuple(map(blocks, old.tables)))
            case Waiting(prefix, hit):
                return Waiting(prefix, Hit(hit.length, tuple(map(blocks, hit.tables))))
        return old

    contents = [state.contents[names.index(block)] for block in range(len(names))]
    return replace(
        state,
        queue=blocks(state.queue),
        contents=tuple(contents),
        keys=tuple((names[block], prefix) for block, prefix in state.keys),
        requests=tuple(request(old) for old in state.requests),
    )


class Everywhere(Explorer[State, ManagerAdapter]):
    """An explorer that starts in the initial state under all names of blocks, and remembers every state."""

    def __init__(self, small: Scope, canonical: Callable[[State, Names], Form] = form) -> None:
        world = KVCacheWorld(small)
        world.names = Names(canonical)
        super().__init__(world, alone=True, laws=False)

    def states(self, all_names: bool) -> list[State]:
        start = self.world.initial()
        blocks = range(1, start.config.num_blocks)
        orders = permutations(blocks) if all_names else [tuple(blocks)]
        found: list[Node[State, ManagerAdapter]] = [Node(renamed(start, (0, *order)), None) for order in orders]
        self.seen |= {self.world.digest(node.state) for node in found}
        states, frontier = [node.state for node in found], found
        while frontier:
            frontier = list(self.level(frontier))
            states += [node.state for node in frontier]
        assert self.result.violation is None
        return states


def labelled_form(state: State, names: Names) -> Form:
    """Return the form with the names of blocks kept and requests in their slots."""
    return slot_form(state, names, {block: block for block in range(1, state.config.num_blocks)})


@pytest.mark.parametrize("small", SMALLEST, ids=lambda each: each.name)
def test_relabelling_blocks_saves_exactly_the_factorial(small: Scope) -> None:
    relabelled = Everywhere(small, canonical=slot_form).states(all_names=False)
    labelled = Everywhere(small, canonical=labelled_form).states(all_names=True)
    assert len(labelled) == factorial(small.config.num_blocks - 1) * len(relabelled)


@pytest.mark.parametrize("small", SMALLEST, ids=lambda each: each.name)
def test_successors_depend_neither_on_names_nor_on_which_request_is_which(small: Scope) -> None:
    names = Names()
    for state in Everywhere(small).states(all_names=False):
        for other in (renamed(state, (0, *range(state.config.num_blocks - 1, 0, -1))), mirror(state)):
            assert form(other, names) == form(state, names)
            assert successors(small, other, names) == successors(small, state, names)


def mirror(state: State) -> State:
    """The state with its two requests in each other's slots."""
    return replace(state, requests=state.requests[::-1], due=tuple(1 - slot for slot in state.due))


def successors(small: Scope, state: State, names: Names) -> set[bytes]:
    """The states one action away, up to names."""
    return {names.digest(action.meaning(state).state) for action in enabled(small, state)}


@pytest.mark.parametrize("kind", [Full(), Sliding(2)], ids=str)
def test_forms_tell_apart_what_matters(kind: Kind) -> None:
    names = Names()
    small = of_groups(((kind, 1),), "smallest", 4, 3, "chunks")
    for state in Everywhere(small).states(all_names=False):
        for other in altered(state):
            assert form(other, names) != form(state, names)


def altered(state: State) -> list[State]:
    """States that differ from this one in something that decides what happens next."""
    others = []
    if len(state.queue) > 1:
        keyed = {block for block, _ in state.keys}
        if (state.queue[0] in keyed) != (state.queue[-1] in keyed):
            others.append(replace(state, queue=state.queue[::-1]))
    if state.keys:
        others.append(replace(state, keys=state.keys[1:]))
    for slot, request in enumerate(state.requests):
        if isinstance(request, Running):
            ahead = tuple(count + 1 for count in request.published)
            changed = [replace(request, published=ahead), replace(request, written=request.written + 1)]
            for each in changed:
                requests = list(state.requests)
                requests[slot] = each
                others.append(replace(state, requests=tuple(requests)))
    return others
