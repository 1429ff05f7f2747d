"""Build the compiled core; everything else about the package is in pyproject.toml.

mypyc compiles the modules of `blockwright.core`, `worker`, `paging` and `offload.tiers` as one group. The compiler sees
these, and of the rest of the package only what they import. Where compiling is not possible (no compiler, no mypy) the
package is built uncompiled and says so; the environment decides:

- `BLOCKWRIGHT_PURE_PYTHON=1`: build no extension (a `py3-none-any` wheel).
- `BLOCKWRIGHT_REQUIRE_COMPILED=1`: a core that cannot be compiled is an error.
- `BLOCKWRIGHT_DEVELOPMENT=1`: compile in less time, to slower code (a unit of C for each module, -O1); it is noted.
- `BLOCKWRIGHT_PGO=1`: compile twice with gcc, to faster code: first to code that counts what it does while
  `benchmarks.training` runs, then by these counts. Where that fails, it is an error.
"""

import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
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
units = runpy.run_path(str(ROOT / "native/units.py"), run_name="blockwright_units")
record = runpy.run_path(str(ROOT / PACKAGE / "_build.py"), run_name="blockwright_build_record")
switch = runpy.run_path(str(ROOT / PACKAGE / "_switch.py"))


def is_on(name: str) -> bool:
    """Return whether a variable of the environment turns something on; an unknown word ends the build."""
    try:
        return bool(switch["is_on"](name))
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None


PURE = is_on("BLOCKWRIGHT_PURE_PYTHON")
PROFILE_GUIDED = is_on("BLOCKWRIGHT_PGO")
DEVELOPMENT = is_on("BLOCKWRIGHT_DEVELOPMENT") and not PROFILE_GUIDED
HOW = "profile-guided" if PROFILE_GUIDED else "development" if DEVELOPMENT else "optimized"
REQUIRED = (is_on("BLOCKWRIGHT_REQUIRE_COMPILED") or PROFILE_GUIDED) and not PURE
EDITABLE = bool({"editable_wheel", "develop"} & set(sys.argv))
BUILDING = not {"egg_info", "dist_info", "sdist", "clean"} & set(sys.argv)
if BUILDING and sysconfig.get_config_var("Py_GIL_DISABLED"):  # nothing would check that one thread has a manager
    raise SystemExit("error: free-threaded CPython (3.13t, 3.14t) is not supported; install with an ordinary CPython")
# Calls within the library need not be open to replacement from outside: they are direct, or inlined. Integers wrap, as
# mypyc means them to; block_hash.py counts on it. Looking for warnings in what mypyc writes takes 2 % of the time.
GCC = ("-fno-semantic-interposition", "-fvisibility=hidden", "-fwrapv", "-w")
FLAGS = () if sys.platform == "win32" else GCC  # there integers wrap without being told
COUNTING = ("-fprofile-generate",)
COUNTED = ("-fprofile-use", "-fprofile-partial-training")  # what was not trained is compiled as without a profile
SOURCES = record["source_digests"](ROOT / PACKAGE)  # before they are read: one edited meanwhile is stale
MADE_FROM: dict[str, list[Path]] = {}  # of each unit of C, the files that it is made from


def fall_back(reason: str, *folders: Path) -> None:
    """Give up compiling: delete every library, so that no old one stays, and leave the reason; say so once."""
    if REQUIRED:
        asked = "BLOCKWRIGHT_PGO" if PROFILE_GUIDED else "BLOCKWRIGHT_REQUIRE_COMPILED"
        raise SystemExit(f"error: the core could not be compiled and {asked}=1 is set: {reason}")
    for folder in (*sorted(ROOT.glob("build/lib*/blockwright")), *folders):
        record["remove_libraries"](folder)
        record["write_record"](folder, SOURCES, libraries=[], mypy=None, failure=reason)
    print(f"warning: blockwright is built UNCOMPILED (it works, but much slower): {reason}", file=sys.stderr)


