"""Words of the sources as Markdown: names in backticks become links, and so do the ids of laws."""

import re
from collections.abc import Mapping, Sequence

from . import laws, spec

SPAN = re.compile(r"(``[^`]+``|`[^`]+`)")


def prose(text: str, names: Mapping[str, str] | None = None) -> str:
    """Return docstring text as Markdown; `names` are the labels of names in backticks."""
    return "\n\n".join(paragraph(each, names or {}) for each in text.split("\n\n") if each.strip())


def paragraph(text: str, names: Mapping[str, str]) -> str:
    """Return one paragraph; a session at the prompt becomes a block of code."""
    if text.lstrip().startswith(">>>"):
        return f"```pycon\n{text}\n```"
    parts = SPAN.split(text)
    return "".join(span(part, names) if at % 2 else plain(part) for at, part in enumerate(parts))


def span(text: str, names: Mapping[str, str]) -> str:
    """Return a piece of code, as a link where its name leads somewhere."""
    name = text.strip("`")
    target = names.get(name.partition("(")[0]) or spec.named("").get(name)
    return f"[`{name}`](#{target})" if target else f"`{name}`"


def plain(text: str) -> str:
    """Return text outside of code: signs that mean something in Markdown are escaped but *stress*, laws are links."""
    escaped = re.sub(r"([*_<>\[\]|#])", r"\\\1", text)
    escaped = re.sub(r"(?<!\w)\\\*(\w[\w -]*)\\\*(?!\w)", r"*\1*", escaped)
    return laws.NAMED.sub(lambda match: law(match[0]), escaped)


def law(name: str) -> str:
    """Return the id of a law, as a link if there is such a law."""
    return f"[{name}](#{laws.label(name)})" if name in laws.by_id() else name


THREAD = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)?#(?P<number>\d+)")
BUG = re.compile(r"\bB\d\d\b")


def threads(text: str) -> str:
    """Return sources as Markdown: numbers of public threads are links; a bare one is of the repository before it."""
    repository = ""

    def link(match: re.Match[str]) -> str:
        nonlocal repository
        repository = match["repository"] or repository
        if not repository:
            return f"\\{match[0]}"
        return f"[{match[0]}](https://github.com/{repository}/issues/{match['number']})"

    return THREAD.sub(link, text)


def table(heads: Sequence[str], cells: Sequence[Sequence[object]], numbers: frozenset[int] = frozenset()) -> str:
    """Return a table; columns of `numbers` are aligned to the right."""
    line = "|".join("---:" if at in numbers else ":---" for at in range(len(heads)))
    rows = ["|".join(re.sub(r"(?<!\\)\|", r"\|", str(cell).replace("\n", " ")) for cell in row) for row in cells]
    return "\n".join(f"|{row}|" for row in ("|".join(heads), line, *rows))


def block(language: str, text: str) -> str:
    """Return a block of code."""
    return f"````{language}\n{text.rstrip()}\n````"


def folded(title: str, body: str) -> str:
    """Return a part that a reader opens."""
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def count(number: int, what: str) -> str:
    """Return a number of things in words: 1 call, 2 calls."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def size(value: object) -> int:
    """Return a number, or count a list of names."""
    return value if isinstance(value, int) else len(value) if isinstance(value, list | tuple | dict) else 0
