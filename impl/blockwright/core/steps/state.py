"""A manager's state: its configuration, the tables of each request, and the steps in flight.

Plain records: the functions of the other modules read and write them, and the pool's counters follow (law: REF-1).
"""

from __future__ import annotations

import math
from typing import Final, final

from librt.vecs import append, pop, vec
from mypy_extensions import i32, i64

from blockwright.config import KVCacheConfig
from blockwright.core.keys.packed import zeros32, zeros64
from blockwright.core.pool.blocks import KVCacheBlocks
from blockwright.core.pool.order import Wish
from blockwright.core.pool.pool import BlockPool
from blockwright.core.records.listeners import Listeners
from blockwright.core.tables.changes import StepScratch
from blockwright.core.tables.group import GroupTables
from blockwright.core.tables.table import RequestTables
from blockwright.core.worth.wanted import Wanted, classes_of

_owners = [0]

NO_HIT: Final = 2**62
"""The alignment of hits where that is more: no request is as long, and no sum of it and a count of tokens overflows."""
LAST_PROMPTS: Final = 32
"""How many prompts are remembered: requests that share a beginning seldom have more others between them."""


@final
class Left:
    """What a released request leaves behind a step or a load that still touches it. It never changes.

    Attributes:
        blocks: all that it held, per group, in the order in which it is released backwards.
        wish, wants: the hint for the blocks, and the lengths of hits that the request wanted kept.
        is_use: whether it has ended, so that its blocks count as used. One that is preempted comes back.
    """

    def __init__(self, blocks: list[vec[i32]], wish: Wish | None, wants: vec[i64], is_use: bool) -> None:
        self.blocks = blocks
        self.is_use = is_use
        self.wish = wish
        self.wants: vec[i64] = wants


@final
class StepInFlight:
    """One step: who computes how many tokens in it, and the batches of blocks that return when it is settled.

    A step is started, requests are given slots in it, and it is settled when it is known to be done. The blocks of a
    request that was released meanwhile stay behind a fence until the last step that touches them is settled (laws:
    FLIGHT-1, FENCE-1, SETTLE-1).

    Attributes:
        number: the step's number, from 1.
        tables: one per request served; the tables of a request that has been released since have no owner.
        news: tokens that each computes, drafts included.
        drafts: how many of them are drafts.
        fenced: what released requests have left, in the order in which they were released.
    """

    def __init__(self, number: i64) -> None:
        self.number: i64 = number
        self.tables: list[RequestTables] = []
        self.news: vec[i64] = vec[i64]()
        self.drafts: vec[i64] = vec[i64]()
        self.fenced: list[Left] = []

    def record(self, tables: RequestTables, new: i64, drafts: i64) -> None:
        """Record that the step computes `new` tokens of a request. O(1)."""
        news = append(self.news, new)
        noted = append(self.drafts, drafts)
        self.tables.append(tables)  # the last to take memory
        self.news = news
        self.drafts = noted

    def strike(self, tables: RequestTables | None) -> None:
        """Take back the last record if it is of these tables, even if it is incomplete. O(1)."""
        if len(self.tables) > 0 and self.tables[-1] is tables:
            self.tables.pop()
        while len(self.news) > len(self.tables):
            self.news, _ = pop(self.news)
        while len(self.drafts) > len(self.tables):
            self.drafts, _ = pop(self.drafts)

    def copy_for(self, owner: i64, running: dict[str, RequestTables]) -> StepInFlight:
        """Return a copy for another manager; requests that were released meanwhile matter no more."""
        twin = StepInFlight(self.number)
        i: i64 = 0
        while i < i64(len(self.tables)):
            tables = self.tables[i]
            # Blocks of a released request wait in `fenced`; the record of its step decides nothing any more.
            if tables.owner != 0:
                twin.tables.append(running[tables.request_id])
                twin.news = append(twin.news, self.news[i])
                twin.drafts = append(twin.drafts, self.drafts[i])
            i += 1
        twin.fenced = self.fenced[:]
        return twin


