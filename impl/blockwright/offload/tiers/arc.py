"""The tier that weighs recency against frequency by its recent misses.

ARC, as published: N. Megiddo and D. S. Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003. A block
seen once is in T1, a block seen more often in T2; keys evicted from them stay for a while in B1 and B2. When a key in
B1 is asked for again, T1 was too small, and its target grows; with one in B2 it shrinks.

The paper has one request that hits or fetches. Here an engine names the blocks that it looks for (`touch`) and later,
perhaps, those that it has (`prepare_store`); therefore:

- `touch` of a ready block is the hit (T1 or T2 -> newest of T2); one that is not ready only becomes newest in its list.
- `touch` of a key in B1 or B2 adapts the target, once for each touch, and makes the key the newest there.
- `prepare_store` brings a block in: to T2 if its key is in B1 or B2, else to T1; it does not adapt once more. Blocks of
  one call come one after the other, in order, as far as the choice of victims goes.
- A block that is being read or written, or is named by the call, is passed over; if its whole list is, the other list
  gives the victim.

Source: section 6 of the named systems (`ARCOffloadingManager`).
"""

from __future__ import annotations

from collections import OrderedDict

from librt.vecs import append, vec
from mypy_extensions import i32, i64, mypyc_attr

from blockwright.core.pool.check import demand
from blockwright.offload.tiers.entries import READY
from blockwright.offload.tiers.interfaces import Backend, OffloadingManager
from blockwright.offload.tiers.manager import TierManager


