"""What the events of one rank of an engine say: which blocks there are, and the tree of the prefixes that they end.

A hash stands for a prefix, whatever group of layers or medium has a block of it. So there is one tree::

    children  hash of a prefix -> what follows it, and the hash of the longer prefix
    blocks    group and medium -> hash -> tokens of the block, negative where the event named none

A prefix stays in the tree when its blocks are gone, as long as blocks behind it are known: windows and states are hit
there. Where the tree has doubled, what leads to no block is swept out of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from blockwright.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, CacheLayout, KVCacheEvent

Key = tuple[BlockHash, int, str]
"""What can be found: a hash, in a group of layers, on a medium."""
Rest = tuple[bytes, object, str | None, tuple[tuple[str, int], ...]]
"""What decides a block's content beside its tokens: those that its hash looks ahead at, adapter, salt, items."""
Own = bytes | tuple[bytes, Rest]
"""What a block adds to the prefix before it: its tokens alone, or with the rest."""
Child = tuple[Own, BlockHash] | dict[Own, tuple[BlockHash, ...]]
"""What follows a prefix: mostly one thing."""


class Step(NamedTuple):
    """What an event changes.

    Attributes:
        key: of the block; None if all of a medium is gone.
        size: tokens in the block that is stored; 0 if it is removed.
        edge: its parent, and its own content below it; None where these are not known.
        medium: where it is; None for every medium.
    """

    key: Key | None
    size: int = 0
    edge: tuple[BlockHash | None, Own] | None = None
    medium: str | None = None


class Changes(NamedTuple):
    """What a batch changes.

    Attributes:
        is_cleared: everything known before is gone.
        blocks: by key, how many copies there are after it, and tokens in each; None where there is no copy.
        steps: the changes in their order.
    """

    is_cleared: bool
    blocks: dict[Key, tuple[int, int] | None]
    steps: list[Step]


def rest_of(ahead: bytes, adapter: object, salt: str | None, items: tuple[tuple[str, int], ...]) -> Rest | None:
    """Return what decides a content beside its tokens, None if nothing does."""
    return (ahead, adapter, salt, items) if ahead or items or adapter is not None or salt is not None else None


def step_of(event: KVCacheEvent) -> Step:
    """Return the change of an event.

    A salt decides the hash of the first block, and with it those of all blocks behind it, so that it is compared there
    alone: vLLM sends it with no other block. The wire has no lengths of items.

    Raises:
        AttributeError, TypeError: it is no event, or a field cannot be a key.
    """
    if isinstance(event, AllBlocksCleared):
        return Step(None, medium=event.medium)
    if not isinstance(event, BlockStored | BlockRemoved):
        raise TypeError(f"{type(event).__name__} is no event")
    key = (event.block_hash, event.group_id, event.medium)
    if isinstance(event, BlockRemoved):
        hash(key)
        return Step(key)
    if not event.tokens:
        hash(key)
        return Step(key, -event.block_size)
    parent, adapter = event.parent_block_hash, event.lora_name if event.lora_name is not None else event.lora_id
    items = tuple([(name, offset) for name, offset, _ in event.mm_items]) if event.mm_items else ()
    rest = rest_of(event.lookahead, adapter, event.cache_salt if parent is None else None, items)
    edge = (parent, event.tokens if rest is None else (event.tokens, rest))
    hash((key, edge))
    return Step(key, event.block_size, edge)


