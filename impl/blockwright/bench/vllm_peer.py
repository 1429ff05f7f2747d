"""The peer: vLLM's own KV-cache manager, loaded on a CPU from the published package's files.

The modules that do the work (manager, coordinator, pool, hashing, request) are executed unmodified from the folder.
What they import besides (torch, distributed, multimodal, platforms, ...) never runs on the measured paths, so it is
replaced by stand-ins while they load. Nothing of the peer is part of this distribution.
"""

import importlib
import logging
import re
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

from blockwright.bench.sides import Windows
from blockwright.errors import InvalidArgumentError

PEER_VERSION = "0.33.0"

# Executed from the folder, exactly as published. `vllm.v1.core.*` comes on top.
_PUBLISHED = frozenset(
    {
        "vllm.utils",
        "vllm.utils.hashing",
        "vllm.utils.math_utils",
        "vllm.v1.hisparse.block_pool",
        "vllm.v1.kv_cache_interface",
        "vllm.v1.kv_cache_layout",
        "vllm.v1.kv_cache_spec_registry",
        "vllm.v1.metrics.stats",
        "vllm.v1.request",
        "vllm.v1.structured_output.request",
        "vllm.v1.utils",
    }
)
_PUBLISHED_PREFIX = "vllm.v1.core"
# Imported at the head of published modules, used on none of the measured paths.
_FOREIGN = frozenset({"cbor2", "numpy", "torch", "uvloop"})


class _StandInType(type):
    """A class of which every attribute is another such class, so that annotations and defaults evaluate."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(name)


def _accept(self: object, *args: object, **kwargs: object) -> None:
    """Take any arguments."""


def _stand_in(name: str) -> Any:
    return _StandInType(name, (), {"__init__": _accept})


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
        if module.__name__ == "vllm.logger":
            module.__dict__["init_logger"] = logging.getLogger


class _PeerFinder(MetaPathFinder):
    """Find published modules as files under `root`, and everything unrelated as stand-ins."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        top = fullname.partition(".")[0]
        if top != "vllm" and top not in _FOREIGN:
            return None
        if fullname in _PUBLISHED or fullname.startswith(_PUBLISHED_PREFIX):
            file = self._root.joinpath(*fullname.split("."))
            package = file / "__init__.py"
            if package.is_file():
                return spec_from_file_location(fullname, package, submodule_search_locations=[])
            return spec_from_file_location(fullname, file.with_suffix(".py"))
        return ModuleSpec(fullname, _StandInLoader(), is_package=True)


@contextmanager
def _borrowed_modules(root: Path) -> Iterator[None]:
    """Make the peer importable inside the block, and leave `sys.modules` as it was."""

    def taken() -> list[str]:
        return [name for name in sys.modules if name.partition(".")[0] in _FOREIGN | {"vllm"}]

    kept = {name: sys.modules.pop(name) for name in taken()}
    finder = _PeerFinder(root)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in taken():
            del sys.modules[name]
        sys.modules.update(kept)


class _SamplingParams:
    """What a request reads of the sampling parameters."""

    max_tokens = 1 << 20
    extra_args = None
    structured_outputs = None
    skip_reading_prefix_cache = None


class VllmPeer:
    """vLLM's manager, request and block hasher."""

    def __init__(self, version: str, block_size: int) -> None:
        self.version = version
        self.block_size = block_size
        interface = importlib.import_module("vllm.v1.kv_cache_interface")
        utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
        hashing = importlib.import_module("vllm.utils.hashing")
        request = importlib.import_module("vllm.v1.request")
        manager = importlib.import_module("vllm.v1.core.kv_cache_manager")
        single = importlib.import_module("vllm.v1.core.single_type_kv_cache_manager")
        single.register_all_kvcache_specs(None)
        utils.init_none_hash(hashing.sha256)
        self._hasher: Any = utils.get_request_block_hasher(block_size, hashing.sha256)
        self._interface: Any = interface
        self._manager: Any = manager.KVCacheManager
        self._request: Any = request.Request
        self._running: Any = request.RequestStatus.RUNNING
        self._params = _SamplingParams()

    def manager(self, num_blocks: int, max_model_len: int, windows: Windows = (None,)) -> Any:
        """Return its `KVCacheManager` over `num_blocks` blocks (the null block included), with prefix caching."""
        groups = [
            self._interface.KVCacheGroupSpec([f"layers.{i}"], self._kind(window)) for i, window in enumerate(windows)
        ]
        config = self._interface.KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups)
        return self._manager(
            config,
            max_model_len=max_model_len,
            scheduler_block_size=self.block_size,
            hash_block_size=self.block_size,
            enable_caching=True,
        )

    def _kind(self, window: int | None) -> Any:
        """Return its declaration of a layer."""
        shape = {"block_size": self.block_size, "num_kv_heads": 8, "head_size": 128, "dtype": "bfloat16"}
        if window is None:
            return self._interface.FullAttentionSpec(**shape)
        return self._interface.SlidingWindowSpec(**shape, sliding_window=window)

    def request(self, request_id: str, prompt_token_ids: Any) -> Any:
        """Return its `Request`, block hashes computed by its own SHA-256 block hasher. Takes a list of ints."""
        return self._request(request_id, prompt_token_ids, self._params, None, block_hasher=self._hasher)

    def mark_running(self, request: Any) -> None:
        """Set the status its scheduler gives to an admitted request."""
        request.status = self._running


def published_version(peer_path: Path) -> str:
    """Return the version of the unpacked package in `peer_path`.

    Raises InvalidArgumentError if the folder holds no unpacked vLLM, or another version than the one supported.
    """
    remedy = f"unpack vllm {PEER_VERSION} with `python -m blockwright.bench.fetch_peers DIR`"
    version_file = peer_path / "vllm" / "_version.py"
    if not version_file.is_file() or not (peer_path / "vllm" / "v1" / "core" / "kv_cache_manager.py").is_file():
        raise InvalidArgumentError(f"peer_path: {peer_path} holds no unpacked vllm package; {remedy}")
    found = re.search(r"^__version__ = (?:version = )?'([^']+)'", version_file.read_text(encoding="utf-8"), re.M)
    version = found[1] if found else "of an unknown version"
    if version != PEER_VERSION:
        raise InvalidArgumentError(f"peer_path: {peer_path} holds vllm {version}, not {PEER_VERSION}; {remedy}")
    return version


def load(peer_path: Path, block_size: int = 16) -> VllmPeer:
    """Load vLLM's manager from the folder that `fetch_peers` filled.

    Runs in this process; `sys.modules` and `sys.meta_path` are left as they were. Raises InvalidArgumentError if the
    folder holds no unpacked vLLM of the supported version, or not all of it.
    """
    version = published_version(peer_path)
    try:
        with _borrowed_modules(peer_path):
            return VllmPeer(version, block_size)
    except Exception as error:  # whatever goes wrong inside the peer's own modules
        what = f"{type(error).__name__}: {error}"
        raise InvalidArgumentError(f"peer_path: vllm {version} in {peer_path} could not be loaded: {what}") from error
