"""Which scopes a manager can run, by its declared abilities.

A scope that needs a kind of layer or a feature of its configuration that is not declared is left out. Everything else
that is not declared is left out *of* the scope: the engine does not make the call, drafts no token, sends no salt. A
manager that is not run is not tested: a report in which nothing was run is a failure, and names the missing abilities.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cache, partial
from typing import Any, Final, NamedTuple

from blockwright_spec.manager.hits import found
from blockwright_spec.manager.lease import Lease
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import When
from blockwright_spec.manager.resizing import Resizable
from blockwright_spec.manager.state import Config, State, initial

from ..capabilities import Capabilities
from ..checker.world import kind_of
from ..gates import GateResult, Profile, factory_of
from .calls import KINDS
from .scopes import DERIVED, FILE, FOR_OTHERS, Scope, kind_and_lengths, large_scopes, option


def has(name: str, scope: Scope) -> bool:
    return bool(option(scope.config, name))


@cache
def longest_empty_hit(config: Config, tokens: int) -> int:
    return found(initial(config, 1), (0, (0,) * tokens), LRU).length


OPTIONS = {each: each for each in ("caching", "eagle", "overlaps", "settles", "watermark", "counts")} | {
    "key lookahead": "key_lookahead", "events": "tells", "retention": "retains", "keeping": "keeps", "units": "unit",
    "adaptive": "adapts",
}  # fmt: skip
"""Features that an option of a configuration turns on."""

FEATURES: dict[str, Callable[[Scope], object]] = {
    **{name: partial(has, field) for name, field in OPTIONS.items()},
    "uncached": lambda scope: not scope.config.caching,
    "groups": lambda scope: len(scope.config.groups) > 1,
    "block sizes": lambda scope: len({group.block_size for group in scope.config.groups}) > 1,
    "drafts": lambda scope: scope.drafts or any(getattr(each.kind, "drafts", 0) for each in scope.config.groups),
    "lookahead": lambda scope: any(scope.lookaheads),
    "encoder": lambda scope: scope.encoder,
    "extra keys": lambda scope: any(extra for extra, _ in scope.prompts),
    "too long": lambda scope: scope.max_tokens > scope.config.max_model_len,
    "empty hits": lambda scope: scope.config.caching and longest_empty_hit(scope.config, scope.max_tokens),
}

NAMES: dict[str, dict[str, str]] = {what: FILE[what] for what in ("kinds", "calls", "features", "lengths", "ways")}
"""Everything that a manager may declare, with its meaning."""


def needs_of(scope: Scope) -> Capabilities:
    kinds = [kind_and_lengths(group.kind)[0] for group in scope.config.groups]
    features = (word for word, is_needed in FEATURES.items() if is_needed(scope))
    return Capabilities(frozenset(kinds), frozenset(scope.calls), frozenset(features), lengths=lengths_of([scope]))


def lengths_of(scopes: Iterable[Scope]) -> dict[str, list[int]]:
    """Return the lengths of the layers of some scopes, by their names."""
    groups = [group for each in scopes for group in each.config.groups]
    every = [("block size", each.block_size) for each in groups]
    every += [pair for each in groups for pair in kind_and_lengths(each.kind)[1].items()]
    return {name: sorted({length for other, length in every if other == name}) for name, _ in every}


QUESTIONS = frozenset(("plan", "explain", "pin"))
"""Optional calls that change nothing: a manager without them is put through the scope without asking."""


def capabilities_of(factory: object) -> Capabilities | None:
    """Return the abilities of a factory's managers, or None for all.

    Raises:
        ValueError: its declaration is no `Capabilities`, or has an unknown name.
    """
    declared = getattr(factory, "capabilities", None)
    if declared is not None and not isinstance(declared, Capabilities):
        raise ValueError(f"capabilities: expected a Capabilities, not {declared!r}")
    if declared is not None:
        check_names(declared)
    return declared


def check_names(declared: Capabilities) -> None:
    """Raise a ValueError that gives the nearest known name for each unknown one."""
    wrong = []
    for what, known in NAMES.items():
        names = getattr(declared, what)
        if isinstance(names, str):
            raise ValueError(f"capabilities: {what}: expected a set of names, not the text {names!r}")
        wrong += [
            f"{name!r} is none of the {what} ({hint(name, known)})"
            for name in sorted(frozenset(names) - known.keys(), key=str)
        ]
    for name, lengths in lengths_of((*FOR_OTHERS["nightly"], *large_scopes())).items():
        taken: Any = declared.lengths.get(name, lengths) if isinstance(declared.lengths, Mapping) else ()
        if not isinstance(taken, Container) or not any(each in taken for each in lengths):
            wrong.append(f"lengths: no scope has a {name} in {taken!r} (known: {', '.join(map(str, lengths))})")
    if wrong:
        raise ValueError(f"capabilities: {', '.join(wrong)}")


def hint(name: object, known: Iterable[str]) -> str:
    near = get_close_matches(str(name), sorted(known), n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"


def lacking(scope: Scope, capabilities: Capabilities | None) -> list[str]:
    """Name the abilities that a scope needs and a manager lacks; empty if it can run the scope."""
    if capabilities is None:
        return []
    needs, why = needs_of(scope), capabilities.excludes(scope.config) if capabilities.excludes else ""
    return capabilities.lacks(replace(needs, calls=needs.calls - QUESTIONS)) + [why] * bool(why)


def fitted(scope: Scope, capabilities: Capabilities | None) -> Scope:
    """Return a scope without the calls, drafts, lookahead, extra keys and watermark that a manager does not declare."""
    if capabilities is None:
        return scope
    can, config = capabilities.features, scope.config
    changes: dict[str, Any] = {"calls": scope.calls & capabilities.calls, "ways": frozenset(capabilities.ways)}
    if "drafts" not in can:
        changes["drafts"] = 0
    if "lookahead" not in can:
        changes["lookaheads"] = (0,)
    if "extra keys" not in can:
        changes["prompts"] = tuple(dict.fromkeys((0, tokens) for _, tokens in scope.prompts))
    dropped = tuple(kind for word, kind in (("lease", Lease), ("resize", Resizable)) if word not in changes["calls"])
    lasting = [each for each in config.chapters if not isinstance(each, dropped)]
    changes["config"] = replace(config, chapters=tuple(lasting), watermark=config.watermark * ("watermark" in can))
    without = sorted(scope.calls - capabilities.calls - QUESTIONS)
    return replace(scope, name=scope.name + (f", without {' '.join(without)}" if without else ""), **changes)


def fitting(scopes: Iterable[Scope], capabilities: Capabilities | None) -> list[Scope]:
    """Return what can be run of some scopes, each fitted; one that asks no more than another is not run twice."""
    able = [each for scope in scopes if not lacking(each := fitted(scope, capabilities), capabilities)]
    if capabilities is None:
        return able
    asked: dict[Scope, list[frozenset[str]]] = {}
    kept = set()
    for each in sorted(able, key=lambda each: len(each.calls), reverse=True):
        sets = asked.setdefault(replace(each, name="", calls=frozenset()), [])
        if not any(each.calls <= calls for calls in sets):
            sets.append(each.calls)
            kept.add(each.name)
    return [each for each in able if each.name in kept]


# ---- managers of other makes

THEIR_GATES: Final = ("lockstep", "crossings", "machine")
"""The gates that run the manager that `--impl` names; all others are about Blockwright's own code."""

