"""What the scopes of a gate must have met between them: the row of the report that fails when one is left out.

A goal is an *event* in a *setting*, and both are dimensions of the specification, not names of scopes. Events are what
may happen in one call: each action, each refusal of each action, and each particular of them (a hit, an eviction, a
copy, a rejected draft, a load that came in part, and so on). Settings are the kinds of layers with the relation of
their window, chunk or state to a block, the hybrids of them, and the modes of the manager; of block tables the
allocator, the block and the devices; of tiers and chains the policy and the ways of writing.

Which goals can be met at all is data (`scope_goals.json`), written by ``python -m blockwright_conformance.scope_goals``
from what the scopes meet now: a goal that this takes away has to be argued away. A scope of the `pr` profile
that alone meets no goal is a violation, too: others have made it superfluous, and nothing would notice its absence.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from blockwright_spec.reads import Chunked, Cross, Full, Group, Mamba, Sliding

from .explore import Explorer
from .gates import GateResult
from .offload_chain_explore import ChainExplorer
from .offload_scopes import CHAIN_PROFILES, TIER_PROFILES, ChainScope, TierScope
from .offload_tier_explore import TierExplorer
from .paged_explore import PagedExplorer
from .paged_scopes import PAGED_PROFILES, PagedScope
from .rows import LIMIT
from .scopes import PROFILES, Scope
from .search import Search

Goal = tuple[str, str]
"""A setting, and an event in it."""


def relation(group: Group) -> str:
    """Give the kind of a group's layers, and how its lengths relate to a block."""
    size = group.block_size
    block = block_of(size)
    match group.kind:
        case Full():
            return f"full, {block}"
        case Sliding(window):
            reach = "below" if window < size else "at" if window == size else "above"
            return f"sliding {reach} a block, {block}"
        case Chunked(chunk):
            return f"chunk of {'one block' if chunk == size else 'blocks'}, {block}"
        case Mamba(drafts):
            return f"state{' with drafts' if drafts else ''}, {block}"
        case Cross():
            return f"cross, {block}"


AnyScope = Scope | PagedScope | TierScope | ChainScope


def settings(scope: AnyScope) -> Iterator[str]:
    """Give the settings that a scope is an instance of."""
    match scope:
        case Scope():
            yield from of_manager(scope)
        case PagedScope():
            yield from of_tables(scope)
        case TierScope():
            keys = "more keys than places" if len(scope.keys) > scope.capacity else "a place for each key"
            yield f"{scope.manager}, {some(scope.capacity)} places"
            yield f"{scope.manager}, {some(scope.capacity)} places, {keys}, {some(len(scope.keys))} keys"
            yield f"{scope.manager}, {'recovered' if scope.recovered else 'new'}, {some(scope.readers)} readers"
        case ChainScope():
            yield from of_chain(scope)


def some(count: int) -> str:
    """Say how many, as far as it can matter."""
    return {0: "no", 1: "one", 2: "two"}.get(count, "more")


def of_tables(scope: PagedScope) -> Iterator[str]:
    """Give the settings of part two: the allocator with its block, and with each feature."""
    config = scope.config
    allocator = "prefix caching" if config.caching else "naive"
    features = {
        "two devices": config.num_cpu > 0,
        "window": config.window is not None,
        "three tables": scope.slots > 2,
        "one table": scope.slots == 1,
        "two symbols": len({token for tokens in scope.outputs for token in tokens}) > 1,
        "lookahead": len(scope.lookaheads) > 1,
        "tokens in lots": len({len(tokens) for tokens in scope.outputs}) > 1,
    }
    yield f"{allocator}, {block_of(config.block_size)}"
    feature = ", ".join(name for name, is_on in features.items() if is_on)
    yield f"{allocator}, {block_of(config.block_size)}: {feature}"


def of_chain(scope: ChainScope) -> Iterator[str]:
    """Give the settings of a chain: how it writes, with each feature, and with all."""
    config = scope.config
    above, below, *deeper = config.capacities
    features = {
        "blocks of several": config.span > 1,
        "handed out late": not scope.eager,
        "loads free": config.frees,
        "more above" if above > below else "more below" if below > above else "as many below": True,
        "nothing above": above == 0,
        "nothing below": below == 0,
        "three tiers": bool(deeper),
        f"reserve {config.reserve[0] if config.reserve else 0}": not config.through or bool(config.reserve),
        "whole requests": max(map(len, scope.stores)) > 1,
        "one block a load": max(map(len, scope.loads)) == 1,
        "two readers": len({blocks for load in scope.loads for key, blocks in load if key == scope.keys[0]}) > 1,
    }
    way = "written through" if config.through else "written back"
    own = [name for name, is_on in features.items() if is_on]
    yield from (f"{way}: {name}" for name in own)
    yield f"{way}: {', '.join(own)}"


def block_of(size: int) -> str:
    """Say how long a block is."""
    return "block 1" if size == 1 else "longer block"


def of_manager(scope: Scope) -> Iterator[str]:
    """Give the settings of part one: the layers, the mode, and both together."""
    config = scope.config
    kinds = [type(group.kind).__name__.lower() for group in config.groups]
    sizes = {group.block_size for group in config.groups}
    hybrid = f"{' + '.join(kinds)}, {'equal' if len(sizes) == 1 else 'unequal'} blocks"
    layers = relation(config.groups[0]) if len(kinds) == 1 else hybrid
    modes = {
        "uncached": not config.caching,
        "eagle": config.eagle,
        "in flight": config.overlaps,
        "two in flight": scope.in_flight > 1,
        "settled publication": config.settles,
        "watermark": config.watermark > 0,
        "three requests": scope.slots > 2,
        "two symbols": len({token for _, tokens in scope.prompts for token in tokens} | {*scope.outputs}) > 1,
        "extra keys": len({extra for extra, _ in scope.prompts}) > 1,
    }
    mode = ", ".join(name for name, is_on in modes.items() if is_on)
    yield layers
    yield from (name for name, is_on in modes.items() if is_on)
    if mode:
        yield f"{layers}: {mode}"


