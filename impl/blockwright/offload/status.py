"""The status of one offloaded block, as a C structure that others may look at.

This module stays uncompiled: a compiled class cannot derive from `ctypes.Structure`.

Source: section 6 of the named systems (`BlockStatus`).
"""

from __future__ import annotations

import ctypes
from typing import ClassVar

NOT_READY = -1


class BlockStatus(ctypes.Structure):
    """Whether an offloaded block is being written (``ref_cnt == -1``) or ready with ``ref_cnt >= 0`` readers.

    >>> BlockStatus().is_ready
    False
    """

    _fields_: ClassVar[list[tuple[str, type]]] = [("ref_cnt", ctypes.c_int32)]
    ref_cnt: int

    def __init__(self) -> None:
        super().__init__(NOT_READY)

    @property
    def is_ready(self) -> bool:
        """Whether the block is completely written, so that it may be read."""
        return self.ref_cnt >= 0


class PlacedBlockStatus(BlockStatus):
    """The status of a block that lies in a numbered place of its medium."""

    _fields_: ClassVar[list[tuple[str, type]]] = [("block_id", ctypes.c_int64)]
    block_id: int

    def __init__(self, block_id: int) -> None:
        super().__init__()
        self.block_id = block_id
