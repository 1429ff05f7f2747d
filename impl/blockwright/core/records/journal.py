"""The journal of a manager: facts, written where things happen, in packed form, for any number of readers.

A manager without a journal pays a check for None in each call. With one, each step that takes blocks writes one fact::

    words    | kind tokens prompt hit ... | kind tokens ...     a ring of `num_facts` facts, `WIDTH` integers each
    blocks   | evicted new held | evicted new held | ...        a ring of `num_blocks` block ids
    totals   one integer each, which only grow: the sum of all facts that were ever written

The oldest facts are written over. A reader that comes too late for some of them is told how many (`JournalGapError`)
and goes on; the totals miss nothing. Writing takes no memory, so that it cannot fail in the middle of a step. The clock
is read before a step changes anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, final

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright._copies import copy_fields
from blockwright.core.keys.packed import zeros32, zeros64
from blockwright.core.keys.request import Request
from blockwright.core.pool.listener import Listener, is_eviction
from blockwright.errors import InvalidArgumentError, JournalGapError
from blockwright.ids import id_given

KINDS: Final = (
    "lookup", "admit", "grow", "batch", "refuse", "fork", "free", "preempt", "start", "settle", "loaded", "reset",
    "publish", "take", "forget", "resize",
)  # fmt: skip
"""The kinds of facts by number."""
LOOKUP: Final = 0
ADMIT: Final = 1
GROW: Final = 2
BATCH: Final = 3
REFUSE: Final = 4
FORK: Final = 5
FREE: Final = 6
PREEMPT: Final = 7
START: Final = 8
SETTLE: Final = 9
LOADED: Final = 10
RESET: Final = 11
PUBLISH: Final = 12
TAKE: Final = 13
FORGET: Final = 14
RESIZE: Final = 15

TOTALS: Final = (
    "queries", "hits", "external_queries", "external_hits", "local_cache_hit", "external_kv_transfer", "local_compute",
    "resumed", "resumed_local_cache_hit", "resumed_external_kv_transfer", "resumed_local_compute", "preemptions",
    "evicted",
)  # fmt: skip
"""The names of the totals: all count tokens, except "resumed" and "preemptions", which count requests."""
QUERIES: Final = 0
EXTERNAL_QUERIES: Final = 2
SOURCES: Final = 4
RESUMED: Final = 7
PREEMPTIONS: Final = 11
EVICTED: Final = 12

# Where a fact has its integers, from its first one on.
KIND: Final = 0
TOKENS: Final = 1
PROMPT: Final = 2
HIT: Final = 3
EXTERNAL: Final = 4
FREE_BLOCKS: Final = 5
STEP: Final = 6
QUERIED: Final = 7
PUBLISHED: Final = 8
EVICTED_TOKENS: Final = 9
IS_RESUMED: Final = 10
QUERIED_OUTSIDE: Final = 11
FOUND_OUTSIDE: Final = 12
FIRST_BLOCK: Final = 13
NUM_EVICTED: Final = 14
NUM_NEW: Final = 15
NUM_HELD: Final = 16
WIDTH: Final = 17

NUM_FACTS: Final = 16384
"""Facts that a journal keeps unless it is asked for another number: 2.6 MiB with their blocks."""
MOST_FACTS: Final = 2**24


class Fact(NamedTuple):
    """One thing that happened.

    Attributes:
        at: when, in seconds of the journal's clock.
        kind: "lookup", "admit", "grow" (took blocks), "batch", "refuse", "fork", "free", "preempt", "start", "settle",
            "loaded" (a load has ended), "reset", "publish" (by a call of its own), "take" (blocks, from outside),
            "forget" (contents, on demand) or "resize" (the pool).
        request: of which request; "" where of none.
        tokens: looked up, given slots, loaded or published.
        prompt: tokens with a source that is known from now on: all of the prompt of a request that is admitted for the
            first time, or all known tokens of one that is resumed. 0 while it loads; its "loaded" fact has them.
        hit: tokens found, or adopted from the device.
        external: tokens that are loaded from elsewhere; of a load that has ended, those that came.
        new: blocks taken, all groups one after the other.
        held: blocks of the hit, held once more.
        evicted: blocks taken with which the last copy of something went.
        free: free blocks afterwards.
        step: the step that was started or settled; of a batch how many requests it served.
        queries: tokens looked up before, of a request that is admitted.
        published: blocks that were published since the fact before.
        evicted_tokens: tokens that `evicted` held, counted once for all groups.
        is_resumed: whether the request was admitted before: preempted since, or its load failed.
        external_queries, external_hits: tokens looked up, and found, beyond the device, of a request that is admitted.
    """

    at: float
    kind: str
    request: str = ""
    tokens: int = 0
    prompt: int = 0
    hit: int = 0
    external: int = 0
    new: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    evicted: tuple[int, ...] = ()
    free: int = 0
    step: int = 0
    queries: int = 0
    published: int = 0
    evicted_tokens: int = 0
    is_resumed: bool = False
    external_queries: int = 0
    external_hits: int = 0


@final
class Journal(Listener):
    """The facts of one manager, and what they come to.

    Attributes:
        now: when the current call began, in seconds of the clock.
        num_written: facts ever written; the next one has this number.
        num_published: blocks published since the last fact.
    """

    def __init__(
        self, num_facts: int, num_blocks: int, group: int, tokens: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start without facts. O(num_facts + num_blocks).

        Args:
            num_facts: facts to keep, 1 .. 2**24.
            num_blocks: block ids to keep with them, at least one.
            group: the group of layers that evicted tokens are counted by; `tokens` in one of its blocks.
            clock: gives the time of facts, in seconds.

        Raises:
            InvalidArgumentError: names the argument.
        """
        if isinstance(num_facts, bool) or not 1 <= num_facts <= MOST_FACTS:
            raise InvalidArgumentError(f"num_facts: must be within 1..{MOST_FACTS}, not {num_facts!r}")
        self._num_facts: i64 = num_facts
        self._num_blocks: i64 = num_blocks
        self._group: i64 = group
        self._tokens: i64 = tokens
        self._clock = clock
        self.now: float = 0.0
        self.num_written: i64 = 0
        self.num_published: i64 = 0
        self._names = [""] * num_facts
        self._times: vec[float] = vec[float]([0.0] * num_facts)
        self._words: vec[i64] = zeros64(num_facts * WIDTH)
        self._blocks: vec[i32] = zeros32(num_blocks)
        self._next_block: i64 = 0  # block ids ever written
        self._first_block: i64 = 0  # where those of the next fact begin: the ones that are evicted for it
        self._oldest: i64 = 0  # the oldest fact that is whole
        self._evicted_tokens: i64 = 0  # since the last fact
        self._totals: vec[i64] = zeros64(len(TOTALS))
        self._notes: list[tuple[JournalReader, Callable[[Any], object]]] = []
        self._is_delivering = False

    def copy(self) -> Journal:
        """Return an independent copy, with all facts, and without those who are given each fact. O(num_facts)."""
        twin = Journal(1, 1, self._group, self._tokens, self._clock)
        copy_fields(self, twin, "_notes", "_clock", "_is_delivering")
        return twin

    # ------------------------------------------------------------------ writing: by the core alone

    def begins(self) -> None:
        """Read the clock, which is the caller's own and may raise: before anything changes. O(1)."""
        self.now = self._clock()

    def forget(self, block: i64, low: i64, high: i64, group: i64, is_last: bool, cause: i64) -> None:
        """Note that the last copy of a content goes with a block, which the next fact takes. O(1)."""
        if not is_last or not is_eviction(cause):
            return
        if group == self._group:
            self._evicted_tokens += self._tokens
        self._push(block)

    def publish(self, block: i64, request: Request, units: i64, at: i64, group: i64, size: i64, is_new: bool) -> None:
        self.num_published += 1

    def took(self, ids: vec[i32], free: i64) -> None:
        self._add_blocks(self._add(TAKE, "", 0, free), NUM_NEW, ids, 0, i64(len(ids)))

    def _push(self, block: i64) -> None:
        """Write a block id."""
        self._blocks[self._next_block % self._num_blocks] = i32(block)
        self._next_block += 1

    def _add(self, kind: i64, name: str, tokens: i64, free: i64) -> i64:
        """Write a fact; return where its integers begin, for those that say more. Takes no memory. O(1)."""
        at = self.num_written % self._num_facts
        base = at * WIDTH
        words = self._words
        i: i64 = base
        while i < base + WIDTH:
            words[i] = 0
            i += 1
        words[base + KIND] = kind
        words[base + TOKENS] = tokens
        words[base + FREE_BLOCKS] = free
        words[base + FIRST_BLOCK] = self._first_block
        words[base + NUM_EVICTED] = self._next_block - self._first_block
        words[base + PUBLISHED] = self.num_published
        words[base + EVICTED_TOKENS] = self._evicted_tokens
        self._totals[EVICTED] += self._evicted_tokens
        if kind == PREEMPT:
            self._totals[PREEMPTIONS] += 1
        self._evicted_tokens = 0
        self.num_published = 0
        self._first_block = self._next_block
        self._names[at] = name
        self._times[at] = self.now
        self.num_written += 1
        return base

    def _add_blocks(self, base: i64, which: i64, blocks: vec[i32], start: i64, stop: i64) -> None:
        """Write the blocks of a range of a table to the fact that was written last: new ones, and then held ones."""
        count: i64 = 0
        while start < stop:
            block: i64 = i64(blocks[start])
            if block != 0:
                self._push(block)
                count += 1
            start += 1
        self._words[base + which] += count
        self._first_block = self._next_block

    def _say(self, base: i64, which: i64, number: i64) -> None:
        """Write one more integer of a fact."""
        self._words[base + which] = number

    def _admit(self, base: i64, queries: i64, asked: i64, found: i64, is_resumed: bool) -> None:
        """Count an admission: what was looked up, on the device and beyond. A resumed request counts apart."""
        words, totals = self._words, self._totals
        words[base + QUERIED] = queries
        words[base + QUERIED_OUTSIDE] = asked
        words[base + FOUND_OUTSIDE] = found
        words[base + IS_RESUMED] = 1 if is_resumed else 0
        if is_resumed:
            totals[RESUMED] += 1
            return
        if queries > 0:
            totals[QUERIES] += queries
            totals[QUERIES + 1] += words[base + HIT]
        totals[EXTERNAL_QUERIES] += asked
        totals[EXTERNAL_QUERIES + 1] += found

    def _know_sources(self, base: i64, prompt: i64, hit: i64, external: i64, is_resumed: bool) -> None:
        """Count where the tokens of an admitted request come from, now that this is known. law: MET-1.

        Once for each admission: with it, or when its load has ended, by what came.
        """
        words, totals = self._words, self._totals
        words[base + PROMPT] = prompt
        words[base + HIT] = hit
        words[base + EXTERNAL] = external
        words[base + IS_RESUMED] = 1 if is_resumed else 0
        at: i64 = SOURCES
        if is_resumed:
            at = RESUMED + 1
        here = min(hit, prompt)
        there = min(external, prompt - here)
        totals[at] += here
        totals[at + 1] += there
        totals[at + 2] += prompt - here - there

    # ------------------------------------------------------------------ reading

    def totals(self) -> dict[str, int]:
        """Return what all facts come to, by the names in `TOTALS`. Each number only ever grows. O(1). law: MET-1."""
        return {name: int(self._totals[at]) for at, name in enumerate(TOTALS)}

    def reader(self, position: int | None = None) -> JournalReader:
        """Return a reader of the facts from now on, or from a fact's number on. Reading takes nothing from others.

        Raises:
            InvalidArgumentError: no fact has had that number, and the next one will not either.
        """
        first = int(self.num_written) if position is None else position
        if not 0 <= first <= int(self.num_written):
            raise InvalidArgumentError(f"position: must be within 0..{self.num_written}, not {position!r}")
        return JournalReader(self, first)

    def oldest(self) -> int:
        """Return the number of the oldest fact that is kept. Amortized O(1)."""
        self._oldest = max(self._oldest, self.num_written - self._num_facts)
        gone = self._next_block - self._num_blocks
        while self._oldest < self.num_written:
            base = self._oldest % self._num_facts * WIDTH
            if self._words[base + FIRST_BLOCK] >= gone:
                break
            self._oldest += 1
        return int(self._oldest)

    def fact(self, number: int) -> Fact:
        """Return a fact that is kept, by its number. O(its blocks)."""
        at = i64(number) % self._num_facts
        base = at * WIDTH
        first = self._words[base + FIRST_BLOCK]
        taken = first + self._words[base + NUM_EVICTED]
        held = taken + self._words[base + NUM_NEW]
        stop = held + self._words[base + NUM_HELD]
        numbers = [int(number) for number in self._words[base : base + FIRST_BLOCK]]
        blocks = [self._ids(taken, held), self._ids(held, stop), self._ids(first, taken)]
        before, after = [*numbers[TOKENS:FREE_BLOCKS], *blocks], numbers[FREE_BLOCKS:IS_RESUMED]
        more = [numbers[IS_RESUMED] != 0, numbers[QUERIED_OUTSIDE], numbers[FOUND_OUTSIDE]]
        return Fact._make(
            [self._times[at], KINDS[numbers[KIND]], str(id_given(self._names[at])), *before, *after, *more]
        )

    def _ids(self, start: i64, stop: i64) -> tuple[int, ...]:
        """Return the block ids of a range."""
        ids: list[int] = []
        while start < stop:
            ids.append(int(self._blocks[start % self._num_blocks]))
            start += 1
        return tuple(ids)

    # ------------------------------------------------------------------ those who are given each fact

    def _note(self, note: Callable[[Any], object], clock: Callable[[], float] | None) -> None:
        """Give each fact from now on to a function, at the end of the call that wrote it."""
        if clock is not None:
            self._clock = clock
        self._notes.append((self.reader(), note))

    def _deliver(self) -> None:
        """Give what is new to those who are given each fact: a call has ended, and nothing is under way.

        A function that raises an error has seen the fact: the call's own result must reach its caller.
        """
        if len(self._notes) == 0 or self._is_delivering:
            return
        self._is_delivering = True
        try:
            for reader, note in self._notes:
                try:
                    for fact in reader.read():
                        try:
                            note(fact)
                        except Exception:
                            _logger().exception("a function that was given to KVCacheManager.record raised an error")
                except JournalGapError as gap:
                    _logger().warning("KVCacheManager.record: %s", gap)
        finally:
            self._is_delivering = False


