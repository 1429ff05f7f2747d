"""The rows of a trace file, one after another: JSON lines, a JSON array or object, or CSV; packed or not."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import json
import re
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import IO, Any, Final, cast

from blockwright.replay.rows import Place, Row, as_row, parse_object

# Signs within the names of columns.
_OF_NAMES: Final = " _-.()/#%\"'\r\n"
_CHUNK: Final = 1 << 16
# What Zstandard is given at once: a file of few bytes may unpack to any length.
_SMALL: Final = 1 << 11
_DAMAGED: Final = (EOFError, zlib.error, gzip.BadGzipFile)
_BETWEEN: Final = re.compile(r"[\s,]*")
# Characters of a row, or of a file that is one object, at most.
_LONGEST: Final = 1 << 25


def read_rows(place: Place, advance: Callable[[int], object]) -> Generator[Row, None, None]:
    """Yield the rows of a file, or of the JSON files of a folder; `advance` is given the bytes read.

    No more than one row is held, or one file where it is a single object, and of neither more than `_LONGEST`.

    Raises:
        TraceError: it cannot be read, unpacked or parsed.
    """
    folder = place.path
    with _readable(place):
        for place.path in sorted(folder.glob("*.json*")) if folder.is_dir() else [folder]:
            place.line = 0
            yield from _rows(place, advance)
    place.path, place.line = folder, 0


@contextmanager
def _readable(place: Place) -> Iterator[None]:
    """Turn what goes wrong with a file, or with the parsers of its format, into a `TraceError`. law: CALL-2."""
    try:
        yield
    except FileNotFoundError:
        raise place.error("no such file", "check the path, or give none to replay a generated workload") from None
    except _DAMAGED as error:
        raise place.error(f"is packed, and damaged or cut short ({error})", "pack or copy it again") from None
    except OSError as error:
        raise place.error(f"cannot be read ({error.strerror})", "give the path of a trace file") from None
    except UnicodeDecodeError:
        raise place.error("is not text in UTF-8", "unpack it, or convert it to JSON lines") from None
    except (csv.Error, RecursionError) as error:
        raise place.fault(f"cannot be parsed ({error})") from None


def _rows(place: Place, advance: Callable[[int], object]) -> Iterator[Row]:
    with place.path.open("rb") as packed, _text(packed, place) as text:
        # Opened twice: a packed file cannot be read from its beginning again.
        head = text.read(_CHUNK).lstrip()
    if not head:
        raise place.error("is empty", "give the path of a trace, or none to replay a generated workload")
    with place.path.open("rb") as packed, _text(packed, place) as text:
        told = 0
        parse = _elements if head[0] == "[" else _objects if head[0] == "{" else _table
        for row in parse(text, place):
            yield row
            read = packed.tell()
            if read > told:  # it is read in larger pieces than a row
                advance(read - told)
                told = read


def _text(packed: IO[bytes], place: Place) -> IO[str]:
    magic, unpacked = packed.read(4), packed
    packed.seek(0)
    if magic[:2] == b"\x1f\x8b":
        unpacked = cast(IO[bytes], gzip.GzipFile(fileobj=packed))
    elif magic == b"\x28\xb5\x2f\xfd":
        unpacked = _zstandard(packed, place)
    elif magic == b"PAR1":
        raise place.error("is a Parquet file", "convert it to JSON lines, for example with DuckDB or pandas")
    return io.TextIOWrapper(unpacked, encoding="utf-8-sig", newline="")


def _zstandard(packed: IO[bytes], place: Place) -> IO[bytes]:
    if importlib.util.find_spec("zstandard") is None:
        raise place.error("is packed by Zstandard", "install its library with: pip install zstandard, or unpack it")
    import zstandard

    new = zstandard.ZstdDecompressor().decompressobj

    class Stream(io.RawIOBase):
        """What is unpacked; an end within a frame raises an error, which the reader of the library passes over."""

        unpacker, left, ready = new(), b"", b""

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            while not self.ready and (data := self.left or packed.read(_SMALL)):
                # Several frames may follow each other, as `zstd` writes them for parts of a file.
                if self.unpacker.eof:
                    self.unpacker = new()
                try:
                    self.ready = self.unpacker.decompress(data)
                except zstandard.ZstdError as error:
                    raise zlib.error(str(error)) from None
                self.left = self.unpacker.unused_data
            if not self.ready and not self.unpacker.eof:
                raise EOFError("the file ends within a frame")
            count = min(len(buffer), len(self.ready))
            buffer[:count], self.ready = self.ready[:count], self.ready[count:]
            return count

    return cast(IO[bytes], io.BufferedReader(Stream()))


def _objects(text: IO[str], place: Place) -> Iterator[Row]:
    """Yield an object a line, or the one object that is all of the file."""
    for line in _lines(text, place):
        if line.isspace():
            continue
        if place.line == 1 and ".jsonl" not in place.path.suffixes:
            try:
                json.loads(line)
            except ValueError:
                place.line = 0
                yield parse_object(_bounded(line + text.read(_LONGEST), place), place)
                return
        yield parse_object(line, place)


def _lines(text: IO[str], place: Place) -> Iterator[str]:
    place.line = 0
    while line := text.readline(_LONGEST + 1):
        place.line += 1
        yield _bounded(line, place)


def _bounded(text: str, place: Place) -> str:
    if len(text) > _LONGEST:
        raise place.error(f"has more than {_LONGEST:,} characters in one object", "write a request or session a line")
    return text


def _elements(text: IO[str], place: Place) -> Iterator[Row]:
    """Yield the objects of an array, of which no more than one is held."""
    held, at, place.line, decode = "", 0, 1, json.JSONDecoder().raw_decode
    held = text.read(_CHUNK).lstrip()[1:]
    while True:
        at = _BETWEEN.match(held, at).end()  # type: ignore[union-attr]  # it also matches nothing
        if held.startswith("]", at):
            return
        try:
            value, end = decode(held, at)
        except json.JSONDecodeError as error:
            # At least as much again, so that a large object is not parsed from its beginning for each piece.
            more = text.read(max(_CHUNK, len(held) - at))
            if not more:
                raise place.fault(f"truncated or malformed JSON ({error.msg})") from None
            held, at = _bounded(held[at:], place) + more, 0
            continue
        except (ValueError, RecursionError) as error:
            raise place.fault(f"malformed JSON ({error})") from None
        yield as_row(value, place)
        place.line += held.count("\n", at, end)
        at = end


def _table(text: IO[str], place: Place) -> Iterator[Row]:
    """Yield the rows of a CSV file with a header, which has the separator more often than any other sign."""
    lines = _lines(text, place)
    first = next(lines)
    # Nothing in a CSV file names its separator; names of columns are words.
    signs = [sign for sign in first if not sign.isalnum() and sign not in _OF_NAMES]
    table = csv.reader(chain([first], lines), delimiter=max(signs, key=signs.count, default=","))
    header = next(table, [])
    if len(header) == 1:
        raise place.error("is of no known trace format", "give JSON lines, JSON, or CSV with a header")
    for cells in table:
        if not cells:
            continue
        if len(cells) != len(header):
            raise place.fault(f"truncated or malformed: {len(cells)} columns where the header has {len(header)}")
        yield Row({name: _number(cell) for name, cell in zip(header, cells, strict=True)}, place)


def _number(text: str) -> object:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 and str(int(text)) == text else text
