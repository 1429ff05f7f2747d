"""How long a hit is, by what is known of an engine: the engine's own lookup, of what a router was told. law: EV-7.

The tree of prefixes is walked along a prompt. A block counts wherever its hash is met, so that windows and states are
found whose beginnings are gone. Then the longest length is looked for at which each group of layers has all that the
next token reads: first on the device, and from there on in the tiers below it, as a load continues a hit.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from math import lcm
from sys import byteorder

from blockwright.errors import InvalidArgumentError
from blockwright.events import BlockHash, CacheLayout, GroupLayout
from blockwright.observe.known_blocks import KnownBlocks, Own, rest_of

Item = tuple[str, int, int]
"""A multimodal item of a prompt: identifier, offset, length."""

_FIRST = 128
"""Tokens that are packed at first: most prompts are unknown to most engines."""


class Prompt:
    """A prompt, cut into what its blocks add to the prefixes before them."""

    def __init__(self, token_ids: Sequence[int], adapter: object, salt: str | None, items: Sequence[Item]) -> None:
        """Cut nothing yet. Items may be in any order, as those of a request."""
        self._token_ids, self.length = token_ids, len(token_ids)
        self._adapter, self._salt = adapter, salt
        self._items = sorted(items, key=lambda item: (item[1], item[0]))
        self.is_bare = adapter is None and not self._items
        self._packed = b""

    def tokens(self, start: int, stop: int) -> bytes:
        """Return tokens as events have them."""
        while len(self._packed) < 4 * stop:
            at = len(self._packed) // 4
            self._packed += _packed(self._token_ids[at : max(2 * at, stop, _FIRST)], at)
        return self._packed[4 * start : 4 * stop]

    def own(self, start: int, size: int, ahead: int) -> Own | None:
        """Return what a block adds to the prefix before it; None if the prompt is too short for it."""
        stop = start + size
        if stop + ahead > self.length:
            return None
        tokens, salt = self.tokens(start, stop), None if start else self._salt
        if self.is_bare and salt is None and not ahead:
            return tokens
        items = tuple([(name, at - start) for name, at, count in self._items if at < stop + ahead and at + count > start])
        rest = rest_of(self.tokens(stop, stop + ahead), self._adapter, salt, items)
        return tokens if rest is None else (tokens, rest)


def _packed(token_ids: Sequence[int], start: int) -> bytes:
    try:
        packed = array("i", token_ids)
        if packed and min(packed) < 0:
            raise OverflowError("a token below 0")
    except (OverflowError, TypeError) as error:
        raise InvalidArgumentError(
            f"token_ids: must be integers within 0..2147483647 ({error}, in {start}..{start + len(token_ids) - 1})"
        ) from None
    if byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def prefixes(known: KnownBlocks, prompt: Prompt) -> Iterator[tuple[int, tuple[BlockHash, ...]]]:
    """Yield the prefixes of a prompt that are in the tree: their ends, ascending, with their hashes."""
    children, found, due = known.children, dict[int, tuple[BlockHash | None, ...]]({0: (None,)}), [0]
    while due:
        start = heappop(due)
        reached = found.pop(start)
        if start:
            yield start, reached  # type: ignore[misc]  # only the empty prefix has no hash
        for parent in reached:
            child = children.get(parent)
            if type(child) is tuple:
                own, one = child
                if type(own) is bytes:
                    size, ahead = len(own) // 4, 0
                else:
                    size, ahead = len(own[0]) // 4, len(own[1][0]) // 4
                if own == prompt.own(start, size, ahead):
                    _add(found, due, start + size, (one,))
            elif child is not None:
                for size, ahead in known.ways:
                    cut = prompt.own(start, size, ahead)
                    if cut is not None and cut in child:
                        _add(found, due, start + size, child[cut])


def _add(
    found: dict[int, tuple[BlockHash | None, ...]], due: list[int], end: int, hashes: tuple[BlockHash, ...]
) -> None:
    before = found.get(end)
    if before is None:
        found[end] = hashes
        heappush(due, end)
    else:
        found[end] = tuple(dict.fromkeys((*before, *hashes)))


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
        for end in ends:
            if end % size == 0:
                place = end // size - 1
                self._since[place] = self._since.get(place - 1, place)

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
        if length % group.block_size and (first < length or stop * group.block_size < group.sinks):
            if length not in self._known and (group.kind == "mamba" or last not in self._known):
                return False
        sinks = min(-(-group.sinks // group.block_size), stop)
        return self._is_row(first // group.block_size, stop) and self._is_row(0, sinks)


def hit_on_device(groups: Sequence[Found], unit: int, most: int) -> int:
    """Return the longest hit of at most so many tokens. O(blocks * groups)."""
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

    sizes = [size(at, media) for at in numbers]
    rows = [(sizes[at], blocks[at]) for at in numbers if reads_all(layout.groups[at])]
    nodes: list[tuple[int, tuple[BlockHash, ...]]] = []
    for node in prefixes(known, prompt):
        nodes.append(node)
        end, hashes = node
        if any(end % tokens == 0 and not _is_met(hashes, places) for tokens, places in rows):
            break  # no hit is longer

    def found(first: int, names: Sequence[str], begin: int) -> list[Found]:
        groups = list[Found]()
        for at, group in enumerate(layout.groups):
            places = blocks[at][first : first + len(names)]
            ends = [end for end, hashes in nodes if _is_met(hashes, places)]
            groups.append(Found(group, ends, size(at, names), begin // group.block_size))
        return groups

    keyed = max(0, prompt.length - max([ahead for _, ahead in known.ways], default=0))
    reached = hit_on_device(found(0, media[:1], 0), layout.unit, min(most, keyed))
    if len(media) == 1:
        return reached
    step = lcm(*(group.block_size for group in layout.groups))
    return hit_with_tiers(found(1, media[1:], reached - reached % step), layout.unit, reached, most, keyed)


def _is_met(hashes: tuple[BlockHash, ...], places: list[dict[BlockHash, int]]) -> bool:
    """Return whether there is a block of a prefix in some of the places."""
    for each in places:
        for one in hashes:
            if one in each:
                return True
    return False


def longest_row(
    known: KnownBlocks, prompt: Prompt, group: int, media: Sequence[str], block_size: int | None, most: int
) -> int:
    """Return how many leading tokens a group has blocks for, one after the other, whatever its kind and their sizes."""
    blocks = [known.blocks.get((group, name), {}) for name in media]
    longest = max([each for name in media for each in known.sizes.get((group, name), ())], default=0)
    first, best = {0}, 0  # what the first medium reaches, and all together
    reached = {0}
    for end, hashes in prefixes(known, prompt):
        if end > best + longest or end > most:
            break
        for at, places in enumerate(blocks):
            sizes = {abs(places[each]) for each in hashes if each in places}
            for size in sizes if block_size is None else sizes & {block_size}:
                if end - size in (reached if at else first):
                    best = end
                    reached.add(end)
                    if at == 0:
                        first.add(end)
    return best
