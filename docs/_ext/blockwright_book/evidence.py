"""Pages of measurements: gates, scopes, contracts, mutants, law tags, other engines, sources, worked examples."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from blockwright.observe.picture import Picture, Row
from blockwright_lab.book.law_tags import UNCLAIMED, Place, claims
from blockwright_lab.contracts.contract import Contract
from blockwright_lab.contracts.gate import CONTRACTS
from blockwright_lab.mutation.planted import DATA

from . import book_engines, book_laws, data, laws
from .markdown import block, count, law, plain, prose, size, table

NOT_MEASURED = "Not measured."
ELSEWHERE = {
    "contract": "the-contracts",
    "planted": "the-contracts",
    "known-bugs": "the-known-bugs",
    "damage": "the-known-bugs",
    "mutants": "the-mutants",
}
"""Gates whose rows have pages of their own, and their labels."""


def rows_label(kind: str) -> str:
    """Return the label of the rows of a gate."""
    return f"rows-of-{kind.replace(' ', '-')}"


def pages() -> Iterator[tuple[str, str]]:
    """Yield the pages."""
    yield "gates", gates()
    yield "contracts", contracts()
    yield "mutants", mutants()
    yield "examples", examples()
    yield "tags", tagged()
    yield "engines", book_engines.page()
    yield "sources", sources()


def gates() -> str:
    """Return the page of the last report."""
    report = data.load("gates")
    if report is None:
        return f"# What was checked\n\n{NOT_MEASURED}\n"
    kinds = list(dict.fromkeys(row["kind"] for row in report["rows"]))
    sums = [(f"[`{kind}`](#{ELSEWHERE.get(kind, rows_label(kind))})", *summed(kind)) for kind in kinds]
    parts = [
        "(gates-report)=\n# What was checked",
        f"The last report of profile `{report['profile']}`: {report['transitions']:,} transitions in lock-step on each "
        f"build ({plain(report['build'])}); gates that change source run once. Seconds are those of the first run of "
        "each gate, on two shared cores, summed over two processes; the other numbers are the same in every run, but "
        "for the random histories.",
        table(("gate", "rows", "states", "transitions", "violations", "seconds"), sums, frozenset(range(1, 6))),
        *(scopes(kind) for kind in kinds if kind not in ELSEWHERE),
    ]
    return "\n\n".join(parts) + "\n"


def summed(kind: str) -> tuple[str, ...]:
    """Sum the rows of a gate."""
    rows = data.rows(kind)
    whole = [f"{sum(row.get(name, 0) for row in rows):,}" for name in ("states", "transitions", "violations")]
    return (f"{len(rows):,}", *whole, f"{sum(row.get('seconds', 0.0) for row in rows):.1f}")


def scopes(kind: str) -> str:
    """Return the rows of a gate."""
    cells = [
        (
            plain(row["scope"]),
            *(f"{row.get(name, 0):,}" for name in ("states", "transitions")),
            f"{row.get('seconds', 0.0):.1f}",
        )
        for row in data.rows(kind)
    ]
    heads = ("scope", "states", "transitions", "seconds")
    return f"({rows_label(kind)})=\n## {kind}\n\n" + table(heads, cells, frozenset((1, 2, 3)))


def contracts() -> str:
    """Return the page of the contracts: those confirmed, those searched, and those that are neither."""
    confirmed, searched = ([each for each in CONTRACTS if bool(each.tried) == tried] for tried in (False, True))
    faults = [
        (f"`{each['line']}`", f"`{each['wrong']}`", prose(each["refuted_by"]))
        for each in DATA["fault"]
        if "part" not in each
    ]
    parts = [
        "(the-contracts)=\n# Contracts: what is confirmed, what is searched, what neither",
        "A contract is a small function: it says for which values something holds, and what. "
        "[CrossHair](https://crosshair.readthedocs.io) runs the specification's definitions, the implementation's "
        "closed forms and the steps of the block machine themselves, uncompiled, with integers that stand for many. "
        "The bounds of a contract are the assertion at its head; `most` is 3 under sinks and 2**40 elsewhere. The "
        "sources are in `conformance/blockwright_lab/contracts`.",
        f"## Confirmed\n\nCrossHair has seen every path of these {count(len(confirmed), 'contract')}. Where the head "
        "names no upper bound, that is every integer. `blockwright conform --gate contracts` fails if one is no longer "
        "confirmed.",
        listed(confirmed),
        f"## Searched\n\nThese {count(len(searched), 'contract')} have too many paths. All values of the ranges that "
        "they list are tried; of a step of the block machine these are all states of two blocks that keep the "
        "invariants, reachable or not. CrossHair then searches within the bounds: for a second in profile `pr`, for a "
        "minute by night. That is no proof.",
        listed(searched),
        "## Neither",
        table(
            ("what no contract says", "who checks it"), [(prose(each["what"]), each["who"]) for each in DATA["neither"]]
        ),
        "## Faults that are refuted\n\nGate `planted` exchanges each of these lines, by night; the contract beside it "
        "must be refuted.",
        table(("line", "planted", "refuted by"), faults),
    ]
    return "\n\n".join(parts) + "\n"


def listed(some: list[Contract]) -> str:
    """Return a row for each statement: its subject, and the kinds of layer or the steps."""
    layers: dict[tuple[str, str, str], list[str]] = {}
    for each in some:
        layers.setdefault((each.part, each.statement, head(each)), []).append(each.layer)
    cells = [
        (plain(part), prose(said), plain(", ".join(of)), f"`{bounds}`") for (part, said, bounds), of in layers.items()
    ]
    return table(("of", "contract", "for", "bounds"), cells)


def head(each: Contract) -> str:
    """Return the bounds of a contract: the assertion at its head."""
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(each.function))).body
    return next(ast.unparse(node.test) for node in ast.walk(function) if isinstance(node, ast.Assert))


def mutants() -> str:
    """Return the page of the mutants."""
    listed = data.load("survivors") or {}
    parts = [
        "(the-mutants)=\n# Mutants",
        "A mutant is the source with one small thing changed: a comparison, a constant, an argument, a condition, a "
        "line left out. A check that does not notice it says nothing about that place. Some change nothing that can be "
        "seen: they are listed here with the reason, and all others count against a floor, which is a rate.",
        "## The fixed sample of each run",
        sample("mutants"),
        "## Survivors of the implementation",
        survivors(listed.get("implementation")),
        "## Survivors of the specification",
        survivors(listed.get("specification")),
    ]
    return "\n\n".join(parts) + "\n"


def survivors(listed: dict[str, dict[str, str]] | None) -> str:
    """Return the table of listed mutants: the function, their number, and why no test can find them."""
    if not listed:
        return NOT_MEASURED
    cells = [
        (f"`{function}`", number(sum(each == why for each in digests.values())), plain(why))
        for function, digests in listed.items()
        for why in dict.fromkeys(digests.values())
    ]
    return table(("function", "mutants", "why nothing can tell them from the original"), cells, frozenset((1,)))


def number(value: Any) -> str:
    """Return a number, or how many names there are."""
    return f"{size(value):,}"


def sample(kind: str) -> str:
    """Return the results of a gate's sample in the last report, source by source."""
    rows = [row for row in data.rows(kind) if row["scope"].endswith(".py") or row.get("detail", "").startswith("score")]
    cells = [(plain(row["scope"]), plain(row.get("detail", ""))) for row in rows if row["scope"] != row.get("detail")]
    return table(("source", "in the last report"), cells) if cells else NOT_MEASURED


