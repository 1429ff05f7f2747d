"""Pages of the known bugs: a chapter for each kind, and an entry for each bug."""

from collections.abc import Iterator

from blockwright_lab.known_bugs.bugs import Chapter
from blockwright_lab.known_bugs.known_bug import KnownBug

from . import known_bugs
from .laws import by_id
from .markdown import block, count, folded, law, plain, prose, table, threads

NOT_MEASURED = "not measured"


def pages() -> Iterator[tuple[str, str]]:
    """Yield the overview and the chapters."""
    yield "known-bugs/index", overview()
    for chapter in known_bugs.CHAPTERS:
        opening = f"(bugs-{chapter.name})=\n# {chapter.title}"
        yield f"known-bugs/{chapter.name}", "\n\n".join([opening, *map(entry, chapter.bugs)]) + "\n"


def overview() -> str:
    """Return the page that leads to the chapters."""
    shown = {each.id.rstrip("abcdefgh") for each in known_bugs.BUGS if each.id.startswith("B")}
    lengths = sorted(length for each in known_bugs.BUGS if (length := known_bugs.calls(each)) is not None)
    parts = [
        "(the-known-bugs)=\n# Known bugs",
        f"Real bugs of other managers, from their public threads, each put back into this one as a small change and "
        f"caught by the law named for it: {len(known_bugs.BUGS)} faces of {len(shown)} bugs, and some of choices "
        "that we made otherwise (D). Where a bug shows on the way of a search, that way is the shortest there is.",
        "```{calls-figure}\n```" if lengths else "",
        table(("kind", "known bugs"), list(map(line, known_bugs.CHAPTERS))),
        "## Bugs that have no place here",
        table(("bug", "why it cannot exist here"), [(key, prose(why)) for key, why in known_bugs.NOT_POSSIBLE.items()]),
        "```{toctree}\n:hidden:\n\n" + "\n".join(each.name for each in known_bugs.CHAPTERS) + "\n```",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def line(chapter: Chapter) -> tuple[str, str]:
    """Return a chapter's line in the table."""
    links = " ".join(f"[{each.id}](#{known_bugs.label(each.id)})" for each in chapter.bugs)
    return f"[{chapter.title}]({chapter.name}.md)", links


def entry(bug: KnownBug) -> str:
    """Return the entry of an bug."""
    row = known_bugs.seen(bug) or {}
    facts = {
        "Told in": threads(bug.source),
        "Caught by": caught(bug),
        "Looked for in": f"*{plain(bug.place.title)}*{searched(row)}",
    }
    if row.get("damage"):
        facts["Does to a model"] = plain(str(row["damage"]).removeprefix("caught by "))
    title = f"{bug.id}: {plain(bug.title)}"
    parts = [
        f"({known_bugs.label(bug.id)})=\n## {title}",
        prose(bug.story),
        "\n".join(f"{name}\n: {text}\n" for name, text in facts.items()),
        "The bug, put back:",
        block("diff", known_bugs.differences(bug)),
        shortest(row),
    ]
    return "\n\n".join(parts)


def caught(bug: KnownBug) -> str:
    """Return which law catches a bug, and how soon."""
    number = known_bugs.calls(bug)
    name = law(bug.law) if bug.law in by_id() else f"{bug.law} (a check of the gate)"
    if number is None:
        return f"{name}; how soon is {NOT_MEASURED}"
    return f"{name}, " + (f"after {count(number, 'call')}" if number else "before any call")


def searched(row: dict[str, object]) -> str:
    """Return how far one had to look."""
    if not row:
        return ""
    seconds = row.get("seconds") or 0.0
    number = row.get("transitions") or 0
    assert isinstance(seconds, float | int)
    assert isinstance(number, int)
    looked = f": {count(number, 'transition')} until it showed" if number else ""
    return f"{looked}, in {seconds:.2f} s" if looked else f", in {seconds:.2f} s"


def shortest(row: dict[str, object]) -> str:
    """Return the shortest way to a bug as calls, to be opened."""
    trace = row.get("trace")
    if not isinstance(trace, list):
        return "" if row and not row.get("transitions") else f"The shortest way: {NOT_MEASURED}."
    return folded("The shortest way, as calls", block("python", "\n".join(trace)))
