"""The sub-command `blockwright replay`: its arguments, and the run they describe."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any, Final

from blockwright import _terminal
from blockwright.errors import InvalidArgumentError
from blockwright.observe import Fact
from blockwright.observe.timeline import write_timeline
from blockwright.policies import POLICIES, policy_named
from blockwright.replay.foresight import most_hits, references_of
from blockwright.replay.groups import PRECISIONS, block_bytes, groups_of, model_of
from blockwright.replay.keeping import MAX_TENANTS, Keeping, dealt, shares_of, told_by
from blockwright.replay.layouts import FORMATS
from blockwright.replay.offloaded import OffloadOptions
from blockwright.replay.pool_sizes import parse_engines, parse_memory, parse_pool_sizes, whole_number
from blockwright.replay.pools import Way, over_seeds
from blockwright.replay.records import Trace
from blockwright.replay.report import ReplayReport, plot_curve, read_curve, require_plotting
from blockwright.replay.routers import ROUTERS
from blockwright.replay.simulate import replay_ways
from blockwright.replay.step_time import ACCELERATORS, Linear, parse_step_time
from blockwright.replay.timed import Overlap
from blockwright.replay.traces import load_trace
from blockwright.replay.workload import WorkloadOptions, generate_workload

_FAIL: Final = re.compile(r"(router|\d{1,5})@(\d{1,9}(?:\.\d+)?)(?:\+(\d{1,9}(?:\.\d+)?))?")
_DEFAULT_BLOCKS: Final = 4096
_CHECK_EVERY: Final = 100
_WORKLOAD_HELP: Final = {
    "conversations": "conversations to generate",
    "turns": "mean turns of a conversation",
    "system_prompts": "different system prompts",
    "system_tokens": "mean length of a system prompt",
    "user_tokens": "mean length of a user message",
    "output_tokens": "mean length of an answer",
    "think": "mean seconds between the turns of a conversation",
    "max_tokens": "longest prompt",
    "seed": "the same seed gives the same workload",
}

_EPILOG = """\
examples:
  blockwright replay                                      a generated workload
  blockwright replay conversation_trace.jsonl --block-size 512 --blocks 20000 --check
  blockwright replay trace.jsonl --block-size 512 --curve 1000:64000:x2 --plot curve.png
  blockwright replay trace.jsonl --block-size 512 --blocks 5000 --host-blocks 20000 --store-on evict
  blockwright replay trace.jsonl --block-size 512 --blocks 5000 --hints oracle:0.2 --bound
  blockwright replay trace.jsonl --groups sliding:1:4096 --step-tokens 8192 --json -
  blockwright replay trace.jsonl --groups full:1,sliding:5:1024 --step-tokens 2048 --keep wanted,age
  blockwright replay trace.jsonl --groups gemma/config.json --concurrency 64 --step-time base=8ms,tokens=30us
  blockwright replay trace.jsonl --groups llama/config.json --memory 40GiB --concurrency 64 --ttft 2 \\
      --sweep engines=1..8 host=0,64GiB router=round,prefix
