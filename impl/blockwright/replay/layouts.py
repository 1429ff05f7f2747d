"""The field names of each trace format, and how a file's format is recognised by its first row.

Another format with a row per request is another section of layouts.toml; `traces` reads all of them by it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from blockwright.replay.rows import Place, Row

_SPLITS: Final = ("cache_salt", "lora_name", "lora", "adapter", "model")


@dataclass(frozen=True, slots=True)
class Layout:
    """Name the fields of a format; a name with dots leads into nested objects, and an empty one means there is none.

    Attributes:
        marks: a row that has all fields of one of these sets is of this format.
        tokens: the field with the length of the prompt; empty where the prompt is always there itself.
        output: the fields that may hold the length of the answer.
        ids, unit: the field with the ids of the prompt's blocks, and the tokens of one id.
        own_unit: the field of a row, or of a session, with the number of these tokens.
        times, tick: the fields that may hold the arrival, and the seconds that its numbers count.
        delay: the seconds from the answer to the row before, in the same session, in units of `tick`.
        session: the field that rows of one session share, or that names an earlier row by its `own_name`.
        waits: whether a turn waits for the answer before it even where it has a time.
        text: the fields that may hold the prompt as text or messages, where the row has no length.
        turns: the field with a list of requests, or of messages of which each answer ends a request.
        within: fields with a list of rows, each within rows of the one before, in which the requests are.
        splits: fields of which requests with other values share no prefix.
        only: a field, and its value in rows that are requests.
        refused: why the format is not read, and what to do.
    """

    name: str
    marks: tuple[frozenset[str], ...]
    tokens: str = "input_length"
    output: tuple[str, ...] = ("output_length",)
    ids: str = ""
    unit: int = 512
    own_unit: str = ""
    times: tuple[str, ...] = ("timestamp",)
    tick: float = 1.0
    delay: str = ""
    session: str = ""
    own_name: str = ""
    waits: bool = False
    text: tuple[str, ...] = ()
    turns: str = ""
    within: tuple[str, ...] = ()
    splits: tuple[str, ...] = _SPLITS
    only: tuple[str, str] | None = None
    refused: str = ""


def _layout(fields: dict[str, Any]) -> Layout:
    """Return a layout, by its section in layouts.toml."""
    given: dict[str, Any] = {name: tuple(each) if type(each) is list else each for name, each in fields.items()}
    return Layout(**{**given, "marks": tuple(map(frozenset, given["marks"]))})


_FILE: Final = Path(__file__).with_name("layouts.toml")
LAYOUTS: Final = tuple(map(_layout, tomllib.loads(_FILE.read_text(encoding="utf-8"))["layout"]))

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
    named = layout.tokens, layout.ids, layout.delay, layout.session, *layout.output, *layout.times, *layout.text
    return frozenset(named).union(*layout.marks) - {""}


def _share(marks: frozenset[str], names: set[str]) -> float:
    return len(marks & names) / len(marks)


def _quoted(names: Iterable[str]) -> str:
    shown = sorted(names)
    return ", ".join(map(repr, shown[:8])) + (", ..." if len(shown) > 8 else "") if shown else "none"
