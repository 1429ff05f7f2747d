"""Where SGLang's prefix tree is found: a release, and which of its modules are executed unmodified.

The conformance kit puts it under its laws. Nothing of it is part of this distribution.
"""

from blockwright.bench.published import Published

MEM = "sglang.srt.mem_cache."

PUBLISHED = Published(
    version="0.5.23",
    sha256="00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937",
    folder="sglang",
    witness="sglang/srt/mem_cache/unified_radix_cache.py",
    prefix=MEM + "unified_cache",
    modules=frozenset(
        {
            *(MEM + name for name in ("base_prefix_cache", "base_swa_memory_pool", "cache_init_params", "common")),
            *(MEM + name for name in ("events", "evict_policy", "hicache_storage", "memory_pool", "radix_cache")),
            *(MEM + name for name in ("swa_memory_pool", "unified_radix_cache", "utils")),
            *(MEM + "allocator" + name for name in ("", ".base", ".token", ".paged", ".swa", ".mamba")),
            *(MEM + "allocator" + name for name in (".page_interleave", ".hisparse", ".unified_hybrid_swa")),
            MEM + "buffer_mode.storage_existence_cache",
            "sglang.srt.configs.mamba_utils",
            "sglang.srt.constants",
            "sglang.srt.disaggregation.kv_events",
            "sglang.srt.environ",
            "sglang.srt.runtime_context",
            "sglang.srt.session.streaming_session",
            "sglang.srt.utils",
            "sglang.srt.utils.common",
            "sglang.srt.utils.invariants",
            "sglang.srt.utils.rank_consensus_checker",
            "sglang.srt.utils.torch_memory_saver_adapter",
        }
    ),
    foreign=frozenset(
        {
            *("IPython", "PIL", "aiohttp", "fastapi", "huggingface_hub", "orjson", "prometheus_client", "psutil"),
            *("pybase64", "pydantic", "requests", "setproctitle", "sgl_kernel", "starlette", "tqdm", "transformers"),
            *("triton", "uvicorn", "uvloop", "zmq"),
        }
    ),
    package="sglang",
)
"""The cache, its tree core in Python with its components, keys, events, and the allocators of slots."""
