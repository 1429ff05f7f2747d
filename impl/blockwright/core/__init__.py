"""The bookkeeping: packed arrays and integers, compiled by mypyc, never importing torch or numpy.

With `BLOCKWRIGHT_PURE_PYTHON=1` in the environment the same modules run from their source, past the compiled libraries
beside them. One process holds one of the two builds, never both.
"""

import os
import sys
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader

SOURCE_ONLY = os.environ.get("BLOCKWRIGHT_PURE_PYTHON") == "1"


class SourceOnly:
    """Finds modules of one package as source, past compiled ones beside them."""

    def __init__(self, package: str, folders: list[str]) -> None:
        self._prefix = package + "."
        self._folders = folders

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return where a module of the package has its source; None for other modules."""
        if not name.startswith(self._prefix):
            return None
        for folder in self._folders:
            if spec := FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(name):
                return spec
        return None


if SOURCE_ONLY:
    sys.meta_path.insert(0, SourceOnly(__name__, __path__))
