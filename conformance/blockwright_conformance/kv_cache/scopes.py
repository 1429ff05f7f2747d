"""Scopes: small worlds that the explorer visits whole; ``scopes.toml`` lists them.

A scope fixes a manager's configuration, the prompts and tokens an engine may send, and which calls it makes.
"""

import tomllib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from itertools import product, starmap
from pathlib import Path
from typing import Any

from blockwright_spec.manager.adaptive import Adaptive
from blockwright_spec.manager.chapters import Chapter
from blockwright_spec.manager.events import Events
from blockwright_spec.manager.facts import span
from blockwright_spec.manager.keeping import Keeping
from blockwright_spec.manager.lease import Lease
from blockwright_spec.manager.metrics import Metrics
from blockwright_spec.manager.prompts import LastPrompts, LookAhead
from blockwright_spec.manager.resizing import Resizable
from blockwright_spec.manager.retention import Retention, floors_of
from blockwright_spec.manager.state import Config
from blockwright_spec.manager.units import Units
from blockwright_spec.reads import Ahead, Chunked, Cross, Full, Group, Kind, Mamba, Prefix, Sinks, Sliding, entries


@dataclass(frozen=True, slots=True)
class Scope:
    """A manager's configuration and everything an engine may do to it."""

    name: str
    config: Config
    slots: int
    """Requests that may run at once; each is an id that the engine uses again after the request has ended."""
    prompts: tuple[Prefix, ...]
    outputs: tuple[int, ...] = (0,)
    max_tokens: int = 0
    """Tokens at which a request stops; never above `config.max_model_len`."""
    lookaheads: tuple[int, ...] = (0,)
    drafts: int = 0
    in_flight: int = 0
    encoder: int = 0
    outside: int = 0
    calls: frozenset[str] = field(default_factory=frozenset)
    ways: frozenset[str] = frozenset()
    """Ways of the manager, in which the specification follows it."""


def rows_of(module: str) -> dict[str, Any]:
    """Return the scopes of a module as rows, from the file beside it."""
    return tomllib.loads(Path(module).with_suffix(".toml").read_text(encoding="utf-8"))


FILE = rows_of(__file__)
CALLS: dict[str, str] = FILE["calls"]
"""What else an engine may do, by a word for it."""


def strings(symbols: int, shortest: int, longest: int, extras: tuple[int, ...] = (0,)) -> tuple[Prefix, ...]:
    return tuple(
        (extra, tokens)
        for extra in extras
        for length in range(shortest, longest + 1)
        for tokens in product(range(symbols), repeat=length)
    )


def calls(words: str, known: Collection[str] = CALLS.keys()) -> frozenset[str]:
    names = frozenset(words.split())
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"unknown calls {sorted(unknown)}; known: {', '.join(known)}")
    return names


def plain(value: Any) -> Any:
    return tuple(map(plain, value)) if isinstance(value, list) else value


def prompt(text: Any) -> Prefix:
    if not isinstance(text, str):
        return text  # type: ignore[no-any-return]
    extra, _, tokens = text.rpartition(":")
    return int(extra or 0), tuple(map(int, tokens))


def begun(begins: tuple[int, ...], ends: tuple[int, ...], extras: tuple[int, ...] = (0, 1)) -> tuple[Prefix, ...]:
    """Return prompts that begin with some tokens 0 and end with some tokens 1, with each of the extra keys."""
    return tuple((extra, (0,) * begin + (1,) * end) for extra, begin, end in product(extras, begins, ends))


