"""Opening a directory of blocks: is it ours, or may it become ours, and is it not in use?

A directory becomes a store's when its header is published, before any other file is made. Until then it is empty except
for a lock and an incomplete header, so that any other file in it is foreign and is left alone. Nothing is written to a
directory before it has been found to be this store's, or unused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Final

from blockwright.errors import StoreDirectoryError
from blockwright.offload.checksum import CHECKSUMS
from blockwright.offload.disk.files import LOCK, REMEDY, UNPUBLISHED, Folder, Lock
from blockwright.offload.identity import CacheIdentity

FORMAT: Final = "blockwright blocks"
VERSION: Final = 1
HEADER: Final = "header.json"

NUM_BYTES_MAX: Final = 1 << 62
NUM_BLOCKS_MAX: Final = 1 << 40
"""No directory has so many slots; a header that says so is damaged."""

# Bytes that a header may have beyond our own; one that is longer is damaged.
_HEADER_MORE: Final = 1 << 16


@dataclass(frozen=True)
class Header:
    """A directory's description of itself.

    Attributes:
        block_bytes: bytes in a slot, the largest block.
        num_blocks: slots.
        checksum: name of the checksum of all its records and blocks.
        identity_digest: the identity of the blocks, in hexadecimal.
        identity: the same for people to read; it holds no secret.
    """

    block_bytes: int
    num_blocks: int
    checksum: str
    identity_digest: str
    identity: dict[str, str]

    @classmethod
    def of(cls, identity: CacheIdentity, block_bytes: int, num_blocks: int) -> Header:
        return cls(block_bytes, num_blocks, CHECKSUMS[0], identity.digest().hex(), identity.describe())

    def encode(self) -> bytes:
        return (json.dumps({"format": FORMAT, "version": VERSION, **vars(self)}, indent=2) + "\n").encode()


def opened(folder: Folder, wanted: Header) -> tuple[Header, Lock]:
    """Return the header of a directory, which is made if the directory is empty, and the lock that is now held on it.

    It is the one wanted, with the checksum and the number of slots of the directory.

    Raises:
        StoreDirectoryError: it is not this store's, or is in use; it was left as it is.
        OSError: it cannot be read or written.
    """
    _header(folder, wanted)
    lock = folder.lock()
    try:
        header = _header(folder, wanted)  # once more: until now somebody else might have made it
        if header is None:
            folder.publish(HEADER, wanted.encode())
        folder.keep_private(HEADER)
        return header or wanted, lock
    except BaseException:
        lock.close()
        raise


def described(folder: Folder) -> Header:
    """Return the header of a directory, of whatever cache it is.

    Raises:
        StoreDirectoryError: there is none, or not one that could be read here.
        OSError: it cannot be read.
    """
    content = folder.read(HEADER, _HEADER_MORE)
    if content is None:
        raise StoreDirectoryError(f"{folder.path}: has no {HEADER}, so that it is no store's; name one that is")
    found = _decoded(content, folder)
    _check_form(folder, found)
    sizes = {"block_bytes": range(1, NUM_BYTES_MAX), "num_blocks": range(NUM_BLOCKS_MAX)}
    if not all(isinstance(found.get(name), int) and found[name] in sizes[name] for name in sizes):
        raise StoreDirectoryError(f"{folder.path}: {HEADER} is damaged; {REMEDY}")
    return Header(found["block_bytes"], found["num_blocks"], found["checksum"], "", {})


def _header(folder: Folder, wanted: Header) -> Header | None:
    """Return the header that is there, with the checksum it names; None if there may be one."""
    content = folder.read(HEADER, len(wanted.encode()) + _HEADER_MORE)
    if content is None:
        ours = {name for name in (LOCK, HEADER + UNPUBLISHED) if folder.is_file(name)}
        # A mistyped path must not turn somebody's folder into a store.
        foreign = folder.names() - ours - {"lost+found"}
        if foreign:
            raise StoreDirectoryError(
                f"{folder.path}: holds other files, such as {min(foreign)!r}; name another directory"
            )
        return None
    found = _decoded(content, folder)
    _check_form(folder, found)
    differences = _differences(found, wanted)
    if differences:
        raise StoreDirectoryError(f"{folder.path}: is of another cache: {'; '.join(differences)}; {REMEDY}")
    return replace(wanted, checksum=found["checksum"], num_blocks=found["num_blocks"])


def _check_form(folder: Folder, found: dict[str, Any]) -> None:
    if found["version"] != VERSION:
        raise StoreDirectoryError(
            f"{folder.path}: has version {found['version']!r} of the format, and this program {VERSION}; {REMEDY}"
        )
    if found["checksum"] not in CHECKSUMS:
        raise StoreDirectoryError(
            f"{folder.path}: has checksums {found['checksum']!r}, which cannot be computed here; "
            f"install xxhash, or {REMEDY}"
        )


def _decoded(content: bytes, folder: Folder) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):  # the latter for one that is nested too deeply
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise StoreDirectoryError(f"{folder.path}: {HEADER} is damaged or no store's; {REMEDY}")
    return {"version": None, "checksum": None, **found}


def _differences(found: dict[str, Any], wanted: Header) -> list[str]:
    """Return what differs, each with both sides."""
    count = found.get("num_blocks")
    is_count = isinstance(count, int) and not isinstance(count, bool) and 0 <= count < NUM_BLOCKS_MAX
    differences = [
        f"{name} is {found.get(name)!r} there and {getattr(wanted, name)!r} here"
        for name, is_right in (
            ("block_bytes", found.get("block_bytes") == wanted.block_bytes),
            ("num_blocks", is_count),
        )
        if not is_right
    ]
    if found.get("identity_digest") == wanted.identity_digest:
        return differences
    theirs = found.get("identity")
    theirs = theirs if isinstance(theirs, dict) else {}
    named = [
        f"{name} is {theirs.get(name, 'none')} there and {wanted.identity.get(name, 'none')} here"
        for name in sorted(theirs.keys() | wanted.identity.keys())
        if theirs.get(name) != wanted.identity.get(name)
    ]
    return differences + (named or ["its identity differs"])
