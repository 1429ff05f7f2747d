"""Builds the package as a user's pip does, and sees that what is installed runs compiled. Run by `make wheel-check`.

A wheel of the checkout (of the files that git knows, so that nothing built here helps) and one of the source
distribution are built in isolation: with the build requirements alone, neither torch nor anything else. The first is
for this Python, the second for the newest that is found here; with `--all` there is one for each. Each holds the three
packages and little more, is installed into an environment of its own, and asked there which build runs, and whether the
kit can be imported.
Not covered: other platforms.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
LARGEST = 3_500_000  # bytes of a wheel: a few percent above what one takes; a library packed by mistake takes more

ASK = """
import importlib.util, sys
import blockwright
import blockwright_conformance.kv_cache.world  # reads files that lie beside the modules of the kit
from blockwright import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheManager, Request

info = blockwright.build_info()
there = [name for name in ("torch", "numpy", "mypy", "mypyc") if importlib.util.find_spec(name)]
spec = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")
manager = KVCacheManager(KVCacheConfig(8, [KVCacheGroupSpec(["layer"], spec)]), max_model_len=64, enable_caching=True)
manager.allocate_slots(Request("r", list(range(20)), block_size=16), 20)
manager.check()
print(info)
sys.exit(f"here is {', '.join(there)}, which would hide a defect" if there else info.kind != "compiled")
"""


class Python(NamedTuple):
    """An interpreter: its version in words, and its path."""

    version: str
    path: str


def pythons() -> Iterator[Python]:
    """Find the supported interpreters that run here, this one first, among them those that pyenv keeps off the path."""
    here = "{}.{}".format(*sys.version_info[:2])
    yield Python(here, sys.executable)
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for version in SUPPORTED:
        for path in [shutil.which(f"python{version}"), *kept.glob(f"{version}.*/bin/python")]:
            if version != here and path and runs(str(path), version):
                yield Python(version, str(path))
                break


def runs(path: str, version: str) -> bool:
    """Return whether an interpreter runs, is of a version, and can make environments."""
    code = "import ensurepip, sys, venv; print('{}.{}'.format(*sys.version_info[:2]))"
    done = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.strip() == version


def run(*command: str | Path, folder: Path) -> str:
    """Run a command in a folder; return what it printed.

    Raises:
        RuntimeError: it failed, with the end of what it printed.
    """
    apart = ("BLOCKWRIGHT_", "PYTHON", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(apart)}
    kept["BLOCKWRIGHT_REQUIRE_COMPILED"] = "1"  # so that pip says why it could not be compiled
    done = subprocess.run(list(map(str, command)), cwd=folder, env=kept, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
        what = " ".join(map(str, command)).partition("\n")[0]
        raise RuntimeError("\n".join([f"{what}: failed", *lines[-30:]]))
    return done.stdout


def environment(python: Python, folder: Path) -> Path:
    """Make an environment; return its interpreter."""
    run(python.path, "-m", "venv", folder, folder=folder.parent)
    return folder / "bin" / "python"


def sources(folder: Path) -> Path:
    """Copy the files that git knows, as they are now."""
    names = run("git", "ls-files", "-z", folder=ROOT).split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def checked(python: Python, what: str, source: Path, folder: Path) -> str:
    """Build a wheel of a source (a tree or an sdist), install it by itself, and ask it; return a line about it."""
    started = time.monotonic()
    folder.mkdir()
    builder = environment(python, folder / "builder")
    run(builder, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source, folder=folder)
    (wheel,) = folder.glob("*.whl")
    check_files(wheel)
    user = environment(python, folder / "user")
    run(user, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", wheel, folder=folder)
    said = run(user, "-c", ASK, folder=folder).strip()
    size = wheel.stat().st_size / 2**20
    return f"{python.version}, wheel of the {what}: {said} ({size:.1f} MB, {time.monotonic() - started:.0f} s)"


def check_files(wheel: Path) -> None:
    """Check that a wheel holds the packages, the entry point of vLLM's plug-in, and no more than users install gladly.

    Raises:
        RuntimeError: it holds something else, or more than `LARGEST` bytes.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    packages = tuple(f"blockwright{end}" for end in ("/", "_command/", "_conformance/", "_spec/", "_vllm/", "-"))
    kinds = (".py", ".so", ".pyd", ".json", ".jsonl", ".toml", "py.typed")
    strange = [name for name in names if not name.startswith(packages) or "__pycache__" in name]
    strange += [name for name in names if not name.endswith(kinds) and ".dist-info/" not in name]
    if strange := [name for name in strange if "__mypyc" not in name]:
        raise RuntimeError(f"{wheel.name} holds what does not belong there: {', '.join(strange[:9])}")
    if (size := wheel.stat().st_size) > LARGEST:
        raise RuntimeError(f"{wheel.name} has {size:,} bytes, more than {LARGEST:,}")


def main() -> int:
    """Check every wheel, two at a time; 1 if one of them is not compiled."""
    found = list(pythons())
    asked = found if "--all" in sys.argv else [max(found, key=lambda each: SUPPORTED.index(each.version))]
    missing = [version for version in SUPPORTED if version not in {each.version for each in found}]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        top = Path(folder)
        tree = sources(top / "tree")
        calls = [pool.submit(checked, found[0], "checkout", tree, top / "checkout")]
        sdists = sources(top / "again")  # a tree of its own: the other is being built in
        run(found[0].path, "setup.py", "--quiet", "sdist", "--dist-dir", top / "sdist", folder=sdists)
        (sdist,) = (top / "sdist").glob("*.tar.gz")
        calls += [pool.submit(checked, each, "sdist", sdist, top / each.version) for each in asked]
        failed = 0
        for call in calls:
            try:
                print(call.result(), flush=True)
            except RuntimeError as error:
                failed += 1
                print(f"FAILED: {error}", flush=True)
    absent = f"; no Python {', '.join(missing)} here" if missing and asked == found else ""
    print(f"wheels: {len(calls) - failed} of {len(calls)} compiled{absent}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
