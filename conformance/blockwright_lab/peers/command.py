"""The sub-command `blockwright conform-engine`: follows an engine of another make, and prints what was found of it."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import Any

from blockwright._terminal import print_table, progress
from blockwright.errors import InvalidArgumentError
from blockwright_conformance.command import write_json
from blockwright_conformance.kv_cache.scopes import PROFILES
from blockwright_conformance.options import added

from .engines import MODULES, EngineReport, as_data, engine_of, examine

LIMITS = {"quick": 100, "pr": 500, "nightly": 20_000}
"""Transitions of a scope, by profile; shortest ways come first: all listed deviations show within those of `pr`."""


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    added(subparsers, "conform-engine", run, {"engine": MODULES, "--profile": PROFILES})


def run(args: argparse.Namespace) -> int:
    name, engine = args.engine, engine_of(args.engine)
    count = sum(args.scope in each.name and not engine.unfit(each) for each in engine.scopes)
    if not count:
        raise InvalidArgumentError(f"--scope: no scope of {name} contains {args.scope!r}")
    with progress(name, count) as advance:
        report = examine(name, args.peer_path, advance, args.scope, args.jobs, LIMITS[args.profile])
    report.is_whole = report.is_whole and args.profile != "quick"
    data = as_data(report)
    if args.json != Path("-"):
        show(report, data)
    if args.json is not None:
        write_json(args.json, data)
    return int(bool(report.violations))


def show(report: EngineReport, data: dict[str, Any]) -> None:
    rows = [
        (law["id"], law["status"], f"{law['states']:,}", ", ".join(law["deviations"]) or "all hold")
        for law in data["laws"]
    ]
    footer = f"{data['transitions']:,} transitions, {data['states']:,} states, {len(data['scopes'])} scopes"
    footer += f", {len(data['left_out'])} left out" if data["left_out"] else ""
    print_table(f"{data['engine']} {data['version']}", ("law", "status", "states", "deviations"), rows, footer)
    for each in data["deviations"]:
        if each["scopes"] or each["confirmed"]:
            bugs = f" ({', '.join(each['bugs'])})" if each["bugs"] else ""
            print(f"\n{each['id']}{bugs}, {each['standing']}: {each['law']} in {len(each['scopes'])} scopes")
            print(textwrap.fill(each["reason"], 118, initial_indent="  ", subsequent_indent="  "))
            if each["confirmed"]:
                print(f"  {each['confirm']}.py: {each['confirmed']}")
            if each["standing"] == "bug":
                print(textwrap.indent("\n".join(each["counterexample"]), "    "))
    for wrong in report.violations:
        print(f"\nwrong: {wrong}")
    for finding in report.verdict.unlisted:
        print(f"\n{finding.law}, {finding.scope}: {finding.detail}\n{textwrap.indent(finding.script, '    ')}")