@final
class DueStates:
    """Requests with a last step that leaves a recurrent state, published once the step has run. law: MAMBA-5.

    The chain goes through the requests' own records, so that it takes no memory.
    """

    def __init__(self) -> None:
        self.first: RequestTables | None = None
        self._last: RequestTables | None = None

    def add(self, tables: RequestTables) -> None:
        """Note that a request's last step leaves a state, after all others. O(1)."""
        self.remove(tables)
        last = self._last
        if last is None:
            self.first = tables
        else:
            last.due_after = tables
        tables.due_before = last
        tables.is_due = True
        self._last = tables

    def remove(self, tables: RequestTables) -> bool:
        """Return whether a state of a request is due; from now on it is not. O(1)."""
        if not tables.is_due:
            return False
        before = tables.due_before
        after = tables.due_after
        # The links lie in the records, so that ending a request never needs memory.
        if before is None:
            self.first = after
        else:
            before.due_after = after
        if after is None:
            self._last = before
        else:
            after.due_before = before
        tables.due_before = None
        tables.due_after = None
        tables.is_due = False
        return True

    def in_order(self) -> list[RequestTables]:
        """Return the requests of which a state is due, in order. O(requests returned)."""
        found: list[RequestTables] = []
        tables = self.first
        while tables is not None:
            found.append(tables)
            tables = tables.due_after
        return found


@final
class Options:
    """How a manager was made: the options that it was given, and what follows from them. It never changes.

    Copies of a manager share it.

    Attributes:
        kv_cache_config: pool size and groups of layers.
        max_len: tokens that a request may have at most.
        unit: tokens at whose multiples hits may end inside blocks, or 0.
        caching, eagle, logs: whether prefixes are shared, a draft head recomputes a block, lookups are counted.
        overlaps, settles: whether steps are kept apart, and whether publication waits for their settlement.
        watermark: the part of the blocks that stays free when a request joins others.
        raises_never: whether a new request that could not be served even alone is an error.
        num_groups: groups of layers.
        least_size, most_size: tokens of the smallest block, and of the largest.
        alignment, whole_alignment: tokens that every hit is a multiple of, and every hit of whole blocks.
        hash_size: tokens per hashed block of requests that were made without a size.
        most_drafts: drafts that every recurrent layer can take back, -1 where there is no such layer.
        saves_states: with a unit, states of recurrent layers are found inside blocks.
        runs_ahead, drafts_within: steps of recurrent layers may run beyond the known tokens, with so many entries of a
            table for the states of drafts at most.
    """

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        max_len: i64,
        unit: i64,
        sizes: list[int],
        drafts: list[int],
        runs_ahead: bool,
        *,
        caching: bool,
        eagle: bool,
        logs: bool,
        overlaps: bool,
        settles: bool,
        watermark: float,
        raises_never: bool,
    ) -> None:
        """Take the tokens per block of each group (`sizes`), and the drafts that each recurrent one keeps states of."""
        self.kv_cache_config: Final = kv_cache_config
        self.max_len: Final[i64] = max_len
        self.unit: Final[i64] = unit
        self.caching: Final = caching
        self.eagle: Final = eagle
        self.logs: Final = logs
        self.overlaps: Final = overlaps
        self.settles: Final = settles
        self.watermark: Final = watermark
        self.raises_never: Final = raises_never
        self.num_groups: Final[i64] = len(sizes)
        self.least_size: Final[i64] = min(sizes, default=1)
        self.most_size: Final[i64] = max(sizes, default=1)
        # A common hit must end on a block boundary in every group.
        self.whole_alignment: Final[i64] = min(math.lcm(*sizes), NO_HIT)
        self.alignment: Final[i64] = unit if unit > 0 else self.whole_alignment
        self.hash_size: Final[i64] = unit if unit > 0 else math.gcd(*sizes)
        # One draft more than the shortest layer keeps could not be taken back there.
        self.most_drafts: Final[i64] = min(drafts, default=-1)
        self.saves_states: Final = unit > 0 and len(drafts) > 0
        self.runs_ahead: Final = runs_ahead
        self.drafts_within: Final[i64] = max(drafts, default=0) if runs_ahead else 0


