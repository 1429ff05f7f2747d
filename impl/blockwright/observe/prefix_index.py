"""A router's index of one engine: what it would hit, from its events alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from math import lcm

from blockwright.errors import InvalidArgumentError
from blockwright.events import BlockHash, CacheLayout, GroupLayout, KVCacheEvent
from blockwright.observe.known_blocks import Changes, KnownBlocks, Step, step_of
from blockwright.observe.matching import Item, Prompt, longest_hit, longest_row, reads_all


class PrefixIndex:
    """Knows which prefixes an engine can find, from its events alone.

    Hashes are whatever the events carry: the engine's own bytes, or the integers of the wire. Several copies of one
    content may be reported: it is there until the last of them is gone. Ranks of one engine are kept apart.

    Example:
        >>> from struct import pack
        >>> from blockwright.events import BlockStored
        >>> index = PrefixIndex([BlockStored(b"h", None, pack("<2i", 7, 8), 2, cache_salt="tenant")])
        >>> index.match([7, 8, 9], cache_salt="tenant"), index.match([7, 8, 9])
        (2, 0)
    """

    def __init__(
        self, events: Iterable[KVCacheEvent] = (), *, layout: CacheLayout | None = None, tells_hits: bool = False
    ) -> None:
        """Begin with a snapshot's events, or with nothing.

        Args:
            events: as `apply` takes them.
            layout: what a hit needs of the groups of layers, for an engine whose events do not say it.
            tells_hits: the engine also reports hits as stored (vLLM's report mode "full"), so that a second report of a
                block does not mean a second copy.
        """
        self._layout, self._tells_hits = layout, tells_hits
        self._ranks: dict[int, KnownBlocks] = {0: KnownBlocks()}
        self._due: deque[tuple[int, list[Step]]] = deque()
        self._changes: tuple[tuple[int, list[Step]], Changes] | None = None
        self.apply(events)

    def copy(self) -> PrefixIndex:
        """Return an independent copy. O(index)."""
        self._go_on()
        twin = PrefixIndex(layout=self._layout, tells_hits=self._tells_hits)
        twin._ranks = {rank: known.copy() for rank, known in self._ranks.items()}
        return twin

    def __bool__(self) -> bool:
        """Return True: it is an object that goes on, empty or not."""
        return True

    def __len__(self) -> int:
        """Return how many blocks are known, copies not counted."""
        self._go_on()
        return sum(map(len, self._ranks.values()))

    def ranks(self) -> list[int]:
        """Return the data-parallel ranks that events came from."""
        self._go_on()
        return sorted(rank for rank, known in self._ranks.items() if known.sizes)

    def known_keys(self, rank: int | None = None) -> frozenset[tuple[BlockHash, int, str]]:
        """Return all that can be found, by any rank or by one: hash, group of layers, medium. O(index)."""
        self._go_on()
        return frozenset(key for known in self._of(rank) for key in known.all_keys())

    def _of(self, rank: int | None) -> list[KnownBlocks]:
        return list(self._ranks.values()) if rank is None else [self._ranks[rank]] if rank in self._ranks else []

    def apply(self, events: Iterable[KVCacheEvent]) -> None:
        """Fold events in, in order: of the rank that a payload names, where they are what `decode` returned. O(events).

        A call that is interrupted once it changes something is finished by the next one (CALL-1).

        Raises:
            InvalidArgumentError: an object is no event. No event is folded in then.
        """
        rank = getattr(events, "rank", 0)
        layout, kinds = getattr(events, "layout", None), getattr(events, "kinds", {})
        steps = list[Step]()
        try:
            for event in events:
                steps.append(step_of(event))
                layout = getattr(event, "layout", None) or layout
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"events: cannot be folded in ({error}); give events as decode does") from error
        if steps:
            known = self._ranks.setdefault(rank, KnownBlocks())
            known.layout = layout or known.layout
            known.kinds.update(kinds)
            self._due.append((rank, steps))
        self._go_on()

    def _go_on(self) -> None:
        """Fold in the due batches: each is worked out first, and then put in; putting one in twice does no harm."""
        while self._due:
            due = self._due[0]
            known = self._ranks[due[0]]
            if self._changes is None or self._changes[0] is not due:
                self._changes = due, known.worked_out(due[1], self._tells_hits)
            known.put_in(self._changes[1])
            if self._due and self._due[0] is due:
                self._due.popleft()
            self._changes = None

    def match(
        self,
        token_ids: Sequence[int],
        *,
        lora_name: str | None = None,
        lora_id: int | None = None,
        cache_salt: str | None = None,
        mm_items: Sequence[Item] = (),
        group_id: int | None = None,
        medium: str | Sequence[str] = "GPU",
        block_size: int | None = None,
        rank: int | None = None,
        leave: int = 0,
    ) -> int:
        """Return how many leading tokens the engine would hit. O(tokens). law: EV-7.

        A hit has, in each group of layers, what the next token reads: all blocks, those of a window or of a chunk, or
        a state. A block counts only under the same adapter, salt and items, and before the tokens that its hash looks
        ahead at. Where an engine does not say what its groups are, each is taken to read everything, which finds less.

        Args:
            token_ids: of the prompt.
            lora_name: the adapter; of an engine that sends numbers without names, give `lora_id` instead.
            lora_id: the adapter's number.
            cache_salt: of the request.
            mm_items: of the whole prompt, in any order.
            group_id: count the blocks of this group alone, one after the other from the first, whatever its kind.
            medium: where: each medium has blocks of its own size. Of several, ``("GPU", "CPU", "DISK")`` for example,
                the first is asked alone, and the others for what follows, as an engine loads it. Blocks below the host
                pass through it, so that one load brings no more than the host holds: `match` does not know its size.
            block_size: count blocks of so many tokens alone, in the one group of layers.
            rank: of this rank; by default that of the rank which hits most.
            leave: tokens at the end that are computed whatever is cached: 1 for what an engine's lookup returns.

        Raises:
            InvalidArgumentError: a token is no token id.
        """
        self._go_on()
        media = (medium,) if isinstance(medium, str) else tuple(medium)
        prompt = Prompt(token_ids, lora_name if lora_name is not None else lora_id, cache_salt, mm_items)
        most = max(0, prompt.length - leave)

        def longest(prompt: Prompt) -> int:
            return max(
                [self._found(each, prompt, media, group_id, block_size, most) for each in self._of(rank)], default=0
            )

        # Wide ids are handled once plain ones fail, since hardly any prompt has some.
        try:
            return longest(prompt)
        except InvalidArgumentError:
            narrowed = prompt.narrowed()
            if narrowed is None:
                raise
        return longest(narrowed)

    def _found(
        self, known: KnownBlocks, prompt: Prompt, media: tuple[str, ...], group: int | None, size: int | None, most: int
    ) -> int:
        """Return how much of a prompt would be hit by what is known of one rank."""
        layout = self._layout or known.layout or layout_of(known, media)
        if group is not None or size is not None or layout is None:
            return longest_row(known, prompt, group or 0, media, size, most)
        return longest_hit(known, prompt, layout, media, most)


def layout_of(known: KnownBlocks, media: Sequence[str]) -> CacheLayout | None:
    """Return the layout as far as events of single groups say it; None if one group has blocks of several sizes.

    A group of which nothing was told reads everything, too: nothing can be hit then.
    """
    count = 1 + max([*known.kinds, *(at for at, _ in known.sizes)], default=0)
    groups = []
    for at in range(count):
        kind, window = known.kinds.get(at, ("unknown", None))
        sizes = [known.sizes.get((at, name), ()) for name in media]
        groups.append(GroupLayout(kind, max(sizes[0] if sizes else (), default=1), window))
        if count == 1 and reads_all(groups[0]) and (not all(len(each) == 1 for each in sizes) or len(media) > 1):
            return None
    return CacheLayout(tuple(groups), lcm(*(group.block_size for group in groups)))
