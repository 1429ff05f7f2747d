"""Load serving traces in the formats of `layouts`.

Ids become the contents of `records`. What two prompts share then follows from all their ids from the first on: ids that
are hashed alone are thereby chained on what precedes them, and for chained ids nothing changes.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from blockwright.errors import InvalidArgumentError
from blockwright.replay.files import read_rows
from blockwright.replay.layouts import FORMATS, LAYOUTS, Layout, layout_of
from blockwright.replay.records import MAX_PROMPT_TOKENS, ContentNumbers, Trace
from blockwright.replay.rows import Place, Row
from blockwright.replay.stored import StoredRequests, Turn, Unit
from blockwright.replay.text import Tokenizer, prompt_of, prompts_of

# The tokens that an id may stand for where a file does not say it.
_UNITS: Final = tuple(1 << power for power in range(4, 13))
# Turns of a session that say only what is new in them: each is read with all before it.
_MOST_TURNS: Final = 10_000
# Ids of the prompts of one row: those of a conversation repeat each other, so that a small file could fill a disk.
_MOST_IDS: Final = 1 << 26


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


class _Last(NamedTuple):
    """The last request of a session: when it arrived, its number or -1, and its tokens with the answer's and before."""

    arrival: float
    number: int
    num_tokens: int
    num_turns: int


