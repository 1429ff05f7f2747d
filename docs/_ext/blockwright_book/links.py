"""Links of the documents to sources become links to the pages that show them."""

import re

from sphinx.application import Sphinx

from . import data, spec

LINK = re.compile(r"\]\(([^)\s:]+?)(#[^)\s]*)?\)")
PAGES = {"README.md": "index", "CONTRIBUTING.md": "book/contributing", "CHANGELOG.md": "book/changelog"}
PAGES |= {"examples/toy_manager/README.md": "book/toy-manager"}
PAGES |= {"benchmarks/README.md": "book/benchmarks", "spec/blockwright_spec": "book/spec/index"}
# What generated pages are made from: a link to it leads somewhere outside of the site, too.
PAGES |= {
    "conformance/blockwright_lab/book/law_tags.py": "book/tags",
    "conformance/blockwright_lab/contracts": "book/contracts",
    "docs/data/examples.json": "book/examples",
    "docs/data/gates.json": "book/gates",
    "docs/data/known_bugs.json": "book/known-bugs/index",
    "docs/data/survivors.json": "book/mutants",
}


def to_pages(app: Sphinx, docname: str, source: list[str]) -> None:
    """Rewrite the links of a page that is read."""
    source[0] = rewritten(source[0], docname)


def rewritten(text: str, docname: str, folder: str | None = None) -> str:
    """Return a text with its links to sources led to pages; they are written as from `folder`, or where it lies."""
    here = data.ROOT / folder if folder is not None else (data.DOCS / docname).parent

    def changed(match: re.Match[str]) -> str:
        target = (here / match[1]).resolve()
        if not match[1] or not target.is_relative_to(data.ROOT) or not target.exists():
            return match[0]
        path = target.relative_to(data.ROOT).as_posix()
        page = page_of(path)
        if page is not None:
            return f"](/{page}.md{match[2] or ''})"
        if target.is_dir():
            return f"](/book/sources.md#{path.replace('/', '-').replace('_', '-')})"
        return f"](/{'../' if not path.startswith('docs/') else ''}{path.removeprefix('docs/')}{match[2] or ''})"

    return LINK.sub(changed, text)


def page_of(path: str) -> str | None:
    """Return the document that shows a file of the repository, if one does."""
    chapters = {f"spec/blockwright_spec/{each.file}.py": each.page for each in spec.chapters()}
    known = PAGES | chapters | {f"spec/blockwright_spec/{part}": f"book/spec/{part}/index" for part in spec.PARTS}
    if path in known:
        return known[path]
    return path.removeprefix("docs/").removesuffix(".md") if path.startswith("docs/") and path.endswith(".md") else None
