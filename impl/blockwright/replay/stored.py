"""Requests of a trace that lie in files, so that a trace of millions of requests takes little memory."""

from __future__ import annotations

import tempfile
import weakref
from array import array
from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

from blockwright.replay.records import (
    ContentNumbers,
    Head,
    Runs,
    TraceRequest,
    UnreadRequests,
    cut,
    num_shared,
    runs_of_blocks,
)

Unit = tuple[int, bool]
"""The tokens that an id stands for, and whether the last id may stand for fewer; without, a tail has no id."""
# Later turns that are looked at for the ids of one answer, the last of which lies in a block with theirs.
_MOST_TURNS: Final = 64


class Turn(NamedTuple):
    """How a request goes on from an earlier one of its session.

    Attributes:
        before: the number of the earlier one, in the order of the file; -1: none.
        is_rest: whether the ids are only what follows that prompt and its answer.
        delay: seconds from that answer on, which the client waits for; -1.0 where it sends at its time in any case.
        known: leading tokens up to the end of that answer, where they are not those of the prompt and the answer.
    """

    before: int = -1
    is_rest: bool = False
    delay: float = -1.0
    known: int = -1


class _Entry(NamedTuple):
    """A request: where its ids begin and how many there are, its tokens, and what was added with them."""

    start: int
    num_ids: int
    num_tokens: int
    unit: int
    arrival: float
    output: int
    before: int
    is_rest: bool
    delay: float
    known: int


_FORM: Final = Struct("<qiiidii?di")


