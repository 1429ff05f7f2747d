"""A manager in another process, in any language: it speaks by lines (`wire`), and the gates test it.

The adapter keeps the calls of its manager. Copies share one process: the copy that speaks next has a new manager made
and the calls repeated, so that the process need not be able to copy anything.
"""

import atexit
import contextlib
import functools
import os
import selectors
import shlex
import signal
import subprocess
import time
from typing import Any, NoReturn, Self

from blockwright_spec.manager.state import Config

from ..capabilities import Capabilities
from ..checker.world import twin_of
from ..kv_cache.adapter import Observation
from ..kv_cache.fitting import check_names
from .calls import STALE, Answer, ByCalls, Call
from .wire import WireError, answer_of, call_line, config_line, hello_of, state_of

TIMEOUT = 10.0
"""Seconds that an answer may take."""
LONGEST = 1 << 20
"""Bytes of the longest answer."""
TAIL = 1000
"""Bytes of standard error that are kept, for the message when the process fails."""


class RefusedError(Exception):
    """The manager answers that a call is wrong."""


class StaleError(RefusedError):
    """The manager answers that a hit no longer holds."""


class ProcessError(ValueError):
    """The manager's process ended, was silent, or violated the protocol."""


class Connection:
    """A process that manages blocks, and which adapter spoke to it last.

    After a failure its answers can no longer be matched with calls: the process is killed, and every later call fails
    at once. Where it did not just keep silent, which costs time, the factory starts another for the next manager.
    """

    def __init__(self, command: str) -> None:
        self.command, self.speaker, self.unread, self.errors = command, 0, b"", b""
        self.failed, self.is_silent = "", False
        try:
            self.process = subprocess.Popen(
                shlex.split(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except (OSError, ValueError, IndexError) as error:
            raise ProcessError(f"cannot run {command!r}: {error}") from error
        pipes: Any = self.process.stdin, self.process.stdout, self.process.stderr
        self.input, self.output, self.log = pipes
        self.selector = selectors.DefaultSelector()
        for pipe in (self.output, self.log):
            self.selector.register(pipe, selectors.EVENT_READ)
        for pipe in (self.input, self.output, self.log):
            os.set_blocking(pipe.fileno(), False)
        try:
            self.name, self.capabilities, self.follows_policy = hello_of(self.ask(["hello 1"])[0])
            check_names(self.capabilities)
        except ValueError as error:
            self.close()
            raise error if isinstance(error, ProcessError) else ProcessError(f"{command}: {error}") from error
        except BaseException:
            self.close()
            raise

    def ask(self, lines: list[str]) -> list[str]:
        if self.failed:
            raise ProcessError(self.failed)
        waiting = "".join(f"{line}\n" for line in lines).encode()
        answers: list[str] = []
        deadline = time.monotonic() + TIMEOUT
        self.listen(bool(waiting))
        while len(answers) < len(lines):
            left = deadline - time.monotonic()
            if left <= 0:
                self.is_silent = True
                self.fail(f"no answer to {lines[len(answers)]!r} in {TIMEOUT:g} s")
            for key, _ in self.selector.select(left):
                if key.fileobj is self.input:
                    waiting = self.send(waiting)
                    self.listen(bool(waiting))
                elif key.fileobj is self.log:
                    self.heed()
                else:
                    answers += self.read(lines[min(len(answers), len(lines) - 1)])
            if len(answers) > len(lines) or (len(answers) == len(lines) and self.unread):
                self.fail(f"more than one line came back for {lines[-1]!r}")
        return answers

    def expect_silence(self, line: str) -> None:
        """Fail if the process has spoken since it was last asked, or has ended."""
        came = not self.failed and any(key.fileobj is self.output for key, _ in self.selector.select(0))
        if came and (self.read(line) or self.unread):
            self.fail(f"a line that nothing had asked for came before {line!r}")

    def listen(self, writes: bool) -> None:
        is_waiting = self.input in self.selector.get_map()
        if writes and not is_waiting:
            self.selector.register(self.input, selectors.EVENT_WRITE)
        elif is_waiting and not writes:
            self.selector.unregister(self.input)

    def read(self, line: str) -> list[str]:
        came = self.part(self.output)
        if came is None:
            return []
        if not came:
            self.fail(f"ended {'within a line' if self.unread else 'before it answered'} {line!r}")
        *whole, self.unread = (self.unread + came).split(b"\n")
        if len(self.unread) > LONGEST or any(len(each) > LONGEST for each in whole):
            self.fail(f"more than {LONGEST:,} bytes without a line's end in the answer to {line!r}")
        return [each.decode(errors="replace").rstrip("\r") for each in whole]

    def heed(self) -> None:
        came = self.part(self.log)
        self.errors = (self.errors + (came or b""))[-TAIL:]
        if came == b"":
            self.selector.unregister(self.log)

    @staticmethod
    def part(pipe: Any) -> bytes | None:
        try:
            return os.read(pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def send(self, waiting: bytes) -> bytes:
        try:
            return waiting[os.write(self.input.fileno(), waiting) :]
        except BlockingIOError:
            return waiting
        except OSError:  # what it said before it ended is still to be read
            return b""

    def fail(self, what: str) -> NoReturn:
        """End the process, and raise what went wrong, with its last words."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.1)
        code = self.process.poll()
        ended = "" if code is None else f"; exit status {code}"
        if self.log in self.selector.get_map():
            self.heed()
        words = self.errors.decode(errors="replace").strip()
        self.failed = f"{self.command}: {what}{ended}" + (f"; on its standard error: {words}" if words else "")
        self.close()
        raise ProcessError(self.failed)

    def close(self) -> None:
        self.selector.close()
        for pipe in (self.input, self.output, self.log):
            with contextlib.suppress(OSError):
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.0 if self.failed else 1.0)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
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
        """Return an independent copy: it repeats the calls on a new manager before its next one."""
        return twin_of(self, history=self.history.copy(), number=0)

    def lines_answered(self, lines: list[str]) -> list[str]:
        connection, before = self.connection, []
        if self.number == 0 or connection.speaker != self.number:
            connection.speaker += 1
            self.number, before = connection.speaker, self.history
        asked = [*before, *lines]
        connection.expect_silence(asked[0])
        answers = connection.ask(asked)
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
        if self.connection.failed and not self.connection.is_silent:
            self.connection = Connection(self.command)
        return ProcessAdapter(self.connection, config)

    def close(self) -> None:
        self.connection.close()


@functools.lru_cache
def started(command: str) -> ProcessFactory:
    """Return the factory of a command that runs until this process ends; a ValueError if it cannot be run."""
    factory = ProcessFactory(command)
    atexit.register(factory.close)
    return factory
