"""vLLM's `KVCacheManager` of two releases, loaded from the published packages' files, unmodified.

The modules that manage memory (manager, coordinator, managers of single kinds, pool, hashing, request) are executed as
published. What they import besides (torch, distributed, multimodal, ...) is replaced while they load by stand-ins that
are never called, as `benchmarks.published` says. Nothing of vLLM is part of this distribution.
"""

import importlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import starmap
from math import lcm
from pathlib import Path
from typing import Any

from benchmarks.peers import vllm as vllm_peer
from benchmarks.peers import vllm_offload as vllm_offload_peer
from benchmarks.peers import vllm_paging as vllm_paging_peer
from benchmarks.published import Published
from blockwright_conformance.kv_cache.adapter import EXTRAS
from blockwright_conformance.kv_cache.blockwright import hash_unit
from blockwright_conformance.kv_cache.scopes import layers
from blockwright_spec.manager.state import Config
from blockwright_spec.reads import Chunked, Cross, Full, Group, Kind, Mamba, Sinks, Sliding

EVENTS = frozenset({"vllm.distributed.kv_events"})
"""Its events, which need msgspec; the sockets that they are sent over are never opened."""

NEW = replace(
    vllm_peer.PUBLISHED, modules=vllm_peer.PUBLISHED.modules | EVENTS, foreign=vllm_peer.PUBLISHED.foreign | {"zmq"}
)

OLD = Published(
    version=vllm_offload_peer.PUBLISHED.version,
    sha256=vllm_offload_peer.PUBLISHED.sha256,
    folder=vllm_offload_peer.PUBLISHED.folder,
    witness="vllm/v1/core/kv_cache_manager.py",
    prefix="vllm.v1.core",
    modules=frozenset(
        EVENTS
        | {"vllm.utils", "vllm.v1.kv_cache_interface", "vllm.v1.metrics.stats", "vllm.v1.request", "vllm.v1.utils"}
    ),
    foreign=vllm_paging_peer.PUBLISHED.foreign - {"msgspec"},
)
"""vLLM 0.11.0, whose names Blockwright keeps."""

RELEASES = {release.version: release for release in (NEW, OLD)}


class SamplingParams:
    """What a request reads of the sampling parameters."""

    max_tokens = 1 << 20
    structured_outputs = skip_reading_prefix_cache = prompt_logprobs = None

    def __init__(self, **extra_args: str) -> None:
        self.extra_args = extra_args or None


class Adapter:
    """What a request reads of an adapter of weights; two of one name are the same."""

    adapter_id = lora_int_id = id = 1

    def __init__(self, name: str) -> None:
        self.name = self.lora_name = self.lora_path = name


