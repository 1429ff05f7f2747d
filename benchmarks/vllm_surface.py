"""What vLLM's schedulers and connectors read of their manager: what `surface.json` records of a release, and its table.

``python benchmarks/vllm_surface.py`` prints what the installed release reads, or the vLLM in a folder, as data for
`impl/blockwright/engines/vllm/surface.json`; with ``--table`` the table of `docs/how-to/vllm.md`.
"""

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

from blockwright.engines.vllm import connectors, surface

_FACTORY = "distributed/kv_transfer/kv_connector/factory.py"
_SETTING = re.compile(r"\bcache_config\.([a-z_]+)")


def connectors_of(package: Path) -> dict[str, list[str]]:
    """Return what each connector of the vLLM in a folder reads, by the name that it is configured with."""
    tree = ast.parse((package / _FACTORY).read_text(encoding="utf-8"))
    homes: dict[str, Path | None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("register_connector") and len(node.args) == 3:
            name, module, _ = (ast.literal_eval(each) for each in node.args)
            homes[name] = connectors.file_of(package, module)
    for file in (package / _FACTORY).parent.glob("v1/*/connector.py"):  # some are named by their module alone
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            bases = map(ast.unparse, node.bases) if isinstance(node, ast.ClassDef) else ()
            if isinstance(node, ast.ClassDef) and "KVConnectorBase_V1" in bases and "Base" not in node.name:
                homes.setdefault(node.name, file)
    return {name: connectors.needs(package, [file]) for name, file in sorted(homes.items()) if file is not None}


def whole_surface_of(package: Path) -> dict[str, Any]:
    """Return beside `surface_of` the settings that vLLM's manager and scheduler read, and what its connectors read."""
    files = [package / "v1/engine/core.py", *(package / "v1/core").rglob("*.py")]
    settings = {name for file in files for name in _SETTING.findall(file.read_text(encoding="utf-8"))}
    return surface.surface_of(package) | {"settings": sorted(settings), "connectors": connectors_of(package)}


def table(releases: dict[str, Any]) -> str:
    """Return the connectors of some releases, as in `surface.json`, as a table of what they read."""
    names = sorted({name for surface in releases.values() for name in surface["connectors"]}, key=str.lower)
    lines = ["| connector | reads, beside `block_pool` | |", "|---|---|---|"]
    for name in names:
        found = {key: each["connectors"][name] for key, each in releases.items() if name in each["connectors"]}
        every = {each for own in found.values() for each in own}
        reads = sorted({each.split("(")[0] if each.startswith("pool.") else each for each in every})
        lacking = connectors.missing(reads)
        kept = [f"`{each}`" for each in lacking or reads if each != "manager.block_pool"]
        some = "" if len(found) == len(releases) else f" ({', '.join(found)})"
        lines.append(f"| {name}{some} | {', '.join(kept) or 'nothing'} | {'refused' if lacking else 'served'} |")
    return "\n".join(lines)


def guide_table() -> str:
    """Return the table of the guide, of what is recorded."""
    return table(surface.known())


def main() -> None:
    if "--table" in sys.argv:
        print(guide_table())
        return
    package, version = surface.release(Path(sys.argv[1])) if sys.argv[1:] else surface.installed()
    print(json.dumps({version: whole_surface_of(package)}, indent=1))


if __name__ == "__main__":
    main()
