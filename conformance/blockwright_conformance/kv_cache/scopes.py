"""Scopes: small worlds that the explorer visits whole.

A scope fixes a manager's configuration, the prompts and tokens an engine may send, and which calls it makes. One symbol
suffices for laws of resources; laws of prefixes need two, or extra keys.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import product, starmap
from typing import Any

from blockwright_spec.manager.state import Config
from blockwright_spec.reads import Chunked, Cross, Full, Group, Kind, Mamba, Prefix, Sinks, Sliding, dead


@dataclass(frozen=True, slots=True)
class Scope:
    """A manager's configuration and everything an engine may do to it."""

    name: str
    config: Config
    slots: int
    """Requests that may run at once; each is an id that the engine uses again after the request has ended."""
    prompts: tuple[Prefix, ...]
    outputs: tuple[int, ...] = (0,)
    """Tokens that the model may put out."""
    max_tokens: int = 0
    """Tokens at which a request stops; never above `config.max_model_len`."""
    lookaheads: tuple[int, ...] = (0,)
    drafts: int = 0
    """Draft tokens that a step may carry beyond the known ones."""
    in_flight: int = 0
    """Steps that may be in flight at once."""
    encoder: int = 0
    """Encoder tokens of each request."""
    calls: frozenset[str] = field(default_factory=frozenset)
    """What else the engine does: see `CALLS`."""


CALLS = {
    "chunks": "prefill in chunks of every size, not only whole",
    "later": "put publication off and publish by a call of its own",
    "trim": "trim by a call of its own",
    "preempt": "take a running request's blocks and have it wait",
    "reset": "reset the prefix cache",
    "hold": "look up first and admit later, when the hit may have gone stale",
    "unasked": "admit without a lookup (prompt log-probabilities)",
    "adopt": "adopt a hit without computing a token",
    "batch": "grow all running requests in one call",
    "start": "say that a new step starts, where steps do not overlap",
    "load": "have tokens loaded from elsewhere, whole, in part or not at all",
    "whole": "admit a request only if all of it fits, and with blocks reserved for others",
    "plan": "plan each step before it, and commit the plan",
    "fork": "fork running requests, and take copies at any time",
    "explain": "ask of every prompt why its hit is no longer",
    "pin": "hold every block that is held once more while questions are asked, as a store does",
    "hint": "say what to keep and what to let go first, and what time it is",
    "misuse": "make calls that are wrong",
    "odd": "make more of a call than small scopes need: publish any part, fork to other tokens, ask for huge counts",
}


def strings(symbols: int, shortest: int, longest: int, extras: tuple[int, ...] = (0,)) -> tuple[Prefix, ...]:
    """Return all prompts of these lengths over an alphabet, with each of the extra keys (0: none)."""
    return tuple(
        (extra, tokens)
        for extra in extras
        for length in range(shortest, longest + 1)
        for tokens in product(range(symbols), repeat=length)
    )


def calls(words: str, known: Collection[str] = CALLS.keys()) -> frozenset[str]:
    """Return a set of calls from their names."""
    names = frozenset(words.split())
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"unknown calls {sorted(unknown)}; known: {', '.join(known)}")
    return names


Layers = tuple[tuple[Kind, int], ...]
"""Kinds of layers, each with its block size."""

LAYERS: dict[str, tuple[type[Any], tuple[str, ...]]] = {
    "full": (Full, ()),
    "sliding": (Sliding, ("window",)),
    "sinks": (Sinks, ("sinks", "window")),
    "chunked": (Chunked, ("chunk",)),
    "mamba": (Mamba, ("drafts",)),
    "cross": (Cross, ()),
}
"""The kinds of layers by their names, each with the names of its own lengths."""


def kind_and_lengths(kind: Kind) -> tuple[str, dict[str, int]]:
    """Return the name of a kind of layers, and its own lengths: sinks, a window, a chunk, drafts if there are any."""
    name, own = next((name, own) for name, (each, own) in LAYERS.items() if isinstance(kind, each))
    return name, {length: getattr(kind, length) for length in own if getattr(kind, length)}


