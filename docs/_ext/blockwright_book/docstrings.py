"""Docstrings of the API reference: sections in Google's style, and `int` for the integers of compiled code."""

import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config
from sphinx.ext.napoleon.docstring import GoogleDocstring

INTEGER = re.compile(r"(?:mypy_extensions\.)?\bi(?:64|32|16)\b")
SECTIONS: Any = Config(napoleon_use_ivar=True)


class Google(GoogleDocstring):
    """The style as it is used here: one field may name several things, and results are described in words."""

    def _consume_fields(
        self, parse_type: bool = True, prefer_type: bool = False, multiple: bool = False
    ) -> list[tuple[str, str, list[str]]]:
        return super()._consume_fields(parse_type, prefer_type, True)

    def _parse_returns_section(self, section: str) -> list[str]:
        return self._format_block(":returns: ", self._dedent(self._consume_to_next_section()))


def sections(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turn sections into fields; text about an attribute is never a type before a colon."""
    kind: Any = "method" if what in ("attribute", "property", "data") else what
    lines[:] = Google(lines, SECTIONS, None, kind, name, obj, options).lines()


def integers(app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: Any, returned: Any) -> Any:
    """Show `int` for fixed-width integers: callers pass and get Python's own."""
    return tuple(INTEGER.sub("int", text) if text else text for text in (signature, returned))


def add(app: Sphinx) -> None:
    """Connect both."""
    app.connect("autodoc-process-docstring", sections)
    app.connect("autodoc-process-signature", integers)
