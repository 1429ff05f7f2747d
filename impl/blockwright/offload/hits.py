"""External hits: how far beyond the device's own hit a request could start, if offloaded blocks were loaded.

A group needs only the blocks that a later token reads, and of those only the ones missing on the device are loaded::

    | device's own hit            | external hit                       | left to compute |
    | adopted                     | dead to L  | needed: loaded        |                 |
    0                        device hit    first kept                  L

An offloaded block holds `k` device blocks in a row of one group, and is found by the digest of the last one's prefix.

Where hits may end inside blocks (``prefix_match_unit``), L may be any multiple of the unit. Then the last block of
each group that reads of it is a *part*: a block of which only the tokens before L are of use. It is found by the
digest of the prefix up to L. A longer part of the request's own tokens serves as well, but no later state does.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from blockwright.core.keys.request import Request
from blockwright.core.manager import KVCacheManager
from blockwright.core.tables.view import GroupView
from blockwright.events import BlockStored

_GROUP_BYTES: Final = 4


class Finder(Protocol):
    """A source that finds which offloaded blocks can be loaded."""

    def lookup(self, block_hashes: Sequence[bytes]) -> int:
        """Return how many of the first blocks, in a row, can be loaded."""


class NeededBlock(NamedTuple):
    """One offloaded block that an external hit loads.

    Attributes:
        key: under which it is found.
        group: number of the group.
        first_entry: the table entry of its first device block.
        first_token, end_token: the positions that are of use in it.
    """

    key: bytes
    group: int
    first_entry: int
    first_token: int
    end_token: int


def offload_key(digest: bytes, group: int) -> bytes:
    r"""Return the key of an offloaded block: the digest of the prefix that it ends, and its group.

    >>> offload_key(b"digest", 1)
    b'digest\x01\x00\x00\x00'
    """
    return digest + group.to_bytes(_GROUP_BYTES, "little")


def split_key(key: bytes) -> tuple[bytes, int]:
    r"""Return the digest and the group of an offloaded block's key.

    >>> split_key(b'digest\x01\x00\x00\x00')
    (b'digest', 1)
    """
    return key[:-_GROUP_BYTES], int.from_bytes(key[-_GROUP_BYTES:], "little")


class GroupBlocks:
    """The offloaded blocks of one request in one group.

    Attributes:
        manager: of the group.
        number: of the group.
        tokens: in one offloaded block.
    """

    def __init__(
        self, manager: GroupView, number: int, request: Request, per_block: int, unit: int | None = None
    ) -> None:
        self.manager = manager
        self.number = number
        self.tokens = manager.block_size * per_block
        self._request = request
        self._unit = self.tokens if unit is None else unit
        self._units = self.tokens // (request.block_size or 1)
        self._ahead = request.hasher.key_lookahead

    def count(self, num_tokens: int) -> int:
        """Return how many offloaded blocks the first tokens fill, among those that have a key by now. law: PUB-4."""
        return min(num_tokens, self._request.num_keyed()) // self.tokens

    def key(self, index: int) -> bytes:
        """Return the key of offloaded block `index`; all its tokens are known. O(1)."""
        return self.key_to((index + 1) * self.tokens)

    def key_to(self, end: int) -> bytes:
        """Return the key of the block or part that ends after `end` tokens. O(1)."""
        return offload_key(self._digest(end), self.number)

    def _digest(self, end: int) -> bytes:
        return self._request.block_digest(end * self._units // self.tokens - 1)

    def parts(self, length: int) -> list[int]:
        """Return the ends of the parts of a block that hold all that a hit reads in it: that of the request's own end,
        and the shortest. law: PART-1.
        """
        last = min((length // self.tokens + 1) * self.tokens, self._request.num_keyed() // self._unit * self._unit)
        return [last, length] if self.manager.is_row() and last > length else [length]

    def stored(self, end: int) -> BlockStored:
        """Return the event by which routers know the block or part up to `end` tokens. O(tokens). law: EV-6."""
        request, start = self._request, (end - 1) // self.tokens * self.tokens
        return BlockStored(
            self._digest(end),
            self._digest(start) if start else None,
            request.token_bytes(start, end),
            end - start,
            request.lora_name,
            self.number,
            request.cache_salt,
            request.items_within(start, end + self._ahead),
            lookahead=request.token_bytes(end, end + self._ahead),
        )


def groups_of(manager: KVCacheManager, request: Request, per_block: int) -> list[GroupBlocks]:
    """Return the offloaded blocks of a request in each group."""
    unit = manager.prefix_match_unit
    return [GroupBlocks(each, at, request, per_block, unit) for at, each in enumerate(manager.managers)]


class _Probe:
    """One lookup in one group: each offloaded block is looked up once at most."""

    def __init__(self, blocks: GroupBlocks, chain: Finder, num_computed: int, num_tokens: int, per_block: int) -> None:
        self.blocks = blocks
        self._chain = chain
        self._per_block = per_block
        self._start = num_computed // blocks.manager.block_size
        self._limit = blocks.count(num_tokens)
        self._found: dict[int, bool] = {}
        self._run_end: int | None = None

    def longest(self, length: int) -> int:
        """Return the longest length of at most `length` tokens, whole blocks, that this group could be given.

        Walks down: an entry that is missing is needed by every shorter length that ends behind it, since the first
        position read never moves back as the length grows.
        """
        manager = self.blocks.manager
        if manager.keeps_all:
            return min(length // manager.block_size, self._leading_run()) * manager.block_size
        end = length // manager.block_size
        for at in manager.staying(self._start, end):
            if not self._is_found(at // self._per_block):
                end = at
                break
        at = end
        while at > max(manager.first_kept(end * manager.block_size), self._start):
            at -= 1
            if not self._is_found(at // self._per_block):
                end = at
        return end * manager.block_size

    def _leading_run(self) -> int:
        """Return the entries from the first on that the device has or that are found in a row. One lookup."""
        if self._run_end is None:
            first = self._start // self._per_block
            keys = [self.blocks.key(index) for index in range(first, self._limit)]
            run = self._chain.lookup(keys) if keys else 0
            self._run_end = max((first + run) * self._per_block, self._start)
        return self._run_end

    def _is_found(self, index: int) -> bool:
        if index >= self._limit:
            return False
        # A lower tier may be far away: no block is asked for twice within one lookup.
        found = self._found.get(index)
        if found is None:
            found = self._found[index] = self._chain.lookup([self.blocks.key(index)]) == 1
        return found

    def after_run(self) -> int:
        """Return the tokens before the first whole block that is missing, of a group that reads everything."""
        return self._leading_run() * self.blocks.manager.block_size

    def has(self, length: int) -> bool:
        """Return whether all that a hit of `length` tokens loads is found, the part that it ends in first."""
        if self._is_inside(length) and self._part(length) is None:
            return False
        if self.blocks.manager.keeps_all:
            return length // self.blocks.manager.block_size <= self._leading_run()
        return all(self._is_found(index) for index in self._indices(length))

    def _is_inside(self, length: int) -> bool:
        manager = self.blocks.manager
        return length % manager.block_size > 0 and manager.ends_in(length)

    def _part(self, length: int) -> bytes | None:
        """Return the key under which the part is found that ends a hit of `length` tokens. One or two lookups."""
        keys = [self.blocks.key_to(end) for end in self.blocks.parts(length)]
        return next((key for key in keys if self._chain.lookup([key]) == 1), None)

    def _indices(self, length: int) -> list[int]:
        manager, stop = self.blocks.manager, length // self.blocks.manager.block_size
        first = max(manager.first_kept(length), self._start)
        entries = (*manager.staying(self._start, min(first, stop)), *range(first, stop))
        return sorted({entry // self._per_block for entry in entries})

    def needed(self, length: int) -> list[NeededBlock]:
        """Return the offloaded blocks that a hit of `length` tokens loads."""
        blocks, size, per_block = self.blocks, self.blocks.tokens, self._per_block
        needed = [
            NeededBlock(blocks.key(index), blocks.number, index * per_block, index * size, (index + 1) * size)
            for index in self._indices(length)
        ]
        part = self._part(length) if self._is_inside(length) else None
        if part is not None:
            entry = length // size
            needed.append(NeededBlock(part, blocks.number, entry, entry * size, length))
        return needed


def external_hit(
    chain: Finder,
    managers: Sequence[GroupView],
    request: Request,
    num_computed: int,
    per_block: int,
    fits: Callable[[int], bool] = lambda length: True,
    unit: int | None = None,
) -> tuple[int, list[NeededBlock]]:
    """Return the longest length that the device's hit and offloaded blocks reach, and the blocks to load for it.

    The blocks are in order of the tokens. The length is a multiple of every group's block size, or of `unit`, leaves a
    token to compute, and is `num_computed` if nothing can be gained. `fits` returns whether a length can be loaded at
    all; if one cannot, no longer one can. Complexity: at most one lookup per offloaded block and group, one in all for
    full attention, and with a unit O(block / unit) more; `fits` is asked O(log blocks) times.
    """
    alignment = math.lcm(*[manager.block_size for manager in managers])
    reached = num_computed
    num_computed -= num_computed % alignment  # a load writes whole blocks; law: LOAD-2
    if unit is None and num_computed < reached:
        return reached, []
    probes = [
        _Probe(
            GroupBlocks(manager, number, request, per_block, unit), chain, num_computed, request.num_tokens, per_block
        )
        for number, manager in enumerate(managers)
    ]
    lengths = range(num_computed + alignment, request.num_tokens, alignment)
    # What an empty pool or the host cannot hold is not looked up at all.
    length = num_computed + bisect_right(lengths, False, key=lambda each: not fits(each)) * alignment
    before = -1
    # A group that shortens the hit may let another's window end elsewhere: until nothing changes any more.
    while length != before and length > num_computed:
        before = length
        for probe in probes:
            length = probe.longest(length) // alignment * alignment
    if unit is not None:
        ends = ends_inside(probes, request, max(length, reached), alignment, unit)
        length = next((end for end in ends if all(probe.has(end) for probe in probes) and fits(end)), length)
    if length <= reached:
        return reached, []
    needed = [each for probe in probes for each in probe.needed(length)]
    # If only the first ones come, they are a hit of all groups up to there.
    needed.sort(key=lambda each: (each.end_token, each.group))
    return length, needed


def ends_inside(probes: Sequence[_Probe], request: Request, length: int, alignment: int, unit: int) -> list[int]:
    """Return lengths inside blocks at which a hit longer than `length` may end, the longest first.

    That is in the block in which the hit of whole blocks ends, or in the last one that full attention has and the one
    behind it; and at the request's own end. There a recurrent layer may have left a state though it has none at the end
    of a block.
    """
    most = min(request.num_keyed(), request.num_tokens - 1) // unit * unit
    starts = [length - length % alignment]
    for probe in probes:
        if probe.blocks.manager.keeps_all:
            stop = probe.after_run()
            starts += [stop - stop % alignment - alignment, stop - stop % alignment]
            most = min(most, stop + probe.blocks.tokens - unit)
    ends = {end for start in starts for end in range(start + unit, start + alignment, unit)}
    return sorted((end for end in {*ends, most} if length < end <= most and end % alignment), reverse=True)