def layer_name(kind: Kind) -> str:
    """Return the short name of a layer, with its window or chunk."""
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


def each_of(names: str) -> tuple[Layers, ...]:
    """Return the layers of several models, with semicolons between them."""
    return tuple(map(layers, names.split("; ")))


KINDS = layers(
    "full, block 1 + full, block 2 + sliding 1, block 2 + sliding 2, block 1 + sliding 2, block 2 + sliding 3, block 1"
    " + sliding 3, block 2 + chunked 2, block 1 + chunked 2, block 2 + chunked 4, block 2"
    " + mamba, block 1 + mamba, block 2"
)
"""Layers and block sizes: windows below, at and above a block, chunks of one and two blocks."""


def scope(kind: Kind, size: int, theme: str, blocks: int, tokens: int, words: str, **rest: Any) -> Scope:
    """Return a scope of one symbol: `blocks` with the null block, requests of up to `tokens` tokens, two at a time."""
    return of_groups(((kind, size),), theme, blocks, tokens, words, **rest)


def of_groups(groups: Layers, theme: str, blocks: int, tokens: int, words: str, **rest: Any) -> Scope:
    """Return a scope of several groups of layers, each a kind and a block size."""
    flags = {flag: rest.pop(flag) for flag in FLAGS if flag in rest}
    config = Config(tuple(starmap(Group, groups)), blocks, rest.pop("max_model_len", tokens), **flags)
    options = {"slots": 2, "prompts": strings(1, 1, tokens - 1), "max_tokens": tokens, **rest}
    if options.get("in_flight"):
        config = replace(config, overlaps=True)
    name = " + ".join(f"{layer_name(kind)}, block {size}" for kind, size in groups)
    return Scope(f"{name}: {theme}", config, calls=calls(words), **options)


FLAGS = ("caching", "eagle", "settles", "watermark", "tells", "retains", "floors", "guard")
"""Options of a scope that belong to its configuration."""


def of_kind(kind: Kind, size: int) -> Iterator[Scope]:
    """Yield the scopes of one layer and block size."""
    recycles = isinstance(kind, Mamba) or dead(kind, size, 2 * size, 0)
    long, odd = 2 + 2 * size, 2 * size + 1
    last, few = (odd, 4) if recycles else (odd + 1, 5)
    pair = ((0, (0,) * odd), (0, (0,) * size + (1,) * (odd - size)), (0, (1,) * odd))
    yield scope(kind, size, "life", few, odd if size > 1 or kind == Mamba() else long, "chunks trim reset preempt")
    yield scope(kind, size, "batches", few, long, "chunks batch")
    yield scope(kind, size, "put off", few - 1, odd, "chunks later trim")
    if not isinstance(kind, Chunked):
        yield scope(kind, size, "copies", 4, odd, "unasked adopt preempt")
    yield scope(kind, size, "held hits", 4, odd, "hold trim reset")
    yield scope(kind, size, "two symbols", 4, last, "reset", prompts=(*pair, (0, (0,) * size)), outputs=(0, 1))
    if isinstance(kind, Mamba):
        yield scope(kind, size, "new steps", 4, odd, "start chunks later")
    yield scope(kind, size, "wrong calls", 4, last, "misuse preempt", prompts=(*pair[1:], (0, (0,) * size)))
    yield scope(kind, size, "uncached", 4, long, "chunks preempt batch trim misuse", caching=False)
    if not isinstance(kind, Mamba):
        ahead = {"lookaheads": (0, 2), "drafts": 1, "max_model_len": long + 1}
        yield scope(kind, size, "drafts", few, long, "chunks batch", **ahead)
    if isinstance(kind, Full | Sliding):
        yield scope(kind, size, "eagle", few, long, "chunks adopt", eagle=True, lookaheads=(0, 1))


