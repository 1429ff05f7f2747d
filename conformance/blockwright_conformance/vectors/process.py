"""A manager in a process of its own, in any language: spoken to by lines (`wire`), and put through the gates.

The adapter keeps what its manager was told. Copies share one process: the copy that speaks next has a new manager made
and the calls told again, so that the process need not be able to copy anything.
"""

import atexit
import contextlib
import functools
import os
import selectors
import shlex
import subprocess
import time
from typing import Any, Self

from blockwright_spec.manager.state import Config

from ..capabilities import Capabilities
from ..kv_cache.adapter import Observation
from .calls import STALE, Answer, ByCalls, Call
from .wire import WireError, answer_of, call_line, config_line, hello_of, state_of

TIMEOUT = 10.0
"""Seconds that an answer may take."""


class RefusedError(Exception):
    """The manager says that a call is wrong."""


class StaleError(RefusedError):
    """The manager says that a hit no longer holds."""


class ProcessError(ValueError):
    """The manager's process ended, was silent, or said what is not of the protocol."""


class Connection:
    """A process that manages blocks, and which adapter spoke to it last."""

    def __init__(self, command: str) -> None:
        self.command, self.speaker, self.unread = command, 0, b""
        try:
            self.process = subprocess.Popen(
                shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
            )
        except (OSError, ValueError, IndexError) as error:
            raise ProcessError(f"cannot run {command!r}: {error}") from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.input, self.output = self.process.stdin, self.process.stdout
        os.set_blocking(self.input.fileno(), False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.output, selectors.EVENT_READ)
        try:
            self.name, self.capabilities, self.follows_policy = hello_of(self.ask(["hello 1"])[0])
        except Exception:
            self.close()
            raise

    def ask(self, lines: list[str]) -> list[str]:
        """Send lines, and return as many that come back, in time."""
        waiting = "".join(f"{line}\n" for line in lines).encode()
        answers: list[str] = []
        deadline = time.monotonic() + TIMEOUT
        while len(answers) < len(lines):
            waiting = self.send(waiting)
            if not self.selector.select(0.0 if waiting else deadline - time.monotonic()):
                if time.monotonic() >= deadline:
                    raise ProcessError(f"{self.command}: no answer to {lines[len(answers)]!r} in {TIMEOUT:.0f} s")
                continue
            came = os.read(self.output.fileno(), 1 << 16)
            if not came:
                raise ProcessError(f"{self.command}: ended before it answered {lines[len(answers)]!r}")
            *whole, self.unread = (self.unread + came).split(b"\n")
            answers += [line.decode(errors="replace").rstrip("\r") for line in whole]
        if len(answers) > len(lines) or self.unread:
            raise ProcessError(f"{self.command}: more than one line came back for {lines[-1]!r}")
        return answers

    def send(self, waiting: bytes) -> bytes:
        if not waiting:
            return waiting
        try:
            return waiting[os.write(self.input.fileno(), waiting) :]
        except BlockingIOError:
            return waiting
        except BrokenPipeError:  # what it said before it ended is still to be read
            return b""

    def close(self) -> None:
        self.selector.close()
        for pipe in (self.input, self.output):
            with contextlib.suppress(OSError):
                pipe.close()
        try:
            self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class ProcessAdapter(ByCalls):
    """A manager behind a connection; all adapters of one connection share its process."""

    errors: tuple[type[Exception], ...] = (RefusedError,)
    stale: tuple[type[Exception], ...] = (StaleError,)

    def __init__(self, connection: Connection, config: Config) -> None:
        self.connection, self.config = connection, config
        self.follows_policy = connection.follows_policy
        self.history = [config_line(config)]
        self.number = 0
        self.lines_answered([])

    def copy(self) -> Self:
        """Return an independent copy: it has the same told to a new manager when it is next asked something."""
        twin = object.__new__(type(self))
        twin.connection, twin.config, twin.follows_policy = self.connection, self.config, self.follows_policy
        twin.history, twin.number = self.history.copy(), 0
        return twin

    def lines_answered(self, lines: list[str]) -> list[str]:
        """Send lines to the manager that this adapter stands for, and give what comes back."""
        connection, before = self.connection, []
        if self.number == 0 or connection.speaker != self.number:
            connection.speaker += 1
            self.number, before = connection.speaker, self.history
        answers = connection.ask([*before, *lines])
        if before and answers[0] != "ok":
            raise ProcessError(f"{connection.command}: expected ok to {before[0]!r}, found {answers[0]!r}")
        return answers[len(before) :]

    def said(self, word: str, *values: Any, may: tuple[str, ...] = ("ok",)) -> Answer:
        """Make a call, which may be answered by one of some words; one that the manager calls wrong is an error."""
        line = call_line(Call(word, values))
        (said,) = self.lines_answered([line])
        self.history.append(line)
        try:
            answer = answer_of(said)
        except WireError as error:
            raise ProcessError(f"{self.connection.command}: {line!r}: {error}") from error
        if answer.word == "error":
            raise (StaleError if answer.reason == STALE else RefusedError)(said)
        if answer.word not in may:
            raise ProcessError(f"{line!r}: expected {' or '.join(may)}, found {answer.word}")
        return answer

    def observe(self, names: tuple[str, ...]) -> Observation:
        (said,) = self.lines_answered([" ".join(["state", *names])])
        return state_of(said, self.config.num_blocks)


class ProcessFactory:
    """Makes managers in one process of a command."""

    def __init__(self, command: str) -> None:
        self.command = command
        self.connection = Connection(command)

    @property
    def capabilities(self) -> Capabilities:
        return self.connection.capabilities

    def __call__(self, config: Config) -> ProcessAdapter:
        return ProcessAdapter(self.connection, config)

    def close(self) -> None:
        self.connection.close()


@functools.lru_cache
def started(command: str) -> ProcessFactory:
    """Return the factory of a command, whose process runs until this one ends; a ValueError if it cannot be run."""
    factory = ProcessFactory(command)
    atexit.register(factory.close)
    return factory
