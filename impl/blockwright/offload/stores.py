"""Stores of device blocks: of those that a step has filled, or of those that the device is about to lose.

Where the chain has no room for all blocks of a step, the first of each request are stored: without them the others are
never found. The rest waits until there is room. Those that a request leaves on the device are stored if the device has
not given them up by then. Blocks that the device is about to lose cannot wait longer than the step does.

Where hits may end inside blocks, the parts with which a prompt ends, and all that its request has computed, are stored
as well, each as a block of its own: whoever sends the prompt again, or goes on from it, needs that part. The device has
more (chapter `units`), which would be as many copies of one block.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

from blockwright.core.keys.block_hash import hash_words
from blockwright.core.keys.request import Request
from blockwright.core.manager import KVCacheManager
from blockwright.core.pool.history import Eviction
from blockwright.core.pool.order import BlockHint
from blockwright.errors import JournalGapError, UnknownRequestError
from blockwright.events import BlockStored
from blockwright.offload.hits import GroupBlocks, groups_of, offload_key, split_key
from blockwright.offload.naming import BlockNames
from blockwright.offload.tiers.backend import SlotBackend
from blockwright.offload.tiers.chain import OffloadChain
from blockwright.offload.tiers.manager import TierManager
from blockwright.offload.tiers.transfers import Finished, StoreStart
from blockwright.offload.transfers import TransferDesk

LONGEST_WAIT: Final = 1.0
"""Seconds that a step waits for tiers to make room for what the device loses, until one has been as slow as that."""


class _Block(NamedTuple):
    """An offloaded block to be stored: its key, the device's blocks with it, its hint, and its content if known."""

    key: bytes
    ids: list[int]
    hint: BlockHint | None
    stored: BlockStored | None = None


class _Late(NamedTuple):
    """A block that waits for room, the keys of its device blocks when it was computed, and whether they are held."""

    block: _Block
    marks: list[bytes | None]
    is_held: bool