@final
class LastPrompts:
    """The keys of the last prompts that were admitted: where no layer shows a junction, they tell where prompts part.

    None of them begins like a whole other one. law: UNIT-9.
    """

    def __init__(self, limit: int) -> None:
        self._prompts: list[vec[i64]] = [vec[i64]() for _ in range(limit)]
        self._counts: vec[i64] = zeros64(limit)

    def copy(self) -> LastPrompts:
        twin = LastPrompts(0)
        twin._prompts = self._prompts[:]
        twin._counts = self._counts[:]
        return twin

    def clear(self) -> None:
        """Forget them all. O(their limit); takes no memory."""
        at: i64 = 0
        while at < i64(len(self._counts)):
            self._counts[at] = 0
            at += 1

    def num_alike(self, words: vec[i64], count: i64) -> i64:
        """Return how many of the first `count` keys some prompt begins with. O(prompts x log keys).

        A key tells all tokens before it, so that of two prompts the keys are equal up to one, and differ behind it.
        """
        found: i64 = 0
        at: i64 = 0
        while at < i64(len(self._counts)):
            prompt = self._prompts[at]
            first, stop = found, min(count, self._counts[at])
            while first < stop:
                # Most prompts begin otherwise, so that the first key which would lengthen what is found is asked first.
                middle = found if first == found else (first + stop) // 2
                if is_key(prompt, words, middle):
                    first = middle + 1
                else:
                    stop = middle
            found = first
            at += 1
        return found

    def note(self, words: vec[i64], count: i64) -> None:
        """Note the first `count` keys of a prompt as the last, in place of one that it goes on from, or of the oldest.

        Nothing is noted that a prompt begins with. O(prompts); takes no memory.
        """
        place: i64 = 0
        at: i64 = 0
        while at < i64(len(self._counts)):
            each = min(self._counts[at], count)
            if each > 0 and is_key(self._prompts[at], words, each - 1):
                if each == count:
                    return
                place = at
            at += 1
        if count == 0 or at == 0:
            return
        while place + 1 < at:
            self._prompts[place] = self._prompts[place + 1]
            self._counts[place] = self._counts[place + 1]
            place += 1
        self._prompts[place] = words
        self._counts[place] = count


def is_key(words: vec[i64], others: vec[i64], at: i64) -> bool:
    """Return whether two prompts have a key in common, and so all tokens before it."""
    return words[2 * at] == others[2 * at] and words[2 * at + 1] == others[2 * at + 1]


def runs_of(groups: list[GroupTables]) -> vec[i32]:
    """Return, per group, where the run of groups ends whose tables have its table's shape at all times."""
    ends = zeros32(len(groups))
    at: i64 = len(groups)
    while at > 0:
        at -= 1
        is_last = at + 1 == i64(len(groups)) or not groups[at].is_like(groups[at + 1])
        ends[at] = i32(at + 1) if is_last else ends[at + 1]
    return ends


