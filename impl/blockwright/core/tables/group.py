"""The block tables of one group of layers, in packed arrays.

One class serves every kind of layer. Kinds differ in their `WindowRule` (which positions are still needed, how long a
hit is) and in their layout (how tokens map to table entries). The life of an entry:

    a null entry is appended (widen) and gets a block (fill), or a hit brings its block (table_from_hit, adopt)
      -> the block is published once it is full, if a hit can need it (publish)
      -> the entry becomes null once no later token reads it (trim)
    When the request ends, the blocks that are left are released, last entry first (release).
"""

from __future__ import annotations

from typing import Self

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright.core.keys.packed import with_zeros, zeros32
from blockwright.core.keys.request import MAX_LENGTH, BlockKeys, Request
from blockwright.core.pool.listener import TRIMMED
from blockwright.core.pool.pool import BlockPool
from blockwright.core.tables.ask import StepRequest
from blockwright.core.tables.changes import StepScratch
from blockwright.core.tables.table import GroupTable, RequestTables
from blockwright.core.tables.window import FOR_EVER, Probe, WindowRule, rule_for
from blockwright.errors import StaleHitError
from blockwright.kinds import KVCacheSpec


class GroupTables:
    """The block tables of one group of layers, by request id.

    Attributes:
        spec: the kind of its layers.
        block_pool: the pool, shared with other groups.
        rule: which entries the kind keeps, and how long a hit is.
        sinks: leading entries that never die.
        has_spots: entries behind them may never die either, though those before and after them do.
        is_encoder: the tables cover the encoder's tokens, not the request's.
        keeps_all: no block is given back before the request ends.
        num_states: blocks that each request holds beside its table, for the states of draft tokens.
        runs_ahead, num_within: steps may run ahead of the known tokens, and such a step has so many entries for drafts.
    """

    def __init__(self, spec: KVCacheSpec, pool: BlockPool, group: i64, block_size: i64) -> None:
        """Make a group without tables; `block_size` may be a multiple of the spec's own."""
        self.spec = spec
        self.block_pool = pool
        self._group: i64 = group
        self._block_size: i64 = block_size
        self.rule: WindowRule = rule_for(spec)
        self.sinks: i64 = self.rule.sinks
        self.has_spots = self.rule.next_kept(self.sinks * block_size) < FOR_EVER
        while self.has_spots and self.rule.stays(self.sinks, block_size):
            # Where each block of a period has a position that is kept, nothing ever dies.
            self.sinks = self.sinks + 1 if self.sinks * block_size < self.rule.period(block_size) else MAX_LENGTH
            self.has_spots = self.sinks < MAX_LENGTH
        self.is_own = spec.rule() is not None
        self.is_encoder = spec.reads_encoder
        self.keeps_all = spec.reads_all
        drafts = spec.num_speculative_blocks
        self.runs_ahead = spec.runs_ahead
        self.num_states: i64 = 0 if self.runs_ahead else drafts
        self.num_within: i64 = drafts if self.runs_ahead else 0
        self._tables: dict[str, GroupTable] = {}
        # Where hits may end; beside no other groups that is not known, and all that is full is published.
        self._alignment: i64 = block_size
        self._has_margin = False
        self._publishes_all = True
        self._reads_back = False  # whatever the next token is, it reads the one before

    def align(self, alignment: i64, use_eagle: bool) -> None:
        """Say that hits end at multiples of `alignment`, so that what none can need is not published."""
        size = self._block_size
        self._alignment = alignment
        self._has_margin = use_eagle and self.rule.has_margin
        # Where a chunk ends with the block, the next token reads nothing of it, and no hit ever needs it.
        self._reads_back = self.rule.slides and self.rule.first_needed(size) < size
        self._publishes_all = self.keeps_all or (size % alignment == 0 and self._reads_back)

    def is_useful(self, entry: i64) -> bool:
        """Return whether some hit can need an entry: the shortest behind it, or one before it. O(1). law: PUB-2."""
        end = (entry + 1) * self._block_size
        start = end - self._block_size
        if (
            self._publishes_all
            or self.stays(entry)
            or (self._has_margin and start > 0 and start % self._alignment == 0)
        ):
            return True
        return self.rule.first_needed((end + self._alignment - 1) // self._alignment * self._alignment) < end

    def ends_in(self, length: i64) -> bool:
        """Return whether a hit that ends inside a block needs what is before its end there. O(1)."""
        start = length - length % self._block_size
        return self.rule.first_needed(length) < length or self.rule.next_kept(start) < max(length, start + 1)

    def num_adopted(self, length: i64) -> i64:
        """Return the entries that a hit of `length` tokens gives a table. O(1)."""
        count = length // self._block_size
        return count + 1 if length % self._block_size != 0 and self.ends_in(length) else count

    def has_blocks(self, probe: Probe, length: i64) -> bool:
        """Return whether the whole blocks that a hit of `length` tokens needs are cached. O(blocks that it needs)."""
        stop = length // self._block_size
        if self.keeps_all:
            return probe.run_end >= stop
        i: i64 = 0
        kept = self.first_kept(length)
        while i < stop:
            if i < kept:
                i = min(kept, self.next_staying(i))
            if i < stop and not probe.cached(i):
                return False
            i += 1
        return True

    def is_read(self, block: i64, length: i64, unit: i64, is_held: bool) -> bool:
        """Return whether others hold the block that a hit ends in, or may find more of it. law: WRITE-2."""
        # The part is then copied. The request itself counts among the holders if `is_held`.
        pool = self.block_pool
        holders: i64 = 1 if is_held else 0
        return pool.ref_count(block) > holders or pool.is_beyond(block, length % self._block_size // unit)

    def margin(self) -> int:
        """Return the tokens after a hit that must be cached too, and are computed again (EAGLE). O(1)."""
        return self._block_size if self._has_margin else 0

    def copy(self, pool: BlockPool) -> Self:
        twin = type(self)(self.spec, pool, self._group, self._block_size)
        twin._alignment = self._alignment
        twin._has_margin = self._has_margin
        twin._publishes_all = self._publishes_all
        twin._reads_back = self._reads_back
        twin._tables = {name: table.copy() for name, table in self._tables.items()}
        return twin

    def grows_like(self, other: GroupTables) -> bool:
        """Return whether this group's tables grow and are published with every token as those of the other."""
        is_plain = self.is_row() and not self.is_encoder and self._publishes_all
        return is_plain and self._block_size == other._block_size

    def is_like(self, other: GroupTables) -> bool:
        """Return whether the tables of a request have the same shape in both: entries, null ones, published ones."""
        # Rules of a kind of its own may differ in more.
        return not self.is_own and self._shape() == other._shape()

    def _shape(self) -> tuple[object, ...]:
        rule = (type(self), type(self.rule), self.rule.span, self.sinks, self._block_size, self.is_encoder)
        states = (self.num_states, self.num_within, self.runs_ahead)
        return (*rule, *states, self._publishes_all, self._has_margin)

    def entries_for(self, num_tokens: i64) -> i64:
        return (num_tokens + self._block_size - 1) // self._block_size

    def first_kept(self, num_tokens: i64) -> i64:
        """Return the first entry, except sinks, that is not dead at `num_tokens` settled tokens. O(1). law: TRIM-1."""
        return self.rule.first_needed(num_tokens) // self._block_size

    def stays(self, entry: i64) -> bool:
        """Return whether an entry never dies, however many tokens follow. O(1)."""
        return entry < self.sinks or (self.has_spots and self.rule.stays(entry, self._block_size))

    def next_staying(self, entry: i64) -> i64:
        """Return the first entry from `entry` on that never dies. O(1)."""
        return self.rule.next_kept(entry * self._block_size) // self._block_size

    def next_dying(self, entry: i64) -> i64:
        """Return the first entry from `entry` on that dies some day. O(those that do not)."""
        entry = max(entry, self.sinks)
        while self.has_spots and self.stays(entry):
            entry += 1
        return entry

    def num_dead(self, start: i64, stop: i64) -> i64:
        """Return how many of the entries from `start` are dead, if `stop` is the first one kept. O(those that stay)."""
        return 0 if stop <= start else self.rule.num_dead(start, stop, self._block_size)

    def slots_after(self, ask: StepRequest) -> i64:
        """Return the slots that a table covers after a step; states of drafts have blocks beside it. O(1)."""
        raise NotImplementedError

    def num_ahead(self, stop: i64, known: i64) -> i64:
        """Return the entries, of a layer that runs ahead, after a step up to `stop`. O(1). law: MAMBA-6."""
        return self.entries_for(stop) + (self.num_within if stop > known else 0)

    def first_ahead(self, ask: StepRequest) -> i64:
        """Return the first entry that a step may write to, of a layer that runs ahead. O(1). law: MAMBA-6."""
        first = (min(ask.stop, ask.known) - 1) // self._block_size
        return first - 1 if ask.checkpoint > 0 else first

    def missing_in(self, held: i64, ask: StepRequest) -> i64:
        """Return the new blocks that a table of `held` entries takes in a step. O(1)."""
        if self.runs_ahead:
            return max(0, self.num_ahead(ask.stop, ask.known) - max(held, self.first_ahead(ask)))
        return self.missing(held, self.slots_after(ask))

    def held_ahead(self, start: i64, stop: i64, known: i64) -> i64:
        """Return the blocks held in a step over the tokens start..stop-1, of a layer that runs ahead. law: PLAN-2."""
        read, first = (start - 1) // self._block_size, (min(stop, known) - 1) // self._block_size
        return self.num_ahead(stop, known) - first + (1 if start > 0 and read < first else 0)

    def most_ahead(self, steps_in_flight: i64) -> i64:
        """Return the most entries that decode steps of a layer that runs ahead may need, none of them settled."""
        return self.entries_for(steps_in_flight * (1 + self.num_within)) + 1 + self.num_within

    def note_saved(self, table: GroupTable, ask: StepRequest, written: i64) -> None:
        """Note from where on steps leave the state at block ends: a step over known tokens jumps over some."""
        first = min(ask.stop, ask.known)
        if first > max(ask.begin, written) + 1:
            table.saved = first

    def peak(self, num_tokens: i64, step: i64, num_encoder_tokens: i64) -> i64:
        """Return the most blocks that a request holds in steps of at most `step`, wherever they begin. law: PLAN-2."""
        if self.is_encoder:
            return self.entries_for(num_encoder_tokens)
        return self.rule.peak(num_tokens, step, self._block_size, 0) + self.num_states

    def period(self) -> i64:
        """Return after how many tokens `held_in_step` repeats, as long as the group keeps no more and no less. O(1)."""
        return 1 if self.is_encoder else self.rule.period(self._block_size)

    def held_in_step(self, start: i64, stop: i64, slots: i64, num_encoder_tokens: i64) -> i64:
        """Return the blocks held in a step over the tokens start..stop-1, with lookahead to `slots`. law: PLAN-2."""
        if self.is_encoder:
            return self.entries_for(num_encoder_tokens)
        size = self._block_size
        return (slots + size - 1) // size - self.num_dead(0, self.rule.first_needed(start) // size)

    def missing(self, held: i64, num_tokens: i64) -> i64:
        """Return the new blocks that a table of `held` entries takes to cover `num_tokens` slots. O(1)."""
        return max(0, self.entries_for(num_tokens) - held)

    def missing_states(self, table: GroupTable | None) -> i64:
        """Return the blocks for states of drafts that a request does not have yet; None is a request to come. O(1)."""
        if table is None:
            return self.num_states
        return self.num_states if len(table.states) == 0 or table.states[0] == 0 else 0

    def trims(self, table: GroupTable, num_tokens: i64) -> bool:
        """Return whether `num_tokens` settled tokens leave a dead entry behind that is not yet null. O(1)."""
        return self.rule.first_needed(num_tokens) >= (self.next_dying(table.num_trimmed) + 1) * self._block_size

    def trim_at(self, num_trimmed: i64) -> i64:
        """Return the settled tokens at which the next entry dies, after those that trimming has passed. O(1)."""
        return self.rule.last_needing((self.next_dying(num_trimmed) + 1) * self._block_size) + 1

    def next_death(self, table: GroupTable) -> i64:
        """Return the settled tokens at which the next entry that holds a block dies. O(null entries before it)."""
        first: i64 = self.next_dying(table.num_trimmed)
        while first < i64(len(table.blocks)) and table.blocks[first] == 0:
            first = self.next_dying(first + 1)
        return self.trim_at(first)

    def in_place_slots(self, table: GroupTable, caching: bool, certain: i64) -> i64:
        """Return up to how many slots growth changes nothing: covered, and no block becomes full. O(1).

        A state is rewritten in place up to its entry's end, unless a step may begin before that entry (`certain`).
        """
        raise NotImplementedError

    def publishes(self, table: GroupTable, num_tokens: i64) -> bool:
        """Return whether `num_tokens` tokens fill a block that is not yet published. O(1)."""
        return num_tokens >= (table.num_published + 1) * self._block_size

    def leaves_state(self, num_tokens: i64) -> bool:
        """Return whether a step that stops after `num_tokens` tokens leaves a state that may be found. O(1)."""
        return False

    def trim_gain(self, table: GroupTable, num_tokens: i64) -> i64:
        """Return how many blocks trimming would free now. O(entries that die)."""
        stop = min(self.first_kept(num_tokens), i64(len(table.blocks)))
        pool = self.block_pool
        blocks = table.blocks
        gain: i64 = 0
        i = max(table.num_trimmed, self.sinks)
        while i < stop:
            block: i64 = i64(blocks[i])
            # A block that others hold too does not become free when this request lets it go.
            if block != 0 and pool.num_holds(block) == 1 and not self.stays(i):
                gain += 1
            i += 1
        return gain

    def note_dead(self, table: GroupTable, num_tokens: i64, changes: StepScratch) -> i64:
        """Note the entries that trimming will pass; return how many of them it nulls. O(entries). law: TRIM-1."""
        blocks = table.blocks
        start = max(table.num_trimmed, self.sinks)
        # law: TRIM-2
        stop = max(start, min(self.first_kept(num_tokens), i64(len(blocks))))
        count: i64 = 0
        i = start
        while i < stop:
            if blocks[i] != 0 and not self.stays(i):
                count += 1
            i += 1
        changes.dead[self._group] = i32(start)
        changes.dead_ends[self._group] = i32(stop)
        changes.nulled_each[self._group] = i32(count)
        # The next step asks this one number, and not every group, whether anything dies.
        changes.trim_at = min(changes.trim_at, self.trim_at(stop if stop > start else table.num_trimmed))
        return count

    def trim(self, table: GroupTable, num_tokens: i64, held: i64) -> None:
        """Null and release the dead ones of the first `held` entries. O(those); takes no memory. law: TRIM-1, REF-1."""
        # law: TRIM-2
        self.trim_until(table, min(self.first_kept(num_tokens), held))

    def trim_until(self, table: GroupTable, stop: i64) -> None:
        """Replace the entries before `stop`, all of them dead, by the null block, and release their blocks."""
        start = max(table.num_trimmed, self.sinks)
        if stop <= start:
            return
        table.num_trimmed = stop
        blocks = table.blocks
        while start < stop:
            i = stop
            while i > start and not self.stays(i - 1):
                i -= 1
            self.block_pool._release(blocks, i, stop, TRIMMED)
            while stop > i:
                stop -= 1
                blocks[stop] = 0
            stop -= 1  # this one stays

    def widen(self, table: GroupTable, num_tokens: i64) -> None:
        """Append null entries up to `num_tokens` slots, for `fill`."""
        if self.runs_ahead:
            more = num_tokens // self._block_size - i64(len(table.blocks))
            if more > 0:
                table.blocks = with_zeros(table.blocks, more)
        elif i64(len(table.blocks)) * self._block_size < num_tokens:
            more = self.entries_for(num_tokens) - i64(len(table.blocks))
            if more > 0:
                table.blocks = with_zeros(table.blocks, more)

    def fill(self, table: GroupTable, num_tokens: i64, held: i64, checkpoint: i64) -> None:
        """Take the counted blocks for the entries after the first `held`; takes no memory. law: TABLE-1."""
        table.num_covered = num_tokens
        size: i64 = len(table.blocks)
        if held < min(self.sinks, size):
            # Sinks never die, so they get blocks even where the window has moved past them.
            self.block_pool._fill(table.blocks, held, min(self.sinks, size))
            held = self.sinks
        while self.has_spots and held < min(table.num_trimmed, size):
            if self.stays(held):
                self.block_pool._fill(table.blocks, held, held + 1)
            held += 1
        held = max(held, table.num_trimmed)  # a load brings nothing that is dead once it has come
        if held < size:
            self.block_pool._fill(table.blocks, held, size)

    def first_written(self, ask: StepRequest) -> i64:
        """Return the first entry that a step may write to. O(1)."""
        raise NotImplementedError

    def shared_entry(self, table: GroupTable, ask: StepRequest) -> i64:
        """Return the entry that a step writes to though others hold its block, or -1. O(1). law: WRITE-2."""
        if self.is_encoder:
            return -1
        # A step writes from its first slot on; blocks after the first are new, and no other request has them.
        entry = self.first_written(ask)
        if entry >= i64(len(table.blocks)):
            return -1
        return entry if self.block_pool.num_sharers(i64(table.blocks[entry])) > 1 else -1

    def shares_from(self, table: GroupTable, num_tokens: i64) -> bool:
        """Return whether others hold a block that is written behind `num_tokens` tokens. O(entries behind them)."""
        entry: i64 = i64(len(table.blocks)) if self.is_encoder else num_tokens // self._block_size
        while entry < i64(len(table.blocks)):
            if self.block_pool.num_sharers(i64(table.blocks[entry])) > 1:
                return True
            entry += 1
        return False

    def written_at(self, num_tokens: i64) -> i64:
        """Return the entry that the token behind `num_tokens` is written to, or -1: they fill theirs. O(1)."""
        count = self.entries_for(num_tokens)
        return -1 if self.is_encoder or self.entries_for(num_tokens + 1) > count else count - 1

    def partial_entry(self, table: GroupTable, running: RequestTables) -> i64:
        """Return the entry that is partly written, or -1, for the self-check."""
        raise NotImplementedError

    def _partly_written(self, table: GroupTable, running: RequestTables, written: i64) -> i64:
        count = self.entries_for(written)
        is_full = running.num_loading > 0 or self.entries_for(written + 1) > count
        return -1 if is_full or count > i64(len(table.blocks)) else count - 1

    def unshare(self, table: GroupTable, entry: i64) -> i64:
        """Put a new block in place of a shared one, which is to be copied to it; return it. O(1). law: COPY-2."""
        block = self.block_pool._copy_on_write(i64(table.blocks[entry]), self._group)
        table.blocks[entry] = i32(block)
        return block

    def fork_table(self, table: GroupTable, num_tokens: i64) -> GroupTable:
        """Return what covers the first tokens of a table, for another request, which holds nothing yet. O(entries)."""
        stop: i64 = len(table.blocks)
        if not self.is_encoder:
            stop = self.entries_for(num_tokens)
        covered = min(table.num_covered, num_tokens)
        return GroupTable(table.blocks[:stop], table.num_published, table.num_trimmed, covered, self._null_states())

    def fill_states(self, table: GroupTable) -> None:
        """Take the blocks for the states of drafts, which the caller has counted; takes no memory. law: MAMBA-3."""
        if self.num_states > 0 and table.states[0] == 0:
            self.block_pool._fill(table.states, 0, self.num_states)

    def state_block(self, table: GroupTable, num_tokens: i64) -> i64:
        """Return the block with the state after some tokens, accepted drafts included; 0: none. law: MAMBA-3."""
        return 0

    def publish(
        self, table: GroupTable, request: Request, units: i64, num_tokens: i64, stopped: i64, inside: i64
    ) -> None:
        """Publish what `num_tokens` tokens filled and is not yet published. O(blocks published). law: PUB-1, PUB-2.

        A state is published only where a step stopped at a block's end, or left it `inside` (law: MAMBA-7).
        """
        raise NotImplementedError

    def _publish_run(self, table: GroupTable, request: Request, units: i64, start: i64, stop: i64) -> None:
        """Publish those of a run of full blocks that some hit can need."""
        table.num_published = stop
        if self._publishes_all:
            self.block_pool._publish(table.blocks, request, units, self._group, self._block_size, start, stop)
            return
        while start < stop:
            if self.is_useful(start):
                self.block_pool._publish(table.blocks, request, units, self._group, self._block_size, start, start + 1)
            start += 1

    def publish_parts(
        self, table: GroupTable, request: Request, lengths: vec[i64], start: i64, stop: i64, unit: i64
    ) -> None:
        """Publish the parts of blocks that end with a range of lengths, where a hit needs them. law: UNIT-2."""
        pool, size = self.block_pool, self._block_size
        if self._reads_back:
            pool._publish_tails(table.blocks, request, lengths, start, stop, self._group, size, unit)
            return
        while start < stop:
            if self.ends_in(lengths[start]):
                pool._publish_tails(table.blocks, request, lengths, start, start + 1, self._group, size, unit)
            start += 1

    def awaits(self, table: GroupTable, inside: i64) -> bool:
        """Return whether the state that a step left `inside`, after so many tokens, is still to be published. O(1)."""
        return False

    def probe(self, keys: BlockKeys, max_length: i64, use_eagle: bool) -> Probe:
        """Start a lookup of at most `max_length` tokens. O(max_length / block_size), one vector."""
        margin: i64 = 1 if use_eagle and self.rule.has_margin else 0
        # The block after a hit is computed again, so it may hold the last token, which a hit may not.
        return Probe(self.block_pool, keys, self._group, self._block_size, max_length + margin, margin)

    def check_hit(self, ids: vec[i32], keys: BlockKeys, length: i64) -> None:
        """Raise `StaleHitError` unless every entry of a hit of `length` tokens still holds. O(entries)."""
        first = self.first_kept(length)
        if length % self._block_size != 0:
            ids = self._check_part(ids, keys, length)
            first = min(first, i64(len(ids)))
        at: i64 = 0
        while at < first:
            # What stays is checked on its own: between and behind, the entries up to the window must be null.
            staying = self.next_staying(at)
            if staying >= first:
                break
            self.block_pool.check_hits(ids[: staying + 1], keys, self._group, self._block_size, at, staying)
            at = staying + 1
        self.block_pool.check_hits(ids, keys, self._group, self._block_size, at, first)

    def _check_part(self, ids: vec[i32], keys: BlockKeys, length: i64) -> vec[i32]:
        """Check the part in which a hit ends inside a block; return the entries of whole blocks."""
        stop = length // self._block_size
        request = keys.request
        if i64(len(ids)) > stop and request is not None:
            request.hash_until(length // request._block_size)
            block, pool = i64(ids[stop]), self.block_pool
            if not 0 < block < pool._count or not pool.has_part(block, request, length, self._group):
                raise StaleHitError(
                    f"new_computed_blocks: block {block} at entry {stop} no longer holds this request's prefix up to "
                    f"{length} tokens; look the hit up again"
                )
        return ids[:stop]

    def dead_hits(self, ids: vec[i32], first_kept: i64) -> i64:
        """Return how many free blocks of a checked hit lie before an entry, except sinks. O(entries)."""
        free: i64 = 0
        i = self.sinks
        while i < min(first_kept, i64(len(ids))):
            if ids[i] != 0 and not self.stays(i) and self.block_pool.ref_count(i64(ids[i])) == 0:
                free += 1
            i += 1
        return free

    def table_from_hit(self, ids: vec[i32], length: i64, resumed: i64, num_slots: i64) -> GroupTable:
        """Return a table of a checked hit and of null entries up to `num_slots`, for `adopt` and `fill`. O(entries)."""
        # Entries that no token from `resumed` on reads are null as well.
        trimmed = self.first_kept(resumed)
        blocks = ids[:]
        size: i64 = len(blocks)
        i = self.sinks
        while i < min(trimmed, size):
            if not self.stays(i):
                blocks[i] = 0
            i += 1
        slots = size * self._block_size
        table = GroupTable(blocks, length // self._block_size, trimmed, slots, self._null_states())
        table.saved = length
        self.widen(table, num_slots)
        return table

    def _null_states(self) -> vec[i32]:
        """Return a null entry for the state of each draft, for `fill_states`."""
        return zeros32(self.num_states) if self.num_states > 0 else vec[i32]()

    def adopt(self, ids: vec[i32]) -> None:
        """Hold the blocks of a checked hit, the head of a table; takes no memory. O(entries). law: REF-1."""
        self.block_pool._adopt(ids)

    def share(self, ids: vec[i32]) -> None:
        """Hold the blocks of another request's table as well; takes no memory. O(entries). law: REF-1."""
        self.block_pool._touch_entries(ids)

    def release(self, table: GroupTable) -> None:
        """Give the whole table back, last entry first, the states of drafts before it. O(entries). law: REF-1."""
        if len(table.states) > 0:
            self.block_pool._release(table.states, 0, i64(len(table.states)))
        # What was trimmed is null, except for what stays.
        start: i64 = 0 if self.sinks > 0 or self.has_spots else table.num_trimmed
        self.block_pool._release(table.blocks, start, i64(len(table.blocks)))

    def open(self, request_id: str, table: GroupTable) -> None:
        assert request_id not in self._tables, "a request has one table in each group"
        self._tables[request_id] = table

    def withdraw(self, request_id: str) -> None:
        """Forget a table that holds nothing yet, if there is one."""
        if request_id in self._tables:
            del self._tables[request_id]

    def table_of(self, request_id: str) -> GroupTable | None:
        return self._tables.get(request_id)

    def existing(self, request_id: str) -> GroupTable:
        return self._tables[request_id]

    def all_tables(self) -> dict[str, GroupTable]:
        """Return the tables by request id; only to be read."""
        return self._tables

    def num_common(self, table: GroupTable, running: int, waiting: dict[int, int]) -> int:
        """Return the leading blocks in the tables of exactly `running` requests. O(blocks). law: COMMON-1."""
        # `waiting`: how often each block is in a table that computes nothing. Kinds that trim have no common blocks.
        if not self.keeps_all:
            return 0
        common = 0
        for block in table.blocks:
            sharers = int(self.block_pool.num_sharers(i64(block)))
            # A table that waits for a step or a load computes nothing, so a cascade kernel must not count it.
            if len(waiting) > 0:
                sharers -= waiting.get(int(block), 0)
            if sharers != running:
                break
            common += 1
        return common

    def is_row(self) -> bool:
        """Return whether every entry up to the covered slots holds a block unless it was trimmed."""
        return False

    def most_states(self, table: GroupTable, overlaps: bool, inside: i64) -> int:
        """Return how many blocks a table may hold at most; with steps in flight there is one state more for each."""
        return MAX_LENGTH

    def holes_ahead(self, table: GroupTable, written: int) -> list[int]:
        """Return the entries that a layer that runs ahead may read or write, and that hold no block. law: MAMBA-6."""
        if not self.runs_ahead:
            return []
        first = max(int(table.num_trimmed), (max(int(table.saved), 1) - 1) // int(self._block_size))
        return [entry for entry in range(first, int(self.entries_for(written))) if table.blocks[entry] == 0]

    def close(self, request_id: str) -> None:
        """Forget a table; its blocks have been released."""
        del self._tables[request_id]
