"""Property: `ARCOffloadingManager` evicts what ARC as published would evict.

Tested against a plain reading of the paper, block by block: a request touches its block and stores it if it missed; the
four lists and the target must be equal after each request. Then that ghosts are bounded, and copies apart. Not covered:
blocks in use and several blocks in one call (the gate `offload`); how well ARC does.
"""

from __future__ import annotations

import random

import pytest
from tests.offload.tiers.tier_support import BLOCK_SIZE, store

from blockwright.offload import ARCOffloadingManager, CPUBackend


class PaperARC:
    """ARC(c) of the paper, with lists whose last entry is the most recent."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.t1: list[bytes] = []
        self.t2: list[bytes] = []
        self.b1: list[bytes] = []
        self.b2: list[bytes] = []
        self.p = 0.0

    def replace(self, wanted: bytes) -> None:
        if self.t1 and (len(self.t1) > self.p or (wanted in self.b2 and len(self.t1) == self.p)):
            self.b1.append(self.t1.pop(0))
        else:
            self.b2.append(self.t2.pop(0))

    def request(self, key: bytes) -> None:
        if key in self.t1 or key in self.t2:  # case I
            (self.t1 if key in self.t1 else self.t2).remove(key)
            self.t2.append(key)
        elif key in self.b1:  # case II
            self.p = min(self.capacity, self.p + max(1.0, len(self.b2) / len(self.b1)))
            self.replace(key)
            self.b1.remove(key)
            self.t2.append(key)
        elif key in self.b2:  # case III
            self.p = max(0.0, self.p - max(1.0, len(self.b1) / len(self.b2)))
            self.replace(key)
            self.b2.remove(key)
            self.t2.append(key)
        else:  # case IV
            if len(self.t1) + len(self.b1) == self.capacity:
                if len(self.t1) < self.capacity:
                    self.b1.pop(0)
                    self.replace(key)
                else:
                    self.t1.pop(0)
            elif (total := len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2)) >= self.capacity:
                if total == 2 * self.capacity:
                    self.b2.pop(0)
                self.replace(key)
            self.t1.append(key)


def arc(num_blocks: int) -> ARCOffloadingManager:
    return ARCOffloadingManager(CPUBackend(BLOCK_SIZE, num_blocks))


def request(manager: ARCOffloadingManager, key: bytes) -> None:
    """Do what an engine does with one block."""
    manager.touch([key])
    output = manager.prepare_store([key])
    assert output is not None
    if output.block_hashes_to_store:
        manager.complete_store([key])


@pytest.mark.parametrize("seed", range(12))
def test_lists_and_target_are_those_of_the_paper(seed: int) -> None:
    choose = random.Random(seed)
    capacity = choose.randrange(1, 9)
    paper, manager = PaperARC(capacity), arc(capacity)
    for at in range(600):
        # Three habits in turn: a few blocks again and again, a scan, anything.
        number = [choose.randrange(capacity + 1), at % (3 * capacity), choose.randrange(4 * capacity)][at // 40 % 3]
        key = b"%d" % number
        paper.request(key)
        request(manager, key)
        assert manager.policy_state() == (paper.t1, paper.t2, paper.b1, paper.b2, paper.p)
    manager.check()


@pytest.mark.parametrize("num_blocks", [0, 1, 3])
def test_ghosts_are_bounded(num_blocks: int) -> None:
    manager = arc(num_blocks)
    for at in range(200):
        key = b"%d" % at
        if manager.prepare_store([key]) is not None:
            manager.complete_store([key])
        if at % 3 == 0:
            manager.touch([key, b"%d" % (at // 2)])
        manager.check()
    once, often, ghosts_once, ghosts_often, _ = manager.policy_state()
    assert len(once + often + ghosts_once + ghosts_often) <= 2 * num_blocks


def test_copy_goes_its_own_way() -> None:
    manager = arc(2)
    for name in "abc":
        store(manager, name)
    state = manager.policy_state()
    twin = manager.copy()
    store(manager, "a")
    assert isinstance(twin, ARCOffloadingManager)
    assert twin.policy_state() == state != manager.policy_state()
    twin.check()