class StoredRequests(UnreadRequests):
    """Requests in the order of arrival; a turn of a session goes on from the turn before it.

    They are added as they are read from a trace, and can be read once `finish` has said what their ids stand for.
    Memory: four bytes for a request, and eight more if the trace is not sorted. The rest is in two temporary files
    without names. O(runs) to read a request, those of the turns around it included.
    """

    def __init__(self) -> None:
        self._ids, self._entries = [tempfile.TemporaryFile(buffering=1 << 16) for _ in range(2)]  # noqa: SIM115
        weakref.finalize(self, self._ids.close)
        weakref.finalize(self, self._entries.close)
        self.num_added = self._num_ids = 0
        self._first, self._latest, self._is_sorted = float("inf"), -float("inf"), True
        self._next = array("i")  # of each request, the first one that goes on from it
        self._order: Sequence[int] = ()
        self._places: Sequence[int] = ()
        self._units: Mapping[int, Unit] = {}
        self._own = 0

    def add(self, ids: array[int], num_tokens: int, unit: int, arrival: float, output: int, turn: Turn) -> None:
        """Add a request with a unit that may not be certain yet."""
        self._entries.write(_FORM.pack(self._num_ids, len(ids), num_tokens, unit, arrival, output, *turn))
        self._ids.write(ids.tobytes())
        self._num_ids += len(ids)
        if turn.before >= 0 and self._next[turn.before] < 0:
            self._next[turn.before] = self.num_added
        self._next.append(-1)
        self.num_added += 1
        self._is_sorted = self._is_sorted and arrival >= self._latest
        self._first, self._latest = min(arrival, self._first), arrival

    def finish(self, units: Mapping[int, Unit], numbers: ContentNumbers, limit: int | None) -> Sequence[int]:
        """Sort the requests by arrival, and keep the first ones; return in which order they were added."""
        self._units, self._own = units, numbers.fresh()
        order: Sequence[int] = range(self.num_added)
        self._places = order
        if not self._is_sorted:
            # Stable, so that requests with equal times stay in the order of the file.
            order = array("i", sorted(order, key=lambda at: self._since_first(self._entry(at).arrival)))
            places = self._places = array("i", order)
            for place, at in enumerate(order):
                places[at] = place
        self._order = order[:limit]
        return self._order

    def __len__(self) -> int:
        """Return how many requests there are, once they are sorted."""
        return len(self._order)

    def __getitem__(self, index: Any) -> Any:
        """Return a request, or several as a tuple. O(runs)."""
        if isinstance(index, slice):
            return tuple(map(self._read, self._order[index]))
        return self._read(self._order[index])

    def __iter__(self) -> Iterator[TraceRequest]:
        return map(self._read, self._order)

    def heads(self) -> Iterator[Head | TraceRequest]:
        """Give the heads of all requests. O(1) for each, or as long as to read it where its row is not all of it."""
        for at in self._order:
            entry = self._entry(at)
            if entry.is_rest:
                yield self._read(at)
            else:
                yield Head(entry.num_tokens, self._since_first(entry.arrival), entry.output, *self._waits(entry))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(TraceRequest.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def _entry(self, at: int) -> _Entry:
        self._entries.seek(_FORM.size * at)
        return _Entry(*_FORM.unpack(self._entries.read(_FORM.size)))

    def _since_first(self, arrival: float) -> float:
        return round(arrival - self._first, 6)

    def _read(self, at: int) -> TraceRequest:
        entry = self._entry(at)
        runs, answer_ids = self._answered(at, entry, self._prompt(at, entry))
        return TraceRequest(
            *runs,
            self._since_first(entry.arrival),
            entry.output,
            self._answer(at) if self._next[at] >= 0 else -1,
            answer_ids,
            *self._waits(entry),
        )

    def _waits(self, entry: _Entry) -> tuple[int, float]:
        """Return after which request, and how long after its answer, one is sent."""
        return (self._places[entry.before], entry.delay) if entry.delay >= 0 and entry.before >= 0 else (-1, 0.0)

    def _answer(self, at: int) -> int:
        return self._own + 2 * at + 1

    def _prompt(self, at: int, entry: _Entry) -> Runs:
        turns = [(at, entry)]
        # A row may have only what follows the turn before it: go back to one that has its whole prompt.
        while turns[-1][1].is_rest and (before := turns[-1][1].before) >= 0:
            turns.append((before, self._entry(before)))
        contents, lengths = array("i"), array("i")
        for turn, each in reversed(turns):
            own, (unit, whole) = array("i"), self._units[each.unit]
            self._ids.seek(4 * each.start)
            own.frombytes(self._ids.read(4 * each.num_ids))
            # Part of a block has no id in the file; it gets one of this turn's own, which no other request shares.
            if not whole and each.num_tokens % unit:
                own.append(self._own + 2 * turn)
            contents += own
            lengths += runs_of_blocks(own, unit, each.num_tokens)
            # The next turn repeats the answer of the one before.
            if turn != at and each.output:
                contents.append(self._answer(turn))
                lengths.append(each.output)
        return contents, lengths

    def _answered(self, at: int, entry: _Entry, runs: Runs) -> tuple[Runs, array[int]]:
        """Return a prompt as the turns after it repeat it, and the ids of its answer, which they hold.

        The last id of a prompt stands for a part of a block, and the next turn has another id for all of that block.
        Both stand for the same tokens, and so do those of the answer: they are taken from the first later turn that has
        whole blocks there.
        """
        num_tokens, turn, found = entry.num_tokens, at, runs
        end = num_tokens + entry.output
        for _ in range(_MOST_TURNS):
            following = self._next[turn]
            later = self._entry(following) if following >= 0 else None
            if later is None or later.is_rest or (later.known < 0 and later.num_tokens < end):
                break
            unit, more = self._units[entry.unit][0], self._prompt(following, later)
            if num_shared(found, more) < max(1, entry.num_tokens // unit * unit):
                break  # the session went on with other words
            if turn == at and later.known >= 0:
                end = min(end, later.known)
            turn, entry, found = following, later, more
            if later.num_tokens >= -(-end // unit) * unit:
                break
        if turn == at:
            return runs, array("i")
        contents, lengths = cut(found, num_tokens, end)
        ids = array("i")
        for content, length in zip(contents, lengths, strict=True):
            ids += array("i", (content,)) * length
        return cut(found, 0, num_tokens), ids
