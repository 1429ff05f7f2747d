"""The journal as a timeline: a Chrome trace, which Perfetto and ``chrome://tracing`` open, and the life of one block.

Each request is a track, from its admission to its end, with its events as marks. Blocks held and free are a counter,
evictions a separate track, with the request whose call took the blocks.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from blockwright._text import printable
from blockwright.arguments import guard as _guard
from blockwright.errors import InvalidArgumentError
from blockwright.observe import Fact

_POOL, _REQUESTS = 1, 2
_LISTS = ("new", "held", "evicted")


def trace_events(facts: Iterable[Fact]) -> Iterator[dict[str, Any]]:
    """Yield the events of a Chrome trace, in order of the facts; times in microseconds from the first one. O(facts)."""
    tracks: dict[str, int] = {}
    begun: dict[str, Fact] = {}
    start: float | None = None
    for pid, name in ((_POOL, "pool"), (_REQUESTS, "requests")):
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
    yield {"ph": "M", "name": "thread_name", "pid": _POOL, "tid": 0, "args": {"name": "evictions"}}
    last = 0.0
    for fact in facts:
        start = fact.at if start is None else start
        last = round((fact.at - start) * 1e6, 3)
        here: dict[str, Any] = {"pid": _REQUESTS, "tid": 0, "ts": last}
        if fact.request:
            if fact.request not in tracks:
                tracks[fact.request] = len(tracks) + 10  # apart from the numbers of processes
                own = {"pid": _REQUESTS, "tid": tracks[fact.request], "args": {"name": fact.request}}
                yield {"ph": "M", "name": "thread_name", **own}
            here["tid"] = tracks[fact.request]
        if fact.kind in ("admit", "fork"):
            if begun.pop(fact.request, None) is not None:  # a load that failed gave its blocks up
                yield {"ph": "E", **here}
            begun[fact.request] = fact
            yield {"ph": "B", "name": fact.request, "cat": "request", **here}
        yield {"ph": "i", "s": "t", "name": fact.kind, "cat": "fact", "args": _said(fact), **here}
        if fact.kind in ("free", "preempt") and begun.pop(fact.request, None) is not None:
            yield {"ph": "E", **here}
        if fact.evicted:
            args = {"blocks": list(fact.evicted), "taken by": fact.request}
            yield {"ph": "i", "s": "t", "name": "evict", "cat": "evict", "args": args, **here, "pid": _POOL, "tid": 0}
        yield {"ph": "C", "name": "free blocks", "args": {"free": fact.free}, **here, "pid": _POOL, "tid": 0}
    for request in begun:
        yield {"ph": "E", "pid": _REQUESTS, "tid": tracks[request], "ts": last}


def _said(fact: Fact) -> dict[str, Any]:
    """Return the fields of a fact beyond its kind and time."""
    said = {name: value for name, value in fact._asdict().items() if value and name not in ("at", "kind")}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in said.items()}


def write_timeline(facts: Iterable[Fact], path: Path) -> None:
    """Write facts as a Chrome trace, packed if the name ends in ``.gz``. O(facts).

    No part of one is left where it is interrupted.
    """
    text = ",\n".join(json.dumps(event) for event in trace_events(facts))
    with (  # one that cannot be opened is left as it is
        gzip.open(path, "wt", encoding="utf-8") if path.suffix == ".gz" else path.open("w", encoding="utf-8")
    ) as file:
        try:
            file.write(f'{{"traceEvents": [\n{text}\n]}}\n')
            file.flush()
        except BaseException:
            if path.is_file():
                path.unlink()
            raise


def read_timeline(path: Path) -> list[dict[str, Any]]:
    """Return the facts of a timeline that was written, each with its time in microseconds under ``ts``. O(file).

    The file is a Chrome trace in either form, an object or an array whose end may be missing, as it is or packed by
    gzip; events of others in it are passed over.

    Raises:
        InvalidArgumentError: it is not there, or holds no fact of a manager; the message says what it seems to be.
    """
    try:
        with path.open("rb") as packed:
            file = gzip.GzipFile(fileobj=packed) if packed.read(2) == b"\x1f\x8b" else packed
            packed.seek(0)
            # One byte beyond the bound shows that there is more, without unpacking a small file of any length.
            text = file.read(_MOST + 1)
        if len(text) > _MOST:
            raise ValueError(f"it has more than {_MOST:,} bytes")
        found = _parsed(text.decode("utf-8-sig").strip())
        events = found.get("traceEvents", ()) if isinstance(found, dict) else found
        facts = [event for event in events if isinstance(event, dict) and event.get("cat") == "fact"]
        if not facts:
            raise ValueError(f"it is {_named(found)}, without a fact of a manager")
        return [{"ts": float(fact["ts"]), "kind": str(fact["name"]), **_arguments(fact["args"])} for fact in facts]
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        said = f"{type(error).__name__} {error}" if isinstance(error, KeyError) else error
        raise InvalidArgumentError(
            f"FILE: {path} is no timeline of ours: {said}; give a file of `blockwright replay --timeline`"
        ) from error


_MOST: Final = 1 << 28
# Fields by which files of others are known, and what these are.
_MARKS: Final = {
    "schemaVersion": "a trace of torch.profiler",
    "deviceProperties": "a trace of torch.profiler",
    "traceEvents": "a Chrome trace of another program",
    "ph": "a Chrome trace of another program",
    "resourceSpans": "spans of OpenTelemetry",
    "hit_rate": "a report of `blockwright replay --json`",
    "trace": "a report of `blockwright replay --json`",
    "event": "events that Dynamo recorded",
    "event_id": "events of TensorRT-LLM",
}


def _parsed(text: str) -> Any:
    """Return what a file holds: an object, or the objects of an array or of lines."""
    if not text:
        raise ValueError("it is empty")
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        if text.startswith("["):  # the format lets an array end without its bracket
            return json.loads(text.rstrip(",") + "]")
        lines = text.splitlines()
        if len(lines) < 2:
            raise
        return [json.loads(line) for line in lines if line]


def _named(found: object) -> str:
    first = next(iter(found), None) if isinstance(found, list) else found
    names = first if isinstance(first, dict) else {}
    return next((words for mark, words in _MARKS.items() if mark in names), "of no known kind")


def _arguments(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a timeline's fact beyond its time and kind; lists of blocks are lists of integers."""
    if any(not isinstance(block, int) for name in _LISTS for block in args.get(name, ())):
        raise ValueError("blocks are integers")
    return {name: value for name, value in args.items() if name not in ("ts", "kind")}


