"""``python -m benchmarks``: time this build, beside a peer's manager and the plain-C floor, in one run."""

import argparse
import json
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path as FilePath
from typing import Any

from blockwright.errors import InvalidArgumentError

_REPEAT = 15


def parser_of() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Time the public API of this build, path by path: medians of interleaved repetitions, in ns.",
    )
    parser.add_argument(
        "--peer-path", metavar="DIR", type=FilePath, help="the peers, see python -m benchmarks.peers.fetch"
    )
    parser.add_argument("--floor", action="store_true", help="also plain C; compiles floor.c")
    parser.add_argument(
        "--repeat", metavar="N", type=int, default=_REPEAT, help="repetitions of each number (default %(default)s)"
    )
    parser.add_argument(
        "--only",
        metavar="NAME",
        nargs="+",
        help="only these paths (the names in brackets), or a system's: manager, tokens, step, loop, paging, offload",
    )
    parser.add_argument("--scaling", action="store_true", help="also growth of time and memory with the pool")
    parser.add_argument("--json", metavar="FILE", type=FilePath, help="write the run as data")
    parser.add_argument("--require", action="store_true", help="exit with 1 if a target is missed")
    return parser


def run(args: argparse.Namespace) -> int:
    # Imported late: the command line starts without them.
    from benchmarks import report, scaling
    from benchmarks.floor import Floor
    from benchmarks.path import TOKENS
    from blockwright import build_info
    from blockwright._terminal import progress

    paths = _chosen(args.only)
    if args.repeat < 1:
        raise InvalidArgumentError(f"--repeat: at least 1 repetition is needed, not {args.repeat}")
    if args.require and args.peer_path is None:
        raise InvalidArgumentError("--require: the targets are ratios over a peer; give --peer-path too")
    build = build_info()
    if build.kind != "compiled":
        # The targets are those of the compiled core.
        paths = [replace(path, target=None, growth=(path.growth[0], None), limit=None) for path in paths]
        if args.require:
            raise InvalidArgumentError(f"--require: the targets are for a compiled core, this is a {build}")
    if args.json is not None and not args.json.resolve().parent.is_dir():
        raise InvalidArgumentError(f"--json: the folder of {args.json} is not there")
    paths, left_out = _runnable(paths, args)
    peers = _peers(args.peer_path, {path.system for path in paths}) if args.peer_path is not None else {}
    floor = Floor() if args.floor else None
    packages = {name for path in paths for name in path.needs}
    config = report.configuration({system: peer.version for system, peer in peers.items()}, args.repeat, packages)
    sizes = _sizes(build.kind) if args.scaling else ()
    rows: list[report.Row] = []
    scales: list[scaling.Scale] = []
    with progress("measuring", len(paths) + len(sizes)) as advance:
        for path in paths:
            advance(0, path.name)
            rows.append(_measured(path, peers.get(path.system), floor, args.repeat))
            advance(1, path.name)
        for size in sizes:
            advance(0, f"{size:,} blocks")
            scales.append(scaling.measure(size, floor))
            advance(1, f"{size:,} blocks")
    verdicts = report.scaling_verdicts(scales) if scales else []
    report.print_paths(rows, config)
    if scales:
        report.print_scaling(scales, verdicts)
    if left_out:
        print(f"left out: {left_out}")
    if args.peer_path is not None and TOKENS not in peers and TOKENS in {path.system for path in paths}:
        print("tokens: no peer, as SGLang's tree in Rust needs CPython 3.11 on x86-64 Linux, torch and msgspec")
    if not peers:
        print("no peer: python -m benchmarks.peers.fetch DIR, then bench --peer-path DIR, shows ratios")
    if args.json is not None:
        data = report.as_data(config, rows, scales, verdicts)
        args.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    judged = [verdict for row in rows for verdict in row.verdicts] + verdicts
    missed = any(row.met is False for row in rows) or any(verdict.met is False for verdict in judged)
    return int(args.require and missed)


def _chosen(only: Sequence[str] | None) -> list[Any]:
    """Return the paths to measure. Raises InvalidArgumentError for a name that no path and no system has."""
    from benchmarks.paths import all_paths

    paths = all_paths()
    names = [*(path.name for path in paths), *dict.fromkeys(path.system for path in paths)]
    for name in only or ():
        if name not in names:
            raise InvalidArgumentError(f"--only: nothing is named {name!r}; choose from {', '.join(names)}")
    return [path for path in paths if not only or path.name in only or path.system in only]


def _runnable(paths: Sequence[Any], args: argparse.Namespace) -> tuple[list[Any], str]:
    """Return the paths whose packages are installed, and in words which others there are and what they need.

    Raises InvalidArgumentError if all that was asked for, or a target that is required, is among the others.
    """
    absent = {name for path in paths for name in path.needs if find_spec(name) is None}
    others = [path.name for path in paths if absent.intersection(path.needs)]
    if not others:
        return list(paths), ""
    said = f"{', '.join(others)}: pip install {' '.join(sorted(absent))}"
    if args.require or len(others) == len(paths):
        option = "--require" if args.require else "--only"
        raise InvalidArgumentError(f"{option}: some paths need packages that are not installed, {said}")
    return [path for path in paths if path.name not in others], said


def _peers(folder: FilePath, systems: Collection[str]) -> dict[str, Any]:
    """Load the peer of each system from the folder that `fetch_peers` filled, but for those that cannot run here."""
    from benchmarks.path import LOOP, MANAGER, OFFLOAD, PAGING, STEP, TOKENS
    from benchmarks.peers import sglang as sglang_peer
    from benchmarks.peers import vllm as vllm_peer
    from benchmarks.peers import vllm_offload as vllm_offload_peer
    from benchmarks.peers import vllm_paging as vllm_paging_peer
    from benchmarks.peers import vllm_step as vllm_step_peer

    loaders: dict[str, Callable[[FilePath], Any]] = {
        MANAGER: vllm_peer.load,
        TOKENS: sglang_peer.load,
        STEP: vllm_step_peer.load,
        LOOP: vllm_step_peer.load,
        PAGING: vllm_paging_peer.load,
        OFFLOAD: vllm_offload_peer.load,
    }
    loaded = {system: load(folder) for system, load in loaders.items() if system in systems}
    return {system: peer for system, peer in loaded.items() if peer is not None}


def _sizes(build: str) -> tuple[int, ...]:
    """Return the pool sizes to measure: millions of blocks take an uncompiled core minutes to fill."""
    from benchmarks.scaling import SIZES

    return SIZES if build != "pure" else SIZES[:2]


def _measured(path: Any, peer: Any, floor: Any, repeat: int) -> Any:
    from benchmarks.measure import interleaved
    from benchmarks.report import Row

    samples = {"ours": path.ours()}
    if peer is not None and path.peer is not None:
        samples["peer"] = path.peer(peer)
    if floor is not None and path.floor is not None:
        samples["floor"] = floor.sample(path.floor)
    if path.base is not None:
        samples["base"] = path.base()
    timings = interleaved(samples, repeat)
    return Row(path, timings["ours"], timings.get("peer"), timings.get("floor"), timings.get("base"))


def main() -> int:
    try:
        return run(parser_of().parse_args())
    except InvalidArgumentError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