MEMBERS: Final = (
    *("errors", "stale", "follows_policy"),
    *("copy", "send", "forget", "find", "allocate", "append", "free", "observe", "check"),
)


def unusable(profile: Profile) -> str:
    factory: Any = factory_of(profile.implementation)
    try:
        can = capabilities_of(factory)
    except ValueError as error:
        return str(error)
    scopes = fitting(FOR_OTHERS[profile.name], can)
    if not scopes:
        return ""
    try:
        manager = factory(scopes[0].config)
    except Exception as error:
        return f"the factory raised {type(error).__name__} when it was called with a Config: {error}"
    missing = [name for name in MEMBERS if not hasattr(manager, name)]
    name = type(manager).__name__
    return f"the factory returned {name!r}, which has no {', '.join(missing)} (see ManagerAdapter)" if missing else ""


def lacks(scopes: Iterable[Scope], can: Capabilities | None) -> dict[str, list[str]]:
    return {each.name: words for each in scopes if (words := lacking(fitted(each, can), can))}


def asked(names: Sequence[str], profile: Profile) -> list[Scope]:
    scopes = {"lockstep": FOR_OTHERS[profile.name], "machine": large_scopes()}
    return [each for name in names for each in scopes.get(name, ()) if profile.scope in each.name]


def none_fits(scopes: Iterable[Scope], can: Capabilities | None) -> str:
    left = lacks(scopes, can)
    nearest = min(left, key=lambda name: len(left[name]))
    return f"the manager declares too little; the nearest scope, {nearest!r}, needs {', '.join(left[nearest])}"


