"""The sub-command `blockwright vectors`: makes portable vectors, and puts a manager in another process through them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from blockwright._terminal import output, print_table, progress
from blockwright._text import printable, printable_lines
from blockwright.errors import InvalidArgumentError

from ..kv_cache.fitting import fitting, lacking, lacks
from ..kv_cache.scopes import FOR_OTHERS, Scope
from ..options import added
from .judge import Judgement, judge
from .paths import vectors_of
from .process import ProcessError, ProcessFactory
from .records import Vector, file_name, samples, write
from .wire import answer_line, call_line, config_line

_COLUMNS = ("scope", "vectors", "calls", "judged", "failed")


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    added(subparsers, "vectors", run, {"--profile": FOR_OTHERS})


def run(args: argparse.Namespace) -> int:
    """Write vectors, or run them; 1 where a manager differs."""
    if (args.program is None) == (args.out is None):
        raise InvalidArgumentError("vectors: name either a manager (--run COMMAND) or a folder (--out DIR)")
    if args.out is not None:
        return _write(args)
    try:
        return _judge(args)
    except ProcessError as error:
        raise InvalidArgumentError(f"--run: {error}") from error


def _scopes(args: argparse.Namespace) -> list[Scope]:
    scopes = [each for each in FOR_OTHERS[args.profile] if (args.scope or "") in each.name]
    if not scopes:
        raise InvalidArgumentError(f"--scope: no scope of profile {args.profile} contains {args.scope!r}")
    return scopes


def _write(args: argparse.Namespace) -> int:
    scopes, total = _scopes(args), 0
    if args.files:
        raise InvalidArgumentError("--out: takes no files; vectors are made from scopes")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgumentError(f"--out: cannot write {error.filename or args.out}: {error.strerror}") from error
    with progress("vectors", len(scopes)) as advance:
        for scope in scopes:
            file = args.out / file_name(scope.name)
            with output("--out", file):
                total += write(file, vectors_of(scope, args.limit))
            advance(1, scope.name)
    print(f"{total:,} vectors of {len(scopes)} scopes in {args.out}")
    return 0


def _judge(args: argparse.Namespace) -> int:
    factory = ProcessFactory(args.program)
    try:
        if not factory.connection.follows_policy:
            raise InvalidArgumentError(
                f"--run: vectors name blocks in LRU order, and {factory.connection.name} takes them in its own: "
                f"blockwright conform --impl 'exec:{args.program}' follows it"
            )
        vectors, left_out = _vectors(args, factory)
        judged: list[tuple[Vector, Judgement]] = []
        with progress("vectors", len(vectors)) as advance:
            for vector in vectors:
                judged.append((vector, judge(factory, vector)))
                advance(1, vector.scope)
                if factory.connection.is_silent:
                    break
    finally:
        factory.close()
    if not judged:
        raise InvalidArgumentError(f"--run: {factory.connection.name} can do none of these scopes: {left_out}")
    if len(judged) < len(vectors):
        left_out = f"{len(vectors) - len(judged):,} vectors, since the manager no longer answers; {left_out}"
    return _print(factory.connection.name, judged, left_out)


def _vectors(args: argparse.Namespace, factory: ProcessFactory) -> tuple[list[Vector], str]:
    known = {scope.name: scope for profile in FOR_OTHERS.values() for scope in profile}
    missing = {name: lacking(scope, factory.capabilities) for name, scope in known.items()}
    if args.scope is not None:
        if args.files:
            raise InvalidArgumentError("--scope: makes vectors; leave it out to run those of files")
        scopes = _scopes(args)
        vectors = [each for scope in fitting(scopes, factory.capabilities) for each in vectors_of(scope, args.limit)]
        missing = lacks(scopes, factory.capabilities)
        names = [scope.name for scope in scopes]
    else:
        try:
            read = samples(args.files)
        except (OSError, ValueError) as error:
            raise InvalidArgumentError(f"FILE: {error}") from error
        names = list(dict.fromkeys(vector.scope for vector in read))
        vectors = [vector for vector in read if not missing.get(vector.scope)]
    return vectors, "; ".join(f"{name} (lacks {', '.join(missing[name])})" for name in names if missing.get(name))


def _print(name: str, judged: Sequence[tuple[Vector, Judgement]], left_out: str) -> int:
    rows, shortest = [], []
    for scope in dict.fromkeys(vector.scope for vector, _ in judged):
        own = [each for each in judged if each[0].scope == scope]
        failed = [each for each in own if each[1].fault]
        calls, steps = sum(len(vector.steps) for vector, _ in own), sum(judgement.steps for _, judgement in own)
        rows.append((scope, *(f"{count:,}" for count in (len(own), calls, steps, len(failed)))))
        shortest += [min(failed, key=lambda each: each[1].steps)] if failed else []
    footer = f"{len(judged):,} vectors, {sum(bool(judgement.fault) for _, judgement in judged):,} failed"
    print_table(f"blockwright vectors, manager {name}", _COLUMNS, rows, footer)
    if left_out:
        print(f"\nleft out: {printable(left_out)}")
    for each in shortest:
        print(printable_lines(f"\n{history(*each)}"))
    return int(bool(shortest))


def history(vector: Vector, judgement: Judgement) -> str:
    """Return the calls of a vector up to the one that was judged last, as lines of the protocol, with their answers."""
    steps = vector.steps[: judgement.steps]
    lines = [f"{vector.scope}, vector {vector.number}, call {judgement.steps}:", config_line(vector.config)]
    lines += [f"{call_line(step.call)}  # {answer_line(step.answer)}" for step in steps]
    return "\n".join([*lines, f"# {judgement.fault}"])
