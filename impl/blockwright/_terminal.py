"""Progress and tables on a terminal: through rich where it is installed (extra `cli`), as plain lines otherwise.

Progress goes to stderr and tables to stdout, so that the output of a command can be piped on. No markup is read from
text, and control characters in it are written out (`printable`).
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from blockwright._text import printable, printable_lines
from blockwright.errors import BlockwrightError

_PLAIN_SECONDS: Final = 10.0  # between two plain lines of progress
_RICH_SECONDS: Final = 0.1  # between two updates of a bar
_WIDE: Final = 200  # columns where the output is no terminal and COLUMNS does not say: tables are not folded there


class OutputError(BlockwrightError):
    """A command has nowhere to write what it found: the arguments were right, and nothing is said of the findings."""


@contextmanager
def output(option: str, path: Path) -> Iterator[None]:
    """Let a failure to write the file that an option names be an `OutputError` that names both."""
    try:
        yield
    except OSError as error:
        said = error.strerror or error
        raise OutputError(f"{option}: cannot write {path}: {said}; name a file that can be written") from error


class Advance(Protocol):
    """Report that `count` more steps are done, and optionally the current one."""

    def __call__(self, count: int = 1, note: str = "") -> None: ...


def has_rich() -> bool:
    return importlib.util.find_spec("rich") is not None


@contextmanager
def progress(label: str, total: int) -> Iterator[Advance]:
    """Show progress over `total` steps while the block runs; one at a time, on stderr.

    Where stderr is no terminal or rich is missing, a plain line is written every ten seconds, so that short runs are
    silent. Advancing costs well below a microsecond, so it may be called for every step.
    """
    if has_rich() and sys.stderr.isatty():
        with _rich_bar(label, total) as show:
            yield _throttled(show, _RICH_SECONDS)
        return

    def line(done: int, note: str) -> None:
        suffix = f" ({printable(note)})" if note else ""
        print(f"{printable(label)}: {done:,} of {total:,}{suffix}", file=sys.stderr, flush=True)

    yield _throttled(line, _PLAIN_SECONDS)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], footer: str = "") -> None:
    """Print a table on stdout: the first column to the left, the others to the right; `footer` goes below it."""
    title, columns, footer = printable(title), [printable(each) for each in columns], printable_lines(footer)
    rows = [[printable(cell) for cell in row] for row in rows]
    if has_rich():
        _rich_table(title, columns, rows, footer)
    else:
        print("\n".join(_plain_table(title, columns, rows, footer)))


def _throttled(show: Callable[[int, str], None], seconds: float) -> Advance:
    """Count steps, and show the count at most once in `seconds`."""
    done, last, next_time = 0, "", time.monotonic() + seconds

    def advance(count: int = 1, note: str = "") -> None:
        nonlocal done, last, next_time
        done += count
        last = note or last
        now = time.monotonic()
        if now >= next_time:
            next_time = now + seconds
            show(done, last)

    return advance


@contextmanager
def _rich_bar(label: str, total: int) -> Iterator[Callable[[int, str], None]]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(escape(printable(label)), total=total)

        def show(done: int, note: str) -> None:
            bar.update(task, completed=done, description=escape(printable(f"{label} {note}".rstrip())))

        yield show


def _rich_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], footer: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    def table(lines: Sequence[Sequence[str]]) -> Table:
        made = Table()
        for number, name in enumerate(lines[0]):
            made.add_column(Text(name), justify="right" if number else "left", no_wrap=True)
        for line in lines[1:]:
            made.add_row(*(Text(cell) for cell in line))
        return made

    console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDE)
    if title:
        console.print(Text(title, style="bold"), soft_wrap=True)
    upright, unbound = [columns, *rows], console.options.update(max_width=10_000)
    turned = list(zip(*upright, strict=True))
    for lines in (upright, turned):  # nothing is cut: where the terminal is too narrow, rows become columns
        if console.measure(table(lines), options=unbound).maximum <= console.width:
            console.print(table(lines))
            break
    else:
        console.print(Text("\n".join(_plain_table("", columns, rows, ""))), soft_wrap=True)
    if footer:
        console.print(Text(footer), soft_wrap=True)


def _plain_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], footer: str) -> list[str]:
    table = [list(columns), *(list(row) for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    lines = [title] if title else []
    for row in table:
        others = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        lines.append("  ".join([row[0].ljust(widths[0]), *others]).rstrip())
    return [*lines, footer] if footer else lines
