"""Those who are told what calls do: the journal in facts, and a trace in the verbs of the block machine.

A call tells them the same, whoever listens: when it begins, what it did, and when it has ended. Nothing here fails or
takes memory, except `begins` and `call_ends`.
"""

from __future__ import annotations

from typing import final

from librt.vecs import vec
from mypy_extensions import i64

from blockwright.core.keys.packed import zeros64
from blockwright.core.keys.request import Request
from blockwright.core.pool.pool import BlockPool
from blockwright.core.pool.tape import ADVANCE, GONE, HOLDERS, NULL, WRITE
from blockwright.core.records.journal import (
    ADMIT,
    BATCH,
    EXTERNAL,
    FORGET,
    FORK,
    FREE,
    GROW,
    HIT,
    LOADED,
    LOOKUP,
    NUM_HELD,
    NUM_NEW,
    PREEMPT,
    PUBLISH,
    REFUSE,
    RESET,
    RESIZE,
    SETTLE,
    START,
    STEP,
    Journal,
)
from blockwright.core.tables.ask import StepRequest
from blockwright.core.tables.changes import StepScratch
from blockwright.core.tables.group import GroupTables
from blockwright.core.tables.table import RequestTables


@final
class Listeners:
    """The listeners of one manager.

    Attributes:
        journal: where facts are written, if anywhere. The pool writes to the same.
        lookups: the counts of `PrefixCacheStats` since it was last made, and behind them whether the cache was reset.
    """

    def __init__(self, pool: BlockPool, groups: list[GroupTables]) -> None:
        """Listen to a pool and its tables, on which a trace may be made at any time."""
        self.journal: Journal | None = None
        self.lookups: vec[i64] = zeros64(7)
        self._pool = pool
        self._groups = groups

    def copy_for(self, pool: BlockPool, groups: list[GroupTables]) -> Listeners:
        twin = Listeners(pool, groups)
        twin.lookups = self.lookups[:]
        if self.journal is not None:
            twin.journal = self.journal.copy()
            pool._listen(twin.journal)
        return twin

    def begins(self) -> None:
        """Note that a call begins that may change something. An error here must end it."""
        if self.journal is not None:
            self.journal.begins()

    def call_ends(self) -> None:
        """Note that a call has ended: facts go to those who are given each."""
        if self.journal is not None:
            self.journal._deliver()
        if self._pool._tape is not None:
            self._pool._tape.end(self._pool._num_free, self._pool._index.num_keyed)

    def _fact(self, kind: i64, name: str, tokens: i64, which: i64 = STEP, number: i64 = 0) -> None:
        """Write a fact with one more integer."""
        journal = self.journal
        if journal is not None:
            journal._say(journal._add(kind, name, tokens, self._pool._num_free), which, number)

    # ------------------------------------------------------------------ what a call did

    def looked_up(self, request: Request, hit: i64) -> None:
        self.begins()
        # Statistics count a lookup when its request is admitted; a request that waits is looked up each step.
        request._num_looked_up = request.num_tokens
        self._fact(LOOKUP, request._request_id, request.num_tokens, HIT, hit)

    def refused(self, request: Request, tokens: i64) -> None:
        self._fact(REFUSE, request._request_id, tokens)

    def served(
        self, request: Request, tables: RequestTables, ask: StepRequest, is_new: bool, changes: StepScratch
    ) -> None:
        """Note that a request was given the slots of a step. O(blocks taken), and O(its hit) of one that is new."""
        journal, replaced = self.journal, changes.replaced
        copies: i64 = changes.num_replaced  # four numbers for each copy, the last is the new block
        changed = changes.grown > 0 or len(changes.saved) > 0 or i64(len(replaced)) > copies
        if journal is not None and (is_new or changed):
            base = journal._add(ADMIT if is_new else GROW, request._request_id, ask.new, self._pool._num_free)
            for at, table in enumerate(tables.by_group):
                journal._add_blocks(base, NUM_NEW, table.blocks, changes.held_in(at), i64(len(table.blocks)))
                if is_new:
                    journal._add_blocks(base, NUM_NEW, table.states, 0, i64(len(table.states)))
            journal._add_blocks(base, NUM_NEW, changes.saved, 0, i64(len(changes.saved)))
            while copies < i64(len(replaced)):
                journal._add_blocks(base, NUM_NEW, replaced, copies + 3, copies + 4)
                copies += 4
            if is_new:
                admitted(journal, base, request, tables, ask, changes)
        if is_new:  # its lookup is counted now, apart if it was admitted before
            queries, counts = request._num_looked_up, self.lookups
            first: i64 = 3 if request._was_admitted else 0
            if queries > 0:
                counts[first] += 1
                counts[first + 1] += queries
                counts[first + 2] += ask.hit_length
            request._answer = None
            request._was_admitted = True
            request._num_looked_up = request._num_asked_outside = request._num_found_outside = 0

    def served_batch(self, tokens: i64, served: i64) -> None:
        self._fact(BATCH, "", tokens, STEP, served)

    def forked(self, child: Request, tables: RequestTables) -> None:
        journal = self.journal
        if journal is not None:
            base = journal._add(FORK, child._request_id, tables.num_written, self._pool._num_free)
            for table in tables.by_group:
                journal._add_blocks(base, NUM_NEW, table.states, 0, i64(len(table.states)))
            for table in tables.by_group:
                journal._add_blocks(base, NUM_HELD, table.blocks, 0, i64(len(table.blocks)))

    def released(self, tables: RequestTables, was_preempted: bool) -> None:
        """Note that a request has ended, or was preempted; of a load that it gives up, nothing came."""
        journal = self.journal
        if journal is not None:
            base = journal._add(PREEMPT if was_preempted else FREE, tables.request_id, 0, self._pool._num_free)
            if tables.num_loading > 0:
                know_sources(journal, base, tables.request, tables.num_written, 0, tables.is_resumed)

    def loaded(self, request: Request, tables: RequestTables | None, hit: i64, count: i64) -> None:
        """Note that a load has ended, after a hit. It has no tables if its request was released meanwhile."""
        journal = self.journal
        if journal is not None:
            base = journal._add(LOADED, request._request_id, count, self._pool._num_free)
            if tables is not None:
                know_sources(journal, base, request, hit, count, tables.is_resumed)

    def published(self, tables: RequestTables, count: i64) -> None:
        """Note that a call was made to publish, if it has published a block."""
        if self.journal is not None and self.journal.num_published > 0:
            self._fact(PUBLISH, tables.request_id, count)

    def forgot(self, name: str, is_all: bool) -> None:
        """Note that the contents of a request, of an owner, or all of them were forgotten."""
        if is_all:
            self.lookups[6] = 1
        self._fact(RESET if is_all else FORGET, name, 0)

    def resized(self) -> None:
        self._fact(RESIZE, "", 0)

    def started(self, step: i64) -> None:
        self._fact(START, "", 0, STEP, step)

    def settled(self, step: i64) -> None:
        self._fact(SETTLE, "", 0, STEP, step)

    # ------------------------------------------------------------------ for a trace

    def goes_on(self, tables: RequestTables, settled: i64) -> None:
        """Note that a request goes on with some settled tokens; until the call ends, it is the one that acts."""
        if self._pool._tape is not None:
            self._says(tables, ADVANCE, settled)

    def ends(self, tables: RequestTables, waits: bool) -> None:
        """Note that a request ends, and leaves its blocks to a step or a load if one is under way."""
        if self._pool._tape is not None:
            self._pool._tape.names[int(tables.uid % HOLDERS)] = tables.request_id
            self._says(tables, GONE, 1 if waits else 0)

    def _says(self, tables: RequestTables, verb: i64, number: i64) -> None:
        tape = self._pool._tape
        if tape is not None:
            tape.holder = tables.uid % HOLDERS
            tape.put(verb, 0, number, i64(len(tables.by_group[0].blocks)) * self._groups[0]._block_size)

    def filled(self, tables: RequestTables, ask: StepRequest | None) -> None:
        """Note the leading null entries of the tables, and the entries that a step may write to."""
        tape = self._pool._tape
        at: i64 = 0
        while tape is not None and at < i64(len(self._groups)):
            group, table = self._groups[at], tables.by_group[at]
            first: i64 = group.next_dying(0)
            while first < table.num_trimmed:
                stop = min(group.next_staying(first), table.num_trimmed)
                tape.put(NULL, at, first, stop)
                first = group.next_dying(stop)
            entry: i64 = i64(len(table.blocks))
            if ask is not None and not group.is_encoder:
                # A step that leaves a checkpoint fills the entry before its last as well.
                entry = max(0, group.first_written(ask) - (1 if ask.checkpoint > 0 and not group.is_row() else 0))
                if group.runs_ahead:  # what else it may copy holds a state that is known, and stays as it is
                    entry = max(entry, ask.begin // group._block_size)
            while entry < i64(len(table.blocks)):
                if table.blocks[entry] == 0:
                    tape.put(NULL, at, entry, entry + 1)
                else:
                    tape.put(WRITE, i64(table.blocks[entry]))
                entry += 1
            at += 1


def admitted(
    journal: Journal, base: i64, request: Request, tables: RequestTables, ask: StepRequest, changes: StepScratch
) -> None:
    """Write the hit of a request that was admitted, and where its tokens come from unless it loads. law: MET-1."""
    is_resumed = request._was_admitted
    for at, table in enumerate(tables.by_group):
        # What was copied is no block of the hit any more.
        held, copied = changes.held_in(at), changes.num_replaced
        while copied < i64(len(changes.replaced)):
            held -= 1 if i64(changes.replaced[copied + 1]) == at else 0
            copied += 4
        journal._add_blocks(base, NUM_HELD, table.blocks, 0, held)
    journal._say(base, HIT, ask.hit_length)
    journal._say(base, EXTERNAL, ask.external)
    asked, found = request._num_asked_outside, request._num_found_outside
    if asked == 0 and ask.external != 0:  # the engine did not report its lookup, but it has made one
        asked = request._num_prompt + i64(len(request._output)) - ask.hit_length
        found = asked
    found = min(found, ask.external)  # a hit counts as far as it is loaded
    journal._admit(base, request._num_looked_up, asked, found, is_resumed)
    if ask.external > 0:
        tables.is_resumed = is_resumed
    else:
        know_sources(journal, base, request, ask.hit_length, 0, is_resumed)


def know_sources(journal: Journal, base: i64, request: Request, hit: i64, external: i64, is_resumed: bool) -> None:
    """Count where the tokens of a request come from: those of its prompt, or all known ones if it is resumed."""
    tokens = request._num_prompt
    if is_resumed:
        tokens += i64(len(request._output))
    journal._know_sources(base, tokens, hit, external, is_resumed)