class Met(NamedTuple):
    """How often the scopes that were run met one declared ability of a manager."""

    name: str
    scopes: int
    how: str = ""
    """Of a kind: its block sizes, its lengths beside them, and whether it was alone or beside other groups."""
    missing: str = ""
    """What a bug could hide in, since it was not met."""


OWN_LENGTH: Final = {"sliding": "window", "sinks": "window", "chunked": "chunk"}
"""The length that decides what a layer of a kind keeps."""

PLACES: Final = ("below", "at", "above")
"""Where a length may lie beside a block."""


def met(scopes: Sequence[Scope], can: Capabilities, fired: Mapping[str, Mapping[str, int]] | None = None) -> list[Met]:
    """Return how often each declared name was met: by scopes that ask for it, or, if they have run, by what happened.

    `fired` is what happened in each scope, by its name (`reached`).
    """
    ran = [each for each in scopes if fired is None or fired.get(each.name)]
    rows = [kind_met(kind, ran, fitting(DERIVED, can)) for kind in sorted(can.kinds)]
    for what in ("call", "feature"):
        for name in sorted(getattr(can, f"{what}s")):
            word, asks = f"{what} {name}", [each for each in scopes if name in getattr(needs_of(each), f"{what}s")]
            there = [each for each in asks if fired is None or fired.get(each.name, {}).get(word)]
            never = "never met" if not asks else f"asked for in {len(asks)}, and never happened"
            rows.append(Met(word, len(there), "", "" if there else never))
    return rows


def reached(scope: Scope, state: State, action: Any, outcome: Any) -> Iterator[str]:
    """Yield the names of calls and features that an action has met: it was served, or refused as it must be."""
    kind, refusal, calls = kind_of(action), outcome.refusal, scope.calls
    if refusal is not None and refusal.reason.value[0] is When.INVALID:
        yield from ["call misuse"] * ("misuse" in calls)
    if not outcome.steps:
        yield from ["call hold"] * (kind == "Find")
        return
    step: Any = getattr(action, "step", None)
    hit, done = outcome.hit, outcome.steps[-1][1]
    facts: dict[str, object] = {
        "call batch": kind == "GrowEach" and len(outcome.steps) > 1, "call hold": kind == "AdmitHeld",
        "call start": kind == "Start", "call use": kind == "Touch",
        "feature caching": hit and hit.length, "call odd": "odd" in calls,
        "feature overlaps": kind == "Settle", "feature drafts": kind == "Append" and action.accepted,
        "feature extra keys": kind == "Admit" and action.prefix[0], "feature units": hit and hit.length and done.copied,
        "call before": kind == "Publish" and not action.arguments[-1],
    }  # fmt: skip
    if step is not None:
        length = len(action.prefix[1]) - (hit.length if hit else 0) if kind == "Admit" else step.new
        facts |= {
            "call chunks": kind == "Admit" and step.new < length, "call unasked": not getattr(action, "asked", True),
            "call adopt": kind == "Admit" and step.new == 0 and hit and hit.length, "call load": step.external,
            "call checkpoint": step.checkpoint, "call whole": step.whole or step.reserve,
            "call plan": getattr(action, "planned", False), "feature lookahead": step.lookahead,
            "feature encoder": step.encoder,
        }  # fmt: skip
    word = KINDS[kind].word if kind in KINDS else ""
    yield from (name for name, is_met in (*facts.items(), (f"call {word}", word)) if is_met)
    yield from (f"call {name}" for name in ("explain", "pin") if name in calls)
    yield from (f"feature {name}" for name, is_there in FEATURES.items() if name not in ACTED and is_there(scope))


