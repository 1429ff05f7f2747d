"""Load public serving traces: Mooncake, Azure, Weka and Bailian.

| format | file | what it says of a prompt |
|---|---|---|
| mooncake | JSON lines | one id per 512 tokens, the last may stand for a partial block; equal id means equal prefix |
| azure | CSV | its length only: no two prompts share anything |
| weka | JSON, a session per file (a folder of them, or one per line) | one id per 64 tokens, full blocks only |
| bailian | JSON lines | one id per 16 tokens, each hashed alone: equal id means equal block, not equal prefix |

A loader turns ids into the contents of `records`. What two prompts share then follows from all their ids from the first
on: ids that are hashed alone are thereby chained on what precedes them, and for chained ids nothing changes.
"""

from __future__ import annotations

import csv
import itertools
import reprlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

from blockwright.errors import InvalidArgumentError
from blockwright.replay.records import MAX_PROMPT_TOKENS, ContentNumbers, Trace, TraceRequest, runs_of_blocks
from blockwright.replay.rows import Place, Row, parse_object

NAMELESS: Final = frozenset(("azure",))
"""Formats that do not say which prompts share a prefix."""

FORMATS: Final = ("mooncake", "azure", "weka", "bailian")

_HEAD_CHARS: Final = 4096
# What the beginning of a file of each format holds; the first match decides.
_MARKS: Final = (
    ("azure", "ContextTokens"),
    ("bailian", '"chat_id"'),
    ("mooncake", '"input_length"'),
    ("weka", '"requests"'),
)


def load_trace(
    path: str | Path, trace_format: str = "auto", *, limit: int | None = None, unit: int | None = None
) -> Trace:
    """Read a trace file, or for `weka` also a folder of session files, in the order its requests are to be served.

    `limit` keeps only the first requests; `unit` overrides the tokens per id. O(size of the file).

    Raises:
        TraceError: no such file, unreadable, or of no known format; a truncated or malformed line (the message names
            file and line).
        InvalidArgumentError: an unknown format; a limit or unit below 1.
    """
    start, place = time.perf_counter(), Place(Path(path))
    for name, value in (("limit", limit), ("unit", unit)):
        if value is not None and value < 1:
            raise InvalidArgumentError(f"{name}: must be at least 1, not {value}")
    if trace_format not in ("auto", *FORMATS):
        raise InvalidArgumentError(f"format: unknown trace format {trace_format!r}; use auto, {', '.join(FORMATS)}")
    with _readable(place):
        name = _detect(place) if trace_format == "auto" else trace_format
        for request in itertools.islice(_LOADERS[name](place, unit), limit):
            place.requests.append(request)
    if not place.requests:
        raise place.error(f"holds no request (read as {name})", "name the right format with --format")
    return Trace(place.path.resolve().name, name, tuple(place.requests), time.perf_counter() - start)


@contextmanager
def _readable(place: Place) -> Iterator[None]:
    """Turn what goes wrong with a file, or with the parsers of its format, into a `TraceError`. law: CALL-2."""
    try:
        yield
    except FileNotFoundError:
        raise place.error("no such file", "check the path, or give none to replay a generated workload") from None
    except OSError as error:
        raise place.error(f"cannot be read ({error.strerror})", "give the path of a trace file") from None
    except UnicodeDecodeError:
        raise place.error("is not text in UTF-8", "unpack it first if it is compressed") from None
    except (csv.Error, RecursionError) as error:
        raise place.fault(f"cannot be parsed ({error})") from None


def _detect(place: Place) -> str:
    """Return the format, read from the beginning of the file; a folder holds `weka` sessions."""
    if place.path.is_dir():
        return "weka"
    with place.path.open(encoding="utf-8-sig") as file:
        head = file.read(_HEAD_CHARS)
    if not head.strip():
        raise place.error("is empty", "give the path of a trace, or none to replay a generated workload")
    for name, mark in _MARKS:
        if mark in head:
            return name
    raise place.error("is of no known trace format", f"name it with --format ({', '.join(FORMATS)})")


def column(path: Path, name: str, count: int) -> Callable[[int], str | None]:
    """Return a column of the first requests of a trace with one request per line: JSON lines or CSV.

    Raises:
        TraceError: a row lacks the column.
    """
    place, found = Place(path), list[str]()
    with _readable(place), path.open(encoding="utf-8-sig", newline="") as file:
        lines = (text for text in file if not text.isspace())
        is_table = path.suffix == ".csv"
        rows = csv.DictReader(lines) if is_table else (parse_object(text, place).fields for text in lines)
        for place.line, row in enumerate(itertools.islice(rows, count), 2 if is_table else 1):
            if row.get(name) is None:
                raise place.error(f"has no column {name!r}", "name another with --tenants, or a rule: dealt:N")
            found.append(str(row[name]))
    return found.__getitem__


# ---- mooncake and bailian: a request per line


def _read_mooncake(place: Place, unit: int | None) -> Iterator[TraceRequest]:
    """Read lines with times in milliseconds."""
    return _read_request_lines(place, unit or 512, seconds_per_tick=1e-3)


