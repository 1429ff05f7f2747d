"""Build the compiled core; everything else about the package stands in pyproject.toml.

The modules of `blockwright.core`, `worker`, `paging` and `offload.tiers` are compiled by mypyc as one group. The
compiler sees these, and of the rest of the package only what they import: whatever else may be installed changes
nothing. Where compiling is not possible (no compiler, no mypy) the package is built uncompiled and says so; the
environment decides:

- `BLOCKWRIGHT_PURE_PYTHON=1`: build no extension (a `py3-none-any` wheel).
- `BLOCKWRIGHT_REQUIRE_COMPILED=1`: a core that cannot be compiled is an error.
- `BLOCKWRIGHT_DEVELOPMENT=1`: compile in less time, to slower code (a unit of C for each module, -O1); it is noted.
- `BLOCKWRIGHT_PGO=1`: compile twice with gcc, to faster code: first to code that counts what it does while
  `benchmarks.training` runs, then by these counts. Where that fails, it is an error.
"""

import hashlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError, CompileError

ROOT = Path(__file__).resolve().parent
PACKAGE = Path("impl/blockwright")
GROUP = "blockwright.core.native"
BUILD = Path("build")  # where mypyc writes


def is_on(name: str) -> bool:
    """Return whether a variable of the environment turns something on; an unknown word ends the build."""
    try:
        return bool(runpy.run_path(str(ROOT / "impl/blockwright/_switch.py"))["is_on"](name))
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None


PROFILE_GUIDED = is_on("BLOCKWRIGHT_PGO")
DEVELOPMENT = is_on("BLOCKWRIGHT_DEVELOPMENT") and not PROFILE_GUIDED
HOW = "profile-guided" if PROFILE_GUIDED else "development" if DEVELOPMENT else "optimized"
OPTIMIZATION = "1" if DEVELOPMENT else "2"
# Calls within the library need not be open to replacement from outside: they are direct, or inlined. Integers wrap, as
# mypyc means them to; block_hash.py counts on it. Looking for warnings in what mypyc writes takes 2 % of the time.
GCC = ("-fno-semantic-interposition", "-fvisibility=hidden", "-fwrapv", "-w")
FLAGS = () if sys.platform == "win32" else GCC  # there integers wrap without being told
COUNTING = ("-fprofile-generate",)
COUNTED = ("-fprofile-use", "-fprofile-partial-training")  # what was not trained is compiled as without a profile
# Modules that show and check, or only say what others have to bring, are no faster for being optimized; nor are those
# whose calls come once per transfer, not once per block or step.
COLD = re.compile(
    r"___(explain|pool___check|steps___check|naive|interfaces|selfcheck|chain|chaincheck|moves|tiers___retained|chosen)\.c$"
)
UNITS: dict[str, list[Path]] = {}  # of each unit of C, the files that it is made from
INTERPRETED = {"__init__.py"}  # a package's own __init__ cannot be compiled: it would import itself for ever
PURE = is_on("BLOCKWRIGHT_PURE_PYTHON")
REQUIRED = (is_on("BLOCKWRIGHT_REQUIRE_COMPILED") or PROFILE_GUIDED) and not PURE
EDITABLE = "editable_wheel" in sys.argv or "develop" in sys.argv
BUILDING = not {"egg_info", "dist_info", "sdist", "clean"} & set(sys.argv)

rewrite = runpy.run_path(str(ROOT / "native/rewrite.py"), run_name="blockwright_rewrite")
record = runpy.run_path(str(ROOT / "impl/blockwright/_build.py"), run_name="blockwright_build_record")
SOURCES = record["source_digests"](ROOT / "impl/blockwright")  # before they are read: one edited meanwhile is stale


def build_folders() -> list[Path]:
    """Return the packages under build/ that may hold libraries of an earlier build."""
    return sorted(ROOT.glob("build/lib*/blockwright"))


def fall_back(reason: str, folders: list[Path]) -> None:
    """Give up compiling: delete every library, so that no old one stays, and leave the reason; say so once."""
    if REQUIRED:
        asked = "BLOCKWRIGHT_PGO" if PROFILE_GUIDED else "BLOCKWRIGHT_REQUIRE_COMPILED"
        raise SystemExit(f"error: the core could not be compiled and {asked}=1 is set: {reason}")
    for folder in folders:
        record["remove_libraries"](folder)
        record["write_record"](folder, SOURCES, libraries=[], mypy=None, failure=reason)
    print(f"warning: blockwright is built UNCOMPILED (it works, but much slower): {reason}", file=sys.stderr)