def life(facts: Iterable[Mapping[str, Any]], *, request: str | None = None, block: int | None = None) -> Iterator[str]:
    """Yield the life of one request, or of one block, a line for each fact that names it. O(facts).

    A block is released when a request ends or is preempted that was given it. One that a window has passed was released
    before, and is not listed again once another request was given it.
    """
    holders: set[object] = set()
    for fact in facts:
        if request is not None and fact.get("request") == request:
            rest = [f"{name} {_short(value)}" for name, value in fact.items() if name not in ("ts", "kind", "request")]
            yield printable(f"{fact['ts'] / 1e6:12.6f} s  {fact['kind']:8}  {', '.join(rest)}")
        for what in _LISTS[::-1] if block is not None else ():
            if block in fact.get(what, ()):
                word = {"new": "taken by", "held": "hit by", "evicted": "evicted by"}[what]
                holders = (holders if what == "held" else set()) | (
                    {fact.get("request")} if what != "evicted" else set()
                )
                yield printable(f"{fact['ts'] / 1e6:12.6f} s  {word} {fact.get('request', '')} ({fact['kind']})")
        if fact["kind"] in ("free", "preempt") and fact.get("request") in holders:
            holders.discard(fact.get("request"))
            yield printable(f"{fact['ts'] / 1e6:12.6f} s  released by {fact.get('request', '')} ({fact['kind']})")


def _short(value: object) -> str:
    """Return a number, or a list of blocks as their count and the first of them."""
    if not isinstance(value, list):
        return str(value)
    return f"{len(value)} block{'s' * (len(value) != 1)} ({', '.join(map(str, value[:6]))}{', ...' * (len(value) > 6)})"


__all__ = ["life", "read_timeline", "trace_events", "write_timeline"]

_guard(globals(), __all__)
