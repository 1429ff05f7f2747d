"""What the scripts are made with: a manager of a release of vLLM, and its requests."""

from collections.abc import Callable
from itertools import starmap
from typing import Any

from blockwright_conformance.kv_cache.blockwright import hash_unit
from blockwright_conformance.kv_cache.scopes import layers
from blockwright_spec.manager.state import Config
from blockwright_spec.reads import Group

from ..vllm_engine import VllmEngine


def vllm(
    version: str, groups: str, num_blocks: int, *, caching: bool = True, eagle: bool = False, **options: Any
) -> tuple[Any, Callable[..., Any]]:
    config = Config(tuple(starmap(Group, layers(groups))), num_blocks, 64, caching, eagle)
    engine, unit = VllmEngine(version), options.get("hash_block_size", hash_unit(config))
    return engine.manager(config, **options), lambda name, tokens, **more: engine.request(name, 0, tokens, unit, **more)
