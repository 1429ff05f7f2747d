"""Fetch the peer to compare with: ``python -m blockwright.bench.fetch_peers DIR``.

Downloads the published wheel of vLLM from the package registry that pip is configured with, unpacks only its Python
files into DIR, and forgets the wheel. Nothing is installed and nothing of it is executed here.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from blockwright.bench.vllm_peer import PEER_VERSION, published_version
from blockwright.errors import BlockwrightError, InvalidArgumentError

# pip checks the wheel against it: what is going to be executed is what was measured before.
_WHEEL_SHA256 = "4b6bdec4ab269990bf70d45a3c1e94c3760a27064513760193b26d6f0da883aa"
# Only the Python files are used, so one platform's wheel serves all.
_PLATFORM = (
    "--platform",
    "manylinux_2_28_x86_64",
    "--implementation",
    "cp",
    "--abi",
    "abi3",
    "--python-version",
    "3.11",
)


def fetch(folder: Path) -> int:
    """Fill `folder` with the peer's Python files unless they are there; return their number (0: were there).

    Raises InvalidArgumentError if the download fails, or if `folder` holds something else.
    """
    if (folder / "vllm").exists():
        published_version(folder)
        return 0
    with tempfile.TemporaryDirectory(prefix="blockwright-peers-") as scratch:
        wheel = _download(Path(scratch))
        unpacked = Path(scratch) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if name.startswith("vllm/") and name.endswith(".py")]
            archive.extractall(unpacked, members)
        published_version(unpacked)
        folder.mkdir(parents=True, exist_ok=True)
        _move(unpacked / "vllm", folder / "vllm")
    return len(members)


def _download(scratch: Path) -> Path:
    """Download the wheel into `scratch`, with pip's own progress bar."""
    wanted = scratch / "peers.txt"
    wanted.write_text(f"vllm=={PEER_VERSION} --hash=sha256:{_WHEEL_SHA256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps", *_PLATFORM]
    command += ["--only-binary", ":all:", "--require-hashes", "--dest", str(scratch), "--requirement", str(wanted)]
    if subprocess.run(command, check=False).returncode != 0:
        raise InvalidArgumentError(f"vllm=={PEER_VERSION}: pip could not download it; its message is above")
    return next(scratch.glob("vllm-*.whl"))


def _move(source: Path, destination: Path) -> None:
    """Copy a tree of files beside its destination, then give it its name at once: never half a package."""
    partial = destination.with_name(destination.name + ".partial")
    for file in source.rglob("*.py"):
        copy = partial / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    partial.rename(destination)


def main() -> int:
    """Run the command line; return the exit code: 0 fetched or already there, 2 could not."""
    parser = argparse.ArgumentParser(prog="python -m blockwright.bench.fetch_peers", description=__doc__.split("\n")[0])
    parser.add_argument("folder", metavar="DIR", type=Path, help="where to put the files; then: bench --peer-path DIR")
    folder: Path = parser.parse_args().folder
    print(f"vllm {PEER_VERSION} -> {folder} (Python files only; the wheel is large)", flush=True)
    try:
        count = fetch(folder)
    except (BlockwrightError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"unpacked {count} files" if count else "already there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
