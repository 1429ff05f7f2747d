"""How long a hit is, by what is known of an engine: the engine's own lookup, of what a router was told. law: EV-7.

The tree of prefixes is walked along a prompt. A block counts wherever its hash is met, so that windows and states are
found whose beginnings are gone. Then the longest length is looked for at which each group of layers has all that the
next token reads: first on the device, and from there on in the tiers below it, as a load continues a hit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from math import lcm
from operator import index

from blockwright.errors import InvalidArgumentError
from blockwright.events import WIDE, BlockHash, CacheLayout, GroupLayout
from blockwright.observe.known_blocks import KnownBlocks, Own, rest_of

Item = tuple[str, int, int]
"""A multimodal item of a prompt: identifier, offset, length."""

# The largest id that events have among their tokens: wider ones are items (`events.WIDE`).
_MOST = (1 << 31) - 1

# Tokens that are packed at first: most prompts are unknown to most engines.
_FIRST = 128


class Prompt:
    """A prompt, cut into what its blocks add to the prefixes before them."""

    def __init__(self, token_ids: Sequence[int], adapter: object, salt: str | None, items: Sequence[Item]) -> None:
        """Cut nothing yet. Items may be in any order, as those of a request."""
        self._token_ids, self.length = token_ids, len(token_ids)
        self._adapter, self.salt = adapter, salt
        self._items = sorted(items, key=lambda item: (item[1], item[0]))
        self.is_bare = adapter is None and not self._items
        self._packed = b""

    def narrowed(self) -> Prompt | None:
        """Return the prompt as a request has it whose token ids are wide: each is an item; None if none is wide."""
        try:
            ids = list(map(index, self._token_ids))
        except TypeError:
            return None
        wide = [(f"{WIDE}{token}", at, 1) for at, token in enumerate(ids) if token > _MOST]
        if not wide or min(ids) < 0 or max(ids) >= 1 << 62:
            return None
        return Prompt([token & _MOST for token in ids], self._adapter, self.salt, [*self._items, *wide])

    def pack_to(self, stop: int) -> bytes:
        """Return the tokens as events have them, as far as a position at least, within the prompt."""
        if len(self._packed) < 4 * stop:
            at = len(self._packed) // 4
            self._packed += _packed(self._token_ids[at : max(2 * at, stop, _FIRST)], at)
        return self._packed

    def tokens(self, start: int, stop: int) -> bytes:
        """Return some tokens as events have them."""
        return self.pack_to(stop)[4 * start : 4 * stop]

    def own(self, start: int, size: int, ahead: int) -> Own | None:
        """Return what a block adds to the prefix before it; None if the prompt is too short for it."""
        stop = start + size
        if stop + ahead > self.length:
            return None
        tokens, salt = self.tokens(start, stop), None if start else self.salt
        if self.is_bare and salt is None and not ahead:
            return tokens
        items = tuple(
            [(name, at - start) for name, at, count in self._items if at < stop + ahead and at + count > start]
        )
        rest = rest_of(self.tokens(stop, stop + ahead), self._adapter, salt, items)
        return tokens if rest is None else (tokens, rest)


def _packed(token_ids: Sequence[int], start: int) -> bytes:
    try:
        return struct.pack(f"<{len(token_ids)}i", *token_ids)
    except struct.error as error:
        raise InvalidArgumentError(
            f"token_ids: must be integers within 0..{(1 << 62) - 1} ({error}, in {start}..{start + len(token_ids) - 1})"
        ) from None


Hashes = BlockHash | tuple[BlockHash, ...]
"""Of one prefix: mostly one."""
Places = Sequence[dict[BlockHash, int]]
"""The blocks of a group, on some media."""


def walk(known: KnownBlocks, prompt: Prompt, size: int = 0, row: Places = ()) -> tuple[list[int], list[Hashes]]:
    """Return the prefixes of a prompt that are in the tree: their ends, ascending, with their hashes. O(blocks).

    Up to the first of `size` tokens more that has no block in the `row`, of a group that reads everything, if there is.
    """
    children, ends, hashes = known.children, list[int](), list[Hashes]()
    due, found = [0], dict[int, tuple[BlockHash | None, ...]]({0: (None,)})
    packed, is_bare = b"", prompt.is_bare
    while due:
        start = heappop(due)
        reached = found.pop(start)
        if start:
            ends.append(start)
            hashes.append(reached if len(reached) > 1 else reached[0])  # type: ignore[arg-type]
            if row and start % size == 0 and not _is_met(hashes[-1], row):
                break
        if not due and len(reached) == 1:  # mostly one thing follows another
            parent = reached[0]
            # Plain tokens, one child after the other: a comparison of bytes for each block, and no tuple.
            while is_bare and (start or prompt.salt is None):
                child = children.get(parent)
                if type(child) is not tuple or type(child[0]) is not bytes:
                    break
                stop = start + len(child[0]) // 4
                # Packed as far as the tree goes: most prompts part from it early.
                if 4 * stop > len(packed):
                    if stop > prompt.length:
                        break
                    packed = prompt.pack_to(stop)
                if packed[4 * start : 4 * stop] != child[0]:
                    break
                start, parent = stop, child[1]
                ends.append(start)
                hashes.append(parent)
                if row and start % size == 0 and not _is_met(parent, row):
                    return ends, hashes
            reached = (parent,)
        for end, many in _following(known, prompt, start, reached):
            before = found.get(end)
            if before is None:
                heappush(due, end)
            found[end] = many if before is None else tuple(dict.fromkeys((*before, *many)))
    return ends, hashes


def _following(
    known: KnownBlocks, prompt: Prompt, start: int, reached: tuple[BlockHash | None, ...]
) -> Iterator[tuple[int, tuple[BlockHash, ...]]]:
    """Yield the ends and hashes of the next longer prefixes that both the tree and the prompt have."""
    for parent in reached:
        child = known.children.get(parent)
        if isinstance(child, tuple):
            own, one = child
            size, ahead = (len(own) // 4, 0) if isinstance(own, bytes) else (len(own[0]) // 4, len(own[1][0]) // 4)
            if own == prompt.own(start, size, ahead):
                yield start + size, (one,)
        elif child is not None:
            # Several children: blocks of other sizes, or keys that look further ahead.
            for size, ahead in known.ways:
                cut = prompt.own(start, size, ahead)
                if cut is not None and cut in child:
                    yield start + size, child[cut]


def _is_met(hashes: Hashes, places: Places) -> bool:
    """Return whether there is a block of a prefix in some of the places."""
    for each in places:
        if type(hashes) is not tuple:
            if hashes in each:
                return True
        elif any(one in each for one in hashes):
            return True
    return False


def met(ends: list[int], hashes: list[Hashes], places: Places) -> list[int]:
    """Return the ends of the prefixes that some of the places have blocks of."""
    if len(places) == 1:
        (place,) = places
        return [end for end, each in zip(ends, hashes, strict=True) if each in place or _is_met(each, places)]
    return [end for end, each in zip(ends, hashes, strict=True) if _is_met(each, places)]


def first_read(group: GroupLayout, length: int) -> int:
    """Return the first position that the token at `length` reads, `length` if it reads none."""
    kind, window = group.kind, group.window
    if kind == "mamba":
        return max(length - 1, 0)
    if kind in ("cross_attention", "encoder_only_attention"):
        return length
    if window is None:
        return 0
    return length // window * window if kind.startswith("chunked") else max(0, length - window + 1)


def reads_all(group: GroupLayout) -> bool:
    """Return whether a token reads every position before it."""
    return first_read(group, 1 << 40) == 0


class Found:
    """The blocks of one group that were met, in places of so many tokens; those before entry `start` are not needed.

    Attributes:
        group: what a hit needs of it.
        ends: where they end, ascending.
        size: tokens in a place, as many as in one or more entries.
    """

    def __init__(self, group: GroupLayout, ends: list[int], size: int, start: int = 0) -> None:
        self.group, self.ends, self.size, self._start = group, ends, size, start
        self._entries = size // group.block_size
        self._known = set(ends)
        self._since: dict[int, int] = {}  # by place: the first of the row that it is in
        before = first = -1
        for end in ends:
            if end % size == 0:
                place = end // size - 1
                # A gap: a new row of places begins.
                if place != before + 1 or first < 0:
                    first = place
                self._since[place], before = first, place

    def reads_before(self) -> bool:
        """Return whether a token always reads the position before it, so that something ends there."""
        length = 2 * self.group.block_size
        return first_read(self.group, length) < length and not self.group.kind.startswith("chunked")

    def run_end(self) -> int:
        """Return the tokens before the first entry that was not met."""
        place = self._start // self._entries
        while self._since.get(place, place + 1) <= self._start // self._entries:
            place += 1
        return max(place * self._entries, self._start) * self.group.block_size

    def _is_row(self, first: int, stop: int) -> bool:
        """Return whether the entries first..stop-1 were met, those before the start aside."""
        first = max(first, self._start)
        return first >= stop or self._since.get((stop - 1) // self._entries, stop) <= first // self._entries

    def has_margin(self, length: int) -> bool:
        """Return whether what a draft head computes again was met."""
        return not self.group.margin or length + self.group.margin in self._known

    def holds(self, length: int, last: int = 0) -> bool:
        """Return whether all was met that a hit of a length needs.

        Of a row, a part that goes on to `last` serves as well as the one that ends with the hit.
        """
        group, first = self.group, first_read(self.group, length)
        stop = length // group.block_size
        ends_inside = length % group.block_size > 0 and (first < length or stop * group.block_size < group.sinks)
        if ends_inside and length not in self._known and (group.kind == "mamba" or last not in self._known):
            return False
        sinks = min(-(-group.sinks // group.block_size), stop)
        return self._is_row(first // group.block_size, stop) and self._is_row(0, sinks)


def hit_on_device(groups: Sequence[Found], unit: int, most: int) -> int:
    """Return the longest hit of at most so many tokens. O(blocks * groups)."""
    # A hit ends where each of these groups has something: the group with the fewest ends says where to look.
    ends = min((each.ends for each in groups if each.reads_before()), key=len, default=None)
    for length in range(most - most % unit, 0, -unit) if ends is None else reversed(ends):
        if length <= most and length % unit == 0 and all(g.holds(length) and g.has_margin(length) for g in groups):
            return length
    return 0


def hit_with_tiers(groups: Sequence[Found], unit: int, reached: int, most: int, keyed: int) -> int:
    """Return the longest hit to which a load continues what was reached on the device, as the connector looks for it.

    A hit inside blocks is looked for around the longest one of whole blocks, and at the end of the prompt.
    """
    step = lcm(*(each.group.block_size for each in groups))
    most, begin, end_of_keys = min(most, keyed), reached - reached % step, keyed - keyed % unit
    lengths = range(most - most % step, begin, -step)
    length = next((at for at in lengths if all(each.holds(at) for each in groups)), reached)
    if unit == step:
        return length
    starts, last = [length - length % step], most - most % unit
    for each in groups:
        if reads_all(each.group):
            stop = each.run_end()
            starts += [stop - stop % step - step, stop - stop % step]
            last = min(last, stop + each.size - unit)
    ends = {end for start in starts for end in range(start + unit, start + step, unit)} | {last}
    for end in sorted((each for each in ends if length < each <= last and each % step), reverse=True):
        if all(g.holds(end, min((end // g.size + 1) * g.size, end_of_keys)) for g in groups):
            return end
    return length


def longest_hit(known: KnownBlocks, prompt: Prompt, layout: CacheLayout, media: Sequence[str], most: int) -> int:
    """Return the longest hit of all groups of layers: on the first medium, and from there on on the others."""
    numbers = range(len(layout.groups))
    blocks = [[known.blocks.get((at, name), {}) for name in media] for at in numbers]

    def size(at: int, names: Sequence[str]) -> int:
        """Return the tokens of a place: a tier's may hold several blocks of the device, never a part of one."""
        own = layout.groups[at].block_size
        return max([own, *(each for name in names for each in known.sizes.get((at, name), ()))]) // own * own

    whole = next((at for at in numbers if reads_all(layout.groups[at])), -1)
    row = (size(whole, media), blocks[whole]) if whole >= 0 else (0, ())  # no hit is longer than that
    ends, hashes = walk(known, prompt, *row)

    def found(first: int, names: Sequence[str], begin: int) -> list[Found]:
        groups = list[Found]()
        for at, group in enumerate(layout.groups):
            places = blocks[at][first : first + len(names)]
            groups.append(Found(group, met(ends, hashes, places), size(at, names), begin // group.block_size))
        return groups

    # One group that reads everything, on one medium: the walk has stopped at the first gap already.
    if len(blocks) == 1 == len(media) and row[0] == layout.unit and not layout.groups[0].margin:
        pairs = zip(reversed(ends), reversed(hashes), strict=True)  # all but the last were met
        return next((at for at, each in pairs if at <= most and at % row[0] == 0 and _is_met(each, row[1])), 0)
    keyed = max(0, prompt.length - max([ahead for _, ahead in known.ways], default=0))
    reached = hit_on_device(found(0, media[:1], 0), layout.unit, min(most, keyed))
    if len(media) == 1:
        return reached
    step = lcm(*(group.block_size for group in layout.groups))
    return hit_with_tiers(found(1, media[1:], reached - reached % step), layout.unit, reached, most, keyed)


def longest_row(
    known: KnownBlocks, prompt: Prompt, group: int, media: Sequence[str], block_size: int | None, most: int
) -> int:
    """Return how many leading tokens a group has blocks for, one after the other, whatever its kind and their sizes."""
    blocks = [known.blocks.get((group, name), {}) for name in media]
    longest = max([each for name in media for each in known.sizes.get((group, name), ())], default=0)
    first, best = {0}, 0  # what the first medium reaches, and all together
    reached = {0}
    for end, hashes in zip(*walk(known, prompt), strict=True):
        # No block is long enough to go on from what is reached.
        if end > best + longest or end > most:
            break
        for at, places in enumerate(blocks):
            sizes = {abs(places[each]) for each in (hashes if type(hashes) is tuple else (hashes,)) if each in places}
            for size in sizes if block_size is None else sizes & {block_size}:
                if end - size in (reached if at else first):
                    best = end
                    reached.add(end)
                    if at == 0:
                        first.add(end)
    return best
