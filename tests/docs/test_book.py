"""Property: the generated pages show the whole specification, every law and known bug, and their links lead there.

How: of each chapter, the lines shown are put together again and compared with its source; names in code are followed to
the label of their definition; entries of laws and known bugs are counted against the lists that the gates read; labels
that pages link to must be given exactly once by some page; worked examples run on the manager, and what a comment in
them promises is what the call returns.
Not covered: the looks of pages; that Sphinx accepts them (`make docs`, warnings as errors).
"""

import ast
import re
from collections import Counter
from functools import cache
from typing import Any

import pytest

pytest.importorskip("sphinx")

from blockwright.errors import BlockwrightError
from blockwright_book import book_known_bugs, code, data, known_bugs, laws, links, markdown, pages, spec
from blockwright_lab.known_bugs.bugs import BUGS
from blockwright_spec.manager.laws import LAWS

each_chapter = pytest.mark.parametrize("chapter", spec.chapters(), ids=lambda chapter: chapter.name)


@cache
def every() -> dict[str, str]:
    """All generated pages."""
    return dict(pages.every())


def test_every_module_is_a_chapter_in_order() -> None:
    for part in ("", *spec.PARTS):
        own = [chapter for chapter in spec.chapters() if chapter.part == part]
        assert [chapter.number for chapter in own] == list(range(1, len(own) + 1))
        called = f"Part {spec.PARTS[part]}" if part else "To begin with"
        for chapter in own:
            heading = ast.get_docstring(spec.tree(chapter)) or ""
            assert heading.startswith(f"{called}, chapter {chapter.number}: "), chapter.name
    files = {path for path in spec.FOLDER.rglob("*.py") if path.name != "__init__.py"}
    assert {chapter.path for chapter in spec.chapters()} == files


@each_chapter
def test_every_line_of_a_chapter_is_shown_once(chapter: spec.Chapter) -> None:
    """Code, or docstring, or import (also for types alone): nothing else is left out, and nothing is shown twice."""
    lines = chapter.path.read_text(encoding="utf-8").splitlines()
    shown = Counter(number for entry in spec.entries(chapter) for number in entry.lines)
    assert set(shown.values()) == {1}
    body = spec.tree(chapter).body
    texts = [node for node in ast.walk(spec.tree(chapter)) if isinstance(node, ast.stmt) and spec.is_text(node)]
    apart = [*texts, *(node for node in body if isinstance(node, ast.Import | ast.ImportFrom | ast.If))]
    rest = {number for node in apart for number in range(node.lineno, (node.end_lineno or 0) + 1)}
    missing = {number for number, line in enumerate(lines, 1) if line.strip()} - shown.keys() - rest
    assert [lines[number - 1] for number in sorted(missing)] == []


@each_chapter
def test_code_of_a_name_is_its_own(chapter: spec.Chapter) -> None:
    """What is shown under a name begins with it, or with comments and decorators right before it."""
    lines = chapter.path.read_text(encoding="utf-8").splitlines()
    for entry in spec.entries(chapter):
        own = [lines[number - 1] for number in entry.lines]
        first = next(line for line in own if line and not line.startswith(("#", "@")))
        assert re.match(rf"(def |class |){entry.name}\b", first), own
        assert all(line.startswith((" ", ")", "]", "}")) or not line for line in own[own.index(first) + 1 :])


def test_names_in_code_lead_to_their_definitions() -> None:
    chapter = next(each for each in spec.chapters() if each.name == "manager.hits")
    html = code.rendered(chapter, list(range(1, 60)), lambda label: f"@{label}")
    assert '<a class="spec-link" href="@spec-reads-hit-ends">hit_ends</a>' in html
    assert '<a class="spec-link" href="@spec-manager-state-state-type">State</a>' in html
    assert '<a class="spec-link" href="@law-hit-1">HIT-1</a>' in html


def test_bound_names_lead_nowhere() -> None:
    tree = ast.parse("def f(needed, *rest): return [needed for held in rest]")
    assert code.bound(tree.body[0]) == {"needed", "rest", "held"}


