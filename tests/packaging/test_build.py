"""Property: the package says truly which build of its core runs, and loads nothing heavy to do so.

How: `build_info` is asked in copies of the package whose sources, libraries and record are changed one at a time; the
running core is compared with where its modules came from; commands run in processes where torch, numpy and the kit are
replaced by modules that end the process when imported.
Not covered: that the two builds behave alike (conformance), and the building itself (test_setup.py).
"""

import ast
import importlib
import importlib.metadata
import inspect
import json
import os
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import blockwright
import blockwright.core
import blockwright.offload
import blockwright.paging
from blockwright import _build

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(_build.__file__).resolve().parent
NEED_TORCH = ("HostHandler", "HostPool")
SUFFIX: str = sysconfig.get_config_var("EXT_SUFFIX")


def environment(**changes: str) -> dict[str, str]:
    """The environment of this process without what selects the build, with changes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BLOCKWRIGHT_")}
    return kept | changes


def run_python(code: str, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=environment(**changes), capture_output=True, text=True, timeout=60)


def core_modules() -> list[str]:
    """The compiled modules by name (their sources, not what was compiled from them)."""
    names = [
        f"{folder.replace('/', '.')}.{path.stem}"
        for folder in _build.COMPILED
        for path in (PACKAGE / folder).glob("*.py")
        if path.stem != "__init__"
    ]
    return [f"blockwright.{name}" for name in names]


CORE_IMPORTS = "import blockwright; " + " ".join(f"import {name};" for name in core_modules())


# --- the build that runs ---


def test_kind_matches_where_the_core_comes_from() -> None:
    info = blockwright.build_info()
    origins = {importlib.import_module(name).__file__ or "" for name in core_modules()}
    suffix = SUFFIX if info.kind == "compiled" else ".py"
    assert origins
    assert [origin for origin in origins if not origin.endswith(suffix)] == []


def test_pure_python_is_obeyed() -> None:
    """Whatever lies beside the sources, the variable makes the core run from them."""
    prefixes = "('blockwright.core.', 'blockwright.worker.', 'blockwright.paging.', 'blockwright.offload.tiers.')"
    files_of_core = f"[module.__file__ for name, module in sys.modules.items() if name.startswith({prefixes})]"
    code = f"import sys; {CORE_IMPORTS} print(blockwright.build_info().kind, *{files_of_core})"
    done = run_python(code, BLOCKWRIGHT_PURE_PYTHON="1")
    kind, *files = done.stdout.split()
    assert kind == "pure"
    assert len(files) >= len(core_modules())
    assert [file for file in files if not file.endswith(".py")] == []


def test_kind_is_settled_when_the_core_is_imported() -> None:
    """Setting the variable afterwards changes nothing that runs, so it changes nothing that is said."""
    code = "import blockwright.core, os; {} print(blockwright.build_info())"
    before = run_python(code.format(""))
    after = run_python(code.format("os.environ['BLOCKWRIGHT_PURE_PYTHON'] = '1';"))
    assert before.stdout == after.stdout != ""


def test_info_is_one_line_and_names_the_interpreter() -> None:
    info = blockwright.build_info()
    assert "\n" not in str(info)
    assert str(info).startswith(f"{info.kind} core ({info.python}")
    assert info.why in str(info)


LATE = (
    *("asyncio", "difflib", "json", "logging", "multiprocessing", "pathlib", "platform", "subprocess", "sysconfig"),
    *("tempfile", "threading", "traceback", "unittest", "urllib.parse", "numpy", "torch", "rich", "blockwright.cli"),
    *("blockwright.observe", "blockwright.offload", "blockwright.paging", "blockwright.replay", "blockwright.worker"),
)
"""What only some programs need, most of it slower to import than all of this package that is compiled."""


@pytest.mark.parametrize("pure", ["0", "1"])
def test_importing_the_package_leaves_to_later_what_only_some_need(pure: str) -> None:
    # Without `site`, which has imported some of these itself where the package is installed from a checkout.
    code = "import sys; sys.path[:] = sys.argv[1:]; import blockwright; print(blockwright.__file__, *sys.modules)"
    command = [sys.executable, "-S", "-c", code, str(PACKAGE.parent), *sys.path]
    done = subprocess.run(
        command, env=environment(BLOCKWRIGHT_PURE_PYTHON=pure), capture_output=True, text=True, timeout=60, check=True
    )
    place, *loaded = done.stdout.split()
    assert Path(place).parent == PACKAGE
    assert sorted({*LATE} & {*loaded}) == []


# --- the record against the sources ---


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A small package with two sources, their libraries (empty files) and a true record of them."""
    core = tmp_path / "core"
    core.mkdir()
    (tmp_path / "_build.py").write_bytes(Path(_build.__file__).read_bytes())
    (tmp_path / "errors.py").write_text("LIMIT = 1\n")
    for name in ("a", "b"):
        (core / f"{name}.py").write_text(f"name = {name!r}\n")
        (core / f"{name}{SUFFIX}").touch()
    (tmp_path / "paging").mkdir()
    (tmp_path / "paging/c.py").touch()
    (tmp_path / f"paging/c{SUFFIX}").touch()
    libraries = [path.relative_to(tmp_path).as_posix() for path in _build.library_paths(tmp_path)]
    _build.write_record(tmp_path, _build.source_digests(tmp_path), libraries=libraries, mypy="1.2.3")
    return tmp_path


