"""What a run of the benchmark says: the configuration, the tables, the verdicts, the same as data."""

import os
import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path as FilePath
from typing import Any

import blockwright
from benchmarks import scaling
from benchmarks.measure import Timing
from benchmarks.path import LOOP, MANAGER, OFFLOAD, PAGING, STEP, TOKENS, Path
from benchmarks.sides import BLOCK_SIZE
from blockwright._terminal import print_table

TITLES = {
    MANAGER: "Time per operation, ns",
    TOKENS: "From raw tokens to blocks: time per prompt, ns",
    STEP: "A whole decode step, manager and worker: time per step, ns",
    LOOP: "An engine's loop, requests coming and going: time per step, ns",
    PAGING: "Block tables with fork, copy and swap: time per operation, ns",
    OFFLOAD: "Bookkeeping of an offload tier: time per operation, ns",
}
"""The systems, in the order of their tables."""

KINDS = {
    MANAGER: "prefix caching on, one group of full attention unless a row says more",
    TOKENS: "prefix caching on, full attention",
    STEP: "prefix caching on, 256 requests in a step, each step timed alone",
    LOOP: "prefix caching on, 256 requests in a step, 5 of them new, with prompts of 8,192 tokens, half of them shared",
    PAGING: "full attention, prefix caching where a row says so",
    OFFLOAD: "LRU over 4,096 places in host memory, 64 blocks in each call",
}
"""What the rows of a system have in common."""

PEERS = {TOKENS: "SGLang"}
"""Whose systems they are compared with, where it is not vLLM."""


@dataclass(frozen=True)
class Verdict:
    """A number beside its target: of the scaling tables, or of a path over its base. None: it only informs."""

    name: str
    value: float
    target: float | None

    @property
    def met(self) -> bool | None:
        return None if self.target is None else self.value <= self.target


@dataclass(frozen=True)
class Row:
    """One measured path; times in ns per unit, None where that side was not measured."""

    path: Path
    ours: Timing
    peer: Timing | None
    floor: Timing | None
    base: Timing | None = None

    @property
    def ratio(self) -> float | None:
        """How many times the peer's time is ours."""
        return self.peer.median / self.ours.median if self.peer else None

    @property
    def met(self) -> bool | None:
        if self.ratio is None or self.path.target is None:
            return None
        return self.ratio >= self.path.target

    @property
    def growth(self) -> Verdict | None:
        """How many times the base's time is this path's; None without a base."""
        if self.base is None:
            return None
        what, target = self.path.growth
        return Verdict(f"{self.path.name}: {what}", self.ours.median / self.base.median, target)

    @property
    def limit(self) -> Verdict | None:
        """Microseconds of ours per unit beside the most that they may be; None without a limit."""
        if self.path.limit is None:
            return None
        return Verdict(f"{self.path.name}: us per {self.path.unit}", self.ours.median / 1e3, self.path.limit / 1e3)

    @property
    def over_floor(self) -> Verdict | None:
        """How many times plain C's time ours is; None where there is no such target."""
        if self.floor is None or self.path.most_of_floor is None:
            return None
        return Verdict(
            f"{self.path.name}: times plain C", self.ours.median / self.floor.median, self.path.most_of_floor
        )

    @property
    def verdicts(self) -> list[Verdict]:
        return [verdict for verdict in (self.limit, self.growth, self.over_floor) if verdict is not None]


def configuration(peer_versions: Mapping[str, str], repeat: int, packages: Collection[str] = ()) -> dict[str, Any]:
    """Return what the numbers depend on: among it the version of each system's peer, and of the packages used."""
    build = blockwright.build_info()
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "python_compiler": platform.python_compiler(),
        "blockwright": blockwright.__version__,
        "build": build.kind,
        "built": build.why,
        "mypyc": build.mypy,
        "vllm": dict(peer_versions),
        "packages": {name: version(name) for name in sorted(packages)},
        "block_size": BLOCK_SIZE,
        "kinds": KINDS,
        "repeat": repeat,
    }