# --- the goals of a gate


@cache
def wanted() -> dict[str, frozenset[Goal]]:
    """Give the goals of each gate."""
    text = (files(__package__) / DATA).read_text(encoding="utf-8")
    return {
        gate: frozenset((setting, event) for setting, events in own.items() for event in events)
        for gate, own in json.loads(text).items()
    }


DATA = "scope_goals.json"

SCOPES: dict[str, tuple[AnyScope, ...]] = {
    "lockstep": PROFILES["pr"],
    "paged": PAGED_PROFILES["pr"],
    "offload": (*TIER_PROFILES["pr"], *CHAIN_PROFILES["pr"]),
}
"""The scopes of the gates that must meet goals."""


def goals_of(scope: AnyScope, fired: Iterable[str]) -> frozenset[Goal]:
    """Give the goals that a scope has met."""
    return frozenset((setting, event) for setting in settings(scope) for event in fired)


def goals_rows(gate: str, rows: Iterable[GateResult], scopes: Iterable[AnyScope]) -> list[GateResult]:
    """Give the rows that fail if a goal of a gate was not met, or if a scope was not needed for any."""
    met = met_by(rows, scopes)
    return [goals_row(gate, met), needed_row(gate, met)]


def met_by(rows: Iterable[GateResult], scopes: Iterable[AnyScope]) -> dict[str, frozenset[Goal]]:
    """Give the goals that each of these scopes met, by its name and its row."""
    by_name = {scope.name: scope for scope in scopes}
    return {row.scope: goals_of(by_name[row.scope], row.fired) for row in rows if row.scope in by_name}


def goals_row(gate: str, met: dict[str, frozenset[Goal]]) -> GateResult:
    """Give the row that fails if a goal of a gate was met by none of the scopes."""
    unmet = sorted(wanted()[gate].difference(*met.values()))
    few = "; ".join(f"{event} ({setting})" for setting, event in unmet[:3])
    detail = f"{len(unmet)} goals are not met, first {few}" if unmet else ""
    count = len(wanted()[gate])
    return GateResult(
        "coverage", f"goals of {gate}", "all", count, 0, len(unmet), 0.0, "SEEN-2" if unmet else "", detail
    )


def needed_row(gate: str, met: dict[str, frozenset[Goal]]) -> GateResult:
    """Give the row that fails if the others of the `pr` profile meet all that a scope meets: it can go."""
    own = {scope.name: met[scope.name] for scope in SCOPES[gate] if scope.name in met}
    times = Counter(goal for goals in own.values() for goal in goals)
    needless = [name for name, goals in own.items() if all(times[goal] > 1 for goal in goals)]
    detail = f"{len(needless)} scopes meet no goal alone, first {'; '.join(needless[:3])}" if needless else ""
    law = "SEEN-3" if needless else ""
    return GateResult("coverage", f"scopes of {gate}", "all", len(own), 0, len(needless), 0.0, law, detail)


# --- without an implementation


@cache
def fired_alone(gate: str, number: int) -> frozenset[str]:
    """Explore a scope with the specification alone, judging nothing, and give what happened."""
    scope = SCOPES[gate][number]
    match scope:
        case Scope():
            search: Search[Any, Any, Any, Any] = Explorer(scope, None, (), max_transitions=LIMIT)
        case PagedScope():
            search = PagedExplorer(scope, None, (), max_transitions=LIMIT)
        case TierScope():
            search = TierExplorer(scope, None, max_transitions=LIMIT)
        case ChainScope():
            search = ChainExplorer(scope, None, max_transitions=LIMIT)
    return frozenset(search.run().fired)


def names() -> Iterator[str]:
    """Give the scopes by their names, with the gate before."""
    for gate, scopes in SCOPES.items():
        yield from (f"{gate}: {scope.name}" for scope in scopes)


def gate_of(name: str) -> str:
    """Give the gate of a scope's name."""
    return name.partition(": ")[0]


def goals_met(skipped: str) -> GateResult:
    """Give the row of goals of a scope's gate when that scope is skipped, with the specification alone."""
    gate = gate_of(skipped)
    rows = [
        GateResult(gate, scope.name, "all", 0, 0, 0, 0.0, fired=dict.fromkeys(fired_alone(gate, number), 1))
        for number, scope in enumerate(SCOPES[gate])
        if f"{gate}: {scope.name}" != skipped
    ]
    return goals_row(gate, met_by(rows, SCOPES[gate]))


def found() -> dict[str, dict[str, list[str]]]:
    """Give the goals that the scopes of each gate meet now."""
    goals: dict[str, dict[str, set[str]]] = {gate: {} for gate in SCOPES}
    for gate, scopes in SCOPES.items():
        for number, scope in enumerate(scopes):
            for setting, event in goals_of(scope, fired_alone(gate, number)):
                goals[gate].setdefault(setting, set()).add(event)
    return {gate: {key: sorted(held) for key, held in sorted(own.items())} for gate, own in goals.items()}


def written(goals: dict[str, dict[str, list[str]]]) -> str:
    """Give goals as text, a setting a line."""
    gates = (
        f'"{gate}": {{\n' + ",\n".join(f"{json.dumps(key)}: {json.dumps(held)}" for key, held in own.items()) + "\n}"
        for gate, own in goals.items()
    )
    return "{\n" + ",\n".join(gates) + "\n}\n"


if __name__ == "__main__":
    Path(str(files(__package__) / DATA)).write_text(written(found()), encoding="utf-8")