def examples() -> str:
    """Return the page of the worked examples."""
    found = data.load("examples") or {}
    opening = (
        "(worked-examples)=\n# Worked examples\n\nEach is the shortest way to something worth seeing, found by "
        "searching the states of a scope that the gates visit whole, and printed as counterexamples are: calls that "
        "can be pasted at a prompt. The table shows the state of the specification after each step (`*` marks a "
        "published block, `·` an entry that is null), the picture the last of them."
    )
    return "\n\n".join([opening, *(example(name, each) for name, each in found.items())]) + "\n"


def example(name: str, each: dict[str, Any]) -> str:
    """Return one worked example."""
    links = ", ".join(law(name) for name in each["laws"])
    steps = [(f"{at}. {named(step['action'])}", *after(step)) for at, step in enumerate(each["steps"], 1)]
    return "\n\n".join(
        [
            f"(example-{name})=\n## {each['title']}",
            prose(each["text"]),
            f"*Laws: {links}. Scope: {plain(each['scope'])}.*",
            block("python", "\n".join(each["trace"])),
            table(("step", "tables", "free queue", "also"), steps),
            drawing(each),
        ]
    )


def after(step: dict[str, Any]) -> tuple[str, str, str]:
    """Return the state after a step in words."""
    published = set(step["published"])

    def blocks(ids: list[int]) -> str:
        return " ".join("·" if block == 0 else f"{block}{'*' if block in published else ''}" for block in ids)

    tables = "; ".join(
        f"{named(each['request'])}: {', '.join(f'[{blocks(table)}]' for table in each['groups'])}"
        for each in step["tables"]
    )
    also = [f"refused: {step['refused']}"] if step["refused"] else []
    also += [f"behind a fence: {blocks(step['fenced'])}"] if step["fenced"] else []
    also += (
        [f"to copy: {', '.join(f'{source} to {target}' for source, target in step['copies'])}"]
        if step["copies"]
        else []
    )
    return plain(tables) or "–", plain(blocks(step["free"])) or "–", plain("; ".join(also)) or "–"


