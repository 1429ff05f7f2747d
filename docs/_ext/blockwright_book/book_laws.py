"""Pages of the laws: a table of all, and an entry for each with its evidence."""

from collections.abc import Iterator
from functools import cache

from blockwright_lab.book.law_tags import UNCLAIMED, Place, claims
from blockwright_lab.contracts.gate import CONTRACTS

from . import data, known_bugs, spec
from .chapters import TITLES
from .laws import Family, Law, by_id, label
from .markdown import BUG, count, prose, span, table

NOT_MEASURED = "not measured"


def pages() -> Iterator[tuple[str, str]]:
    """Yield the table and the page of each part."""
    yield "laws/index", index()
    for part in range(1, len(TITLES) + 1):
        yield f"laws/part-{part}", of_part(part)


def index() -> str:
    """Return the table of all laws."""
    notes = (
        "(laws-table)=\n# The laws\n\n"
        "Every law is a function of the specification that the gates call; its name and sentence are the first line of "
        "that function. *Checked* counts the states or calls in which it was evaluated in the last report of profile "
        f"`{profile()}`, and *shown by* the known bugs that name it as their catcher."
    )
    parts = [notes]
    for part in range(1, len(TITLES) + 1):
        cells = [row(law) for law in by_id().values() if law.family.part == part]
        heads = ("law", "says", "checked", "shown by")
        parts.append(f"## Part {titled(part)}")
        parts.append(f":::{{container}} law-cards laws-table\n{table(heads, cells, frozenset((2, 3)))}\n:::")
    links = "\n".join(f"part-{part}" for part in range(1, len(TITLES) + 1))
    parts.append(f"```{{toctree}}\n:hidden:\n\n{links}\n```")
    return "\n\n".join(parts) + "\n"


def titled(part: int) -> str:
    """Return the number of a part, as a word, and its title."""
    folder = tuple(spec.PARTS)[part - 1]
    return f"{spec.PARTS[folder]}, {TITLES[folder]}"


def profile() -> str:
    """Return the profile of the report."""
    return str((data.load("gates") or {"profile": NOT_MEASURED})["profile"])


def row(law: Law) -> tuple[str, ...]:
    """Return the row of a law."""
    number = checked(law.family)
    return (
        f"[{law.id}](#{label(law.id)})",
        prose(law.statement, names(law)),
        "–" if number is None else f"{number:,}",
        f"{len(known_bugs.of_law(law.id)):,}",
    )


def names(law: Law) -> dict[str, str]:
    """Return the labels of the names that the chapter of a law knows."""
    chapter = next(chapter for chapter in spec.chapters() if chapter.name == law.chapter)
    return spec.named(chapter.part) | spec.known(chapter)


def checked(family: Family) -> int | None:
    """Count the states or calls in which the laws of a family were evaluated; None where that was not measured."""
    rows = family.rows()
    return sum(row.get(family.counted, 0) for row in rows) if rows else None


def of_part(part: int) -> str:
    """Return the page of a part: an entry for each law."""
    parts = [
        f"# Laws of part {titled(part)}",
        "Laws are checked in every state or call of the scopes. The arithmetic that they rest on is confirmed or "
        "searched by [contracts](/book/contracts.md); where a law itself is, its entry says so.",
    ]
    parts += [entry(law) for law in by_id().values() if law.family.part == part]
    return "\n\n".join(parts) + "\n"


def entry(law: Law) -> str:
    """Return the entry of a law."""
    statement = prose(f"{law.statement[0].upper()}{law.statement[1:]}", names(law))
    parts = [f"({label(law.id)})=\n## {law.id}", f"**{statement}**", prose(law.more, names(law))]
    facts = {
        "Defined": f"in chapter {span(f'`{law.chapter}`', {})}, [`{law.function}`]"
        f"(#{spec.label(law.chapter, law.function)})",
        "Source": BUG.sub(
            lambda match: bug(match[0]), prose(law.source, spec.named(tuple(spec.PARTS)[law.family.part - 1]))
        ),
        "Checked": told_checked(law.family),
        "Contracts": contracts(law),
        "Known bugs": told_bugs(law),
        "Upheld in": told_tags(law),
    }
    return "\n\n".join(filter(None, [*parts, "\n".join(f"{name}\n: {text}\n" for name, text in facts.items() if text)]))


def told_checked(family: Family) -> str:
    """Return where laws were checked."""
    rows = family.rows()
    if not family.kinds:
        return f"in {family.of}"
    if not rows:
        return NOT_MEASURED
    kinds = " and ".join(f"`{kind}`" for kind in dict.fromkeys(row["kind"] for row in rows))
    number, what = checked(family), family.counted.removesuffix("s")
    return f"in {family.of}: {count(number or 0, what)}, {count(len(rows), 'scope')} of the gates {kinds}"


def bug(name: str) -> str:
    """Return the number of a bug of the corpus, as a link to the first of its faces."""
    first = next((each for each in known_bugs.BUGS if each.id.startswith(name)), None)
    return f"[{name}](#{known_bugs.label(first.id)})" if first else name


def contracts(law: Law) -> str:
    """Return the contracts that cover a law."""
    return "; ".join(dict.fromkeys(prose(each.statement) for each in CONTRACTS if law.id in each.statement))


def told_bugs(law: Law) -> str:
    """Return which known bugs a law catches."""
    found = known_bugs.of_law(law.id)
    links = ", ".join(f"[{each.id}](#{known_bugs.label(each.id)})" for each in found)
    return f"it catches {links}" if found else "no known bug names it as its catcher"


def told_tags(law: Law) -> str:
    """Return where the implementation claims to uphold a law, or why no single place does."""
    places = claimed()[law.id]
    if not places:
        return prose(UNCLAIMED.get(law.id, "no line claims it"))
    shown = (f"`{file}`" + (f": `{function}`" if function else "") for file, function in of_functions(places))
    return ", ".join(shown)


@cache
def claimed() -> dict[str, list[Place]]:
    """Return the places that claim each law: the sources are read once for all laws."""
    return claims()


def of_functions(places: list[Place]) -> list[tuple[str, str]]:
    """Return the files and functions of places, each once."""
    return list(dict.fromkeys((each.file.removeprefix("blockwright/"), each.function) for each in places))
