"""Text that others wrote, made safe to show: on a terminal, in a table, in XML.

Request ids, tenants, salts, file names and messages come from clients and files. Shown as they are, an escape sequence
rewrites the terminal, a line feed breaks a table, a bidirectional mark turns it round, and XML allows no control
character at all. So whatever shows text of others passes it through `printable`.

This module stays uncompiled and imports nothing of the package, so that every part of it may use it.
"""

from __future__ import annotations

from typing import Any, Protocol


class Drawing(Protocol):
    """A picture: text for a prompt, SVG for a notebook. A type of annotations alone."""

    states: list[str]
    rows: list[Any]

    def svg(self, theme: str = "auto") -> str: ...
    def _repr_svg_(self) -> str: ...


def printable(text: str, most: int | None = None) -> str:
    r"""Return text in which each character shows as itself; any other is written as Python writes it in a string.

    Characters that do not show are those of `str.isprintable`: controls, surrogates, marks of direction, separators.
    A space is kept. With `most`, longer text is cut to that many characters, and ends in "...". O(text).

    Example:
        >>> printable("tab\tand \x1b[2J"), printable("a long name", 8)
        ('tab\\tand \\x1b[2J', 'a lon...')
    """
    if not text.isprintable():
        if most is not None:
            text = text[: most + 1]  # the rest would be cut: it need not be written
        text = "".join([each if each.isprintable() else each.encode("unicode_escape").decode() for each in text])
    return text if most is None or len(text) <= most else text[: max(0, most - 3)] + "..."


def printable_lines(text: str) -> str:
    r"""Return text of several lines, each of them `printable`; only "\n" ends a line. O(text)."""
    return "\n".join([printable(line) for line in text.split("\n")])
