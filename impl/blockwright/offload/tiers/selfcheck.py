"""The self-check of one tier: each law recomputed from plain facts.

The ids are those of the specification's list of laws; nothing here trusts a counter that it could count itself.
"""

from __future__ import annotations

from mypy_extensions import i64

from blockwright.core.pool.check import demand
from blockwright.offload.tiers.backend import SlotBackend
from blockwright.offload.tiers.entries import DOOMED, READY, WRITING, Entries


def check_entries(entries: Entries, backend: SlotBackend | None, capacity: int, num_free: int) -> None:
    """Check the blocks of a tier against its order of use, its index of keys and its backend.

    Raises:
        InvariantError: TIER-1, TIER-2, TIER-3 or TIER-4 is broken.
    """
    index = entries.index
    used = [slot for slot in range(int(index.size)) if len(index.keys[slot]) > 0]
    demand("TIER-4", "the number of keys", len(used), int(index.count))
    for slot in used:
        demand("TIER-4", "the slot found under a key", slot, int(index.find(index.keys[slot])))
    order = entries.recency.members()
    demand("TIER-4", "the order of use read backwards", order[::-1], entries.recency.backwards())
    demand("TIER-4", "the blocks in the order of use", used, sorted(order))
    late = [] if backend is None else [slot for slot in used if int(entries.place[slot]) >= capacity]
    demand("TIER-2", "places free or of a block", capacity, num_free + len(used) - len(late))
    demand(
        "TIER-13", "blocks beyond the end that are found", [], [slot for slot in late if entries.state[slot] == READY]
    )
    for slot in used:
        state = int(entries.state[slot])
        readers = int(entries.readers[slot])
        demand(
            "TIER-1", f"slot {slot} is written, ready or doomed, not {state}", True, state in (WRITING, READY, DOOMED)
        )
        allowed = readers >= 0 if state == READY else readers == 0 if state == WRITING else readers > 0
        demand("TIER-3", f"{readers} readers of a block in state {state}", True, allowed)
        if backend is None:
            shown = -1 if state == WRITING else readers
            demand("TIER-3", f"the backend's count for slot {slot}", shown, entries.status_of(i64(slot)).ref_cnt)
    if backend is not None:
        places = [int(entries.place[slot]) for slot in used]
        demand("TIER-2", "blocks that share no place", len(places), len(set(places)))
        demand("TIER-2", "places of no block", [], [place for place in places if not backend.is_used(place)])
