"""The part of the documentation that is made from the sources: chapters, laws, known bugs, contracts and figures.

`sphinx-build docs OUT` writes pages to ``docs/book`` before it reads them (nothing there is kept in version control)
and renders them like any other page. Measured numbers come from ``docs/data``, which
``python -m blockwright_lab.book`` writes from a report of the gates; missing measurements are marked as missing.
"""

from typing import Any

from sphinx.application import Sphinx
from sphinx.config import Config

from . import code, docstrings, figures, links, pages


def write_pages(app: Sphinx, config: Config) -> None:
    """Write the generated pages, before the documents are listed."""
    pages.write()


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directives and the pages."""
    app.connect("config-inited", write_pages)
    app.connect("source-read", links.to_pages)
    code.add(app)
    figures.add(app)
    docstrings.add(app)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
