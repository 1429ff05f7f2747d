"""The bookkeeping: packed arrays and integers, compiled by mypyc, never importing torch or numpy.

With `BLOCKWRIGHT_PURE_PYTHON=1` in the environment the same modules run from their source, past the compiled libraries
beside them. One process holds one of the two builds, never both.
"""

import sys
from collections.abc import Iterable
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader

from blockwright._switch import is_on

SOURCE_ONLY = is_on("BLOCKWRIGHT_PURE_PYTHON")


class _SourceOnly:
    """Finds modules of the compiled packages as source, past compiled ones beside them."""

    PREFIXES = ("blockwright.core.", "blockwright.worker.", "blockwright.paging.", "blockwright.offload.tiers.")

    @classmethod
    def find_spec(cls, name: str, path: Iterable[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Return where a module of these packages has its source; None for other modules."""
        if not name.startswith(cls.PREFIXES):
            return None
        for folder in path or ():
            if spec := FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(name):
                return spec
        return None


if SOURCE_ONLY:
    sys.meta_path.insert(0, _SourceOnly)
