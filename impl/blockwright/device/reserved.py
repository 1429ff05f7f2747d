"""Memory of a CPU that is reserved once, at addresses that stay, and of which pages are given back."""

from __future__ import annotations

import mmap

import torch


class ReservedMemory:
    """Bytes that are zero until they are written; a page takes memory from its first write on, until it is given back.

    Attributes:
        tensor: all of it: uint8, one-dimensional. It keeps the memory alive.
    """

    def __init__(self, num_bytes: int) -> None:
        """Reserve addresses; no page is taken yet.

        Raises:
            MemoryError: there are not so many addresses.
        """
        try:
            # A mapping of no bytes is refused. Private, since a page of a shared one is kept until the last view of it.
            flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
            self._map = mmap.mmap(-1, max(1, num_bytes), **flags)
        except (OSError, OverflowError, ValueError) as error:
            raise MemoryError(f"there are no {num_bytes} bytes") from error
        self.tensor = torch.frombuffer(self._map, dtype=torch.uint8)[:num_bytes]

    def give_back(self, begin: int) -> int:
        """Give back the bytes from one on: they read as zeros, and their whole pages take no memory. O(bytes).

        Returns:
            The bytes of these pages; 0 where the system cannot give pages back, and the bytes are only zeroed.
        """
        advice = getattr(mmap, "MADV_DONTNEED", None)
        first = (
            min(-(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, len(self._map)) if advice is not None else len(self._map)
        )
        self.tensor[begin:first].zero_()
        if advice is None or first >= len(self.tensor):
            return 0
        self._map.madvise(advice, first, len(self._map) - first)
        return len(self._map) - first