def named(text: str) -> str:
    """Return words about requests with the names that they have in the code: r0 for A, r1 for B."""
    return re.sub(r"\b[A-G]\b", lambda letter: f"r{'ABCDEFG'.index(letter[0])}", text)


def drawing(example: dict[str, Any]) -> str:
    """Return the picture of the state in which an example ends, in the colours of the page."""
    step, code = example["steps"][-1], "\n".join(example["trace"])
    held = [block for each in step["tables"] for table in each["groups"] for block in set(table) - {0}]
    held += step["fenced"]
    found = re.search(r"num_blocks=(\d+)", code)
    states = [
        "null"
        if block == 0
        else ("shared" if held.count(block) > 1 else "held")
        if block in held
        else ("cached" if block in step["published"] else "free")
        for block in range(int(found[1]) if found else 1)
    ]
    rows = [
        Row(named(each["request"]), kind, list(table), 0)
        for each in step["tables"]
        for kind, table in zip(example["layers"], each["groups"], strict=True)
    ]
    svg = Picture(states, rows, len(step["tables"]), len(states)).svg()
    return f'<div class="figure-scroll">{re.sub("<style>.*?</style>", "", svg)}</div>'


def tagged() -> str:
    """Return the page of the law tags: the map from laws to the code that upholds them."""
    found = claims()
    opening = (
        "(law-tags)=\n# Laws in the code\n\nA tag `law: ID`, in a comment or a docstring of the implementation, marks "
        "where a law is upheld. This is the map from laws to code, for reading both side by side."
    )
    cells = [(law(name), "; ".join(grouped(found[name]))) for name in laws.by_id() if found[name]]
    rest = [(law(name), prose(UNCLAIMED.get(name, "not yet said"))) for name in laws.by_id() if not found[name]]
    parts = [
        opening,
        f":::{{container}} law-ids\n{table(('law', 'upheld in'), cells)}\n:::" if cells else "No line is marked yet.",
    ]
    if rest:
        parts += ["## Laws that no single place upholds", table(("law", "why"), rest)]
    return "\n\n".join(parts) + "\n"


def grouped(places: list[Place]) -> Iterator[str]:
    """Yield places by file."""
    pairs = book_laws.of_functions(places)
    for file in dict.fromkeys(file for file, _ in pairs):
        names = [f"`{function}`" for other, function in pairs if other == file and function]
        yield f"`{file}`" + (f": {', '.join(names)}" if names else "")


def sources() -> str:
    """Return the page for folders of the repository that documents name."""
    parts = ["(sources)=\n# Folders of the repository"]
    for folder in ("conformance/blockwright_lab/numerics/engine",):
        label = folder.replace("/", "-").replace("_", "-")
        files = sorted(path for path in (data.ROOT / folder).glob("*.py") if path.name != "__init__.py")
        lines = [f"- `{path.name}`: {prose(first_line(path.read_text(encoding='utf-8')))}" for path in files]
        parts.append(f"({label})=\n## {folder}\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def first_line(source: str) -> str:
    """Return the first line of a module's docstring."""
    return source.removeprefix('"""').partition("\n")[0].removesuffix('"""')
