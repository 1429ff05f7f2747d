"""Replay serving traces through the manager: how much a prefix cache of a given size saves.

Example:
    >>> from blockwright import FullAttentionSpec
    >>> from blockwright.replay import WorkloadOptions, generate_workload, replay
    >>> trace = generate_workload(WorkloadOptions(conversations=20, seed=1))
    >>> spec = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")
    >>> small, large = replay(trace, spec, [500, 5000]).pools
    >>> small.hit_rate < large.hit_rate
    True
"""

from blockwright.arguments import guard as _guard
from blockwright.replay.layouts import FORMATS
from blockwright.replay.pools import PoolResult, TimedResult
from blockwright.replay.records import Trace, TraceRequest
from blockwright.replay.simulate import ReplayResult, replay
from blockwright.replay.timed import Overlap
from blockwright.replay.traces import load_trace
from blockwright.replay.workload import WorkloadOptions, generate_workload

__all__ = [
    "FORMATS", "Overlap", "PoolResult", "ReplayResult", "TimedResult", "Trace", "TraceRequest", "WorkloadOptions",
    "generate_workload", "load_trace", "replay",
]  # fmt: skip

_guard(globals(), __all__)
