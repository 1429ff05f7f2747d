"""Property: what the documents show works: sessions at the prompt, Python examples, commands, make targets, links.

How: in each document, Python blocks run in order in one namespace: those with prompts as doctests (their output is
compared), those without as plain code. The commands `blockwright replay` and `view` of shell blocks run in order in one
folder, with a small trace under each name of a trace and the classes of the document in `mymodule`; arguments of the
other commands, which take minutes, are parsed. Make targets must exist, and relative links must lead somewhere.
Pages that the site's build generates (docs/book) are not documents here, but links may lead to them.
Not covered: numbers quoted in prose, other programs, links to other hosts.
"""

import doctest
import importlib
import importlib.metadata
import json
import re
import shlex
import sys
from functools import cache
from pathlib import Path

import pytest

from blockwright import cli
from blockwright.exclusions import EXCLUSIONS
from blockwright_conformance.kv_cache.fitting import NAMES

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")) if not path.is_relative_to(ROOT / "docs/book")
)
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\$ )?(?:\w+=\S+ )*(make|blockwright)((?: [a-z][a-z-]*)+)", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

SECTION = re.compile(r"^\*\*(\w+)\*\*:(.*?)(?=^\*\*|\Z)", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| `([^`]+)` \| (.*) \|$", re.MULTILINE)

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def blocks(document: Path, *languages: str) -> list[tuple[int, str]]:
    """The fenced blocks in one of the languages, each with the number of lines before it."""
    text = document.read_text(encoding="utf-8")
    found = BLOCK.finditer(text)
    return [(text[: match.start(2)].count("\n"), match[2]) for match in found if match[1] in languages]


def run_blocks(document: Path) -> int:
    """Run the Python blocks of a document in one namespace; return how many there were."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    found = blocks(document, "python", "pycon", "py")
    for line, source in found:
        if ">>>" in source:
            session = doctest.DocTestParser().get_doctest(source, namespace, document.name, str(document), line)
            report: list[str] = []
            runner.run(session, out=report.append, clear_globs=False)
            if runner.failures:
                pytest.fail("".join(report))
            namespace.update(session.globs)
        else:
            exec(compile("\n" * line + source, str(document), "exec"), namespace)
    return len(found)


def test_readme_shows_python() -> None:
    assert blocks(ROOT / "README.md", "python", "pycon")


@each_document
def test_python_examples_run(document: Path) -> None:
    run_blocks(document)


@each_document
def test_commands_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    commands = {entry.name for entry in importlib.metadata.entry_points(group="blockwright.commands")}
    lines = "\n".join(text for _, text in blocks(document, "sh", "bash", "console", "shell"))
    spans = "\n".join(re.findall(r"`([^`\n]+)`", document.read_text(encoding="utf-8")))
    named = re.findall(
        r"^(?:\$ )?(?:\w+=\S+ )*(make|blockwright)((?: [a-z][a-z-]*)+)", f"{lines}\n{spans}", re.MULTILINE
    )
    assert {word for command, words in named if command == "make" for word in words.split()} <= targets
    assert {words.split()[0] for command, words in named if command == "blockwright"} <= commands


@each_document
def test_commands_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "\n".join(text for _, text in blocks(document, "sh", "bash", "console", "shell"))
    found = [
        shlex.split(line, comments=True)[1:] for line in re.findall(r"^(?:\$ )?blockwright .*", lines, re.MULTILINE)
    ]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mymodule", raising=False)
    (tmp_path / "mymodule.py").write_text(classes(document))
    for name in {word for command in found for word in command if word.endswith((".jsonl", "config.json"))}:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(TRACE if name.endswith(".jsonl") else MODEL)
    for command in found:
        if command[0] in ("replay", "view"):
            assert (command, cli.main(command)) == (command, 0)
            written = [command[at + 1] for at, word in enumerate(command) if word in ("--plot", "--json", "--timeline")]
            assert [name for name in written if not (tmp_path / name).stat().st_size] == []
        else:
            cli._parser(command).parse_args(command)


TRACE = "".join(
    json.dumps({"timestamp": 100 * at, "input_length": 512 * 9, "output_length": 9, "hash_ids": [at % 4, *ids]}) + "\n"
    for at in range(40)
    for ids in [range(100 * (at % 7), 100 * (at % 7) + 8)]
)
"""A trace in Mooncake's form."""

LAYERS = {"layer_types": ["sliding_attention"] * 5 + ["full_attention"], "sliding_window": 1024}
MODEL = json.dumps(
    LAYERS | {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 65536, "vocab_size": 9}
)
"""What a model's configuration says of its layers, and of the bytes of a token: 64 KiB in each."""


def classes(document: Path) -> str:
    """What a document imports and defines, as a module."""
    sessions = [text for _, text in blocks(document, "python", "pycon") if ">>>" in text]
    examples = [each.source for text in sessions for each in doctest.DocTestParser().get_examples(text)]
    return "".join(each for each in examples if each.startswith(("from collections", "import", "class ")))


@each_document
def test_links_lead_somewhere(document: Path) -> None:
    links = {link.split("#")[0] for link in LINK.findall(document.read_text(encoding="utf-8")) if "://" not in link}
    assert [link for link in sorted(links) if link and not leads_somewhere(document, link)] == []


def leads_somewhere(document: Path, link: str) -> bool:
    """Whether there is such a file; a link that begins with a slash begins at docs, where pages are generated too."""
    if link.startswith("/book/"):
        return link.removeprefix("/book/").removesuffix(".md") in generated()
    return (ROOT / "docs" / link[1:] if link.startswith("/") else document.parent / link).exists()


@cache
def generated() -> frozenset[str]:
    """The names of the pages that the build generates; without what it needs, links to them cannot be judged."""
    pytest.importorskip("sphinx")
    pages = importlib.import_module("blockwright_book.pages")
    return frozenset(name for name, _ in pages.every())


def test_every_pair_of_options_that_exclude_each_other_is_listed_with_its_reason() -> None:
    page = (ROOT / "docs/reference/features.md").read_text(encoding="utf-8")
    section = page.partition("## Options that exclude each other")[2].partition("\n## ")[0]
    rows = [tuple(cell.strip(" `") for cell in line.split(" | ")) for line in section.splitlines()[6:] if line]
    assert [(one.removeprefix("| `"), other, why.removesuffix(" |")) for one, other, why in rows] == list(EXCLUSIONS)


def test_every_name_that_an_adapter_may_declare_is_listed_with_its_meaning() -> None:
    page = (ROOT / "docs/how-to/ci.md").read_text(encoding="utf-8")
    section = page.partition("### What you may declare")[2].partition("\n### ")[0]
    listed = {what.lower(): dict(ROW.findall(text)) for what, text in SECTION.findall(section)}
    assert listed == NAMES


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("```python\n>>> 1 + 1\n3\n```\n", "Expected"),
        ("```python\n>>> a = 1\n```\nand\n```python\n>>> a\n2\n```\n", "Expected"),
    ],
)
def test_wrong_session_is_found(tmp_path: Path, text: str, fault: str) -> None:
    """The check itself: a session whose output differs fails, and blocks share one namespace."""
    document = tmp_path / "wrong.md"
    document.write_text(text)
    with pytest.raises(pytest.fail.Exception, match=fault):
        run_blocks(document)
    document.write_text("```python\na = 1\n```\nand\n```python\n>>> a\n1\n```\n")
    assert run_blocks(document) == 2
