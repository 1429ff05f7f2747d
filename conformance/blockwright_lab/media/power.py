"""A disk whose power may fail: every call that changes it is noted, and each directory that it may then hold is made.

The model is harsher than disks are. Data written to a file since its last sync is kept, lost or torn, each write for
itself and in any order; names are kept up to some point since the last sync of the folder. Only synced data is sure.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from blockwright.offload.disk import DiskStore
from blockwright.offload.disk.files import LOCK, BlockFile, Folder

from .blocks import Said


@dataclass(frozen=True)
class Call:
    """One change: ``open`` or ``create`` (with bytes), ``write``, ``resize``, ``sync``, ``rename``, ``names`` (sync).

    Or, as ``said``, no change but what the run says of itself.
    """

    what: str
    name: str = ""
    offset: int = 0
    data: bytes = b""
    to: str = ""
    said: Said | None = None


LOG: list[Call] = []
"""What the stores of this module have done; one at a time is used, by one thread."""


class NotedFile(BlockFile):
    """A file that notes calls, and syncs nothing."""

    def write_some(self, offset: int, parts: Sequence[memoryview]) -> int:
        LOG.append(Call("write", self.name, offset, b"".join(parts)))
        return super().write_some(offset, parts)

    def resize(self, size: int) -> None:
        LOG.append(Call("resize", self.name, size))
        super().resize(size)

    def sync_now(self) -> None:
        LOG.append(Call("sync", self.name))


class NotedFolder(Folder):
    """A folder that notes calls, and syncs nothing."""

    file_class = NotedFile

    def open(self, name: str, size: int) -> BlockFile:
        if not (self.path / name).exists():
            LOG.append(Call("open", name))
        return super().open(name, size)

    def create(self, name: str, content: bytes) -> None:
        LOG.append(Call("create", name, data=content))
        super().create(name, content)

    def sync_file(self, fd: int) -> None:
        """Do nothing: a created file is sure, see `create`."""

    def rename(self, name: str, to: str) -> None:
        LOG.append(Call("rename", name, to=to))
        super().rename(name, to)

    def sync(self) -> None:
        LOG.append(Call("names"))


class NotedStore(DiskStore):
    """A store that notes its calls."""

    folder_class: ClassVar[type[Folder]] = NotedFolder


@dataclass
class Inode:
    """A file without its name: its sure content, and the writes since."""

    sure: bytearray = field(default_factory=bytearray)
    since: list[Call] = field(default_factory=list)

    def left(self, draw: random.Random) -> bytes:
        held = bytearray(self.sure)
        calls = list(self.since)
        if draw.random() < 0.5:
            draw.shuffle(calls)
        loss = draw.choice((0.1, 0.5, 0.9))
        for call in calls:
            if draw.random() >= loss:
                apply(held, call if draw.random() < 0.6 else torn(call, draw))
        return bytes(held)

    def sync(self) -> None:
        for call in self.since:
            apply(self.sure, call)
        self.since = []


class Disk:
    """The sure content of a directory, and the changes since.

    Attributes:
        names: the files by the names that are sure.
        since: changes of names since the last sync of them.
    """

    def __init__(self, start: dict[str, bytes]) -> None:
        self.names = {name: Inode(bytearray(data)) for name, data in start.items()}
        self.now = dict(self.names)
        self.since: list[dict[str, Inode]] = []

    def take(self, call: Call) -> None:
        if call.what in ("write", "resize"):
            self.now[call.name].since.append(call)
        elif call.what == "sync":
            self.now[call.name].sync()
        elif call.what == "names":
            self.names, self.since = dict(self.now), []
        elif call.what == "rename":
            self.now[call.to] = self.now.pop(call.name)
            self.since.append(dict(self.now))
        else:
            self.now[call.name] = Inode(bytearray(call.data))
            self.since.append(dict(self.now))

    def left(self, draw: random.Random) -> dict[str, bytes]:
        names = draw.choice([self.names, *self.since])
        return {name: inode.left(draw) for name, inode in names.items()}


def apply(held: bytearray, call: Call) -> None:
    size = call.offset if call.what == "resize" else max(len(held), call.offset + len(call.data))
    held.extend(bytes(max(0, size - len(held))))
    if call.what == "resize":
        del held[size:]
    else:
        held[call.offset : call.offset + len(call.data)] = call.data


def torn(call: Call, draw: random.Random) -> Call:
    """Return a part of a write; a change of size has none."""
    first, last = sorted((draw.randrange(len(call.data) + 1), draw.randrange(len(call.data) + 1)))
    return Call("resize" if call.what == "resize" else "write", call.name, call.offset + first, call.data[first:last])


def lay_out(path: Path, files: dict[str, bytes]) -> None:
    path.mkdir(mode=0o700)
    for name, data in files.items():
        with open(path / name, "xb", opener=lambda file, flags: os.open(file, flags, 0o600)) as file:
            file.write(data)


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != LOCK}
