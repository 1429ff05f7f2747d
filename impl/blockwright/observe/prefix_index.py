"""A router's index of one engine: a small consumer of events, for routers' tests and as a reference."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Sequence
from struct import pack

from blockwright.errors import InvalidArgumentError
from blockwright.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVCacheEvent

_Step = tuple[tuple[BlockHash, int, str], tuple[object, ...] | None, BlockStored | None]
"""What an event changes: by its key, the place of a block and the block, or None and None for one that is gone."""

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
        self._due: deque[list[_Step | None]] = deque()
        self.apply(events)

    def __bool__(self) -> bool:
        """Return True: it is an object that goes on, empty or not."""
        return True

    def __len__(self) -> int:
        """Return how many blocks are known."""
        self._go_on()
        return len(self._blocks)

    def known_keys(self) -> frozenset[tuple[BlockHash, int, str]]:
        """Return all that can be found: hash, group of layers, medium. O(index)."""
        self._go_on()
        return frozenset(self._blocks)

    def apply(self, events: Iterable[KVCacheEvent]) -> None:
        """Fold events in, in order. O(events).

        A call that is interrupted once it changes something is finished by the next one (CALL-1).

        Raises:
            InvalidArgumentError: an object is no event. No event is folded in then.
        """
        try:
            steps = [_step(event) for event in events]
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"events: cannot be folded in ({error}); give events as decode does") from error
        self._due.append(steps)
        self._go_on()

    def _go_on(self) -> None:
        """Fold in the events that are due.

        To begin anew with the same events does no harm: the last event on a key counts.
        """
        blocks, children = self._blocks, self._children
        while self._due:
            steps = self._due[0]
            for step in steps:
                if step is None:
                    blocks.clear()
                    children.clear()
                    continue
                key, place, event = step
                if event is not None and place is not None:
                    children[place] = event.block_hash
                    blocks[key] = event
                elif key in blocks:
                    children.pop(_place(blocks[key]), None)
                    del blocks[key]
            if self._due and self._due[0] is steps:
                self._due.popleft()

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

        A block counts only under the same adapter, salt and items. For windowed and recurrent layers the engine may
        find more: their hits need not begin at the first block.

        Raises:
            InvalidArgumentError: a token is no token id.
        """
        self._go_on()
        size = block_size or next((e.block_size for e in self._blocks.values() if e.group_id == group_id), 0)
        length = 0
        parent: object = None
        while size and length + size <= len(token_ids):
            try:
                tokens = pack(f"<{size}i", *token_ids[length : length + size])
            except struct.error as error:
                raise InvalidArgumentError(
                    f"token_ids: must be integers within 0..2147483647 ({error}, in {length}..{length + size - 1})"
                ) from None
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


def _step(event: KVCacheEvent) -> _Step | None:
    """Return the change of an event; None if it clears all."""
    if isinstance(event, AllBlocksCleared):
        return None
    if not isinstance(event, BlockStored | BlockRemoved):
        raise TypeError(f"{type(event).__name__} is no event")
    key = (event.block_hash, event.group_id, event.medium)
    step = (key, _place(event), event) if isinstance(event, BlockStored) else (key, None, None)
    hash(step[:2])  # what cannot be a key raises TypeError here, before anything changes
    return step


def _place(event: BlockStored) -> tuple[object, ...]:
    """Return a block's place in the tree: below its parent, by all that decides its content."""
    return (
        event.parent_block_hash,
        event.tokens,
        event.lora_name,
        event.cache_salt,
        tuple([(name, offset) for name, offset, _ in event.mm_items]),  # the wire has no lengths
        event.group_id,
        event.medium,
    )
