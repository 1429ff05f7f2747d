"""Report a replay: as a table for people, as data for programs, as a picture of hit rate against pool size."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from blockwright import __version__, _terminal, build_info
from blockwright._text import printable
from blockwright.errors import InvalidArgumentError
from blockwright.kinds import KVCacheSpec
from blockwright.replay.answer import NAMES, VALUES, answer, differences
from blockwright.replay.pools import PoolResult
from blockwright.replay.records import Trace
from blockwright.replay.simulate import ReplayResult

MOST_TENANTS: Final = 20
"""Tenants that are shown one by one."""


class _Column(NamedTuple):
    """A column of the table: its name, what it means, its cell, and whether a report has it."""

    name: str
    meaning: str
    cell: Callable[[ReplayReport, PoolResult], str]
    shown: Callable[[ReplayReport], bool] = lambda report: True


def _tier(name: str, form: str) -> Callable[[ReplayReport, PoolResult], str]:
    return lambda _, pool: format(getattr(pool.offload, name), form)


def _named(axis: str, count: Callable[[PoolResult], int]) -> Callable[[ReplayReport, PoolResult], str]:
    """Return a size in blocks, and how the user gave it if not so."""

    def cell(report: ReplayReport, pool: PoolResult) -> str:
        written = report.sizes.get((axis, count(pool)))
        return f"{count(pool):,}" + (f" ({written})" if written else "")

    return cell


def _timed(name: str, scale: float | str = 1) -> Callable[[ReplayReport, PoolResult], str]:
    """Return a count in a format, or times at three percentiles."""

    def cell(_: ReplayReport, pool: PoolResult) -> str:
        value = getattr(pool.timed, name)
        if isinstance(scale, str):
            return format(value, scale)
        return " / ".join(f"{value[at] * scale:,.2f}" for at in (0, 2, 3)) if value else "-"

    return cell


def _moved(name: str) -> Callable[[ReplayReport, PoolResult], str]:
    """Return how many blocks were moved, and the bytes of them if they are known."""

    def cell(report: ReplayReport, pool: PoolResult) -> str:
        count: int = getattr(pool.offload, name)
        return f"{count:,}" + (f" ({count * report.block_bytes / 2**30:,.1f} GiB)" if report.block_bytes else "")

    return cell


def _mean_used(_: ReplayReport, pool: PoolResult) -> str:
    return f"{pool.mean_used:,.0f}"


def _cost(report: ReplayReport, pool: PoolResult) -> str:
    cost = report.cost(pool)
    return "-" if cost is None else f"{cost:,.4f}"


def _has_host(report: ReplayReport) -> bool:
    return report.headline.offload is not None


def _has(tier: str) -> Callable[[ReplayReport], bool]:
    return lambda report: any(pool.offload and getattr(pool.offload, f"{tier}_blocks") for pool in report.result.pools)


def _overlaps(report: ReplayReport) -> bool:
    return report.headline.timed is not None


def _is_single(report: ReplayReport) -> bool:
    return not _overlaps(report)


def _compares(report: ReplayReport) -> bool:
    return len({pool.policy for pool in report.curve}) > 1


def _differs(name: str) -> Callable[[ReplayReport], bool]:
    return lambda report: len({getattr(pool, name) for pool in report.curve or (report.headline,)}) > 1


_COLUMNS: Final = (
    _Column(
        "engines",
        "behind the router",
        lambda _, pool: f"{pool.engines:,}" + (f" ({pool.prefill:,} for prompts)" if pool.prefill else ""),
        lambda report: report.headline.engines > 1 or _differs("engines")(report),
    ),
    _Column(
        "router",
        "what chooses an engine",
        lambda _, pool: pool.router if pool.engines > 1 else "-",
        _differs("router"),
    ),
    _Column(
        "usable blocks", "blocks of a pool, without the null block", _named("blocks", lambda pool: pool.blocks)
    ),
    _Column("policy", "what decides which blocks are kept", lambda _, pool: pool.policy, _compares),
    _Column(
        "host blocks",
        "blocks of the host tier",
        _named("host", lambda pool: pool.offload.host_blocks if pool.offload else 0),
        _has_host,
    ),
    _Column(
        "disk blocks",
        "and of the disk below",
        _named("disk", lambda pool: pool.offload.disk_blocks if pool.offload else 0),
        _has("disk"),
    ),
    _Column(
        "store blocks",
        "of the store that engines share",
        _named("store", lambda pool: pool.offload.store_blocks if pool.offload else 0),
        _has("store"),
    ),
    _Column("hit rate", "share of all references to blocks that hit", lambda _, pool: f"{pool.hit_rate:.2%}"),
    _Column("device hits", "those of them on the device", _tier("device_hit_rate", ".2%"), _has_host),
    _Column("host hits", "and on the host or below", _tier("host_hit_rate", ".2%"), _has_host),
    _Column("tokens hit", "share of the prompt tokens that hit", lambda _, pool: f"{pool.token_hit_rate:.2%}"),
    _Column(
        "bound",
        "hit rate that no policy exceeds",
        lambda report, pool: f"{report.bound(pool) or 0:.2%}",
        lambda report: len(report.bounds) > 1,
    ),
    _Column(
        "lost to order",
        "share that hits if the block with the farthest next use is evicted first",
        lambda report, pool: f"{report.lost(pool)[0]:.2%}",
        lambda report: len(report.bounds) > 1,
    ),
    _Column(
        "lost to size",
        "share that hits only in a larger pool",
        lambda report, pool: f"{report.lost(pool)[1]:.2%}",
        lambda report: len(report.bounds) > 1,
    ),
    _Column(
        "lost",
        "share that hits in a pool that never evicts",
        lambda report, pool: f"{sum(report.lost(pool)[:2]):.2%}",
        lambda report: len(report.bounds) == 1,
    ),
    _Column(
        "new",
        "share that hits in no pool: first references, and ends of prompts",
        lambda report, pool: f"{report.lost(pool)[2]:.2%}",
        lambda report: bool(report.bounds),
    ),
    _Column("evictions", "cached blocks taken for other content", lambda _, pool: f"{pool.evictions:,}"),
    _Column("used, mean", "blocks that a request holds at its end", _mean_used, _is_single),
    _Column("held, mean", "blocks that running requests hold, over time", _mean_used, _overlaps),
    _Column("peak", "the most of them", lambda _, pool: f"{pool.peak_used:,}"),
    _Column("refused", "requests larger than the pool", lambda _, pool: f"{pool.refused:,}"),
    _Column("uncached", "prompt tokens to compute: P50, P95", lambda _, pool: "{0:,} / {2:,}".format(*pool.uncached)),
    _Column("running, mean", "requests that run at the same time", _timed("mean_running", ",.1f"), _overlaps),
    _Column("queued", "seconds from arrival to admission: P50, P95, P99", _timed("queued"), _overlaps),
    _Column("first token", "seconds from arrival to it, likewise", _timed("first_token"), _overlaps),
    _Column("each token", "milliseconds from a token of an answer to the next", _timed("per_token", 1000), _overlaps),
    _Column("latency", "seconds from arrival to the end", _timed("latency"), _overlaps),
    _Column("goodput", "requests per second within limits", _timed("goodput", ",.2f"), lambda each: bool(each.limits)),
    _Column("cost", "of a million tokens, in and out", _cost, lambda report: report.price is not None),
    _Column("preemptions", "requests that gave up their blocks to go on later", _timed("preemptions", ","), _overlaps),
    _Column("recomputed", "tokens computed once more after that", _timed("recomputed", ","), _overlaps),
    _Column("seconds", "from the first arrival to the last end", _timed("seconds", ",.1f"), _overlaps),
    _Column("stored", "blocks copied to the host", _moved("stored_blocks"), _has_host),
    _Column("loaded", "and back", _moved("loaded_blocks"), _has_host),
    _Column("to disk", "blocks written through to it", _moved("to_disk"), _has("disk")),
    _Column("from disk", "blocks brought up from there", _moved("from_disk"), _has("disk")),
    _Column("to store", "likewise", _moved("to_store"), _has("store")),
    _Column("from store", "likewise", _moved("from_store"), _has("store")),
    _Column("no room", "blocks that found no place on the host", _tier("refused_blocks", ","), _has_host),
    _Column("requests/s", "served by the manager alone", lambda report, pool: f"{_rate(report, pool):,.0f}"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The complete report of a replay.

    Attributes:
        trace: what was replayed. kind, spec: of the layers. result: of all pools.
        headline: the pool with the figures at the top of the data.
        curve: the pools of the curve, by size; empty if none was asked for.
        seconds: the whole run, reading included.
        keeping: the policy or hints that decide which blocks are kept.
        limits: seconds that the P95 of each time must be below, by ``"ttft"`` and ``"latency"``.
        sizes: how sizes were written, by what they are of ("blocks", "host", "disk", "store") and the blocks.
        price: of an engine and hour, or None.
        block_bytes: of a block on all accelerators of an engine, or None.
        bounds: per number of blocks, those of the tiers included, the hit rate of MIN, and for 0 of a pool that never
            evicts; empty if not asked.
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
    limits: dict[str, float] = field(default_factory=dict)
    sizes: dict[tuple[str, int], str] = field(default_factory=dict)
    price: float | None = None
    block_bytes: int | None = None

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
            "bound": self.bound(self.headline),
            "unbounded": self.bounds.get(0),
            "answer": self.answer(),
            "block_bytes": self.block_bytes,
            "curve": [_figures(self, pool) | self._bound(pool) for pool in self.curve],
        }

    def answer(self) -> str | None:
        """Return which of several ways is enough, in a sentence; None without limits or several ways."""
        return answer(self.curve, self.limits, self.sizes) if self.limits and self.curve else None

    def cost(self, pool: PoolResult) -> float | None:
        """Return the cost of a million tokens, prompts and answers together; None if it is not known."""
        # Without overlap nobody waits, and the time of a replay is no engine's.
        if self.price is None or pool.timed is None:
            return None
        tokens = self.trace.num_tokens + pool.timed.output_tokens
        return self.price * pool.engines * pool.timed.seconds / 3600 / tokens * 1e6

    def _bound(self, pool: PoolResult) -> dict[str, object]:
        if not self.bounds:
            return {}
        lost = dict(zip(("lost_to_order", "lost_to_size", "new"), self.lost(pool), strict=True))
        return {"bound": self.bound(pool), **lost}

    def bound(self, pool: PoolResult) -> float | None:
        """Return the hit rate of MIN for a pool and its tiers, if it is known."""
        return self.bounds.get(pool.blocks + (pool.offload.num_blocks if pool.offload else 0))

    def lost(self, pool: PoolResult) -> tuple[float, float, float]:
        """Return the shares of references that do not hit: by the order of eviction, the size, and never seen before.

        Where the bound is not known the first includes the second.
        """
        bound, most = self.bound(pool), self.bounds[0]
        # Without MIN for this size all that a larger pool would hit counts as lost to the order.
        least = most if bound is None else bound
        return max(0.0, least - pool.hit_rate), most - least, 1.0 - most

    def show(self) -> None:
        trace, block_size = self.trace, self.spec.block_size
        columns = [column for column in _COLUMNS if column.shown(self)]
        rows = [[column.cell(self, pool) for column in columns] for pool in (self.curve or (self.headline,))]
        policies = ", ".join(dict.fromkeys(pool.policy for pool in self.curve or (self.headline,)))
        read_as = "" if trace.format == "generated" else f", read as {trace.format}"
        title = (
            f"{trace.source}{read_as}: {len(trace.requests):,} requests, {trace.num_references(block_size):,} "
            f"references to blocks of {block_size} tokens; {self.kind}, {policies}, {build_info().kind} core"
        )
        meanings = "; ".join(f"{column.name}: {column.meaning}" for column in columns)
        said = self.answer() or ""
        if len(self.curve) > 1 and self.headline.timed and not said:
            said = "With --ttft SECONDS or --latency SECONDS, a sentence here says which of these is enough."
        footer = f"{self._footer()}\nColumns: {meanings}.\n{said}".rstrip()
        _terminal.print_table(title, [each.name for each in columns], rows, footer)

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
            said += f"\nNo policy can exceed {self.bounds[0]:.2%}, which a pool hits that never evicts."
        tier = self.headline.offload
        if tier and tier.store_on == "publish" and 0 < tier.num_blocks <= self.headline.blocks:
            said += "\nA host no larger than the device mostly repeats it; with --store-on evict it holds other blocks."
        for pool in self.curve or (self.headline,) if len(self.headline.tenants) <= MOST_TENANTS else ():
            if pool.tenants:
                rates = ", ".join(f"{printable(name)} {rate:.2%}" for name, rate in pool.tenants.items())
                said += f"\n{pool.blocks:,} blocks, hit rate of each tenant: {rates}"
        return "\n".join((said, *self.trace.notes))


def _figures(report: ReplayReport, pool: PoolResult) -> dict[str, object]:
    figures = asdict(pool)
    figures["replay_seconds"] = figures.pop("seconds")
    return figures | {"requests_per_second": _rate(report, pool), "cost_per_million_tokens": report.cost(pool)}


def _rate(report: ReplayReport, pool: PoolResult) -> float:
    return len(report.trace.requests) / pool.seconds if pool.seconds else 0.0


def _plain(spec: KVCacheSpec) -> dict[str, object]:
    names = ("block_size", "sliding_window", "attention_chunk_size")
    own = {name: getattr(spec, name) for name in names if hasattr(spec, name)}
    return own | ({"sink_len": sinks} if (sinks := getattr(spec, "sink_len", 0)) else {})


def require_plotting() -> None:
    """Raise an `InvalidArgumentError` if matplotlib, which draws the pictures, is missing; it is not imported yet."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidArgumentError("--plot: needs matplotlib; install it with: pip install matplotlib")


