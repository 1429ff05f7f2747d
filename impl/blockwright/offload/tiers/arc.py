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

from librt.vecs import append, extend, vec
from mypy_extensions import i32, i64, mypyc_attr

from blockwright.core.keys.packed import zeros32
from blockwright.core.pool.check import demand
from blockwright.offload.tiers.ghosts import OFTEN, ONCE, Ghosts
from blockwright.offload.tiers.interfaces import Backend, OffloadingManager
from blockwright.offload.tiers.manager import TierManager
from blockwright.offload.tiers.ring import Ring


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
        self._once = Ring()
        self._often = Ring()
        self._list: vec[i32] = zeros32(1)  # by slot: ONCE or OFTEN
        self._ghosts = Ghosts()
        self._target = 0.0  # the length of T1 that is aimed at: the paper's p
        for slot in self._entries.recency.members():
            self._enter(slot, ONCE)

    def copy(self) -> OffloadingManager:
        twin = ARCOffloadingManager(self._copied_backend(), self._keeps_events)
        self._copy_books_to(twin)
        twin._once = self._once.copy()
        twin._often = self._often.copy()
        twin._list = self._list[:]
        twin._ghosts = self._ghosts.copy()
        twin._target = self._target
        return twin

    def policy_state(self) -> tuple[list[bytes], list[bytes], list[bytes], list[bytes], float]:
        """Return T1, T2, B1 and B2, least recent first, and the target for the length of T1. O(blocks)."""
        keys = self._entries.index.keys
        once = [keys[slot] for slot in self._once.members()]
        often = [keys[slot] for slot in self._often.members()]
        return once, often, list(self._ghosts.once), list(self._ghosts.often), self._target

    # ------------------------------------------------------------------ learning

    def _note_used(self, keys: list[bytes]) -> None:
        """Count hits, and learn from those evicted lately. O(blocks)."""
        index = self._entries.index
        at: i64 = len(keys)
        while at > 0:
            at -= 1
            key = keys[at]
            slot = index.find(key)
            if slot == 0:
                self._regret(key)
            else:
                self._hit(slot)

    def _hit(self, slot: i64) -> None:
        """Move a block to the newest end: of T2 if it can be read, else of the list that it is in."""
        if self._list[slot] == OFTEN:
            self._often.refresh(slot)
        elif self._entries.is_readable(slot):
            self._once.leave(slot)
            self._list[slot] = OFTEN
            self._often.push(slot)
        else:
            self._once.refresh(slot)

    def _regret(self, key: bytes) -> None:
        """Adapt the target if a block was evicted lately."""
        ghosts = self._ghosts
        which = ghosts.list_of(key)
        if which == 0:
            return
        once = float(len(ghosts.once))
        often = float(len(ghosts.often))
        if which == ONCE:
            self._target = min(float(self._capacity), self._target + max(1.0, often / once))
        else:
            self._target = max(0.0, self._target - max(1.0, once / often))
        ghosts.ring(which).move_to_end(key)

    # ------------------------------------------------------------------ what goes, and what comes

    def _victims(self, count: i64, new: list[bytes], call: i64) -> vec[i32]:
        """Return the blocks that go, each before the new one that it makes room for. law: TIER-6."""
        victims = vec[i32]()
        num_once = self._once.count
        once = self._next_idle(self._once, 0, call)
        often = self._next_idle(self._often, 0, call)
        before: i64 = len(new) - count  # so many come without that a block goes
        at: i64 = 0
        while i64(len(victims)) < count and (once != 0 or often != 0):
            which: i32 = 0
            if at < i64(len(new)):
                which = self._ghosts.list_of(new[at])
            if at >= before:
                wanted = float(num_once) > self._target or (which == OFTEN and float(num_once) == self._target)
                if once != 0 and (wanted or often == 0):
                    victims = append(victims, i32(once))
                    once = self._next_idle(self._once, once, call)
                    num_once -= 1
                else:
                    victims = append(victims, i32(often))
                    often = self._next_idle(self._often, often, call)
            if at < i64(len(new)) and which == 0:
                num_once += 1
            at += 1
        return victims

    def _next_idle(self, ring: Ring, slot: i64, call: i64) -> i64:
        """Return the next newer block of a list that may go, or 0."""
        entries = self._entries
        slot = i64(ring.newer[slot])
        while slot != 0 and not (entries.is_idle(slot) and entries.named[slot] != call):
            slot = i64(ring.newer[slot])
        return slot

    def _note_entered(self, slots: vec[i32]) -> None:
        """Put blocks that have come in T1, or in T2 if they were evicted lately; then keep the ghosts within bounds.

        T1 and B1 hold at most the tier's number of blocks, all four lists at most twice that. Only what comes adds to
        them.
        """
        ghosts = self._ghosts
        keys = self._entries.index.keys
        for slot in slots:
            key = keys[i64(slot)]
            which: i32 = ONCE
            was_in = ghosts.list_of(key)
            if was_in != 0:
                del ghosts.ring(was_in)[key]
                which = OFTEN
            self._enter(i64(slot), which)
        ghosts.trim(ONCE, max(0, self._capacity - self._once.count))
        present = self._once.count + self._often.count
        ghosts.trim(OFTEN, max(0, 2 * self._capacity - present - i64(len(ghosts.once))))

    def _note_leaving(self, slots: vec[i32], is_evicted: bool) -> None:
        """Take blocks out of their lists; remember those that were evicted, not those that a failure took."""
        for named in slots:
            slot: i64 = i64(named)
            which = self._list[slot]
            self._list[slot] = 0
            (self._once if which == ONCE else self._often).leave(slot)
            if is_evicted:
                self._ghosts.ring(which)[self._entries.index.keys[slot]] = None

    def _enter(self, slot: i64, which: i32) -> None:
        size = self._entries.index.size
        if i64(len(self._list)) < size:
            self._list = extend(self._list, zeros32(size - i64(len(self._list))))
            self._once.grow(size)
            self._often.grow(size)
        self._list[slot] = which
        (self._once if which == ONCE else self._often).push(slot)

    def check(self) -> None:
        super().check()
        once, often, ghosts_once, ghosts_often, target = self.policy_state()
        demand("TIER-4", "the blocks of T1 and T2", sorted(self.recency()), sorted(once + often))
        demand("TIER-4", "T1 read backwards", self._once.members()[::-1], self._once.backwards())
        demand("TIER-4", "T2 read backwards", self._often.members()[::-1], self._often.backwards())
        present = set(once + often)
        ghosts = ghosts_once + ghosts_often
        demand("TIER-4", "ghosts that are present", [], [key for key in ghosts if key in present])
        capacity = int(self._capacity)
        demand("TIER-2", "T1 and B1 within the capacity", True, len(once) + len(ghosts_once) <= capacity)
        demand("TIER-2", "all lists within twice the capacity", True, len(present) + len(ghosts) <= 2 * capacity)
        demand("TIER-2", f"the target {target} within the capacity", True, 0 <= target <= capacity)
