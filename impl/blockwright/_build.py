"""Which build of the core is running: compiled, stale or pure, and why.

A build leaves a record beside its libraries: the SHA-256 of every source it was made from. `build_info` compares the
record with the sources that lie there now, so that a library older than its source cannot pass for it. The record is
written and read here, and nowhere else; `setup.py` runs this file by its path, before the package exists, so it imports
only the standard library. Most programs never ask which build they run, so each function imports what it needs.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pathlib import Path

COMPILED = (
    *("core", "core/keys", "core/pool", "core/worth", "core/tables", "core/records", "core/steps"),
    *("worker", "paging", "offload/tiers"),
)
"""The folders whose modules are compiled, all into one shared library; the first holds it, and the record."""

# Uncompiled modules that compiled ones read constants and types from: a change in them also outdates the libraries.
FOLLOWED = (
    *("_copies.py", "_text.py", "arguments.py", "config.py", "errors.py", "events.py", "exclusions.py", "ids.py"),
    "kinds.py",
    "offload/status.py",
)


@dataclass(frozen=True)
class BuildInfo:
    """One build of the core.

    `kind` is "compiled", "stale" (compiled from other sources than those that lie beside the libraries) or "pure";
    `python` the interpreter; `mypy` the compiler's version (None where it is not known); `why` how the kind was found.
    """

    kind: Literal["compiled", "stale", "pure"]
    python: str
    mypy: str | None
    why: str

    def __str__(self) -> str:
        compiler = f", mypy {self.mypy}" if self.mypy else ""
        return f"{self.kind} core ({self.python}{compiler}): {self.why}"


def build_info() -> BuildInfo:
    """Return which build of the core this process runs.

    Reads and hashes the sources of the core (about a millisecond). Raises nothing: a record that cannot be read makes
    the build stale.
    """
    from blockwright.core import SOURCE_ONLY  # settled when the core was imported

    found = build_in_place()
    return BuildInfo("pure", found.python, None, "BLOCKWRIGHT_PURE_PYTHON=1 is set") if SOURCE_ONLY else found


def build_in_place() -> BuildInfo:
    """Return which build lies beside the sources, whatever this process runs; needs no part of the package."""
    import platform
    from pathlib import Path

    package = Path(__file__).resolve().parent
    python = f"{platform.python_implementation()} {platform.python_version()}"
    libraries = library_paths(package)
    record = read_record(package)
    if not libraries:
        failure = record.get("failure")
        why = f"it could not be compiled here: {failure}" if failure else "no compiled libraries for this Python"
        return BuildInfo("pure", python, None, why)
    mypy = record.get("mypy")
    difference = _difference(record, package, [path.relative_to(package).as_posix() for path in libraries])
    if difference is not None:
        return BuildInfo("stale", python, mypy, f"{difference}; build again (make build)")
    how = record.get("how")
    how = "for development, not for speed (BLOCKWRIGHT_DEVELOPMENT=1)" if how == "development" else how
    return BuildInfo("compiled", python, mypy, f"{len(record['sources'])} sources as compiled, {how}")


def library_paths(package: Path) -> list[Path]:
    """Return the compiled libraries in a package that this Python would load, sorted."""
    import sysconfig

    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return sorted(path for folder in COMPILED for path in (package / folder).glob(f"*{suffix}"))


def source_digests(package: Path) -> dict[str, str]:
    """Return the SHA-256 of every source that the libraries are made from, by its path in the package."""
    import hashlib

    compiled = (path for folder in COMPILED for path in sorted((package / folder).glob("*.py")))
    paths = [*compiled, *(package / name for name in FOLLOWED)]
    return {
        path.relative_to(package).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
        if path.exists()
    }


def write_record(
    package: Path,
    sources: dict[str, str],
    *,
    libraries: list[str],
    mypy: str | None,
    failure: str | None = None,
    how: str | None = None,
) -> None:
    """Write the record of a package's libraries (given by their paths in it): their sources, or why there are none.

    `how` is "optimized", "profile-guided" or "development".
    """
    import json
    import platform

    record = {
        "python": platform.python_version(),
        "mypy": mypy,
        "failure": failure,
        "how": how,
        "libraries": libraries,
        "sources": sources,
    }
    _record_path(package).parent.mkdir(parents=True, exist_ok=True)
    _record_path(package).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def remove_libraries(package: Path, keep: Collection[str] = ()) -> None:
    """Delete the libraries in a package but those to keep (by their paths in it), and the record of them."""
    for path in library_paths(package):
        if path.relative_to(package).as_posix() not in keep:
            path.unlink()
    _record_path(package).unlink(missing_ok=True)


def _record_path(package: Path) -> Path:
    return package / COMPILED[0] / f"native.{sys.implementation.cache_tag}.json"


def read_record(package: Path) -> dict[str, Any]:
    """Return the record of a package's libraries; an empty one if there is none that can be read."""
    import json

    try:
        record = json.loads(_record_path(package).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _difference(record: dict[str, Any], package: Path, libraries: list[str]) -> str | None:
    if not record:
        return "the libraries have no record of their sources"
    if record.get("libraries") != libraries:
        return "the libraries are not those of the record"
    then, now = record.get("sources", {}), source_digests(package)
    changed = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
    return f"changed since compiled: {', '.join(changed)}" if changed else None
