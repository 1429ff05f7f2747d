"""The switch: SGLang's registry of prefix trees learns the name ``blockwright``, and what is not served is refused."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from blockwright.errors import UnsupportedError

NAME = "blockwright"
"""What ``--radix-cache-backend`` calls it."""

SUPPORTED = "0.5.23"
"""The release whose tree it was compared with."""

_BESIDE = ("enable_lmcache", "enable_flexkv", "enable_unified_cache_external_linker")
_ALLOCATORS = ("TokenToKVPoolAllocator", "PagedTokenToKVPoolAllocator")


def register() -> None:
    """Name the tree in SGLang's registry; SGLang calls it in each of its processes. Nothing else changes."""
    importlib.import_module("sglang.srt.mem_cache.registry").register_radix_cache_backend(NAME, create)


def create(context: Any) -> Any:
    """Return the tree for a server, from SGLang's ``TreeCacheBuildContext``.

    Raises:
        UnsupportedError: names what this server needs and the tree does not do, and the remedy.
    """
    version = importlib.import_module("sglang.version").__version__
    if reasons := list(_refusals(context, version)):
        raise UnsupportedError(
            f"--radix-cache-backend {NAME}: {'; '.join(reasons)}; or leave --radix-cache-backend out"
        )
    from blockwright.engines.sglang.tree import BlockwrightCache

    return BlockwrightCache(context.params)


def _refusals(context: Any, version: str) -> Iterator[str]:
    """Yield what cannot be served, and the remedy of each."""
    params, allocator = context.params, context.params.token_to_kv_pool_allocator
    asked: dict[str, Any] = {name: getattr(context.server_args, name, None) for name in _BESIDE}
    policy, kind = params.eviction_policy, type(allocator).__name__
    backup = getattr(context.server_args, "disaggregation_decode_retraction_backup", None)
    refused = {
        f"SGLang {version} was not tried: install {SUPPORTED}": version != SUPPORTED,
        "layers with a sliding window are not served": context.is_hybrid_swa or params.sliding_window_size is not None,
        "recurrent layers are not served": context.is_hybrid_ssm,
        "there is no host tier behind it: start without --enable-hierarchical-cache": context.enable_hierarchical_cache,
        "there is no host pool for what is retracted: choose another backup": backup == "host_pool",
        "without a prefix cache there is nothing to keep: SGLang does that itself": params.disable,
        "keys of pairs of tokens are not served: start without EAGLE's drafts": params.is_eagle,
        "it tells no events: start without --kv-events-config": params.enable_kv_cache_events,
        f"it evicts the least recently used, not by {policy!r}: take --radix-eviction-policy lru": policy != "lru",
        "it has no tree to walk by weight: take --schedule-policy lpm": (
            getattr(context.server_args, "schedule_policy", "") == "dfs-weight"
        ),
        f"slots of a {kind} are not pages in order": kind not in _ALLOCATORS or allocator.page_size != params.page_size,
        f"there is another cache beside it: start without {', '.join(name for name in asked if asked[name])}": any(
            asked.values()
        ),
    }
    return (reason for reason, applies in refused.items() if applies)
