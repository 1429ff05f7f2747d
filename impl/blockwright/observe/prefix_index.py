"""A router's index of one engine: a small consumer of events, for routers' tests and as a reference."""

from __future__ import annotations

import struct
from bisect import insort
from collections import deque
from collections.abc import Iterable, Sequence
from struct import pack

from blockwright.errors import InvalidArgumentError
from blockwright.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVCacheEvent

_Place = tuple[object, ...]
_Step = tuple[tuple[BlockHash, int, str], _Place | None, BlockStored | None]
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
        self._children: dict[_Place, tuple[BlockHash, ...]] = {}
        self._sizes: dict[tuple[int, str], set[tuple[int, int]]] = {}  # tokens in a block, and behind it in its key
        self._parents: set[BlockHash | None] = set()  # of all blocks, and of few that are gone
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
        blocks = self._blocks
        while self._due:
            steps = self._due[0]
            for step in steps:
                if step is None:
                    blocks.clear()
                    self._children.clear()
                    self._sizes.clear()
                    self._parents.clear()
                    continue
                key, place, event = step
                if key in blocks:
                    self._take_out(key[0], _place(blocks[key]))
                if event is None or place is None:
                    blocks.pop(key, None)
                    continue
                self._take_out(key[0], place)
                self._children[place] = (*self._children.get(place, ()), key[0])
                self._sizes.setdefault(key[1:], set()).add((event.block_size, len(event.lookahead) // 4))
                blocks[key] = event
                self._parents.add(event.parent_block_hash)
            if len(self._parents) > 2 * len(blocks) + 64:
                self._parents = {event.parent_block_hash for event in blocks.values()}
            if self._due and self._due[0] is steps:
                self._due.popleft()

    def _take_out(self, block_hash: BlockHash, place: _Place) -> None:
        """Remove a block from its place. Another hash of the same content stays there."""
        known = self._children.get(place, ())
        if block_hash in known:
            left = tuple([each for each in known if each != block_hash])
            if left:
                self._children[place] = left
            else:
                del self._children[place]

    def match(
        self,
        token_ids: Sequence[int],
        *,
        lora_name: str | None = None,
        lora_id: int | None = None,
        cache_salt: str | None = None,
        mm_items: Sequence[Item] = (),
        group_id: int = 0,
        medium: str | Sequence[str] = "GPU",
        block_size: int | None = None,
    ) -> int:
        """Return how many leading tokens a group has blocks for, one after the other, on a medium. O(tokens).

        A block counts only under the same adapter, salt and items, and before the tokens that its hash looks ahead at.
        For windowed and recurrent layers the engine may find more: their hits need not begin at the first block.

        Args:
            token_ids: of the prompt.
            lora_name: the adapter; of an engine that sends numbers without names, give `lora_id` instead.
            lora_id: the adapter's number.
            cache_salt: of the request.
            mm_items: of the whole prompt.
            group_id: group of layers.
            medium: where: each medium has blocks of its own size. Of several, ``("GPU", "CPU", "DISK")`` for example,
                the first is asked alone, and the others for what follows, as an engine loads it. Blocks below the host
                pass through it, so that one load brings no more than the host holds: `match` does not know its size.
            block_size: tokens in a block, to look at blocks of this size alone; otherwise the longest match counts.

        Raises:
            InvalidArgumentError: a token is no token id.
        """
        self._go_on()
        media = (medium,) if isinstance(medium, str) else tuple(medium)
        adapter = lora_name if lora_name is not None else lora_id
        reached: dict[int, tuple[BlockHash | None, ...]] = {0: (None,)}
        for names in (media[:1], media[1:]):
            ways = [
                (name, size, ahead)
                for name in names
                for size, ahead in self._sizes.get((group_id, name), ())
                if block_size is None or size == block_size
            ]
            due, most = sorted(reached), max([size + ahead for _, size, ahead in ways], default=0)
            for start in due:
                if self._parents.isdisjoint(reached[start]):  # as behind a part of a block
                    continue
                tokens = _packed(token_ids[start : start + most], start)
                salt = None if start else cache_salt
                for name, size, ahead in ways:
                    if len(tokens) < 4 * (size + ahead):
                        continue
                    items = tuple(
                        (item, offset - start)
                        for item, offset, count in mm_items
                        if offset < start + size + ahead and offset + count > start
                    )
                    behind = tokens[4 * size : 4 * (size + ahead)]
                    own = tokens[: 4 * size], behind, adapter, salt, items, group_id, name
                    found = [self._children.get((parent, *own), ()) for parent in reached[start]]
                    if hashes := tuple([child for children in found for child in children]):
                        if start + size not in reached:
                            insort(due, start + size)
                        reached[start + size] = tuple({*reached.get(start + size, ()), *hashes})
        return max(reached)


def _packed(token_ids: Sequence[int], start: int) -> bytes:
    try:
        return pack(f"<{len(token_ids)}i", *token_ids)
    except struct.error as error:
        raise InvalidArgumentError(
            f"token_ids: must be integers within 0..2147483647 ({error}, in {start}..{start + len(token_ids) - 1})"
        ) from None


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


def _place(event: BlockStored) -> _Place:
    """Return a block's place in the tree: below its parent, by all that decides its content.

    A salt decides the hash of the first block, and with it those of all blocks after it, so that it is compared there
    alone: vLLM sends it with no other block.
    """
    return (
        event.parent_block_hash,
        event.tokens,
        event.lookahead,
        event.lora_name if event.lora_name is not None else event.lora_id,
        event.cache_salt if event.parent_block_hash is None else None,
        tuple([(name, offset) for name, offset, _ in event.mm_items]),  # the wire has no lengths
        event.group_id,
        event.medium,
    )
