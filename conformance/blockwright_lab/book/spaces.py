"""State spaces: how many states worlds have as they grow, and one small world whole.

The specification alone is explored, without laws: the gates check those, in larger worlds.
"""

from functools import cache
from typing import Any

from blockwright_conformance.checker.explore import Explorer, Node
from blockwright_conformance.checker.world import kind_of
from blockwright_conformance.kv_cache.adapter import ManagerAdapter
from blockwright_conformance.kv_cache.scopes import Scope, layer_name, of_groups
from blockwright_conformance.kv_cache.world import KVCacheWorld
from blockwright_spec.manager.state import Running, State, Waiting
from blockwright_spec.reads import Chunked, Full, Kind, Mamba, Sliding

MOST_BLOCKS = 6
GROWN: tuple[tuple[Kind, int], ...] = ((Full(), 1), (Sliding(2), 1), (Chunked(2), 1), (Mamba(), 1))

Record = dict[str, Any]
AnyNode = Node[State, ManagerAdapter]


@cache
def data() -> Record:
    return {"growth": growth(), "kinds": kinds(), "graph": graph(world(Full(), 1, 3, 2))}


def world(kind: Kind, size: int, blocks: int, slots: int) -> Scope:
    return of_groups(((kind, size),), "growth", blocks, 3, "", slots=slots)


def counted(each: Scope) -> Record:
    result = Explorer(KVCacheWorld(each), alone=True, laws=False).run()
    usable = each.config.num_blocks - 1
    return {"blocks": usable, "requests": each.slots, "states": result.states, "transitions": result.transitions}


def growth() -> list[Record]:
    return [counted(world(Full(), 1, blocks, slots)) for slots in (1, 2, 3) for blocks in range(2, MOST_BLOCKS + 1)]


def kinds() -> list[Record]:
    return [
        {"kind": layer_name(kind), **counted(world(kind, size, blocks, 2))}
        for kind, size in GROWN
        for blocks in range(2, MOST_BLOCKS)
    ]


class Drawing(Explorer[State, ManagerAdapter]):
    """Explores a world and remembers every state and every way between two."""

    def __init__(self, each: Scope) -> None:
        super().__init__(KVCacheWorld(each), alone=True, laws=False)
        self.states: dict[bytes, Record] = {}
        self.edges: dict[tuple[int, int], list[str]] = {}
        self.refused: dict[int, int] = {}
        self.number(self.world.initial())

    def number(self, state: State, depth: int = 0) -> int:
        name = self.world.digest(state)
        known = self.states.setdefault(name, {"id": len(self.states), "depth": depth, "shows": shown(state)})
        return int(known["id"])

    def arrived(self, node: AnyNode, action: Any, outcome: Any, after: AnyNode) -> AnyNode | None:
        depth = self.states[self.world.digest(node.state)]["depth"]
        start, end = self.number(node.state), self.number(after.state, depth + 1)
        if outcome.refusal is not None:
            self.refused[start] = self.refused.get(start, 0) + 1
        elif start != end:
            names = self.edges.setdefault((start, end), [])
            name = kind_of(action)
            names += [] if name in names else [name]
        return super().arrived(node, action, outcome, after)


def graph(each: Scope) -> Record:
    drawing = Drawing(each)
    result = drawing.run()
    states = [{**state, "refused": drawing.refused.get(state["id"], 0)} for state in drawing.states.values()]
    edges = [[*ends, sorted(names)] for ends, names in sorted(drawing.edges.items())]
    usable, longest = each.config.num_blocks - 1, each.max_tokens
    counts = {"blocks": usable, "requests": each.slots, "tokens": longest, "transitions": result.transitions}
    return {**counts, "states": states, "edges": edges}


def shown(state: State) -> Record:
    requests = [
        {"tokens": len(each.prefix[1]), "blocks": list(each.tables[0])}
        if isinstance(each, Running)
        else {"tokens": len(each.prefix[1])}
        if isinstance(each, Waiting)
        else None
        for each in state.requests
    ]
    return {"requests": requests, "free": list(state.queue), "published": sorted(block for block, _ in state.keys)}
