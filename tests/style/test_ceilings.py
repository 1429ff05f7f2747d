"""Property: no part of the tree grows past its ceiling: what does not fit means that something else goes.

How: lines that are neither blank nor comments are counted, docstrings included; the table is printed (`pytest -s`), and
with it the names of the files of the implementation that are over 500 lines.
Not covered: whether the lines are needed.
"""

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LONG = 500


class Part(NamedTuple):
    """A part of the tree, and how many lines it has at most."""

    name: str
    folder: str
    at_most: int


PARTS = (
    Part("specification", "spec/blockwright_spec", 8_412),
    Part("core", "impl/blockwright/core", 13_562),
    Part("implementation", "impl", 43_317),
    Part("kit", "conformance/blockwright_conformance", 9_147),
    Part("lab", "conformance/blockwright_lab", 10_530),
    Part("tests", "tests", 34_538),
)
LONG_FILES = 12


def lines_of(path: Path) -> int:
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return sum(bool(line) and not line.startswith("#") for line in lines)


def test_no_part_is_over_its_ceiling() -> None:
    counts = {part: sum(map(lines_of, (ROOT / part.folder).rglob("*.py"))) for part in PARTS}
    print("\npart            lines  at most")
    for part, count in counts.items():
        print(f"{part.name:<14} {count:>6,}  {part.at_most:>7,}")
    assert {part.name: count for part, count in counts.items() if count > part.at_most} == {}


def test_few_files_of_the_implementation_are_long() -> None:
    lines = {path.relative_to(ROOT).as_posix(): lines_of(path) for path in (ROOT / "impl").rglob("*.py")}
    long = {name: count for name, count in sorted(lines.items(), key=lambda each: -each[1]) if count > LONG}
    print(f"\nfiles over {LONG} lines: {len(long)} (at most {LONG_FILES})")
    for name, count in long.items():
        print(f"{count:>6,}  {name}")
    assert len(long) <= LONG_FILES, long
