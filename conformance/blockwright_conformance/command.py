"""The sub-command `blockwright conform`: runs the gates and prints their findings."""

from __future__ import annotations

import argparse
import json
import platform
import resource
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from blockwright import __version__, build_info
from blockwright._terminal import Advance, output, print_table, progress
from blockwright._text import printable_lines
from blockwright.errors import InvalidArgumentError
from blockwright.policies import chooser, policy_named
from blockwright_spec.block_tables.step_laws import PAGED_LAWS, PAGED_STEP_LAWS
from blockwright_spec.manager.laws import LAWS, STEP_LAWS
from blockwright_spec.offload.chain_laws import OFFLOAD_LAWS
from blockwright_spec.worker.storage_laws import PART_FOUR_LAWS

from .capabilities import expected_of, judged
from .checker.compiled import trouble
from .gates import OURS, GateResult, Profile, Run, factory_of, gate, gates, lacking
from .kv_cache import fitting as others
from .kv_cache.crossings import UNDECLARED, pairs_of
from .kv_cache.fitting import THEIR_GATES, Met, capabilities_of
from .kv_cache.scopes import PROFILES
from .options import added
from .rows import COLUMNS as SUMMARY
from .rows import LONG, announced, as_data, counted, raised
from .rows import cells as summary
from .trace import check

_COLUMNS: Final = ("gate", "manager", "scope", "states", "transitions", "violations", "seconds", "law")

DISTRIBUTIONS: Final = {"crosshair": "crosshair-tool"}

MANY: Final = 20
"""Of more rows than this, those that hold and need no word are only counted."""

LOCKSTEP: Final = ("lockstep", "paged", "offload", "worker")
"""The rows whose transitions are all that can be reached, each executed on the implementation."""


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    choices = {"--profile": PROFILES, "--gate": gates(), "--skip": gates()}
    added(subparsers, "conform", run, choices, impl=OURS)


def run(args: argparse.Namespace) -> int:
    """Run the gates and report, or check a trace; 1 where a law is broken."""
    if args.trace is not None:
        return check(args.trace)
    name = args.profile or ("pr" if _part(args) else "quick")
    profile = Profile(name, args.jobs, args.impl, args.scope, args.policy, args.explorer)
    _check(profile, args.json)
    if args.expected is not None and profile.is_ours:
        raise InvalidArgumentError("--expected: is of the manager that --impl names; name one, or leave --expected out")
    try:
        expected = () if args.expected is None else expected_of(args.expected)
    except ValueError as error:
        raise InvalidArgumentError(f"--expected: {error}") from error
    names = wanted(["policies"] if args.policy else args.gate, args.skip, profile)
    missing = _lacking(names, profile, bool(args.gate))
    names = [name for name in names if name not in missing]
    left = _others(names, profile)
    if args.json != Path("-"):
        _begin(args, profile)
    started, rows = time.perf_counter(), []
    for name in names:
        run_gate, units = gate(name, profile)
        with progress(name, units) as advance:
            rows += attempted(run_gate, name, profile, advance)
    seconds = time.perf_counter() - started
    if not rows and not left:
        raise InvalidArgumentError(f"--scope: no scope of profile {profile.name} contains {profile.scope!r}")
    rows += [_without(name, packages) for name, packages in missing.items()]
    is_whole = not (args.gate or args.skip or profile.scope or missing)
    rows = judged(rows, expected, is_whole)
    declared: list[Met] = []
    if not profile.is_ours:
        declared = others.met_by(names, profile, rows)
        rows += others.not_run(names, profile, rows, is_whole)
    pairs = pairs_of(profile, rows)
    report = _report(profile, rows, seconds, left) | {"met": [each._asdict() for each in declared], "pairs": pairs}
    if args.json is not None:
        write_json(args.json, report)
    if args.json != Path("-"):
        _print(profile, rows, seconds, report)
    return int(any(row.violations for row in rows))


def attempted(run_gate: Run, name: str, profile: Profile, advance: Advance) -> list[GateResult]:
    """Run a gate; one that raises an error of its own is a row, beside those of the gates before it and after it."""
    try:
        return run_gate(profile, advance)
    except InvalidArgumentError:
        raise
    except Exception as error:
        row = raised(name, "all scopes", error)
        announced(row)
        return [row]