class _Reader:
    """Turn the rows of one layout into requests."""

    def __init__(
        self, place: Place, layout: Layout, unit: int | None, tokenizer: Tokenizer | None, column: str | None
    ) -> None:
        self.place, self.layout, self.unit, self.tokenizer, self.column = place, layout, unit, tokenizer, column
        place.format = layout.name
        self.starts_at_once = layout.turns == "requests"
        self.drafts = StoredRequests()
        self.labels: list[str | None] = []
        self.numbers = ContentNumbers()
        # By the unit that a row itself names (0: none): what its ids may stand for, the most likely first.
        # A file does not always say it: each row rules out units that do not explain its number of ids.
        own = [unit] if unit else [layout.unit, *(each for each in _UNITS if each != layout.unit)]
        self.units: dict[int, list[Unit]] = {
            0: [(each, whole) for each in own for whole in (True, False)],
            1: [(1, True)],
            MAX_PROMPT_TOKENS: [(MAX_PROMPT_TOKENS, True)],
        }
        self.sessions: dict[str, _Last] = {}
        self.splits: dict[tuple[str | None, ...], int] = {}
        self.start: float | None = None
        self.latest = -float("inf")
        self.arrival = 0.0
        self.num_empty = self.num_late = self.num_nameless = self.num_waiting = self.num_ids = self.num_rows = 0

    def add(self, row: Row) -> None:
        layout, place = self.layout, self.place
        if layout.only is not None and row.get(layout.only[0]) != layout.only[1]:
            return
        self.num_rows, self.num_ids = self.num_rows + 1, 0
        own = layout.own_unit
        unit = 0 if self.unit or not own or row.get(own) is None else row.count(own, least=1)
        if self.starts_at_once:
            # Ids belong to their row, unless the file says otherwise: equal ones of two rows mean nothing.
            scope = None if row.get("hash_id_scope") == "global" else f"{place.path.name}:{place.line}"
            for arrival, each in _session(row, 0.0, layout):
                self._add_ids(each, arrival, Turn(), scope, unit)
        elif layout.turns:
            arrival, turn, split = self._when(row, None, False)[0], Turn(), self._split(row)
            for said, answer in prompts_of(row, layout.turns):
                tokens, output = self._tokens(said, split), len(self._tokens([answer], split)) if answer else 0
                if self._note(tokens, len(tokens), 1, arrival, output, turn):
                    turn = Turn(self.drafts.num_added - 1, delay=0.0)
        else:
            for each in _within(row, layout.within):
                self._add_turn(each, unit)
        if self.column is not None:
            label = _name(row.get(self.column))
            self.labels += [label] * (self.drafts.num_added - len(self.labels))

    def _add_turn(self, row: Row, unit: int) -> None:
        layout = self.layout
        name = _name(row.get(layout.session)) if layout.session else None
        if name is None and layout.within and layout.session:
            name = f"row {self.num_rows}"
        last = None if name is None else self.sessions.get(name)
        arrival, delay = self._when(row, last, name is not None)
        text = next((name for name in layout.text if row.get(name) is not None), "")
        output = next((row.count(name) for name in layout.output if row.get(name) is not None), 0)
        turn = Turn() if last is None else Turn(last.number, delay >= 0, delay)
        if text and (not layout.tokens or row.get(layout.tokens) is None):
            split, (said, num_answered) = self._split(row), prompt_of(row, text)
            if num_answered >= 0:  # messages repeat what was said before
                turn = turn._replace(is_rest=False, known=len(self._tokens(said[:num_answered], split)))
            tokens = self._tokens(said, split)
            num_tokens = len(tokens)
            is_added = self._note(tokens, num_tokens, 1, arrival, output, turn)
        elif not layout.tokens:
            raise row.wrong(layout.text[0], "a prompt, as text or messages")
        else:
            num_tokens = row.count(layout.tokens)
            is_added = self._add_ids(row, arrival, turn, None, unit)
        if layout.own_name:
            name = _name(row.get(layout.own_name))
        if name is None:
            return
        known = last or _Last(arrival, -1, 0, 0)
        if is_added:
            before = known.num_tokens if turn.is_rest else 0
            known = _Last(arrival, self.drafts.num_added - 1, before + num_tokens + output, known.num_turns + 1)
            if turn.is_rest and (known.num_tokens > MAX_PROMPT_TOKENS or known.num_turns > _MOST_TURNS):
                raise self.place.fault(f"a session of over {MAX_PROMPT_TOKENS:,} tokens or {_MOST_TURNS:,} turns")
        self.sessions[name] = known._replace(arrival=arrival)

    def _when(self, row: Row, last: _Last | None, in_session: bool) -> tuple[float, float]:
        """Return when a row arrives, and how long after the answer before it, in seconds; -1: it does not wait."""
        layout = self.layout
        name = next((name for name in layout.times if row.get(name) is not None), None)
        delay = 0.0
        if layout.delay and row.get(layout.delay) is not None:
            delay = row.time(layout.delay, layout.tick)
            if delay < 0:
                raise row.wrong(layout.delay, "a time of 0 or more")
        if name is not None:
            arrival = row.time(name, layout.tick)
            # Sorted at the end; the note tells the user that the file was not.
            self.num_late += arrival < self.latest
            self.latest = max(self.latest, arrival)
            if self.start is None:
                self.start = arrival
        elif in_session:
            arrival = (self.start or 0.0 if last is None else last.arrival) + delay
        elif self.start is None:
            arrival = self.arrival
        else:
            raise row.wrong(layout.times[0], "a time")
        waits = last is not None and last.number >= 0 and (name is None or layout.waits)
        if waits and last is not None:
            arrival = max(arrival, last.arrival)
        self.arrival = arrival
        return arrival, delay if waits else -1.0

    def _split(self, row: Row) -> int:
        """Return the number of what keeps a row's prefixes apart from others': 0 for the first of these."""
        values = tuple(_name(row.get(name)) for name in self.layout.splits)
        return self.splits.setdefault(values, len(self.splits))

    def _add_ids(self, row: Row, arrival: float, turn: Turn, scope: Hashable, unit: int) -> bool:
        layout = self.layout
        num_tokens = row.count(layout.tokens)
        output = next((row.count(name) for name in layout.output if row.get(name) is not None), 0)
        if not layout.ids or row.get(layout.ids) is None:
            self.num_nameless += num_tokens > 0
            # One content for the whole prompt, which no other has: it can hit nothing.
            contents, unit = array("i", (self.numbers.fresh(),)), MAX_PROMPT_TOKENS
        else:
            names = row.names(layout.ids)
            self._settle(num_tokens, len(names), unit)
            split = self._split(row)
            contents = self.numbers.named(names, (scope, split) if split else scope)
        return self._note(contents, num_tokens, unit, arrival, output, turn)

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

    def _tokens(self, said: Sequence[str] | Sequence[int], split: int) -> array[int]:
        scope: Hashable = ("token", split) if split else "token"
        if said and isinstance(said[0], int):
            return self.numbers.named(said, scope)
        if self.tokenizer is None:
            raise self.place.error(
                f"a {self.layout.name} trace with text, not with lengths and ids",
                "name a tokenizer with --tokenizer tokenizer.json (pip install tokenizers)",
            )
        return self.numbers.named([token for each in said for token in self.tokenizer.tokens(str(each))], scope)

    def _note(self, contents: array[int], num_tokens: int, unit: int, arrival: float, output: int, turn: Turn) -> bool:
        """Keep a request; return whether it has a prompt."""
        if not num_tokens:
            self.num_empty += 1
            return False
        self.num_ids += len(contents)
        if num_tokens > MAX_PROMPT_TOKENS or self.num_ids > _MOST_IDS:
            raise self.place.fault(f"prompts of over {MAX_PROMPT_TOKENS:,} tokens, or {_MOST_IDS:,} ids in one row")
        self.drafts.add(contents, num_tokens, unit, arrival, output, turn)
        self.num_waiting += turn.delay >= 0
        self.place.num_requests += not self.starts_at_once  # whose first requests are not those of the file
        return True

    def finish(self, limit: int | None) -> tuple[StoredRequests, tuple[str | None, ...], tuple[str, ...]]:
        """Return the requests in the order of arrival, the label of each, and notes. To be called once."""
        total = self.drafts.num_added
        if self.column is not None and not any(self.labels):
            raise self.place.error(f"has no column {self.column!r}", "name another with --tenants, or a rule: dealt:N")
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
        if self.num_waiting:
            yield f"{self.num_waiting:,} of {total:,} requests, where they overlap, wait for the answer before them."
        for at, name in enumerate(self.layout.splits):
            if (count := len({values[at] for values in self.splits})) > 1:
                yield f"'{name}' has {count:,} values: requests with other ones share no prefixes."
        if unit != (self.unit or self.layout.unit):
            yield f"Each id stands for {unit} tokens, by the number of ids; --unit sets it."


