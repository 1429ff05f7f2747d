"""Pages of the museum: the rooms, and an entry for each exhibit."""

from collections.abc import Iterator

from blockwright_lab.known_bugs.gate import title_of
from blockwright_lab.known_bugs.known_bug import Exhibit

from . import museum
from .laws import by_id
from .markdown import block, count, folded, law, plain, prose, table, threads

NOT_MEASURED = "not measured"


def pages() -> Iterator[tuple[str, str]]:
    """Give the hall and the rooms."""
    yield "museum/index", hall()
    for name, module, exhibits in museum.ROOMS:
        yield f"museum/{name}", room(name, museum.opening(module), exhibits)


def hall() -> str:
    """Give the page that leads to the rooms."""
    shown = {each.id.rstrip("abcdefgh") for each in museum.EXHIBITS if each.id.startswith("B")}
    lengths = sorted(length for each in museum.EXHIBITS if (length := museum.calls(each)) is not None)
    parts = [
        "(the-museum)=\n# The museum",
        f"Real bugs of other managers, from their public threads, each put back into this one as a small patch and "
        f"caught by the law named for it: {len(museum.EXHIBITS)} exhibits of {len(shown)} bugs, and some of choices "
        "that we made otherwise (D). Where a bug shows on the way of a search, that way is the shortest there is.",
        "```{calls-figure}\n```" if lengths else "",
        rooms(),
        "## Bugs that have no place here",
        table(("bug", "why it cannot exist here"), [(key, prose(why)) for key, why in museum.NOT_POSSIBLE.items()]),
        "```{toctree}\n:hidden:\n\n" + "\n".join(name for name, _, _ in museum.ROOMS) + "\n```",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def rooms() -> str:
    """Give the table of the rooms."""
    cells = []
    for name, module, exhibits in museum.ROOMS:
        said = museum.opening(module)
        links = " ".join(f"[{each.id}](#{museum.label(each.id)})" for each in exhibits)
        cells.append((f"[{said[0].upper()}{said[1:]}]({name}.md)", links))
    return table(("room", "exhibits"), cells)


def room(name: str, said: str, exhibits: tuple[Exhibit, ...]) -> str:
    """Give the page of a room."""
    opening = f"(room-{name})=\n# {said[0].upper()}{said[1:]}"
    return "\n\n".join([opening, *(entry(each) for each in exhibits)]) + "\n"


def entry(exhibit: Exhibit) -> str:
    """Give the entry of an exhibit."""
    row = museum.seen(exhibit) or {}
    facts = {
        "Told in": threads(exhibit.source),
        "Caught by": caught(exhibit),
        "Looked for in": f"*{plain(title_of(exhibit.where))}*{searched(row)}",
    }
    if row.get("damage"):
        facts["Does to a model"] = plain(str(row["damage"]).removeprefix("caught by "))
    title = f"{exhibit.id}: {plain(exhibit.title)}"
    parts = [
        f"({museum.label(exhibit.id)})=\n## {title}",
        prose(exhibit.story),
        "\n".join(f"{name}\n: {text}\n" for name, text in facts.items()),
        "The bug, put back:",
        block("diff", museum.differences(exhibit)),
        shortest(row),
    ]
    return "\n\n".join(parts)


def caught(exhibit: Exhibit) -> str:
    """Say which law catches an exhibit, and how soon."""
    number = museum.calls(exhibit)
    name = law(exhibit.law) if exhibit.law in by_id() else f"{exhibit.law} (a check of the gate)"
    if number is None:
        return f"{name}; how soon is {NOT_MEASURED}"
    return f"{name}, " + (f"after {count(number, 'call')}" if number else "before any call")


def searched(row: dict[str, object]) -> str:
    """Say how far one had to look."""
    if not row:
        return ""
    seconds = row.get("seconds") or 0.0
    number = row.get("transitions") or 0
    assert isinstance(seconds, float | int)
    assert isinstance(number, int)
    looked = f": {count(number, 'transition')} until it showed" if number else ""
    return f"{looked}, in {seconds:.2f} s" if looked else f", in {seconds:.2f} s"


def shortest(row: dict[str, object]) -> str:
    """Give the shortest way to an exhibit as calls, to be opened."""
    trace = row.get("trace")
    if not isinstance(trace, list):
        return "" if row and not row.get("transitions") else f"The shortest way: {NOT_MEASURED}."
    return folded("The shortest way, as calls", block("python", "\n".join(trace)))