def of_all() -> Iterator[Scope]:
    """Yield scopes that need only be visited once: extra keys, three requests, a longest one that fills no block."""
    yield scope(Full(), 1, "extra keys", 4, 3, "unasked", prompts=strings(2, 2, 2, (0, 1, 2, 3)))
    yield scope(Full(), 1, "three requests", 5, 3, "chunks", slots=3)
    yield scope(Sliding(2), 1, "three requests", 5, 3, "chunks", slots=3)
    yield scope(Mamba(), 1, "three requests", 5, 3, "chunks", slots=3)
    yield scope(Full(), 3, "too long", 4, 5, "chunks", max_model_len=4)
    yield scope(Full(), 2, "plain, uncached", 4, 7, "chunks preempt", caching=False)  # asks for little
    yield scope(Full(), 2, "too long, uncached", 4, 4, "chunks batch", max_model_len=3, caching=False)
    yield scope(Full(), 4, "batches, counted in place", 4, 6, "chunks batch", prompts=strings(1, 4, 5))
    yield scope(Full(), 1, "pinned", 4, 3, "load pin", prompts=strings(1, 2, 2), max_model_len=4, in_flight=1)


def larger(kind: Kind, size: int) -> Iterator[Scope]:
    """Yield the scopes of one layer and block size that only long runs visit."""
    long, pair = 3 + 2 * size, strings(2, size, size + 1)
    yield scope(kind, size, "life, larger", 6, long, "chunks trim reset preempt")
    yield scope(kind, size, "batches, larger", 6, long, "chunks batch trim", slots=3)
    yield scope(kind, size, "held hits, larger", 5, long, "hold chunks trim reset preempt")
    yield scope(kind, size, "two symbols, larger", 5, 2 * size + 2, "reset chunks", prompts=pair, outputs=(0, 1))
    yield scope(kind, size, "wrong calls, larger", 5, 2 * size + 2, "chunks misuse preempt later", prompts=pair)


QUICK = (
    "sliding 3, block 1",
    "mamba, block 1: held",
    "full, block 1: in flight, wrong",
    "mamba +1, block 1: drafts in",
    "mamba +1, block 2: forks",
    "full, block 1: hints, both",
)


def is_quick(each: Scope) -> bool:
    """Return whether a scope of the `pr` profile is also one of `quick`: the uncached ones, and all of some layers."""
    return "uncached" in each.name or each.name.startswith(QUICK)


def large_scopes() -> tuple[Scope, ...]:
    """Return scopes too large to visit whole, for random histories: 39 blocks, seven requests of up to 44 tokens."""
    prompts = tuple(
        (extra, (0,) * same + (1,) * other) for extra in (0, 1) for same in (3, 8, 17) for other in (0, 1, 4, 9)
    )
    words = "chunks batch trim preempt reset later hold unasked misuse odd fork"
    rest = {"slots": 7, "prompts": prompts, "outputs": (0, 1), "max_model_len": 48}
    ahead = {"lookaheads": (0, 3), "drafts": 2}
    return (
        scope(Full(), 4, "histories", 40, 44, words, **rest, **ahead),
        scope(Full(), 4, "histories, uncached", 40, 44, words, **rest, **ahead, caching=False),
        scope(Full(), 3, "histories, eagle", 40, 44, words, **rest, **ahead, eagle=True),
        scope(Sliding(6), 4, "histories", 36, 44, words, **rest, **ahead),
        scope(Sliding(9), 2, "histories, eagle", 60, 44, words, **rest, **ahead, eagle=True),
        scope(Sliding(3), 4, "histories", 34, 44, words, **rest, **ahead),
        scope(Sinks(6, 7), 4, "histories", 40, 44, words, **rest, **ahead),
        scope(Chunked(8), 4, "histories", 36, 44, words, **rest, **ahead),
        scope(Chunked(3), 3, "histories", 36, 44, words, **rest, **ahead),
        scope(Mamba(), 4, "histories", 34, 44, words, **rest),
        scope(Mamba(), 4, "histories, uncached", 34, 44, words, **rest, caching=False),
        *large_hybrids(prompts),
    )


