"""Which entries a layer kind keeps, and how long a hit is.

Each rule answers: from which position on does a token at position n or later still read (`first_needed`), and how long
is the longest hit up to a length (`longest`). The specification defines both as sets (chapter `reads`); that these
closed forms equal the sets is proved for all integers by the conformance kit.

    full      0                 every block of the prefix must be cached
    sliding   n - W + 1         the last ceil((W - 1) / block_size) blocks; with sinks the first blocks as well
    chunked   n // C * C        the blocks since the chunk's start
    mamba     n - 1             the one block with the state

A hit of several groups is the longest length that suits all of them (`common_hit`).
"""

from __future__ import annotations

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i32, i64, mypyc_attr

from blockwright.core.keys.packed import zeros32
from blockwright.core.keys.request import BlockKeys
from blockwright.core.pool.store import BlockStore
from blockwright.errors import UnsupportedError
from blockwright.kinds import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)

FOR_EVER: Final = 2**40
"""More tokens than any request has."""


@final
class Probe:
    """One lookup of one request in one group: each block is looked up once at most, however often it is asked for.

    Attributes:
        block_size: tokens per block.
        margin: blocks after the hit that must be cached too, and are recomputed (EAGLE): 0 or 1.
        limit: blocks that can be asked for, the margin included.
        run_end: length of the leading run of cached blocks, -1 before it was asked for.
        lowest: the first block that a search from the end down has come to.
        leaves_out: count candidates that are evicted before all others as missing, for a kind whose blocks are looked
            up from the end down.
        is_restored: blocks and parts with lost keys count as cached.
    """

    def __init__(
        self, store: BlockStore, keys: BlockKeys, group: i64, block_size: i64, max_length: i64, margin: i64
    ) -> None:
        self._store = store
        self._keys = keys
        self._group: i64 = group
        self.block_size: i64 = block_size
        self.margin: i64 = margin
        self.run_end: i64 = -1
        self.limit: i64 = min(max_length // block_size, keys.num_blocks())
        self.lowest: i64 = self.limit
        self.leaves_out: bool = False
        self.is_restored: bool = False
        # Per block: 0 before it was looked up, -1 if it is missing, else the block that serves. Empty before the first.
        self._ids: vec[i32] = vec[i32]()

    def cached(self, index: i64) -> bool:
        """Return whether the request's block `index` is cached, and within the length asked for. O(1)."""
        if index >= self.limit:
            return False
        ids = self._served()
        block: i64 = i64(ids[index])
        if block == 0:
            block = self._store.find(self._keys, index, self._group, self.block_size)
            if block == 0 or (self.leaves_out and self._store.all_pass(block)):
                # A miss is remembered as well: rules ask for the same block again each time a candidate is shortened.
                block = -1
            ids[index] = i32(block)
        return block > 0

    def _served(self) -> vec[i32]:
        if len(self._ids) == 0:
            self._ids = zeros32(self.limit)
        return self._ids

    def loss(self, index: i64) -> i64:
        """Return how the key of the request's block `index` was lost, as `BlockStore.loss`. O(1)."""
        return self._store.loss(self._keys, index, self._group)

    def restore(self) -> None:
        """Count blocks and parts with lost keys as cached from now on. O(blocks)."""
        self.is_restored = True
        self.run_end = 0
        i: i64 = 0
        while i < self.limit:
            if not self.cached(i) and self.loss(i) > 0:
                # Any id will do, because an explanation only counts blocks and hands none out.
                self._ids[i] = 1
            if self._ids[i] > 0 and self.run_end == i:
                self.run_end = i + 1
            i += 1

    def fill_run(self) -> i64:
        """Look up the leading run of cached blocks; return its length. O(run), and O(1) if there is none."""
        # Most prompts are new. One lookup finds that out before a vector for the whole prompt is made.
        if self.limit == 0 or self._store.find(self._keys, 0, self._group, self.block_size) == 0:
            return 0
        return self._store.find_run(self._served(), self._keys, self._group, self.block_size, 0, self.limit)

    def fill_back(self, start: i64, stop: i64) -> None:
        """Look up the blocks start, start - 1, ... `stop`, up to a missing one, in one go. O(blocks)."""
        if start >= stop and not self.leaves_out and self._served()[start] == 0:
            self._store.find_back(self._served(), self._keys, self._group, start, stop)

    def last_run(self, length: i64, run: i64, margin: i64) -> i64:
        """Return the longest length of at most `length`, whole blocks, after `run` cached blocks in a row.

        `margin` more blocks must be cached after it; a row that begins at block 0 may be shorter. Walks down::

            | null ... null | i: row of cached blocks ... | end | margin | not cached or not read ...
        """
        end = min(length // self.block_size, self.limit) + margin
        i = end
        self.fill_back(min(end, self.limit) - 1, max(end - run - margin, 0))
        while i > 0 and end - i < run + margin:
            i -= 1
            # A miss ends every row that contains it: the search goes on for one that ends before it.
            if not self.cached(i):
                end = i
        self.lowest = min(self.lowest, i)
        return max(end - margin, 0) * self.block_size

    def entries(self, length: i64, rule: WindowRule, first_kept: i64) -> vec[i32]:
        """Return the table entries of a hit: the cached blocks, those that are dead null. O(entries)."""
        # Entries that no search has come to are null already: a window looks at few of a long prompt.
        stop = length // self.block_size
        # A probe serves one lookup, so that its own vector can be handed out when nothing is cut off.
        ids = self._served() if stop == self.limit else self._served()[:stop]
        i = self.lowest
        while i < first_kept:
            if not rule.stays(i, self.block_size):
                ids[i] = 0
            i += 1
        return ids


@mypyc_attr(allow_interpreted_subclasses=True)
class WindowRule:
    """Base: full attention, which keeps everything; a hit is a leading run of blocks.

    Attributes:
        asks_upwards: the blocks of a hit are looked up from the first one on, so that a miss ends the search at once.
        slides: beyond the first window, each length needs as many tokens before it; not so with chunks.
        has_margin: a layer of this kind may be a draft head's, which computes the block behind a hit again (EAGLE).
        span: tokens of the window or the chunk; 0 for other kinds.
        sinks: blocks at the head of a table that every later token reads, whatever `first_needed` returns.

    A kind of your own derives its rule from this or from `SlidingRule`, see "Add a kind" in CONTRIBUTING.
    """

    def __init__(self, asks_upwards: bool = True, sinks: i64 = 0, span: i64 = 0) -> None:
        self.asks_upwards = asks_upwards
        self.slides = True
        self.has_margin = True
        self.sinks: i64 = sinks
        self.span: i64 = span

    def first_needed(self, num_tokens: i64) -> i64:
        """Return the first position, but those kept, that a token at `num_tokens` or later reads. O(1). law: TRIM-1."""
        return 0

    def next_kept(self, position: i64) -> i64:
        """Return the first position from `position` on that every later token reads, whatever `first_needed` says."""
        return FOR_EVER

    def stays(self, entry: i64, block_size: i64) -> bool:
        """Return whether an entry never dies: it has a position that every later token reads."""
        return self.next_kept(entry * block_size) // block_size == entry

    def num_dead(self, start: i64, stop: i64, block_size: i64) -> i64:
        """Return how many of the entries from `start` to `stop`, of which no window is left, are dead."""
        first = max(start, self.sinks)
        if self.next_kept(first * block_size) >= FOR_EVER:
            return max(0, stop - first)
        dead: i64 = 0
        while start < stop:
            kept = min(self.next_kept(start * block_size) // block_size, stop)
            dead += kept - start
            start = kept + 1
        return dead

    def last_needing(self, position: i64) -> i64:
        """Return the largest n with ``first_needed(n) < position``, which is at least 1. O(1)."""
        return FOR_EVER

    def period(self, block_size: i64) -> i64:
        """Return after how many tokens a token reads as many blocks again, or as many more each time. O(1)."""
        return 1

    def longest(self, probe: Probe, length: i64) -> i64:
        """Return the longest hit of at most `length` tokens, whole blocks. law: HIT-1."""
        if probe.run_end < 0:
            probe.run_end = probe.fill_run()
        return min(length // probe.block_size, max(probe.run_end - probe.margin, 0)) * probe.block_size

    def peak(self, slots: i64, step: i64, block_size: i64, begin: i64) -> i64:
        """Return the most blocks held while the slots begin..slots-1 are filled, `step` at a time. law: PLAN-2."""
        last = max(slots - step, begin)
        most: i64 = 0
        start = last
        # The last starts are enough: the count repeats, and an earlier step never holds more.
        while start >= begin and start > last - self.period(block_size):
            stop = min(start + step, slots)
            dead = self.num_dead(0, self.first_needed(start) // block_size, block_size)
            most = max(most, (stop + block_size - 1) // block_size - dead)
            start -= 1
        return most


@mypyc_attr(allow_interpreted_subclasses=True)
class SlidingRule(WindowRule):
    """A window of W tokens, the reading token included; a hit ends with `hit_run` cached blocks in a row.

    Behind the window, sinks are kept, or what a kind of its own says: a hit has their blocks, too.
    """

    def __init__(self, window: i64, block_size: i64, sink_len: i64 = 0) -> None:
        super().__init__(False, (sink_len + block_size - 1) // block_size, window)
        self.hit_run: i64 = (window - 1 + block_size - 1) // block_size
        self.sink_len: i64 = sink_len

    def first_needed(self, num_tokens: i64) -> i64:
        return max(0, num_tokens - self.span + 1)

    def next_kept(self, position: i64) -> i64:
        return position if position < self.sink_len else FOR_EVER

    def last_needing(self, position: i64) -> i64:
        return position + self.span - 2

    def period(self, block_size: i64) -> i64:
        return block_size

    def longest(self, probe: Probe, length: i64) -> i64:
        kept = self.next_kept(0)
        while kept < length:
            entry = kept // probe.block_size
            # A missing one ends the hit there: all later tokens read it.
            if not probe.cached(entry):
                length = entry * probe.block_size
            kept = self.next_kept((entry + 1) * probe.block_size)
        return probe.last_run(length, self.hit_run, probe.margin)


class ChunkedRule(WindowRule):
    """Chunks of C tokens; a token reads its own chunk."""

    def __init__(self, chunk: i64) -> None:
        super().__init__(False, 0, chunk)
        self.slides = self.has_margin = False

    def first_needed(self, num_tokens: i64) -> i64:
        return num_tokens // self.span * self.span

    def last_needing(self, position: i64) -> i64:
        return (position - 1) // self.span * self.span + self.span - 1

    def period(self, block_size: i64) -> i64:
        return self.span

    def peak(self, slots: i64, step: i64, block_size: i64, begin: i64) -> i64:
        """Return the most blocks held, which is at the end of the slots or of a chunk. O(1). law: PLAN-2."""
        start = max(slots - step, begin)
        most = (min(start + step, slots) + block_size - 1) // block_size - self.first_needed(start) // block_size
        start = (start + 1) // self.span * self.span - 1
        if start >= begin:
            stop = min(start + step, slots)
            most = max(most, (stop + block_size - 1) // block_size - self.first_needed(start) // block_size)
        return most

    def longest(self, probe: Probe, length: i64) -> i64:
        end = length // probe.block_size
        i = self.first_needed(length) // probe.block_size
        while i < end and probe.cached(i):
            i += 1
        return i * probe.block_size


class MambaRule(WindowRule):
    """A recurrent state: a token reads the state after the token before it."""

    def __init__(self) -> None:
        super().__init__(False)
        self.has_margin = False

    def first_needed(self, num_tokens: i64) -> i64:
        return max(0, num_tokens - 1)

    def last_needing(self, position: i64) -> i64:
        return position

    def period(self, block_size: i64) -> i64:
        return block_size

    def peak(self, slots: i64, step: i64, block_size: i64, begin: i64) -> i64:
        """Return the state read and the state written, unless they share a block wherever a step stops."""
        return 2 if (slots - 1) // block_size * block_size >= max(begin, 1) else 1

    def longest(self, probe: Probe, length: i64) -> i64:
        """Return the last cached state of at most `length` tokens."""
        return probe.last_run(length, 1, 0)


def rule_for(spec: KVCacheSpec) -> WindowRule:
    """Return the rule of a kind; raise `UnsupportedError` for a type that is not known and states none."""
    stated = spec.rule()
    if isinstance(stated, WindowRule):
        return stated
    if type(spec) is SlidingWindowSpec:
        return SlidingRule(spec.sliding_window, spec.block_size, spec.sink_len)
    if type(spec) is ChunkedLocalAttentionSpec:
        return ChunkedRule(spec.attention_chunk_size)
    if type(spec) is MambaSpec:
        return MambaRule()
    if type(spec) is FullAttentionSpec or type(spec) is CrossAttentionSpec:
        return WindowRule()
    raise UnsupportedError(f"kv_cache_spec: no manager for {type(spec).__name__}; use a kind of blockwright.kinds")


def longest_of_all(rules: list[WindowRule], probes: list[Probe], alignment: i64, max_length: i64) -> i64:
    """Return the longest hit that the kinds which read all earlier tokens have alone; 0 if there is no such kind."""
    length: i64 = max_length // alignment * alignment
    is_read = False
    for rule, probe in zip(rules, probes):
        if rule.asks_upwards:
            is_read = True
            length = rule.longest(probe, length) // alignment * alignment
    return length if is_read else 0


def common_hit(rules: list[WindowRule], probes: list[Probe], alignment: i64, max_length: i64) -> i64:
    """Return the longest length of at most `max_length`, a multiple of `alignment`, that is a hit in every group."""
    # Each group shortens the candidate to its own longest hit below it; a shorter candidate goes round again until no
    # group objects. No hit is passed over, since each group gives its longest. law: HIT-1, HIT-2.
    length = max_length // alignment * alignment
    # A leading run is found missing after one lookup, a window only after all blocks from the end down: so these go
    # first, whatever the order of the groups.
    for rule, probe in zip(rules, probes):
        if rule.asks_upwards:
            length = rule.longest(probe, length) // alignment * alignment
    while True:
        before = length
        for rule, probe in zip(rules, probes):
            length = rule.longest(probe, length) // alignment * alignment
        # Each round only shortens the candidate, so the loop ends; and no rule passes a hit over.
        if length == before:
            return length
