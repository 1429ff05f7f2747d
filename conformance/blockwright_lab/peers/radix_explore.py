"""The explorer of a prefix tree: every action of its engine in small worlds, breadth first, and long random walks.

There is no second tree to compare with: what is found, held and counted is judged by `radix_laws`, after every action.
"""

import marshal
from collections.abc import Iterator
from functools import partial
from hashlib import blake2b
from random import Random
from typing import Any, NamedTuple

from blockwright_conformance.capabilities import Finding
from blockwright_conformance.checker.explore import Explorer, Node, path
from blockwright_conformance.checker.world import Outcome, World

from .engines import Findings
from .radix_laws import Seen, evicted, hit_laws, kept, seen, state_laws, unchanged
from .sglang_engine import SglangEngine
from .sglang_radix import Do, RadixEngine, RadixScope


class State(NamedTuple):
    """What is known of a state: what was seen, and its name."""

    seen: Seen
    name: bytes
    actions: tuple[Do, ...]


def enabled(world: RadixEngine) -> Iterator[Do]:
    scope = world.scope
    for at, (tokens, _) in enumerate(scope.requests):
        name = str(at)
        run = world.runs.get(name)
        if run is None:
            yield Do("admit", name)
            yield Do("match", name)
            if scope.copies:
                yield Do("copy", name)
            continue
        yield Do("finish", name)
        yield Do("abort", name)
        if run.computed // scope.page * scope.page > run.tree:
            yield Do("checkpoint", name)
        if run.computed < len(tokens):
            yield Do("grow", name)
        if scope.window is not None:
            yield Do("slide", name)
    for kind, there in enumerate((True, scope.window is not None, bool(scope.states))):
        if there:
            amount = [0, 0, 0]
            amount[kind] = 1
            yield Do("evict", amounts=(amount[0], amount[1], amount[2]))


def perform(world: RadixEngine, before: Seen, action: Do) -> tuple[Seen, bool, list[tuple[str, str]]]:
    """Perform an action; return what is seen after it, whether it was refused, and the laws that it breaks."""
    broken: list[tuple[str, str]] = []
    refused = False
    scope = world.scope
    idle = not world.runs
    match action.what:
        case "match":
            found, tokens = world.do(action), world.prompt(action.name)
            table = tuple(int(slot) for slot in world.cache.path_device_indices(found.last_device_node))
            after = seen(world)
            broken += hit_laws(world, after, tokens, int(found.device_prefix_len), table)
            broken += unchanged(before, after)
        case "copy":
            _, taken = world.do(action)
            if taken:
                broken.append(("LOOKUP-1", f"the lookup took the state slot {taken[0]}"))
            broken += kept(before, seen(world))
        case "evict":
            answer = world.do(action)
            kinds = (0, *([1] if scope.window is not None else []), *([2] if scope.states else []))
            broken += evicted(before, seen(world), action.amounts, answer, kinds)
        case "admit" | "grow" | "checkpoint":
            refused = not world.do(action)
            if refused and idle and fits(scope, scope.requests[int(action.name)][1]):
                broken.append(("LIVE-1", f"request {action.name} was refused, and nothing runs"))
        case _:
            world.do(action)
    after = seen(world)
    if action.what in ("finish", "abort") or (action.what == "checkpoint" and not scope.states):
        broken += kept(before, after)
    broken += state_laws(world, after)
    return after, refused, broken


