"""Property: the self-check of tiers and chains notices books that are broken, by the law, and says what and how.

How: each private list, count and status is damaged by itself, in the uncompiled build.
Not covered: damage that leaves books consistent (the gate `offload` compares them with the specification).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.core.support import pure_only
from tests.offload.tiers.tier_support import BLOCK_SIZE, lru

from blockwright.errors import InvariantError
from blockwright.offload import ARCOffloadingManager, CPUBackend, OffloadChain

A, B, C, D = b"a", b"b", b"c", b"d"


def arc() -> Any:
    """A tier with C and D in T1, B in T2, A in B1."""
    manager = ARCOffloadingManager(CPUBackend(BLOCK_SIZE, 3))
    for keys in ([A, B, C], [D]):
        manager.prepare_store(keys)
        manager.complete_store(keys)
        manager.touch([B])
    return manager


def slot(manager: Any, key: bytes) -> int:
    return int(manager._entries.index.find(key))


def ghosts(manager: Any, *keys: bytes, of: str = "_gone_once") -> None:
    getattr(manager, of).update(dict.fromkeys(keys))


DAMAGE: dict[str, tuple[Callable[[Any], object], str]] = {
    "left T1": (lambda m: m._once.pop(D), f"TIER-4: the blocks of T1 and T2: expected {[B, C, D]}, found"),
    "a key too many": (
        lambda m: setattr(m._entries.index, "count", m._entries.index.count + 1),
        "TIER-4: the number of keys: expected 3, found 4",
    ),
    "a present ghost": (lambda m: ghosts(m, C), f"TIER-4: ghosts that are present: expected [], found {[C]}"),
    "a ghost too many": (lambda m: ghosts(m, b"more"), "TIER-2: T1 and B1 within the capacity: expected True, found"),
    "all too long": (
        lambda m: ghosts(m, b"1", b"2", b"3", of="_gone_often"),
        "TIER-2: all lists within twice the capacity: ",
    ),
    "below the least target": (lambda m: setattr(m, "_target", -0.5), "TIER-2: the target -0.5 within the capacity: "),
    "beyond the largest": (lambda m: setattr(m, "_target", 3.5), "TIER-2: the target 3.5 within the capacity: "),
}


@pure_only
@pytest.mark.parametrize(("damage", "words"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_of_lists_is_noticed(damage: Callable[[Any], object], words: str) -> None:
    manager = arc()
    manager.check()
    damage(manager)
    with pytest.raises(InvariantError) as caught:
        manager.check()
    assert str(caught.value).startswith(words)


@pure_only
@pytest.mark.parametrize("made", [arc, lambda: lru(2, "ab"), lambda: OffloadChain([lru(2, "ab")])])
def test_damage_of_a_status_is_noticed(made: Callable[[], Any]) -> None:
    broken = made()
    tier = broken.tiers[0] if hasattr(broken, "tiers") else broken
    tier._entries.state[slot(tier, B)] = 7
    with pytest.raises(InvariantError, match=r"TIER-1: slot \d is written, ready or doomed, not 7: expected True"):
        broken.check()


@pure_only
def test_damage_of_pins_is_noticed() -> None:
    chain: Any = OffloadChain([lru(2)])
    chain._jobs.readers[5] = 1
    with pytest.raises(InvariantError, match=r"CHAIN-1: stores that read blocks of the device: expected \{\}"):
        chain.check()