def _cpu() -> str:
    """Return the processor's name as the system tells it."""
    try:
        lines = FilePath("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def configuration_line(config: dict[str, Any], system: str) -> str:
    """Return the configuration in one line, to stand beside the numbers of a system."""
    mypyc = f", mypyc {config['mypyc']}" if config["mypyc"] else ""
    peer = f", {PEERS.get(system, 'vLLM').lower()} {config['vllm'][system]}" if system in config["vllm"] else ""
    packages = (
        "".join(f", {name} {found}" for name, found in config["packages"].items()) if system in (STEP, LOOP) else ""
    )
    return (
        f"{config['cpu']}, {config['cores']} cores; {config['python']} ({config['python_compiler']}); "
        f"blockwright {config['blockwright']} ({config['build']}{mypyc}; {config['built']}){peer}{packages}; "
        f"block size {config['block_size']}, {KINDS[system]}; "
        f"medians of {config['repeat']} interleaved repetitions, ns of CPU time"
    )


def print_paths(rows: Sequence[Row], config: dict[str, Any]) -> None:
    for system, title in TITLES.items():
        of_system = [row for row in rows if row.path.system == system]
        if of_system:
            _print_system(of_system, config, system, title)
    print_verdicts([verdict for row in rows for verdict in row.verdicts])


def _print_system(rows: Sequence[Row], config: dict[str, Any], system: str, title: str) -> None:
    peers = system in config["vllm"]
    floors = any(row.floor for row in rows)
    columns = ["path", "per"]
    columns += [f"{PEERS.get(system, 'vLLM')} {config['vllm'][system]}"] if peers else []
    columns += [f"blockwright ({config['build']})"]
    columns += ["ratio", "target", ""] if peers else []
    columns += ["plain C", "x floor"] if floors else []
    table = []
    for row in rows:
        cells = [f"{row.path.title} [{row.path.name}]", row.path.unit]
        cells += [_ns(row.peer)] if peers else []
        cells += [_ns(row.ours)]
        if peers:
            target = f"{row.path.target:g}x" if row.path.target else ""
            cells += [f"{row.ratio:.1f}x" if row.ratio else "", target, _met(row.met)]
        if floors:
            cells += [_ns(row.floor), f"{row.ours.median / row.floor.median:.1f}" if row.floor else ""]
        table.append(cells)
    print_table(title, columns, table, configuration_line(config, system))


def print_scaling(scales: Sequence[scaling.Scale], verdicts: Sequence[Verdict]) -> None:
    sizes = [f"{scale.num_blocks:,}" for scale in scales]
    growth = [f"x {size}" for size in sizes[1:]]
    table = []
    for title, times in _scaling_rows(scales):
        table.append([title, *(f"{t:.1f}" for t in times), *(f"{t / times[0]:.2f}" for t in times[1:])])
    print_table("Growth with the pool, ns per block (decode: per request)", ["path, blocks:", *sizes, *growth], table)
    memory = [
        ["bytes of bookkeeping, index included", *(f"{scale.bytes_per_block:.1f}" for scale in scales)],
        ["objects that the garbage collector tracks", *(f"{scale.objects_per_block:.4f}" for scale in scales)],
    ]
    print_table("Memory per block", ["blocks:", *sizes], memory)
    print(f"growth and memory: {sum(verdict.met is True for verdict in verdicts)} of {len(verdicts)} targets met")
    print_verdicts([verdict for verdict in verdicts if not verdict.met])


def print_verdicts(verdicts: Sequence[Verdict]) -> None:
    for verdict in verdicts:
        target = "" if verdict.target is None else f", target at most {verdict.target:g}: {_met(verdict.met)}"
        print(f"{verdict.name}: {verdict.value:.2f}{target}")


def _scaling_rows(scales: Sequence[scaling.Scale]) -> list[tuple[str, list[float]]]:
    first = scales[0]
    rows = [(f"{name}, in order", [scale.in_order[name] for scale in scales]) for name in scaling.PATHS]
    rows += [(f"  plain C: {name}", [scale.floor_in_order[name] for scale in scales]) for name in first.floor_in_order]
    rows += [(f"{name}, scattered", [scale.scattered[name] for scale in scales]) for name in scaling.PATHS]
    rows += [
        (f"  plain C: {name}", [scale.floor_scattered[name] for scale in scales]) for name in first.floor_scattered
    ]
    return rows + [(f"  bare array: {name}", [scale.bare[name] for scale in scales]) for name in first.bare]


def scaling_verdicts(scales: Sequence[scaling.Scale]) -> list[Verdict]:
    """Judge the growth from the first size to the others, beside plain C's where it was measured, and the memory."""
    first, last = scales[0], scales[-1]
    verdicts = []
    for scale in scales[1:]:
        for order, ours, plain in (
            ("in order", "in_order", "floor_in_order"),
            ("scattered", "scattered", "floor_scattered"),
        ):
            for name in scaling.PATHS:
                what = f"{name}: growth from {first.num_blocks:,} to {scale.num_blocks:,} blocks, {order}"
                grown, floor = [_growth(getattr(first, side), getattr(scale, side), name) for side in (ours, plain)]
                verdicts.append(Verdict(what, grown, round(max(scaling.FLAT_TARGET, floor), 2)))
    return [*verdicts, Verdict(f"bytes per block at {last.num_blocks:,}", last.bytes_per_block, scaling.BYTES_TARGET)]


def _growth(first: Mapping[str, float], other: Mapping[str, float], name: str) -> float:
    """Return how many times the first time the other is; 0 where that was not measured, or took none."""
    return other[name] / first[name] if first.get(name) else 0.0


def as_data(
    config: dict[str, Any], rows: Sequence[Row], scales: Sequence[scaling.Scale], verdicts: Sequence[Verdict]
) -> dict[str, Any]:
    return {
        "configuration": config,
        "paths": [
            {
                "name": row.path.name,
                "system": row.path.system,
                "title": row.path.title,
                "unit": row.path.unit,
                "ours": asdict(row.ours),
                "peer": asdict(row.peer) if row.peer else None,
                "floor": asdict(row.floor) if row.floor else None,
                "ratio": row.ratio,
                "target": row.path.target,
                "met": row.met,
                "base": asdict(row.base) if row.base else None,
                "limit": _judged(row.limit) if row.limit else None,
                "growth": _judged(row.growth) if row.growth else None,
                "over_floor": _judged(row.over_floor) if row.over_floor else None,
            }
            for row in rows
        ],
        "scaling": [asdict(scale) for scale in scales],
        "scaling_verdicts": [_judged(verdict) for verdict in verdicts],
    }


def _judged(verdict: Verdict) -> dict[str, Any]:
    return {**asdict(verdict), "met": verdict.met}


def _ns(timing: Timing | None) -> str:
    if timing is None:
        return ""
    return f"{timing.median:,.0f}" if timing.median >= 100 else f"{timing.median:.1f}"


def _met(met: bool | None) -> str:
    return "" if met is None else ("met" if met else "MISSED")
