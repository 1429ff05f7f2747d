"""Report a replay: as a table for people, as data for programs, as a picture of hit rate against pool size."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from blockwright import __version__, _terminal, build_info
from blockwright._text import printable
from blockwright.errors import InvalidArgumentError
from blockwright.kinds import KVCacheSpec
from blockwright.replay.offloaded import TierResult
from blockwright.replay.records import Trace
from blockwright.replay.simulate import PoolResult, ReplayResult

MOST_TENANTS: Final = 20
"""Tenants that are shown one by one."""
_COLUMNS: Final = {
    "usable blocks": "blocks of the pool, without the null block",
    "hit rate": "share of all references to blocks that hit",
    "tokens hit": "share of the prompt tokens that hit",
    "evictions": "cached blocks taken for other content",
    "used, mean": "blocks that a request holds at its end",
    "peak": "most blocks that a request holds",
    "refused": "requests larger than the pool",
    "uncached, P50": "prompt tokens to compute, of the median request",
    "P95": "of the 95th percentile",
    "P95, next turns": "of those requests that go on from an earlier one",
    "requests/s": "served by the manager alone",
}
_BOUND_COLUMN: Final = {"bound": "hit rate that no policy exceeds"}
_HOST_COLUMNS: Final = {
    "device hits": "share of all references that hit on the device",
    "host hits": "and on the host",
    "stored": "blocks copied to the host",
    "loaded": "and back",
    "no room": "blocks that found no place on the host",
}


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The complete report of a replay.

    Attributes:
        headline: the pool with the figures at the top of the data.
        curve: the pools of the curve, by size; empty if none was asked for.
        seconds: the whole run, reading included.
        keeping: the policy or hints that decide which blocks are kept.
        bounds: per size of pool, the hit rate of MIN, and for size 0 of a pool that never evicts; empty if not asked.
    """

    trace: Trace
    kind: str
    spec: KVCacheSpec
    result: ReplayResult
    headline: PoolResult
    curve: tuple[PoolResult, ...]
    seconds: float
    keeping: str = "lru"
    bounds: dict[int, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return the report as JSON data; rates are fractions, times seconds."""
        trace, block_size = self.trace, self.spec.block_size
        return {
            "version": __version__,
            "build": build_info().kind,
            "trace": trace.source,
            "format": trace.format,
            "notes": list(trace.notes),
            "kind": self.kind,
            "spec": _plain(self.spec),
            "requests": len(trace.requests),
            "references": trace.num_references(block_size),
            "input_tokens": trace.num_tokens,
            **_figures(self, self.headline),
            "seconds": self.seconds,
            "parse_seconds": trace.parse_seconds,
            "prepare_seconds": self.result.prepare_seconds,
            "check_seconds": self.result.check_seconds,
            "policy": self.keeping,
            "bound": self.bounds.get(self.headline.blocks),
            "unbounded": self.bounds.get(0),
            "curve": [_figures(self, pool) | self._bound(pool) for pool in self.curve],
        }

    def _bound(self, pool: PoolResult) -> dict[str, object]:
        return {"bound": self.bounds[pool.blocks]} if self.bounds else {}

    def show(self) -> None:
        """Print the report as a table, one line per pool."""
        trace, block_size = self.trace, self.spec.block_size
        columns = dict(_COLUMNS)
        columns |= _BOUND_COLUMN if self.bounds else {}
        columns |= {} if self.headline.offload is None else _HOST_COLUMNS
        rows = [
            (
                f"{pool.blocks:,}",
                f"{pool.hit_rate:.2%}",
                f"{pool.token_hit_rate:.2%}",
                f"{pool.evictions:,}",
                f"{pool.mean_used:,.0f}",
                f"{pool.peak_used:,}",
                f"{pool.refused:,}",
                *(f"{counts[at]:,}" if counts else "-" for counts, at in _percentile_cells(pool)),
                f"{_rate(self, pool):,.0f}",
                *((f"{self.bounds[pool.blocks]:.2%}",) if self.bounds else ()),
                *_host_cells(pool.offload),
            )
            for pool in (self.curve or (self.headline,))
        ]
        title = (
            f"{trace.source}: {len(trace.requests):,} requests, {trace.num_references(block_size):,} references to "
            f"blocks of {block_size} tokens; {self.kind}, {self.keeping}, {build_info().kind} core"
        )
        meanings = "; ".join(f"{name}: {meaning}" for name, meaning in columns.items())
        _terminal.print_table(title, list(columns), rows, f"{self._footer()}\nColumns: {meanings}.")

    def _footer(self) -> str:
        served = sum(pool.seconds for pool in self.result.pools)
        parts = [
            f"{self.seconds:.2f} s: {self.trace.parse_seconds:.2f} reading",
            f"{self.result.prepare_seconds:.2f} building tokens and hashing",
            f"{served:.2f} in the manager",
        ]
        checks = sum(pool.checks for pool in self.result.pools)
        if checks:
            parts.append(f"{self.result.check_seconds:.2f} in {checks:,} self-checks (all passed)")
        said = ", ".join(parts)
        if self.bounds:
            said += (
                f"\nNo policy can exceed the bound (MIN, farthest next use); without eviction: {self.bounds[0]:.2%}."
            )
        for pool in self.curve or (self.headline,) if len(self.headline.tenants) <= MOST_TENANTS else ():
            if pool.tenants:
                rates = ", ".join(f"{printable(name)} {rate:.2%}" for name, rate in pool.tenants.items())
                said += f"\n{pool.blocks:,} blocks, hit rate of each tenant: {rates}"
        return "\n".join((said, *self.trace.notes))


def _percentile_cells(pool: PoolResult) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Return the counts of uncached tokens that have a column: of all requests, and of those that go on."""
    return (pool.uncached, 0), (pool.uncached, 2), (pool.uncached_continuing, 2)


def _host_cells(tier: TierResult | None) -> tuple[str, ...]:
    """Return the cells of a host tier, as `_HOST_COLUMNS` names them; empty without one."""
    if tier is None:
        return ()
    counts = (tier.stored_blocks, tier.loaded_blocks, tier.refused_blocks)
    return f"{tier.device_hit_rate:.2%}", f"{tier.host_hit_rate:.2%}", *(f"{count:,}" for count in counts)


def _figures(report: ReplayReport, pool: PoolResult) -> dict[str, object]:
    figures = asdict(pool)
    figures["replay_seconds"] = figures.pop("seconds")
    return figures | {"requests_per_second": _rate(report, pool)}


def _rate(report: ReplayReport, pool: PoolResult) -> float:
    """Return the requests per second of the manager's calls alone."""
    return len(report.trace.requests) / pool.seconds if pool.seconds else 0.0


def _plain(spec: KVCacheSpec) -> dict[str, object]:
    """Return those fields of a kind that decide which tokens share a block and which are read."""
    names = ("block_size", "sliding_window", "attention_chunk_size")
    own = {name: getattr(spec, name) for name in names if hasattr(spec, name)}
    return own | ({"sink_len": sinks} if (sinks := getattr(spec, "sink_len", 0)) else {})


def require_plotting() -> None:
    """Check that pictures can be drawn, without importing the library.

    Raises:
        InvalidArgumentError: matplotlib is missing.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidArgumentError("--plot: needs matplotlib; install it with: pip install matplotlib")


Curve = tuple[str, list[int], list[float]]
"""A curve: its name, the usable blocks, and the hit rates."""


def read_curve(path: Path) -> Curve:
    """Read the curve of a report.

    Raises:
        InvalidArgumentError: the file cannot be read, or is no report with a curve.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        pools = [(int(pool["blocks"]), float(pool["hit_rate"])) for pool in data["curve"]]
        return str(data["policy"]), [blocks for blocks, _ in pools], [rate for _, rate in pools]
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidArgumentError(f"--beside: {path} is no report of --json with --curve: {error}") from None


def plot_curve(report: ReplayReport, path: Path, beside: Sequence[Curve] = ()) -> None:
    """Draw hit rate against pool size to a file, in the format of its suffix; other reports' curves beside it.

    Raises:
        InvalidArgumentError: matplotlib is missing, does not know the suffix, or the file cannot be written.
    """
    require_plotting()
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    sizes = [pool.blocks for pool in report.curve]
    axes.plot(sizes, [pool.hit_rate for pool in report.curve], marker="o", label=printable(report.keeping))
    for name, blocks, rates in beside:
        axes.plot(blocks, rates, marker="o", label=printable(name))
    if report.bounds:
        axes.plot(
            sizes, [report.bounds[size] for size in sizes], marker=".", linestyle="--", label="MIN: no policy hits more"
        )
        axes.axhline(report.bounds[0], color="grey", linestyle=":", label="a pool that never evicts")
    axes.legend()
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel(f"usable blocks of {report.spec.block_size} tokens")
    axes.set_ylabel("block references that hit")
    axes.set_title(f"{printable(report.trace.source)}: {len(report.trace.requests):,} requests, {report.kind}")
    axes.grid(alpha=0.3, which="both")
    try:
        figure.savefig(path)
    except (ValueError, OSError) as error:
        raise InvalidArgumentError(f"--plot: cannot write {path}: {error}") from None