class VllmEngine:
    """The classes of one release that an engine's side needs."""

    def __init__(self, version: str) -> None:
        """Import them; only while the package is importable (`load`)."""
        self.version = version
        self.is_new = version == NEW.version
        self.interface: Any = importlib.import_module("vllm.v1.kv_cache_interface")
        self.utils: Any = importlib.import_module("vllm.v1.core.kv_cache_utils")
        self.managers: Any = importlib.import_module("vllm.v1.core.single_type_kv_cache_manager")
        self.manager_type: Any = importlib.import_module("vllm.v1.core.kv_cache_manager").KVCacheManager
        module: Any = importlib.import_module("vllm.v1.request")
        self.request_type, self.status = module.Request, module.RequestStatus
        self.hash: Any = importlib.import_module("vllm.utils.hashing" if self.is_new else "vllm.utils").sha256
        quiet()
        if self.is_new:
            self.managers.register_all_kvcache_specs(None)
        self.utils.init_none_hash(self.hash)
        self.hasher = cache(lambda size: self.utils.get_request_block_hasher(size, self.hash))

    def kv_cache_spec(self, kind: Kind, block_size: int, config: Config) -> Any:
        """Return its declaration of a layer.

        A recurrent layer that caches nothing is one block as long as the model's maximum, as its own runner declares
        it; with caching it is declared in the mode in which its states are cached.
        """
        make = self.interface
        sizes: dict[str, Any] = {"block_size": block_size, "num_kv_heads": 1, "head_size": 1, "dtype": "float32"}
        match kind:
            case Full():
                return make.FullAttentionSpec(**sizes)
            case Sliding(window):
                return make.SlidingWindowSpec(**sizes, sliding_window=window)
            case Sinks():
                raise NotImplementedError("its windows have no sinks")
            case Chunked(chunk):
                return make.ChunkedLocalAttentionSpec(**sizes, attention_chunk_size=chunk)
            case Cross():
                return make.CrossAttentionSpec(**sizes)
            case Mamba(drafts):
                mode = {"mamba_cache_mode": "align"} if self.is_new and config.caching else {}
                size = block_size if config.caching else config.max_model_len
                return make.MambaSpec(
                    block_size=size, shapes=((1,),), dtypes=("float32",), num_speculative_blocks=drafts, **mode
                )

    def manager(self, config: Config, **options: Any) -> Any:
        """Return a manager of these groups over one pool; hashes are as fine as its own engine core makes them.

        `state` has further fields of recurrent layers, `cache_config` of the configuration; the rest are the manager's.
        """
        make, state = self.interface, options.pop("state", {})
        specs = [self.kv_cache_spec(group.kind, group.block_size, config) for group in config.groups]
        specs = [replace(spec, **state) if isinstance(spec, make.MambaSpec) else spec for spec in specs]
        groups = [make.KVCacheGroupSpec([f"layers.{at}"], spec) for at, spec in enumerate(specs)]
        cache_config = make.KVCacheConfig(
            num_blocks=config.num_blocks, kv_cache_tensors=[], kv_cache_groups=groups, **options.pop("cache_config", {})
        )
        own: dict[str, Any] = {"enable_caching": config.caching, "use_eagle": config.eagle}
        own["enable_kv_cache_events"] = config.caching
        if self.is_new:
            own["scheduler_block_size"] = lcm(*(group.kv_cache_spec.block_size for group in groups))
            own["hash_block_size"] = hash_unit(config) if config.caching else own["scheduler_block_size"]
            own["watermark"] = config.watermark / config.num_blocks
        return self.manager_type(cache_config, max_model_len=config.max_model_len, **own | options)

    def request(self, name: str, extra: int, tokens: Sequence[int], hash_size: int, **extra_args: str) -> Any:
        keys: dict[str, Any] = dict(EXTRAS[extra])
        if adapter := keys.pop("lora_name", None):
            keys["lora_request"] = Adapter(adapter)
        if not self.is_new:
            keys["eos_token_id"] = None
        sampling, hasher = SamplingParams(**extra_args), self.hasher(hash_size)
        return self.request_type(name, list(tokens), sampling, None, block_hasher=hasher, **keys)


def quiet() -> None:
    """Have its loggers tell of errors only, a refused reset is none; and give them the methods of its own kind."""
    logging.getLogger("vllm").setLevel(logging.ERROR)
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("vllm."):
            for method in ("warning_once", "info_once"):
                logger.__dict__.setdefault(method, getattr(logging.getLogger(name), method.partition("_")[0]))


@cache
def load(version: str, peer_path: Path) -> VllmEngine:
    """Load a release from the folder that ``python -m benchmarks.peers.fetch`` filled.

    Raises InvalidArgumentError if the folder holds no unpacked copy of it.
    """
    return RELEASES[version].load(peer_path, lambda: VllmEngine(version))


def vllm(
    version: str, groups: str, num_blocks: int, *, caching: bool = True, eagle: bool = False, **options: Any
) -> tuple[Any, Callable[..., Any]]:
    config = Config(tuple(starmap(Group, layers(groups))), num_blocks, 64, caching, eagle)
    engine, unit = VllmEngine(version), options.get("hash_block_size", hash_unit(config))
    return engine.manager(config, **options), lambda name, tokens, **more: engine.request(name, 0, tokens, unit, **more)
