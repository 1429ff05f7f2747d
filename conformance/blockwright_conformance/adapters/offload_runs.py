"""Offloading managers of other makes under the explorer of tiers: scopes, findings, and what comes of each law.

The search is that of one tier (`offload_tier_explore`), but does not end at the first fault: it records the shortest
way to each law that is broken, and goes on from the states in which nothing was wrong.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from blockwright_spec.tier_laws import TIER_LAWS, TIER_STEP_LAWS

from ..offload_diagnosis import diagnose_tier
from ..offload_scopes import KEYS, TierScope, lists
from ..offload_tier_explore import TierCall, TierExplorer, TierNow, TierTold
from ..offload_tiers import TierUnderTest
from ..search import Node, path
from .capabilities import Capabilities, Finding

SINGLE = lists(3, 1)
ORDERED = (*SINGLE, KEYS[:2], KEYS[1:3], (KEYS[2], KEYS[0]), KEYS[:3])
"""Lists that name no key twice."""


def scopes_of(policy: str) -> tuple[TierScope, ...]:
    """Give the scopes of a policy, the calls of which are right; those that name a key twice, and wrong calls."""
    return (
        TierScope(f"{policy}, 2 places, 3 keys", policy, 2, ORDERED, readers=2, misuse=False),
        TierScope(f"{policy}, 3 places, 3 keys", policy, 3, (*SINGLE, KEYS[:3]), misuse=False),
        TierScope(f"{policy}, 1 place, 3 keys", policy, 1, ORDERED, misuse=False),
        TierScope(f"{policy}, no places", policy, 0, lists(2, 2)[:-1], misuse=False),
        TierScope(f"{policy}, a key twice", policy, 2, (*lists(2, 1), (KEYS[0], KEYS[0])), misuse=False),
        TierScope(f"{policy}, wrong calls", policy, 2, (*lists(2, 1), KEYS[:2], KEYS[1::-1])),
    )
