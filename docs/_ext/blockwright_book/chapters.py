"""Pages of the specification: one for each chapter, prose and code in turn."""

from collections.abc import Iterator

from . import laws, machine, spec
from .markdown import prose
from .spec import Chapter, Entry

TITLES = (
    "The manager: one pool, any number of groups",
    "Block tables with copy-on-write",
    "Blocks kept off the device",
    "What the kernels are given",
)


def pages() -> Iterator[tuple[str, str]]:
    """Give the page of each chapter, and of the parts."""
    yield "spec/index", index()
    for chapter in spec.chapters():
        yield f"spec/{chapter.name}", page(chapter)


def index() -> str:
    """Give the page that lists the parts and their chapters."""
    first = spec.chapters()[0]
    opening = (
        f"First [the page](#{spec.label(first.name)}) that all parts refine, then the chapters in order. Each opens "
        "with what it is about; the code is what the gates run."
    )
    parts = [f"(spec-chapters)=\n# The chapters\n\n{opening}"]
    for part, title in enumerate(TITLES, 1):
        own = [chapter for chapter in spec.chapters() if chapter.part == part]
        names = "\n".join(f"{each.number}. {spec.titled(each)[0].replace('`', '')} <{each.name}>" for each in own)
        parts.append(f"## Part {spec.PARTS[part - 1]}: {title[0].lower()}{title[1:]}")
        parts.append(f"```{{toctree}}\n:maxdepth: 1\n\n{names}\n```")
    return "\n\n".join(parts) + "\n"


def page(chapter: Chapter) -> str:
    """Give the page of a chapter."""
    title, rest = spec.titled(chapter)
    names = spec.known(chapter)
    uses = ", ".join(f"[`{name}`](#{spec.label(name)})" for name in spec.imported(chapter))
    lines = len(chapter.path.read_text(encoding="utf-8").splitlines())
    whose = f"Part {spec.PARTS[chapter.part - 1]}" if chapter.part else "Before all parts"
    facts = f"{whose} · `spec/blockwright_spec/{chapter.name}.py`, {lines} lines"
    opening = [
        f"({spec.label(chapter.name)})=\n# {chapter.number}. {title}",
        f"*{facts}{f' · builds on {uses}' if uses else ''}*",
        prose(rest, names),
        *([] if chapter.part else [machine.at_a_glance()]),
    ]
    return "\n\n".join([*filter(None, opening), *(section(chapter, each) for each in spec.entries(chapter))]) + "\n"


def section(chapter: Chapter, entry: Entry) -> str:
    """Give what is said of one name, and its code."""
    names, said = spec.known(chapter), entry.said
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
