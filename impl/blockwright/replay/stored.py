"""Requests of a trace that lie in files, so that a trace of millions of requests takes little memory."""

from __future__ import annotations

import tempfile
import weakref
from array import array
from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import Any

from blockwright.replay.records import ContentNumbers, TraceRequest, UnreadRequests, runs_of_blocks

Unit = tuple[int, bool]
"""The tokens that an id stands for, and whether the last id may stand for fewer; without, a tail has no id."""

_ENTRY = Struct("<qdiiiii")
"""Where the ids of a request begin, its arrival, how many ids, its tokens, unit, output tokens, and the turn before."""


class StoredRequests(UnreadRequests):
    """Requests in the order of arrival; a turn of a session goes on from the turn before it.

    They are added as they are read from a trace, and can be read once `finish` has said what their ids stand for.
    Memory: nothing for a request, four bytes if the trace is not sorted, and a number for each turn with a later one.
    The rest is in two temporary files without names. O(runs) to read a request.
    """

    def __init__(self) -> None:
        self._ids, self._entries = [tempfile.TemporaryFile(buffering=1 << 16) for _ in range(2)]  # noqa: SIM115
        weakref.finalize(self, self._ids.close)
        weakref.finalize(self, self._entries.close)
        self.num_added = self._num_ids = 0
        self._first, self._latest, self._is_sorted = float("inf"), -float("inf"), True
        self._continued: set[int] = set()
        self._order: Sequence[int] = ()
        self._units: Mapping[int, Unit] = {}
        self._own = 0

    def add(self, ids: array[int], num_tokens: int, unit: int, arrival: float, output: int, before: int | None) -> None:
        """Add a request with a unit that may not be certain yet; it goes on from the request `before`, if any."""
        turn = -1 if before is None else before
        self._entries.write(_ENTRY.pack(self._num_ids, arrival, len(ids), num_tokens, unit, output, turn))
        self._ids.write(ids.tobytes())
        self._num_ids += len(ids)
        self.num_added += 1
        self._is_sorted = self._is_sorted and arrival >= self._latest
        self._first, self._latest = min(arrival, self._first), arrival
        if before is not None:
            self._continued.add(before)

    def finish(self, units: Mapping[int, Unit], numbers: ContentNumbers, limit: int | None) -> Sequence[int]:
        """Sort the requests by arrival, and keep the first ones; return in which order they were added."""
        self._units, self._own = units, numbers.fresh()
        order: Sequence[int] = range(self.num_added)
        if not self._is_sorted:
            order = array("i", sorted(order, key=lambda at: self._since_first(self._entry(at)[1])))
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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(TraceRequest.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def _entry(self, at: int) -> tuple[Any, ...]:
        self._entries.seek(_ENTRY.size * at)
        return _ENTRY.unpack(self._entries.read(_ENTRY.size))

    def _since_first(self, arrival: float) -> float:
        return round(arrival - self._first, 6)

    def _read(self, at: int) -> TraceRequest:
        turns = [(at, self._entry(at))]
        while (before := turns[-1][1][-1]) >= 0:
            turns.append((before, self._entry(before)))
        contents, lengths = array("i"), array("i")
        for turn, (start, _, count, num_tokens, kind, output, _) in reversed(turns):
            own, (unit, whole) = array("i"), self._units[kind]
            self._ids.seek(4 * start)
            own.frombytes(self._ids.read(4 * count))
            if not whole and num_tokens % unit:
                own.append(self._own + 2 * turn)
            contents += own
            lengths += runs_of_blocks(own, unit, num_tokens)
            if turn != at and output:
                contents.append(self._own + 2 * turn + 1)
                lengths.append(output)
        _, arrival, *_, output, _ = turns[0][1]
        answer = self._own + 2 * at + 1 if at in self._continued else -1
        return TraceRequest(contents, lengths, self._since_first(arrival), output, answer)
