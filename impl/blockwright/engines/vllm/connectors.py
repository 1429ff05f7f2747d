"""Which of vLLM's connectors are served: what each reads of the manager's objects, found in its source.

A connector gets the manager, its pool, and the blocks of a request. Its modules, and those of vLLM's transfer packages
that they import, are read (`reading`); every name that is read of these objects is one that the connector needs. It is
served if all of them are in `SERVED`; otherwise it is refused by name when the scheduler is made. That is done for the
connector that is configured, whatever package it comes from. One that is not vLLM's is followed further (`following`),
and a line of the log says what could not be. `surface.json` has the same for every connector of the releases that were
tried.
"""

from __future__ import annotations

import ast
import inspect
import logging
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from blockwright.engines.vllm.following import follow
from blockwright.engines.vllm.reading import Reader
from blockwright.errors import UnsupportedError

_LOGGER = logging.getLogger("vllm.blockwright")  # below vLLM's own, so that what it says appears where vLLM's does

_LIST = "vllm.distributed.kv_transfer.kv_connector.v1"
_FOLLOWED = ("vllm.distributed.kv_transfer.", "vllm.v1.hisparse.", "vllm.v1.kv_offload.", "vllm.v1.simple_kv_offload.")

SERVED = frozenset(
    "block.block_hash block.block_hash_num_tokens block.block_id block.is_null block.next_free_block block.ref_cnt "
    "blocks.blocks blocks.get_block_ids blocks.get_block_ids(allow_none) blocks.get_block_ids(group_ids) "
    "blocks.get_unhashed_block_ids blocks.get_unhashed_block_ids_all_groups blocks.new_empty "
    "coordinator.block_pool coordinator.enable_caching coordinator.enable_partial_hash_hits "
    "coordinator.find_longest_cache_hit_per_group coordinator.full_attention_group_id coordinator.get_blocks "
    "coordinator.group_block_sizes coordinator.kv_cache_config coordinator.retention_interval "
    "coordinator.scheduler_block_size coordinator.single_type_managers "
    "group.block_pool group.block_size group.enable_caching group.kv_cache_group_id group.kv_cache_spec "
    "group.num_cached_block group.req_to_blocks "
    "hashes.contain hashes.get_one_block "
    "manager.block_pool manager.coordinator manager.empty_kv_cache_blocks manager.enable_caching "
    "manager.estimate_cached_tokens manager.get_block_ids manager.get_blocks manager.kv_cache_config "
    "manager.max_model_len manager.num_kv_cache_groups manager.usage "
    "pool.blocks pool.cached_block_hash_to_block pool.cached_block_hashes_by_block pool.enable_caching "
    "pool.free_block_queue pool.free_blocks pool.get_cached_block pool.get_num_free_blocks pool.get_usage "
    "pool.hash_block_size pool.is_block_writable pool.metrics_collector pool.null_block pool.num_gpu_blocks pool.touch "
    "queue.fake_free_list_head queue.fake_free_list_tail queue.get_all_free_blocks queue.iter_blocks_after "
    "queue.num_free_blocks".split()
)
"""What connectors may read, as ``kind.name``, with the keyword of an argument that not all of them pass."""

LIMITED = {"pool.evict_blocks": "an error for blocks that can be found"}
"""What those may read that are not vLLM's, which are told of the limit."""


def _imports(tree: ast.Module, home: list[str]) -> Iterator[str]:
    """Return the modules that one in the package `home` imports, and the names in them, which may be modules too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = ".".join(home[: len(home) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            yield module
            yield from (f"{module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)


def file_of(package: Path, module: str) -> Path | None:
    """Return the source of a module of vLLM, None if there is none."""
    path = package.parent / module.replace(".", "/")
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)


@cache
def _read(package: Path, file: Path) -> tuple[frozenset[str], tuple[Path, ...]]:
    """Return the names that one file reads, and the files of `_FOLLOWED` that it imports."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    reader = Reader()
    reader.visit(tree)
    home = list(file.parent.relative_to(package.parent).parts) if file.is_relative_to(package.parent) else []
    names = {each for each in _imports(tree, home) if each.startswith(_FOLLOWED) and each != _LIST}
    found = {file_of(package, name) for name in names}
    return frozenset(reader.names), tuple(each for each in found if each is not None)


def needs(package: Path, files: Iterable[Path]) -> list[str]:
    """Return what connectors in some files, and in those of vLLM's packages that they import, read. O(sources)."""
    waiting, seen, names = [file.resolve() for file in files], set[Path](), set[str]()
    while waiting:
        file = waiting.pop()
        if file not in seen:
            seen.add(file)
            found, imported = _read(package.resolve(), file)
            names |= found
            waiting += imported
    return sorted(names)


def missing(names: Iterable[str]) -> list[str]:
    """Return those of the names that a connector reads that are not served."""
    return [name for name in names if name not in SERVED]


def require_served(connector: Any) -> None:
    """Return if a connector, and each one that it holds, reads only what is served.

    Raises:
        UnsupportedError: it reads more; names the connector, what it reads, and the remedy.
    """
    for each in getattr(connector, "_connectors", ()):
        require_served(each)
    import vllm

    package = Path(inspect.getfile(vllm)).parent.resolve()
    kinds = [kind for kind in type(connector).__mro__ if kind.__module__.split(".")[0] not in sys.stdlib_module_names]
    files = {kind: file for kind in kinds if (file := _source_of(kind)) is not None}
    others = [kind for kind in kinds if kind not in files or not files[kind].is_relative_to(package)]
    found = follow([files[kind] for kind in others if kind in files], others)
    found.lost.update(f"{kind.__name__}: no source" for kind in others if kind not in files)
    own = [file for file in files.values() if file.is_relative_to(package)]
    for file in {files[kind] for kind in others if kind in files}:
        own += _read(package, file)[1]
    names = sorted({*needs(package, own), *(name for name in found.names if not name.endswith("?"))})
    defaults = missing(name[:-1] for name in found.names if name.endswith("?"))
    found.lost.update(f"{name}: its default is taken" for name in defaults)
    found.lost.update(f"{name}: {LIMITED[name]}" for name in names if name in LIMITED)
    lacking = [name for name in missing(names) if name not in LIMITED]
    if lacking:
        raise UnsupportedError(
            f"the connector {type(connector).__name__} reads {', '.join(lacking)}, which is not supported under "
            "Blockwright: use another connector, or unset BLOCKWRIGHT_VLLM to serve with vLLM's own manager"
        )
    if found.lost:
        _LOGGER.warning(
            "Blockwright has not checked all that the connector %s does with vLLM's blocks: %s. What of vLLM's pool "
            "Blockwright does not offer is an error when it is read; unset BLOCKWRIGHT_VLLM if that happens",
            type(connector).__name__,
            "; ".join(sorted(found.lost)[:5]),
        )


def _source_of(kind: type) -> Path | None:
    try:
        return Path(inspect.getfile(kind)).resolve()
    except (OSError, TypeError):
        return None