def test_every_law_has_one_entry() -> None:
    text = "\n".join(text for name, text in every().items() if name.startswith("laws/part"))
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == list(laws.by_id())
    table = every()["laws/index"]
    assert all(f"[{law.id}](#{laws.label(law.id)})" in table for law in LAWS)


def test_every_known_bug_has_one_entry_and_a_difference() -> None:
    own = "\n".join(text for name, text in every().items() if name.startswith("known-bugs/") and "index" not in name)
    assert re.findall(r"^## (\w+): ", own, re.MULTILINE) == [each.id for each in BUGS]
    for bug in BUGS:
        changed = [line for line in known_bugs.differences(bug).splitlines() if line.startswith(("+", "-"))]
        files = sum(line.startswith("+++ ") for line in changed)
        assert len(changed) > files > 0


def test_labels_are_given_once_and_links_to_them_lead_somewhere() -> None:
    given = Counter(label for text in every().values() for label in re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE))
    assert [label for label, count in given.items() if count > 1] == []
    asked = {label for text in every().values() for label in re.findall(r"\]\(#([\w-]+)\)", text)}
    headings = {"measured"}  # a heading of the overview, which it links to itself
    assert asked - given.keys() - headings == set()


def test_what_was_not_measured_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without data there are no numbers, on any page."""
    monkeypatch.setattr(data, "load", lambda name: None)
    monkeypatch.setattr(data, "DATA", data.DATA / "none")
    made = dict(pages.every())
    for name in ("gates", "mutants", "engines"):
        assert "ot measured" in made[name]
    assert "not measured" in made["laws/part-1"]
    assert "not measured" in book_known_bugs.entry(BUGS[0])
    assert not re.search(r"Checked\n: .*\d", made["laws/part-1"])


def test_signs_of_markdown_are_escaped() -> None:
    assert markdown.plain("a*b_c <d> [e] | f") == r"a\*b\_c \<d\> \[e\] \| f"
    assert markdown.plain("is *due* until 2 * 3") == r"is *due* until 2 \* 3"
    assert markdown.prose("see READ-1 and READ-99") == f"see [READ-1](#{laws.label('READ-1')}) and READ-99"
    assert markdown.threads("a/b#1, #2") == (
        "[a/b#1](https://github.com/a/b/issues/1), [#2](https://github.com/a/b/issues/2)"
    )


@pytest.mark.parametrize(
    ("link", "page"),
    [
        ("](../../spec/blockwright_spec/reads.py)", "](/book/spec/reads.md)"),
        ("](../../spec/blockwright_spec/block_tables/laws.py)", "](/book/spec/block_tables/laws.md)"),
        ("](../../spec/blockwright_spec/offload)", "](/book/spec/offload/index.md)"),
        ("](paging.md#forks)", "](/how-to/paging.md#forks)"),
        ("](../../examples/engine_loop.py)", "](/../examples/engine_loop.py)"),
        ("](https://example.org/reads.py)", "](https://example.org/reads.py)"),
        ("](nothing.md)", "](nothing.md)"),
    ],
)
def test_links_to_sources_lead_to_pages(link: str, page: str) -> None:
    assert links.rewritten(link, "how-to/engine") == page


@pytest.mark.parametrize("name", data.load("examples") or [])
def test_worked_examples_run(name: str) -> None:
    """Each line runs on the manager; what the comment expects is what comes back."""
    example: dict[str, Any] = data.load("examples")[name]
    namespace: dict[str, Any] = {}
    text = "\n".join(example["trace"])
    for node in ast.parse(text).body:
        source = ast.unparse(node)
        comment = text.splitlines()[(node.end_lineno or 0) - 1].partition("  # ")[2]
        if not isinstance(node, ast.Expr):
            exec(source, namespace)
        elif comment.startswith("an error"):
            with pytest.raises(BlockwrightError):
                eval(source, namespace)
        else:
            done = eval(source, namespace)
            if comment.startswith("refused"):
                assert not done
            elif comment.startswith("new blocks") and done is not None and "allocate_slots(" in source:
                assert str(tuple(map(tuple, done.get_block_ids()))) == comment.removeprefix("new blocks ")
