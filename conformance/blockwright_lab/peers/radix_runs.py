"""SGLang's prefix tree under its laws: scopes, findings, and what is known of it.

Small worlds are explored breadth first to the limit of the profile, so that what is found first is shortest; larger
ones are walked at random, and a walk that ends in a fault is cut down to the actions that it needs.
"""

import dataclasses
import tomllib
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from blockwright_conformance.capabilities import Finding

from ..scopes import plain
from .engines import EngineUnderTest, Explored, explored, laws_of, walked
from .radix_explore import RadixExplorer, perform, walk
from .radix_laws import seen
from .sglang_engine import PUBLISHED, SglangEngine, load
from .sglang_radix import Do, RadixEngine, RadixScope


class RadixWalk(NamedTuple):
    """Long random histories of a world: so many actions, from each of so many seeds."""

    world: RadixScope
    steps: int = 300
    seeds: int = 12

    @property
    def name(self) -> str:
        return f"a walk: {self.world.name}"


ROWS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("trees.toml").read_text(encoding="utf-8"))


def world(name: str, slots: int, requests: str, options: dict[str, Any]) -> RadixScope:
    return RadixScope(name, slots, plain(ROWS["requests"][requests]), **options)


SMALL = tuple(world(*row) for row in ROWS["small"])
"""Worlds that are explored breadth first."""
LARGE = tuple(world(*row) for row in ROWS["large"])
"""Worlds that are walked."""

SCOPES: tuple[RadixScope | RadixWalk, ...] = (*SMALL, *(RadixWalk(world) for world in LARGE))


def explore(scope: RadixScope | RadixWalk, peer_path: Path, limit: int | None) -> Explored:
    engine = load(peer_path)
    with engine.imported():
        if isinstance(scope, RadixWalk):
            return walked(scope, limit, partial(found_on_a_walk, engine, scope, set()))
        explorer = RadixExplorer(engine, scope, limit)
        result, found = explorer.run(), explorer.found
        scripts = {sort: script_of(engine, scope, way) for sort, way in explorer.ways.items()}
        return explored(result, limit, (replace(found[sort], script=said) for sort, said in scripts.items()))


def found_on_a_walk(
    engine: SglangEngine, scope: RadixWalk, known: set[str], seed: int, steps: int
) -> tuple[int, list[Finding]]:
    """Take a walk; a way to a law that was not broken before is shortened."""
    count, way, broken = walk(engine, scope.world, seed, steps)
    findings = []
    for law, detail in broken:
        if law not in known:
            known.add(law)
            short = shortened(engine, scope.world, way, law)
            findings.append(Finding(law, scope.name, detail, script_of(engine, scope.world, short), len(short)))
    return count, findings


def shortened(engine: SglangEngine, scope: RadixScope, way: list[Do], law: str) -> tuple[Do, ...]:
    """Leave out what a way to a broken law does not need, one action after another."""
    at = 0
    while at < len(way):
        without = way[:at] + way[at + 1 :]
        way, at = (without, at) if law in laws_at_end(engine, scope, without) else (way, at + 1)
    return tuple(way)


def laws_at_end(engine: SglangEngine, scope: RadixScope, way: Iterable[Do]) -> set[str]:
    """Return the laws that a way breaks where it first breaks any; none if it cannot be gone."""
    world = RadixEngine(engine, scope)
    before = seen(world)
    for action in way:
        try:
            before, _, broken = perform(world, before, action)
        except (AssertionError, KeyError, AttributeError):
            return set()
        if broken:
            return {law for law, _ in broken}
    return set()


# --- a counterexample as calls of the engine's own API


class Recorder:
    """Writes down the calls that are made to an object, by the engine of a world and not by itself."""

    def __init__(self, name: str, wrapped: Any, lines: list[str]) -> None:
        self.__dict__.update(_name=name, _wrapped=wrapped, _lines=lines)

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self._wrapped, attribute)
        if not callable(found) or attribute.startswith("_") or attribute in QUIET:
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            words = [said(each) for each in arguments] + [f"{name}={said(value)}" for name, value in named.items()]
            answer = found(*arguments, **named)
            answer_text = "" if answer is None else f"  # {said(answer)}"
            self._lines.append(f"{self._name}.{attribute}({', '.join(words)}){answer_text}")
            return answer

        return call


QUIET = frozenset({"available_size", "full_available_size", "swa_available_size", "path_device_indices"})
"""Questions that change nothing, and say nothing of how to get there."""


def said(value: Any) -> str:
    """Return what a value is in few words: of a record, what differs from its defaults."""
    kind = type(value).__name__
    if kind == "RadixKey":
        return f"key({list(value.raw_token_ids())})"
    if kind == "Tensor":
        return str(value.tolist())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [(each.name, getattr(value, each.name), each.default) for each in dataclasses.fields(value)]
    elif hasattr(value, "_fields"):
        fields = [(name, getattr(value, name), value._field_defaults.get(name, value)) for name in value._fields]
    else:
        return repr(value)
    shown = [
        f"{name}={said(each)}"
        for name, each, default in fields
        if each is not default
        and type(each).__name__ not in ("dict", "SimpleNamespace")
        and each not in (default, (), [])
    ]
    return f"{kind}({', '.join(shown)})"


def script_of(engine: SglangEngine, scope: RadixScope, way: Iterable[Do]) -> str:
    engine.nodes.counter = 0  # so that equal ways give equal names of nodes
    world, lines = RadixEngine(engine, scope), [f"# {scope}"]
    world.cache, world.slots = Recorder("cache", world.cache, lines), Recorder("allocator", world.slots, lines)
    for action in way:
        lines.append(f"# {action.what} {action.name or action.amounts}")
        try:
            world.do(action)
        except Exception as error:
            lines.append(f"# {type(error).__name__}: {error}")
    return "\n".join(lines)


ENGINES = (
    EngineUnderTest(
        f"sglang-{PUBLISHED.version}",
        f"SGLang {PUBLISHED.version}, the prefix tree in Python",
        tuple(laws_of("tree").items()),
        SCOPES,
        explore,
    ),
)
"""The release."""
