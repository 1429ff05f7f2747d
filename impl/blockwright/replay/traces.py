"""Load serving traces in the formats of `layouts`.

Ids become the contents of `records`. What two prompts share then follows from all their ids from the first on: ids that
are hashed alone are thereby chained on what precedes them, and for chained ids nothing changes.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from blockwright.errors import InvalidArgumentError
from blockwright.replay.files import read_rows
from blockwright.replay.layouts import FORMATS, LAYOUTS, Layout, layout_of
from blockwright.replay.records import MAX_PROMPT_TOKENS, ContentNumbers, Trace
from blockwright.replay.rows import Place, Row
from blockwright.replay.stored import StoredRequests, Unit
from blockwright.replay.text import Tokenizer, prompts_of

_UNITS: Final = tuple(1 << power for power in range(4, 13))
"""The tokens that an id may stand for where a file does not say it."""


def load_trace(
    path: str | Path,
    trace_format: str = "auto",
    *,
    limit: int | None = None,
    unit: int | None = None,
    tokenizer: str | Path | None = None,
    column: str | None = None,
    advance: Callable[[int], object] = lambda count: None,
) -> Trace:
    """Read a trace file, or a folder of session files, in the order of arrival.

    `limit` keeps only the first requests of the file; `unit` overrides the tokens per id, which otherwise follow from
    the number of ids where it is not that of the format. `tokenizer` is a ``tokenizer.json`` for traces of text.
    `column` names a field to keep for each request, in `Trace.labels`. `advance` is given the bytes read, as they are
    in the file. `Trace.notes` lists how the replayed trace differs from the file: sorted, without prefixes, and so on.

    Complexity: O(size of the file) time; memory for a row, four bytes a request, and each name that is a text or
    above 2**30. The requests themselves are in temporary files.

    Raises:
        TraceError: no such file, unreadable, or of no known format; a truncated or malformed row (the message names
            file, line, format and field); text without a tokenizer.
        InvalidArgumentError: an unknown format; a limit or unit below 1; no such tokenizer.
    """
    start, place = time.perf_counter(), Place(Path(path))
    for name, value in (("limit", limit), ("unit", unit)):
        if value is not None and value < 1:
            raise InvalidArgumentError(f"{name}: must be at least 1, not {value}")
    if trace_format not in ("auto", *FORMATS):
        raise InvalidArgumentError(f"format: unknown trace format {trace_format!r}; use auto, {', '.join(FORMATS)}")
    source = place.path.resolve().name
    layout = next((each for each in LAYOUTS if each.name == trace_format), None)
    reader: _Reader | None = None
    with closing(read_rows(place, advance)) as rows:
        for row in rows:
            if reader is None:
                layout = layout or layout_of(row, place)
                reader = _Reader(place, layout, unit, None if tokenizer is None else Tokenizer(tokenizer), column)
            reader.add(row)
            if limit is not None and place.num_requests >= limit:
                break
    if reader is None or not reader.drafts.num_added:
        read = f" (read as {layout.name})" if layout else ""
        raise place.error(f"holds no request with a prompt{read}", "give another file, or another --format")
    requests, labels, notes = reader.finish(limit)
    return Trace(source, reader.layout.name, requests, time.perf_counter() - start, notes, labels)


class _Reader:
    """Turn the rows of one layout into requests."""

    def __init__(
        self, place: Place, layout: Layout, unit: int | None, tokenizer: Tokenizer | None, column: str | None
    ) -> None:
        self.place, self.layout, self.unit, self.tokenizer, self.column = place, layout, unit, tokenizer, column
        place.format = layout.name
        self.starts_at_once = layout.turns == "requests"
        self.drafts = StoredRequests()
        self.labels: list[str] = []
        self.numbers = ContentNumbers()
        # By the unit that a row itself names (0: none): what its ids may stand for, the most likely first.
        own = [unit] if unit else [layout.unit, *(each for each in _UNITS if each != layout.unit)]
        self.units: dict[int, list[Unit]] = {
            0: [(each, whole) for each in own for whole in (True, False)],
            1: [(1, True)],
            MAX_PROMPT_TOKENS: [(MAX_PROMPT_TOKENS, True)],
        }
        self.sessions: dict[str, tuple[float, int | None]] = {}
        self.start: float | None = None
        self.latest = -float("inf")
        self.arrival = 0.0
        self.num_empty = self.num_late = self.num_nameless = 0

    def add(self, row: Row) -> None:
        layout, place = self.layout, self.place
        if layout.only is not None and row.get(layout.only[0]) != layout.only[1]:
            return
        own = layout.own_unit
        unit = 0 if self.unit or not own or row.get(own) is None else row.count(own, least=1)
        if self.starts_at_once:
            scope = None if row.get("hash_id_scope") == "global" else f"{place.path.name}:{place.line}"
            for arrival, each in _session(row, 0.0, layout):
                self._add_ids(each, arrival, None, scope, unit)
        elif layout.turns:
            arrival = self._arrival(row, layout)[0]
            for said, answer in prompts_of(row, layout.turns):
                tokens = self._tokens(said)
                self._note(tokens, len(tokens), 1, arrival, len(self._tokens([answer])) if answer else 0, None)
        else:
            arrival, before = self._arrival(row, layout)
            text = next((name for name in layout.text if row.get(name) is not None), "")
            if text and row.get(layout.tokens) is None:
                whole = isinstance(row.get(text), list)  # messages repeat what was said before
                tokens = self._tokens(next(prompts_of(row, text, all_of_it=True))[0])
                self._note(tokens, len(tokens), 1, arrival, self._output(row), None if whole else before)
            else:
                self._add_ids(row, arrival, before, None, unit)
            name = row.get(layout.session) if layout.session else None
            if name is not None:
                self.sessions[str(name)] = arrival, self.drafts.num_added - 1 if self.drafts.num_added else None
        if self.column is not None:
            if row.get(self.column) is None:
                raise self.place.error(
                    f"has no column {self.column!r}", "name another with --tenants, or a rule: dealt:N"
                )
            self.labels += [str(row.get(self.column))] * (self.drafts.num_added - len(self.labels))

    def _output(self, row: Row) -> int:
        return 0 if row.get(self.layout.output) is None else row.count(self.layout.output)

    def _arrival(self, row: Row, layout: Layout) -> tuple[float, int | None]:
        """Return when a row arrives, in seconds, and the draft that it continues, if any."""
        name = next((name for name in layout.times if row.get(name) is not None), None)
        session = row.get(layout.session) if layout.session else None
        if name is not None:
            arrival, before = row.time(name, layout.tick), None
            self.num_late += arrival < self.latest
            self.latest = max(self.latest, arrival)
            if self.start is None:
                self.start = arrival
        elif session is not None:
            arrival, before = self.sessions.get(str(session), (self.start or 0.0, None))
            if layout.delay and row.get(layout.delay) is not None:
                arrival += row.time(layout.delay, layout.tick)
        elif self.start is None:
            arrival, before = self.arrival, None
        else:
            raise row.wrong(layout.times[0], "a time")
        self.arrival = arrival
        return arrival, before

    def _add_ids(self, row: Row, arrival: float, before: int | None, scope: str | None, unit: int) -> None:
        layout = self.layout
        num_tokens = row.count(layout.tokens)
        if not layout.ids or row.get(layout.ids) is None:
            self.num_nameless += num_tokens > 0
            contents, unit = array("i", (self.numbers.fresh(),)), MAX_PROMPT_TOKENS
        else:
            names = row.names(layout.ids)
            self._settle(num_tokens, len(names), unit)
            contents = self.numbers.named(names, scope)
        self._note(contents, num_tokens, unit, arrival, self._output(row), before)

    def _settle(self, num_tokens: int, num_ids: int, unit: int) -> None:
        """Keep only those units that explain the number of ids of this row, too."""
        likely = self.units.setdefault(unit, [(unit, True), (unit, False)])
        left = [each for each in likely if _num_ids(num_tokens, each) == num_ids]
        if not left:
            expected, size, name = _num_ids(num_tokens, likely[0]), likely[0][0], self.layout.ids
            raise self.place.fault(
                f"{self.layout.name}: '{name}' must hold {expected} ids for {num_tokens} tokens in blocks of {size}, "
                f"not {num_ids} (or give the tokens of an id: --unit)"
            )
        self.units[unit] = left

    def _tokens(self, text: list[str]) -> array[int]:
        if self.tokenizer is None:
            raise self.place.error(
                f"a {self.layout.name} trace with text, not with lengths and ids",
                "name a tokenizer with --tokenizer tokenizer.json (pip install tokenizers)",
            )
        return self.numbers.named([token for each in text for token in self.tokenizer.tokens(each)], "token")

    def _note(
        self, contents: array[int], num_tokens: int, unit: int, arrival: float, output: int, before: int | None
    ) -> None:
        if not num_tokens:
            self.num_empty += 1
            return
        self.drafts.add(contents, num_tokens, unit, arrival, output, before)
        self.place.num_requests += not self.starts_at_once  # whose first requests are not those of the file

    def finish(self, limit: int | None) -> tuple[StoredRequests, tuple[str, ...], tuple[str, ...]]:
        """Return the requests in the order of arrival, the label of each, and notes. To be called once."""
        total = self.drafts.num_added
        order = self.drafts.finish({each: units[0] for each, units in self.units.items()}, self.numbers, limit)
        labels = tuple(self.labels[at] for at in order) if self.labels else ()
        return self.drafts, labels, tuple(self._notes(total))

    def _notes(self, total: int) -> Iterator[str]:
        unit = self.units[0][0][0]
        if self.num_late:
            yield f"{self.num_late:,} of {total:,} rows came after a later one; the requests are sorted by arrival."
        if self.num_nameless:
            yield (
                f"{self.num_nameless:,} of {total:,} requests name no prefixes, only lengths: nothing in them can hit."
            )
        if self.num_empty:
            yield f"{self.num_empty:,} requests without a prompt are left out."
        if unit != (self.unit or self.layout.unit):
            yield f"Each id stands for {unit} tokens, by the number of ids; --unit sets it."


def _num_ids(num_tokens: int, unit: Unit) -> int:
    return -(-num_tokens // unit[0]) if unit[1] else num_tokens // unit[0]


def _session(session: Row, start: float, layout: Layout) -> Iterator[tuple[float, Row]]:
    """Yield the requests of a session with their times, those of its sub-agents included.

    Some producers count a sub-agent's times from the session's start and some from the sub-agent's own: where any of
    them lies before the marker, they are taken as its own.
    """
    rows = session.rows(layout.turns)
    times = [row.time(layout.times[0], layout.tick) for row in rows]
    offset = start if any(time < start for time in times) else 0.0
    for row, seconds in zip(rows, times, strict=True):
        if row.fields.get("type") == "subagent":
            yield from _session(row, offset + seconds, layout)
        else:
            yield offset + seconds, row