def _name(value: object) -> str | None:
    """Return a name as text; a field that is absent, null or an empty cell names nothing."""
    return None if value is None or value == "" else str(value)


def _within(row: Row, names: Sequence[str]) -> Iterator[Row]:
    """Yield the rows in a list of a row, with those of its fields that they lack, or the row if it has none."""
    if not names or row.get(names[0]) is None:
        yield row
        return
    outer = {name: value for name, value in row.fields.items() if name != names[0]}
    for each in row.rows(names[0]):
        yield from _within(Row(outer | each.fields, row.place), names[1:])


def _num_ids(num_tokens: int, unit: Unit) -> int:
    return -(-num_tokens // unit[0]) if unit[1] else num_tokens // unit[0]


def _session(session: Row, start: float, layout: Layout) -> Iterator[tuple[float, Row]]:
    """Yield the requests of a session with their times, those of its sub-agents included.

    Some producers count a sub-agent's times from the session's start and some from the sub-agent's own: where any of
    them lies before the marker, they are taken as its own.
    """
    rows = session.rows(layout.turns)
    times = [row.time(layout.times[0], layout.tick) for row in rows]
    # Producers differ here; times from the session's start cannot lie before the marker.
    offset = start if any(time < start for time in times) else 0.0
    for row, seconds in zip(rows, times, strict=True):
        if row.fields.get("type") == "subagent":
            yield from _session(row, offset + seconds, layout)
        else:
            yield offset + seconds, row
