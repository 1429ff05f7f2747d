"""The specification, and the inner loops of lock-step, compiled: the same sources, in a separate folder.

A checkout compiles them (`python -m blockwright_lab.explorer build/explorer`), and writes out there how records are
made and replaced. `blockwright conform --explorer FOLDER` then starts the processes that explore with that folder first
on their path, and nothing else: every other gate, and every test, runs the specification as it reads. A folder with
other sources than those that run is not used. `make docs-check` compares everything that was counted both ways.
"""

import hashlib
import json
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import blockwright_spec

PACKAGES = (Path(blockwright_spec.__file__).parent, Path(__file__).parents[1])
RECORD = "sources.json"


def digests() -> dict[str, str]:
    """Return the SHA-256 of every source of both packages, files of scopes too, and the Python that runs."""
    found = {
        source.relative_to(package.parent).as_posix(): hashlib.sha256(source.read_bytes()).hexdigest()
        for package in PACKAGES
        for source in sorted(package.rglob("*"))
        if source.suffix in (".py", ".toml")
    }
    return {"python": platform.python_version(), **found}


def trouble(folder: Path) -> str:
    """Return why a folder cannot be used; nothing if it can.

    Reads and hashes the sources of both packages (some milliseconds).
    """
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        before, libraries = record["sources"], record["libraries"]
    except (OSError, ValueError, KeyError):
        return f"nothing was compiled into {folder}"
    now = digests()
    changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if changed:
        return f"changed since {folder} was compiled: {', '.join(changed[:3])}"
    gone = [name for name in libraries if not (folder / name).exists()]
    return f"no longer in {folder}: {', '.join(gone[:3])}" if gone else ""


@contextmanager
def first_on_path(folder: Path | None) -> Iterator[None]:
    """Have processes that are started meanwhile import both packages from a folder; this one has imported them."""
    if folder is None:
        yield
        return
    sys.path.insert(0, str(folder.absolute()))
    try:
        yield
    finally:
        sys.path.remove(str(folder.absolute()))