def large_hybrids(prompts: tuple[Prefix, ...]) -> Iterator[Scope]:
    """Yield large scopes of several groups, up to six, with steps in flight, drafts, loads and encoders."""
    words = "chunks batch trim preempt reset later hold unasked misuse odd load whole plan fork"
    rest: dict[str, Any] = {"slots": 5, "prompts": prompts, "outputs": (0, 1), "max_model_len": 48}
    windows = "sliding 6, block 4 + sliding 9, block 2 + sliding 3, block 4 + sliding 17, block 8 + sliding 1, block 4"
    six = layers(f"full, block 4 + {windows}")
    yield of_groups(six, "histories", 150, 44, words, **rest, watermark=2)
    yield of_groups(six, "histories, in flight", 150, 44, words, **rest, in_flight=2, drafts=2, settles=True)
    mixed = ((Full(), 4), (Chunked(8), 4), (Mamba(2), 8))
    yield of_groups(mixed, "histories", 60, 44, words, **rest, drafts=2)
    yield of_groups(mixed, "histories, in flight", 60, 44, words, **rest, in_flight=2, drafts=2)
    with_encoder = ((Full(), 4), (Cross(), 4))
    yield of_groups(with_encoder, "histories", 60, 44, words, **rest, encoder=9, caching=False)
    yield of_groups(((Sliding(30), 4), (Mamba(), 4)), "histories, in flight", 90, 44, words, **rest, in_flight=3)


GROUPS = each_of(
    "full, block 1 + sliding 2, block 1; full, block 2 + sliding 2, block 1; full, block 1 + chunked 2, block 2; "
    "full, block 1 + mamba, block 2; sliding 2, block 1 + mamba, block 1; "
    "full, block 1 + sliding 2, block 1 + mamba, block 2; full, block 2 + sliding 3, block 1 + chunked 2, block 2"
)
"""Hybrid models: two and three groups, with equal and unequal block sizes."""