def translated(sources: list[str]) -> list[Extension]:
    """Translate sources to C. Raises SystemExit for a type error, ImportError without mypy.

    Of other modules the compiler sees those that count as sources. Otherwise it would go on through the packages that
    hold the compiled ones (`blockwright.offload` imports what moves bytes), to modules that need torch.
    """
    from mypyc.build import mypycify

    followed = ",".join(f"blockwright.{name.removesuffix('.py').replace('/', '.')}" for name in record["FOLLOWED"])
    options = f"""
        [mypy]
        strict = true
        mypy_path = {ROOT / "impl"}
        explicit_package_bases = true
        follow_imports = skip
        disallow_any_unimported = true
        [mypy-{followed}]
        follow_imports = normal
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "mypy.ini")
        file.write_text(textwrap.dedent(options), encoding="utf-8")
        extensions: list[Extension] = mypycify(
            [f"--config-file={file}", *sources],
            opt_level="1" if DEVELOPMENT else "2",
            debug_level="0",
            strip_asserts=not DEVELOPMENT,  # they state what callers within the core promise each other
            multi_file=True,
            group_name=GROUP,
        )
    MADE_FROM.update(units["put_into_units"](extensions, GROUP, record["COMPILED"], DEVELOPMENT))
    for extension in extensions:
        kept = [flag for flag in extension.extra_compile_args if flag != "-Werror"]
        extension.extra_compile_args = [*kept, *FLAGS]
        extension.optional = not REQUIRED
    return extensions


def core_extensions() -> list[Extension]:
    """Translate the core to C and return its extensions; none where there is nothing to compile or no way to."""
    if PURE or not BUILDING:
        for folder in [*ROOT.glob("build/lib/blockwright"), *([ROOT / PACKAGE] if EDITABLE else [])]:
            if PURE and BUILDING:
                record["remove_libraries"](folder)
        return []
    if EDITABLE and record["build_in_place"]().kind == "compiled":
        return []  # in place already, of these sources
    paths = [path for name in record["COMPILED"] for path in sorted((PACKAGE / name).glob("*.py"))]
    try:  # a package's own __init__ cannot be compiled: it would import itself for ever
        return translated([str(path) for path in paths if path.name != "__init__.py"])
    except ImportError as error:
        fall_back(f"mypyc: {error}", ROOT / PACKAGE)
    except SystemExit:  # by mypycify
        fall_back("mypyc refused the sources (its errors are above)", ROOT / PACKAGE)
    return []


class BuildCore(build_ext):
    """Build all libraries of the core or none, and record beside them what they were built from."""

    failure: str | None = None
    compiled: ClassVar[set[str]] = set()  # sources of which an object was made: extensions share theirs

    def build_extension(self, ext: Extension) -> None:
        """Build one library, of units that have changed, at the same time; after a first failure build no more."""
        if self.failure is not None:
            return
        compile_all = self.compiler.compile

        def is_changed(source: str, made: Path) -> bool:
            newest = max(path.stat().st_mtime for path in MADE_FROM.get(source, [Path(source)]))
            return self.force or not made.exists() or made.stat().st_mtime <= newest

        def compile_changed(sources: list[str], output_dir: str, **options: Any) -> list[str]:
            objects: list[str] = self.compiler.object_filenames(sources, output_dir=output_dir)
            changed = [source for source, made in zip(sources, objects, strict=True) if is_changed(source, Path(made))]
            changed = [source for source in changed if source not in self.compiled]
            self.compiled.update(changed)
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                calls = [pool.submit(compile_all, [each], output_dir=output_dir, **options) for each in changed]
            for call in calls:
                call.result()
            return objects

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
            for each in self.extensions:  # a wheel goes without names and frames of functions: 0.3 MB
                each.extra_link_args = [*each.extra_link_args, "-Wl,--strip-all"]
                each.extra_compile_args = [*each.extra_compile_args, "-fno-asynchronous-unwind-tables"]
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
        """Run the training on these libraries, which write their counts beside the objects. Raises SystemExit."""
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
        folders = [Path(self.build_lib) / "blockwright", *([ROOT / PACKAGE] if self.inplace else [])]
        if record["read_record"](folders[0]).get("how") != HOW:
            record["remove_libraries"](folders[0])  # compiled otherwise, though perhaps from these sources
            self.force = True
        super().run()
        if not self.extensions:
            return
        files = [Path(self.get_ext_filename(extension.name)) for extension in self.extensions]
        libraries = sorted(path.relative_to("blockwright").as_posix() for path in files)
        missing = [name for folder in folders for name in libraries if not (folder / name).exists()]
        if self.failure or missing:
            fall_back(self.failure or f"not built: {', '.join(missing)}", *folders)
            return
        from mypy.version import __version__ as mypy_version

        for folder in folders:
            record["remove_libraries"](folder, keep=libraries)
            record["write_record"](folder, SOURCES, libraries=libraries, mypy=str(mypy_version), how=HOW)


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