def _part(args: argparse.Namespace) -> str:
    """Return the first option that names a part of what there is to check: its scopes are then those of ``pr``."""
    given = ("--gate", args.gate), ("--scope", args.scope), ("--impl", args.impl != OURS), ("--policy", args.policy)
    return next((option for option, is_given in given if is_given), "")


def _begin(args: argparse.Namespace, profile: Profile) -> None:
    """Say that the profile is another one than without arguments, before it takes its time."""
    if args.profile is None and (option := _part(args)):
        print(f"Profile {profile.name}, as with {option} unless --profile names another", flush=True)
    if not profile.is_ours and not profile.scope and (names := others.never_asked(profile)):
        print(f"Profile {profile.name} has no scope that would meet: {', '.join(names)}", flush=True)


def _others(names: list[str], profile: Profile) -> dict[str, list[str]]:
    """Return the scopes that another manager cannot run; say before anything runs what no scope of a profile asks."""
    can = None if profile.is_ours else capabilities_of(factory_of(profile.implementation))
    return {} if can is None else others.lacks(others.asked(names, profile), can)


def wanted(only: list[str] | None, but: list[str] | None, profile: Profile) -> list[str]:
    if not profile.is_ours and (ours := [name for name in only or () if name not in THEIR_GATES]):
        raise InvalidArgumentError(
            f"--gate: {', '.join(ours)} would not run the manager that --impl names; {', '.join(THEIR_GATES)} do"
        )
    every = [each.name for each in gates().values() if each.is_in(profile.name)]
    usual = every if profile.is_ours else [name for name in every if name in THEIR_GATES]
    names = [name for name in only or usual if name not in (but or ())]
    if not names:
        raise InvalidArgumentError("--skip: leaves no gate to run; name fewer, or other gates with --gate")
    return names


def _check(profile: Profile, file: Path | None) -> None:
    """Refuse a profile that names no manager, and a report that cannot be written, before the gates run."""
    try:
        factory_of(profile.implementation)
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from error
    if not profile.is_ours and (why := others.unusable(profile)):
        raise InvalidArgumentError(f"--impl: {profile.implementation}: {why}")
    if profile.policy:
        if not profile.is_ours:
            raise InvalidArgumentError("--policy: is asked by Blockwright's own manager; leave --impl out")
        chooser(policy_named(profile.policy)())
    if profile.explorer is not None and (why := trouble(profile.explorer)):
        raise InvalidArgumentError(
            f"--explorer: {why}; compile with python -m blockwright_lab.explorer {profile.explorer}"
        )
    if profile.explorer is not None and not profile.is_ours:
        raise InvalidArgumentError("--explorer: for Blockwright's own manager; leave --impl or --explorer out")
    if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
        raise InvalidArgumentError(f"--json: cannot write {file}; name a file in a folder that exists")


def _lacking(names: list[str], profile: Profile, is_named: bool) -> dict[str, list[str]]:
    """Return the gates that are left out for want of packages; refuse to start if one of them was named, or all are."""
    missing = lacking(names, profile)
    if missing and (is_named or len(missing) == len(names)):
        packages = sorted({package for each in missing.values() for package in each})
        skips = " ".join(f"--skip {name}" for name in missing)
        raise InvalidArgumentError(
            f"{'gate' if len(missing) == 1 else 'gates'} {', '.join(missing)} cannot run without "
            f"{' and '.join(packages)}; {_install(packages)}, or leave them out: {skips}"
        )
    return missing


def _install(packages: list[str]) -> str:
    return f"pip install {' '.join(DISTRIBUTIONS.get(each, each) for each in packages)}"


def _without(name: str, packages: list[str]) -> GateResult:
    detail = f"left out, since {' and '.join(packages)} cannot be imported: {_install(packages)}"
    return GateResult(name, "all scopes", "all", 0, 0, 0, 0.0, "", detail, left_out=True)


def _report(profile: Profile, rows: list[GateResult], seconds: float, left: dict[str, list[str]]) -> dict[str, Any]:
    fired, broken = Counter[str](), Counter[str]()
    for row in rows:
        fired.update(row.fired if row.kind in LOCKSTEP else {})
        broken[row.law] += row.violations
    own, children = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {
        "version": __version__,
        "build": str(build_info()),
        "explorer": "interpreted" if profile.explorer is None else "compiled",
        "python": platform.python_version(),
        "profile": profile.name,
        "scope": profile.scope,
        "implementation": profile.implementation,
        "seconds": round(seconds, 3),
        "peak_memory_bytes": max(own, children) * (1 if sys.platform == "darwin" else 1024),
        "transitions": sum(row.transitions for row in rows if row.kind in LOCKSTEP),
        "violations": sum(row.violations for row in rows),
        "summary": as_data(rows),
        "gates": [_row(row) for row in rows],
        "left_out": left,
        "laws": [
            {"id": law.id, "statement": law.statement, "source": law.source, "violations": broken[law.id]}
            for law in (*LAWS, *STEP_LAWS, *PAGED_LAWS, *PAGED_STEP_LAWS, *OFFLOAD_LAWS, *PART_FOUR_LAWS)
        ],
        "coverage": dict(sorted(fired.items())),
    }


