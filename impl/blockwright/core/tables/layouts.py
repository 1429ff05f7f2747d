"""The three layouts of a group's tables: how the tokens of a request map to entries, and which of these have blocks.

Row        every position below the covered slots has a block, until it dies
LastState  the entry with the state after the last token has a block; entries that a step jumps over are null
OneState   one entry per request, which every step overwrites: nobody can find a state
"""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from blockwright.core.keys.request import MAX_LENGTH, Request, count_of
from blockwright.core.pool.pool import BlockPool
from blockwright.core.tables.ask import StepRequest
from blockwright.core.tables.group import GroupTables
from blockwright.core.tables.table import GroupTable, RequestTables
from blockwright.core.tables.window import WindowRule
from blockwright.errors import InvalidArgumentError, UnsupportedError
from blockwright.kinds import KVCacheSpec


@final
class Row(GroupTables):
    """Every position below the covered slots has a block, until it dies: attention of all kinds."""

    def is_row(self) -> bool:
        return True

    def slots_after(self, ask: StepRequest) -> i64:
        # law: CROSS-1
        return ask.encoder if self.is_encoder else ask.slots

    def in_place_slots(self, table: GroupTable, caching: bool, certain: i64) -> i64:
        if self.is_encoder:
            return MAX_LENGTH
        size = self._block_size
        slots: i64 = i64(len(table.blocks)) * size
        # One slot less than fills the next block: that step publishes, so it is not in place.
        if caching:
            slots = min(slots, (table.num_published + 1) * size - 1)
        return slots

    def first_written(self, ask: StepRequest) -> i64:
        return ask.begin // self._block_size

    def partial_entry(self, table: GroupTable, running: RequestTables) -> i64:
        return -1 if self.is_encoder else self._partly_written(table, running, running.num_written)

    def publish(
        self, table: GroupTable, request: Request, units: i64, num_tokens: i64, stopped: i64, inside: i64
    ) -> None:
        # law: PUB-4
        stop = min(num_tokens, request.num_keyed()) // self._block_size
        if stop > table.num_published:
            self._publish_run(table, request, units, table.num_published, stop)