"""


def _part(text: str) -> float:
    try:
        part = float(text)
    except ValueError:
        part = -1.0
    if not 0.0 <= part <= 1.0:
        raise argparse.ArgumentTypeError(f"must be a part from 0 to 1, not {text!r}")
    return part


def _positive(text: str) -> int:
    return whole_number(text, 1)


# The fields of `Overlap` that are arguments; one of them is also the generated workload's.
_OVERLAP: Final = {
    "concurrency": (int, "N", "serve requests that overlap, N at the same time at most (default: one after another)"),
    "max_num_batched_tokens": (int, "N", "tokens that an engine computes in a step at most (default: 8192)"),
    "drafts": (int, "N", "tokens that are drafted for each request and step (default: 0)"),
    "acceptance": (float, "PART", "how likely a draft is accepted if those before it are (default: 0.7)"),
    "arrivals": (float, "RATE", "requests that arrive per second; 0: all at once (default: the times of TRACE)"),
    "output_tokens": (int, "N", "tokens of each answer (default: those of TRACE)"),
    "ttft": (float, "SECONDS", "limit of the time to first token: goodput is what keeps it, and a sweep's answer"),
    "latency": (float, "SECONDS", "limit of the time to the end, likewise"),
    "event_delay": (float, "SECONDS", "until a router knows what engines cached and evicted (default: 0)"),
}  # fmt: skip

_TIERS: Final = {
    "host": "on the host",
    "disk": "on a disk below it",
    "store": "in a store below that all engines share",
}
_SIZED: Final = [name for tier in _TIERS for name in (f"{tier}-blocks", tier)]
_AXES: Final = ("engines", "router", "blocks", "memory", *_SIZED, "policy", "keep")
_COUNT: Final[dict[str, Any]] = {"type": _positive, "metavar": "N"}
_TOKENS: Final[dict[str, Any]] = {"type": _positive, "metavar": "TOKENS"}
_SIZES: Final[dict[str, Any]] = {"type": parse_pool_sizes, "metavar": "SIZES"}
_MEMORY: Final[dict[str, Any]] = {"type": parse_memory, "metavar": "SIZES"}
_SPEED: Final[dict[str, Any]] = {"metavar": "SPEED"}
_FILE: Final[dict[str, Any]] = {"type": Path, "metavar": "FILE"}
_FLAG: Final[dict[str, Any]] = {"action": "store_true"}

# The arguments by the title of their group: how each is parsed, and its help.
_ARGUMENTS: Final[dict[str, dict[str, tuple[dict[str, Any], str]]]] = {
    "trace": {
        "trace": ({"nargs": "?", "type": Path, "metavar": "TRACE"}, "trace file (default: generate a workload)"),
        "--format": ({"choices": ("auto", *FORMATS), "default": "auto"}, "format of TRACE (default: auto)"),
        "--limit": (_COUNT, "replay only the first N requests"),
        "--warmup": (_COUNT | {"default": 0}, "serve the first N requests, but do not count them"),
        "--unit": (_TOKENS, "tokens per id of TRACE (default: by its format and ids)"),
        "--tokenizer": (_FILE, "a tokenizer.json, for a TRACE of text; needs tokenizers"),
    },
    "pool": {
        "--block-size": (_TOKENS | {"default": 16}, "tokens per block (default: 16)"),
        "--blocks": (_COUNT, f"usable blocks; the null block is extra (default: {_DEFAULT_BLOCKS})"),
        "--curve": (_SIZES, "sweep the pool size: N1,N2,... or FROM:TO:STEP or FROM:TO:xFACTOR"),
        "--kind": ({"choices": ("full", "sliding", "chunked", "mamba")}, "one group of one kind, instead of --groups"),
        "--window": (_TOKENS, "window of --kind sliding"),
        "--sinks": (_TOKENS, "first tokens that --kind sliding keeps"),
        "--chunk": (_TOKENS, "chunk of --kind chunked, whole blocks"),
        "--groups": (
            {"default": "full"},
            "of layers, as full:1,sliding:5:1024, or a model's config.json (default: full)",
        ),
        "--memory": (_MEMORY, "instead of --blocks: of each accelerator, as 40GiB; needs --groups MODEL/config.json"),
        "--precision": ({"choices": PRECISIONS}, "of the cache's elements (default: as in config.json)"),
        "--parallel": (_COUNT | {"default": 1}, "accelerators of an engine, which share out heads (default: 1)"),
        "--step-tokens": (_TOKENS, "compute at most so many tokens per step (default: all)"),
    },
    "requests that overlap": {
        "--" + name.replace("_", "-"): ({"type": kind, "metavar": metavar}, text)
        for name, (kind, metavar, text) in _OVERLAP.items()
        if name != "output_tokens"
    }
    | {
        "--step-time": (
            {"metavar": "RULE"},
            "base=20ms,tokens=100us (the default), a table.csv, module:function, or what an accelerator needs at least "
            f"for the model of --groups: {', '.join(ACCELERATORS)}, at a part of its speed: h100*0.6",
        ),
        "--prefill-speed": ({"type": float, "metavar": "RATE"}, "tokens a second, for --step-time tokens="),
        "--decode-speed": ({"type": float, "metavar": "RATE"}, "steps a second, for --step-time base="),
        "--engines": (
            {"type": parse_engines, "metavar": "SIZES", "default": ((1, 0),)},
            "engines behind a router, or several numbers of them, as 1..8; 3+1: one more that computes prompts alone",
        ),
        "--transfer-speed": (_SPEED, "tokens a second from there, or memory, as 25GiB (default: at once)"),
        "--router": ({"default": "round"}, f"{', '.join(ROUTERS)}, or module:function of your own (default: round)"),
        "--fail": (
            {"action": "append", "default": []},
            "2@300: engine 2 fails then; 2@300+60: for 60 s; or router@300",
        ),
        "--price": ({"type": float, "metavar": "PER_HOUR"}, "of an engine: adds the cost of a million tokens"),
        "--sweep": ({"nargs": "+"}, f"all combinations, as engines=1..8 host=0,64GiB; of {', '.join(_AXES)}"),
    },
    "what to keep": {
        "--policy": ({}, f"{', '.join(POLICIES)}, or module:factory; several side by side (default: lru)"),
        "--keep": (
            {"choices": ("wanted", "age", "wanted,age"), "metavar": "RULES"},
            "with windows or states: evict first what no likely hit needs (wanted), by age alone, or both side by side",
        ),
        "--hints": (
            {"default": "none"},
            "oracle: which conversations go on; oracle:0.2: a fifth wrong; oracle:0.2:SEED",
        ),
        "--hint-guard": ({"type": _part, "metavar": "PART", "default": 0.0}, "part of the pool out of their reach"),
        "--tenants": ({}, "who share no prefixes: dealt:N conversations, or the column of TRACE with their names"),
        "--shares": ({}, "part of the pool that is a tenant's own: NAME=PART,..., or one PART for each"),
        "--bound": (_FLAG, "add what no policy can exceed: MIN, and a pool without bounds"),
    },
    "tiers below the device": {
        f"--{name}": (
            (_SIZES, f"keep so many blocks {_TIERS[name[:-7]]}; several side by side (default: none)")
            if name.endswith("-blocks")
            else (_MEMORY, f"instead of --{name}-blocks: memory there, as --memory is given")
        )
        for name in _SIZED
    }
    | {
        "--disk-speed": (_SPEED, "tokens a second that come from a disk, or memory, as 5GiB (default: at once)"),
        "--store-speed": (_SPEED, "and from the store, to all engines together"),
        "--store-on": ({"choices": ("publish", "evict")}, "when blocks go to the host (default: publish)"),
        "--on-load": ({"choices": ("keep", "free")}, "a loaded block's copy (default: free with evict, else keep)"),
    },
    "checks and output": {
        "--check": (_FLAG, "let the manager check all its invariants now and then"),
        "--check-every": (_COUNT, f"check after every N requests (default: {_CHECK_EVERY})"),
        "--json": ({"metavar": "FILE"}, "write the report as JSON (-: to stdout, instead of the table)"),
        "--timeline": (_FILE, "write what happened as a Chrome trace, for Perfetto"),
        "--plot": (_FILE, "draw the curve (.png, .svg, .pdf); extra 'plots'"),
        "--beside": ({"type": Path, "action": "append", "default": []}, "an earlier --json report to draw, too"),
    },
    "generated workload (without TRACE)": {
        "--" + field.name.replace("_", "-"): (
            {"type": int if field.name == "seed" else _positive, "metavar": "N"},
            f"{_WORKLOAD_HELP[field.name]} (default: {field.default})",
        )
        for field in fields(WorkloadOptions)
    }
    | {
        "--seeds": (
            _COUNT | {"default": 1},
            "that many workloads, with one seed after another; their means and the worst",
        )
    },
}


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser(
        "replay",
        help="run a serving trace through the manager: hit rate, evictions, occupancy, speed",
        description="Run a serving trace, or a generated workload, through the manager and report what it cached.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for title, arguments in _ARGUMENTS.items():
        group = parser if title == "trace" else parser.add_argument_group(title)
        for name, (how, text) in arguments.items():
            group.add_argument(name, **how, help=text)
    parser.set_defaults(run=run)


def _overlap(args: argparse.Namespace) -> Overlap | None:
    given = {name: getattr(args, name) for name in _OVERLAP if getattr(args, name) is not None}
    if args.trace is None:
        given.pop("output_tokens", None)  # a mean of the workload, which its answers already have
    if args.prefill_speed is not None or args.decode_speed is not None:
        given["step_time"] = _by_speeds(args)
    elif args.step_time is not None:
        given["step_time"] = parse_step_time(
            args.step_time, lambda: model_of(args.groups, args.precision), args.parallel
        )
    if args.transfer_speed is not None:
        given["transfer"] = _token_seconds(args, "transfer")
    for text in args.fail:
        if not (match := _FAIL.fullmatch(text)):
            raise InvalidArgumentError(f"--fail: expected 2@300, 2@300+60, router@300 or router@300+5, not {text!r}")
        which = -1 if match[1] == "router" else int(match[1])
        given["fails"] = (*given.get("fails", ()), (which, float(match[2]), float(match[3] or "inf")))
    if args.concurrency is not None:
        return Overlap(**given)
    if given:
        option = next(iter(given)).replace("_", "-")
        raise InvalidArgumentError(f"--{option}: is of requests that overlap; add --concurrency N, or leave it out")
    return None


def run(args: argparse.Namespace) -> int:
    """Replay by the arguments and return the exit code; bad ones, or a bad trace, are a `BlockwrightError`."""
    start = time.perf_counter()
    _spread(args)
    _group(args)
    sizes = _in_blocks(args)
    _check_outputs(args)
    beside = [curve for path in args.beside for curve in read_curve(path)]
    facts: list[Fact] = []
    note = facts.append if args.timeline else None
    reports = [_replay(each, start, sizes, note) for each in _seeded(args)]
    report = reports[0] if len(reports) == 1 else _over_seeds(reports)
    if args.timeline:
        with _terminal.output("--timeline", args.timeline):
            write_timeline(facts, args.timeline)
    data = json.dumps(report.to_json(), indent=2, allow_nan=False)
    if args.json == "-":
        print(data)
    else:
        report.show()
        if args.json:
            _write("--json", Path(args.json), data + "\n")
    if args.plot:
        with _terminal.output("--plot", args.plot), _whole(args.plot):
            plot_curve(report, args.plot, beside)
    return 0


def _seeded(args: argparse.Namespace) -> Iterator[argparse.Namespace]:
    """Give the arguments once for each seed."""
    if args.seeds > 1 and (args.trace is not None or args.timeline):
        raise InvalidArgumentError(
            "--seeds: are of the generated workload, and a timeline of one; leave one of them out"
        )
    for at in range(args.seeds):
        yield argparse.Namespace(**vars(args) | ({"seed": (args.seed or 0) + at} if at else {}))


def _over_seeds(reports: list[ReplayReport]) -> ReplayReport:
    """Return the report of all seeds, whose trace is the first one's."""
    last, pools = reports[-1], zip(*(each.result.pools for each in reports), strict=True)
    merged = {id(each[0]): over_seeds(each) for each in pools}
    first, count = reports[0], len(reports)
    note = f"Of {count} seeds, rates and counts are means; times, uncached and refused are those of the worst."
    source = f"{first.trace.source} and {count - 1} more"
    return replace(
        first,
        trace=replace(first.trace, source=source, notes=(*first.trace.notes, note)),
        result=replace(first.result, pools=tuple(merged.values())),
        headline=merged[id(first.headline)],
        curve=tuple(merged[id(each)] for each in first.curve),
        bounds=_mean_bounds([each.bounds for each in reports]),
        seconds=last.seconds,
    )


