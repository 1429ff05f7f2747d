"""``python -m benchmarks.instructions [FILE]``: the instructions that paths execute, a trend that has no noise.

Each path runs once, warm, under valgrind's callgrind, in a process of its own; setting up what it needs is included.
Times differ by a tenth from run to run on a shared machine, instructions by less than one in a thousand. A row is added
to FILE, which the page "Measured" draws. The exit code is 1 if a path takes more than `AT_MOST` times its instructions
in the last row of the same interpreter, machine and build. Three minutes of one core; needs valgrind.
"""

import datetime
import gc
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blockwright._build import build_info
from blockwright._terminal import progress

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PICTURE = ROOT / "benchmarks/results/instructions.json", ROOT / "docs/_static/instructions.svg"
PATHS = (
    *("decode", "decode-batch", "decode-groups", "decode-46", "decode-units", "lookup", "lookup-6", "adopt", "prefill"),
    *("release", "churn", "churn-units", "append", "tokens-insert-array-2k", "tokens-cached-array-2k", "loop-whole"),
)
AT_MOST = 1.05
CALLGRIND = ("valgrind", "--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=/dev/null")
COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")


def run(name: str) -> None:
    """Run our side of a path, counted the second time, as the child of `executed`."""
    from benchmarks.paths import all_paths

    sample = next(path for path in all_paths() if path.name == name).ours()
    sample()
    gc.disable()
    control = ["callgrind_control", str(os.getpid()), "-i"]
    subprocess.run([*control, "on"], check=True, capture_output=True)
    sample()
    subprocess.run([*control, "off"], check=True, capture_output=True)


def executed(name: str) -> int:
    """Return the instructions of one run of a path."""
    command = [*CALLGRIND, sys.executable, "-m", "benchmarks.instructions", "--run", name]
    alike = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=alike, check=False)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or found is None:
        raise SystemExit(f"{name}: callgrind failed\n{done.stderr[-2000:]}")
    return int(found[1])


def measured() -> dict[str, int]:
    counts: dict[str, int] = {}
    with progress("counting", len(PATHS)) as advance:
        for name in PATHS:
            advance(0, name)
            counts[name] = executed(name)
            advance(1, name)
    return counts


def configuration() -> dict[str, str]:
    """Return the build and its surroundings: only rows with the same ones are compared."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()} ({platform.python_compiler()})",
        "machine": platform.machine(),
        "build": f"{build_info().kind}, {build_info().why.rpartition(', ')[2]}",
    }


def grown(counts: dict[str, int], last: dict[str, int]) -> Iterator[str]:
    for name, count in counts.items():
        if name in last and count > AT_MOST * last[name]:
            yield f"{name}: {count:,} instructions, {count / last[name]:.3f} of the last row (at most {AT_MOST})"


def picture(rows: list[dict[str, Any]], width: int = 720, height: int = 280) -> str:
    """Return a picture of the growth of each path over the rows, 1.0 being its first."""
    left, top, right = 48, 16, 190
    lines: dict[str, list[tuple[int, float]]] = {}
    for at, row in enumerate(rows):
        for name, count in row["counts"].items():
            first = next(each["counts"][name] for each in rows if name in each["counts"])
            lines.setdefault(name, []).append((at, count / first))
    values = [value for points in lines.values() for _, value in points]
    low, high = min(*values, 0.95), max(*values, 1.05)

    def place(at: int, value: float) -> tuple[float, float]:
        across = (width - left - right) * at / max(1, len(rows) - 1)
        return round(left + across, 1), round(top + (height - 2 * top - 20) * (high - value) / (high - low), 1)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">']
    parts.append(f'<rect width="{width}" height="{height}" fill="white"/>')
    for mark in (low, 1.0, high):
        x, y = place(0, mark)
        parts.append(f'<line x1="{x}" y1="{y}" x2="{width - right}" y2="{y}" stroke="#ccc"/>')
        parts.append(f'<text x="4" y="{y + 4}" font-size="11">{mark:.2f}</text>')
    for at, row in enumerate(rows):
        x, _ = place(at, 1.0)
        parts.append(f'<text x="{x}" y="{height - 8}" font-size="10" text-anchor="middle">{row["day"]}</text>')
    for number, (name, points) in enumerate(sorted(lines.items(), key=lambda each: -each[1][-1][1])):
        color = COLORS[number % len(COLORS)]
        spots = [place(*point) for point in points]
        parts.append(
            f'<polyline fill="none" stroke="{color}" points="{" ".join(f"{x},{y}" for x, y in spots)}"/>'
            + "".join(f'<circle cx="{x}" cy="{y}" r="2" fill="{color}"/>' for x, y in spots)
        )
        said = f"{name} {points[-1][1]:.3f}"
        parts.append(
            f'<text x="{width - right + 8}" y="{top + 15 * number + 4}" font-size="11" fill="{color}">{said}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--run"]:
        run(arguments[1])
        return 0
    file = Path(arguments[0]) if arguments else RESULTS
    if shutil.which("valgrind") is None:
        print("error: no valgrind: install the package of that name", file=sys.stderr)
        return 2
    rows = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    alike = [row for row in rows if row["configuration"] == configuration()]
    last = alike[-1]["counts"] if alike else {}
    counts = measured()
    for name, count in counts.items():
        print(f"{name:<24} {count:>14,} instructions" + (f"  {count / last[name]:.3f}" if name in last else ""))
    day = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    rows.append({"day": day, "configuration": configuration(), "counts": counts})
    file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if file == RESULTS:
        PICTURE.write_text(picture(rows), encoding="utf-8")
    worse = list(grown(counts, last))
    print("\n".join(worse), file=sys.stderr, end="\n" if worse else "")
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