def fits(scope: RadixScope, prompt: int) -> bool:
    need = -(-prompt // scope.page) * scope.page
    return need <= scope.slots and (scope.window is None or need <= scope.window_slots)


def named(world: RadixEngine) -> bytes:
    """Name a state up to the names of slots: the tree with its locks and orders of use, and the requests."""
    order: dict[tuple[int, int], int] = {}

    def alias(kind: int, slot: int) -> int:
        return order.setdefault((kind, slot), len(order))

    nodes = world.nodes()
    at = {node.id: number for number, (_, node) in enumerate(nodes)}
    times = sorted({float(node.last_access_time) for _, node in nodes})
    shown: list[Any] = []
    for tokens, node in nodes:
        data = [node.component_data[each] for each in world.cache.tree_components]
        shown.append(
            (
                tokens,
                len(node.key),
                [(part.lock_ref, part.value is not None, bool(part.metadata.get("uuid"))) for part in data],
                [alias(0, int(slot)) for slot in data[0].value],
                times.index(float(node.last_access_time)),
            )
        )
    lists = []
    for each in world.cache.tree_components:
        lru, chain = world.cache.tree_core.lru_lists[each], []
        node = lru.head.lru_next[lru._pt]
        while node is not lru.tail:
            chain.append(at[node.id])
            node = node.lru_next[lru._pt]
        lists.append(chain)
    runs = [
        (
            name,
            run.computed,
            run.tree,
            run.dead,
            at.get(run.lock.node, -1),
            run.lock.swa_released,
            [alias(0, slot) for slot in run.table],
        )
        for name, run in sorted(world.runs.items())
    ]
    return blake2b(marshal.dumps((shown, lists, runs), 2), digest_size=16).digest()


class RadixWorld(World[State, RadixEngine]):
    """One world of a tree: its state is what is seen of it, and each action is judged by laws (`perform`)."""

    def __init__(self, engine: SglangEngine, scope: RadixScope) -> None:
        super().__init__(scope)
        self.engine = engine

    def initial(self) -> State:
        return state_of(self.model(), None)

    def enabled(self, state: State) -> Iterator[Do]:
        return iter(state.actions)

    def model(self) -> RadixEngine:
        return RadixEngine(self.engine, self.scope)

    def digest(self, state: State) -> bytes:
        return state.name

    def happened(self, state: State, action: Do, outcome: Outcome[State]) -> Iterator[str]:
        yield f"tree: {action.what}{' (refused)' if outcome.refusal else ''}"

    def unasked(self, *_: Any) -> list[str]:
        """Compare and tell nothing: laws of states are judged with each action, counterexamples are recorded."""
        return []

    observe: Any = unasked
    differences: Any = unasked
    examine: Any = unasked
    opening: Any = unasked


def state_of(world: RadixEngine, after: Seen | None) -> State:
    return State(after or seen(world), named(world), tuple(enabled(world)))


class RadixExplorer(Explorer[State, RadixEngine]):
    """Explores one world; the first way to each law broken is recorded, and not gone on from."""

    def __init__(self, engine: SglangEngine, scope: RadixScope, max_transitions: int | None = None) -> None:
        super().__init__(RadixWorld(engine, scope), max_transitions=max_transitions)
        self.found = Findings()
        self.ways: dict[tuple[str, ...], tuple[Do, ...]] = {}

    def step(self, node: Node[State, RadixEngine], action: Do) -> Node[State, RadixEngine] | None:
        """Perform an action and judge it; return the state that it leads to, if that is new."""
        assert node.model is not None
        self.result.transitions += 1
        model, trail = node.model.copy(), (node.trail, action)
        after, refused, broken = judged(model, node.state.seen, action)
        for law, detail in broken:
            way = self.ways.setdefault((law, action.what), path(trail))
            made = partial(Finding, law, self.world.scope.name, f"{action.what}: {detail}", "", len(way))
            self.found.add((law, action.what), made)
        if broken:
            return None
        state = state_of(model, after)
        return self.arrived(node, action, Outcome(state, (), refused), Node(state, model, trail))


def judged(world: RadixEngine, before: Seen, action: Do) -> tuple[Seen, bool, list[tuple[str, str]]]:
    """Perform an action as `perform` does; an error that it raises breaks a law, too."""
    try:
        return perform(world, before, action)
    except Exception as error:
        return before, False, [("RAISE-1", f"{type(error).__name__}: {error}")]


def walk(engine: SglangEngine, scope: RadixScope, seed: int, steps: int) -> tuple[int, list[Do], list[tuple[str, str]]]:
    """Act at random; return how far it went, the way, and the laws broken at its end."""
    random, world = Random(seed), RadixEngine(engine, scope)
    before, way = seen(world), []
    for step in range(steps):
        action = random.choice(list(enabled(world)))
        way.append(action)
        before, _, broken = judged(world, before, action)
        if broken:
            return step + 1, way, broken
    return steps, way, []
