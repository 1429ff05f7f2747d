"""What a manager knows: how it was made, what each request holds, and which steps are in flight.

Plain records: the functions of the other modules read and write them, and the pool's counters follow (law: REF-1).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, final

from librt.vecs import append, extend, pop, vec
from mypy_extensions import i32, i64

from blockwright.config import KVCacheConfig
from blockwright.core.candidates.order import Wish
from blockwright.core.index import zeros32
from blockwright.core.outcomes import Ask, KVCacheBlocks
from blockwright.core.pool import BlockPool
from blockwright.core.request import Held, Request

if TYPE_CHECKING:
    from blockwright.core.managers import SingleTypeKVCacheManager

_owners = [0]


@final
class GroupTable:
    """One request's blocks in one group.

    Attributes:
        blocks: block ids in order of positions; 0 where nothing is held.
        num_published: leading entries that publication has passed (their full blocks carry a key).
        num_trimmed: leading entries that trimming has passed (all of them are null, but for sinks).
        num_covered: slots covered by the last growth; the tokens behind the state that a recurrent layer keeps.
        states: blocks for the states of draft tokens, of a recurrent layer only.
        in_place: slots up to which growth changes nothing: covered, and no block becomes full. A lower bound.
        num_read, read_block: the tokens that the last step of a recurrent layer with drafts began after, and the block
            that their state is read from.
    """

    def __init__(
        self, blocks: vec[i32], num_published: i64, num_trimmed: i64, num_covered: i64, states: vec[i32]
    ) -> None:
        """Take the fields as they are."""
        self.blocks: vec[i32] = blocks
        self.num_published: i64 = num_published
        self.num_trimmed: i64 = num_trimmed
        self.num_covered: i64 = num_covered
        self.states: vec[i32] = states
        self.in_place: i64 = 0
        self.num_read: i64 = 0
        self.read_block: i64 = 0

    def lengthen(self, more: i64) -> None:
        """Append null entries."""
        if more == 1:
            self.blocks = append(self.blocks, 0)
        elif more > 1:
            self.blocks = extend(self.blocks, zeros32(more))

    def copy(self) -> GroupTable:
        """Return an independent copy."""
        twin = GroupTable(self.blocks[:], self.num_published, self.num_trimmed, self.num_covered, self.states[:])
        twin.in_place = self.in_place
        twin.num_read = self.num_read
        twin.read_block = self.read_block
        return twin


@final
class RequestTables(Held):
    """One running request in one manager.

    Attributes:
        request_id: id of the request.
        uid: identity of the `Request` object and its copies, so that another request under the same id is noticed.
        request: the request as last seen, for publication on settlement.
        num_written: tokens whose slots the last call handed out for writing (lookahead not counted).
        num_certain: those of them that are no drafts or were said to be done; the engine's count cannot go below.
        num_settled: tokens that are done; kept only where steps are in flight.
        num_drafts: drafts that the last step was said to carry.
        num_loading: tokens after the written ones that are on their way from elsewhere.
        last_step: number of the last step in flight that computes tokens of it; 0: none.
        trim_at: settled tokens at which the next entry dies in some group. A lower bound.
        in_place: slots up to which serving the request changes only counts, in all groups; 0 while it loads or shares.
        is_due, due_before, due_after: its last step leaves a recurrent state that is published once that has run, and
            its neighbours in the chain of such requests.
        is_forked: it may share blocks that it has not filled, and has not written since.
        batch: number of the last batch that served it, so that a repetition within a batch is noticed.
        was_certain: the certain tokens before that batch, if it counted them in place.
        tenant, wish: whose the blocks are that it takes, by number, and what was said of them; a wish never changes.
        groups: the tables, one per group.
    """

    def __init__(self, request: Request, owner: i64, groups: list[GroupTable]) -> None:
        """Start for a request that has nothing written."""
        super().__init__(owner)
        # What a step in place reads and writes comes first, in one or two cache lines.
        self.num_written: i64 = 0
        self.num_certain: i64 = 0
        self.was_certain: i64 = 0
        self.num_drafts: i64 = 0
        self.in_place: i64 = 0
        self.batch: i64 = 0
        self.last_step: i64 = 0
        self.num_settled: i64 = 0
        self.num_loading: i64 = 0
        self.trim_at: i64 = 0
        self.is_forked = False
        self.is_due = False
        self.due_before: RequestTables | None = None
        self.due_after: RequestTables | None = None
        self.request = request
        self.request_id: str = request.request_id
        self.uid: i64 = request._uid
        self.tenant: i64 = 0
        self.wish: Wish | None = None
        self.groups = groups

    def copy_for(self, owner: i64, groups: list[GroupTable]) -> RequestTables:
        """Return a copy for another manager, which has copied the tables of the groups."""
        twin = RequestTables(self.request, owner, groups)
        twin.num_written = self.num_written
        twin.num_certain = self.num_certain
        twin.num_settled = self.num_settled
        twin.num_drafts = self.num_drafts
        twin.num_loading = self.num_loading
        twin.last_step = self.last_step
        twin.trim_at = self.trim_at
        twin.in_place = self.in_place
        twin.is_forked = self.is_forked
        twin.tenant = self.tenant
        twin.wish = self.wish
        return twin


@final
class StepInFlight:
    """One step: who computes how many tokens in it, and the batches of blocks that return when it is settled.

    A step is started, requests are given slots in it, and it is settled when it is known to be done. What a request
    held when it was released meanwhile stays behind a fence until the last step that touches it is settled (laws:
    FLIGHT-1, FENCE-1, SETTLE-1).

    Attributes:
        number: the step's number, from 1.
        tables: one per request served; one whose request has been released since has no owner.
        news: tokens that each computes, drafts included.
        drafts: how many of them are drafts.
        fenced: batches of blocks, per group, in the order in which they were given up.
        wishes: what was said of each batch.
    """

    def __init__(self, number: i64) -> None:
        """Start without requests."""
        self.number: i64 = number
        self.tables: list[RequestTables] = []
        self.news: vec[i64] = vec[i64]()
        self.drafts: vec[i64] = vec[i64]()
        self.fenced: list[list[vec[i32]]] = []
        self.wishes: list[Wish | None] = []

    def record(self, tables: RequestTables, new: i64, drafts: i64) -> None:
        """Record that the step computes `new` tokens of a request. O(1)."""
        news = append(self.news, new)
        noted = append(self.drafts, drafts)
        self.tables.append(tables)  # the last to take memory
        self.news = news
        self.drafts = noted

    def strike(self, tables: RequestTables | None) -> None:
        """Take back what was recorded last, if it was of these tables, however far it came. O(1)."""
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
            if tables.owner != 0:
                twin.tables.append(running[tables.request_id])
                twin.news = append(twin.news, self.news[i])
                twin.drafts = append(twin.drafts, self.drafts[i])
            i += 1
        twin.fenced = self.fenced[:]
        twin.wishes = self.wishes[:]
        return twin


@final
class DueStates:
    """Requests whose last step leaves a recurrent state, which is published once that has run. law: MAMBA-5.

    The chain goes through the requests' own records, so that it takes no memory.
    """

    def __init__(self) -> None:
        """Start without requests."""
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
class Changes:
    """What a step changes in the tables, beside the blocks it takes. One record serves all steps of a manager in turn.

    Attributes:
        held_each: entries that every table had before the step, the hit included, if groups are even; -1 otherwise.
        held: per group, how many it had if they are not even; see `held_in`.
        nulled: the entries that trimming nulls, group after group; those of a batch's steps follow one another.
        nulled_ends: per group, where its own end; only of a step that trims.
        num_nulled: the entries nulled before the step, by those before it in a batch.
        trimmed: per group, the leading entries that trimming will have passed; only of a step that trims.
        trim_at: settled tokens at which the next entry dies then.
        blocks: room for the blocks that all groups give back, take or publish at once; for one of each, and more.
        replaced: the entries that are copied, four numbers each: index of the request, group, entry, new block.
        request: index of the request in its batch.
        grown: entries that the step appends, in all groups.
        has_begun: something that cannot be taken back has changed in this call.
        turns, num_turns: the requests of a batch whose step is not counted in place, by index, in order.
        num_seen: how many requests of a batch were looked at; those without a turn were counted, but perhaps the last.
        any_in_place: among those with a turn there may be one whose step changes only counts.
        ask: what a request of a batch asks for, one after another.
    """

    def __init__(self, num_groups: i64) -> None:
        """Start without changes."""
        self.grown: i64 = 0
        self.has_begun = False
        self.turns: vec[i32] = vec[i32]()
        self.num_turns: i64 = 0
        self.num_seen: i64 = 0
        self.any_in_place = False
        self.ask = Ask()
        self._zeros: vec[i32] = vec[i32]()
        self.held_each: i64 = -1
        self.held: vec[i32] = zeros32(num_groups)
        self.nulled: vec[i32] = vec[i32]()
        self.nulled_ends: vec[i32] = zeros32(num_groups)
        self.num_nulled: i64 = 0
        self.trim_at: i64 = 0
        self.trimmed: vec[i32] = zeros32(num_groups)
        self.blocks: vec[i32] = zeros32(num_groups)
        self.replaced: vec[i32] = vec[i32]()
        self.request: i32 = 0

    def clear(self) -> None:
        """Start again, with memory of its own: what was told before stays as it is."""
        self.nulled = vec[i32]()
        self.replaced = vec[i32]()
        self.request = 0
        self.has_begun = False

    def start_batch(self, size: i64) -> None:
        """Start with room for the turns of so many requests."""
        self.turns = self.zeros(size)
        self.num_turns = 0
        self.num_seen = 0
        self.any_in_place = False

    def zeros(self, count: i64) -> vec[i32]:
        """Return a new vector of zeros, at the speed of a copy. O(count)."""
        if i64(len(self._zeros)) < count:
            self._zeros = zeros32(count)
        return self._zeros[:count]

    def begin(self, tables: RequestTables | None, is_even: bool) -> None:
        """Note what is held before a step, as much in all groups if they are even; None before a request is entered."""
        self.grown = 0
        self.num_nulled = i64(len(self.nulled))
        self.held_each = -1
        if tables is None:
            return
        if is_even:
            self.held_each = i64(len(tables.groups[0].blocks))
            return
        held = self.held
        at: i64 = 0
        while at < i64(len(held)):
            held[at] = i32(len(tables.groups[at].blocks))
            at += 1

    def held_in(self, group: i64) -> i64:
        """Return the entries that a group's table had before the step."""
        if self.held_each >= 0:
            return self.held_each
        return i64(self.held[group])

    def make_room(self) -> None:
        """Take the memory for the blocks that all groups give back in this step."""
        most = i64(len(self.nulled)) - self.num_nulled
        if i64(len(self.blocks)) < most:
            self.blocks = zeros32(most)


