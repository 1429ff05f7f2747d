"""Property: a build leaves either all libraries of the core, with a true record, or none; and says so once.

How: a core of two modules, and two beside it, is built in place in a scratch copy of the real setup.py, over and over,
with sources and compiler changed in between: it compiles, is found up to date, fails (compiler, type error, training),
and is built uncompiled. The package that holds one of them imports a module that has a type error, which is not
compiled and so must not matter.
Not covered: isolated builds (`make wheel-check`) and other platforms; the real core (the other tests run on it).
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from blockwright._switch import is_on

ROOT = Path(__file__).resolve().parents[2]
COMPILER = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
ONE_BUILD = is_on("BLOCKWRIGHT_PURE_PYTHON")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(COMPILER is None, reason="needs a C compiler"),
    pytest.mark.skipif(ONE_BUILD, reason="independent of the build that runs: done with the compiled one"),
]

ONE = "def double(n: int) -> int:\n    return n * 2\n"
TWO = "from blockwright.core.one import double\n\n\ndef fourfold(n: int) -> int:\n    return double(double(n))\n"
LOW = "LIMIT = 3\n"
OUTSIDE = "from blockwright.offload.mover import move as move\n"
MOVER = 'def move() -> int:\n    return "the types of a package that is not there"\n'
TRAINING = "from blockwright.core.two import fourfold\n\nfourfold(1)\n"
ABOVE = "from blockwright.core.two import fourfold\n\n\ndef eightfold(n: int) -> int:\n    return 2 * fourfold(n)\n"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a build needs, with two small modules for a core."""
    top = tmp_path_factory.mktemp("scratch")
    shutil.copytree(ROOT / "native", top / "native")
    for name in ("setup.py", "pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, top / name)
    (top / "README.md").write_text("# Scratch\n")
    package = top / "impl/blockwright"
    for folder in ("core", "paging", "offload/tiers"):
        (package / folder).mkdir(parents=True)
    (package / "offload/__init__.py").write_text(OUTSIDE)
    (package / "offload/mover.py").write_text(MOVER)
    (package / "offload/tiers/__init__.py").touch()
    (package / "offload/tiers/low.py").write_text(LOW)
    (package / "paging/__init__.py").touch()
    (package / "paging/above.py").write_text(ABOVE)
    (top / "benchmarks").mkdir()
    (top / "benchmarks/__init__.py").touch()
    (top / "benchmarks/training.py").write_text(TRAINING)
    for name in ("_build.py", "_switch.py", "core/__init__.py"):
        shutil.copy(ROOT / "impl/blockwright" / name, package / name)
    (package / "__init__.py").write_text("from blockwright._build import build_info as build_info\n")
    for root, name in (("spec", "blockwright_spec"), ("conformance", "blockwright_conformance")):
        (top / root / name).mkdir(parents=True)
        (top / root / name / "__init__.py").touch()
    (package / "core/one.py").write_text(ONE)
    (package / "core/two.py").write_text(TWO)
    return top


def build(top: Path, *command: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run setup.py, by default a build in place."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("BLOCKWRIGHT_", "CC"))} | changes
    arguments = [sys.executable, "setup.py", *(command or ("build_ext", "--inplace"))]
    return subprocess.run(arguments, cwd=top, env=env, capture_output=True, text=True, timeout=300)


def libraries(top: Path) -> list[str]:
    """The libraries in the source tree and in every build tree."""
    packages = [top / "impl/blockwright", *top.glob("build/lib*/blockwright")]
    return sorted(str(path.relative_to(top)) for package in packages for path in package.rglob("*.so"))


def running(top: Path) -> tuple[str, str]:
    """The kind of build that runs there, and whether its modules come from libraries."""
    code = (
        "import blockwright, blockwright.core.two as t; print(blockwright.build_info().kind, t.__file__, t.fourfold(1))"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("BLOCKWRIGHT_")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=top / "impl", env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    kind, file, result = done.stdout.split()
    assert Path(file).is_relative_to(top)
    assert result == "4"
    return kind, Path(file).suffix


def test_build_is_all_or_nothing(scratch: Path) -> None:
    two = scratch / "impl/blockwright/core/two.py"
    no_compiler = {"CC": "/bin/false"}

    done = build(scratch)
    assert done.returncode == 0, done.stderr
    assert len(libraries(scratch)) == 10  # four modules and their shared library, here and in the build tree
    assert running(scratch) == ("compiled", ".so")

    # A new function is compiled with its own module's unit, and with the first, which lists all constants.
    objects = {path: path.stat().st_mtime_ns for path in scratch.glob("build/temp*/build/*")}
    above = scratch / "impl/blockwright/paging/above.py"
    above.write_text(ABOVE + "\n\ndef sixteenfold(n: int) -> int:\n    return 2 * eightfold(n)\n")
    assert build(scratch).returncode == 0
    assert running(scratch) == ("compiled", ".so")
    changed = {path.stem for path, made in objects.items() if path.stat().st_mtime_ns != made}
    assert "unit_paging" in changed <= {"unit_core", "unit_paging"}

    # A changed source: the old library would still be loaded, and is called stale.
    two.write_text(TWO + "\n\nLIMIT = 1\n")
    assert running(scratch) == ("stale", ".so")

    # Required, it must compile; an error changes nothing.
    done = build(scratch, **no_compiler, BLOCKWRIGHT_REQUIRE_COMPILED="1")
    assert done.returncode != 0
    assert running(scratch) == ("stale", ".so")

    # Not required: built uncompiled, said once, and no old library stays.
    done = build(scratch, **no_compiler)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("UNCOMPILED") == 1
    assert libraries(scratch) == []
    assert running(scratch) == ("pure", ".py")

    assert build(scratch).returncode == 0
    assert running(scratch) == ("compiled", ".so")

    # A type error is found before the C compiler runs.
    two.write_text(TWO + '\n\nLIMIT: int = "many"\n')
    done = build(scratch, BLOCKWRIGHT_REQUIRE_COMPILED="1")
    assert done.returncode != 0
    assert "two.py" in done.stdout + done.stderr
    done = build(scratch)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("UNCOMPILED") == 1
    assert libraries(scratch) == []
    assert running(scratch) == ("pure", ".py")

    # A module that is gone leaves no library behind.
    two.write_text(TWO)
    three = scratch / "impl/blockwright/core/three.py"
    three.write_text(ONE)
    assert build(scratch).returncode == 0
    assert len(libraries(scratch)) == 12
    three.unlink()
    assert build(scratch).returncode == 0
    assert len(libraries(scratch)) == 10
    assert running(scratch) == ("compiled", ".so")


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("gcc"), reason="needs gcc")
def test_a_profile_guided_core_is_trained_or_an_error(scratch: Path) -> None:
    assert build(scratch).returncode == 0
    (record,) = scratch.glob("impl/blockwright/core/native.*.json")

    def how() -> str:
        return str(json.loads(record.read_text())["how"])

    assert (how(), running(scratch)) == ("optimized", ("compiled", ".so"))
    done = build(scratch, BLOCKWRIGHT_PGO="1", CC="gcc")
    assert done.returncode == 0, done.stderr
    assert (how(), running(scratch)) == ("profile-guided", ("compiled", ".so"))
    counts = {path.name for path in scratch.glob("build/temp*/build/*.gcda")}
    assert {"unit_core.gcda", "unit_paging.gcda"} <= counts

    # Built otherwise, from the same sources, it is compiled again.
    assert build(scratch).returncode == 0
    assert (how(), running(scratch)) == ("optimized", ("compiled", ".so"))

    # No training, or another compiler: an error, and what was there stays.
    training = scratch / "benchmarks/training.py"
    training.write_text("raise SystemExit(3)\n")
    failed = build(scratch, BLOCKWRIGHT_PGO="1", CC="gcc")
    refused = build(scratch, BLOCKWRIGHT_PGO="1", CC="/bin/false")
    training.write_text(TRAINING)
    assert failed.returncode != 0
    assert "the training failed" in failed.stderr
    assert refused.returncode != 0
    assert "needs gcc" in refused.stderr
    assert (how(), running(scratch)) == ("optimized", ("compiled", ".so"))
    assert build(scratch).returncode == 0
    assert not any(b"__gcov" in path.read_bytes() for path in scratch.rglob("*.so"))  # none that still counts


def test_pure_wheel_fits_every_python(scratch: Path) -> None:
    done = build(scratch, "bdist_wheel", "--dist-dir", "wheels", BLOCKWRIGHT_PURE_PYTHON="1")
    assert done.returncode == 0, done.stderr
    (wheel,) = (scratch / "wheels").glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "blockwright/core/two.py" in names
    assert [name for name in names if name.endswith(".so") or "native" in name] == []