def _mean_bounds(bounds: list[dict[int, float]]) -> dict[int, float]:
    return {size: sum(each[size] for each in bounds) / len(bounds) for size in bounds[0]}


def _spread(args: argparse.Namespace) -> None:
    """Set the arguments that the axes of a sweep stand for."""
    for axis in args.sweep or ():
        name, _, values = axis.partition("=")
        if name not in _AXES:
            raise InvalidArgumentError(f"--sweep: expected NAME=VALUES with {', '.join(_AXES)}, not {axis!r}")
        parse = parse_memory if name in ("memory", *_TIERS) else str if name in ("router", "policy", "keep") else None
        try:
            value = (parse or (parse_engines if name == "engines" else parse_pool_sizes))(values)
        except argparse.ArgumentTypeError as error:
            raise InvalidArgumentError(f"--sweep: {name} {error}") from None
        setattr(args, "curve" if name == "blocks" else name.replace("-", "_"), value)


def _in_blocks(args: argparse.Namespace) -> dict[tuple[str, int], str]:
    """Turn memory into blocks; return how the sizes were written, by what they are of and the blocks."""
    written: dict[tuple[str, int], str] = {}
    asked = [("memory", "blocks", args.blocks or args.curve)]
    asked += [(tier, tier, getattr(args, f"{tier}_blocks")) for tier in _TIERS]
    for name, of, given in asked:
        sizes = getattr(args, name)
        if sizes is None:
            continue
        if given or args.groups == "full":
            raise InvalidArgumentError(f"--{name}: needs --groups MODEL/config.json, and no number of blocks beside it")
        bytes_of = block_bytes(args.groups, args.block_size, args.precision, args.parallel)
        # The null block is in the memory of the device, and the host has what all accelerators of an engine hold.
        each, null = (bytes_of, 1) if name == "memory" else (bytes_of * args.parallel, 0)
        blocks = {text: size // each - null for text, size in sizes.items()}
        if min(blocks.values()) < 1 - (name in _TIERS):
            raise InvalidArgumentError(f"--memory: a block takes {bytes_of:,} bytes; give room for two at least")
        written |= {(of, count): text for text, count in blocks.items()}
        found = tuple(sorted(set(blocks.values())))
        if name in _TIERS:
            setattr(args, f"{name}_blocks", found)
        elif len(found) > 1:
            args.curve = found
        else:
            (args.blocks,) = found
    return written


def _replay(
    args: argparse.Namespace,
    start: float,
    sizes_written: dict[tuple[str, int], str],
    note: Callable[[Fact], object] | None,
) -> ReplayReport:
    overlap = _overlap(args)
    kind, specs = groups_of(args.groups, args.block_size)
    offloads, trace = _offloads(args), _trace(args)
    keepings = _keepings(args, trace)
    curve = args.curve or ()
    headline = args.blocks or (curve[-1] if curve else _DEFAULT_BLOCKS)
    sizes = sorted({headline, *curve})
    rules = [None] if args.keep is None else [rule == "wanted" for rule in args.keep.split(",")]
    routers = args.router.split(",")
    if args.price is not None and not 0 <= args.price < float("inf"):
        raise InvalidArgumentError(f"--price: must be at least 0 and finite, not {args.price}")
    if overlap is None and (args.engines != ((1, 0),) or args.sweep or args.price is not None):
        raise InvalidArgumentError("--engines, --sweep, --price: are of requests that overlap; add --concurrency N")
    each_way = product(keepings, rules, offloads, routers, args.engines)
    ways = [
        Way(size, keeping, rule, offload, engines, router, prefill)
        for keeping, rule, offload, router, (engines, prefill) in each_way
        if engines > 1 or router == routers[0]  # before one engine all routers are the same
        for size in sizes
    ]
    check_every = args.check_every or (_CHECK_EVERY if args.check else None)
    passes = len(ways) if overlap else 1
    with _terminal.progress(f"replay {trace.source}", len(trace.requests) * passes) as advance:
        result = replay_ways(
            trace,
            specs,
            ways,
            step_tokens=args.step_tokens,
            check_every=check_every,
            note=note,
            advance=advance,
            overlap=overlap,
            skip=args.warmup,
        )
    shown = [pool for pool in result.pools if pool.blocks in curve] if curve else list(result.pools)
    return ReplayReport(
        trace=trace,
        kind=kind,
        spec=specs[0],
        result=result,
        headline=next(pool for pool in result.pools if pool.blocks == headline),
        curve=tuple(shown) if curve or len(ways) > 1 else (),
        seconds=time.perf_counter() - start,
        keeping=ways[0].policy,
        bounds=_bounds(args, trace, ways, kind != "full"),
        limits={name: getattr(args, name) for name in ("ttft", "latency") if getattr(args, name) is not None},
        sizes=sizes_written,
        price=args.price,
        block_bytes=_engine_bytes(args) if any(offloads) else None,
    )


def _keepings(args: argparse.Namespace, trace: Trace) -> list[Keeping]:
    if args.policy is not None and args.hints != "none":
        raise InvalidArgumentError("--policy: with hints the client decides; leave --policy or --hints out")
    if args.hints != "none" and args.groups != "full":
        raise InvalidArgumentError("--hints: are of layers that keep all blocks; leave --groups out")
    named = {name: policy_named(name) for name in (args.policy or "lru").split(",")}
    if args.hints != "none":
        named = {f"hints: {args.hints}": told_by(args.hints, references_of(trace, args.block_size))}
    tenant = _tenants(args, trace)
    shares = shares_of(args.shares, {tenant(at) for at in range(len(trace.requests))}) if tenant and args.shares else ()
    if args.shares and not tenant:
        raise InvalidArgumentError("--shares: are of tenants; add --tenants RULE")
    return [Keeping(name, make, shares, tenant, args.hint_guard) for name, make in named.items()]


def _dealt(args: argparse.Namespace) -> int:
    """Return the number of tenants that conversations are dealt out to; 0 without that rule."""
    rule, _, text = (args.tenants or "").partition(":")
    return int(text) if rule == "dealt" and text.isdecimal() and 1 <= int(text) <= MAX_TENANTS else 0


def _tenants(args: argparse.Namespace, trace: Trace) -> Callable[[int], str | None] | None:
    if args.tenants is None:
        return None
    count = _dealt(args)
    if count:
        return dealt(trace, count, args.block_size)
    if not trace.labels:
        raise InvalidArgumentError(f"--tenants: expected dealt:N with N up to {MAX_TENANTS}, not {args.tenants!r}")
    return trace.labels.__getitem__


def _bounds(args: argparse.Namespace, trace: Trace, ways: list[Way], is_hybrid: bool) -> dict[int, float]:
    """Return the hit rate of MIN by the number of blocks, and for 0 of a pool that never evicts; nothing if not asked.

    A host tier counts as so many blocks more. Of layers that keep only some blocks, only the latter is known.
    """
    if not args.bound:
        return {}
    if args.tenants is not None or args.concurrency is not None or args.warmup:
        raise InvalidArgumentError(
            "--bound: is of all requests of one tenant, one after another; leave --tenants, --concurrency, --warmup out"
        )
    references, total = references_of(trace, args.block_size), trace.num_references(args.block_size)
    whole = sum(-(-tokens // args.block_size) for tokens in references.tokens)
    sizes = set() if is_hybrid else {way.blocks + (way.offload.num_blocks if way.offload else 0) for way in ways}
    return {size: most_hits(references, size or whole) / total for size in (*sorted(sizes), 0)}


def _group(args: argparse.Namespace) -> None:
    """Write --kind and its lengths as --groups."""
    given = {name: getattr(args, name) for name in ("window", "sinks", "chunk") if getattr(args, name) is not None}
    kind = args.kind or "full"
    own = {"sliding": ("window", "sinks"), "chunked": ("chunk",)}.get(kind, ())
    if args.groups != "full" and (given or args.kind):
        raise InvalidArgumentError("--groups: stands for all groups; leave --kind and its lengths out")
    if foreign := [name for name in given if name not in own]:
        raise InvalidArgumentError(f"--{foreign[0]}: not with --kind {kind}; leave it out")
    if own and own[0] not in given:
        raise InvalidArgumentError(f"--kind {kind}: needs --{own[0]} TOKENS")
    if args.groups == "full":
        args.groups = ":".join([kind, *(["1"] if own else []), *(str(given[name]) for name in own if name in given)])


def _by_speeds(args: argparse.Namespace) -> Linear:
    """Return the time of steps in which each token, or each step, takes its part of a second."""
    if args.step_time is not None:
        raise InvalidArgumentError("--step-time: stands for both speeds; leave --prefill-speed and --decode-speed out")
    given = {"prefill": args.prefill_speed, "decode": args.decode_speed}
    speeds = {"prefill": 10_000.0, "decode": 50.0} | {name: each for name, each in given.items() if each is not None}
    return Linear(1 / _speed("decode", speeds["decode"]), 1 / _speed("prefill", speeds["prefill"]))


def _speed(name: str, speed: float) -> float:
    if not 0 < speed < float("inf"):
        raise InvalidArgumentError(f"--{name}-speed: must be above 0 and finite, not {speed}")
    return speed


def _token_seconds(args: argparse.Namespace, name: str) -> float:
    """Return the seconds of a token at the speed of a transfer, which is of tokens or of memory; 0 without one."""
    text: str | None = getattr(args, f"{name}_speed")
    if text is None:
        return 0.0
    if args.concurrency is None:
        raise InvalidArgumentError(f"--{name}-speed: is of requests that overlap; add --concurrency N, or leave it out")
    if text.isascii() and text.replace(".", "", 1).isdigit():
        return 1 / _speed(name, float(text))
    try:
        (size,) = parse_memory(text).values()
    except (argparse.ArgumentTypeError, ValueError):
        raise InvalidArgumentError(
            f"--{name}-speed: expected tokens a second, or memory as 5GiB, not {text!r}"
        ) from None
    if (bytes_of := _engine_bytes(args)) is None:
        raise InvalidArgumentError(f"--{name}-speed: {text} needs --groups MODEL/config.json; or give tokens a second")
    tokens: float = size * args.block_size / (bytes_of * _num_groups(args))
    return 1 / _speed(name, tokens)


def _num_groups(args: argparse.Namespace) -> int:
    """Return the blocks that hold the same tokens, of one group of layers each."""
    return len(groups_of(args.groups, args.block_size)[1])


def _engine_bytes(args: argparse.Namespace) -> int | None:
    """Return the bytes of a block on all accelerators of an engine, if a model says them."""
    parallel: int = args.parallel
    try:
        return block_bytes(args.groups, args.block_size, args.precision, parallel) * parallel
    except InvalidArgumentError:
        return None


def _offloads(args: argparse.Namespace) -> list[OffloadOptions | None]:
    for name in ("disk", "store"):
        if getattr(args, f"{name}_speed") is not None and not getattr(args, f"{name}_blocks"):
            raise InvalidArgumentError(f"--{name}-speed: only with --{name}-blocks N; give it, or leave it out")
    size = args.block_size / _num_groups(args)
    disk_seconds, store_seconds = (_token_seconds(args, name) * size for name in ("disk", "store"))
    if args.host_blocks is not None:
        sizes = product(args.host_blocks, args.disk_blocks or (0,), args.store_blocks or (0,))
        return [
            OffloadOptions(host, args.store_on or "publish", args.on_load, disk, store, disk_seconds, store_seconds)
            for host, disk, store in sizes
        ]
    for option in ("store_on", "on_load", "disk_blocks", "store_blocks"):
        if getattr(args, option) is not None:
            raise InvalidArgumentError(
                f"--{option.replace('_', '-')}: only with --host-blocks N; give it, or leave it out"
            )
    return [None]


def _trace(args: argparse.Namespace) -> Trace:
    given = {field.name: getattr(args, field.name) for field in fields(WorkloadOptions)}
    given = {name: value for name, value in given.items() if value is not None}
    if args.trace is not None and args.concurrency is not None:
        given.pop("output_tokens", None)
    if args.trace is None:
        for option, neutral in (("unit", None), ("tokenizer", None), ("format", "auto")):
            if getattr(args, option) != neutral:
                raise InvalidArgumentError(f"--{option}: only with a TRACE file; give one, or leave it out")
        return generate_workload(WorkloadOptions(**given), limit=args.limit)
    if given:
        option = next(iter(given)).replace("_", "-")
        raise InvalidArgumentError(f"--{option}: only without a TRACE file, for the generated workload; leave it out")
    files = args.trace.glob("*.json*") if args.trace.is_dir() else [args.trace]
    size = sum(path.stat().st_size for path in files if path.is_file())
    with _terminal.progress(f"read {args.trace}: bytes", size) as advance:
        return load_trace(
            args.trace,
            args.format,
            limit=args.limit,
            unit=args.unit,
            tokenizer=args.tokenizer,
            column=None if _dealt(args) else args.tenants,
            advance=advance,
        )


def _check_outputs(args: argparse.Namespace) -> None:
    """Find out before the work whether its results can be written."""
    if args.beside and not args.plot:
        raise InvalidArgumentError("--beside: is drawn; add --plot FILE")
    if args.plot:
        if not args.curve and len(args.host_blocks or ()) < 2 and len(args.engines) < 2:
            raise InvalidArgumentError("--plot: draws a curve; add --curve SIZES, or several --host-blocks, --engines")
        require_plotting()
    several = args.engines != ((1, 0),) or any("," in (text or "") for text in (args.policy, args.keep))
    if args.timeline and (args.curve or args.host_blocks or several):
        raise InvalidArgumentError("--timeline: is of one pool alone; leave --curve and --host-blocks out")
    json_path = Path(args.json) if args.json else None
    for option, path in (("--plot", args.plot), ("--timeline", args.timeline), ("--json", json_path)):
        if path is not None and not path.parent.is_dir():
            raise InvalidArgumentError(f"{option}: there is no folder {path.parent}; make it first")


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Leave no part of a file that Ctrl-C cuts short."""
    try:
        yield
    except KeyboardInterrupt:
        path.unlink(missing_ok=True)
        raise


def _write(option: str, path: Path, text: str) -> None:
    with _terminal.output(option, path), _whole(path):
        path.write_text(text, encoding="utf-8")