def options(rest: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the options at the end of a row; `strings` and `begins` are prompts, and whether it is nightly is none."""
    made = {name: plain(value) for each in rest for name, value in each.items() if name != "nightly"}
    for name, prompts in (("strings", strings), ("begins", begun)):
        if name in made:
            made["prompts"] = prompts(*made.pop(name))
    return made | ({"prompts": tuple(map(prompt, made["prompts"]))} if "prompts" in made else {})


SIZES = 4
"""Parts of the blocks that a longest request leaves over (`sized`)."""

Layers = tuple[tuple[Kind, int], ...]

LAYERS: dict[str, tuple[type[Any], tuple[str, ...]]] = {
    "full": (Full, ()), "sliding": (Sliding, ("window",)), "sinks": (Sinks, ("sinks", "window")), "cross": (Cross, ()),
    "chunked": (Chunked, ("chunk",)), "ahead": (Ahead, ("drafts",)), "mamba": (Mamba, ("drafts",)),
}  # fmt: skip
"""The kinds of layers by their names, each with the names of its own lengths."""


def kind_and_lengths(kind: Kind) -> tuple[str, dict[str, int]]:
    name, own = next((name, own) for name, (each, own) in LAYERS.items() if isinstance(kind, each))
    return name, {length: getattr(kind, length) for length in own if getattr(kind, length)}


def layer_name(kind: Kind) -> str:
    name, lengths = kind_and_lengths(kind)
    return " ".join([name, *(f"{'+' if isinstance(kind, Mamba) else ''}{length}" for length in lengths.values())])


def layers(names: str) -> Layers:
    """Return layers by their short names and block sizes.

    >>> layers("sliding 3, block 2 + mamba +1, block 4")
    ((Sliding(window=3), 2), (Mamba(drafts=1), 4))
    """
    parts = [each.replace(" +", " ").split(", block ") for each in " ".join(names.split()).split(" + ")]
    words = [(kind.split(), int(size)) for kind, size in parts]
    return tuple([(LAYERS[name][0](*map(int, length)), size) for (name, *length), size in words])


def of_groups(groups: Layers, theme: str, blocks: int, tokens: int, words: str, **rest: Any) -> Scope:
    """Return a scope of one symbol: `blocks` with the null block, requests of up to `tokens` tokens, two at a time."""
    flags = {flag: rest.pop(flag) for flag in FLAGS if flag in rest}
    flags |= {
        "overlaps": bool(rest.get("in_flight")),
        "leases": "lease" in words.split(),
        "resizes": "resize" in words.split(),
    }
    config = configured(tuple(starmap(Group, groups)), blocks, rest.pop("max_model_len", tokens), **flags)
    options = {"slots": 2, "prompts": strings(1, 1, tokens - 1), "max_tokens": tokens, **rest}
    name = " + ".join(f"{layer_name(kind)}, block {size}" for kind, size in groups)
    return Scope(f"{name}: {theme}", config, calls=calls(words), **options)


def sized(scope: Scope, part: int) -> Scope:
    """Return a scope with the blocks that its longest request takes, and a part of the others; all if shared out."""
    config = scope.config
    states = sum(getattr(each.kind, "drafts", 0) for each in config.groups)
    least = 2 + states + sum(entries(span(config, each), config.max_model_len) for each in config.groups)
    least += scope.outside + config.watermark + len(config.groups) * (option(config, "unit") > 0)
    more = max(0, config.num_blocks - least) * part // SIZES
    blocks = config.num_blocks if floors_of(config) else min(config.num_blocks, least + more)
    return replace(scope, config=replace(config, num_blocks=blocks))


def profiles(pr: tuple[Any, ...], larger: tuple[Any, ...], *quick: str) -> dict[str, tuple[Any, ...]]:
    """Return the scopes of each profile: those of the first have names with one of some words."""
    some = tuple(each for each in pr if any(words in each.name for words in quick))
    return {"quick": some, "pr": pr, "nightly": pr + larger}


def of_row(names: str, *row: Any) -> Scope:
    """Return a scope from a row of the file: layers, theme, blocks, longest request, calls, options."""
    return of_groups(layers(names), *row[:4], **options(row[4:]))


FLAGS = (
    "caching", "eagle", "watermark", "settles", "tells", "counts", "retains", "floors", "guard", "keeps", "spares",
    "parts", "every", "key_lookahead", "unit", "last_prompts", "adapts", "most",
)  # fmt: skip

CHAPTERS: tuple[tuple[str, type[Chapter], tuple[str, ...]], ...] = (
    ("resizes", Resizable, ("most",)),
    ("keeps", Keeping, ("spares", "parts", "every")),
    ("retains", Retention, ("floors", "guard")),
    ("", LookAhead, ("key_lookahead",)),
    ("", LastPrompts, ("last_prompts",)),
    ("", Units, ("unit",)),
    ("leases", Lease, ()),
    ("tells", Events, ()),
    ("counts", Metrics, ()),
    ("adapts", Adaptive, ()),
)
"""Options that are chapters: the word that turns each on, if one of its settings does not, and its settings."""


def configured(groups: tuple[Group, ...], num_blocks: int, max_model_len: int, **options: Any) -> Config:
    """Return a configuration from all its options, those that a second reading adds among them."""
    chapters: tuple[Chapter, ...] = ()
    for word, kind, names in CHAPTERS:
        own = {name: options.pop(name) for name in names if name in options}
        chapters += (kind(**own),) * bool(options.pop(word, False) if word else any(own.values()))
    return Config(groups, num_blocks, max_model_len, chapters=chapters, **options)


def option(config: Config, name: str) -> Any:
    for word, kind, names in CHAPTERS:
        own = next((each for each in config.chapters if isinstance(each, kind)), None)
        if name in (word, *names):
            return own is not None if name == word else getattr(own or kind(), name)
    return getattr(config, name)


def is_quick(each: Scope) -> bool:
    """Return whether a scope of the `pr` profile is also one of `quick`: the uncached ones, and all of some layers."""
    return "uncached" in each.name or each.name.startswith(tuple(FILE["scopes"]["quick"]))


def large_scopes() -> tuple[Scope, ...]:
    """Return scopes too large to visit whole, for random histories; `calls` of a row are made beside those of all."""
    return tuple(large_of(part, *row) for part in FILE["histories"] for row in part["rows"])


def large_of(part: dict[str, Any], names: str, theme: str, blocks: int, own: dict[str, Any] | None = None) -> Scope:
    given = dict(own or {})
    words = f"{part['calls']} {given.pop('calls', '')}"
    return of_row(names, theme, blocks, part["longest"], words, part["options"], given)


def by_night(row: list[Any]) -> Any:
    """Return whether only long runs visit the scope of a row, or with how many blocks and tokens they do."""
    return row[5].get("nightly") if row[5:] else None


ROWS: list[list[Any]] = FILE["scopes"]["every"]
EVERY = tuple(
    [of_row(*row[:2], *(by_night(row) if isinstance(by_night(row), list) else row[2:4]), *row[4:]) for row in ROWS]
)
PR = tuple([of_row(*row) for row in ROWS if by_night(row) is not True])
PROFILES: dict[str, tuple[Scope, ...]] = {
    "quick": tuple(filter(is_quick, PR)),
    "pr": PR,
    "nightly": (*EVERY, *(of_row(*row) for row in FILE["scopes"]["larger"])),
}
POLICIES = tuple([of_row(*row) for row in FILE["scopes"]["policies"]])
"""The scopes of somebody's own policy, in every profile; random histories of the last."""


def derived() -> tuple[Scope, ...]:
    """Return scopes for managers of other makes: each kind of layer at every size, alone and beside another group."""
    rows, found = FILE["derived"], []
    for names in rows["layers"]:
        ((kind, size),) = layers(names)
        found += [of_row(names, *row) for row in rows["alone"][str(size)]]
        others = rows["partners"] if kind_and_lengths(kind)[0] in rows["partnered"] else ()
        found += [of_row(f"{each} + {names}", *rows["beside"]) for each in others]
    return (*found, *(of_row(*row) for row in rows["rows"]))


DERIVED = derived()
FOR_OTHERS: dict[str, tuple[Scope, ...]] = {
    "quick": (*DERIVED, *PROFILES["quick"]),
    "pr": (*DERIVED, *EVERY),
    "nightly": (*DERIVED, *PROFILES["nightly"]),
}
"""The same for managers of other makes: who cannot do all may need a scope whose events others of our scopes meet."""
