"""A router's index of many engines: one walk over a prompt finds the hit of each of them.

The tree of prefixes is that of all engines, and a block is held by the engines whose bits are set::

    blocks    group and medium -> hash -> a bit for each rank of an engine that has it

So engines must mean the same content by a hash, or have different hashes: models and seeds of hashes may differ.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from blockwright.errors import InvalidArgumentError
from blockwright.events import BlockHash, CacheLayout, KVCacheEvent
from blockwright.observe.known_blocks import Key, KnownBlocks, step_of
from blockwright.observe.matching import Item, Prompt, longest_hit, longest_row, reads_all, walk
from blockwright.observe.prefix_index import layout_of


class _Held:
    """The blocks of one rank among those of all, of a group on a medium, with the least size of one."""

    def __init__(self, holders: dict[BlockHash, int], bit: int, size: int) -> None:
        self._holders, self._bit, self._size = holders, bit, size

    def __getitem__(self, block_hash: BlockHash) -> int:
        return self._size

    def __contains__(self, block_hash: BlockHash) -> bool:
        return bool(self._holders.get(block_hash, 0) & self._bit)


class FleetIndex:
    """Knows which prefixes each of many engines can find, from their events.

    It answers as a `PrefixIndex` of each engine does. Memory: some 420 bytes for each block with 16 tokens, however
    many engines have it. A call of `apply` that is interrupted may have folded in a part of its events.

    Example:
        >>> from struct import pack
        >>> from blockwright.events import BlockStored
        >>> fleet = FleetIndex()
        >>> fleet.apply("one", [BlockStored(b"h", None, pack("<2i", 7, 8), 2)])
        >>> fleet.apply("other", [])
        >>> fleet.match([7, 8, 9])
        {'one': 2, 'other': 0}
    """

    def __init__(self, *, layout: CacheLayout | None = None, tells_hits: bool = False) -> None:
        """Know no engine. The arguments are those of `PrefixIndex`, for all engines."""
        self._layout, self._tells_hits = layout, tells_hits
        self._all = KnownBlocks()
        self._ranks: dict[tuple[Hashable, int], KnownBlocks] = {}  # their layouts; the blocks are bits of all
        self._copies: dict[tuple[int, Key], int] = {}  # by bit, where there are several
        self._plans: dict[tuple[str, ...], tuple[dict[int, int], dict[int, CacheLayout | None]]] = {}  # by media

    def apply(self, engine: Hashable, events: Iterable[KVCacheEvent]) -> None:
        """Fold in events of an engine, in order, as `decode` returns them. O(events), O(index) to clear an engine.

        Raises:
            InvalidArgumentError: an object is no event. No event is folded in then.
        """
        batch = list(events)
        try:
            steps = [step_of(event) for event in batch]
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"events: cannot be folded in ({error}); give events as decode does") from error
        rank = (engine, getattr(events, "rank", 0))
        one = self._ranks.setdefault(rank, KnownBlocks())
        before = one.layout, {**one.kinds}, sum(map(len, one.sizes.values()))
        bit, blocks = 1 << list(self._ranks).index(rank), self._all.blocks
        layouts = [getattr(events, "layout", None), *(getattr(event, "layout", None) for event in batch)]
        one.layout = next((each for each in reversed(layouts) if each), one.layout)
        one.kinds.update(getattr(events, "kinds", {}))
        for key, size, edge, medium in steps:
            if key is None:
                self._clear(bit, medium)
                continue
            holders, name = blocks.setdefault(key[1:], {}), (bit, key)
            held = holders.get(key[0], 0)
            if size == 0:
                if (left := self._copies.pop(name, 1) - 1) > 1:
                    self._copies[name] = left
                if not left and held & ~bit:
                    holders[key[0]] = held & ~bit
                elif not left:
                    holders.pop(key[0], None)
                continue
            if held & bit and not self._tells_hits:
                self._copies[name] = self._copies.get(name, 1) + 1
            holders[key[0]] = held | bit
            one.sizes.setdefault(key[1:], set()).add(abs(size))
            if edge is not None:
                self._all._grow(edge, key[0], size)
        if before != (one.layout, one.kinds, sum(map(len, one.sizes.values()))):
            self._plans.clear()
        if self._all._num_edges > self._all._most_edges:
            self._all._sweep()

    def _clear(self, bit: int, medium: str | None) -> None:
        for place, holders in self._all.blocks.items():
            if medium is None or place[1] == medium:
                self._all.blocks[place] = {each: left for each, held in holders.items() if (left := held & ~bit)}
        self._copies = {
            name: many
            for name, many in self._copies.items()
            if name[0] != bit or (medium is not None and name[1][2] != medium)
        }

    def match(
        self,
        token_ids: Sequence[int],
        *,
        lora_name: str | None = None,
        lora_id: int | None = None,
        cache_salt: str | None = None,
        mm_items: Sequence[Item] = (),
        medium: str | Sequence[str] = "GPU",
        leave: int = 0,
    ) -> dict[Hashable, int]:
        """Return how many leading tokens each engine would hit; the arguments are those of `PrefixIndex.match`.

        Complexity: O(tokens) for all engines whose hits need every block, on one medium, of blocks of one size;
        O(tokens) for each of the others.

        Raises:
            InvalidArgumentError: a token is no token id.
        """
        media = (medium,) if isinstance(medium, str) else tuple(medium)
        prompt = Prompt(token_ids, lora_name if lora_name is not None else lora_id, cache_salt, mm_items)
        try:
            return self._match(prompt, media, max(0, prompt.length - leave))
        except InvalidArgumentError:
            if (narrowed := prompt.narrowed()) is None:
                raise
        return self._match(narrowed, media, max(0, prompt.length - leave))

    def _match(self, prompt: Prompt, media: tuple[str, ...], most: int) -> dict[Hashable, int]:
        found: dict[Hashable, int] = {engine: 0 for engine, _ in self._ranks}
        names = [engine for engine, _ in self._ranks]

        def reached(bits: int, length: int) -> None:
            while bits and length:
                at = bits.bit_length() - 1
                found[names[at]] = max(found[names[at]], length)
                bits ^= 1 << at

        if media not in self._plans:
            self._plans[media] = self._planned(media)
        alike, apart = self._plans[media]
        ranks = [*self._ranks.values()]
        for at, layout in apart.items():
            one, blocks = ranks[at], self._all.blocks
            one.children, one.ways = self._all.children, self._all.ways
            held = {place: _Held(blocks[place], 1 << at, min(each)) for place, each in one.sizes.items()}
            one.blocks = held  # type: ignore[assignment]
            if layout is None:
                reached(1 << at, longest_row(one, prompt, 0, media, None, most))
            else:
                reached(1 << at, longest_hit(one, prompt, layout, media, most))
        for size, alive in alike.items():
            holders, last = self._all.blocks.get((0, media[0]), {}), 0
            for end, hashes in zip(*walk(self._all, prompt, size, [holders]), strict=True):
                if end % size:
                    continue
                held_by = 0
                if end != last + size or end > most:
                    pass  # no engine has the block before, or the last tokens are computed in any case
                elif type(hashes) is not tuple:
                    held_by = holders.get(hashes, 0)  # type: ignore[arg-type]
                else:
                    for each in hashes:
                        held_by |= holders.get(each, 0)
                if alive & ~held_by:
                    reached(alive & ~held_by, last)
                    alive &= held_by
                    if not alive:
                        break
                last = end
            reached(alive, last)
        return found

    def _planned(self, media: tuple[str, ...]) -> tuple[dict[int, int], dict[int, CacheLayout | None]]:
        """Return the bits of the ranks that one walk is enough for, by the size of their blocks, and the others."""
        alike, apart = dict[int, int](), dict[int, CacheLayout | None]()
        for at, one in enumerate(self._ranks.values()):
            layout = self._layout or one.layout or layout_of(one, media)
            sizes = {size for each in one.sizes.values() for size in each}
            if layout is not None and len(layout.groups) == len(sizes) == len(media) == 1 and _is_plain(layout, sizes):
                (size,) = sizes
                alike[size] = alike.get(size, 0) | 1 << at
            elif sizes:
                apart[at] = layout
        return alike, apart


def _is_plain(layout: CacheLayout, sizes: set[int]) -> bool:
    (group,) = layout.groups
    return reads_all(group) and not group.margin and {layout.unit} == {group.block_size} == sizes
