"""What of continuous batching is not served, by the name of its option, and what to do about it: asked at its start."""

from __future__ import annotations

from typing import Any

from blockwright.engines.transformers import not_served


def refuse(config: Any, distributed: Any) -> None:
    """Refuse what the cache would serve wrongly, and what it was never tried with.

    Raises:
        UnsupportedError: names the option and the remedy.
    """
    graphs = config.use_cuda_graph
    given = {
        "cpu_offload_space": config.cpu_offload_space != 0,
        "use_async_batching=True": bool(config.use_async_batching),
        "use_cuda_graph=True": any(graphs) if isinstance(graphs, tuple) else bool(graphs),
        "varlen_compile_config": config.varlen_compile_config is not None,
        "decode_compile_config": config.decode_compile_config is not None,
        "default_compile_level": config.default_compile_level > 0,
    }
    for what, is_given in given.items():
        if is_given:
            name, _, value = what.partition("=")
            none = {"cpu_offload_space": "0.0", "default_compile_level": "0"}.get(name, "None")
            raise not_served(what, f"pass {name}={'False' if value else none}, or call unregister()")
    if distributed.tp_size > 1:
        raise not_served("tensor parallelism", "run the model on one device, or call unregister()")
