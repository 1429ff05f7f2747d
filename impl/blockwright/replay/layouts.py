"""The field names of each trace format, and how a file's format is recognised by its first row.

Another format with a row per request is another line of `LAYOUTS`; `traces` reads all of them by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from blockwright.replay.rows import Place, Row


@dataclass(frozen=True, slots=True)
class Layout:
    """Name the fields of a format; a name with dots leads into nested objects, and an empty one means there is none.

    Attributes:
        marks: a row that has all fields of one of these sets is of this format.
        tokens, output: the fields with the lengths of prompt and answer.
        ids, unit: the field with the ids of the prompt's blocks, and the tokens of one id.
        own_unit: the field of a row, or of a session, with the number of these tokens.
        times, tick: the fields that may hold the arrival, and the seconds that its numbers count.
        delay: the seconds after the row before, in the same session, in units of `tick`.
        session: the field that rows of one session share.
        text: the fields that may hold the prompt as text or messages, where the row has no length.
        turns: the field with a list of requests, or of messages of which each answer ends a request.
        only: a field, and its value in rows that are requests.
        refused: why the format is not read, and what to do.
    """

    name: str
    marks: tuple[frozenset[str], ...]
    tokens: str = "input_length"
    output: str = "output_length"
    ids: str = ""
    unit: int = 512
    own_unit: str = ""
    times: tuple[str, ...] = ("timestamp",)
    tick: float = 1.0
    delay: str = ""
    session: str = ""
    text: tuple[str, ...] = ()
    turns: str = ""
    only: tuple[str, str] | None = None
    refused: str = ""


def _marks(*sets: str) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(names.split("|")) for names in sets)


_NO_CONTENT: Final = (
    "says how many tokens a prompt has and not which; convert it to rows with timestamp (ms), input_length, "
    "output_length and hash_ids"
)

LAYOUTS: Final = (
    Layout(
        "azure",
        _marks("TIMESTAMP|ContextTokens|GeneratedTokens"),
        tokens="ContextTokens",
        output="GeneratedTokens",
        times=("TIMESTAMP",),
    ),
    Layout(
        "burstgpt",
        _marks("Timestamp|Request tokens|Response tokens"),
        tokens="Request tokens",
        output="Response tokens",
        times=("Timestamp",),
    ),
    Layout(
        "dynamo",
        _marks("event_type|request"),
        tokens="request.replay.input_length",
        output="request.output_tokens",
        ids="request.replay.input_sequence_hashes",
        unit=64,
        own_unit="request.replay.trace_block_size",
        times=("request.request_received_ms", "event_time_unix_ms"),
        tick=1e-3,
        only=("event_type", "request_end"),
    ),
    Layout("bailian", _marks("chat_id|input_length"), ids="hash_ids", unit=16),
    Layout(
        "weka",
        _marks("requests"),
        tokens="in",
        output="out",
        ids="hash_ids",
        unit=64,
        own_unit="block_size",
        times=("t",),
        turns="requests",
    ),
    Layout("lmcache", _marks("session_id|input|output_length"), delay="pre_gap", session="session_id", text=("input",)),
    Layout("sharegpt", _marks("conversations"), turns="conversations"),
    Layout("wildchat", _marks("conversation"), turns="conversation"),
    Layout(
        "mooncake",
        _marks("input_length", "text_input", "messages"),
        ids="hash_ids",
        tick=1e-3,
        delay="delay",
        session="session_id",
        text=("text_input", "messages"),
    ),
    Layout("OpenTelemetry", _marks("spans", "resourceSpans"), refused=_NO_CONTENT),
    Layout("TraceLab", _marks("round_index|usage"), refused=_NO_CONTENT),
)

FORMATS: Final = tuple(layout.name for layout in LAYOUTS if not layout.refused)


def layout_of(row: Row, place: Place) -> Layout:
    """Return the layout of a file by its first row.

    Raises:
        TraceError: no format has these fields, or the format cannot be replayed; the message names the missing field.
    """
    names = set(row.fields)
    for layout in LAYOUTS:
        if any(marks <= names for marks in layout.marks):
            if layout.refused:
                raise place.error(f"is a trace of {layout.name}", f"it {layout.refused}")
            return layout
    # Of formats with as many of these fields, the one that lacks the fewest.
    near = max(LAYOUTS, key=lambda each: (len(_known(each) & names), -min(len(marks - names) for marks in each.marks)))
    marks = max(near.marks, key=lambda each: _share(each, names))
    if _known(near) & names:
        raise place.error(
            f"is of no known trace format; it is nearest to {near.name} and lacks {_quoted(marks - names)}",
            f"add what is missing, or name the format with --format ({', '.join(FORMATS)})",
        )
    raise place.error(
        f"is of no known trace format; its fields are {_quoted(names)}",
        f"name it with --format ({', '.join(FORMATS)}), or convert it to rows with timestamp (ms), input_length, "
        "output_length and hash_ids",
    )


def _known(layout: Layout) -> frozenset[str]:
    named = layout.tokens, layout.output, layout.ids, layout.delay, layout.session, *layout.times, *layout.text
    return frozenset(named).union(*layout.marks) - {""}


def _share(marks: frozenset[str], names: set[str]) -> float:
    return len(marks & names) / len(marks)


def _quoted(names: Iterable[str]) -> str:
    shown = sorted(names)
    return ", ".join(map(repr, shown[:8])) + (", ..." if len(shown) > 8 else "") if shown else "none"
