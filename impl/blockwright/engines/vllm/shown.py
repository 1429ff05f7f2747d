"""What an operator sees of Blockwright in a vLLM: a line when an engine starts, one when it ends, and an info metric.

The lines come from the logger ``vllm.blockwright``, so that they appear where vLLM's own do, at the level INFO.
"""

from __future__ import annotations

import functools
import logging
import os
from collections import Counter
from typing import Any

import blockwright
from blockwright._switch import is_on
from blockwright.errors import BlockwrightError
from blockwright.kinds import ChunkedLocalAttentionSpec, MambaSpec, SlidingWindowSpec
from blockwright.observe.trace import trace

LOGGER = logging.getLogger("vllm.blockwright")
CHECK = "BLOCKWRIGHT_VLLM_CHECK"
"""Switches on that the manager checks itself when the engine ends."""
TRACE = "BLOCKWRIGHT_TRACE"
"""Names the file to which the manager is traced; ``%p`` in it is the number of the process."""
METRIC = "vllm:blockwright_info"
_FORGET = ChunkedLocalAttentionSpec | MambaSpec | SlidingWindowSpec


def tell_start(manager: Any) -> None:
    """Write the line of a manager whose engine starts.

    Raises:
        ValueError: `CHECK` is neither a word for on nor one for off.
    """
    ending = ", checks itself at its end" if is_on(CHECK) else ""
    build = blockwright.build_info().kind
    LOGGER.info("Blockwright %s (%s core) %s%s", blockwright.__version__, build, described(manager), ending)
    if path := os.environ.get(TRACE):
        manager.trace = trace(manager.core, path.replace("%p", str(os.getpid())))


def described(manager: Any) -> str:
    """Return in one line what a manager manages, what it keeps and how, and what differs from vLLM's defaults."""
    core, specs = manager.core, manager.settings.specs
    groups = Counter(f"{_kind(spec)} of {view.block_size}" for spec, view in zip(specs, core.managers, strict=False))
    said = [
        f"manages {core.block_pool.num_blocks} blocks",
        "groups (tokens per block): " + (", ".join(f"{n} x {kind}" for kind, n in groups.items()) or "none"),
    ]
    if not core.enable_caching:
        return "; ".join([*said, "no prefix caching"])
    unit = core.prefix_match_unit
    said.append(f"hits end at multiples of {unit} tokens (prefix_match_unit)" if unit else "hits end with blocks")
    if not any(isinstance(spec, _FORGET) for spec in specs):
        said.append("publishes every block and evicts by age, as vLLM does")
    elif manager.settings.keeps_wanted:
        said.append(
            "publishes every block that some hit can need, where vLLM by default publishes only those that it expects "
            "to be hit again, and evicts those first that no likely hit needs"
        )
    else:
        said.append("publishes every block and evicts by age, as vLLM does with prefix_cache_retention_interval=None")
    return "; ".join(said)


def tell_end(manager: Any) -> None:
    """Write the line of a manager whose engine ends, after its check if that is asked for."""
    pool = manager.core.block_pool
    running = len(manager.core.request_ids())
    if (traced := getattr(manager, "trace", None)) is not None:
        traced.close()
    held = f"{pool.num_free} of {pool.num_blocks - 1} blocks are free, requests that hold some: {running}"
    if not is_on(CHECK):
        LOGGER.info("Blockwright ends: %s; not checked (%s=1 asks for it)", held, CHECK)
        return
    try:
        manager.check()
    except BlockwrightError as error:
        LOGGER.error("Blockwright ends: %s; check() failed: %s", held, error)
    else:
        LOGGER.info("Blockwright ends: %s; check() found every law kept", held)


def export(logger: Any) -> None:
    """Have a class that writes vLLM's metrics (`PrometheusStatLogger`) also write the info metric."""
    initialized = logger.log_engine_initialized
    if hasattr(initialized, "_tells"):
        return

    @functools.wraps(initialized)
    def telling(self: Any) -> None:
        initialized(self)
        labels = {"version": blockwright.__version__, "build": blockwright.build_info().kind, "engine": ""}
        config = self.vllm_config.cache_config
        labels |= {name: str(getattr(config, name, None)) for name in ("num_gpu_blocks", "prefix_match_unit")}
        gauge = self._gauge_cls(
            name=METRIC,
            documentation="The manager of the KV cache is Blockwright's.",
            multiprocess_mode="mostrecent",
            labelnames=list(labels),
        )
        for engine in self.engine_indexes:
            gauge.labels(**labels | {"engine": str(engine)}).set(1)

    telling._tells = True  # type: ignore[attr-defined]
    logger.log_engine_initialized = telling


def _kind(spec: Any) -> str:
    """Return the kind of a group's layers in a few words."""
    size = getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None)
    return type(spec).__name__.removesuffix("Spec") + (f"({size})" if size else "")