@mypyc_attr(allow_interpreted_subclasses=True)
class ARCOffloadingManager(TierManager):
    """Keeps track of the blocks of a backend, and evicts by ARC.

    >>> from blockwright.offload import CPUBackend
    >>> manager = ARCOffloadingManager(CPUBackend(block_size=16, num_blocks=2))
    >>> manager.prepare_store([b"often", b"once"]).block_hashes_evicted
    []
    >>> manager.complete_store([b"often", b"once"])
    >>> manager.touch([b"often"])
    >>> manager.prepare_store([b"another"]).block_hashes_evicted
    [b'once']
    """

    def __init__(self, backend: Backend, enable_events: bool = False) -> None:
        """Take over a backend, and the blocks that it recovered (as seen once).

        Raises:
            InvalidArgumentError: not a backend, or it recovered one block twice.
        """
        super().__init__(backend, enable_events)
        # T1 and T2, B1 and B2, least recent first. Ordered dictionaries, since a plain one gets slow at its front.
        self._once: OrderedDict[bytes, None] = OrderedDict()
        self._often: OrderedDict[bytes, None] = OrderedDict()
        self._gone_once: OrderedDict[bytes, None] = OrderedDict()
        self._gone_often: OrderedDict[bytes, None] = OrderedDict()
        self._target = 0.0  # the length of T1 that is aimed at: the paper's p
        for slot in self._entries.recency.members():
            self._once[self._entries.index.keys[slot]] = None

    def copy(self) -> OffloadingManager:
        return self._copied_to(ARCOffloadingManager(self._copied_backend()))

    def policy_state(self) -> tuple[list[bytes], list[bytes], list[bytes], list[bytes], float]:
        """Return T1, T2, B1 and B2, least recent first, and the target for the length of T1. O(blocks)."""
        return list(self._once), list(self._often), list(self._gone_once), list(self._gone_often), self._target

    # ------------------------------------------------------------------ learning

    def _note_used(self, keys: list[bytes]) -> None:
        """Count hits, and learn from blocks evicted lately, the last key first. O(keys)."""
        at: i64 = len(keys)
        while at > 0:
            at -= 1
            key = keys[at]
            if key in self._often:
                self._often.move_to_end(key)
            elif key in self._once and self._entries.state[self._entries.index.find(key)] == READY:
                del self._once[key]
                self._often[key] = None
            elif key in self._once:
                self._once.move_to_end(key)
            elif key in self._gone_once:  # T1 was too small
                ratio = float(len(self._gone_often)) / float(len(self._gone_once))
                self._target = min(float(self._capacity), self._target + max(1.0, ratio))
                self._gone_once.move_to_end(key)
            elif key in self._gone_often:
                ratio = float(len(self._gone_once)) / float(len(self._gone_often))
                self._target = max(0.0, self._target - max(1.0, ratio))
                self._gone_often.move_to_end(key)

    # ------------------------------------------------------------------ what goes, and what comes

    def _victims(self, count: i64, new: list[bytes], call: i64) -> vec[i32]:
        """Return the blocks that go, each before the new one that it makes room for. law: TIER-6."""
        victims = vec[i32]()
        num_once: i64 = len(self._once)
        once = self._next_idle(self._once, count, call)
        often = self._next_idle(self._often, count, call)
        # The first new blocks take free places; they fill T1 all the same, and so decide what goes for the later ones.
        before: i64 = len(new) - count  # so many come without that a block goes
        at: i64 = 0
        while i64(len(victims)) < count and (once or often):
            comes_once = at < i64(len(new)) and new[at] not in self._gone_once
            comes_often = comes_once and new[at] in self._gone_often
            if at >= before:
                wanted = float(num_once) > self._target or (comes_often and float(num_once) == self._target)
                if once and (wanted or not often):
                    victims = append(victims, once.pop())
                    num_once -= 1
                else:
                    victims = append(victims, often.pop())
            if comes_once and not comes_often:
                num_once += 1
            at += 1
        return victims

    def _next_idle(self, seen: OrderedDict[bytes, None], count: i64, call: i64) -> list[i32]:
        """Return up to `count` slots of a list that may go, the next one last. O(blocks passed over)."""
        entries = self._entries
        idle: list[i32] = []
        for key in seen:
            slot = entries.index.find(key)
            if entries.is_idle(slot) and entries.named[slot] != call:
                idle.append(i32(slot))
                if i64(len(idle)) >= count:
                    break
        idle.reverse()
        return idle

    def _note_entered(self, slots: vec[i32]) -> None:
        """Put blocks that have come in T1, or in T2 if they were evicted lately; then keep the ghosts within bounds.

        T1 and B1 hold at most the tier's number of blocks, all four lists at most twice that. Only what comes adds to
        them.
        """
        for slot in slots:
            key = self._entries.index.keys[i64(slot)]
            if key in self._gone_once or key in self._gone_often:
                self._gone_once.pop(key, None)
                self._gone_often.pop(key, None)
                self._often[key] = None
            else:
                self._once[key] = None
        self._note_resized()

    def _note_resized(self) -> None:
        """Keep the target and the ghosts within the paper's bounds: |T1| + |B1| <= c, and all four lists within 2c."""
        self._target = min(self._target, float(self._capacity))
        capacity = int(self._capacity)
        while self._gone_once and len(self._gone_once) > capacity - len(self._once):
            self._gone_once.popitem(last=False)
        present = len(self._once) + len(self._often)
        while self._gone_often and len(self._gone_often) > 2 * capacity - present - len(self._gone_once):
            self._gone_often.popitem(last=False)

    def _note_leaving(self, slots: vec[i32], is_evicted: bool) -> None:
        """Take blocks out of their lists; remember those that were evicted, not those that a failure took."""
        for slot in slots:
            key = self._entries.index.keys[i64(slot)]
            seen, gone = (self._once, self._gone_once) if key in self._once else (self._often, self._gone_often)
            del seen[key]
            if is_evicted:
                gone[key] = None

    def check(self) -> None:
        super().check()
        once, often, ghosts_once, ghosts_often, target = self.policy_state()
        demand("TIER-4", "the blocks of T1 and T2", sorted(self.recency()), sorted(once + often))
        present = set(once + often)
        ghosts = ghosts_once + ghosts_often
        demand("TIER-4", "ghosts that are present", [], [key for key in ghosts if key in present])
        capacity = int(self._capacity) + len(self.beyond())
        demand("TIER-2", "T1 and B1 within the capacity", True, len(once) + len(ghosts_once) <= capacity)
        demand("TIER-2", "all lists within twice the capacity", True, len(present) + len(ghosts) <= 2 * capacity)
        demand("TIER-2", f"the target {target} within the capacity", True, 0 <= target <= capacity)
