"""Writes the generated pages to ``docs/book``, which holds nothing else."""

from collections.abc import Iterator

from . import book_known_bugs, book_laws, chapters, data, evidence, links


def write() -> None:
    """Write every page that has changed, and delete those that are no more."""
    made = {data.BOOK / f"{name}.md": text for name, text in every()}
    for path in set(data.BOOK.rglob("*.md")) - made.keys() if data.BOOK.exists() else ():
        path.unlink()
    for path, text in made.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def every() -> Iterator[tuple[str, str]]:
    """Yield each page: its name below the folder, and its text."""
    yield from chapters.pages()
    yield from book_laws.pages()
    yield from book_known_bugs.pages()
    yield from evidence.pages()
    for name, file in (("contributing", "CONTRIBUTING.md"), ("changelog", "CHANGELOG.md"), ("readme", "README.md")):
        text = (data.ROOT / file).read_text(encoding="utf-8").replace('"docs/_static/', '"../_static/')
        yield name, links.rewritten(text, f"book/{name}", "")
    toy = (data.ROOT / "examples/toy_manager/README.md").read_text(encoding="utf-8")
    yield "toy-manager", links.rewritten(toy, "book/toy-manager", "examples/toy_manager")
    benchmarks = (data.ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    yield "benchmarks", links.rewritten(benchmarks, "book/benchmarks", "benchmarks")
