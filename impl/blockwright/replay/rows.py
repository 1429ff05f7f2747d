"""Check a trace row by row and field by field: every fault is a `TraceError` that names the file and the line."""

from __future__ import annotations

import json
import reprlib
from dataclasses import dataclass
from pathlib import Path

from blockwright.errors import TraceError
from blockwright.replay.records import MAX_PROMPT_TOKENS, TraceRequest

_LONGEST = 1e20
"""Beyond any time: nanoseconds since 1970 are some 1e18."""


class Place:
    """Where a loader is, for its messages: the file, the line (0: the whole file), and the requests read before it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.line = 0
        self.requests: list[TraceRequest] = []

    def error(self, fault: str, remedy: str) -> TraceError:
        """Return an error with the place, the fault and the remedy."""
        where = f"{self.path}, line {self.line}" if self.line else f"{self.path}"
        return TraceError(f"{where}: {fault}; {remedy}")

    def fault(self, fault: str) -> TraceError:
        """Return the error for content that is not of the format."""
        before = len(self.requests)
        if before:
            return self.error(fault, f"mend it, or replay only what precedes it with --limit {before}")
        return self.error(fault, "mend it, or name the right format with --format")


@dataclass(frozen=True, slots=True)
class Row:
    """A JSON object of a trace, with fields that are checked as they are read."""

    fields: dict[str, object]
    place: Place

    def count(self, name: str, least: int = 0) -> int:
        """Return a number of tokens."""
        value = self.fields.get(name)
        if type(value) is not int or not least <= value <= MAX_PROMPT_TOKENS:
            raise self._wrong(name, f"a whole number from {least} to {MAX_PROMPT_TOKENS}")
        return value

    def time(self, name: str) -> float:
        """Return a finite time."""
        value = self.fields.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not -_LONGEST < value < _LONGEST:
            raise self._wrong(name, f"a time, a number within -{_LONGEST:.0e}..{_LONGEST:.0e}")
        return float(value)

    def hash_ids(self, expected: int, unit: int, num_tokens: int) -> list[int]:
        """Return the ids of the prompt's blocks, `expected` of them."""
        value = self.fields.get("hash_ids")
        if type(value) is not list or set(map(type, value)) - {int}:
            raise self._wrong("hash_ids", "a list of whole numbers")
        if len(value) != expected:
            raise self.place.fault(
                f"'hash_ids' must hold {expected} ids for {num_tokens} tokens in blocks of {unit}, not {len(value)}"
            )
        return value

    def rows(self, name: str) -> list[Row]:
        """Return a list of objects."""
        value = self.fields.get(name)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self._wrong(name, "a list of objects")
        return [Row(item, self.place) for item in value]

    def _wrong(self, name: str, expected: str) -> TraceError:
        if name not in self.fields:
            return self.place.fault(f"lacks the field '{name}'")
        return self.place.fault(f"'{name}' must be {expected}, not {reprlib.repr(self.fields[name])}")


def parse_object(text: str, place: Place) -> Row:
    """Parse one JSON object.

    Raises:
        TraceError: truncated or malformed JSON, or not an object.
    """
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        place.line = max(place.line, error.lineno)
        raise place.fault(f"truncated or malformed JSON ({error.msg}, column {error.colno})") from None
    except (ValueError, RecursionError) as error:
        raise place.fault(f"malformed JSON ({error})") from None
    if not isinstance(fields, dict):
        raise place.fault("is not a JSON object")
    return Row(fields, place)
