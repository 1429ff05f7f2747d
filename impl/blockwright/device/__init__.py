"""KV blocks as torch tensors: the decisions of the bookkeeping, applied to memory.

Plan and memory: `plan_kv_cache` lays a model's layers out over the memory of a device, `KVCacheStorage` is that memory.
A step: `InputBatch` keeps a worker's block tables up to date with the manager's changes, and makes the tensors that the
kernels of a step read (`StepInputs`). The operations of a layer on them, in plain torch: `write_kv`, `gather_kv` and
`paged_attention`, for latent attention `write_latent`, and for layers with states `selective_scan` and `causal_conv`.
Movement: `copy_blocks` moves blocks within one pool (copy-on-write), `swap_blocks` between two pools (a GPU and its
host), and `empty_host_caches_like` makes the pool on the host; these know block ids only.

This package and the host's tier of `blockwright.offload`, built on it, are all of Blockwright that imports torch:
``pip install torch``, or the engine's own.
"""

try:
    import torch as _torch  # noqa: F401  (asked for here, so that its absence is said once and plainly)
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError("blockwright.device needs torch: pip install torch", name="torch") from error

from blockwright.arguments import guard as _guard
from blockwright.device.attention import paged_attention
from blockwright.device.copies import copy_blocks, swap_blocks
from blockwright.device.host import empty_host_caches_like
from blockwright.device.inputs import InputBatch, StepInputs
from blockwright.device.layout import Caches
from blockwright.device.page_lists import PagedKV
from blockwright.device.paged import KVPages
from blockwright.device.plan import plan_kv_cache
from blockwright.device.planned import GroupPlan, KVCachePlan, RequestLimits
from blockwright.device.slots import gather_kv, write_kv, write_latent
from blockwright.device.staging import view_of
from blockwright.device.states import causal_conv, selective_scan
from blockwright.device.storage import KVCacheStorage
from blockwright.device.transfer import Transfer

__all__ = [
    "Caches", "GroupPlan", "InputBatch", "KVCachePlan", "KVCacheStorage", "KVPages", "PagedKV", "RequestLimits",
    "StepInputs", "Transfer", "causal_conv", "copy_blocks", "empty_host_caches_like", "gather_kv", "paged_attention",
    "plan_kv_cache", "selective_scan", "swap_blocks", "view_of", "write_kv", "write_latent",
]  # fmt: skip

_guard(globals(), __all__)
