"""Pages of the specification: one for each chapter, prose and code in turn."""

from collections.abc import Iterator

from . import laws, machine, spec
from .markdown import prose
from .spec import Chapter, Entry

TITLES = {
    "manager": "the manager: one pool, any number of groups",
    "block_tables": "block tables with copy-on-write",
    "offload": "blocks kept off the device",
    "worker": "what the kernels are given",
}


def pages() -> Iterator[tuple[str, str]]:
    """Return the page of each chapter, and of the parts."""
    yield "spec/index", index()
    for part in spec.PARTS:
        yield f"spec/{part}/index", of_part(part)
    for chapter in spec.chapters():
        yield f"spec/{chapter.file}", page(chapter)


def index() -> str:
    """Return the page that lists what comes first, and the parts."""
    first = spec.chapters()[0]
    opening = (
        f"First [the page](#{spec.label(first.name)}) that parts one to three refine, then the chapters in order. Each "
        "opens with what it is about; the code is what the gates run."
    )
    rows = [*listed(""), *(f"Part {spec.PARTS[part]}, {TITLES[part]} <{part}/index>" for part in spec.PARTS)]
    return f"(spec-chapters)=\n# The chapters\n\n{opening}\n\n{toctree(rows)}\n"


def of_part(part: str) -> str:
    """Return the page of a part: its summary and its chapters."""
    prosaic = prose(spec.about(part).partition("\n\n")[2], spec.named(part))
    first = spec.about(part).partition("\n\nBook two")[0].count("`") // 2  # as many chapters are named in book one
    books = (("Book one", listed(part)[:first]), ("Book two", listed(part)[first:]))
    tables = (toctree(rows, title if len(listed(part)) > first else "") for title, rows in books if rows)
    return "\n\n".join((f"# Part {spec.PARTS[part]}, {TITLES[part]}\n\n{prosaic}", *tables)) + "\n"


def listed(part: str) -> list[str]:
    """Return a line of a table of contents for each chapter of a part."""
    own = [chapter for chapter in spec.chapters() if chapter.part == part]
    return [f"{each.number}. {short(spec.titled(each)[0])} <{each.file.removeprefix(f'{part}/')}>" for each in own]


def short(title: str) -> str:
    """Return a title for the sidebar: up to its first pause that leaves three words, without marks of code."""
    plain = title.replace("`", "")
    pauses = [at for at, sign in enumerate(plain) if sign in ":;," and len(plain[:at].split()) >= 3]
    return plain[: pauses[0]] if pauses else plain


def toctree(rows: list[str], caption: str = "") -> str:
    """Return a table of contents."""
    head = (":maxdepth: 1", *([f":caption: {caption}"] if caption else []), "")
    return "\n".join(("```{toctree}", *head, *rows, "```"))


def page(chapter: Chapter) -> str:
    """Return the page of a chapter."""
    title, rest = spec.titled(chapter)
    names = spec.named(chapter.part) | spec.known(chapter)
    uses = ", ".join(f"[`{name}`](#{spec.label(name)})" for name in spec.imported(chapter))
    lines = len(chapter.path.read_text(encoding="utf-8").splitlines())
    whose = f"Part {spec.PARTS[chapter.part]}" if chapter.part else "Before all parts"
    facts = f"{whose} · `spec/blockwright_spec/{chapter.file}.py`, {lines} lines"
    opening = [
        f"({spec.label(chapter.name)})=\n# {chapter.number}. {title}",
        f"*{facts}{f' · builds on {uses}' if uses else ''}*",
        prose(rest, names),
        *([machine.at_a_glance()] if chapter.name == "block_machine" else []),
    ]
    return "\n\n".join([*filter(None, opening), *(section(chapter, each) for each in spec.entries(chapter))]) + "\n"


def section(chapter: Chapter, entry: Entry) -> str:
    """Return the text about one name, and its code."""
    names, said = spec.named(chapter.part) | spec.known(chapter), entry.said
    heading = f"({spec.label(chapter.name, entry.name)})=\n## {entry.name}"
    after = ""
    law = next(
        (law for law in laws.by_id().values() if (law.chapter, law.function) == (chapter.name, entry.name)), None
    )
    if law is not None:
        heading = f"({spec.label(chapter.name, entry.name)})=\n## {law.id}"
        said = f"{law.statement[0].upper()}{law.statement[1:]}\n\n{law.more}"
        after = f"What is known of it: [{law.id}](#{laws.label(law.id)}) among the laws."
    code = f"```{{spec-code}} {chapter.name}\n:lines: {' '.join(map(str, entry.lines))}\n```"
    return "\n\n".join(filter(None, (heading, prose(said, names), code, after)))
