"""The command: ``python -m blockwright_lab.book [--report FILE] [--folder docs/data] [--check]``."""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import examples, report, spaces

FOLDER = Path("docs/data")
"""The files of the data: one record a line, so that a change shows its records."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m blockwright_lab.book", description=__doc__)
    text = "a report of the gates (blockwright conform --json FILE); of several, each adds the gates that are missing"
    parser.add_argument("--report", type=Path, action="append", default=[], metavar="FILE", help=text)
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"where the data lies (default: {FOLDER})")
    parser.add_argument("--check", action="store_true", help="write nothing; say what is no longer so")
    args = parser.parse_args(arguments)
    for path in args.report:
        if not path.exists():
            parser.error(f"--report: there is no file {path}; blockwright conform --json {path} writes it")
    try:
        reported = report.joined([json.loads(path.read_text(encoding="utf-8")) for path in args.report])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    if not args.check:
        for name, data in made(reported, args.folder):
            write(args.folder, name, data)
        return 0
    faults = list(checked(args.folder, reported))
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{args.folder}: {len(faults)} numbers are not current" if faults else f"{args.folder}: current")
    return int(bool(faults))


def made(reported: Any, folder: Path | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "spaces", spaces.data()
    yield "examples", examples.data()
    if reported is not None:
        before = {name: read(folder, name) if folder else None for name in ("gates", "known_bugs")}
        yield "gates", report.gates(reported, before["gates"])
        yield "known_bugs", report.known_bugs(reported, before["known_bugs"])


def checked(folder: Path, reported: Any) -> Iterator[str]:
    for name, data in made(None):
        if read(folder, name) != json.loads(text_of(data)):
            yield f"{name}.json: recomputed, it differs; python -m blockwright_lab.book writes it anew"
    kept, bugs = read(folder, "gates"), read(folder, "known_bugs")
    if kept is None or bugs is None:
        yield "gates.json, known_bugs.json: missing; python -m blockwright_lab.book --report FILE writes them"
        return
    yield from report.misnamed(kept, bugs)
    if reported is not None:
        yield from report.stale(kept, reported)


def text_of(data: dict[str, Any]) -> str:
    """Return a record as text: each entry, and each element of a list of records, on a separate line."""
    lines = []
    for name, value in data.items():
        if isinstance(value, list) and value and isinstance(value[0], dict | list):
            inner = ",\n".join(f"    {one_line(each)}" for each in value)
            lines.append(f"  {json.dumps(name)}: [\n{inner}\n  ]")
        else:
            lines.append(f"  {json.dumps(name)}: {one_line(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def one_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def write(folder: Path, name: str, data: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(text_of(data), encoding="utf-8")


def read(folder: Path, name: str) -> Any:
    path = folder / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
