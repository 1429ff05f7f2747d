"""The block tables of one group of layers, in packed arrays.

One class serves every kind of layer. Kinds differ in their `WindowRule` (which positions are still needed, how long a
hit is) and in their layout (how tokens map to table entries). The life of an entry:

    a null entry is appended (widen) and gets a block (fill), or a hit brings its block (table_from_hit, adopt)
      -> the block is published once it is full, if a hit can need it (publish)
      -> the entry becomes null once no later token reads it (trim)
    When the request ends, the blocks that are left are released, last entry first (release).
"""

from __future__ import annotations

from typing import Final

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright.core.keys.packed import with_zeros, zeros32
from blockwright.core.keys.request import MAX_LENGTH, BlockKeys, Request, count_of
from blockwright.core.pool.order.passing import PassingBlocks
from blockwright.core.pool.pool import BlockPool
from blockwright.core.tables.ask import StepRequest
from blockwright.core.tables.changes import StepScratch
from blockwright.core.tables.table import GroupTable, RequestTables
from blockwright.core.tables.window import FOR_EVER, ChunkedRule, MambaRule, Probe, SlidingRule, WindowRule
from blockwright.errors import InvalidArgumentError, StaleHitError, UnsupportedError
from blockwright.kinds import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)

ROW: Final = 0
"""Every position below the covered slots has a block."""
LAST_STATE: Final = 1
"""Only the entry with the state after the last token has a block; entries jumped over are null."""
ONE_STATE: Final = 2
"""One entry per request, overwritten by every step."""


