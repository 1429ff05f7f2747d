"""Block tables with fork, copy-on-write and swap, over the pools of `blockwright.core`.

A sequence's `BlockTable` holds `Block` objects; an allocator per device counts who holds which; a block manager keeps
the tables of sequence groups on a GPU and a CPU. Compiled like the core, and importing neither torch nor numpy.
"""

from blockwright.arguments import guard as _guard
from blockwright.paging.block_manager import SelfAttnBlockSpaceManager
from blockwright.paging.block_table import BlockTable
from blockwright.paging.cpu_gpu import CpuGpuBlockAllocator
from blockwright.paging.interfaces import AllocStatus, Block, BlockAllocator, Device, DeviceAwareBlockAllocator
from blockwright.paging.naive import NaiveBlock, NaiveBlockAllocator
from blockwright.paging.null_block import NullBlock
from blockwright.paging.prefix_caching import PrefixCachingBlock, PrefixCachingBlockAllocator
from blockwright.paging.sequence import Sequence, SequenceGroup, SequenceStatus, SimpleSequence, SimpleSequenceGroup

__all__ = [
    "AllocStatus", "Block", "BlockAllocator", "BlockTable", "CpuGpuBlockAllocator", "Device",
    "DeviceAwareBlockAllocator", "NaiveBlock", "NaiveBlockAllocator", "NullBlock", "PrefixCachingBlock",
    "PrefixCachingBlockAllocator", "SelfAttnBlockSpaceManager", "Sequence", "SequenceGroup", "SequenceStatus",
    "SimpleSequence", "SimpleSequenceGroup",
]  # fmt: skip

_guard(globals(), __all__)
