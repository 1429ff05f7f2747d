"""What a router keeps of one engine: a small consumer of events, for routers' tests and as a reference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import pack

from blockwright.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVCacheEvent

Item = tuple[str, int, int]
"""A multimodal item of a prompt: identifier, offset, length."""


class PrefixIndex:
    """Knows which prefixes an engine can find, from its events alone.

    Hashes are whatever the events carry: the engine's own bytes, or the integers of the wire.

    Example:
        >>> from blockwright.events import BlockStored
        >>> index = PrefixIndex([BlockStored(b"h", None, pack("<2i", 7, 8), 2, cache_salt="tenant")])
        >>> index.match([7, 8, 9], cache_salt="tenant"), index.match([7, 8, 9])
        (2, 0)
    """

    def __init__(self, events: Iterable[KVCacheEvent] = ()) -> None:
        """Begin with a snapshot's events, or with nothing."""
        self._blocks: dict[tuple[BlockHash, int, str], BlockStored] = {}
        self._children: dict[tuple[object, ...], object] = {}
        self.apply(events)

    def __bool__(self) -> bool:
        """Return True: it is an object that goes on, empty or not."""
        return True

    def __len__(self) -> int:
        """Return how many blocks are known."""
        return len(self._blocks)

    def known_keys(self) -> frozenset[tuple[BlockHash, int, str]]:
        """Return all that can be found: hash, group of layers, medium. O(index)."""
        return frozenset(self._blocks)

    def apply(self, events: Iterable[KVCacheEvent]) -> None:
        """Fold events in, in order. O(events)."""
        for event in events:
            if isinstance(event, BlockStored):
                self._blocks[event.block_hash, event.group_id, event.medium] = event
                self._children[_place(event)] = event.block_hash
            elif isinstance(event, BlockRemoved):
                gone = self._blocks.pop((event.block_hash, event.group_id, event.medium), None)
                if gone is not None:
                    self._children.pop(_place(gone), None)
            elif isinstance(event, AllBlocksCleared):
                self._blocks.clear()
                self._children.clear()

    def match(
        self,
        token_ids: Sequence[int],
        *,
        lora_name: str | None = None,
        cache_salt: str | None = None,
        mm_items: Sequence[Item] = (),
        group_id: int = 0,
        medium: str = "GPU",
        block_size: int | None = None,
    ) -> int:
        """Return how many leading tokens a group has blocks for, one after the other, on a medium. O(tokens).

        A block counts only under the same adapter, salt and items. Of windowed and recurrent layers the engine may find
        more: their hits need not begin at the first block.
        """
        size = block_size or next((e.block_size for e in self._blocks.values() if e.group_id == group_id), 0)
        length = 0
        parent: object = None
        while size and length + size <= len(token_ids):
            tokens = pack(f"<{size}i", *token_ids[length : length + size])
            items = tuple(
                (name, offset - length)
                for name, offset, count in mm_items
                if offset < length + size and offset + count > length
            )
            found = self._children.get((parent, tokens, lora_name, cache_salt, items, group_id, medium))
            if found is None:
                break
            length, parent = length + size, found
        return length


def _place(event: BlockStored) -> tuple[object, ...]:
    """Return where a block hangs: below its parent, by all that decides what is in it."""
    return (
        event.parent_block_hash,
        event.tokens,
        event.lora_name,
        event.cache_salt,
        tuple([(name, offset) for name, offset, _ in event.mm_items]),  # the wire has no lengths
        event.group_id,
        event.medium,
    )
