"""A manager in another process, in any language: it speaks by lines (`wire`), and the gates test it.

The adapter keeps the calls of its manager. Copies share one process: the copy that speaks next has a new manager made
and the calls repeated, so that the process need not be able to copy anything.
"""

import atexit
import contextlib
import os
import shlex
import signal
import subprocess
import time
from functools import cache, partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NoReturn, Self

from blockwright_spec.manager.state import Config

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

    A thread for each of its pipes keeps it from waiting for us. After a failure its answers can no longer be matched
    with calls: the process is killed, and every later call fails at once. Where it did not just keep silent, which
    costs time, the factory starts another for the next manager.
    """

    def __init__(self, command: str) -> None:
        self.command, self.speaker, self.unread, self.errors = command, 0, b"", b""
        self.failed, self.is_silent = "", False
        pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        try:
            self.process: Any = subprocess.Popen(shlex.split(command), bufsize=0, start_new_session=True, **pipes)
        except (OSError, ValueError, IndexError) as error:
            raise ProcessError(f"cannot run {command!r}: {error}") from error
        self.asked: SimpleQueue[bytes] = SimpleQueue()
        self.heard: SimpleQueue[bytes] = SimpleQueue()
        self.threads = [Thread(target=each, daemon=True) for each in (self.speak, self.listen, self.heed)]
        for each in self.threads:
            each.start()
        try:
            self.name, self.capabilities, self.follows_policy = hello_of(self.ask(["hello 1"])[0])
            check_names(self.capabilities)
        except ValueError as error:
            self.close()
            raise error if isinstance(error, ProcessError) else ProcessError(f"{command}: {error}") from error
        except BaseException:
            self.close()
            raise

    def speak(self) -> None:
        with contextlib.suppress(OSError), self.process.stdin as pipe:  # what it said before it ended is still read
            for lines in iter(self.asked.get, b""):
                while lines:
                    lines = lines[pipe.write(lines) :]

    def listen(self) -> None:
        with self.process.stdout as pipe:
            for part in iter(partial(pipe.read, 1 << 16), b""):
                self.heard.put(part)
        self.heard.put(b"")

    def heed(self) -> None:
        with self.process.stderr as pipe:
            for part in iter(partial(pipe.read, 1 << 16), b""):
                self.errors = (self.errors + part)[-TAIL:]

    def ask(self, lines: list[str]) -> list[str]:
        if self.failed:
            raise ProcessError(self.failed)
        self.asked.put("".join(f"{line}\n" for line in lines).encode())
        answers, deadline = list[str](), time.monotonic() + TIMEOUT
        while len(answers) < len(lines):
            line = lines[len(answers)]
            try:
                answers += self.read(self.heard.get(timeout=max(0.0, deadline - time.monotonic())), line)
            except Empty:
                self.is_silent = True
                self.fail(f"no answer to {line!r} in {TIMEOUT:g} s")
        if len(answers) > len(lines) or self.unread:
            self.fail(f"more than one line came back for {lines[-1]!r}")
        return answers

    def expect_silence(self, line: str) -> None:
        """Fail if the process has spoken since it was last asked, or has ended."""
        if not self.failed and not self.heard.empty() and (self.read(self.heard.get(), line) or self.unread):
            self.fail(f"a line that nothing had asked for came before {line!r}")

    def read(self, came: bytes, line: str) -> list[str]:
        if not came:
            self.fail(f"ended {'within a line' if self.unread else 'before it answered'} {line!r}")
        *whole, self.unread = (self.unread + came).split(b"\n")
        if any(len(each) > LONGEST for each in (*whole, self.unread)):
            self.fail(f"more than {LONGEST:,} bytes without a line's end in the answer to {line!r}")
        return [each.decode(errors="replace").rstrip("\r") for each in whole]

    def fail(self, what: str) -> NoReturn:
        """End the process, and raise what went wrong, with its last words."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.1)
        self.threads[-1].join(0.1)
        code = self.process.poll()
        ended = "" if code is None else f"; exit status {code}"
        words = self.errors.decode(errors="replace").strip()
        self.failed = f"{self.command}: {what}{ended}" + (f"; on its standard error: {words}" if words else "")
        self.close()
        raise ProcessError(self.failed)

    def close(self) -> None:
        self.asked.put(b"")  # closes its input, at which it may end by itself
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.0 if self.failed else 1.0)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for each in self.threads:
            each.join(1.0)


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
    def __init__(self, command: str) -> None:
        self.command, self.connection = command, Connection(command)
        self.capabilities = self.connection.capabilities

    def __call__(self, config: Config) -> ProcessAdapter:
        if self.connection.failed and not self.connection.is_silent:
            self.connection = Connection(self.command)
        return ProcessAdapter(self.connection, config)

    def close(self) -> None:
        self.connection.close()


@cache
def started(command: str) -> ProcessFactory:
    """Return the factory of a command that runs until this process ends; a ValueError if it cannot be run."""
    factory = ProcessFactory(command)
    atexit.register(factory.close)
    return factory
