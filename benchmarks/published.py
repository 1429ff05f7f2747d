"""How a version of another engine is loaded: its modules unmodified, stand-ins for what they import besides.

What a published package imports at the head of its modules (torch, distributed, multimodal, platforms, ...) never runs
on the measured paths, so it is replaced while they load: by modules of which every attribute is an empty class.
"""

import logging
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any, TypeVar

from blockwright.errors import InvalidArgumentError

T = TypeVar("T")


@dataclass(frozen=True)
class Published:
    """A version of an engine, and which of its modules are executed.

    Attributes:
        version: the version that is supported.
        sha256: of its published wheel.
        folder: where it lies below the folder of all peers.
        witness: a file that every unpacked copy has.
        prefix: modules whose name begins with this are executed from the folder, exactly as published.
        modules: so are these; whatever else of the package is imported is a stand-in.
        foreign: other packages that they import, used on none of the measured paths: stand-ins.
        package: the package's name, and that of its distribution.
        libraries: compiled modules, as files below the folder; executed as published where this interpreter can.
    """

    version: str
    sha256: str
    folder: str
    witness: str
    prefix: str
    modules: frozenset[str]
    foreign: frozenset[str]
    package: str = "vllm"
    libraries: tuple[str, ...] = ()

    def root(self, peer_path: Path) -> Path:
        """Return the folder that holds the package, below the folder of all peers."""
        return peer_path / self.folder

    def check(self, peer_path: Path) -> None:
        """Raise InvalidArgumentError if the folder holds no unpacked copy of it, or another version."""
        root = self.root(peer_path)
        remedy = f"unpack {self.package} {self.version} with `python -m benchmarks.peers.fetch DIR`"
        version_file = root / self.package / "_version.py"
        if not version_file.is_file() or not (root / self.witness).is_file():
            raise InvalidArgumentError(f"peer_path: {root} holds no unpacked {self.package} package; {remedy}")
        found = re.search(r"^__version__ = (?:version = )?'([^']+)'", version_file.read_text(encoding="utf-8"), re.M)
        version = found[1] if found else "of an unknown version"
        if version != self.version:
            raise InvalidArgumentError(
                f"peer_path: {root} holds {self.package} {version}, not {self.version}; {remedy}"
            )

    def load(self, peer_path: Path, make: Callable[[], T]) -> T:
        """Call `make` while the package is importable and return what it returns.

        Runs in this process; `sys.modules` and `sys.meta_path` are left as they were. Raises InvalidArgumentError if
        the folder holds no unpacked copy of the supported version, or not all of it.
        """
        self.check(peer_path)
        try:
            with _borrowed_modules(self, self.root(peer_path)):
                return make()
        except Exception as error:  # whatever goes wrong inside the peer's own modules
            what = f"{type(error).__name__}: {error}"
            where = f"{self.package} {self.version} in {self.root(peer_path)}"
            raise InvalidArgumentError(f"peer_path: {where} could not be loaded: {what}") from error


class _StandInType(type):
    """A class of which every attribute is another such class, so that annotations, bases and defaults evaluate."""

    def __new__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any], **options: object) -> Any:
        return super().__new__(cls, name, bases, members)

    def __init__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any], **options: object) -> None:
        super().__init__(name, bases, members)

    def __getitem__(cls, parameters: object) -> Any:
        return cls

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(name)


def _accept(self: object, *args: object, **kwargs: object) -> None:
    """Take any arguments."""


def _unchanged(self: object, decorated: T) -> T:
    """Return what is decorated: an instance stands in for a decorator with options."""
    return decorated


def _stand_in(name: str) -> Any:
    return _StandInType(name, (), {"__init__": _accept, "__call__": _unchanged})


class _StandInModule(types.ModuleType):
    """A module of which every attribute is a stand-in class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(name)


class _StandInLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__.endswith(".logger"):
            module.__dict__["init_logger"] = logging.getLogger


class _PeerFinder(MetaPathFinder):
    """Find published modules as files under `root`, and everything unrelated as stand-ins."""

    def __init__(self, published: Published, root: Path) -> None:
        self._published, self._root = published, root

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        top = fullname.partition(".")[0]
        if top != self._published.package and top not in self._published.foreign:
            return None
        if fullname in self._published.modules or fullname.startswith(self._published.prefix):
            file = self._root.joinpath(*fullname.split("."))
            package = file / "__init__.py"
            if package.is_file():
                return spec_from_file_location(fullname, package, submodule_search_locations=[])
            return spec_from_file_location(fullname, file.with_suffix(".py"))
        for library in self._published.libraries:
            if fullname == library.partition(".")[0].replace("/", "."):
                return spec_from_file_location(fullname, self._root / library)
        return ModuleSpec(fullname, _StandInLoader(), is_package=True)


@contextmanager
def _borrowed_modules(published: Published, root: Path) -> Iterator[None]:
    """Make the package in `root` importable inside the block, and leave `sys.modules` as it was."""
    replaced = published.foreign | {published.package}

    def taken() -> list[str]:
        return [name for name in sys.modules if name.partition(".")[0] in replaced]

    kept = {name: sys.modules.pop(name) for name in taken()}
    finder = _PeerFinder(published, root)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in taken():
            del sys.modules[name]
        sys.modules.update(kept)