class GroupTables:
    """The block tables of one group of layers, by request id.

    Attributes:
        spec: the kind of its layers.
        block_pool: the pool, shared with other groups.
        rule: which entries the kind keeps, and how long a hit is.
        sinks: leading entries that never die.
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
        self._layout: i64 = layout_for(spec, pool.enable_caching)
        self.is_encoder = isinstance(spec, CrossAttentionSpec)
        self.keeps_all = isinstance(spec, FullAttentionSpec)
        drafts = spec.num_speculative_blocks if isinstance(spec, MambaSpec) else 0
        self.runs_ahead = isinstance(spec, MambaSpec) and spec.runs_ahead
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
        self._has_margin = use_eagle and self._layout == ROW and not isinstance(self.rule, ChunkedRule)
        # Where a chunk ends with the block, the next token reads nothing of it, and no hit ever needs it.
        self._reads_back = not isinstance(self.rule, ChunkedRule) and self.rule.first_needed(size) < size
        self._publishes_all = self.keeps_all or (size % alignment == 0 and self._reads_back)

    def is_useful(self, entry: i64) -> bool:
        """Return whether some hit can need an entry: the shortest that ends behind it, or one that it follows. O(1).

        law: PUB-2.
        """
        end = (entry + 1) * self._block_size
        start = end - self._block_size
        if (
            self._publishes_all
            or entry < self.sinks
            or (self._has_margin and start > 0 and start % self._alignment == 0)
        ):
            return True
        return self.rule.first_needed((end + self._alignment - 1) // self._alignment * self._alignment) < end

    def ends_in(self, length: i64) -> bool:
        """Return whether a hit that ends inside a block needs what is before its end there. O(1)."""
        return self.rule.first_needed(length) < length or length // self._block_size < self.sinks

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
            if i == self.sinks:
                i = max(i, kept)
                if i >= stop:
                    break
            if not probe.cached(i):
                return False
            i += 1
        return True

    def is_read(self, block: i64, length: i64, unit: i64, is_held: bool) -> bool:
        """Return whether others hold the block in which a hit of `length` tokens ends, or may find more of it.

        A new request then gets its part as a copy. It counts among the holders if `is_held`. law: WRITE-2.
        """
        pool = self.block_pool
        holders: i64 = 1 if is_held else 0
        return pool.ref_count(block) > holders or pool.is_beyond(block, length % self._block_size // unit)

    def margin(self) -> int:
        """Return the tokens after a hit that must be cached too, and are computed again (EAGLE). O(1)."""
        return self._block_size if self._has_margin else 0

    def copy(self, pool: BlockPool) -> GroupTables:
        twin = GroupTables(self.spec, pool, self._group, self._block_size)
        twin._alignment = self._alignment
        twin._has_margin = self._has_margin
        twin._publishes_all = self._publishes_all
        twin._reads_back = self._reads_back
        twin._tables = {name: table.copy() for name, table in self._tables.items()}
        return twin

    def grows_like(self, other: GroupTables) -> bool:
        """Return whether this group's tables grow and are published with every token as those of the other."""
        is_plain = self._layout == ROW and not self.is_encoder and self._publishes_all
        return is_plain and self._block_size == other._block_size

    def is_like(self, other: GroupTables) -> bool:
        """Return whether the tables of a request have the same shape in both: entries, null ones, published ones."""
        return (
            type(self.rule) is type(other.rule)
            and self.rule.span == other.rule.span
            and self.sinks == other.sinks
            and self._block_size == other._block_size
            and self._layout == other._layout
            and self.is_encoder == other.is_encoder
            and self.num_states == other.num_states
            and self.num_within == other.num_within
            and self.runs_ahead == other.runs_ahead
            and self._publishes_all == other._publishes_all
            and self._has_margin == other._has_margin
        )

    def entries_for(self, num_tokens: i64) -> i64:
        # law: MAMBA-2
        if self._layout == ONE_STATE:
            return 1 if num_tokens > 0 else 0
        return (num_tokens + self._block_size - 1) // self._block_size

    def first_kept(self, num_tokens: i64) -> i64:
        """Return the first entry, except sinks, that is not dead at `num_tokens` settled tokens. O(1). law: TRIM-1."""
        if self._layout == ONE_STATE:
            return 0
        return self.rule.first_needed(num_tokens) // self._block_size

    def num_dead(self, start: i64, stop: i64) -> i64:
        """Return how many of the entries from `start` are dead, if `stop` is the first one kept. O(1)."""
        return max(0, stop - max(start, self.sinks))

    def slots_after(self, ask: StepRequest) -> i64:
        """Return the slots that a table covers after a step; states of drafts have blocks beside it. O(1)."""
        # law: CROSS-1
        if self.is_encoder:
            return ask.encoder
        if self.runs_ahead:
            return self.num_ahead(ask.stop, ask.known) * self._block_size
        if self._layout != ROW:
            return ask.certain
        return ask.slots

    def num_ahead(self, stop: i64, known: i64) -> i64:
        """Return the entries, of a layer that runs ahead, after a step up to `stop`. O(1). law: MAMBA-6."""
        is_ahead = stop > known or self._layout == ONE_STATE
        return self.entries_for(stop) + (self.num_within if is_ahead else 0)

    def first_ahead(self, ask: StepRequest) -> i64:
        """Return the first entry that a step may write to, of a layer that runs ahead. O(1). law: MAMBA-6."""
        if self._layout == ONE_STATE:
            return 0
        first = (min(ask.stop, ask.known) - 1) // self._block_size
        return first - 1 if ask.checkpoint > 0 else first

    def missing_in(self, held: i64, ask: StepRequest) -> i64:
        """Return the new blocks that a table of `held` entries takes in a step. O(1)."""
        if self.runs_ahead:
            return max(0, self.num_ahead(ask.stop, ask.known) - max(held, self.first_ahead(ask)))
        more = self.missing(held, self.slots_after(ask))
        # law: MAMBA-7
        return more + 1 if ask.checkpoint > 0 and self._layout == LAST_STATE else more

    def held_ahead(self, start: i64, stop: i64, known: i64) -> i64:
        """Return the blocks held in a step over the tokens start..stop-1, of a layer that runs ahead. law: PLAN-2."""
        if self._layout == ONE_STATE:
            return 1 + self.num_within
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
        if self._layout == ONE_STATE:
            return 1 + self.num_states
        return self.rule.peak(num_tokens, step, self._block_size, 0) + self.num_states

    def period(self) -> i64:
        """Return after how many tokens `held_in_step` repeats, as long as the group keeps no more and no less. O(1)."""
        if self.is_encoder or self._layout == ONE_STATE:
            return 1
        return self.rule.period(self._block_size)

    def held_in_step(self, start: i64, stop: i64, slots: i64, num_encoder_tokens: i64) -> i64:
        """Return the blocks that a request holds in a step over the tokens start..stop-1, with lookahead up to `slots`.

        O(1). law: PLAN-2.
        """
        if self.is_encoder:
            return self.entries_for(num_encoder_tokens)
        if self._layout == ONE_STATE:
            return 1 + self.num_states
        size = self._block_size
        if self._layout == LAST_STATE:
            # The state that the step reads and the one that it writes lie in one block, which is overwritten.
            same = start == 0 or (start - 1) // size == (stop - 1) // size
            return self.num_states + (1 if same else 2)
        return (slots + size - 1) // size - max(0, self.rule.first_needed(start) // size - self.sinks)

    def missing(self, held: i64, num_tokens: i64) -> i64:
        """Return the new blocks that a table of `held` entries takes to cover `num_tokens` slots. O(1)."""
        if held * self._block_size >= num_tokens:
            return 0
        if held > 0 and self._layout == ONE_STATE:
            return 0
        more = self.entries_for(num_tokens) - held
        # However far a step goes, only the state at its end is kept.
        if more > 1 and self._layout == LAST_STATE:
            return 1
        return more

    def missing_states(self, table: GroupTable | None) -> i64:
        """Return the blocks for states of drafts that a request does not have yet; None is a request to come. O(1)."""
        if table is None:
            return self.num_states
        return self.num_states if len(table.states) == 0 or table.states[0] == 0 else 0

    def trims(self, table: GroupTable, num_tokens: i64) -> bool:
        """Return whether `num_tokens` settled tokens leave a dead entry behind that is not yet null. O(1)."""
        if self._layout == ONE_STATE:
            return False
        return self.rule.first_needed(num_tokens) >= (max(table.num_trimmed, self.sinks) + 1) * self._block_size

    def trim_at(self, num_trimmed: i64) -> i64:
        """Return the settled tokens at which the next entry dies, after those that trimming has passed. O(1)."""
        if self._layout == ONE_STATE:
            return FOR_EVER
        return self.rule.last_needing((max(num_trimmed, self.sinks) + 1) * self._block_size) + 1

    def next_death(self, table: GroupTable) -> i64:
        """Return the settled tokens at which the next entry that holds a block dies. O(null entries before it)."""
        first: i64 = max(table.num_trimmed, self.sinks)
        while first < i64(len(table.blocks)) and table.blocks[first] == 0:
            first += 1
        return self.trim_at(first)

    def in_place_slots(self, table: GroupTable, caching: bool, certain: i64) -> i64:
        """Return up to how many slots growth changes nothing: covered, and no block becomes full. O(1).

        A recurrent layer rewrites the state in its last entry up to the entry's end. A step that may begin before that
        entry changes more, and so does one that keeps states of drafts. `certain` tokens cannot go back.
        """
        if self._layout != ROW:
            if self.num_states > 0 or self.num_within > 0 or self._layout == ONE_STATE:
                return 0
            end: i64 = i64(len(table.blocks)) * self._block_size
            # A step that runs ahead notes which ends it jumps over: none, once all before the entry are published. As
            # long as its tokens end with the entry before, it may write over that, which a request may have hit.
            start = end - self._block_size
            if certain < start or (self.runs_ahead and (certain == start or self.publishes(table, start))):
                return 0
            return end - 1  # the step that reaches the end leaves a state
        if self.is_encoder:
            return MAX_LENGTH
        size = self._block_size
        slots: i64 = i64(len(table.blocks)) * size
        # One slot less than fills the next block: that step publishes, so it is not in place.
        if caching:
            slots = min(slots, (table.num_published + 1) * size - 1)
        return slots

    def publishes(self, table: GroupTable, num_tokens: i64) -> bool:
        """Return whether `num_tokens` tokens fill a block that is not yet published. O(1)."""
        return num_tokens >= (table.num_published + 1) * self._block_size

    def leaves_state(self, num_tokens: i64) -> bool:
        """Return whether a step that stops after `num_tokens` tokens leaves a state that may be found. O(1)."""
        return self._layout == LAST_STATE and num_tokens % self._block_size == 0

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
            if block != 0 and pool.ref_count(block) == 1:
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
            if blocks[i] != 0:
                count += 1
            i += 1
        changes.dead[self._group] = i32(start)
        changes.dead_ends[self._group] = i32(stop)
        changes.nulled_each[self._group] = i32(count)
        # The next step asks this one number, and not every group, whether anything dies.
        changes.trim_at = min(changes.trim_at, self.trim_at(stop if stop > start else table.num_trimmed))
        return count

    def trim(self, table: GroupTable, num_tokens: i64, held: i64) -> None:
        """Replace the dead ones of the first `held` entries by the null block, and release their blocks.

        Takes no memory. Complexity: O(entries that die). law: TRIM-1, REF-1.
        """
        # law: TRIM-2
        self.trim_until(table, min(self.first_kept(num_tokens), held))

    def trim_until(self, table: GroupTable, stop: i64) -> None:
        """Replace the entries before `stop`, all of them dead, by the null block, and release their blocks."""
        start = max(table.num_trimmed, self.sinks)
        if stop <= start:
            return
        blocks = table.blocks
        self.block_pool._release(blocks, start, stop)
        self.block_pool._note_trim(blocks, start, stop)
        i = start
        while i < stop:
            blocks[i] = 0
            i += 1
        table.num_trimmed = stop

    def want(self, passing: PassingBlocks, length: i64) -> None:
        """Want the entries that a hit of `length` tokens needs, of a table that is let go of. O(1)."""
        if length > 0:
            end = self.num_adopted(length)
            if self.sinks > 0:
                passing.want(0, min(self.sinks, end))
            passing.want(self.first_kept(length), end + 1 if self._has_margin else end)

    def want_each(self, passing: PassingBlocks, every: i64, most: i64) -> None:
        """Want the entries of a table let go of that a hit of some multiple of `every` needs, up to `most`. O(1)."""
        if isinstance(self.rule, ChunkedRule):
            return
        if self.sinks > 0 and most >= every:
            passing.want(0, self.sinks)
        margin: i64 = 1 if self._has_margin else 0
        far = every << 20  # beyond the first window, each multiple needs as many entries
        period, stop = every // self._block_size, most // every * every // self._block_size
        num_last = far // self._block_size + margin - self.first_kept(far)
        if stop > 0:
            passing.want_each(period, num_last, margin, stop + margin)

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
        """Take blocks for the entries after the first `held`, which cover `num_tokens` slots now. law: TABLE-1.

        The caller has counted the blocks; takes no memory.
        """
        table.num_covered = num_tokens
        size: i64 = len(table.blocks)
        # law: MAMBA-1
        if self.runs_ahead:
            held = max(held, table.first_new)
        elif self._layout == LAST_STATE and held < size:
            # Entries that a step jumps over keep no state; only the last one gets a block, and a checkpoint's.
            held = size - 1 if checkpoint == 0 else size - 2
        if held < min(self.sinks, size):
            # Sinks never die, so they get blocks even where the window has moved past them.
            self.block_pool._fill(table.blocks, held, min(self.sinks, size))
            held = self.sinks
        held = max(held, table.num_trimmed)  # a load brings nothing that is dead once it has come
        if held < size:
            self.block_pool._fill(table.blocks, held, size)

    def first_written(self, ask: StepRequest) -> i64:
        """Return the first entry that a step may write to. O(1)."""
        if self.runs_ahead:
            return self.first_ahead(ask)
        return ask.begin // self._block_size if self._layout == ROW else self.entries_for(ask.certain) - 1

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

    def partial_entry(self, table: GroupTable, running: RequestTables) -> i64:
        """Return the entry that is partly written, or -1, for the self-check."""
        written = running.num_written if self._layout == ROW else running.num_certain
        entry = self.entries_for(written) - 1
        if (
            self.is_encoder
            or running.num_loading > 0
            or (self._layout != ONE_STATE and written % self._block_size == 0)
        ):
            return -1
        return entry if entry < i64(len(table.blocks)) else -1

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
        """Return the block with the state after `num_tokens` tokens; 0 for other kinds, or where there is none. O(1).

        After drafts were accepted that is the block of the last accepted one. law: MAMBA-3.
        """
        if self._layout == ROW or num_tokens <= 0:
            return 0
        # The last step may have overwritten the entry; a step that is repeated reads the block it read before.
        if num_tokens == table.num_read:
            return table.read_block
        accepted = num_tokens - table.num_covered
        # law: MAMBA-4
        if accepted > 0 and accepted <= i64(len(table.states)):
            return i64(table.states[accepted - 1])
        entry = self.entries_for(num_tokens) - 1
        # Where drafts have no states beside the table, a step in place goes on in its entry and covers nothing more.
        is_written = accepted <= 0 or self.num_states == 0
        return i64(table.blocks[entry]) if is_written and entry < i64(len(table.blocks)) else 0

    def publish(
        self, table: GroupTable, request: Request, units: i64, num_tokens: i64, stopped: i64, inside: i64
    ) -> None:
        """Publish what `num_tokens` tokens filled and is not yet published. O(blocks published). law: PUB-1, PUB-2.

        A recurrent state is published only where it really is the state after a whole number of blocks: where a step
        stopped, after `stopped` tokens, or `inside` it (law: MAMBA-7).
        """
        if stopped >= 0 and self.awaits(table, inside) and inside <= min(num_tokens, request.num_keyed()):
            end = inside // self._block_size
            if self.is_useful(end - 1):
                self.block_pool._publish(table.blocks, request, units, self._group, self._block_size, end - 1, end)
            table.num_published = end
        start = table.num_published
        stop = num_tokens // self._block_size
        if stop * self._block_size > request.num_keyed():
            # law: PUB-4
            stop = request.num_keyed() // self._block_size if self._layout == ROW else 0
        if stop <= start:
            return
        if self._layout != ROW:
            is_saved = self.runs_ahead and stopped >= 0 and stop * self._block_size >= table.saved
            if not is_saved and (num_tokens % self._block_size != 0 or num_tokens != stopped):
                return
            # The entries before were jumped over or hold states of tokens in the middle of a step.
            start = stop - 1
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
        return self._layout == LAST_STATE and inside > table.num_published * self._block_size

    def probe(self, keys: BlockKeys, max_length: i64, use_eagle: bool) -> Probe:
        """Start a lookup of at most `max_length` tokens. O(max_length / block_size), one vector."""
        margin: i64 = 1 if use_eagle and not isinstance(self.rule, ChunkedRule) else 0
        # The block after a hit is computed again, so it may hold the last token, which a hit may not.
        return Probe(self.block_pool, keys, self._group, self._block_size, max_length + margin, margin)

    def check_hit(self, ids: vec[i32], keys: BlockKeys, length: i64) -> None:
        """Check that every entry of a hit of `length` tokens still holds. O(entries).

        Raises:
            StaleHitError: an entry does not.
        """
        first = self.first_kept(length)
        if length % self._block_size != 0:
            ids = self._check_part(ids, keys, length)
            first = min(first, i64(len(ids)))
        pool, sinks = self.block_pool, min(self.sinks, first)
        if sinks > 0:
            # Sinks are checked on their own: behind them the entries up to the window must be null.
            pool.check_hits(ids[:sinks], keys, self._group, self._block_size, 0, 0)
        pool.check_hits(ids, keys, self._group, self._block_size, sinks, first)

    def _check_part(self, ids: vec[i32], keys: BlockKeys, length: i64) -> vec[i32]:
        """Check the part in which a hit ends inside a block; return the entries of whole blocks."""
        stop = length // self._block_size
        request = keys.request
        if i64(len(ids)) > stop and request is not None:
            count = length // request._block_size
            request.hash_until(count)
            block = i64(ids[stop])
            low, high = request._words[2 * count - 2], request._words[2 * count - 1]
            pool = self.block_pool
            if not 0 < block < pool._count or not pool.carries_tail(block, low, high, self._group):
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
            if ids[i] != 0 and self.block_pool.ref_count(i64(ids[i])) == 0:
                free += 1
            i += 1
        return free

    def table_from_hit(self, ids: vec[i32], length: i64, resumed: i64, num_slots: i64) -> GroupTable:
        """Return a table of a checked hit and null entries up to `num_slots` slots; it holds no block yet. O(entries).

        Entries that no token from `resumed` on reads are null as well. `adopt` and `fill` hold and take the blocks.
        """
        trimmed = self.first_kept(resumed)
        blocks = ids[:]
        size: i64 = len(blocks)
        i = self.sinks
        while i < min(trimmed, size):
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
        # What was trimmed is null; with sinks there are blocks before it.
        start: i64 = 0 if self.sinks > 0 else table.num_trimmed
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
        """Return the leading blocks that are in the tables of exactly `running` requests. O(blocks). law: COMMON-1.

        `waiting` gives how often each block is in a table of a load or behind a fence. These compute nothing and do not
        count. Kinds that trim have no common blocks.
        """
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
        return self._layout == ROW

    def most_states(self, table: GroupTable, overlaps: bool, inside: i64) -> int:
        """Return how many blocks a table may hold at most; with steps in flight there is one state more for each."""
        if self._layout == ROW or self.runs_ahead or (overlaps and self._layout == LAST_STATE):
            return MAX_LENGTH
        more = 1 if table.num_trimmed * self._block_size < inside else 0
        return 2 + more if self._layout == LAST_STATE else 1

    def holes_ahead(self, table: GroupTable, written: int) -> list[int]:
        """Return the entries that a layer that runs ahead may read or write, and that hold no block. law: MAMBA-6."""
        if not self.runs_ahead:
            return []
        first = max(int(table.num_trimmed), (max(int(table.saved), 1) - 1) // int(self._block_size))
        return [entry for entry in range(first, int(self.entries_for(written))) if table.blocks[entry] == 0]

    def close(self, request_id: str) -> None:
        """Forget a table; its blocks have been released."""
        del self._tables[request_id]


def rule_for(spec: KVCacheSpec) -> WindowRule:
    """Return the rule of a kind.

    Raises:
        UnsupportedError: the exact type is not a known kind.
    """
    if type(spec) is SlidingWindowSpec:
        return SlidingRule(spec.sliding_window, spec.block_size, spec.sink_len)
    if type(spec) is ChunkedLocalAttentionSpec:
        return ChunkedRule(spec.attention_chunk_size)
    if type(spec) is MambaSpec:
        return MambaRule()
    if type(spec) is FullAttentionSpec or type(spec) is CrossAttentionSpec:
        return WindowRule()
    raise UnsupportedError(f"kv_cache_spec: no manager for {type(spec).__name__}; use a kind of blockwright.kinds")


def layout_for(spec: KVCacheSpec, enable_caching: bool) -> i64:
    if isinstance(spec, MambaSpec):
        return LAST_STATE if enable_caching else ONE_STATE
    return ROW


def group_tables(spec: KVCacheSpec, pool: BlockPool, group: int, dcp_world_size: int) -> GroupTables:
    """Return a group without tables, its arguments checked; `dcp_world_size` ranks share the tokens of a block.

    Raises:
        InvalidArgumentError: an argument is out of range.
        UnsupportedError: `dcp_world_size` above 1 for another kind than full attention; the type is not a known kind.
    """
    if dcp_world_size < 1:
        raise InvalidArgumentError(f"dcp_world_size: must be at least 1, not {dcp_world_size}")
    if spec.block_size * dcp_world_size > MAX_LENGTH:
        raise InvalidArgumentError(f"dcp_world_size: blocks of more than {MAX_LENGTH} tokens are too large")
    if dcp_world_size > 1 and not isinstance(spec, FullAttentionSpec):
        raise UnsupportedError(
            f"dcp_world_size: only full attention can share a block's tokens between ranks, not {type(spec).__name__}"
        )
    return GroupTables(spec, pool, count_of("kv_cache_group_id", group), spec.block_size * dcp_world_size)


def refuse_eagle(specs: list[KVCacheSpec], use_eagle: bool) -> None:
    """Raise `UnsupportedError` for EAGLE where no layer can be its draft head's: none gives up its last block."""
    if use_eagle and all([isinstance(spec, ChunkedLocalAttentionSpec) for spec in specs]):
        raise UnsupportedError("use_eagle: chunked local attention cannot give up the last block of a hit; turn it off")