class KnownBlocks:
    """The blocks of one rank.

    Attributes:
        blocks: tokens of each block, by group and medium, and then by hash.
        sizes: the sizes of blocks that were told of, by group and medium.
        children: the tree.
        ways: tokens of a block and behind it, of all that was told of.
        layout: what a hit needs, as far as the engine says it; kinds: the same of single groups.
    """

    def __init__(self) -> None:
        """Know nothing."""
        self.blocks: dict[tuple[int, str], dict[BlockHash, int]] = {}
        self.sizes: dict[tuple[int, str], set[int]] = {}
        self.children: dict[BlockHash | None, Child] = {}
        self.ways: set[tuple[int, int]] = set()
        self.layout: CacheLayout | None = None
        self.kinds: dict[int, tuple[str, int | None]] = {}
        self._copies: dict[Key, int] = {}  # where there are several
        self._num_edges = 0
        self._most_edges = 64

    def copy(self) -> KnownBlocks:
        """Return an independent copy. O(index)."""
        twin = KnownBlocks()
        twin.blocks = {place: hashes.copy() for place, hashes in self.blocks.items()}
        twin.sizes = {place: sizes.copy() for place, sizes in self.sizes.items()}
        twin.children = {hash_: dict(each) if isinstance(each, dict) else each for hash_, each in self.children.items()}
        twin.ways, twin.layout, twin.kinds = self.ways.copy(), self.layout, self.kinds.copy()
        twin._copies, twin._num_edges, twin._most_edges = self._copies.copy(), self._num_edges, self._most_edges
        return twin

    def __len__(self) -> int:
        """Return how many blocks are known, copies not counted."""
        return sum(map(len, self.blocks.values()))

    def all_keys(self) -> Iterable[Key]:
        """Yield what can be found."""
        return ((each, *place) for place, hashes in self.blocks.items() for each in hashes)

    def worked_out(self, steps: list[Step], tells_hits: bool) -> Changes:
        """Return what a batch changes; nothing changes yet. O(steps)."""
        is_cleared, changes = False, dict[Key, tuple[int, int] | None]()
        for key, size, _, medium in steps:
            if key is None:
                if medium is None:
                    is_cleared = True
                    changes.clear()
                elif not is_cleared:
                    changes.update(dict.fromkeys(each for each in self.all_keys() if each[2] == medium))
                changes.update(dict.fromkeys(each for each in changes if each[2] == medium))
                continue
            now = changes[key] if key in changes else None if is_cleared else self._now(key)
            if size == 0:
                changes[key] = None if now is None or now[0] == 1 else (now[0] - 1, now[1])
            elif now is None or tells_hits:
                changes[key] = (1, size)
            elif now[1] < 0 < size:  # the same block, which is better known now
                changes[key] = (now[0], size)
            else:
                changes[key] = (now[0] + 1, max(now[1], size))
        return Changes(is_cleared, changes, steps)

    def _now(self, key: Key) -> tuple[int, int] | None:
        size = self.blocks.get(key[1:], {}).get(key[0])
        return None if size is None else (self._copies.get(key, 1), size)

    def put_in(self, changes: Changes) -> None:
        """Change to what was worked out. It may be done twice, after an interrupt. law: CALL-1."""
        if changes.is_cleared:
            self.blocks, self._copies = {}, {}
        for key, now in changes.blocks.items():
            hashes = self.blocks.setdefault(key[1:], {})
            if now is None:
                hashes.pop(key[0], None)
            else:
                hashes[key[0]] = now[1]
                self.sizes.setdefault(key[1:], set()).add(abs(now[1]))
            if now is not None and now[0] > 1:
                self._copies[key] = now[0]
            else:
                self._copies.pop(key, None)
        for told in changes.steps:
            if told.key is not None and told.edge is not None:
                self._grow(told.edge, told.key[0], told.size)
        if self._num_edges > self._most_edges:
            self._sweep()

    def _grow(self, edge: tuple[BlockHash | None, Own], block_hash: BlockHash, size: int) -> None:
        """Note what follows a prefix, and its hash then. Another hash of the same content stays."""
        parent, own = edge
        child = self.children.get(parent)
        # Most prefixes have one child, for which a tuple takes a fraction of a dict's memory.
        if child is None:
            self.children[parent] = (own, block_hash)
        elif isinstance(child, tuple):
            if child == (own, block_hash):
                return
            self.children[parent] = child = {child[0]: (child[1],)}
        if isinstance(child, dict):
            known = child.get(own, ())
            if block_hash in known:
                return
            child[own] = (*known, block_hash)
        self.ways.add((size, 0 if isinstance(own, bytes) else len(own[1][0]) // 4))
        self._num_edges += 1

    def _sweep(self) -> None:
        """Keep the prefixes that blocks are known of, and those before them. Amortized O(1) for each event."""
        parents: dict[BlockHash, list[BlockHash | None]] = {}
        for parent, child in self.children.items():
            for each in (child[1],) if isinstance(child, tuple) else [one for many in child.values() for one in many]:
                parents.setdefault(each, []).append(parent)
        due = [each for hashes in self.blocks.values() for each in hashes]
        kept: set[BlockHash] = set()
        while due:
            each = due.pop()
            if each not in kept:
                kept.add(each)
                due += [parent for parent in parents.get(each, ()) if parent is not None]
        children = {parent: left for parent, child in self.children.items() if (left := _left(child, kept))}
        self.children = children
        self._num_edges = sum(
            1 if isinstance(each, tuple) else sum(map(len, each.values())) for each in children.values()
        )
        self._most_edges = max(64, 2 * self._num_edges)


def _left(child: Child, kept: set[BlockHash]) -> Child | None:
    """Return what follows a prefix, cut to the hashes kept; None if nothing is left of it."""
    if isinstance(child, tuple):
        return child if child[1] in kept else None
    pairs = [(own, tuple([each for each in many if each in kept])) for own, many in child.items()]
    left = {own: many for own, many in pairs if many}
    (own, many), *more = left.items() if left else [((b""), ())]
    return (own, many[0]) if left and not more and len(many) == 1 else left or None