def _row(row: GateResult) -> dict[str, Any]:
    names = ("kind", "manager", "scope", "states", "transitions", "tried", "passed", "violations")
    return {name: getattr(row, name) for name in names} | {
        "seconds": round(row.seconds, 3),
        "law": row.law or None,
        "detail": row.detail or None,
        "trace": row.script.splitlines() or None,
    }


def write_json(path: Path, report: dict[str, Any]) -> None:
    text = json.dumps(report, indent=2) + "\n"
    if path == Path("-"):
        sys.stdout.write(text)
        return
    with output("--json", path):
        path.write_text(text, encoding="utf-8")


def _print(profile: Profile, rows: list[GateResult], seconds: float, report: dict[str, Any]) -> None:
    shown = rows if len(rows) <= MANY else [row for row in rows if row.law or row.detail]
    cells = []
    for row in shown:
        scope, found = row.scope.removeprefix(f"{row.manager}, "), row.law or row.detail or "all hold"
        cells.append((row.kind, row.manager, scope, *counted(row), found))
    title = f"blockwright conform, profile {profile.name}"
    if cells:
        print_table(f"{title}: rows", _COLUMNS, cells)
    broken = [row for row in rows if row.violations]
    for row in broken:
        detail = f"{row.detail[:LONG]}{'...' * (len(row.detail) > LONG)}"
        print(printable_lines(f"\n{row.kind}, {row.scope}: {row.law}: {detail}"))
        if row.law == "RAISED-1":
            print(printable_lines(row.script))
    for row in sorted((row for row in broken if row.script and row.law != "RAISED-1"), key=lambda row: len(row.script))[
        :1
    ]:
        more = " (--json has those of the others)" * (len(broken) > 1)
        script = printable_lines(row.script)
        print(f"\nThe shortest counterexample{more}, a test to be run as it is:\n\n{script}")
    if left := report["left_out"]:
        columns = ("what the manager does not declare", "scopes left out", "for this alone")
        print_table(f"{title}: {len(left):,} scopes left out (--json lists them)", columns, others.reasons(left))
    if excluded := () if profile.is_ours else report["pairs"].get("excluded", {}):
        whys = Counter(UNDECLARED if why.startswith(UNDECLARED) else why for why in excluded.values())
        cells = [(why, f"{count:,}") for why, count in whys.most_common()]
        print_table(f"{title}: pairs of features that cannot meet (--json lists them)", ("why", "pairs"), cells)
    if report["met"]:
        cells = [tuple(map(str, each.values())) for each in report["met"]]
        print_table(f"{title}: what the manager declares", Met._fields, cells)
    print_table(f"{title}: totals", SUMMARY, summary(rows), verdict(profile, rows, seconds))


def verdict(profile: Profile, rows: list[GateResult], seconds: float) -> str:
    """Return one sentence on the findings, and one on the parts that this profile did not run."""
    total = sum(row.transitions for row in rows if row.kind in LOCKSTEP)
    broken = sum(row.violations for row in rows)
    how = "; explored with the specification compiled" if profile.explorer else ""
    said = "Something is wrong" if broken else "Nothing is violated"
    count = f"{broken:,} violation{'' if broken == 1 else 's'}"
    found = f"{said}: {total:,} transitions in lock-step, {count}, {seconds:.1f} s"
    found += f"; {build_info()}{how}" if profile.is_ours else ""
    found += "".join(f"\nThe gate {row.kind} was {row.detail}" for row in rows if row.left_out and row.kind in gates())
    rest = [each for each in gates().values() if not each.is_in(profile.name)]
    if not rest or not profile.is_ours:
        return found
    names = ", ".join(each.name for each in rest)
    return f"{found}\nNot in this profile: {names}, and larger scopes: --profile {rest[0].first}, or --gate NAME"
