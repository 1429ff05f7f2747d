"""Fetch the peers to compare with: ``python -m benchmarks.peers.fetch DIR``.

Downloads the published wheels of three versions of vLLM and one of SGLang from the package registry that pip is
configured with, unpacks only their Python files (and the library of SGLang's prefix tree) into DIR, and forgets the
wheels. Nothing is installed and nothing of
them is executed here.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from benchmarks.peers import sglang as sglang_peer
from benchmarks.peers import vllm as vllm_peer
from benchmarks.peers import vllm_offload as vllm_offload_peer
from benchmarks.peers import vllm_paging as vllm_paging_peer
from benchmarks.published import Published
from blockwright.errors import BlockwrightError, InvalidArgumentError

PEERS = (vllm_peer.PUBLISHED, vllm_paging_peer.PUBLISHED, vllm_offload_peer.PUBLISHED, sglang_peer.PUBLISHED)
"""What is fetched: the peers of the manager, of the block tables and of the offload tiers, and a prefix tree."""

# Only the Python files are used, so one platform's wheel serves all; pip takes the platform that the release has.
_PLATFORM = (
    "--platform",
    "manylinux_2_34_x86_64",
    "--platform",
    "manylinux_2_28_x86_64",
    "--platform",
    "manylinux1_x86_64",
    "--implementation",
    "cp",
    "--abi",
    "abi3",
    "--abi",
    "cp311",
    "--python-version",
    "3.11",
)


def fetch(folder: Path, peer: Published) -> int:
    """Fill the peer's part of `folder` with its Python files unless they are there; return how many (0: were there).

    Raises InvalidArgumentError if the download fails, or if the folder holds something else.
    """
    root = peer.root(folder)
    present = (root / peer.package).exists()
    if present:
        peer.check(folder)
        if all((root / library).is_file() for library in peer.libraries):
            return 0
    with tempfile.TemporaryDirectory(prefix="blockwright-peers-") as scratch:
        wheel = _download(peer, Path(scratch))
        unpacked = Path(scratch) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            members = [
                name
                for name in archive.namelist()
                if name in peer.libraries or (name.startswith(f"{peer.package}/") and name.endswith(".py"))
            ]
            archive.extractall(peer.root(unpacked), members)
        peer.check(unpacked)
        if present:  # fetched when only Python files were
            for library in peer.libraries:
                (root / library).write_bytes((peer.root(unpacked) / library).read_bytes())
            return len(peer.libraries)
        root.mkdir(parents=True, exist_ok=True)
        _move(peer.root(unpacked) / peer.package, root / peer.package)
    return len(members)


def _download(peer: Published, scratch: Path) -> Path:
    """Download the wheel into `scratch`, with pip's own progress bar.

    pip checks it against the known digest: what is going to be executed is what was measured before.
    """
    wanted = scratch / "peers.txt"
    wanted.write_text(f"{peer.package}=={peer.version} --hash=sha256:{peer.sha256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps", *_PLATFORM]
    command += ["--only-binary", ":all:", "--require-hashes", "--dest", str(scratch), "--requirement", str(wanted)]
    if subprocess.run(command, check=False).returncode != 0:
        raise InvalidArgumentError(f"{peer.package}=={peer.version}: pip could not download it; its message is above")
    return next(scratch.glob(f"{peer.package}-*.whl"))


def _move(source: Path, destination: Path) -> None:
    """Copy a tree of files beside its destination, then give it its name at once: never half a package."""
    partial = destination.with_name(destination.name + ".partial")
    for file in filter(Path.is_file, source.rglob("*")):
        copy = partial / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    partial.rename(destination)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.fetch", description=__doc__.split("\n")[0])
    parser.add_argument("folder", metavar="DIR", type=Path, help="where to put the files; then: bench --peer-path DIR")
    folder: Path = parser.parse_args().folder
    for peer in PEERS:
        print(
            f"{peer.package} {peer.version} -> {peer.root(folder)} (few of its files; the wheel is large)", flush=True
        )
        try:
            count = fetch(folder, peer)
        except (BlockwrightError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        print(f"unpacked {count} files" if count else "already there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
