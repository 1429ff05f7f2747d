"""``python -m benchmarks.page RESULTS PAGE``: write the table of a run, and its list of misses, into the documentation.

Both stand between comments of the page, so that its numbers are of one run. `bounds.toml` says of targets that may be
missed what was tried, and which bound was found.
"""

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.report import KINDS, PEERS, TITLES

BOUNDS = Path(__file__).with_name("bounds.toml")
KINDS_OF_VERDICT = ("limit", "growth", "over_floor")


def table(run: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the table: all paths, a title before those of a system, then growth and memory."""
    yield "| path | per | peer, ns | Blockwright, ns | ratio | target | plain C, ns | times C | beside |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for system, title in TITLES.items():
        of_system = [path for path in run["paths"] if path["system"] == system]
        if not of_system:
            continue
        version = run["configuration"]["vllm"].get(system)
        beside = f"beside {PEERS.get(system, 'vLLM')} {version}, " if version else ""
        yield f"| **{title.partition(':')[0]}**, {beside}{KINDS[system]} | | | | | | | | |"
        for path in of_system:
            ours, peer, floor = path["ours"]["median"], path["peer"], path["floor"]
            cells = [
                path["title"],
                path["unit"],
                _ns(peer),
                _ns(path["ours"]),
                f"{path['ratio']:.{1 if path['ratio'] >= 1 else 2}f}" if path["ratio"] else "",
                f"{path['target']:.3g}" if path["target"] else "",
                _ns(floor),
                f"{ours / floor['median']:.1f}" if floor else "",
                "; ".join(_said(path[kind], path["name"]) for kind in KINDS_OF_VERDICT if path.get(kind)),
            ]
            yield f"| {' | '.join(cells)} |"
    if run["scaling_verdicts"]:
        yield "| **Growth with the pool, and memory** | | | | | | | | |"
    for verdict in run["scaling_verdicts"]:
        yield f"| {verdict['name']} | | | | | | | | {_said(verdict)} |"


def misses(run: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the list: each missed target, what was measured, and the bound that was found."""
    bounds = tomllib.loads(BOUNDS.read_text(encoding="utf-8"))["bound"]
    yield "| target | measured | bound |"
    yield "|---|---|---|"
    for name, target, measured in missed(run):
        known = [each["text"].strip().replace("\n", " ") for each in bounds if re.search(each["paths"], name)]
        yield f"| {target} | {measured} | {' '.join(known) or 'not known'} |"


def missed(run: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each target that a run missed, the target in words, and what was measured."""
    for path in run["paths"]:
        if path["met"] is False:
            yield (
                path["name"],
                f"`{path['name']}`, {path['title']}: at least {path['target']:.3g} times the peer's speed",
                f"{path['ratio']:.2f}",
            )
        for verdict in [path.get(kind) for kind in KINDS_OF_VERDICT]:
            if verdict and verdict["met"] is False:
                yield (
                    verdict["name"],
                    f"`{path['name']}`, {path['title']}: {_most(verdict, path['name'])}",
                    f"{verdict['value']:.2f}",
                )
    for verdict in run["scaling_verdicts"]:
        if verdict["met"] is False:
            yield verdict["name"], _most(verdict), f"{verdict['value']:.2f}"


def _most(verdict: dict[str, Any], path: str = "") -> str:
    return f"{verdict['name'].removeprefix(f'{path}: ')}: at most {verdict['target']:g}"


def _said(verdict: dict[str, Any], path: str = "") -> str:
    most = "" if verdict["target"] is None else f" (at most {verdict['target']:g})"
    return f"{verdict['value']:.2f} {verdict['name'].removeprefix(f'{path}: ') if path else ''}".strip() + most


def _ns(timing: dict[str, float] | None) -> str:
    if timing is None:
        return ""
    return f"{timing['median']:,.0f}" if timing["median"] >= 100 else f"{timing['median']:.1f}"


def put(page: str, name: str, lines: Iterator[str]) -> str:
    """Return the page with other lines between the two comments of a name."""
    return re.sub(
        rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)",
        lambda found: found[1] + "\n" + "\n".join(lines) + "\n\n" + found[2],
        page,
        flags=re.DOTALL,
    )


def main(results: str, page: str) -> None:
    run = json.loads(Path(results).read_text(encoding="utf-8"))
    config, file = run["configuration"], Path(page)
    where = (
        f"{config['cpu']}, {config['cores']} cores; {config['python']} ({config['python_compiler']}); blockwright "
        f"{config['blockwright']} ({config['build']}, mypyc {config['mypyc']}; {config['built']}); medians of "
        f"{config['repeat']} interleaved repetitions, CPU time."
    )
    text = put(file.read_text(encoding="utf-8"), "the run", iter([where]))
    text = put(put(text, "the table", table(run)), "the misses", misses(run))
    file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