def mypy_version() -> str:
    """Return the version of the compiler."""
    from mypy.version import __version__

    return str(__version__)


def compiler_options() -> str:
    """Return mypy's configuration for the compiler: strict, and blind to all modules but those that count as sources.

    Otherwise mypy would go on through the packages that hold the compiled ones (`blockwright.offload` imports what
    moves bytes), to modules whose types only pass where torch is installed.
    """
    followed = ",".join(f"blockwright.{name.removesuffix('.py').replace('/', '.')}" for name in record["FOLLOWED"])
    return f"""
        [mypy]
        strict = true
        mypy_path = {ROOT / "impl"}
        explicit_package_bases = true
        follow_imports = skip
        disallow_any_unimported = true
        [mypy-{followed}]
        follow_imports = normal
    """


def translated(sources: list[str]) -> list[Extension]:
    """Translate sources to C.

    Raises:
        SystemExit: a source has a type error.
        ImportError: mypy is not installed.
    """
    from mypyc.build import mypycify

    with tempfile.TemporaryDirectory() as folder:
        options = Path(folder, "mypy.ini")
        options.write_text(textwrap.dedent(compiler_options()), encoding="utf-8")
        extensions: list[Extension] = mypycify(
            [f"--config-file={options}", *sources],
            opt_level=OPTIMIZATION,
            debug_level="0",
            strip_asserts=not DEVELOPMENT,  # they state what callers within the core promise each other
            multi_file=True,
            group_name=GROUP,
        )
    put_into_units(next(each for each in extensions if len(each.sources) > 1))  # the library; the others only name it
    share_shims([each for each in extensions if len(each.sources) == 1])
    return extensions


def put_into_units(library: Extension) -> None:
    """Have the C of each top folder compiled as one unit, the runtime's with the core's; what is cold with less effort.

    Calls within the core can then be inlined, as in one unit for all, which would take more memory; and only the
    units that have changed are compiled again: for development these are single modules (that costs up to 2 % of
    instructions in a decode step). What a unit is made from goes to `UNITS`. Of the headers, which declare every
    function of every module, that is only what it uses of them, so that a new function has no other unit compiled.
    """
    import mypyc

    written = sorted(map(Path, library.sources), key=lambda path: path.name.startswith("__native"))
    runtime = [
        Path(mypyc.__file__).parent / "lib-rt" / "CPy.h",
        ROOT / "setup.py",
        *sorted((ROOT / "native").glob("*.*")),
    ]
    headers = [path.read_text(encoding="utf-8") for path in sorted(BUILD.glob("blockwright/**/*.h"))]
    first = record["COMPILED"][0]
    others = [name.replace("/", "___") for name in record["COMPILED"] if not name.startswith(first)]
    unit_of = {
        path: next((name for name in others if f"blockwright___{name}___" in path.name), first) for path in written
    }
    if DEVELOPMENT:
        unit_of = {
            path: f"of_{path.stem.removeprefix('__native_')}" if "___" in path.name else first for path in written
        }
    else:
        unit_of |= dict.fromkeys(filter(lambda path: COLD.search(path.name), written), "cold")
    library.sources = []
    for name in dict.fromkeys(unit_of.values()):
        parts = [prepared(path) for path in written if unit_of[path] == name]
        text = "".join([path.read_text(encoding="utf-8") for path in parts])
        called = set(re.findall(r"\bCPy(?:Def|Py)_\w+", text))
        seen = re.sub(
            r"^extern .*?\b(CPy(?:Def|Py)_\w+)\(.*\);\n",
            lambda found: found[0] if found[1] in called else "",  # noqa: B023
            "".join(headers),
            flags=re.MULTILINE,
        )
        unit = BUILD / f"unit_{name}.c"
        lines = [f"// {hashlib.sha256(seen.encode()).hexdigest()} of the declarations that it uses"]
        lines += ['#pragma GCC optimize "O1"'] if name == "cold" else []
        lines += [f'#include "{path.relative_to(BUILD).as_posix()}"' for path in parts]
        write_changed(unit, "\n".join(lines) + "\n")
        library.sources.append(str(unit))
        UNITS[str(unit)] = [*parts, *runtime, unit]
    library.depends = [str(path) for parts in UNITS.values() for path in parts]
    library.include_dirs.append(str(ROOT / "native"))
    library.include_dirs.append(str(BUILD / Path(*GROUP.split(".")).parent))  # where mypyc writes the group's headers