@final
class Config:
    """How a manager was made; it never changes, so copies share it.

    Attributes:
        kv_cache_config: pool size and groups of layers.
        num_groups: groups of layers.
        max_len: tokens that a request may have at most.
        alignment: tokens that every hit is a multiple of; least_size: tokens of the smallest block.
        hash_size: tokens in which requests are hashed that were made without a size of their own.
        most_drafts: drafts that every recurrent layer can take back, -1 where there is no such layer.
        caching, eagle, logs: whether prefixes are shared, a draft head recomputes a block, lookups are counted.
        overlaps, settles: whether steps are kept apart, and whether publication waits for their settlement.
        watermark: blocks that stay free when a request joins others.
        raises_never: whether a new request that could not be served even alone is an error.
    """

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        sizes: list[int],
        max_len: i64,
        alignment: i64,
        most_drafts: i64,
        caching: bool,
        eagle: bool,
        logs: bool,
        overlaps: bool,
        settles: bool,
        watermark: i64,
        raises_never: bool,
    ) -> None:
        """Take the fields as they are; `sizes` are the tokens per block of each group."""
        self.kv_cache_config = kv_cache_config
        self.num_groups: i64 = len(sizes)
        self.max_len: i64 = max_len
        self.alignment: i64 = alignment
        self.least_size: i64 = min(sizes, default=1)
        self.hash_size: i64 = math.gcd(*sizes)
        self.most_drafts: i64 = most_drafts
        self.caching = caching
        self.eagle = eagle
        self.logs = logs
        self.overlaps = overlaps
        self.settles = settles
        self.watermark: i64 = watermark
        self.raises_never = raises_never


