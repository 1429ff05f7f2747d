"""The museum's sixth room: forks, and what is copied when they part."""

from . import places
from .known_bug import Exhibit, patch

FORKS = (
    Exhibit(
        "B01a",
        "a fork counts its blocks twice",
        "A fork took a reference for each entry of its table, and another when the block was written.",
        "vllm-project/vllm#3347 (#1556)",
        "REF-1",
        places.FORKED,
        (
            patch(
                "forks.py",
                "                manager.adopt(table.blocks)\n",
                "                manager.adopt(table.blocks)\n                manager.adopt(table.blocks)\n",
            ),
        ),
    ),
    Exhibit(
        "B01b",
        "a copy leaves its source's count as it was",
        "The one who wrote got a block of its own and kept its hold on the old one.",
        "vllm-project/vllm#3347 (#1556)",
        "REF-1",
        places.FORKED,
        (
            patch(
                "store.py",
                "        self._ref[new] = 2\n",
                "        self._ref[new] = 2\n        self._ref[block] += 1\n",
            ),
        ),
    ),
    Exhibit(
        "B51a",
        "the destination of a copy that has not been run is freed",
        "A block was given up while a copy to it was in flight, handed out again, and then written by the copy.",
        "sgl-project/sglang#35769",
        "REF-1",
        places.FORKED,
        (patch("store.py", "        self._ref[new] = 2\n", "        self._ref[new] = 1\n"),),
    ),
)
"""Forks."""