def of_hybrid(groups: Layers) -> Iterator[Scope]:
    """Yield the scopes of several groups over one pool."""
    kinds, blocks = [kind for kind, _ in groups], 3 + 2 * len(groups)
    three, five = (sum(-(-tokens // size) for _, size in groups) for tokens in (3, 5))
    pair = ((0, (0, 0, 0, 0)), (0, (0, 0, 1, 1)))
    yield of_groups(groups, "life", blocks, 4, "chunks preempt plan", prompts=strings(1, 3, 3))
    yield of_groups(groups, "batches", blocks, 5, "batch", prompts=strings(1, 2, 4))
    if len(groups) == 2:
        yield of_groups(groups, "held hits", max(blocks - 1, 1 + three), 4, "hold trim", prompts=strings(1, 3, 3))
    yield of_groups(groups, "two symbols", max(blocks, five), 5, "adopt reset", prompts=pair, outputs=(0, 1))
    yield of_groups(groups, "loads", blocks, 4, "load preempt", prompts=pair[:1], max_model_len=5)
    if not any(isinstance(kind, Chunked) for kind in kinds):
        room = 1 + sum(-(-5 // size) for _, size in groups)
        yield of_groups(groups, "eagle", room, 5, "adopt", eagle=True, prompts=strings(1, 4, 5))


TIMED = each_of(
    "full, block 1; full, block 2; sliding 2, block 1; chunked 2, block 1; mamba, block 1; "
    "full, block 1 + sliding 2, block 1; full, block 1 + mamba, block 1"
)
"""Layers whose steps are in flight: every kind alone, and two hybrids."""


def of_time(groups: Layers) -> Iterator[Scope]:
    """Yield the scopes of steps in flight, loads, and admission."""
    blocks, few = 3 + 2 * len(groups), {"prompts": strings(1, 2, 2), "max_model_len": 4}
    for name, settles in (("eager", False), ("settled", True)):
        own = {"settles": settles, **few}
        yield of_groups(groups, f"in flight, {name}", blocks, 3, "preempt", in_flight=1, **own)
        own = {"settles": settles, "prompts": strings(1, 2, 2), "max_model_len": 5, "slots": 1}
        yield of_groups(groups, f"two in flight, {name}", blocks, 4, "preempt", in_flight=2, drafts=1, **own)
    words = "misuse trim later load"
    yield of_groups(groups, "in flight, wrong calls", blocks, 3, words, in_flight=1, drafts=1, slots=1, **few)
    yield of_groups(groups, "in flight, batches", blocks, 3, "batch", in_flight=1, **few)
    yield of_groups(groups, "loading", blocks, 3, "load preempt", prompts=strings(1, 3, 3), max_model_len=4)
    yield of_groups(groups, "admission", blocks, 4, "whole plan chunks", prompts=strings(1, 1, 3), watermark=1)
    if not any(isinstance(kind, Mamba) for kind, _ in groups):
        own = {"prompts": strings(1, 3, 3), "lookaheads": (0, 1), "max_model_len": 5, "slots": 3 - len(groups)}
        yield of_groups(groups, "admission with lookahead", blocks, 4, "whole chunks load", **own)


def of_three() -> Iterator[Scope]:
    """Yield the scopes of three groups, of which the third must be dealt with as the others are."""
    chunks = tuple((Chunked(chunk), 1) for chunk in (4, 3, 2))  # with nothing cached each shortens the hit, thrice over
    yield of_groups(chunks, "asked thrice", 30, 10, "", prompts=((0, (0,) * 9),), slots=1)
    yield of_groups(((Full(), 2), (Full(), 2), (Sliding(3), 2)), "forks", 10, 3, "fork", prompts=strings(1, 1, 1))
    groups = layers("full, block 2 + full, block 2 + sliding 3, block 1")
    yield of_groups(groups, "uncached", 9, 4, "trim", prompts=strings(1, 1, 1), caching=False, slots=1)
    yield of_groups(groups, "loading", 10, 5, "load", prompts=strings(1, 3, 4), slots=1)


def of_sinks() -> Iterator[Scope]:
    """Yield the scopes of sinks, which may end inside a block: alone, and beside full layers."""
    one: dict[str, Any] = {"prompts": strings(1, 2, 4), "slots": 1}
    yield scope(Sinks(1, 2), 1, "life", 4, 4, "chunks trim reset preempt")
    yield scope(Sinks(1, 2), 2, "life", 5, 6, "chunks trim preempt", prompts=strings(1, 3, 5))
    yield scope(Sinks(3, 1), 2, "put off", 5, 7, "chunks later trim misuse", prompts=strings(1, 5, 6))
    yield scope(Sinks(2, 1), 1, "drafts", 6, 5, "chunks batch", **one, lookaheads=(0, 2), drafts=1)
    yield scope(Sinks(1, 2), 1, "admission", 5, 6, "whole plan chunks explain", **one)
    yield scope(Sinks(1, 1), 1, "hints", 4, 4, "hint trim", prompts=strings(1, 3, 3), slots=1, retains=True)
    both = layers("full, block 2 + sinks 1 2, block 1")
    yield of_groups(both, "life", 8, 4, "chunks preempt plan explain", prompts=strings(1, 4, 4), max_model_len=5)
    yield of_groups(both, "loads", 8, 4, "load preempt", **{**one, "prompts": strings(1, 4, 4)}, in_flight=1)
    yield of_groups(both, "eagle", 9, 5, "adopt fork", prompts=strings(1, 4, 5), eagle=True)


def of_explanations() -> Iterator[Scope]:
    """Yield the scopes in which the manager is asked why a hit is no longer."""
    pair = ((0, (0,) * 5), (0, (0, 0, 1, 1, 1)))
    for groups in GROUPS[:2] + GROUPS[3:4] + GROUPS[5:6]:
        yield of_groups(groups, "explained", 2 + 5 * len(groups), 5, "explain", prompts=pair, max_model_len=5)
    yield of_groups(GROUPS[0], "explained, eagle", 11, 5, "explain", prompts=pair, max_model_len=5, eagle=True)
    for kind, size in layers("full, block 2 + sliding 3, block 1 + chunked 2, block 2 + mamba, block 1"):
        yield scope(kind, size, "explained", 4, 4, "explain reset chunks", prompts=strings(1, 2, 3))
    yield scope(Full(), 1, "explained, uncached", 4, 3, "explain", caching=False)


def of_drafts() -> Iterator[Scope]:
    """Yield the scopes of the states that recurrent layers keep for drafts, and of encoders."""
    for groups in each_of("mamba +1, block 1; mamba +2, block 2; full, block 1 + mamba +1, block 2"):
        few: dict[str, Any] = {"prompts": strings(1, 2, 2), "max_model_len": 5, "drafts": 2, "lookaheads": (0, 1)}
        yield of_groups(groups, "drafts", 8, 4, "preempt misuse", **few, slots=1)
        yield of_groups(groups, "two with drafts", 8, 3, "batch", **{**few, "drafts": 1, "max_model_len": 4})
        both = {**few, "prompts": strings(1, 1, 2)}
        yield of_groups(groups, "drafts, uncached", 8, 4, "misuse", **both, caching=False, slots=1)
        kept = {**few, "drafts": 1}
        yield of_groups(groups, "drafts in flight", 6, 3, "misuse", **kept, in_flight=2, slots=1)
    # Drafts that are said to hold are not taken back.
    few = {"prompts": strings(1, 1, 1), "max_model_len": 6, "drafts": 2, "slots": 1}
    yield scope(Full(), 2, "drafts put off", 4, 5, "later misuse", **few, outputs=(0, 1))
    for kind in (Sliding(2), Mamba(2)):
        yield scope(kind, 2, "drafts put off", 5, 5, "later trim misuse", **few)
        yield scope(kind, 2, "drafts put off, uncached", 5, 5, "later trim misuse", **few, caching=False)
    few = {"prompts": strings(1, 1, 1), "max_model_len": 6, "drafts": 3, "slots": 1}  # more drafts than a block is long
    yield of_groups(((Full(), 1), (Mamba(3), 2)), "drafts, full pool", 10, 4, "preempt", **few)
    for size in (1, 2):
        groups = ((Full(), 1), (Cross(), size))
        few = {"prompts": strings(1, 1, 3), "max_model_len": 5, "encoder": 3, "caching": False}
        yield of_groups(groups, "encoder", 9, 4, "chunks preempt misuse batch", **few)


def of_events() -> Iterator[Scope]:
    """Return the scopes in which what can be found is reported: to who listens from the start, or joins at any time.

    Two symbols and short blocks, so that prefixes are evicted, published again, and lose their parents; extra keys that
    tokens do not show.
    """
    pair = ((0, (0, 0)), (0, (0, 1)))
    yield scope(Full(), 1, "events", 4, 3, "reset preempt", prompts=pair, outputs=(0, 1), tells=True)
    yield scope(Full(), 1, "events, extra keys", 4, 3, "", prompts=strings(1, 2, 2, (0, 1, 2, 3)), tells=True)
    for kind, size in ((Sliding(2), 1), (Sliding(3), 2), (Chunked(2), 1), (Mamba(), 1)):
        yield scope(kind, size, "events", 4, 1 + 2 * size, "chunks trim preempt", tells=True)
    yield of_groups(GROUPS[1], "events", 8, 4, "preempt reset", prompts=strings(1, 2, 3), tells=True)
    yield of_groups(GROUPS[3], "events", 8, 4, "chunks", prompts=strings(1, 2, 3), tells=True)
    few: dict[str, Any] = {"prompts": strings(1, 2, 2), "max_model_len": 4, "tells": True}
    yield of_groups(TIMED[0], "events, in flight", 4, 3, "preempt load", in_flight=1, **few)
    yield of_groups(TIMED[0], "events, settled", 4, 3, "preempt", in_flight=1, settles=True, **few)
    yield of_groups(((Full(), 2),), "events, forks", 4, 3, "fork", prompts=strings(1, 1, 1), outputs=(0, 1), tells=True)


def of_retention() -> Iterator[Scope]:
    """Yield the scopes in which candidates are told apart: two priorities, two tenants, guarded ones, at every time."""
    few: dict[str, Any] = {"prompts": ((0, (0, 0)), (0, (0, 1))), "retains": True, "slots": 1}
    one: dict[str, Any] = {"prompts": strings(1, 2, 3), "retains": True, "slots": 1}
    yield scope(Full(), 1, "hints, two run", 4, 2, "hint", prompts=strings(1, 2, 2), retains=True)
    yield scope(Full(), 1, "hints", 4, 2, "hint misuse", **few)
    yield scope(Full(), 1, "hints, both at once", 4, 2, "hint odd misuse", **{**few, "prompts": strings(1, 2, 2)})
    yield scope(Full(), 1, "hints, guarded", 4, 2, "hint", **few, guard=2)
    yield scope(Full(), 2, "hints", 4, 5, "hint preempt reset", **{**one, "prompts": strings(1, 3, 5)})
    yield scope(Sliding(2), 1, "hints", 4, 3, "hint trim", **one)
    yield scope(Mamba(), 1, "hints", 5, 3, "hint", **one)
    yield of_groups(((Full(), 2), (Sliding(2), 1)), "hints", 6, 3, "hint", **one)
    yield scope(Full(), 1, "hints, in flight", 4, 2, "hint preempt load", in_flight=1, **few)
    both: dict[str, Any] = {"prompts": ((1, (0, 0)), (4, (0, 0)), (0, (0, 0))), "retains": True}
    yield scope(Full(), 1, "shares", 5, 3, "", **both, floors=((1, 2), (4, 2)))
    yield scope(Full(), 1, "shares, hints", 5, 2, "hint", **both, floors=((1, 2), (4, 1)), slots=1)
    yield scope(Full(), 1, "shares, three run", 5, 2, "", **both, floors=((1, 1), (4, 2)), slots=3, guard=1)


FORKED = each_of(
    "full, block 2; sliding 3, block 2; chunked 2, block 2; mamba, block 2; "
    "full, block 2 + sliding 2, block 1; full, block 2 + mamba, block 2"
)
"""Layers whose requests are forked: every kind alone, and two hybrids."""


def of_forks(groups: Layers) -> Iterator[Scope]:
    """Yield the scopes of forks: two symbols, so that requests part."""
    blocks, one = 1 + 3 * len(groups), {"prompts": strings(1, 1, 1)}
    yield of_groups(groups, "forks", blocks, 3, "fork", **one, outputs=(0, 1)[: 3 - len(groups)])
    yield of_groups(
        groups, "forks, uncached", blocks, 4, "fork", prompts=strings(1, 3, 3), outputs=(0, 1), caching=False
    )
    yield of_groups(groups, "forks of forks", blocks + 1, 4, "fork batch plan", prompts=strings(1, 3, 3), slots=3)
    if isinstance(groups[-1][0], Full | Mamba):
        yield of_groups(groups, "forks in flight", blocks - 1, 3, "fork", **one, in_flight=1)
    if not any(isinstance(kind, Mamba) for kind, _ in groups):
        own: dict[str, Any] = {"prompts": strings(1, 3, 3), "max_model_len": 5, "lookaheads": (0, 2), "drafts": 1}
        trims = " trim" if len(groups) == 1 else ""
        yield of_groups(groups, "forks with drafts", blocks, 4, "fork later" + trims, **own)


def of_forked_states() -> Iterator[Scope]:
    """Yield the scopes of forks of what may not be forked, of requests with states of drafts, and with an encoder."""
    few: dict[str, Any] = {"prompts": strings(1, 2, 2), "max_model_len": 5}
    yield scope(Mamba(1), 2, "forks with drafts", 6, 5, "fork", **few, drafts=1)
    yield of_groups(((Full(), 2), (Mamba(1), 2)), "forks with drafts", 9, 4, "fork", **few, drafts=1)
    one: dict[str, Any] = {"prompts": strings(1, 2, 2), "max_model_len": 4}
    yield scope(Mamba(1), 2, "forks, wrong calls", 6, 3, "fork misuse trim", **one, drafts=1)
    yield of_groups(((Full(), 2),), "forks in flight, loads", 4, 3, "fork load pin", **one, in_flight=1)
    yield of_groups(((Full(), 2), (Cross(), 2)), "forks, encoder", 7, 4, "fork", **few, encoder=3, caching=False)


SPARED: dict[str, str] = {
    "hints": "full, block 2 + sliding 2, block 1; mamba, block 1; sliding 2, block 1",
    "hints, two run": "full, block 1",
    "hints, in flight": "full, block 1",
    "shares, hints": "full, block 1",
    "events": "full, block 1 + mamba, block 2; sliding 3, block 2",
    "batches": "chunked 2, block 1; chunked 2, block 2; chunked 4, block 2; full, block 1 + sliding 2, block 1; full, "
    "block 1; full, block 2 + sliding 2, block 1; full, block 2; sliding 1, block 2; sliding 2, block 1; "
    "sliding 2, block 2; sliding 3, block 1; sliding 3, block 2",
    "life": "chunked 2, block 1; chunked 2, block 2; chunked 4, block 2; full, block 1 + sliding 2, block 1; full, "
    "block 1; full, block 2 + sliding 2, block 1; full, block 2; mamba, block 1; mamba, block 2; sliding 1, "
    "block 2; sliding 2, block 1; sliding 2, block 2; sliding 3, block 1; sliding 3, block 2",
    "loading": "chunked 2, block 1",
    "explained": "chunked 2, block 2; full, block 1 + mamba, block 2; full, block 2 + sliding 2, block 1; full, "
    "block 2; mamba, block 1; sliding 3, block 1",
    "put off": "chunked 2, block 2; full, block 2; sliding 2, block 2; sliding 3, block 1; sliding 3, block 2",
    "two with drafts": "full, block 1 + mamba +1, block 2",
    "loads": "full, block 1 + sliding 2, block 1",
    "copies": "full, block 1; sliding 2, block 1",
    "explained, uncached": "full, block 1",
    "forks": "full, block 2 + mamba, block 2; full, block 2 + sliding 2, block 1",
    "drafts": "full, block 2; sliding 3, block 1",
    "forks in flight": "full, block 2",
    "too long": "full, block 3",
    "held hits": "sliding 2, block 1",
    "wrong calls": "sliding 2, block 1",
    "eagle": "sliding 3, block 1",
    "two symbols": "sliding 3, block 1",
    "uncached": "sliding 3, block 1",
}
"""Layers, by theme, that only long runs visit: other scopes of the theme are smaller, and meet the same events."""


def is_spared(each: Scope) -> bool:
    """Return whether only long runs visit a scope."""
    layers, _, theme = each.name.partition(": ")
    return layers in SPARED.get(theme, "").split("; ")


EVERY: tuple[Scope, ...] = (
    *(each for kind, size in KINDS for each in of_kind(kind, size)),
    *of_all(),
    *(each for groups in GROUPS for each in of_hybrid(groups)),
    *(each for groups in TIMED for each in of_time(groups)),
    *of_three(),
    *of_sinks(),
    *of_drafts(),
    *of_explanations(),
    *of_events(),
    *of_retention(),
    *(each for groups in FORKED for each in of_forks(groups)),
    *of_forked_states(),
)
PR: tuple[Scope, ...] = tuple(each for each in EVERY if not is_spared(each))
PROFILES: dict[str, tuple[Scope, ...]] = {
    "quick": tuple(each for each in PR if is_quick(each)),
    "pr": PR,
    "nightly": (*EVERY, *(each for kind, size in KINDS for each in larger(kind, size))),
}
"""The scopes of each profile."""
FOR_OTHERS: dict[str, tuple[Scope, ...]] = {**PROFILES, "pr": EVERY}
"""The same for managers of other makes: who cannot do all may need a scope whose events others of our scopes meet."""