ACTED: Final = frozenset(("caching", "drafts", "overlaps", "extra keys", "units", "lookahead", "encoder"))
"""Features that are met by what happens; the others by anything that is served in a scope that has them."""


def met_by(names: Sequence[str], profile: Profile, rows: Iterable[GateResult]) -> list[Met]:
    can = capabilities_of(factory_of(profile.implementation))
    fired = {row.scope: row.fired for row in rows}
    scopes = [] if can is None else fitting(asked(names, profile), can)
    return met(scopes, can, fired) if can and scopes else []


def never_asked(profile: Profile) -> list[str]:
    """Return the declared names that no scope of a profile asks for."""
    can = capabilities_of(factory_of(profile.implementation))
    scopes = fitting(asked(THEIR_GATES, profile), can)
    return [] if can is None else [each.name for each in met(scopes, can) if not each.scopes]


def shapes_of(kind: str, scopes: Iterable[Scope]) -> tuple[set[int], set[str], set[str]]:
    """Return the block sizes of a kind of layer, where its own length lies beside them, and whether it was alone."""
    every = [
        (group, *kind_and_lengths(group.kind), len(each.config.groups))
        for each in scopes
        for group in each.config.groups
    ]
    mine = [
        (got.get(OWN_LENGTH.get(kind, ""), 0), at.block_size, count) for at, name, got, count in every if name == kind
    ]
    places = {PLACES[1 + (own > size) - (own < size)] for own, size, _ in mine}
    return {size for _, size, _ in mine}, places, {"with other groups" if count > 1 else "alone" for *_, count in mine}


def kind_met(kind: str, scopes: Sequence[Scope], possible: Sequence[Scope]) -> Met:
    """Return how a kind was met, and what of that which the scopes that are `possible` have was not."""
    count = sum(kind in needs_of(each).kinds for each in scopes)
    if not count:
        return Met(f"kind {kind}", 0, "", "never met")
    (sizes, places, company), (every, sides, others) = shapes_of(kind, scopes), shapes_of(kind, possible)
    how, length = [f"blocks of {', '.join(map(str, sorted(sizes)))}"], OWN_LENGTH.get(kind)
    how += [f"{length} {', '.join(each for each in PLACES if each in places)} a block"] * bool(length)
    missing = ["at one block size only"] * (len(sizes) == 1 < len(every))
    missing += [f"no {length} {each} a block" for each in PLACES if length and each in sides - places]
    missing += [f"never {each}" for each in sorted(others - company)]
    return Met(f"kind {kind}", count, "; ".join((*how, ", ".join(sorted(company)))), "; ".join(missing))


def not_run(names: Sequence[str], profile: Profile, rows: Sequence[GateResult], whole: bool) -> list[GateResult]:
    """Return rows that fail: no scope was run, or, in a whole run, something that is declared was met in none."""
    can = capabilities_of(factory_of(profile.implementation))
    if not any(row.kind == "lockstep" or "lockstep" not in names for row in rows):
        detail = f"no scope was run: {none_fits(asked(names, profile), can)}"
        return [GateResult(names[0], "none", "none", 0, 0, 1, 0.0, "SEEN-1", detail)]
    if can is None or not whole:
        return []
    fired = {row.scope: row.fired for row in rows}
    scopes = fitting(FOR_OTHERS[profile.name], can)
    asks = {each.name for each in met(scopes, can) if each.scopes}  # those of the machine are met at random
    never = [each.name for each in met(scopes, can, fired) if not each.scopes and each.name in asks]
    detail = f"declared, asked for, and never happened in profile {profile.name}: {', '.join(never)}"
    return [GateResult("lockstep", "declared", "all", 0, 0, 1, 0.0, "SEEN-1", detail)] if never else []


def reasons(left: dict[str, list[str]]) -> list[tuple[str, str, str]]:
    counts = Counter(word for words in left.values() for word in words)
    alone = Counter(words[0] for words in left.values() if len(words) == 1)
    return [(word, f"{count:,}", f"{alone[word]:,}") for word, count in counts.most_common()]