class LastState(GroupTables):
    """Only the entry with the state after the last token has a block; entries that a step jumps over are null."""

    def slots_after(self, ask: StepRequest) -> i64:
        return self.num_ahead(ask.stop, ask.known) * self._block_size if self.runs_ahead else ask.certain

    def missing_in(self, held: i64, ask: StepRequest) -> i64:
        more = super().missing_in(held, ask)
        # law: MAMBA-7
        return more + 1 if ask.checkpoint > 0 and not self.runs_ahead else more

    def missing(self, held: i64, num_tokens: i64) -> i64:
        # However far a step goes, only the state at its end is kept.
        return 1 if self.entries_for(num_tokens) > held else 0

    def held_in_step(self, start: i64, stop: i64, slots: i64, num_encoder_tokens: i64) -> i64:
        # The state that the step reads and the one that it writes lie in one block, which is overwritten.
        size = self._block_size
        return self.num_states + (1 if start == 0 or (start - 1) // size == (stop - 1) // size else 2)

    def in_place_slots(self, table: GroupTable, caching: bool, certain: i64) -> i64:
        if self.num_states > 0 or self.num_within > 0:
            return 0
        end: i64 = i64(len(table.blocks)) * self._block_size
        # A step that runs ahead notes which ends it jumps over: none, once all before the entry are published. As
        # long as its tokens end with the entry before, it may write over that, which a request may have hit.
        start = end - self._block_size
        if certain < start or (self.runs_ahead and (certain == start or self.publishes(table, start))):
            return 0
        return end - 1  # the step that reaches the end leaves a state

    def leaves_state(self, num_tokens: i64) -> bool:
        return num_tokens % self._block_size == 0

    def fill(self, table: GroupTable, num_tokens: i64, held: i64, checkpoint: i64) -> None:
        size: i64 = len(table.blocks)
        # law: MAMBA-1
        if self.runs_ahead:
            held = max(held, table.first_new)
        elif held < size:
            # Entries that a step jumps over keep no state; only the last one gets a block, and a checkpoint's.
            held = size - 1 if checkpoint == 0 else size - 2
        super().fill(table, num_tokens, held, 0)

    def first_written(self, ask: StepRequest) -> i64:
        return self.first_ahead(ask) if self.runs_ahead else self.entries_for(ask.certain) - 1

    def partial_entry(self, table: GroupTable, running: RequestTables) -> i64:
        return self._partly_written(table, running, running.num_certain)

    def state_block(self, table: GroupTable, num_tokens: i64) -> i64:
        if num_tokens <= 0:
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
        if stopped >= 0 and self.awaits(table, inside) and inside <= min(num_tokens, request.num_keyed()):
            end = inside // self._block_size
            self._publish_run(table, request, units, end - 1, end)
        stop = num_tokens // self._block_size
        if stop <= table.num_published or stop * self._block_size > request.num_keyed():
            return
        is_saved = self.runs_ahead and stopped >= 0 and stop * self._block_size >= table.saved
        if is_saved or (num_tokens % self._block_size == 0 and num_tokens == stopped):
            # The entries before were jumped over or hold states of tokens in the middle of a step.
            self._publish_run(table, request, units, stop - 1, stop)

    def awaits(self, table: GroupTable, inside: i64) -> bool:
        return inside > table.num_published * self._block_size

    def most_states(self, table: GroupTable, overlaps: bool, inside: i64) -> int:
        if self.runs_ahead or overlaps:
            return MAX_LENGTH
        # Beside a new checkpoint, that of the step before stays until the next step begins.
        return 4 if table.num_trimmed * self._block_size < inside else 2


@final
class OneState(LastState):
    """One entry per request, which every step overwrites. law: MAMBA-2."""

    def __init__(self, spec: KVCacheSpec, pool: BlockPool, group: i64, block_size: i64) -> None:
        super().__init__(spec, pool, group, block_size)
        self.rule = WindowRule()  # the entry never dies

    def entries_for(self, num_tokens: i64) -> i64:
        return 1 if num_tokens > 0 else 0

    def num_ahead(self, stop: i64, known: i64) -> i64:
        return self.entries_for(stop) + self.num_within

    def first_ahead(self, ask: StepRequest) -> i64:
        return 0

    def held_ahead(self, start: i64, stop: i64, known: i64) -> i64:
        return 1 + self.num_within

    def peak(self, num_tokens: i64, step: i64, num_encoder_tokens: i64) -> i64:
        return 1 + self.num_states

    def held_in_step(self, start: i64, stop: i64, slots: i64, num_encoder_tokens: i64) -> i64:
        return 1 + self.num_states

    def in_place_slots(self, table: GroupTable, caching: bool, certain: i64) -> i64:
        return 0

    def leaves_state(self, num_tokens: i64) -> bool:
        return False

    def awaits(self, table: GroupTable, inside: i64) -> bool:
        return False

    def most_states(self, table: GroupTable, overlaps: bool, inside: i64) -> int:
        return MAX_LENGTH if self.runs_ahead else 1


def group_of(spec: KVCacheSpec, pool: BlockPool, group: i64, block_size: i64) -> GroupTables:
    """Return a group without tables, in the layout of its kind; `block_size` may be a multiple of the spec's own."""
    if spec.is_recurrent:
        return (LastState if pool.enable_caching else OneState)(spec, pool, group, block_size)
    return Row(spec, pool, group, block_size)


def group_tables(spec: KVCacheSpec, pool: BlockPool, group: int, dcp_world_size: int) -> GroupTables:
    """Return a group without tables, its arguments checked; `dcp_world_size` ranks share the tokens of a block."""
    if dcp_world_size < 1:
        raise InvalidArgumentError(f"dcp_world_size: must be at least 1, not {dcp_world_size}")
    if spec.block_size * dcp_world_size > MAX_LENGTH:
        raise InvalidArgumentError(f"dcp_world_size: blocks of more than {MAX_LENGTH} tokens are too large")
    if dcp_world_size > 1 and not spec.reads_all:
        raise UnsupportedError(
            f"dcp_world_size: only full attention can share a block's tokens between ranks, not {type(spec).__name__}"
        )
    return group_of(spec, pool, count_of("kv_cache_group_id", group), spec.block_size * dcp_world_size)


def refuse_eagle(specs: list[KVCacheSpec], use_eagle: bool) -> None:
    """Raise `UnsupportedError` for EAGLE where no layer can be its draft head's: none gives up its last block."""
    if use_eagle and all([spec.chunk is not None for spec in specs]):
        raise UnsupportedError("use_eagle: chunked local attention cannot give up the last block of a hit; turn it off")