def share_shims(shims: list[Extension]) -> None:
    """Make the extensions of a folder, which only lead to their modules in the library, from one source.

    Each can then import any of the folder; they are compiled once instead of each, which took a tenth of the time.
    """
    for folder in sorted({Path(shim.sources[0]).parent for shim in shims}):
        those = [shim for shim in shims if Path(shim.sources[0]).parent == folder]
        unit = BUILD / f"shims_{'___'.join(folder.relative_to(BUILD).parts)}.c"
        parts = [Path(shim.sources[0]) for shim in those]
        lines = [
            f'#define PyInit___init__ PyInit___init__{at}\n#include "{path.relative_to(BUILD).as_posix()}"\n'
            "#undef PyInit___init__\n"
            for at, path in enumerate(parts)
        ]
        write_changed(unit, "".join(lines))
        UNITS[str(unit)] = [*parts, unit]
        for shim in those:
            shim.sources = [str(unit)]


def write_changed(path: Path, text: str) -> None:
    """Write a file, unless it holds this text: what is made from it need not be made again then."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def prepared(path: Path) -> Path:
    """Return a copy of a module's C beside it, changed by `native/rewrite.py`; what is no module's C, as it is."""
    module = path.stem.removeprefix("__native_").replace("___", ".")
    source = ROOT / "impl" / f"{module.replace('.', '/')}.py"
    if not path.name.startswith("__native_") or not source.exists():
        return path
    twin = path.with_name(f"documented{path.name}")
    text = path.read_text(encoding="utf-8")
    write_changed(twin, rewrite["rewritten"](text, source.read_text(encoding="utf-8"), module))
    return twin


def core_extensions() -> list[Extension]:
    """Translate the core to C and return its extensions; none where there is nothing to compile or no way to."""
    folders = [PACKAGE / name for name in record["COMPILED"]]
    sources = [str(path) for folder in folders for path in sorted(folder.glob("*.py")) if path.name not in INTERPRETED]
    if EDITABLE and not PURE and record["build_in_place"]().kind == "compiled":
        return []  # in place already, of these sources
    if PURE or not BUILDING or not sources:
        if PURE and BUILDING:
            for folder in [*ROOT.glob("build/lib/blockwright"), *([ROOT / PACKAGE] if EDITABLE else [])]:
                record["remove_libraries"](folder)
        return []
    try:
        extensions = translated(sources)
    except (ImportError, SystemExit) as error:  # mypycify exits on a type error
        reason = (
            f"mypyc: {error}" if isinstance(error, ImportError) else "mypyc refused the sources (its errors are above)"
        )
        fall_back(reason, [*build_folders(), ROOT / PACKAGE])
        return []
    for extension in extensions:
        kept = [flag for flag in extension.extra_compile_args if flag != "-Werror"]
        extension.extra_compile_args = [*kept, *FLAGS]
        extension.optional = not REQUIRED
    return extensions


def up_to_date(made: Path, sources: list[Path]) -> bool:
    """Return whether a file is newer than all that it is made from."""
    return made.exists() and made.stat().st_mtime > max(path.stat().st_mtime for path in sources)


class BuildCore(build_ext):
    """Build all libraries of the core or none, and record beside them what they were built from."""

    failure: str | None = None
    compiled: ClassVar[set[str]] = set()  # sources of which an object was made: extensions share theirs

    def build_extension(self, ext: Extension) -> None:
        """Build one library; after a first failure build no more."""
        if self.failure is not None:
            return
        compile_all = self.compiler.compile

        def compile_changed(sources: list[str], output_dir: str, **options: Any) -> list[str]:
            """Compile the units that have changed, at the same time."""
            objects: list[str] = self.compiler.object_filenames(sources, output_dir=output_dir)
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                for source, made in zip(sources, objects, strict=True):
                    changed = self.force or not up_to_date(Path(made), UNITS.get(source, [Path(source)]))
                    if changed and source not in self.compiled:
                        self.compiled.add(source)
                        calls.append(pool.submit(compile_all, [source], output_dir=output_dir, **options))
                for call in calls:
                    call.result()
            return objects

        calls: list[Any] = []
        self.compiler.compile = compile_changed
        try:
            super().build_extension(ext)
        except (BaseError, CCompilerError, CompileError, OSError) as error:
            self.failure = textwrap.shorten(f"the C compiler failed: {error}", 100)
            if REQUIRED:
                raise
        finally:
            self.compiler.compile = compile_all

    def build_extensions(self) -> None:
        """Build all libraries; for a profile-guided core first one that counts what it does in the training."""
        if PROFILE_GUIDED:
            self.require_gcc()
            self.force = True
            (library,) = [each for each in self.extensions if each.name.endswith("__mypyc")]  # the others lead to it
            flags = library.extra_compile_args
            library.extra_compile_args, library.extra_link_args = [*flags, *COUNTING], [*COUNTING]
            super().build_extensions()
            self.train()
            library.extra_compile_args, library.extra_link_args = [*flags, *COUNTED], []
            self.compiled.clear()
        if sys.platform == "linux" and not self.inplace:
            for each in self.extensions:  # a wheel goes without names of its own functions: 0.14 MB that few profile by
                each.extra_link_args = [*each.extra_link_args, "-Wl,--strip-all"]
        super().build_extensions()

    def require_gcc(self) -> None:
        """Refuse other compilers, whose counts have to be merged by a tool of their own. Raises SystemExit."""
        asked = [*getattr(self.compiler, "compiler_so", ["cl"]), "-dM", "-E", "-xc", os.devnull]
        try:
            macros = subprocess.run(asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
        except OSError:
            macros = ""
        if "__GNUC__" not in macros or "__clang__" in macros:
            raise SystemExit(f"error: BLOCKWRIGHT_PGO=1 needs gcc, and {asked[0]} is not: set CC=gcc, or leave it out")

    def train(self) -> None:
        """Run the training in a copy of the package with these libraries, which write their counts beside the objects.

        Raises SystemExit if it fails, or leaves no counts.
        """
        for path in Path(self.build_temp).rglob("*.gcda"):
            path.unlink()
        with tempfile.TemporaryDirectory() as folder:
            for source in (ROOT / PACKAGE.parent, self.build_lib):
                shutil.copytree(source, folder, dirs_exist_ok=True)
            shutil.copytree(ROOT / "benchmarks", Path(folder) / "benchmarks")
            kept = {name: value for name, value in os.environ.items() if not name.startswith("BLOCKWRIGHT_")}
            kept["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, kept.get("PYTHONPATH")]))
            done = subprocess.run([sys.executable, "-m", "benchmarks.training"], env=kept)
        if done.returncode or not any(Path(self.build_temp).rglob("*.gcda")):
            raise SystemExit("error: BLOCKWRIGHT_PGO=1: the training failed (see above) or left no counts")

    def run(self) -> None:
        """Build, then prune what does not belong, and write the record."""
        folders = [Path(self.build_lib) / "blockwright"]
        if record["read_record"](folders[0]).get("how") != HOW:
            record["remove_libraries"](folders[0])  # compiled otherwise, though perhaps from these sources
            self.force = True
        super().run()
        if not self.extensions:
            return
        if self.inplace:
            folders.append(ROOT / PACKAGE)
        files = [Path(self.get_ext_filename(extension.name)) for extension in self.extensions]
        libraries = sorted(path.relative_to("blockwright").as_posix() for path in files)
        missing = [name for folder in folders for name in libraries if not (folder / name).exists()]
        if missing and self.failure is None:
            self.failure = f"not built: {', '.join(missing)}"
        if self.failure is not None:
            fall_back(self.failure, [*build_folders(), *folders])
            return
        for folder in folders:
            record["remove_libraries"](folder, keep=libraries)
            record["write_record"](folder, SOURCES, libraries=libraries, mypy=mypy_version(), how=HOW)


def readme() -> str:
    """Return README.md for an index: its links lead into the repository, or are plain words where that has no URL.

    The URL is that of `Repository` in pyproject.toml (project.urls). Pictures are of the repository, too.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    base, text = project.get("urls", {}).get("Repository"), (ROOT / "README.md").read_text(encoding="utf-8")
    if base is None:
        text = re.sub(r"<picture>.*?</picture>\n*", "", text, flags=re.DOTALL)
        return re.sub(r"\[([^\]]+)\]\((?!\w+:)([^)#]+)(?:#[^)]*)?\)", r"\1 (`\2`)", text)
    text = re.sub(r'(src|srcset)="(?!\w+:)', rf'\1="{base}/raw/main/', text)
    return re.sub(r"\]\((?!\w+:)(?=[^#])", f"]({base}/blob/main/", text)


setup(
    ext_modules=core_extensions(),
    cmdclass={"build_ext": BuildCore},
    long_description=readme(),
    long_description_content_type="text/markdown",
)