@final
class State:
    """All that changes in a manager.

    Attributes:
        config: how it was made.
        pool, groups: the blocks, and the tables of each group of layers.
        watermark: blocks that stay free when a request joins others.
        uniform_groups: all groups grow by, and publish, the same entries at the same tokens; they may trim others.
        owner: number of the manager, by which a request knows its own tables; -1 once a call ended in mid-change.
        margin: tokens after a hit that must be cached too, and are computed again.
        running: the tables of each request, oldest first.
        num_batches, num_forks, num_forgets, num_steps: batches served, forks made, times that blocks which several hold
            may have lost their keys, and steps started so far.
        steps: those in flight, oldest first.
        loads: what released requests have left behind a load.
        wanted: what requests want kept, where blocks that nothing wanted needs are evicted first.
        due: requests with a last step that leaves a recurrent state.
        changes: of the step that is being made.
        nothing: the answer of a step that takes no block.
        listeners: those who are told what a call does.
        last_prompts: what tells recurrent layers alone where prompts part, if the manager `keeps_prompts`.
    """

    def __init__(self, config: Options, pool: BlockPool, groups: list[GroupTables]) -> None:
        _owners[0] += 1
        self.config = config
        self.pool = pool
        self.watermark: i64 = int(config.watermark * pool.num_blocks)
        self.groups = groups
        for group in groups:
            group.align(config.alignment, config.eagle)
        self.uniform_groups = len(groups) > 0 and all([group.grows_like(groups[0]) for group in groups])
        self.owner: i64 = _owners[0]
        self.running: dict[str, RequestTables] = {}
        self.num_batches: i64 = 0
        self.num_forks: i64 = 0
        self.num_forgets: i64 = 0
        self.num_steps: i64 = 0
        self.steps: list[StepInFlight] = []
        self.loads: dict[str, Left] = {}
        self.due = DueStates()
        classes = classes_of(pool)
        self.wanted: Wanted | None = None
        if classes is not None:
            self.wanted = Wanted(
                pool, groups, classes, config.alignment, config.whole_alignment, config.max_len, config.eagle
            )
        self.margin: i64 = max([group.margin() for group in groups], default=0)
        self.changes = StepScratch(config.num_groups, runs_of(groups))
        self.nothing = KVCacheBlocks(pool, [vec[i32]() for _ in groups])
        self.listeners = Listeners(pool, groups)
        learns = config.caching and config.most_drafts >= 0 and (config.unit > 0 or self.wanted is not None)
        shown = any([group.keeps_all for group in groups])
        self.keeps_prompts = learns and not shown
        self.last_prompts = LastPrompts(LAST_PROMPTS if self.keeps_prompts else 0)
        order = pool._order
        self.hears_prompts = self.keeps_prompts or (order is not None and order.learns)

    def copy(self) -> State:
        pool = self.pool.copy()
        groups = [group.copy(pool) for group in self.groups]
        twin = State(self.config, pool, groups)
        for name, tables in self.running.items():
            # A new owner number: requests find the tables of the manager that they are brought to, by comparing it.
            own = tables.copy_for(twin.owner, [group.existing(name) for group in groups])
            if self.config.settles:  # settlement publishes what the request knows, which is not to change with another
                own.request = tables.request.copy()
            twin.running[name] = own
        twin.num_batches = self.num_batches
        twin.num_forks = self.num_forks
        twin.num_forgets = self.num_forgets
        twin.num_steps = self.num_steps
        twin.steps = [step.copy_for(twin.owner, twin.running) for step in self.steps]
        twin.loads = self.loads.copy()
        for tables in self.due.in_order():
            twin.due.add(twin.running[tables.request_id])
        twin.listeners = self.listeners.copy_for(pool, groups)
        twin.last_prompts = self.last_prompts.copy()
        twin.keeps_prompts, twin.hears_prompts = self.keeps_prompts, self.hears_prompts
        return twin

    def is_in_flight(self, tables: RequestTables) -> bool:
        """Return whether a step in flight computes tokens of a request. O(1). law: FLIGHT-1."""
        return len(self.steps) > 0 and tables.last_step >= self.steps[0].number

    def all_left(self) -> list[Left]:
        """Return what released requests have left behind steps and loads, oldest first. O(what is left)."""
        return [left for step in self.steps for left in step.fenced] + list(self.loads.values())

    def __enter__(self) -> None:
        """Begin a change that cannot be taken back: an error in it has all later calls refused."""

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            self.tear()

    def tear(self) -> None:
        self.owner = -1  # so that every request is looked up
        self.pool._tear()
