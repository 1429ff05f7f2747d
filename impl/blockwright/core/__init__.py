"""The bookkeeping: packed arrays and integers, compiled by mypyc, never importing torch or numpy.

With `BLOCKWRIGHT_PURE_PYTHON=1` in the environment the same modules run from their source, past the compiled libraries
beside them. One process holds one of the two builds, never both.
"""

import os
import sys
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader

SOURCE_ONLY = os.environ.get("BLOCKWRIGHT_PURE_PYTHON") == "1"


class _SourceOnly:
    """Finds modules of this package as source, past compiled ones beside them."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith(__name__ + "."):
            return None
        for folder in __path__:
            if spec := FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(name):
                return spec
        return None


if SOURCE_ONLY:
    sys.meta_path.insert(0, _SourceOnly)