def ask(package: Path, **changes: str) -> tuple[str, str]:
    """The kind and the whole line that `build_info` of this copy gives in a process of its own."""
    code = "import runpy, sys; i = runpy.run_path(sys.argv[1])['build_info'](); print(i.kind); print(i)"
    done = run_python(code, str(package / "_build.py"), **changes)
    assert done.returncode == 0, done.stderr
    kind, line = done.stdout.splitlines()
    return kind, line


def test_record_of_these_sources_is_compiled(copy: Path) -> None:
    kind, line = ask(copy)
    assert kind == "compiled"
    assert "mypy 1.2.3" in line


def test_a_core_compiled_for_development_says_so(copy: Path) -> None:
    record = json.loads(record_of(copy).read_text())
    record_of(copy).write_text(json.dumps(record | {"how": "development"}))
    assert ask(copy)[0] == "compiled"
    assert "for development" in ask(copy)[1]


def test_variable_wins_over_libraries(copy: Path) -> None:
    assert ask(copy, BLOCKWRIGHT_PURE_PYTHON="1")[0] == "pure"


def record_of(package: Path) -> Path:
    return next((package / "core").glob("native.*.json"))


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "source edited": (lambda p: (p / "core/a.py").write_text("name = 'x'\n"), "core/a.py"),
    "source added": (lambda p: (p / "core/c.py").touch(), "core/c.py"),
    "source removed": (lambda p: (p / "core/b.py").unlink(), "core/b.py"),
    "followed module edited": (lambda p: (p / "errors.py").write_text("LIMIT = 2\n"), "errors.py"),
    "library lost": (lambda p: (p / f"core/a{SUFFIX}").unlink(), "not those of the record"),
    "source of the other folder edited": (lambda p: (p / "paging/c.py").write_text("x = 1"), "paging/c.py"),
    "library of the other folder lost": (lambda p: (p / f"paging/c{SUFFIX}").unlink(), "not those of the record"),
    "library left over": (lambda p: (p / f"core/z{SUFFIX}").touch(), "not those of the record"),
    "record lost": (lambda p: record_of(p).unlink(), "no record"),
    "record cut": (lambda p: record_of(p).write_text(record_of(p).read_text()[:40]), "no record"),
    "record of another shape": (lambda p: record_of(p).write_text("[]"), "no record"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_difference_makes_the_build_stale(copy: Path, change: str) -> None:
    act, expected = CHANGES[change]
    act(copy)
    kind, line = ask(copy)
    assert kind == "stale"
    assert expected in line


def test_unrelated_module_makes_nothing_stale(copy: Path) -> None:
    (copy / "cli.py").write_text("x = 1\n")
    assert ask(copy)[0] == "compiled"


def test_without_libraries_the_build_is_pure_and_says_why(copy: Path) -> None:
    _build.remove_libraries(copy)
    assert sorted(path.name for path in (copy / "core").iterdir()) == ["a.py", "b.py"]
    assert [path.name for path in (copy / "paging").iterdir()] == ["c.py"]
    assert ask(copy)[0] == "pure"
    _build.write_record(copy, {}, libraries=[], mypy=None, failure="no compiler here")
    kind, line = ask(copy)
    assert kind == "pure"
    assert "no compiler here" in line


def test_every_module_that_the_core_imports_is_followed() -> None:
    """A constant of an uncompiled module may be compiled in, so a change of it must count as one of the core."""
    compiled = tuple(f"blockwright.{folder.replace('/', '.')}." for folder in _build.COMPILED)
    imported = set()
    paths = [path for folder in _build.COMPILED for path in (PACKAGE / folder).glob("*.py")]
    for path in [path for path in paths if path.name != "__init__.py"]:  # a package's own is not compiled
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            imported |= {name for name in names if name.startswith("blockwright.") and not name.startswith(compiled)}
    followed = {f"blockwright.{name.removesuffix('.py').replace('/', '.')}" for name in _build.FOLLOWED}
    assert imported <= followed


def test_public_names_have_their_docstrings_in_either_build() -> None:
    lacking = []
    for public in (blockwright, blockwright.offload, blockwright.paging):
        for name in public.__all__:
            found = getattr(public, name, None) if name not in NEED_TORCH else None
            if not isinstance(found, type):
                continue
            module = ast.parse(Path(PACKAGE.parent, *found.__module__.split(".")).with_suffix(".py").read_text())
            node = next(each for each in module.body if isinstance(each, ast.ClassDef) and each.name == found.__name__)
            wanted = {found.__name__: (ast.get_docstring(node), found)}
            for each in node.body:
                if isinstance(each, ast.FunctionDef) and not each.name.startswith("_") and each.name in vars(found):
                    said = ast.get_docstring(each)
                    wanted.setdefault(f"{found.__name__}.{each.name}", (said, getattr(found, each.name)))
            lacking += [at for at, (said, of) in wanted.items() if said not in (None, inspect.getdoc(of))]
    assert lacking == []
    made = blockwright.KVCacheManager
    wanted_by = [
        each
        for each in inspect.signature(
            made if blockwright.build_info().kind == "compiled" else made.__init__
        ).parameters.values()
        if each.name != "self"
    ]
    assert [each.name for each in wanted_by[:3]] == ["kv_cache_config", "max_model_len", "enable_caching"]
    assert {each.kind for each in wanted_by[3:]} == {inspect.Parameter.KEYWORD_ONLY}


# --- the distribution ---


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == blockwright.__version__ == importlib.metadata.version("blockwright")


def test_every_folder_with_code_is_a_package() -> None:
    """A folder without __init__.py would work here and be missing from the wheel."""
    roots = ("spec/blockwright_spec", "impl/blockwright", "conformance/blockwright_conformance")
    folders = {path.parent for root in roots for path in (ROOT / root).rglob("*.py")}
    lab = {path.parent for path in (ROOT / "conformance/blockwright_lab").rglob("*.py")}
    assert {ROOT / root for root in roots} <= folders
    assert [folder for folder in sorted(folders | lab) if not (folder / "__init__.py").exists()] == []
    assert [root for root in roots if not (ROOT / root / "py.typed").exists()] == []


def test_every_file_of_data_is_named_for_the_wheel() -> None:
    """A file that no pattern names would be read here and be missing from the wheel."""
    kit = ROOT / "conformance/blockwright_conformance"
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    named = {path for pattern in settings["package-data"][kit.name] for path in kit.glob(pattern)}
    assert named == {path for path in kit.rglob("*") if path.suffix in (".toml", ".jsonl")}


def test_commands_are_registered_and_load() -> None:
    found = {entry.name: entry for entry in importlib.metadata.entry_points(group="blockwright.commands")}
    assert {"view", "conform", "replay"} <= found.keys()
    assert all(callable(entry.load()) for entry in found.values())


# --- the command, and what it loads ---

COMMAND = "import sys; from blockwright.cli import main; sys.exit(main(sys.argv[1:]))"


def test_version_names_version_and_build() -> None:
    for changes in ({}, {"BLOCKWRIGHT_PURE_PYTHON": "1"}):
        done = run_python(COMMAND, "--version", **changes)
        kind = "pure" if changes else run_python("import blockwright as b; print(b.build_info().kind)").stdout.strip()
        assert (done.returncode, done.stderr) == (0, "")
        assert f"{blockwright.__version__}" in done.stdout
        assert f"{kind} core" in done.stdout
        assert done.stdout.count("\n") == 1


@pytest.fixture
def decoys(tmp_path: Path) -> str:
    """A search path on which importing torch, numpy, the spec or the kit ends the process with their name."""
    for name in ("torch", "numpy", "blockwright_spec", "blockwright_conformance"):
        (tmp_path / f"{name}.py").write_text(f"import os\nprint('loaded: {name}', flush=True)\nos._exit(99)\n")
    return str(tmp_path)


def test_decoys_are_seen(decoys: str) -> None:
    for name in ("torch", "numpy", "blockwright_spec", "blockwright_conformance"):
        done = run_python(f"import {name}", PYTHONPATH=decoys)
        assert (done.returncode, done.stdout.strip()) == (99, f"loaded: {name}")


@pytest.mark.parametrize("pure", ["0", "1"])
def test_package_and_core_load_neither_torch_nor_the_kit(decoys: str, pure: str) -> None:
    names = "[getattr(blockwright, name) for name in blockwright.__all__]"
    done = run_python(f"{CORE_IMPORTS} {names}", PYTHONPATH=decoys, BLOCKWRIGHT_PURE_PYTHON=pure)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("command", ["replay", "view"])
def test_own_commands_start_without_torch_and_the_kit(decoys: str, command: str) -> None:
    done = run_python(COMMAND, command, "--help", PYTHONPATH=decoys)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("conform", "--help")])
def test_command_starts_without_torch(decoys: str, arguments: tuple[str, ...]) -> None:
    """These may load the kit, which brings its own command."""
    for path in Path(decoys).glob("*.py"):
        if path.stem != "torch":
            path.unlink()
    done = run_python(COMMAND, *arguments, PYTHONPATH=decoys)
    assert done.returncode == 0, done.stdout + done.stderr