Curve = tuple[str, list[int], list[float]]
"""A curve: its name, the sizes, and the hit rates."""


def curves_of(pools: Sequence[Mapping[str, Any]], policy: str, over: str = "blocks") -> list[Curve]:
    """Return the curves of pools, over the blocks of the pool or of the host: one for each policy and tier.

    Where there is a host, the hits on the device alone are a curve too.
    """
    found: dict[str, Curve] = {}
    for pool in pools:
        tier = pool.get("offload") or {}
        name = str(pool.get("policy", policy))
        rates = {name: pool["hit_rate"]}
        if tier:
            other = f"{tier['host_blocks']:,} host blocks" if over == "blocks" else f"{pool['blocks']:,} device blocks"
            rates = {
                f"{name}, device and {other}" if over == "blocks" else f"{name}, host and {other}": pool["hit_rate"],
                f"{name}, of these on the device ({other})": tier["device_hit_rate"],
            }
        for label, rate in rates.items():
            _, sizes, values = found.setdefault(label, (label, [], []))
            sizes.append(int(pool["blocks"] if over == "blocks" else tier["host_blocks"]))
            values.append(float(rate))
    return list(found.values())


def read_curve(path: Path) -> list[Curve]:
    """Read the curves of a report; raise an `InvalidArgumentError` if the file is none, or has none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return curves_of(data["curve"], data["policy"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InvalidArgumentError(f"--beside: {path} is no report of --json with --curve: {error}") from None


def plot_curve(report: ReplayReport, path: Path, beside: Sequence[Curve] = ()) -> None:
    """Draw hit rate against pool size to a file, in the format of its suffix; other reports' curves beside it.

    Where one pool size is compared with several hosts, it is drawn against these. With several numbers of engines the
    time that they are to keep is drawn against these.

    Raises:
        InvalidArgumentError: matplotlib is missing, does not know the suffix, or the file cannot be written.
    """
    require_plotting()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    if len({pool.engines for pool in report.curve}) > 1:
        _draw_frontier(axes, report)
    else:
        _draw_hits(axes, report, beside)
    axes.legend()
    axes.set_title(f"{printable(report.trace.source)}: {len(report.trace.requests):,} requests, {report.kind}")
    axes.grid(alpha=0.3, which="both")
    try:
        figure.savefig(path)
    except ValueError as error:
        raise InvalidArgumentError(f"--plot: cannot write {path}: {error}") from None


def _draw_frontier(axes: Any, report: ReplayReport) -> None:
    """Draw what a limit is of, or the time to first token, over the engines: a line for each of the other ways."""
    of = next(iter(report.limits), "ttft")
    ways: dict[str, list[tuple[int, float]]] = {}
    for pool in report.curve:
        if pool.timed:
            name = differences(replace(pool, engines=2), report.curve, report.sizes).strip()
            ways.setdefault(name or "engines", []).append((pool.engines, VALUES[of](pool.timed)))
    for name, points in ways.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", label=printable(name))
    if of in report.limits:
        axes.axhline(report.limits[of], color="grey", linestyle=":", label="the limit")
    axes.locator_params(axis="x", integer=True)
    axes.set_yscale("log")
    axes.set_xlabel("engines")
    axes.set_ylabel(f"{NAMES[of]}, seconds")


def _draw_hits(axes: Any, report: ReplayReport, beside: Sequence[Curve]) -> None:
    from matplotlib.ticker import PercentFormatter

    over = "blocks" if len({pool.blocks for pool in report.curve}) > 1 else "host_blocks"
    sizes = sorted({_size(pool, over) for pool in report.curve})
    for name, blocks, rates in [*curves_of([asdict(pool) for pool in report.curve], report.keeping, over), *beside]:
        axes.plot(blocks, rates, marker="o", label=printable(name))
    if len(report.bounds) > 1:
        bounds = {_size(pool, over): report.bound(pool) or 0.0 for pool in report.curve}
        axes.plot(sizes, [bounds[size] for size in sizes], marker=".", linestyle="--", label="MIN: no policy hits more")
    if report.bounds:
        axes.axhline(report.bounds[0], color="grey", linestyle=":", label="a pool that never evicts")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    where = "usable blocks" if over == "blocks" else "host blocks"
    axes.set_xlabel(f"{where} of {report.spec.block_size} tokens")
    axes.set_ylabel("share of block references")


def _size(pool: PoolResult, over: str) -> int:
    return pool.blocks if over == "blocks" or pool.offload is None else pool.offload.host_blocks