def _read_bailian(place: Place, unit: int | None) -> Iterator[TraceRequest]:
    """Read lines with times in seconds; all conversations share one space of ids."""
    return _read_request_lines(place, unit or 16, seconds_per_tick=1.0)


def _read_request_lines(place: Place, unit: int, seconds_per_tick: float) -> Iterator[TraceRequest]:
    numbers = ContentNumbers()
    with place.path.open(encoding="utf-8-sig") as file:
        for place.line, text in enumerate(file, 1):
            if text.isspace():
                continue
            row = parse_object(text, place)
            num_tokens = row.count("input_length", least=1)
            contents = numbers.named(row.hash_ids(-(-num_tokens // unit), unit, num_tokens))
            yield TraceRequest(
                contents,
                runs_of_blocks(contents, unit, num_tokens),
                row.time("timestamp") * seconds_per_tick,
                row.count("output_length"),
            )


# ---- azure: lengths only


def _read_azure(place: Place, unit: int | None) -> Iterator[TraceRequest]:
    """Read the columns TIMESTAMP, ContextTokens, GeneratedTokens; every prompt is a separate content."""
    numbers, first = ContentNumbers(), None
    with place.path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file)
        header = next(rows, [])
        place.line = 1
        if header[:3] != ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]:
            raise place.fault("the header is not TIMESTAMP,ContextTokens,GeneratedTokens")
        for cells in rows:
            place.line = rows.line_num
            if not cells:
                continue
            if len(cells) != len(header):
                raise place.fault(f"truncated or malformed: {len(cells)} columns where the header has {len(header)}")
            row = Row({name: _number(text) for name, text in zip(header, cells, strict=True)}, place)
            arrival = _timestamp(cells[0], place)
            first = arrival if first is None else first
            yield _unshared(
                numbers,
                row.count("ContextTokens", least=1),
                (arrival - first).total_seconds(),
                row.count("GeneratedTokens"),
            )


def _number(text: str) -> object:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else text


def _timestamp(text: str, place: Place) -> datetime:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        raise place.fault(f"TIMESTAMP is no date and time: {reprlib.repr(text)}") from None


def _unshared(numbers: ContentNumbers, num_tokens: int, arrival: float, num_output_tokens: int) -> TraceRequest:
    contents = numbers.named(())
    contents.append(numbers.fresh())
    return TraceRequest(contents, runs_of_blocks(contents, MAX_PROMPT_TOKENS, num_tokens), arrival, num_output_tokens)


# ---- weka: sessions of a coding agent


def _read_weka(place: Place, unit: int | None) -> Iterator[TraceRequest]:
    """Read sessions that all start at time 0, and serve their requests by time.

    Ids are local to their session unless it has ``"hash_id_scope": "global"``. The tokens past the last id are not
    shared.
    """
    numbers = ContentNumbers()
    requests: list[TraceRequest] = []
    for name, session in _weka_sessions(place):
        scope = None if session.fields.get("hash_id_scope") == "global" else name
        tokens_per_id = unit or (session.count("block_size", least=1) if "block_size" in session.fields else 64)
        for arrival, row in _weka_rows(session, 0.0):
            num_tokens = row.count("in", least=1)
            hash_ids = row.hash_ids(num_tokens // tokens_per_id, tokens_per_id, num_tokens)
            contents = numbers.named(hash_ids, scope)
            if num_tokens % tokens_per_id:
                contents.append(numbers.fresh())
            lengths = runs_of_blocks(contents, tokens_per_id, num_tokens)
            requests.append(TraceRequest(contents, lengths, arrival, row.count("out")))
    requests.sort(key=lambda request: request.arrival)
    return iter(requests)


def _weka_sessions(place: Place) -> Iterator[tuple[str, Row]]:
    """Yield each session with a distinct name: per file, or per line of a JSON lines file."""
    folder = place.path
    files = sorted(folder.glob("*.json")) if folder.is_dir() else [folder]
    for place.path in files:
        place.line = 0
        if place.path.suffix == ".jsonl":
            with place.path.open(encoding="utf-8-sig") as file:
                for place.line, text in enumerate(file, 1):
                    if not text.isspace():
                        yield f"{place.path.name}:{place.line}", parse_object(text, place)
        else:
            yield place.path.name, parse_object(place.path.read_text(encoding="utf-8-sig"), place)
    place.path, place.line = folder, 0


def _weka_rows(session: Row, start: float) -> Iterator[tuple[float, Row]]:
    """Yield the requests of a session with their times, those of its sub-agents included.

    Some producers count a sub-agent's times from the session's start and some from the sub-agent's own: where any of
    them lies before the marker, they are taken as its own.
    """
    rows = session.rows("requests")
    times = [row.time("t") for row in rows]
    offset = start if any(time < start for time in times) else 0.0
    for row, seconds in zip(rows, times, strict=True):
        if row.fields.get("type") == "subagent":
            yield from _weka_rows(row, offset + seconds)
        else:
            yield offset + seconds, row


_LOADERS: Final[dict[str, Callable[[Place, int | None], Iterator[TraceRequest]]]] = {
    "mooncake": _read_mooncake,
    "azure": _read_azure,
    "weka": _read_weka,
    "bailian": _read_bailian,
}
