"""Laws of a prefix tree under an engine: what must hold after each action, and of each action.

What is readable is derived from the specification's one function `reads`: a hit, and what a running request holds, are
judged by `hit_ends`, `longest_hit` and `needed`. The ids are the specification's where the
statement is (`laws.toml`).
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from blockwright_spec.reads import Prefix, cut, hit_ends, longest_hit, needed

from .sglang_radix import Page, RadixEngine, Tokens

Broken = Iterator[tuple[str, str]]


class Seen(NamedTuple):
    """What is seen of a tree and its engine between two actions."""

    pages: dict[Tokens, Page]
    free: tuple[tuple[int, ...], ...]
    sizes: tuple[tuple[int, int], ...]


def seen(world: RadixEngine) -> Seen:
    core = world.cache.tree_core
    sizes = (
        (core.component_evictable_size(each), core.component_protected_size(each))
        for each in world.cache.tree_components
    )
    return Seen(world.pages(), world.free(), tuple(sizes))


def state_laws(world: RadixEngine, shown: Seen) -> Broken:
    yield from slots_held_once(world, shown)
    yield from contents(world, shown)
    yield from shape(world, shown)
    yield from readable(world)
    if set(world.mirror.values()) != set(shown.pages) or world.not_news:
        wrong = sorted(set(world.mirror.values()) ^ set(shown.pages))
        yield "EV-1", f"known or cached, not both: {wrong}; no news: {world.not_news}"
    try:
        world.cache.tree_core.sanity_check([], [])
    except AssertionError as error:
        yield "TREE-5", str(error).replace("\n", "; ")


def slots_held_once(world: RadixEngine, shown: Seen) -> Broken:
    """REF-1: count the holders of every slot of every kind."""
    scope = world.scope
    own = [slot for run in world.runs.values() for slot in run.table[run.tree :]]
    full = [slot for page in shown.pages.values() for slot in page.full]
    kinds = [("slots", scope.slots, shown.free[0], full, own)]
    if scope.window is not None:
        tree = [slot for page in shown.pages.values() for slot in page.window or ()]
        kept = [world.window_slot(slot) for run in world.runs.values() for slot in run.table[max(run.tree, run.dead) :]]
        kinds.append(("slots of the window", scope.window_slots, shown.free[1], tree, kept))
    if scope.states:
        tree = [page.state for page in shown.pages.values() if page.state is not None]
        kept = [run.state for run in world.runs.values() if run.state is not None]
        kinds.append(("states", scope.states, shown.free[2], tree, kept))
    for what, size, free, tree, kept in kinds:
        first = scope.page if what != "states" else 1
        held = Counter([*free, *tree, *kept])
        if held != Counter(range(first, first + size)):
            wrong = {slot: held[slot] for slot in range(first, first + size) if held[slot] != 1}
            yield "REF-1", f"{what}, times held: {wrong}; free {free}, in the tree {tree}, of requests {kept}"


def contents(world: RadixEngine, shown: Seen) -> Broken:
    """PUB-1: what is cached is what it is found as."""
    ghosts, size = world.ghosts, world.scope.page
    for tokens, page in shown.pages.items():
        for at in range(size):
            prefix = tokens[: len(tokens) - size + at + 1]
            if ghosts.full.get(page.full[at]) != prefix:
                yield "PUB-1", f"slot {page.full[at]} is found as {prefix}, holds {ghosts.full.get(page.full[at])}"
            if page.window is None:
                continue
            if ghosts.window.get(page.window[at]) != prefix:
                yield (
                    "PUB-1",
                    f"window {page.window[at]} is found as {prefix}, holds {ghosts.window.get(page.window[at])}",
                )
            if world.window_slot(page.full[at]) != page.window[at]:
                yield (
                    "PUB-1",
                    f"slot {page.full[at]}: window {page.window[at]}, mapped to {world.window_slot(page.full[at])}",
                )
        if page.state is not None and ghosts.state.get(page.state) != tokens:
            yield "PUB-1", f"state {page.state} is found as {tokens}, holds {ghosts.state.get(page.state)}"


def shape(world: RadixEngine, shown: Seen) -> Broken:
    """TREE-1, TREE-2, TREE-3: prefixes, sizes, locks."""
    size = world.scope.page
    for tokens, page in shown.pages.items():
        above = shown.pages.get(tokens[:-size])
        if len(tokens) > size and (above is None or above.locks[0] < page.locks[0]):
            yield "TREE-1", f"{tokens} is cached, its prefix is not, or is locked less often: {above}"
    counted = [[0, 0] for _ in world.cache.tree_components]
    for page in shown.pages.values():
        parts = [len(page.full), *([len(page.window or ())] if world.scope.window is not None else [])]
        parts += [int(page.state is not None)] if world.scope.states else []
        for at, part in enumerate(parts):
            counted[at][page.locks[at] > 0] += part
    if [tuple(each) for each in counted] != list(shown.sizes):
        yield "TREE-2", f"evictable and protected: expected {counted}, kept {shown.sizes}"
    nodes = {node.id: tokens for tokens, node in world.nodes()}
    ends = [nodes.get(run.lock.node, ()) for run in world.runs.values()]
    for tokens, page in shown.pages.items():
        holders = sum(end[: len(tokens)] == tokens for end in ends)
        if page.locks[0] != holders:
            yield "TREE-3", f"{tokens}: {holders} requests hold it, locked {page.locks[0]} times"


def readable(world: RadixEngine) -> Broken:
    """READ-1: what running requests read is there."""
    for name, run in world.runs.items():
        tokens = world.tokens(name)
        for group, layer in enumerate(world.scope.groups):
            for position in needed(layer.kind, run.computed):
                prefix = tokens[: position + 1]
                if group == 0:
                    held = world.ghosts.full.get(run.table[position])
                elif world.scope.window is not None and group == 1:
                    held = world.ghosts.window.get(world.window_slot(run.table[position]))
                else:
                    held = None if run.state is None else world.ghosts.state.get(run.state)
                if held != prefix:
                    yield "READ-1", f"request {name}, layers {group}: position {position} reads {held}"


def hit_laws(world: RadixEngine, shown: Seen, tokens: Tokens, length: int, table: Tokens) -> Broken:
    """HIT-1, HIT-2: of a lookup of a prompt but its last token."""
    groups, prefix = world.scope.groups, (0, (*tokens, -1))
    size = world.scope.page

    def found(group: int, at: Prefix) -> bool:
        page = shown.pages.get(at[1])
        parts = (
            () if page is None else (page.full, *([page.window] if world.scope.window is not None else []), page.state)
        )
        return bool(parts) and parts[group if group < len(parts) else -1] is not None

    for group, layer in enumerate(groups):
        for end in hit_ends(layer, length, False):
            if not found(group, cut(prefix, end)):
                yield "HIT-1", f"{tokens}: hit {length}, layers {group}: {tokens[:end]} is not cached"
    for position in range(length):
        if world.ghosts.full.get(table[position]) != tokens[: position + 1]:
            yield (
                "HIT-1",
                f"{tokens}: slot {table[position]} at {position} holds {world.ghosts.full.get(table[position])}",
            )
    if length % size or length > len(tokens):
        yield "HIT-1", f"{tokens}: hit {length} is not of whole pages of it"
    if length < (longest := longest_hit(groups, found, prefix)):
        yield "HIT-2", f"{tokens}: hit {length}, longest {longest}"


def unchanged(before: Seen, after: Seen) -> Broken:
    """LOOKUP-1: nodes may be split, nothing else may change."""
    if (before.free, before.sizes) != (after.free, after.sizes) or before.pages != after.pages:
        lost = {
            tokens: (page, after.pages.get(tokens))
            for tokens, page in before.pages.items()
            if after.pages.get(tokens) != page
        }
        yield "LOOKUP-1", f"free {before.free} -> {after.free}, sizes {before.sizes} -> {after.sizes}, pages {lost}"


def kept(before: Seen, after: Seen) -> Broken:
    """STEP-2: every page that was there is there, with all it had; slots may be others."""
    for tokens, page in before.pages.items():
        now = after.pages.get(tokens)
        if (
            now is None
            or (page.window is not None and now.window is None)
            or (page.state is not None and now.state is None)
        ):
            yield "STEP-2", f"{tokens}: {page} became {now}"


def evicted(
    before: Seen, after: Seen, asked: tuple[int, ...], reported: tuple[int, ...], kinds: tuple[int, ...]
) -> Broken:
    """TREE-4: what eviction did; `kinds` are the components' places in what was asked and told."""
    for at, kind in enumerate(kinds):
        gone = sum(amounts(page)[kind] for page in before.pages.values()) - sum(
            amounts(page)[kind] for page in after.pages.values()
        )
        if gone != reported[kind]:
            yield "TREE-4", f"kind {kind}: says {reported[kind]}, took {gone}"
        if gone < min(asked[kind], before.sizes[at][0]):
            yield "TREE-4", f"kind {kind}: asked {asked[kind]}, evictable {before.sizes[at][0]}, took {gone}"
    for tokens, page in before.pages.items():
        now = after.pages.get(tokens)
        parts = (page.full, page.window, page.state)
        left = (None, None, None) if now is None else (now.full, now.window, now.state)
        for at, kind in enumerate(kinds):
            if page.locks[at] and left[kind] != parts[kind]:
                yield "TREE-4", f"{tokens} is locked {page.locks}: {page} became {now}"


def amounts(page: Page) -> tuple[int, int, int]:
    """Return what of a page counts: slots, slots of the window, states."""
    return len(page.full), len(page.window or ()), int(page.state is not None)
