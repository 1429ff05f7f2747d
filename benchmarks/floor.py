"""The floor: the same paths as plain C over flat arrays, compiled on the spot from `benchmarks/floor.c`."""

import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from benchmarks import groups, paths
from benchmarks.measure import Sample, require
from blockwright.errors import InvalidArgumentError

SOURCE = Path(__file__).with_name("floor.c")

_ONE_REQUEST = ("prefill", "lookup", "adopt", "release")
_SCALING = ("lookup", "adopt", "release", "churn", "decode-batch")


class Floor:
    """The compiled floor. Nothing of it stays on disk."""

    def __init__(self) -> None:
        """Compile it. Raises InvalidArgumentError without a compiler, or if it fails."""
        compiler = os.environ.get("CC") or "cc"
        if shutil.which(compiler.split()[0]) is None:
            raise InvalidArgumentError(
                f"floor: no C compiler {compiler!r}; install one, name it in CC, or leave --floor"
            )
        with tempfile.TemporaryDirectory(prefix="blockwright-floor-") as scratch:
            library = Path(scratch) / "floor.so"
            command = [*compiler.split(), "-O3", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
            result = subprocess.run(command, check=False, capture_output=True, text=True)
            if result.returncode != 0:
                raise InvalidArgumentError(f"floor: {' '.join(command)} failed: {result.stderr.strip()}")
            self._library = ctypes.CDLL(str(library))
        self._library.floor_decode.restype = self._library.floor_churn.restype = ctypes.c_double

    def sample(self, name: str) -> Sample:
        """Return one repetition of the path, in the shape of its Python twin."""
        if name == "decode":
            return lambda: _checked(self._library.floor_decode(groups.BATCH, groups.STEPS, paths.PROMPT))
        if name == "churn":
            shape = (paths.CHURN_POOL, paths.CHURN_REQUESTS, paths.CHURN_LONG, 1)
            return lambda: _checked(self._library.floor_churn(*shape))
        return lambda: self._one_request()[name]

    def _one_request(self) -> dict[str, float]:
        out = (ctypes.c_double * len(_ONE_REQUEST))()
        _checked(self._library.floor_one_request(paths.LONG, 4, out))
        return dict(zip(_ONE_REQUEST, out, strict=True))

    def scaling(self, num_requests: int, num_blocks: int, num_sampled: int, scattered: bool) -> dict[str, float]:
        """Return ns per block, decode's per request, in a full pool of `num_requests` * `num_blocks` blocks."""
        out = (ctypes.c_double * len(_SCALING))()
        _checked(self._library.floor_scaling(num_requests, num_blocks, num_sampled, int(scattered), out))
        return dict(zip(_SCALING, out, strict=True))


def _checked(value: float) -> float:
    """Return the value; a negative one means that the C code failed its own check."""
    require(value >= 0)
    return value