@final
class Lookups:
    """Lookups of requests that have been admitted, and whether the cache was reset, since the last statistics.

    A request that was not admitted for the first time is counted apart.
    """

    def __init__(self) -> None:
        """Start without lookups."""
        self.was_reset = False
        self.requests: i64 = 0
        self.queries: i64 = 0
        self.hits: i64 = 0
        self.preempted_requests: i64 = 0
        self.preempted_queries: i64 = 0
        self.preempted_hits: i64 = 0

    def copy(self) -> Lookups:
        """Return an independent copy."""
        twin = Lookups()
        twin.was_reset = self.was_reset
        twin.requests = self.requests
        twin.queries = self.queries
        twin.hits = self.hits
        twin.preempted_requests = self.preempted_requests
        twin.preempted_queries = self.preempted_queries
        twin.preempted_hits = self.preempted_hits
        return twin


@final
class State:
    """All that changes in a manager.

    Attributes:
        config: how it was made.
        pool, managers: the blocks; one manager per group, with the tables.
        is_even: all groups grow by, and publish, the same entries at the same tokens; only what they trim may differ.
        owner: number of the manager, by which a request knows its own tables; -1 once a call ended in mid-change.
        running: what each request holds, oldest first.
        num_batches, num_forks, num_steps: batches served, forks made, steps started so far.
        steps: those in flight, oldest first.
        loads, load_wishes: blocks that wait for a load whose request is gone, and what was said of them.
        due: requests whose last step leaves a recurrent state.
        changes: of the step that is being made.
        nothing: the answer of a step that takes no block.
        lookups: those of requests that have been admitted, for `PrefixCacheStats`.
    """

    def __init__(self, config: Config, pool: BlockPool, managers: list[SingleTypeKVCacheManager]) -> None:
        """Start without requests."""
        _owners[0] += 1
        self.config = config
        self.pool = pool
        self.managers = managers
        for manager in managers:
            manager.align(config.alignment, config.eagle)
        self.is_even = len(managers) > 0 and all([manager.goes_with(managers[0]) for manager in managers])
        self.owner: i64 = _owners[0]
        self.running: dict[str, RequestTables] = {}
        self.num_batches: i64 = 0
        self.num_forks: i64 = 0
        self.num_steps: i64 = 0
        self.steps: list[StepInFlight] = []
        self.loads: dict[str, list[vec[i32]]] = {}
        self.load_wishes: dict[str, Wish] = {}
        self.due = DueStates()
        self.changes = Changes(config.num_groups)
        self.nothing = KVCacheBlocks(pool, [vec[i32]() for _ in managers])
        self.lookups = Lookups()

    def copy(self) -> State:
        """Return an independent copy. O(num_blocks)."""
        pool = self.pool.copy()
        managers = [manager.copy(pool) for manager in self.managers]
        twin = State(self.config, pool, managers)
        for name, tables in self.running.items():
            own = tables.copy_for(twin.owner, [manager.existing(name) for manager in managers])
            if self.config.settles:  # settlement publishes what the request knows, which is not to change with another
                own.request = tables.request.copy()
            twin.running[name] = own
        twin.num_batches = self.num_batches
        twin.num_forks = self.num_forks
        twin.num_steps = self.num_steps
        twin.steps = [step.copy_for(twin.owner, twin.running) for step in self.steps]
        twin.loads = self.loads.copy()
        twin.load_wishes = self.load_wishes.copy()
        for tables in self.due.in_order():
            twin.due.add(twin.running[tables.request_id])
        twin.lookups = self.lookups.copy()
        return twin

    def tear(self) -> None:
        """Refuse later calls: one has ended in the middle of a change."""
        self.owner = -1  # so that every request is looked up
        self.pool._tear()


def held_blocks(table: GroupTable) -> vec[i32]:
    """Return all that a table holds, in the order in which it is released backwards. O(entries)."""
    return extend(table.blocks[:], table.states)
