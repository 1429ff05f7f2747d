"""Check a trace row by row and field by field: every fault is a `TraceError` that names the file and the line."""

from __future__ import annotations

import json
import reprlib
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from blockwright.errors import TraceError
from blockwright.replay.records import MAX_PROMPT_TOKENS

# Beyond any time: nanoseconds since 1970 are some 1e18.
_LONGEST = 1e20


class Place:
    """Where a loader is, for its messages: the file, the line (0 means the whole file), the format and the value."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.line = 0
        self.format = ""
        self.num_requests = 0

    def error(self, fault: str, remedy: str) -> TraceError:
        where = f"{self.path}, line {self.line}" if self.line else f"{self.path}"
        return TraceError(f"{where}: {fault}; {remedy}")

    def fault(self, fault: str) -> TraceError:
        if self.num_requests:
            return self.error(fault, f"mend it, or replay only what precedes it with --limit {self.num_requests}")
        return self.error(fault, "mend it, or name another format with --format")


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a trace, with fields that are checked as they are read."""

    fields: dict[str, object]
    place: Place

    def get(self, name: str) -> object:
        """Return a field or None; dots in its name lead into nested objects."""
        if name in self.fields or "." not in name:
            return self.fields.get(name)
        value: object = self.fields
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def count(self, name: str, least: int = 0) -> int:
        """Return a number of tokens; some producers write 5.0 for 5, or a string."""
        value = self.get(name)
        if isinstance(value, str):
            with suppress(ValueError):
                value = float(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or not least <= value <= MAX_PROMPT_TOKENS:
            raise self.wrong(name, f"a whole number from {least} to {MAX_PROMPT_TOKENS}")
        return value

    def time(self, name: str, tick: float) -> float:
        """Return a time in seconds, from a number of ticks or from a date; a date without a zone is taken as UTC."""
        value = self.get(name)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]  # as genai-perf writes it
        if isinstance(value, str):
            with suppress(ValueError, OverflowError):
                date = datetime.fromisoformat(value)
                return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
            with suppress(ValueError):
                value = float(value)
        if not isinstance(value, int | float) or isinstance(value, bool) or not -_LONGEST < value < _LONGEST:
            raise self.wrong(name, f"a time, a date or a number within -{_LONGEST:.0e}..{_LONGEST:.0e}")
        return value * tick

    def names(self, name: str) -> list[int] | list[str]:
        value = self.get(name)
        if type(value) is not list or set(map(type, value)) not in ({int}, {str}, set()):
            raise self.wrong(name, "a list of whole numbers or of strings")
        return value

    def rows(self, name: str) -> list[Row]:
        value = self.get(name)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.wrong(name, "a list of objects")
        return [Row(item, self.place) for item in value]

    def wrong(self, name: str, expected: str) -> TraceError:
        value = self.get(name)
        if value is None and name not in self.fields:
            return self.place.fault(f"{self.place.format}: lacks the field '{name}'")
        return self.place.fault(f"{self.place.format}: '{name}' must be {expected}, not {reprlib.repr(value)}")


def parse_object(text: str, place: Place) -> Row:
    """Parse one JSON object; raise a `TraceError` if it is truncated, malformed, or no object."""
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        place.line = max(place.line, error.lineno)
        raise place.fault(f"truncated or malformed JSON ({error.msg}, column {error.colno})") from None
    except (ValueError, RecursionError) as error:
        raise place.fault(f"malformed JSON ({error})") from None
    return as_row(fields, place)


def as_row(fields: object, place: Place) -> Row:
    """Return a parsed value as a row; raise a `TraceError` if it is no object."""
    if not isinstance(fields, dict):
        raise place.fault("is not a JSON object")
    return Row(fields, place)
