"""The units of C that are compiled: what of mypyc's output goes together, after the changes of `rewrite.py`.

`setup.py` runs this file by its path. Calls within a unit can be inlined, and only units that have changed are compiled
again. The C of each top folder is one unit, the runtime's with the core's, and what is cold is one more, compiled with
less effort. For development each module is a unit, which costs up to 2 % of instructions in a decode step.
"""

import hashlib
import re
import runpy
from collections.abc import Sequence
from pathlib import Path

from setuptools import Extension

ROOT = Path(__file__).resolve().parents[1]
BUILD = Path("build")  # where mypyc writes

# Modules that show and check, or only say what others have to bring, are no faster for being optimized; nor are those
# whose calls come once per transfer, not once per block or step.
COLD = re.compile(
    r"___(explain|pool___check|steps___check|naive|interfaces|selfcheck|chain|chaincheck|moves|tiers___retained|chosen)\.c$"
)

rewritten = runpy.run_path(str(ROOT / "native/rewrite.py"), run_name="blockwright_rewrite")["rewritten"]


def put_into_units(
    extensions: Sequence[Extension], group: str, folders: Sequence[str], by_module: bool
) -> dict[str, list[Path]]:
    """Let extensions be compiled in units; return for each unit the files that it is made from.

    Args:
        extensions: mypyc's: the library, and for each module one that only leads to it.
        group: the library's name. folders: the compiled packages, that with the runtime first.
        by_module: each module is a unit.
    """
    library = next(each for each in extensions if len(each.sources) > 1)
    units = _units_of(library, group, folders, by_module)
    return units | _shared([each for each in extensions if each is not library])


def _units_of(library: Extension, group: str, folders: Sequence[str], by_module: bool) -> dict[str, list[Path]]:
    import mypyc

    written = sorted(map(Path, library.sources), key=lambda path: path.name.startswith("__native"))
    headers = "".join(path.read_text(encoding="utf-8") for path in sorted(BUILD.glob("blockwright/**/*.h")))
    runtime = [Path(mypyc.__file__).parent / "lib-rt" / "CPy.h", ROOT / "setup.py", *sorted(ROOT.glob("native/*.*"))]
    others = [name.replace("/", "___") for name in folders[1:]]

    def unit_of(path: Path) -> str:
        if by_module:
            return f"of_{path.stem.removeprefix('__native_')}" if "___" in path.name else folders[0]
        if COLD.search(path.name):
            return "cold"
        return next((name for name in others if f"blockwright___{name}___" in path.name), folders[0])

    units: dict[str, list[Path]] = {}
    for name in dict.fromkeys(map(unit_of, written)):
        parts = [_prepared(path) for path in written if unit_of(path) == name]
        called = set(re.findall(r"\bCPy(?:Def|Py)_\w+", "".join([path.read_text(encoding="utf-8") for path in parts])))
        # The headers declare every function: of these only what the unit uses has it compiled anew.
        declaration = re.compile(r"^extern .*?\b(CPy(?:Def|Py)_\w+)\(.*\);\n", flags=re.MULTILINE)
        used = declaration.sub(lambda found: found[0] if found[1] in called else "", headers)  # noqa: B023
        unit = BUILD / f"unit_{name}.c"
        lines = [f"// {hashlib.sha256(used.encode()).hexdigest()} of the declarations that it uses"]
        lines += ['#pragma GCC optimize "O1"'] if name == "cold" else []
        lines += [f'#include "{path.relative_to(BUILD).as_posix()}"' for path in parts]
        _write_changed(unit, "\n".join(lines) + "\n")
        units[str(unit)] = [*parts, *runtime, unit]
    library.sources = list(units)
    library.depends = [str(path) for parts in units.values() for path in parts]
    written_to = BUILD / Path(*group.split(".")).parent  # the group's headers
    library.include_dirs += [str(ROOT / "native"), str(written_to)]
    return units


def _shared(shims: Sequence[Extension]) -> dict[str, list[Path]]:
    """Make the extensions of a folder, which only lead to the library, from one source: each can import any of them."""
    units: dict[str, list[Path]] = {}
    for folder in sorted({Path(shim.sources[0]).parent for shim in shims}):
        those = [shim for shim in shims if Path(shim.sources[0]).parent == folder]
        unit = BUILD / f"shims_{'___'.join(folder.relative_to(BUILD).parts)}.c"
        parts = [Path(shim.sources[0]) for shim in those]
        lines = [
            f'#define PyInit___init__ PyInit___init__{at}\n#include "{path.relative_to(BUILD).as_posix()}"\n'
            "#undef PyInit___init__\n"
            for at, path in enumerate(parts)
        ]
        _write_changed(unit, "".join(lines))
        units[str(unit)] = [*parts, unit]
        for shim in those:
            shim.sources = [str(unit)]
    return units


def _prepared(path: Path) -> Path:
    """Return a copy of a module's C beside it, changed by `rewrite.py`; what is no module's C, as it is."""
    module = path.stem.removeprefix("__native_").replace("___", ".")
    source = ROOT / "impl" / f"{module.replace('.', '/')}.py"
    if not path.name.startswith("__native_") or not source.exists():
        return path
    twin = path.with_name(f"documented{path.name}")
    text = path.read_text(encoding="utf-8")
    _write_changed(twin, rewritten(text, source.read_text(encoding="utf-8"), module))
    return twin


def _write_changed(path: Path, text: str) -> None:
    """Write a file, unless it holds this text: what is made from it need not be made again then."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