def _logger() -> Any:
    # Importing `logging` takes a tenth of the time of importing this package, and only these two warnings need it.
    import logging

    return logging.getLogger(__name__)


@final
class JournalReader:
    """A place in a journal.

    Attributes:
        journal: what is read.
        position: the number of the next fact.
    """

    def __init__(self, journal: Journal, position: int) -> None:
        """Begin at a fact."""
        self.journal = journal
        self._position: i64 = position

    @property
    def position(self) -> int:
        """The number of the next fact."""
        return self._position

    def __len__(self) -> int:
        """Return how many facts there are to read, those that are lost included."""
        return int(self.journal.num_written - self._position)

    def _require(self) -> None:
        """Go on after the facts that are lost, and raise the error that says so."""
        oldest: i64 = self.journal.oldest()
        lost = oldest - self._position
        if lost > 0:
            self._position = oldest
            raise JournalGapError(int(lost), int(self.journal._num_facts))

    def read(self) -> list[Fact]:
        """Return the facts since the last call, oldest first. O(facts + blocks).

        Raises:
            JournalGapError: some were written over before this call. The next call returns those after them.
        """
        self._require()
        journal = self.journal
        start, stop = self._position, journal.num_written
        self._position = stop
        return [journal.fact(int(number)) for number in range(start, stop)]

    def read_blocks(self, threshold: int) -> list[tuple[float, str, int]]:
        """Return when blocks of a sample were "evicted", "held" once more or taken ("new") since the last call.

        A block is in the sample by its number: always or never; `threshold` of 2**32 numbers are. O(facts + blocks).

        Raises:
            JournalGapError: as `read`.
        """
        self._require()
        journal = self.journal
        words, blocks = journal._words, journal._blocks
        most: i64 = threshold
        found: list[tuple[float, str, int]] = []
        number: i64 = self._position
        self._position = journal.num_written
        while number < self._position:
            at = number % journal._num_facts
            base = at * WIDTH
            place: i64 = words[base + FIRST_BLOCK]
            new: i64 = place + words[base + NUM_EVICTED]
            held: i64 = new + words[base + NUM_NEW]
            stop: i64 = held + words[base + NUM_HELD]
            while place < stop:
                block: i64 = i64(blocks[place % journal._num_blocks])
                if block * 2654435761 % 4294967296 < most:
                    what = "evicted" if place < new else "new" if place < held else "held"
                    found.append((journal._times[at], what, int(block)))
                place += 1
            number += 1
        return found