class Stores:
    """Stores of one connector that are under way, and how far each request is stored.

    Attributes:
        copies: stores under way that read evicted blocks: they must run before the next step.
        behind: running requests with computed blocks that wait for room, and how many of their tokens the last step
            left computed. The next step clears it, since it may write to them.
        num_stored, num_known, num_refused, num_failed: offloaded blocks, see `ConnectorStats`.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        chain: OffloadChain,
        desk: TransferDesk,
        names: BlockNames,
        is_early: bool,
        stores_passing: bool,
        most_waiting: int,
    ) -> None:
        """Store the blocks that steps fill if `is_early`, else those that are evicted.

        Passing ones only if `stores_passing`. Those that wait for room hold up to `most_waiting` blocks of the device.
        """
        self._names = names
        self._manager = manager
        self._chain = chain
        self._desk = desk
        self._is_early = is_early
        self._stores_passing = stores_passing
        self._per_block = chain.device_blocks_per_block
        self._capacity = capacity_of(chain)
        self._next: dict[str, list[int]] = {}  # per request and group: the first offloaded block not looked at
        self._parts: dict[str, list[tuple[int, int]]] = {}  # per request: end and group of the parts not stored yet
        self._touched: dict[str, int] = {}  # per request: how many blocks it had when all were counted as used
        self._kept: dict[str, int] = {}  # per request: how many of its blocks are stored
        self._held: dict[int, list[int]] = {}  # per store: the device blocks held for it
        self._late: dict[bytes, _Late] = {}
        self._most_waiting = most_waiting
        self._num_waiting = 0  # blocks of the device that are held for late ones
        self._until = 0.0  # when they are held no more, unless a transfer ends before
        self._stuck: int | None = None  # how many had ended when they were last held in vain
        self.behind: dict[str, tuple[Request, int]] = {}
        self._may_store_late = False  # whether late blocks may be free to be read since this was tried last
        self._given_up: int | None = None  # how many blocks had gone down when a step last waited in vain
        self._now = 0.0
        self._evictions = None if is_early else manager.read_evictions()
        self.copies: set[int] = set()
        self.num_stored = self.num_known = self.num_refused = self.num_failed = 0

    @property
    def under_way(self) -> bool:
        """Whether the end of some store has not been reported yet."""
        return bool(self._held or self.copies)

    @property
    def num_late(self) -> int:
        """Number of offloaded blocks that wait for room."""
        return len(self._late)

    def forget(self, request_id: str) -> None:
        """Start again with a request: its first blocks may be gone from the tiers."""
        self._next.pop(request_id, None)
        self._parts.pop(request_id, None)
        self._touched.pop(request_id, None)
        self._kept.pop(request_id, None)
        self.behind.pop(request_id, None)

    def end_request(self, request: Request) -> None:
        """Store its last parts, count its blocks as just used, the first as the last used, and forget a request."""
        stops = self._next.get(request.request_id)
        if self._manager.prefix_match_unit is not None and request.block_size is not None:
            groups = groups_of(self._manager, request, self._per_block)
            left = self._parts.get(request.request_id)
            ends = self._ends(groups, request, request.num_prompt_tokens) if left is None else left
            ends = [*dict.fromkeys((*ends, *self._ends(groups, request, request.num_tokens)))]
            last = [part for *_, part in self._parts_there(groups, request, ends, ())]
            self.num_refused += len(last) - self._store(last)
        if stops is not None and request.block_size is not None:
            self._touch(request, stops)
        self.forget(request.request_id)
        self._may_store_late = bool(self._late)

    def held_blocks(self) -> dict[int, int]:
        """Return how often stores hold each device block."""
        held: dict[int, int] = {}
        for blocks in [*self._held.values(), *(late.block.ids for late in self._late.values() if late.is_held)]:
            for block in blocks:
                held[block] = held.get(block, 0) + 1
        return held

    # ------------------------------------------------------------------ what is stored when

    def store_evicted(self, wanted: list[bytes] | None = None) -> None:
        """Store the contents that the device has evicted; of equal contents the first, which a step has written.

        The tiers keep the `wanted` blocks: those that a load is about to bring.
        """
        if self._evictions is None:
            return
        self._pass_time()
        victims: dict[bytes, Eviction] = {}
        try:
            evictions = self._evictions.read()
        except JournalGapError as gap:  # steps have written over what is lost by now
            self.num_refused += gap.lost
            evictions = self._evictions.read()
        for each in evictions:
            if each.is_passing and not self._stores_passing:
                continue
            # Of two evictions of one content the later may be of a block that this step writes.
            victims.setdefault(offload_key(each.block_hash, each.group), each)
        for key in wanted or ():
            self.num_known += victims.pop(key, None) is not None
        # The device gives up the last blocks of a prompt first: the first ones are the last of these.
        blocks = [_Block(key, [each.block_id], each.hint, each.stored) for key, each in reversed(victims.items())]
        self.num_refused += len(blocks[self._capacity :])
        blocks = blocks[: self._capacity]
        blocks = blocks[self._store(blocks) :]
        end = time.monotonic() + LONGEST_WAIT
        while blocks and len(self._chain.tiers) > 1 and self._given_up != self._desk.num_lowered:
            self._chain.make_room(len(blocks))
            if not self._desk.landed(end - time.monotonic()):
                self._given_up = self._desk.num_lowered
            self._chain._keep(wanted or [])
            blocks = blocks[self._store(blocks) :]
        self.num_refused += len(blocks)

    def _pass_time(self) -> None:
        """Set the tiers' time, if the engine has reported one: hints end there as on the device."""
        now = self._manager.block_pool.now
        if now > self._now:
            self._chain.advance_time(now)
            self._now = now

    def store_filled(self, requests: Iterable[Request]) -> None:
        """Store the blocks of running requests that steps have filled since the last call; others are passed over."""
        if not self._is_early:
            return
        self._pass_time()
        for request in requests:
            if request.block_size is not None:
                self._store_request(request, request.num_tokens)

    def _store_request(self, request: Request, most: int) -> None:
        manager, name = self._manager, request.request_id
        try:
            published = manager.num_published(name)
        except UnknownRequestError:
            return
        done = manager.num_settled(name) if manager.overlap_steps else request.num_computed_tokens
        # Computed tokens may include drafts, which are no tokens of the request yet.
        done = min(done, most, request.num_tokens)
        groups = groups_of(self._manager, request, self._per_block)
        stops = [
            min(blocks.count(done), count // self._per_block) for blocks, count in zip(groups, published, strict=True)
        ]
        starts = self._next.get(name, [0] * len(groups))
        parts = self._due_parts(groups, request, done) if manager.prefix_match_unit is not None else []
        if not parts and all(stop <= start for start, stop in zip(starts, stops, strict=True)):
            return
        tables = manager.get_block_ids(name)
        found = self._parts_there(groups, request, parts, tables)
        is_named = self._is_named(request)
        for blocks, table, start, stop in zip(groups, tables, starts, stops, strict=True):
            for index in range(start, stop):
                ids = table[index * self._per_block : (index + 1) * self._per_block]
                first = index * self._per_block
                wanted = self._stores_passing or manager.may_be_wanted(
                    request, blocks.number, first, first + self._per_block
                )
                if wanted and self._are_readable(blocks, index, ids):
                    hint = manager.hint_of(request, index * blocks.tokens)
                    end = (index + 1) * blocks.tokens
                    block = _Block(blocks.key(index), ids, hint, blocks.stored(end) if is_named else None)
                    found.append((end, blocks.number, index, block))
        found.sort(key=lambda each: each[:2])  # in order of the tokens
        # law: CHAIN-14
        room = max(0, self._capacity - self._kept.get(name, 0), free_of(self._chain))
        self.num_refused += len(found[room:])  # for these the request's own first blocks would have to go
        count = self._store([block for *_, block in found[:room]])
        self._kept[name] = self._kept.get(name, 0) + count
        self._next[name] = [max(start, stop) for start, stop in zip(starts, stops, strict=True)]
        for end, group, at, _ in [*found[:count], *found[room:]]:
            if at is None:
                self._parts[name].remove((end, group))
        for _, group, at, block in found[count:room]:
            if at is not None:
                self._next[name][group] = min(self._next[name][group], at)
                self._wait(block)
        self.behind.pop(name, None)
        if count < len(found[:room]):
            self.behind[name] = request, done
            self._chain.make_room(len(found[:room]) - count)
        if sum(starts) and sum(stops) > self._touched.get(name, 0) * 9 // 8:
            self._touch(request, self._next[name])

    def _is_named(self, request: Request) -> bool:
        """Return whether the contents of a request's blocks are noted."""
        names = self._names
        return names.reports or bool(names.unknown) or (request.cache_salt, request.lora_name) != (None, None)

    def _due_parts(self, groups: list[GroupBlocks], request: Request, done: int) -> list[tuple[int, int]]:
        """Return the parts of a running request to look for, now that some of its tokens are computed.

        A state that the next step writes over is found in its copy, which was made before that step ran.
        """
        name = request.request_id
        if name not in self._parts:
            self._parts[name] = self._ends(groups, request, request.num_prompt_tokens)
        elif self._parts[name]:  # one that was not published a block later never is
            self._parts[name] = [each for each in self._parts[name] if done < each[0] + 2 * groups[each[1]].tokens]
        return [(end, group) for end, group in self._parts[name] if end + (not groups[group].manager.is_row()) <= done]

    def _ends(self, groups: list[GroupBlocks], request: Request, count: int) -> list[tuple[int, int]]:
        """Return the ends and groups of the parts that the first tokens of a request end with.

        Of states also those of all but the last token: of attention the longer part serves. law: PART-2.
        """
        unit, most = self._manager.prefix_match_unit or 1, count - request.hasher.key_lookahead
        last, resent = (max(end, 0) // unit * unit for end in (most, min(most, count - 1)))
        return [
            (end, each.number)
            for end in dict.fromkeys((resent, last))
            for each in groups
            if end % each.tokens and each.manager.ends_in(end) and (end == last or not each.manager.is_row())
        ]

    def _parts_there(
        self, groups: list[GroupBlocks], request: Request, ends: list[tuple[int, int]], tables: tuple[list[int], ...]
    ) -> list[tuple[int, int, int | None, _Block]]:
        """Return those of some parts that the device has in a block which no step writes over, of these tables or free.

        A running request goes on behind its part of attention; a state it overwrites, but then a copy has it.
        """
        pool, is_named = self._manager.block_pool, self._is_named(request)
        tenant = None if request.cache_salt is None else BlockHint(request.cache_salt)
        found: list[tuple[int, int, int | None, _Block]] = []
        for end, group in ends:
            blocks, entry = groups[group], end // groups[group].tokens
            block = pool._index.find_part(*hash_words(split_key(blocks.key_to(end))[0]), group)
            is_own = bool(tables) and blocks.manager.is_row() and tables[group][entry : entry + 1] == [block]
            if block and (is_own or pool.ref_count(block) == pool.num_external_holders(block)):
                stored = blocks.stored(end) if is_named else None
                found.append((end, group, None, _Block(blocks.key_to(end), [block], tenant, stored)))
        return found

    def _touch(self, request: Request, stops: list[int]) -> None:
        """Count all blocks of a request as used, the first last, each time that it has grown by an eighth."""
        found = [
            ((index + 1) * blocks.tokens, blocks.number, blocks.key(index))
            for blocks, stop in zip(groups_of(self._manager, request, self._per_block), stops, strict=True)
            for index in range(stop)
        ]
        self._chain.touch([key for *_, key in sorted(found)])
        self._touched[request.request_id] = len(found)

    def _marks(self, ids: list[int]) -> list[bytes | None]:
        """Return under which keys device blocks are published."""
        return [self._manager.block_pool.block_key(block) for block in ids]

    def store_late(self, has_landed: bool) -> None:
        """Store blocks that had no room before, as far as the device still has them and no request may write them.

        None is held for it while nothing is under way whose end could make room, or nothing has landed for a second.
        """
        if has_landed:
            self._until = time.monotonic() + LONGEST_WAIT
        if not self._late:
            return
        if self._num_waiting and time.monotonic() >= self._until:
            self._stuck = self._desk.num_ended
            self.hold_no_late()
        if not (has_landed or self._may_store_late or self._desk.is_idle):
            return
        self._may_store_late = False
        for request, done in list(self.behind.values()):
            self._store_request(request, done)
        ready: list[_Block] = []
        pool = self._manager.block_pool
        for key, late in list(self._late.items()):
            if None in late.marks or late.marks != self._marks(late.block.ids):
                self._wait_no_more(key)
                self.num_refused += 1
            elif not any(pool.ref_count(block) > late.is_held for block in late.block.ids):
                ready.append(late.block)
        count = self._store(ready) if ready else 0
        # What fits was stored; the rest asks again when something has landed.
        if count < len(ready):
            self._chain.make_room(len(ready) - count)
            if not self._chain.num_under_way:
                self.hold_no_late()

    def hold_no_late(self) -> None:
        """Let go of what late blocks hold, the last first; they still wait as long as the device has them."""
        held = [each for late in self._late.values() if late.is_held for each in late.block.ids]
        self._late = {key: late._replace(is_held=False) for key, late in self._late.items()}
        self._num_waiting = 0
        self._manager.block_pool.free_blocks(held[::-1])

    def _wait(self, block: _Block) -> None:
        """Let a block wait for room, and hold it on the device meanwhile, if not too many are held so."""
        # The same block waits already; in other blocks of the device it is the newer copy that counts.
        before = self._late.get(block.key)
        if before is not None and before.block.ids == block.ids:
            return
        if before is not None:
            self._wait_no_more(block.key)
        marks = self._marks(block.ids)
        is_held = None not in marks and self._num_waiting + len(block.ids) <= self._most_waiting
        is_held = is_held and self._stuck != self._desk.num_ended
        if is_held:
            if not self._num_waiting:
                self._until = time.monotonic() + LONGEST_WAIT
            self._manager.block_pool.touch(block.ids)
            self._num_waiting += len(block.ids)
        self._late[block.key] = _Late(block, marks, is_held)

    def _wait_no_more(self, key: bytes) -> _Late:
        late = self._late.pop(key)
        if late.is_held:
            self._manager.block_pool.free_blocks(late.block.ids[::-1])
            self._num_waiting -= len(late.block.ids)
        return late

    def _are_readable(self, blocks: GroupBlocks, index: int, ids: list[int]) -> bool:
        """Return whether an offloaded block is of use to a hit and its blocks are there; a state may be jumped over.

        A block that no hit needs is not published, but it is as full as its neighbours. One that is published as a part
        may not be full.
        """
        pool, first = self._manager.block_pool, index * self._per_block
        useful = [block for at, block in enumerate(ids) if blocks.manager.is_useful(first + at)]
        if self._manager.prefix_match_unit is not None and [*map(pool.block_key, useful)] != [blocks.key(index)[:16]]:
            return False
        return bool(useful) and all(ids) and all(pool.is_published(block) for block in useful)

    # ------------------------------------------------------------------ one store

    def _store(self, blocks: list[_Block]) -> int:
        """Store as many of the first blocks as there is room for, and hold what is read. Return their number."""
        count = len(blocks)
        start = self._begin(blocks) if blocks else None
        if start is None:
            # The most that there is room for, in O(log blocks) questions: room for some is room for fewer.
            sizes = range(1, count)
            count = bisect_right(sizes, False, key=lambda size: not self._has_room(blocks[:size]))
            start = self._begin(blocks[:count]) if count else None
        if start is None:
            return 0
        for block in blocks[:count]:
            if block.stored is not None:
                self._names.note(block.key, block.stored)
        self.num_known += count - len(start.block_hashes_to_store)
        if start.job_id is not None and not self._is_early:
            self.copies.add(start.job_id)
        elif start.job_id is not None:
            places = {block.key: block.ids for block in blocks[:count]}
            held = [each for key in start.block_hashes_to_store for each in places[key]]
            self._manager.block_pool.touch(held)
            self._held[start.job_id] = held
        # Last first, as a request releases its blocks: so the longest prefixes stay longest.
        for block in reversed(blocks[:count]):
            if block.key in self._late:
                self._wait_no_more(block.key)
        if start.job_id is None:  # tier 0 has them; if that was all the room, what is below as well makes more
            return count + (self._store(blocks[count:]) if len(self._chain.tiers) > 1 else 0)
        return count

    def _begin(self, blocks: list[_Block]) -> StoreStart | None:
        keys, ids, hints = self._told(blocks)
        return self._chain.store(keys, ids, hints)

    def _has_room(self, blocks: list[_Block]) -> bool:
        keys, _, hints = self._told(blocks)
        return self._chain.has_room(keys, hints)

    def _told(self, blocks: list[_Block]) -> tuple[list[bytes], list[int], list[BlockHint | None] | None]:
        hints = [block.hint for block in blocks]
        return (
            [block.key for block in blocks],
            [each for block in blocks for each in block.ids],
            hints if any(hints) else None,
        )

    def end(self, done: Finished) -> None:
        """Let go of the blocks of a store that has ended, the last first, so that the longest prefixes stay longest."""
        if done.success:
            self.num_stored += len(done.block_hashes)
        else:
            self.num_failed += len(done.block_hashes)
        self.copies.discard(done.job_id)
        held = self._held.pop(done.job_id, None)
        if held:
            self._manager.block_pool.free_blocks(held[::-1])


def capacity_of(chain: OffloadChain) -> int:
    """Return how many different blocks the tiers hold."""
    return max(_places(chain)) if chain.writes_through else sum(_places(chain))


def free_of(chain: OffloadChain) -> int:
    """Return how many more blocks the tiers can take without giving up any."""
    if chain.writes_through:
        places = _places(chain)
        return chain.tiers[places.index(max(places))].num_free
    return sum(max(0, tier.num_free - kept) for tier, kept in zip(chain.tiers, [*chain._reserve, 0], strict=True))


def _places(chain: OffloadChain) -> list[int]:
    """Return the places of each tier; a tier of unknown size counts as unlimited."""
    return [
        tier.backend.num_blocks if isinstance(tier, TierManager) and isinstance(tier.backend, SlotBackend) else 1 << 60
        for tier in chain.tiers
    ]
